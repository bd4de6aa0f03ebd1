//! `linerate bench push-pull`: steps of workers with a parameter server. In each step a worker
//! pushes a gradient, waits for its OK and pulls the weights. After the steps the workers pull as
//! often again, with no push between, which is the time of a pull alone.
//!
//! The time of a step is from when all workers have done the one before until all have done it;
//! push and pull are those of the slowest worker, step by step. No barrier lies between steps,
//! because it would make every mode a synchronous one. All elements are checked twice: after the
//! timed steps, and after the last pull (`expected.rs`; `reference.rs` has what an optimizer with a
//! state makes of a weight).
//!
//! Read first: `rank.rs`; `simulate.rs` has all ranks in one process, in virtual time.

mod document;
mod expected;
mod rank;
mod reference;
mod report;
mod simulate;
mod table;

use super::link::{Link, LinkArgs};
use super::sweep;
use clap::Args;
use expected::Expected;
use linerate::options::{Optimizer, ServerOptions, Staleness};
use linerate::unstable::limits::CACHE_LINE_BYTES;
use linerate::{Config, DataType, Rank, TensorSpec};
use linerate_job::binding::Bind;
use linerate_job::ending::{self, FAILED};
use linerate_job::flags::JobArgs;
use linerate_job::settings::{self, parse_size};
use linerate_job::spawn;
use std::process::ExitCode;
use std::str::FromStr;

/// A shard has a multiple of this many elements. All shards are then equally long.
const SHARD_ELEMENTS: u64 = CACHE_LINE_BYTES as u64;

/// Where a worker makes its gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Gradients {
    Server,
    Caller,
}

/// The learning rate. With SGD the weights are then less by what was pushed.
const RATE: f32 = 1.0;

/// How weights follow gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Rule {
    Sgd,
    Momentum,
    Adam,
    Adamw,
}

impl Rule {
    /// As the flag has it.
    fn name(self) -> &'static str {
        match self {
            Rule::Sgd => "sgd",
            Rule::Momentum => "momentum",
            Rule::Adam => "adam",
            Rule::Adamw => "adamw",
        }
    }

    fn optimizer(self) -> Optimizer {
        match self {
            Rule::Sgd => Optimizer::sgd(),
            Rule::Momentum => Optimizer::momentum(0.9),
            Rule::Adam => Optimizer::adam(),
            Rule::Adamw => Optimizer::adamw(),
        }
    }
}

/// Arguments of `linerate bench push-pull`.
#[derive(Args, Clone, Debug)]
pub struct PushPullArgs {
    /// Smallest gradient, bytes, with K, M or G (binary). A size is rounded down to 64 elements in
    /// each shard, or a multiple, and is at least that
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", default_value = "1K", value_parser = parse_size)]
    pub min_bytes: u64,

    /// Largest gradient, bytes, with K, M or G (binary)
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    pub max_bytes: u64,

    /// Each size is the one before times this
    #[arg(
        short = 'f',
        long = "stepfactor",
        value_name = "FACTOR",
        default_value_t = 2
    )]
    pub step_factor: u64,

    /// Type of gradients: f32, f16 or bf16
    #[arg(short = 'd', long = "dtype", value_name = "TYPE", default_value = "f32", value_parser = parse_type)]
    pub dtype: DataType,

    /// Type in which weights are pulled: f32, f16 or bf16
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = parse_type)]
    pub pull: DataType,

    /// Where gradients are made: in memory of the server, which shards of the host read, or in the
    /// caller's, which is copied to the shards
    #[arg(long, value_enum, default_value_t = Gradients::Server)]
    pub gradients: Gradients,

    /// Ranks that only serve, the first ones; 0: every rank serves and trains
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub servers: u32,

    /// Further servers of each shard, 0 or 1. With 1 every two servers have one shard
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1))]
    pub replicas: u32,

    /// How far workers run ahead: bsp, asp, ssp:S or dssp:S_L:S_U, with bounds on the drift
    #[arg(long, value_name = "MODE", default_value = "bsp")]
    pub mode: Mode,

    /// How weights follow gradients: sgd, momentum (0.9), adam or adamw. Where several workers make
    /// updates of their own, sgd
    #[arg(long, value_enum, default_value_t = Rule::Sgd)]
    pub optimizer: Rule,

    /// Timed steps, and timed pulls after them
    #[arg(short = 'n', long = "iters", value_name = "COUNT", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub iterations: u32,

    /// Steps before the timed ones
    #[arg(
        short = 'w',
        long = "warmup",
        value_name = "COUNT",
        default_value_t = 2
    )]
    pub warmup: u32,

    /// Local ranks to spawn; default 2. Under a launcher it must equal WORLD_SIZE
    #[arg(long, value_name = "N")]
    pub ranks: Option<u32>,

    /// cores: each rank gets its own share of the cores; none: the kernel places them
    #[arg(long, value_enum, default_value_t = Bind::Cores)]
    pub bind: Bind,

    #[command(flatten)]
    pub link: LinkArgs,

    #[command(flatten)]
    pub job: JobArgs,
}

