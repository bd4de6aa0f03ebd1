//! `linerate experiment oktopk`: sparse allreduce as the paper measured it (Li and Hoefler, PPoPP
//! 2022), its figures beside ours.
//!
//! Words and times of many ranks come from the library's own machines on the modelled network
//! ([`linerate_job::fabric`]); thresholds, Assumption 1 and fill-in from training with all ranks in
//! this process (`observe.rs`); losses from real ranks that train a real model (`rank.rs`). Read
//! first: [`run`], then that module, then `table1.rs`.

mod balance;
mod extremes;
mod learner;
mod observe;
mod rank;
mod scaling;
mod shape;
mod table1;
mod thresholds;
mod timed;
mod training;

use crate::section::Section;
use clap::{Args, ValueEnum};
use linerate::Config;
use linerate_job::binding::Bind;
use linerate_job::ending::{self, USAGE};
use linerate_job::flags::JobArgs;
use linerate_job::settings::{self, parse_positive};
use linerate_job::{output, spawn};
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// What can be run by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Table 1: words and messages of each scheme for 2 to 256 ranks, beside the formulas
    Table1,
    /// 256 ranks at the size of BERT on a modelled fabric: communication and total time of each
    /// scheme; extremes
    Timed,
    /// Figures 4 and 6: exact, followed, held and Gaussian thresholds over a training, and what
    /// they select
    Thresholds,
    /// Figure 5: Assumption 1's xi over a training
    Xi,
    /// The density of TopkDSA's output over a training
    Fill,
    /// Figure 7: regions of equal picks against equal regions; spreading what was selected against
    /// gathering it as it lies
    Balance,
    /// Figures 8, 10 and 12: time by phase and weak scaling, with measured selection, modelled
    /// communication, given computation
    Scaling,
    /// Real ranks train on digits with every scheme and three optimisers: loss against steps, bytes
    /// and time
    Training,
    /// Every one
    All,
}

/// Compare sparse allreduce schemes as the paper does.
#[derive(Args, Clone, Debug)]
pub struct OkTopkArgs {
    /// What is run
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["all"])]
    pub part: Vec<Part>,
    /// Fewer ranks and steps: seconds instead of minutes
    #[arg(long)]
    pub quick: bool,
    /// Local ranks that train; default 8. Under a launcher it must equal WORLD_SIZE
    #[arg(long, value_name = "N")]
    pub ranks: Option<u32>,
    /// Steps of a training; default 400 (fill 200, training 240), with --quick 48 (16 and 24)
    #[arg(long, value_parser = clap::value_parser!(u32).range(8..=100_000))]
    pub steps: Option<u32>,
    /// Computation of a step where communication is modelled, milliseconds
    #[arg(long, value_name = "MS", default_value = "400", value_parser = parse_positive)]
    pub compute_ms: f64,
    /// A folder for plots (SVG); made where it is missing
    #[arg(long, value_name = "FOLDER")]
    pub plots: Option<PathBuf>,
    #[command(flatten)]
    pub job: JobArgs,
    /// Seed of data, parameters and picks
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl OkTopkArgs {
    fn has(&self, part: Part) -> bool {
        self.part.contains(&part) || self.part.contains(&Part::All)
    }
}

/// Local ranks that train by default.
const RANKS: u32 = 8;
const RANKS_QUICK: u32 = 4;

/// Checks the arguments, then runs the parts. If one of them trains, spawns the ranks or is one.
pub fn run(args: &OkTopkArgs) -> ExitCode {
    let (ranks, config) = match prepare(args) {
        Ok(prepared) => prepared,
        Err(reason) => return ending::fail(USAGE, &reason),
    };
    let result = if !args.has(Part::Training) {
        run_parts(args, None)
    } else if let Some(reason) = unavailable_reason(&config.transport) {
        Err(reason)
    } else if settings::launched().is_none() && ranks > 1 {
        return ExitCode::from(spawn::spawn_self(ranks, Bind::None));
    } else {
        // Rank 0 has the results of the training, and runs the other parts.
        let trained = rank::train_all(args, config).map_err(|error| error.to_string());
        trained.and_then(|training| match training {
            Some(training) => run_parts(args, Some(&training)),
            None => Ok(()),
        })
    };
    ending::end(result)
}

fn prepare(args: &OkTopkArgs) -> Result<(u32, Config), String> {
    let own = if args.quick { RANKS_QUICK } else { RANKS };
    let asked = args.ranks.or(settings::launched().is_none().then_some(own));
    let ranks = settings::check_ranks(asked, settings::launched_ranks()?)?;
    let config = args.job.config()?;
    args.job.check_json()?;
    crate::plot::make_folder(args.plots.as_deref())?;
    Ok((ranks, config))
}

/// Why a transport that exists by name cannot train in real time, if so.
fn unavailable_reason(name: &str) -> Option<String> {
    let virtual_time = "transport sim has virtual time and training real ranks: --transport shm; the other parts simulate anyway";
    let is_virtual = (name == "sim").then(|| virtual_time.into());
    is_virtual.or_else(|| settings::unavailable_reason(name))
}

/// Runs what was asked for, in the order of the paper; the training has been run.
fn run_parts(args: &OkTopkArgs, training: Option<&rank::Training>) -> Result<(), String> {
    type Runner = fn(&OkTopkArgs) -> Result<Section, String>;
    let parts: [(Part, Runner); 7] = [
        (Part::Table1, |args| table1::run(args.quick)),
        (Part::Timed, timed::run),
        (Part::Thresholds, thresholds::run),
        (Part::Xi, thresholds::run_xi),
        (Part::Fill, thresholds::run_fill),
        (Part::Balance, balance::run),
        (Part::Scaling, scaling::run),
    ];
    let mut document = Map::new();
    let mut violations = Vec::new();
    let mut finish = |section: Section| {
        if !args.job.is_json_only() {
            output::print_text(&section.text())?;
        }
        if let Some(folder) = &args.plots {
            for (name, chart) in &section.charts {
                chart.write(&folder.join(format!("oktopk-{name}.svg")))?;
            }
        }
        document.insert(section.name.into(), section.json());
        violations.extend(section.violations);
        Ok::<(), String>(())
    };
    for (part, runner) in parts {
        if args.has(part) {
            finish(runner(args)?)?;
        }
    }
    if let Some(training) = training {
        finish(training::section(training))?;
    }
    args.job.write_json(&json!({
        "experiment": "oktopk",
        "version": env!("CARGO_PKG_VERSION"),
        "quick": args.quick,
        "parts": Value::Object(document),
    }))?;
    match violations.first() {
        None => Ok(()),
        Some(first) => Err(format!(
            "{} of the figures are not as they must be, the first: {first}",
            violations.len()
        )),
    }
}
