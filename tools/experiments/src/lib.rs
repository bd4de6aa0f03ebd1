//! `linerate experiment NAME`: reproduces a table or figure of a paper on this machine, with the
//! paper's number beside ours.
//!
//! Read first: `skew.rs`, then `eager_sgd/mod.rs`. What several experiments need: data
//! (`digits.rs`), models (`model.rs`), how long steps take (`load.rs`), pictures (`plot.rs`), what
//! a part says (`section.rs`), many ranks in virtual time (`virtual_time.rs`).

mod arithmetic;
mod bottleneck;
mod digits;
mod dssp;
mod eager_sgd;
mod load;
mod model;
mod oktopk;
mod plot;
mod saturate;
mod section;
mod skew;
mod virtual_time;

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
    /// Latency of partial allreduce when ranks arrive one after another (Li et al., PPoPP 2020:
    /// 53.32x solo, 2.46x majority)
    Skew(skew::SkewArgs),
    /// Training where ranks are not alike, with synchronous and partial collectives (Li et al.,
    /// PPoPP 2020: solo 1.50 to 2.01x)
    EagerSgd(Box<eager_sgd::EagerSgdArgs>),
    /// Sparse allreduce: Table 1, times of 256 ranks, thresholds, balancing, scaling, training (Li
    /// and Hoefler, PPoPP 2022)
    Oktopk(Box<oktopk::OkTopkArgs>),
    /// Is the network the bottleneck? Figures 1 to 8 of the paper beside predictions, replays and
    /// linerate's schedules on the paper's fabric (Zhang et al., NetAI 2020)
    #[command(name = "whatif")]
    Bottleneck(bottleneck::BottleneckArgs),
    /// Which messages and chunks fill 25 to 400 Gbit/s with 2 to 4096 ranks, by which algorithm,
    /// and what limits the rest
    Saturate(saturate::SaturateArgs),
    /// Bounded staleness: pushes of workers that are not alike with BSP, SSP, DSSP and ASP (Zhao et
    /// al., ICDCS 2019)
    Dssp(dssp::DsspArgs),
}

/// Runs the one that is named.
pub fn run(args: &ExperimentArgs) -> ExitCode {
    match &args.name {
        Name::Skew(args) => skew::run(args),
        Name::EagerSgd(args) => eager_sgd::run(args),
        Name::Oktopk(args) => oktopk::run(args),
        Name::Dssp(args) => dssp::run(args),
        Name::Bottleneck(args) => bottleneck::run(args),
        Name::Saturate(args) => saturate::run(args),
    }
}