/// A mode as it was written, and what it means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mode {
    pub name: String,
    pub staleness: Staleness,
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Mode, String> {
        let number = |text: &str| {
            text.parse::<u32>()
                .map_err(|_| format!("a bound of '{text}': a whole number from 0 to {}", u32::MAX))
        };
        let parts: Vec<&str> = text.split(':').collect();
        let staleness = match parts[..] {
            ["bsp"] => Staleness::Bsp,
            ["asp"] => Staleness::Asp,
            ["ssp", bound] => Staleness::Ssp(number(bound)?),
            ["dssp", lower, upper] => {
                let bounds = (number(lower)?, number(upper)?);
                Staleness::dssp(bounds.0, bounds.1).map_err(|error| error.to_string())?
            }
            _ => return Err(format!("'{text}' is none of bsp, asp, ssp:S, dssp:S_L:S_U")),
        };
        Ok(Mode {
            name: text.into(),
            staleness,
        })
    }
}

fn parse_type(text: &str) -> Result<DataType, String> {
    match text.parse() {
        Ok(dtype @ (DataType::F32 | DataType::F16 | DataType::Bf16)) => Ok(dtype),
        _ => Err("f32, f16 or bf16".into()),
    }
}

/// What is run.
pub struct Plan {
    pub args: PushPullArgs,
    pub config: Config,
    pub ranks: u32,
    /// The network of a simulation.
    pub link: Option<Link>,
    /// Elements of the gradient, by row.
    pub counts: Vec<u64>,
}

impl Plan {
    /// What the parameter server is told.
    pub fn options(&self) -> ServerOptions {
        ServerOptions {
            servers: (0..self.args.servers).collect(),
            replicas: self.args.replicas,
            staleness: self.args.mode.staleness,
            optimizer: self.args.optimizer.optimizer(),
            rate: RATE,
            pulls: self.args.pull,
            ..ServerOptions::default()
        }
    }

    /// What is trained.
    pub fn tensor(&self, count: u64) -> TensorSpec {
        TensorSpec {
            name: "weights".into(),
            count,
            dtype: self.args.dtype,
        }
    }

    pub fn servers(&self) -> u32 {
        match self.args.servers {
            0 => self.ranks,
            servers => servers,
        }
    }

    /// Servers that have the same shard.
    fn copies(&self) -> u32 {
        1 + self.args.replicas
    }

    pub fn workers(&self) -> u32 {
        self.ranks - self.args.servers
    }

    pub fn is_worker(&self, rank: Rank) -> bool {
        rank >= self.args.servers
    }

    /// Steps of a worker.
    pub fn steps(&self) -> u64 {
        u64::from(self.args.warmup) + u64::from(self.args.iterations)
    }

    /// Workers whose pushes are updates of their own. In BSP all workers make one update together,
    /// with the mean of their gradients, and these are equal.
    pub fn authors(&self) -> u32 {
        match self.args.mode.staleness {
            Staleness::Bsp => 1,
            _ => self.workers(),
        }
    }

    /// The weights of a worker after its last step.
    fn expected_at_end(&self) -> Expected {
        match self.args.optimizer {
            Rule::Sgd => Expected::between(self.steps(), self.steps(), self.authors()),
            _ => self.expected_of_all(),
        }
    }

    /// The weights that have all pushes of all workers.
    fn expected_of_all(&self) -> Expected {
        match self.args.optimizer {
            Rule::Sgd => Expected::exactly(self.steps(), self.authors()),
            rule => Expected::trained(rule.optimizer(), self.steps()),
        }
    }

    /// Bytes that all ranks together allocate for a row.
    fn needed_bytes(&self, count: u64) -> u64 {
        let options = self.options();
        let [gradient, pull, f32] = [self.args.dtype, self.args.pull, DataType::F32]
            .map(|dtype| count.saturating_mul(dtype.size_bytes() as u64));
        // The weights to begin with, or those that a server keeps, if they are not as pulled.
        let first = if self.args.pull == DataType::F32 {
            0
        } else {
            f32
        };
        let own = match self.args.gradients {
            Gradients::Server => options.slots,
            Gradients::Caller => 0,
        };
        let copies = u64::from(self.copies());
        let slots = u64::from(options.slots) * copies + u64::from(own);
        let gradients = expected::ROTATION as u64 + slots;
        let of_worker = gradient
            .saturating_mul(gradients)
            .saturating_add(pull.saturating_add(first));
        let states = f32.saturating_mul(options.optimizer.states() as u64);
        let of_servers = (pull.saturating_mul(2)).saturating_add(first.saturating_add(states));
        of_worker
            .saturating_mul(u64::from(self.workers()))
            .saturating_add(of_servers.saturating_mul(copies))
    }
}

