//! `linerate experiment oktopk`: sparse allreduce as the paper measured it (Li and Hoefler, PPoPP 2022), its figures beside ours.
//!
//! Words and times of many ranks come from the library's own machines on the modelled network (`fabric.rs`); thresholds,
//! Assumption 1 and fill-in from training with all ranks in this process (`observe.rs`); losses from real ranks that train a
//! real model (`rank.rs`). Read first: [`run`], then `fabric.rs`, then `table1.rs`.

mod extremes;
mod fabric;
mod learner;
mod observe;
mod section;
mod shape;
mod table1;
mod thresholds;
mod timed;

use crate::flags::{ConnectionArgs, with_flags};
use crate::settings::{self, FAILED, USAGE, parse_positive};
use crate::{launch, output};
use clap::{Args, ValueEnum};
use linerate::Config;
use section::Section;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// What can be run alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Table 1: words and messages of each scheme for 2 to 256 ranks, beside the formulas
    Table1,
    /// 256 ranks at the size of BERT on a modelled fabric: communication and total time of each scheme; extremes
    Timed,
    /// Figures 4 and 6: exact, followed, held and Gaussian thresholds over a training, and what they select
    Thresholds,
    /// Figure 5: Assumption 1's xi over a training
    Xi,
    /// The density of TopkDSA's output over a training
    Fill,
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
    /// Steps of a training; default 400, with --quick 48
    #[arg(long, value_parser = clap::value_parser!(u32).range(8..=100_000))]
    pub steps: Option<u32>,
    /// Computation of a step where communication is modelled, milliseconds
    #[arg(long, value_name = "MS", default_value = "400", value_parser = parse_positive)]
    pub compute_ms: f64,
    /// A folder for plots (SVG)
    #[arg(long, value_name = "FOLDER")]
    pub plots: Option<PathBuf>,
    /// auto, shm, tcp or verbs[:device] of the ranks that train; default LINERATE_TRANSPORT, else auto
    #[arg(long)]
    pub transport: Option<String>,
    #[command(flatten)]
    pub connections: ConnectionArgs,
    /// One JSON document; with - nothing else goes to standard output
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
    /// Seconds without progress after which an operation fails; default: LINERATE_TIMEOUT, else 60
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<String>,
    /// Seed of data, parameters and picks
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl OkTopkArgs {
    fn has(&self, part: Part) -> bool {
        self.part.contains(&part) || self.part.contains(&Part::All)
    }

    fn is_json_only(&self) -> bool {
        self.json.as_deref().is_some_and(output::is_stdout)
    }
}

/// Checks the arguments, then runs the parts.
pub fn run(args: &OkTopkArgs) -> ExitCode {
    let checked = prepare(args);
    if let Err(reason) = checked {
        output::print_error(&format!("error: {reason}"));
        return ExitCode::from(USAGE);
    }
    let Err(reason) = run_parts(args) else {
        return ExitCode::SUCCESS;
    };
    output::print_error(&format!("error: {reason}"));
    ExitCode::from(FAILED)
}

fn prepare(args: &OkTopkArgs) -> Result<(), String> {
    Ok(())
}

fn run_parts(args: &OkTopkArgs) -> Result<(), String> {
    type Runner = fn(&OkTopkArgs) -> Result<Section, String>;
    let parts: [(Part, Runner); 5] = [
        (Part::Table1, |args| table1::run(args.quick)),
        (Part::Timed, timed::run),
        (Part::Thresholds, thresholds::run),
        (Part::Xi, thresholds::run_xi),
        (Part::Fill, thresholds::run_fill),
    ];
    let mut document = Map::new();
    let mut violations = Vec::new();
    for (part, runner) in parts {
        if !args.has(part) {
            continue;
        }
        let section = runner(args)?;
        if !args.is_json_only() {
            output::print_text(&section.text())?;
        }
        if let Some(folder) = &args.plots {
            for (name, chart) in &section.charts {
                chart.write(&folder.join(format!("oktopk-{name}.svg")))?;
            }
        }
        document.insert(section.name.into(), section.json());
        violations.extend(section.violations);
    }
    if let Some(target) = &args.json {
        let document = json!({
            "experiment": "oktopk",
            "version": env!("CARGO_PKG_VERSION"),
            "quick": args.quick,
            "parts": Value::Object(document),
        });
        output::write_document("--json", target, &format!("{document:#}"))?;
    }
    match violations.first() {
        None => Ok(()),
        Some(first) => Err(format!(
            "{} of the figures are not as they must be, the first: {first}",
            violations.len()
        )),
    }
}
