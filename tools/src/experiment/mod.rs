//! `linerate experiment NAME`: reproduces a table or figure of a paper on this machine, with the paper's number beside ours.
//!
//! Read first: `skew.rs`.

mod arithmetic;
mod skew;

use clap::{Args, Subcommand};
use std::process::ExitCode;

/// Arguments of `linerate experiment`.
#[derive(Args, Clone, Debug)]
pub struct ExperimentArgs {
    #[command(subcommand)]
    name: Name,
}

#[derive(Subcommand, Clone, Debug)]
enum Name {
    /// Latency of partial allreduce when ranks arrive one after another (Li et al., PPoPP 2020: 53.32x solo, 2.46x majority)
    Skew(skew::SkewArgs),
}

/// Runs the one that is named.
pub fn run(args: &ExperimentArgs) -> ExitCode {
    match &args.name {
        Name::Skew(args) => skew::run(args),
    }
}
