//! `linerate mesh`: latency and bandwidth of every pair of ranks, one pair at a time, as matrices
//! and as a heat map; pairs that are slow beside the others are named.
//!
//! Pairs exchange grouped sends and receives of the library, so that every path is measured that an
//! operation would take, under any launcher. (`perf` measures two ranks without the engine.)
//!
//! Read first: `rank.rs`; what is slow is decided in `matrix.rs`.

mod heat;
mod matrix;
mod rank;

use clap::Args;
use linerate::Config;
use linerate_job::ending::{self, FAILED};
use linerate_job::flags::PairArgs;
use linerate_job::settings::{self, parse_size};
use linerate_job::{output, spawn};
use std::path::PathBuf;
use std::process::ExitCode;

/// Beyond this, pairs take minutes and matrices fill screens.
const RANKS_MAX: u32 = 256;
const SIZE_MAX: u64 = 1 << 30;
const ITERATIONS_MAX: u32 = 1 << 20;

/// Arguments of `linerate mesh`.
#[derive(Args, Clone, Debug)]
pub struct MeshArgs {
    /// Local ranks to spawn; default 4. Under a launcher it must equal WORLD_SIZE
    #[arg(long, value_name = "N")]
    pub ranks: Option<u32>,

    /// Bytes of a message of the bandwidth, with K, M or G (binary)
    #[arg(short = 's', long = "size", value_name = "SIZE", default_value = "1M", value_parser = parse_size)]
    pub size: u64,

    /// Round trips of 8 bytes per pair and direction
    #[arg(
        short = 'n',
        long = "iters",
        value_name = "COUNT",
        default_value_t = 200
    )]
    pub iterations: u32,

    /// A pair is slow if its latency is this many times the median of its kind (within a host, or
    /// between hosts), or its bandwidth this many times less
    #[arg(long, value_name = "FACTOR", default_value_t = 2.0)]
    pub slow: f64,

    /// Draw the heat map
    #[arg(long, value_name = "FILE|-")]
    pub svg: Option<PathBuf>,

    #[command(flatten)]
    pub pair: PairArgs,
}

/// Checks the arguments, then spawns the ranks or is one.
pub fn run(args: &MeshArgs) -> ExitCode {
    let (ranks, config) = match check(args) {
        Ok(checked) => checked,
        Err(text) => {
            return ending::refuse(&text);
        }
    };
    if let Some(reason) = settings::unavailable_reason(&config.transport) {
        return ending::fail(FAILED, &reason);
    }
    if settings::launched_rank().is_none() {
        return ExitCode::from(spawn::spawn_self(ranks, args.pair.bind));
    }
    ending::conclude(rank::run(args, config))
}

fn check(args: &MeshArgs) -> Result<(u32, Config), String> {
    let config = args.pair.job.config()?;
    if config.transport == "sim" {
        return Err("mesh measures this machine; --transport sim is for bench".into());
    }
    let launched = settings::launched_ranks()?;
    let asked = args.ranks.or(launched.is_none().then_some(4));
    let ranks = settings::check_ranks(asked, launched)?;
    if !(2..=RANKS_MAX).contains(&ranks) {
        return Err(format!("mesh of {ranks} ranks: from 2 to {RANKS_MAX}"));
    }
    if !(1..=SIZE_MAX).contains(&args.size) {
        return Err(format!("--size is {}: from 1 to 1G", args.size));
    }
    if !(1..=ITERATIONS_MAX).contains(&args.iterations) {
        let most = ITERATIONS_MAX;
        return Err(format!("--iters is {}: from 1 to {most}", args.iterations));
    }
    if args.slow.is_nan() || args.slow <= 1.0 {
        return Err(format!("--slow is {}: a factor above 1", args.slow));
    }
    output::check_targets(&[("--json", &args.pair.job.json), ("--svg", &args.svg)])?;
    settings::check_memory(
        "a rank",
        rank::DEPTH as u64 * args.size * u64::from(ranks),
        linerate::unstable::memory::available_memory_bytes(),
        "a smaller --size",
    )?;
    Ok((ranks, config))
}
