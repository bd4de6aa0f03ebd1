//! The `linerate` command: `bench`, `perf`, `mesh`, `launch`, `replay`, `whatif`, `sim`, `trace`,
//! `report`, `explain`, `experiment`, `info`, `doctor`.
//!
//! Uses the library's public API and its module `unstable`. Exit codes: 0 good, 1 the run or a
//! check failed, 2 bad usage, 128 + the signal if interrupted; `launch` passes on the code of the
//! first rank that failed. Read first: `bench/mod.rs`. What all commands share is the crate
//! `linerate-job` (`tools/job`), and the experiments are `linerate-experiments`
//! (`tools/experiments`).

mod bench;
mod doctor;
mod explain;
mod info;
mod launch;
mod mesh;
mod perf;
mod profile;
mod rdma;
mod replay;
mod report;
mod sim;
mod system;
mod trace;
mod whatif;

use clap::{Parser, Subcommand};
use linerate_experiments as experiment;
use linerate_job::{binding, spawn};
use std::process::ExitCode;

/// Kernel-bypass collectives for distributed training: measure, launch, look.
#[derive(Parser)]
#[command(name = "linerate", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Sweep a collective over sizes, with results checked (nccl-tests' flags and columns)
    Bench(bench::BenchCommand),
    /// Bandwidth and latency between two ranks: server without argument, client with HOST
    /// (perftest's flags and columns)
    Perf(Box<perf::PerfArgs>),
    /// Latency and bandwidth of every pair of ranks, as matrices and a heat map; slow pairs are
    /// named
    Mesh(mesh::MeshArgs),
    /// Look for what keeps ranks from running or from being fast, and say which command mends it
    Doctor(doctor::DoctorArgs),
    /// Run N local ranks of a program with RANK, WORLD_SIZE, MASTER_ADDR, ... set
    Launch(launch::LaunchArgs),
    /// Say what this machine and this build offer
    Info(info::InfoArgs),
    /// Replay the gradients of a real model, ready at their measured times, through fusion and
    /// allreduce
    Replay(replay::ReplayArgs),
    /// Predict how training scales with another network, from measured gradients
    Whatif(whatif::WhatIfArgs),
    /// Say how long a collective or a step of training takes on a fabric of up to thousands of
    /// GPUs, in virtual time, and what limits it
    Sim(Box<sim::SimArgs>),
    /// Say what is understood of a trace: gradients, their times and sizes, and what was guessed
    Trace(trace::TraceArgs),
    /// Make one HTML page, with tables and plots, of what other commands wrote with --json
    Report(report::ReportArgs),
    /// Say which algorithm and path an operation takes, why, and how long it should take and takes;
    /// calibrate the choice
    Explain(Box<explain::ExplainArgs>),
    /// Reproduce a table or figure of a paper on this machine
    Experiment(experiment::ExperimentArgs),
    /// Becomes another program, after asking to die with its parent
    #[command(name = launch::RANK_EXEC, hide = true)]
    RankExec(launch::RankExecArgs),
}

fn main() -> ExitCode {
    spawn::die_with_parent();
    binding::bind_rank();
    match Cli::parse().command {
        Command::Bench(args) => bench::run_command(&args),
        Command::Perf(args) => perf::run(&args),
        Command::Mesh(args) => mesh::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Launch(args) => launch::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Whatif(args) => whatif::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Experiment(args) => experiment::run(&args),
        Command::RankExec(args) => launch::exec(&args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_has_no_contradictions() {
        Cli::command().debug_assert();
    }
}
