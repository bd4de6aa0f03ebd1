//! `linerate bench COLLECTIVE`: a sweep of one collective over sizes, types and operators.
//!
//! The command checks its arguments, then starts itself once per rank; under a launcher (torchrun,
//! mpirun, srun, `linerate launch`) it is a rank itself. Flags and columns are nccl-tests'
//! (github.com/NVIDIA/nccl-tests, `src/common.cu`). Times are not: a time is that of the slowest
//! rank, per iteration, each started after a barrier.
//!
//! Read first: `plan.rs` (what is run), then `rank.rs` (how).

pub mod args;
mod document;
pub mod layout;
pub mod link;
pub mod measure;
mod pacing;
pub mod plan;
mod push_pull;
mod rank;
mod simulate;
pub mod slots;
mod sparse;
pub mod statistics;
pub mod sweep;
mod table;
mod values;

pub use args::{BenchArgs, Memory};

use crate::system;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use linerate_job::ending::{self, FAILED};
use linerate_job::{settings, spawn};
use plan::{Facts, Plan};
use std::process::ExitCode;

/// What follows `linerate bench`: a dense collective with nccl-tests' flags, or what has flags of
/// its own.
#[derive(Debug)]
pub enum BenchCommand {
    Dense(Box<BenchArgs>),
    PushPull(Box<push_pull::PushPullArgs>),
    Sparse(Box<sparse::SparseArgs>),
}

const PUSH_PULL: &str = "push-pull";
const SPARSE: &str = "sparse-allreduce";

// Written by hand, because derived code never sees a flattened struct as given if that flattens
// others.
impl Args for BenchCommand {
    fn augment_args(command: Command) -> Command {
        let push_pull = "Parameter server: workers push gradients and pull weights";
        let sparse =
            "Sparse allreduce with residuals: Ok-Topk and others, with the words of each phase";
        BenchArgs::augment_args(command)
            .args_conflicts_with_subcommands(true)
            .subcommand_negates_reqs(true)
            .subcommand(
                push_pull::PushPullArgs::augment_args(Command::new(PUSH_PULL)).about(push_pull),
            )
            .subcommand(sparse::SparseArgs::augment_args(Command::new(SPARSE)).about(sparse))
    }

    fn augment_args_for_update(command: Command) -> Command {
        BenchCommand::augment_args(command)
    }
}

impl FromArgMatches for BenchCommand {
    fn from_arg_matches(matches: &ArgMatches) -> Result<BenchCommand, clap::Error> {
        Ok(match matches.subcommand() {
            Some((PUSH_PULL, matches)) => {
                let args = push_pull::PushPullArgs::from_arg_matches(matches)?;
                BenchCommand::PushPull(Box::new(args))
            }
            Some((_, matches)) => {
                let args = sparse::SparseArgs::from_arg_matches(matches)?;
                BenchCommand::Sparse(Box::new(args))
            }
            None => BenchCommand::Dense(Box::new(BenchArgs::from_arg_matches(matches)?)),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = BenchCommand::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Runs the one that was given.
pub fn run_command(command: &BenchCommand) -> ExitCode {
    match command {
        BenchCommand::Dense(args) => run(args),
        BenchCommand::PushPull(args) => push_pull::run(args),
        BenchCommand::Sparse(args) => sparse::run(args),
    }
}

/// Checks the arguments, then spawns the ranks or is one.
pub fn run(args: &BenchArgs) -> ExitCode {
    let plan = match check(args) {
        Ok(plan) => plan,
        Err(text) => return ending::refuse(&text),
    };
    if let Some(reason) = settings::unavailable_reason(&plan.config.transport) {
        return ending::fail(FAILED, &reason);
    }
    if plan.link.is_some() {
        return ending::conclude(simulate::run(&plan));
    }
    if settings::launched_rank().is_some() {
        return ending::conclude(rank::run(&plan));
    }
    ExitCode::from(spawn::spawn_self(plan.ranks, args.sweep.bind))
}

/// The facts of this process and host.
pub fn gather_facts() -> Result<Facts, String> {
    Ok(Facts {
        config: settings::from_environment()?,
        launched_ranks: settings::launched_ranks()?,
        local_ranks: settings::local_world_size(),
        memory_bytes: linerate::unstable::memory::available_memory_bytes(),
        cache_bytes: system::last_level_cache_bytes(),
    })
}

fn check(args: &BenchArgs) -> Result<Plan, String> {
    let plan = plan::build_plan(args, gather_facts()?)?;
    plan.job.check_json()?;
    Ok(plan)
}
