//! `linerate experiment`: tables and figures of the papers whose methods are here, beside the papers' own figures.

mod digits;
mod eager_sgd;
mod load;
mod model;
mod plot;
mod virtual_time;

use clap::{Args, Subcommand};
use std::process::ExitCode;

/// Reproduce a table or figure of one of the papers.
#[derive(Args)]
pub struct ExperimentArgs {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Subcommand)]
enum Experiment {
    /// Training where ranks are not alike: synchronous, solo, majority, random initiator (Li et al., eager-SGD)
    EagerSgd(Box<eager_sgd::EagerSgdArgs>),
}

/// Runs it.
pub fn run(args: &ExperimentArgs) -> ExitCode {
    match &args.experiment {
        Experiment::EagerSgd(args) => eager_sgd::run(args),
    }
}
