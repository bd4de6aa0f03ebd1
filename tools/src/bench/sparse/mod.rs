//! `linerate bench sparse-allreduce`: a sparse allreduce of a vector or of a model's tensors, with
//! what was sent in each phase.
//!
//! A time is that of the slowest rank, per step, each started after a barrier. It includes the
//! selection. The time of communication is that of the rank that began it last, because the others
//! also wait for selections on the same cores. With `--check 1` sampled coordinates are followed:
//! what was applied and what residuals keep must together be what gradients gave.
//!
//! With `--transport sim` all ranks are in this process and their communication takes virtual time
//! (`simulated.rs`).
//!
//! Read first: `rank.rs`.

mod document;
mod rank;
mod simulated;
mod vectors;

use super::link::{Link, LinkArgs};
use clap::{Args, ValueEnum};
use linerate::options::{Algorithm, Amount, Balance, Mode, NonFinite, ValueFormat};
use linerate::{Config, SparseOptions, TensorSpec};
use linerate_job::binding::Bind;
use linerate_job::ending::{self, FAILED};
use linerate_job::flags::JobArgs;
use linerate_job::{settings, spawn};
use std::process::ExitCode;
use std::str::FromStr;

/// Arguments of `linerate bench sparse-allreduce`.
#[derive(Args, Clone, Debug)]
pub struct SparseArgs {
    /// Elements of one f32 vector; default 4194304
    #[arg(long, value_name = "N", conflicts_with = "layers")]
    pub count: Option<u64>,

    /// The tensors of a model: vgg16 (CIFAR-10), lstm, bert, or a .layers.csv file
    #[arg(long, value_name = "NAME|FILE")]
    pub layers: Option<String>,

    /// Share of the elements that the result has
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    pub density: f64,

    /// oktopk, topka, topka2, topkdsa, topkdsa-small, topkdsa-big, topkdsa-doubling, gtopk,
    /// gaussiank, dense, auto, or all, one after another
    #[arg(long, value_name = "NAME", default_value = "oktopk")]
    pub algo: Algorithms,

    /// How picks and result are selected
    #[arg(long, value_enum, default_value_t = ModeName::Exact)]
    pub mode: ModeName,

    /// How values are spread over the elements: everywhere alike, by a power law of the index, or
    /// with a scale for each layer
    #[arg(long, value_enum, default_value_t = Distribution::Uniform)]
    pub distribution: Distribution,

    /// When Ok-Topk spreads its selected entries before they are gathered: auto, paper (above 4
    /// times the mean), cost (by the cost model), always or never
    #[arg(long, value_name = "RULE", default_value = "auto", value_parser = Balance::from_str)]
    pub balance: Balance,

    /// What values are on the wire: f32, bf16 or i8
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = ValueFormat::from_str)]
    pub values: ValueFormat,

    /// What values do that are not finite: error, skip (the step) or count (leave them out; adds
    /// and selects in one pass)
    #[arg(long, value_name = "POLICY", default_value = "error", value_parser = NonFinite::from_str)]
    pub non_finite: NonFinite,

    /// Timed steps
    #[arg(short = 'n', long = "iters", value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub iterations: u32,

    /// Steps before the timed ones
    #[arg(
        short = 'w',
        long = "warmup",
        value_name = "COUNT",
        default_value_t = 2
    )]
    pub warmup: u32,

    /// 1: follow sampled coordinates through all steps; 0: do not
    #[arg(short = 'c', long = "check", value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    pub check: u8,

    /// Local ranks to spawn; default 2. Under a launcher it must equal WORLD_SIZE
    #[arg(long, value_name = "N")]
    pub ranks: Option<u32>,

    /// cores: each rank gets its own share of the cores; none: the kernel places them
    #[arg(long, value_enum, default_value_t = Bind::Cores)]
    pub bind: Bind,

    #[command(flatten)]
    pub job: JobArgs,

    #[command(flatten)]
    pub link: LinkArgs,

    /// Seed of the gradients
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// The algorithms of `--algo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Algorithms(pub Vec<Algorithm>);

impl FromStr for Algorithms {
    type Err = String;

