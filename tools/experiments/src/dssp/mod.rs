//! `linerate experiment dssp`: workers of a parameter server that are not alike, with bulk
//! synchronous, bounded and unbounded staleness (Zhao et al., ICDCS 2019).
//!
//! Every line names its mode: the paper's rules leave open when a worker goes on again, and only
//! one reading gives the paper's times (`linerate`'s module `staleness`). Read first: [`run`], then
//! `throughput.rs`.

mod homogeneous;
mod staleness;
mod table1;
mod throughput;
mod training;

use crate::section::Section;
use clap::{Args, ValueEnum};
use linerate::options::{Reading, Release, Staleness};
use linerate_job::binding::Bind;
use linerate_job::ending::{self, USAGE};
use linerate_job::output;
use linerate_job::settings::{self, parse_positive};
use linerate_job::spawn;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

/// What can be run by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Pushes per unit of time of workers with given times of a step, in virtual time
    Throughput,
    /// Loss after equally many pushes against the bound of staleness, of a convex model and of a
    /// classifier, in virtual time
    Staleness,
    /// Table I of the paper: processes train a classifier with a parameter server, one worker 2.7
    /// times as fast as the other, in real time
    Table1,
    /// Sections V-B and V-C of the paper: four workers that are alike train with a parameter
    /// server over a paced link, with little and with much to send, in real time
    Homogeneous,
}

impl Part {
    /// The ranks of a part in real time.
    fn ranks(&self) -> Option<u32> {
        match self {
            Part::Throughput | Part::Staleness => None,
            Part::Table1 => Some(table1::RANKS),
            Part::Homogeneous => Some(homogeneous::RANKS),
        }
    }
}

/// Compare bulk synchronous, bounded and unbounded staleness.
#[derive(Args, Clone, Debug)]
pub struct DsspArgs {
    /// What is run
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["throughput", "staleness", "table1", "homogeneous"])]
    part: Vec<Part>,
    /// The lower bound of DSSP, s_L
    #[arg(long, default_value_t = 3)]
    s_lower: u32,
    /// The upper bound of DSSP, s_U
    #[arg(long, default_value_t = 15)]
    s_upper: u32,
    /// Runs of each kind, with seeds from --seed on
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Of table1: milliseconds of a step of the faster worker; of homogeneous: a fifth of a step
    #[arg(long, default_value = "2", value_parser = parse_positive)]
    scale: f64,
    /// Of table1: seconds of a run
    #[arg(long, default_value = "1.5", value_parser = parse_positive)]
    seconds: f64,
    /// Of homogeneous: epochs of a run
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    epochs: u32,
    /// Of table1 (by default 5) and homogeneous (3): runs of each mode
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: Option<u32>,
    /// A folder for plots (SVG); made where it is missing
    #[arg(long, value_name = "FOLDER")]
    plots: Option<PathBuf>,
    /// Write the results as one JSON document; with `-` to stdout, and what is for people to stderr
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,
}

/// Checks the arguments, then runs the parts.
pub fn run(args: &DsspArgs) -> ExitCode {
    let modes = match prepare(args) {
        Ok(modes) => modes,
        Err(reason) => return ending::fail(USAGE, &reason),
    };
    let Some(ranks) = args.part.iter().filter_map(Part::ranks).max() else {
        return ending::end(run_parts(args, &modes, BTreeMap::new()));
    };
    if settings::launched().is_some() {
        return ending::end(run_as_rank(args, &modes, ranks));
    }
    match unavailable_reason() {
        Some(reason) => ending::end(Err(reason)),
        None => ExitCode::from(spawn::spawn_self(ranks, Bind::None)),
    }
}

/// Why the transport of the settings cannot train in real time, if so.
fn unavailable_reason() -> Option<String> {
    match settings::from_environment() {
        Ok(config) if config.transport == "sim" => Some(
            "transport sim has virtual time, table1 and homogeneous real times: LINERATE_TRANSPORT=shm"
                .into(),
        ),
        Ok(config) => settings::unavailable_reason(&config.transport),
        Err(reason) => Some(reason),
    }
}

/// Sections of the parts in real time, by their names.
type Trained = BTreeMap<&'static str, Section>;

