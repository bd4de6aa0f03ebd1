//! `linerate explain COLLECTIVE`: which algorithm each size takes, by which path, why, and the
//! predicted time beside the measured one. `linerate explain --calibrate` measures this host
//! and stores what is faster on it than the cheapest by the predictions.
//!
//! Like `bench`, the command checks its arguments and then starts itself once per rank. Flags are
//! those of `bench`, whose plan, buffers and layouts it uses; buffers are not rotated.
//!
//! Read first: `rank.rs`; for calibration, `calibrate.rs`.

mod calibrate;
mod print;
mod rank;
mod timing;

use crate::bench::args::{BenchArgs, Memory, Placements, SweepArgs};
use crate::bench::gather_facts;
use crate::bench::layout::{Placement, has_in_place};
use crate::bench::link::LinkArgs;
use crate::bench::plan::{Facts, Plan, build_plan};
use clap::Args;
use linerate::options::FindingsFrom;
use linerate::unstable::cost;
use linerate::{Collective, Config};
use linerate_job::ending::{self, FAILED};
use linerate_job::{settings, spawn};
use std::process::ExitCode;
use std::str::FromStr;

/// Arguments of `linerate explain`. What it shares with `bench` means what it means there.
#[derive(Args, Clone, Debug)]
#[command(allow_negative_numbers = true)]
#[command(mut_arg("max_bytes", |arg| arg.default_value("64M")))]
#[command(mut_arg("step_factor", |arg| arg.default_value("8")))]
#[command(mut_arg("ranks", |arg| arg.help(
    "Local ranks to spawn; default 2. Under a launcher it must equal WORLD_SIZE. With --calibrate the only number of ranks \
     that is measured"
)))]
pub struct ExplainArgs {
    /// allreduce, reduce-scatter, reduce-scatterv, all-gather, all-gatherv, broadcast, reduce,
    /// gather, gatherv, scatter, scatterv, all-to-all, all-to-allv or barrier
    #[arg(value_name = "COLLECTIVE", value_parser = Collective::from_str, required_unless_present = "calibrate")]
    pub collective: Option<Collective>,

    /// Measure this host and store the findings in LINERATE_MODEL, else in linerate/model in
    /// XDG_CACHE_HOME or ~/.cache. Takes three or four minutes and wants the machine for itself
    #[arg(long, conflicts_with_all = ["collective", "all", "no_measure", "json", "algo"])]
    pub calibrate: bool,

    #[command(flatten)]
    pub sweep: SweepArgs,

    /// Timed iterations of each algorithm and size, at most; fewer where they would take long
    #[arg(
        short = 'n',
        long = "iters",
        value_name = "COUNT",
        default_value_t = 48
    )]
    pub iterations: u32,

    /// How input and output lie; default in-place where the collective has that form
    #[arg(long, value_enum)]
    pub placement: Option<Placement>,

    /// Predict only
    #[arg(long)]
    pub no_measure: bool,

    /// Measure every algorithm that can run, and not only the one that is chosen
    #[arg(long, conflicts_with = "no_measure")]
    pub all: bool,
}

/// Checks the arguments, then spawns the ranks or is one.
pub fn run(args: &ExplainArgs) -> ExitCode {
    let checked = gather_facts().and_then(|facts| match args.calibrate {
        true => calibrate::check(args, &facts.config).map(|()| None),
        false => check(args, facts).map(Some),
    });
    let plan = match checked {
        Ok(plan) => plan,
        Err(text) => return ending::refuse(&text),
    };
    let is_rank = settings::launched().is_some();
    let Some(plan) = plan else {
        return calibrate::run(args, is_rank);
    };
    if let Some(reason) = settings::unavailable_reason(&plan.config.transport) {
        return ending::fail(FAILED, &reason);
    }
    if is_rank {
        return ending::conclude(rank::run(args, &plan));
    }
    ExitCode::from(spawn::spawn_self(plan.ranks, args.sweep.bind))
}

fn check(args: &ExplainArgs, facts: Facts) -> Result<Plan, String> {
    let collective = args.collective.expect("clap requires it");
    if collective == Collective::SendRecv {
        return Err("sendrecv has one algorithm, and nothing to explain".into());
    }
    let plan = build_plan(&as_bench(args, collective, args.sweep.memory), facts)?;
    if plan.link.is_some() {
        return Err(
            "explain predicts and measures this host: --transport auto or shm (`bench --transport sim` has a modelled network)"
                .into(),
        );
    }
    plan.job.check_json()?;
    Ok(plan)
}

/// The bench of one placement, without checks and rotation.
fn as_bench(args: &ExplainArgs, collective: Collective, memory: Memory) -> BenchArgs {
    let placement = match args.placement {
        Some(Placement::InPlace) => Placements::InPlace,
        None if has_in_place(collective) => Placements::InPlace,
        _ => Placements::OutOfPlace,
    };
    BenchArgs {
        collective,
        sweep: SweepArgs {
            memory,
            ..args.sweep.clone()
        },
        step_bytes: None,
        iterations: Some(args.iterations),
        warmup: None,
        check: 0,
        placement,
        link: LinkArgs::default(),
        seed: 1,
        stats: false,
        profile: false,
        no_rotate: true,
        min_bw: None,
        max_p99: None,
    }
}

/// What the choice is made by: a file of findings, or what is built in.
fn describe_prices(config: &Config) -> String {
    let (FindingsFrom::Cached(path) | FindingsFrom::Named(path)) = &config.findings else {
        return "built in".into();
    };
    let text = std::fs::read_to_string(path).unwrap_or_default();
    match cost::parse(&text, &linerate::unstable::comm::findings_host()) {
        Ok(Some(_)) => path.display().to_string(),
        _ => format!("built in ({} has none for this host)", path.display()),
    }
}
