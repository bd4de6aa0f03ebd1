//! `linerate bench COLLECTIVE`: a sweep of one collective over sizes, types and operators.
//!
//! The command checks its arguments, then starts itself once per rank; under a launcher (`WORLD_SIZE` is set) it is a
//! rank itself. Flags and columns are nccl-tests' (github.com/NVIDIA/nccl-tests, `src/common.cu`); a time is not: it is
//! that of the slowest rank, per iteration, each started after a barrier.
//!
//! Read first: `plan.rs` (what is run), then `rank.rs` (how).

mod args;
mod document;
mod layout;
mod measure;
mod pacing;
mod plan;
mod progress;
mod rank;
mod slots;
mod statistics;
mod sweep;
mod table;
mod values;

pub use args::BenchArgs;

use crate::{launch, system};
use linerate::{Config, Error};
use plan::{Facts, Plan};
use std::process::ExitCode;

/// Exit code of a run or a check that failed.
const FAILED: u8 = 1;
/// Exit code of arguments that make no sense.
const USAGE: u8 = 2;

/// Checks the arguments, then spawns the ranks or is one.
pub fn run(args: &BenchArgs) -> ExitCode {
    let plan = match check(args) {
        Ok(plan) => plan,
        Err(text) => {
            eprintln!("error: {text}\n\nFor more information, try '--help'.");
            return ExitCode::from(USAGE);
        }
    };
    if let Some(reason) = plan::unavailable_reason(&plan.config.transport) {
        eprintln!("error: {reason}");
        return ExitCode::from(FAILED);
    }
    if launch::world_size().is_some() {
        return run_rank(&plan);
    }
    match launch::spawn_self(plan.ranks) {
        0 => ExitCode::SUCCESS,
        code if code == i32::from(USAGE) => ExitCode::from(USAGE),
        _ => ExitCode::from(FAILED),
    }
}

fn check(args: &BenchArgs) -> Result<Plan, String> {
    let launched_ranks = match launch::world_size() {
        Some(text) => Some(text.parse().map_err(|_| {
            format!("WORLD_SIZE is '{text}': a number of ranks, as launchers set it")
        })?),
        None => None,
    };
    let facts = Facts {
        config: Config::from_lookup(|name| std::env::var(name).ok()).map_err(|e| e.to_string())?,
        launched_ranks,
        local_ranks: launch::local_world_size(),
        memory_bytes: system::available_memory_bytes(),
        cache_bytes: system::last_level_cache_bytes(),
    };
    plan::build_plan(args, facts)
}

fn run_rank(plan: &Plan) -> ExitCode {
    let rank = std::env::var("RANK").unwrap_or_else(|_| "?".into());
    match rank::run(plan) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(failures)) => {
            for failure in failures {
                eprintln!("error: {failure}");
            }
            ExitCode::from(FAILED)
        }
        Err(error) => {
            eprintln!("rank {rank}: error: {error}");
            ExitCode::from(match error.first_cause() {
                Error::InvalidArgument(_) => USAGE,
                _ => FAILED,
            })
        }
    }
}