/// Runs as one of the ranks that train, of which rank 0 does the rest too.
fn run_as_rank(args: &DsspArgs, modes: &[Mode], ranks: u32) -> Result<(), String> {
    settings::check_ranks(Some(ranks), settings::launched_ranks()?)?;
    let config = settings::from_environment()?;
    let comm = settings::join(config.clone()).map_err(|error| error.to_string())?;
    let mut trained = Vec::new();
    if args.part.contains(&Part::Table1) {
        trained.push(table1::run(args, modes, &comm)?);
    }
    if args.part.contains(&Part::Homogeneous) {
        trained.push(homogeneous::run(args, config, comm.rank())?);
    }
    match comm.rank() {
        0 => {
            let trained = trained.into_iter().map(|section| (section.name, section));
            run_parts(args, modes, trained.collect())
        }
        _ => Ok(()),
    }
}

fn prepare(args: &DsspArgs) -> Result<Vec<Mode>, String> {
    let json = args.json.as_deref();
    json.map_or(Ok(()), |target| output::check_target("--json", target))?;
    crate::plot::make_folder(args.plots.as_deref())?;
    let checked = Staleness::dssp(args.s_lower, args.s_upper);
    checked.map_err(|error| format!("--s-lower, --s-upper: {error}"))?;
    Ok(modes(args.s_lower, args.s_upper - args.s_lower))
}

fn run_parts(args: &DsspArgs, modes: &[Mode], mut trained: Trained) -> Result<(), String> {
    let mut document = Map::new();
    for part in &args.part {
        let section = match part {
            Part::Throughput => Some(throughput::run(args, modes)?),
            Part::Staleness => Some(staleness::run(args)?),
            Part::Table1 => trained.remove("table1"),
            Part::Homogeneous => trained.remove("homogeneous"),
        };
        let Some(section) = section else {
            continue; // It was named before.
        };
        let text = section.text();
        match args.json.as_deref().is_some_and(output::is_stdout) {
            true => output::print_error(text.trim_end()),
            false => output::print_text(&text)?,
        }
        if let Some(folder) = &args.plots {
            for (name, chart) in &section.charts {
                chart.write(&folder.join(format!("dssp-{name}.svg")))?;
            }
        }
        document.insert(section.name.into(), section.json());
    }
    let document = json!({
        "experiment": "dssp",
        "version": env!("CARGO_PKG_VERSION"),
        "parts": Value::Object(document),
    });
    let json = args.json.as_deref();
    json.map_or(Ok(()), |target| output::write_json(target, &document))
}

/// A staleness with its name.
#[derive(Clone, Debug)]
struct Mode {
    name: String,
    staleness: Staleness,
}

impl Mode {
    /// The bounds, where it has them.
    fn bounds(&self) -> (Option<u32>, Option<u32>) {
        match self.staleness {
            Staleness::Bsp => (Some(0), Some(0)),
            Staleness::Ssp(s_lower) => (Some(s_lower), Some(0)),
            Staleness::Dssp { s_lower, r_max, .. } => (Some(s_lower), Some(r_max)),
            Staleness::Asp => (None, None),
        }
    }

    fn is_literal(&self) -> bool {
        matches!(
            self.staleness,
            Staleness::Dssp {
                release: Release::Literal,
                ..
            }
        )
    }
}

/// The modes with SSP of these bounds in place of the paper's.
fn modes_with_ssp(args: &DsspArgs, bounds: impl IntoIterator<Item = u32>) -> Vec<Mode> {
    let mut all = modes(args.s_lower, args.s_upper - args.s_lower);
    all.retain(|mode| !matches!(mode.staleness, Staleness::Ssp(_)));
    let ssp = bounds.into_iter().map(|bound| Mode {
        name: format!("SSP {bound}"),
        staleness: Staleness::Ssp(bound),
    });
    all.splice(1..1, ssp);
    all
}

/// The paper's modes, and the readings of its DSSP.
fn modes(s_lower: u32, r_max: u32) -> Vec<Mode> {
    let mode = |name: &str, staleness| Mode {
        name: name.into(),
        staleness,
    };
    let dssp = |name: &str, release| {
        let staleness = Staleness::Dssp {
            s_lower,
            r_max,
            release,
            reading: Reading::Wait,
        };
        mode(&format!("DSSP({s_lower},{r_max}) {name}"), staleness)
    };
    vec![
        mode("BSP", Staleness::Bsp),
        mode("SSP 3", Staleness::Ssp(3)),
        mode("SSP 6", Staleness::Ssp(6)),
        mode("SSP 15", Staleness::Ssp(15)),
        dssp("strict", Release::Strict),
        dssp("literal", Release::Literal),
        dssp("paper", Release::Paper),
        mode("ASP", Staleness::Asp),
    ]
}
