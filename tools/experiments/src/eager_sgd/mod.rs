//! `linerate experiment eager-sgd`: training where ranks are not alike, with synchronous and with
//! partial collectives.
//!
//! Real ranks train a real model. Only the time of a step is prescribed (`load.rs`): a rank sleeps
//! for what its computation leaves of it. All times are those of the paper times `--scale`. Read
//! first: [`run`], then `plan.rs`, then `train.rs`.

mod plan;
mod print;
mod rank;
mod scale;
mod train;

use clap::{Args, ValueEnum};
use linerate::Config;
use linerate_job::binding::Bind;
use linerate_job::ending::{self, USAGE};
use linerate_job::flags::JobArgs;
use linerate_job::settings::{self, parse_positive};
use linerate_job::spawn;
use std::path::PathBuf;
use std::process::ExitCode;

/// What is trained, and who is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Regression on a hyperplane of 8192 dimensions; one rank, another in each step, is delayed
    Hyperplane,
    /// Real digits; ranks are skewed from 50 to 400 ms, and another is the slowest in each step
    Severe,
    /// Real digits; steps take what batches take on cloud instances
    Cloud,
    /// Real digits; steps take what batches of sentences take
    Wmt16,
    /// Real digits; steps take what batches of videos take
    Ucf101,
    /// Real digits: the loss against the quorum and the bound of staleness
    Quorum,
    /// The times of ResNet-50 on 64 ranks of which 4 are delayed, in virtual time: nothing is
    /// trained
    Resnet50,
}

/// Train with synchronous and with partial collectives where ranks are not alike.
#[derive(Args, Clone, Debug)]
#[command(allow_negative_numbers = true)]
pub struct EagerSgdArgs {
    /// What is trained, and who is slow
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["hyperplane", "severe", "resnet50"])]
    pub workload: Vec<Workload>,
    /// Local ranks to spawn; default 8. Under a launcher it must equal WORLD_SIZE
    #[arg(long, value_name = "N")]
    pub ranks: Option<u32>,
    /// Steps of a run
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(8..=100_000))]
    pub steps: u32,
    /// Runs of each kind, of which the median is shown
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// Factor on the paper's times
    #[arg(long, default_value = "0.05", value_parser = parse_positive)]
    pub scale: f64,
    /// Most rounds that a gradient may come late
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub staleness: u32,
    /// A folder for plots (SVG); made where it is missing
    #[arg(long, value_name = "FOLDER")]
    pub plots: Option<PathBuf>,
    #[command(flatten)]
    pub job: JobArgs,
    /// Seed of data, parameters and delays
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Local ranks by default, as in the paper.
const RANKS: u32 = 8;

/// Checks the arguments, then spawns the ranks or is one.
pub fn run(args: &EagerSgdArgs) -> ExitCode {
    let (ranks, config) = match prepare(args) {
        Ok(prepared) => prepared,
        Err(reason) => return ending::fail(USAGE, &reason),
    };
    let is_virtual = args.workload.iter().all(|one| *one == Workload::Resnet50);
    let result = if is_virtual {
        print::print(args, None, &[])
    } else if let Some(reason) = unavailable_reason(&config.transport) {
        Err(reason)
    } else if settings::launched().is_none() && ranks > 1 {
        return ExitCode::from(spawn::spawn_self(ranks, Bind::None));
    } else {
        rank::run_rank(args, config)
    };
    ending::end(result)
}

fn prepare(args: &EagerSgdArgs) -> Result<(u32, Config), String> {
    let asked = args
        .ranks
        .or(settings::launched().is_none().then_some(RANKS));
    let ranks = settings::check_ranks(asked, settings::launched_ranks()?)?;
    if ranks < 2 {
        return Err(
            "--ranks is 1: what one rank does is the same with every collective; 2 and more".into(),
        );
    }
    let config = args.job.config()?;
    args.job.check_json()?;
    crate::plot::make_folder(args.plots.as_deref())?;
    let bytes = plan::memory_bytes(&args.workload, ranks);
    settings::check_memory(
        &format!("the samples of {ranks} ranks"),
        bytes * u64::from(ranks),
        linerate::unstable::memory::available_memory_bytes(),
        "lower --ranks, or leave the workload hyperplane away",
    )?;
    Ok((ranks, config))
}

/// Why a transport that exists by name cannot train in real time, if so.
fn unavailable_reason(name: &str) -> Option<String> {
    let virtual_time = "transport sim has virtual time and training real times: --transport shm";
    let is_virtual = (name == "sim").then(|| virtual_time.into());
    is_virtual.or_else(|| settings::unavailable_reason(name))
}