impl Gradients {
    /// As the flag has it.
    fn name(self) -> &'static str {
        match self {
            Gradients::Server => "server",
            Gradients::Caller => "caller",
        }
    }
}

/// Checks the arguments, then spawns the ranks or is one.
pub fn run(args: &PushPullArgs) -> ExitCode {
    let plan = match build_plan(args) {
        Ok(plan) => plan,
        Err(text) => return ending::refuse(&text),
    };
    if let Some(link) = plan.link {
        return ending::conclude(simulate::run(&plan, link));
    }
    if let Some(reason) = settings::unavailable_reason(&plan.config.transport) {
        return ending::fail(FAILED, &reason);
    }
    if settings::launched_rank().is_none() {
        return ExitCode::from(spawn::spawn_self(plan.ranks, args.bind));
    }
    ending::conclude(rank::run(&plan))
}

fn build_plan(args: &PushPullArgs) -> Result<Plan, String> {
    let launched = settings::launched_ranks()?;
    let ranks = settings::check_ranks(args.ranks, launched)?;
    let mut config = args.job.config()?;
    let link = (args.link).link(&config.transport, ranks, launched.is_some())?;
    if args.servers >= ranks {
        return Err(format!(
            "--servers is {}: with {ranks} ranks it is 0 (every rank serves and trains) to {}",
            args.servers,
            ranks - 1
        ));
    }
    // One name cannot do for a barrier and a sum.
    config.algorithm = None;
    let mut plan = Plan {
        args: args.clone(),
        config,
        ranks,
        link,
        counts: Vec::new(),
    };
    if plan.link.is_some() {
        // No rank reads memory of another one there.
        plan.args.gradients = Gradients::Caller;
    }
    let bounds = (args.min_bytes, args.max_bytes);
    if !plan.servers().is_multiple_of(plan.copies()) {
        return Err(format!(
            "--replicas 1 with {} servers: two servers have one shard, so take an even number",
            plan.servers()
        ));
    }
    let block = SHARD_ELEMENTS * u64::from(plan.servers() / plan.copies());
    let width = args.dtype.size_bytes() as u64;
    let sizes = sweep::sizes_by_factor(bounds, args.step_factor)?;
    let counts = sizes
        .iter()
        .map(|size| (size / width / block).max(1) * block);
    plan.counts = counts.collect();
    plan.counts.dedup();
    check_exact(&plan)?;
    args.job.check_json()?;
    // Ranks that a launcher has started share what is left; it was checked by the process that
    // started them.
    if settings::launched_rank().is_none() {
        let largest = plan.counts.last().copied().unwrap_or(0);
        settings::check_memory(
            "push-pull",
            plan.needed_bytes(largest),
            linerate::unstable::memory::available_memory_bytes(),
            "take a smaller --maxbytes or fewer --ranks",
        )?;
    }
    Ok(plan)
}

/// Refuses steps whose sums would not be exact in the type in which weights are pulled, and
/// optimizers whose weights depend on the order in which workers push.
fn check_exact(plan: &Plan) -> Result<(), String> {
    if plan.args.optimizer != Rule::Sgd {
        return match plan.authors() {
            1 => Ok(()),
            authors => Err(format!(
                "--optimizer {} with --mode {} of {authors} workers: what the weights must be depends on the order of their pushes; take --mode bsp, one worker (--servers {}) or --optimizer sgd",
                plan.args.optimizer.name(),
                plan.args.mode.name,
                plan.ranks - 1
            )),
        };
    }
    let most = expected::sum_max(plan.steps()).saturating_mul(u64::from(plan.authors()));
    let exact = match plan.args.pull {
        DataType::Bf16 => 1 << 8,
        DataType::F16 => 1 << 11,
        _ => 1 << 24,
    };
    if most <= exact {
        return Ok(());
    }
    Err(format!(
        "{} steps of {} workers make weights of up to {most}, and whole numbers in {} are exact up to {exact}: take fewer --iters or --warmup, or another --pull",
        plan.steps(),
        plan.workers(),
        plan.args.pull
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_their_bounds() {
        let mode = |text: &str| text.parse::<Mode>().map(|mode| mode.staleness);
        assert_eq!(mode("bsp"), Ok(Staleness::Bsp));
        assert_eq!(mode("asp"), Ok(Staleness::Asp));
        assert_eq!(mode("ssp:3"), Ok(Staleness::Ssp(3)));
        assert_eq!(mode("dssp:3:15"), Ok(Staleness::dssp(3, 15).unwrap()));
        for (text, expected) in [
            ("ssp", "none of bsp"),
            ("bsp:1", "none of bsp"),
            ("ssp:-1", "a bound of '-1'"),
            ("dssp:3", "none of bsp"),
            ("dssp:5:3", "must not be below the lower one"),
            ("dssp:0:5000", "4096 at most"),
        ] {
            let error = mode(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