    fn from_str(text: &str) -> Result<Algorithms, String> {
        match text {
            "all" => Ok(Algorithms(Algorithm::ALL.to_vec())),
            name => Ok(Algorithms(vec![
                name.parse().map_err(|e| format!("{e}, or all"))?,
            ])),
        }
    }
}

/// How picks and result are selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeName {
    /// Exactly k, every step.
    Exact,
    /// By thresholds that are used again for 32 steps.
    Threshold,
    /// As the published code does.
    Paper,
}

/// How values are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Distribution {
    /// Every element alike, independently on every rank.
    Uniform,
    /// Element i is scaled by (i + 1) to the power of -1/2, on all ranks.
    Powerlaw,
    /// Every tensor has a scale of its own, from 1/16 to 16; a single vector is cut into 16.
    Layers,
}

/// What is run.
pub struct Plan {
    pub args: SparseArgs,
    pub config: Config,
    pub ranks: u32,
    pub tensors: Vec<TensorSpec>,
    /// The network of a simulation.
    pub link: Option<Link>,
}

impl Plan {
    /// What an algorithm is told.
    pub fn options(&self, algorithm: Algorithm) -> SparseOptions {
        SparseOptions {
            algorithm,
            amount: Amount::Density(self.args.density),
            mode: match self.args.mode {
                ModeName::Exact => Mode::Exact,
                ModeName::Threshold => Mode::Threshold,
                ModeName::Paper => Mode::Paper,
            },
            values: self.args.values,
            balance: self.args.balance,
            non_finite: self.args.non_finite,
            ..SparseOptions::default()
        }
    }

    /// Elements of all tensors.
    pub fn count(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.count).sum()
    }
}

/// Checks the arguments, then spawns the ranks or is one.
pub fn run(args: &SparseArgs) -> ExitCode {
    let plan = match build_plan(args) {
        Ok(plan) => plan,
        Err(text) => return ending::refuse(&text),
    };
    if let Some(link) = plan.link {
        return ending::end(simulated::run(&plan, link));
    }
    if let Some(reason) = settings::unavailable_reason(&plan.config.transport) {
        return ending::fail(FAILED, &reason);
    }
    if settings::launched_rank().is_none() {
        return ExitCode::from(spawn::spawn_self(plan.ranks, args.bind));
    }
    ending::conclude(rank::run(&plan))
}

fn build_plan(args: &SparseArgs) -> Result<Plan, String> {
    let ranks = settings::check_ranks(args.ranks, settings::launched_ranks()?)?;
    let mut config = args.job.config()?;
    let is_launched = settings::launched_rank().is_some();
    let link = args.link.link(&config.transport, ranks, is_launched)?;
    // A step is made of several collectives, for which one name cannot do.
    config.algorithm = None;
    let tensors = match &args.layers {
        Some(name) => vectors::layers(name)?,
        None => vec![vectors::single(args.count.unwrap_or(4 << 20))],
    };
    let plan = Plan {
        args: args.clone(),
        config,
        ranks,
        tensors,
        link,
    };
    let count = plan.count();
    for algorithm in &args.algo.0 {
        plan.options(*algorithm)
            .check(count)
            .map_err(|error| error.to_string())?;
    }
    args.job.check_json()?;
    if plan.link.is_some() {
        // Nothing has memory in a simulation.
        return Ok(plan);
    }
    // Gradient, residual and half a vector more; a dense step has another whole one.
    let dense = args
        .algo
        .0
        .iter()
        .any(|a| matches!(a, Algorithm::Dense | Algorithm::Auto));
    let needed = 4 * count * (2 + u64::from(dense)) + 4 * count / 2;
    let available = linerate::unstable::memory::available_memory_bytes();
    let local = settings::local_world_size().unwrap_or(ranks);
    let advice = "take a smaller --count or fewer --ranks";
    // Ranks that a launcher has started share what is left; it was checked by the process that
    // started them.
    if !is_launched {
        let all = needed * u64::from(local);
        settings::check_memory("sparse-allreduce", all, available, advice)?;
    }
    Ok(plan)
}
