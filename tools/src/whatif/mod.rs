//! `linerate whatif`: what another network would do for a step of training, predicted from the
//! gradients of a trace.
//!
//! Nothing runs and nothing is measured, but with `--validate`. Read first: [`run`], then
//! `advice.rs`; the model is [`linerate::whatif`].

mod advice;
mod document;
mod errors;
pub mod fit;
mod place;
mod print;
mod speeds;
pub mod svg;
mod validate;

use crate::trace::TraceFlags;
use clap::{Args, ValueEnum};
use document::{Document, Entry};
use errors::Known;
use linerate::DataType;
use linerate::whatif::{Additions, Algorithm, Members, WhatIf};
use linerate_job::ending::{self, FAILED, USAGE};
use linerate_job::{output, settings};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Rows of one run, at most.
const ROWS_MAX: usize = 100_000;
/// The scaling factor from which a network is fast enough, unless `--what-reaches` says another.
const GOOD_FACTOR: f64 = 0.95;

/// Who has a link of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CountBy {
    /// Every GPU, as in the published model.
    Gpus,
    /// Every server: its GPUs share a link.
    Servers,
}

/// What the published model leaves out, or assumes.
#[derive(Args, Clone, Debug)]
pub struct Overheads {
    /// Share of the link that the transport reaches
    #[arg(long, default_value_t = 1.0, value_name = "SHARE")]
    pub link_share: f64,
    /// Microseconds that each allreduce takes besides its bytes
    #[arg(long, default_value_t = 0.0, value_name = "US")]
    pub operation_us: f64,
    /// Microseconds between two looks at what is ready; a flush waits for half of it on average
    #[arg(long, default_value_t = 0.0, value_name = "US")]
    pub cycle_us: f64,
    /// By how much communication slows computation while both run: 0.25 makes 4 ms of it 5 ms
    #[arg(long, default_value_t = 0.0, value_name = "PART")]
    pub slowing: f64,
    /// Gbit/s at which a GPU packs and compresses gradients, before a flush is sent and again
    /// after; inf: it takes no time
    #[arg(long, default_value = "inf", value_name = "GBIT", value_parser = gbit)]
    pub packing: f64,
    /// Additions are of compressed gradients too
    #[arg(long)]
    pub adds_compressed: bool,
    /// Type as which gradients are sent and added, such as bf16; default: their own
    #[arg(long, value_name = "TYPE")]
    pub wire_dtype: Option<DataType>,
    /// Standard deviation of the time that a GPU computes for a step, as a share of that time
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    pub spread: f64,
    /// How long a GPU takes to add: v100 (measured), none, or a file of lines "bytes,seconds"
    #[arg(long, default_value = "v100", value_name = "v100|none|FILE")]
    pub additions: String,
}

/// Predict how training scales with another network: bandwidth, compression, number of GPUs
#[derive(Args, Clone, Debug)]
#[command(allow_negative_numbers = true)]
pub struct WhatIfArgs {
    #[command(flatten)]
    pub trace: TraceFlags,
    /// Gbit/s of each link, separated by commas; inf: a network that takes no time
    #[arg(long, value_delimiter = ',', default_value = "1,10,25,40,100,200,400", default_value_if("validate", "true", "0.1,0.5,1,2.5,10,inf"), value_name = "GBIT,...", value_parser = gbit)]
    pub bandwidth: Vec<f64>,
    /// In place of the list: this many bandwidths from its least to its largest one, at equal
    /// ratios
    #[arg(long, value_name = "COUNT", conflicts_with = "validate", value_parser = clap::value_parser!(u32).range(2..=10_000))]
    pub sweep: Option<u32>,
    /// GPUs that train together, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "64",
        default_value_if("validate", "true", "2,4"),
        value_name = "GPUS,..."
    )]
    pub workers: Vec<u32>,
    /// By how much gradients are shorter on the wire, separated by commas; 1 is no compression
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1",
        value_name = "RATIO,..."
    )]
    pub compression: Vec<f64>,
    /// How gradients are reduced, separated by commas: ring (the published model); auto, tree,
    /// hierarchical, rabenseifner, recursive-doubling (schedules of linerate); oktopk:DENSITY;
    /// partial:SHARE of the GPUs that are waited for; ps:SERVERS; switchml; bytescheduler[:BYTES]
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "ring",
        value_name = "NAME,..."
    )]
    pub algo: Vec<Algorithm>,
    /// Who has a link of its own
    #[arg(long, value_enum, default_value = "gpus")]
    pub count: CountBy,
    /// GPUs that share a link, with --count servers
    #[arg(long, default_value_t = 8, value_name = "GPUS")]
    pub gpus_per_server: u32,
    /// Gbit/s of each GPU's link inside of its server, with --count servers; inf: it takes no time
    #[arg(long, default_value = "inf", value_name = "GBIT", value_parser = gbit)]
    pub inside: f64,
    /// Microseconds from sending to receiving a message
    #[arg(long, default_value_t = 0.0, value_name = "US")]
    pub latency_us: f64,
    #[command(flatten)]
    pub overheads: Overheads,
    /// Who decides what is flushed when: the published simulation, or linerate's fusion
    #[arg(long, value_enum, default_value = "paper")]
    pub mode: crate::replay::Mode,
    /// Say which bandwidth, compression or latency reaches this scaling factor
    #[arg(long, value_name = "FACTOR")]
    pub what_reaches: Option<f64>,
    /// Measured scaling factors, from a file of lines "Gbit/s,servers,factor" (with --count gpus:
    /// "Gbit/s,GPUs,factor"): find the overheads that explain them, and predict with these
    #[arg(long, value_name = "FILE", conflicts_with_all = ["link_share", "operation_us", "slowing"])]
    pub measured: Option<PathBuf>,
    /// Replay the trace on this host, over tcp with each bandwidth and over shared memory, and
    /// print how far predictions are off; 2 and 4 ranks, 0.1 to 10 Gbit/s and inf by default. Wants
    /// the machine for itself
    #[arg(long, conflicts_with_all = ["compression", "algo", "measured", "packing", "adds_compressed", "wire_dtype", "spread", "count", "gpus_per_server", "inside", "latency_us", "link_share", "operation_us", "cycle_us", "slowing", "additions", "mode", "what_reaches"])]
    pub validate: bool,
    /// Steps of each replay; below 1 Gbit/s at most 3
    #[arg(long, default_value_t = 20, requires = "validate", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub steps: u32,
    /// Write one JSON document here, - for standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw the scaling factor over bandwidth, or over what else has several values
    #[arg(long, value_name = "FILE|-")]
    pub svg: Option<PathBuf>,
}

/// Checks the arguments, predicts and prints.
pub fn run(args: &WhatIfArgs) -> ExitCode {
    let document = match prepare(args) {
        Ok(document) => document,
        Err(reason) => return ending::fail(USAGE, &reason),
    };
    let targets = [&args.json, &args.svg].into_iter().flatten();
    let is_printed_to = targets.into_iter().any(|target| output::is_stdout(target));
    let printed = match is_printed_to {
        true => Ok(()),
        false => output::print_text(&print::text(&document)),
    };
    let written = match &args.json {
        Some(target) => output::write_json(target, &document),
        None => Ok(()),
    };
    let drawn = match &args.svg {
        Some(target) => draw(target, &document),
        None => Ok(()),
    };
    match printed.and(written).and(drawn) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => ending::fail(FAILED, &reason),
    }
}

/// Draws what the document says.
fn draw(target: &Path, document: &Document) -> Result<(), String> {
    let rows = serde_json::to_value(&document.results).and_then(serde_json::from_value);
    let rows: Vec<svg::Row> = rows.map_err(|cause| format!("--svg: {cause}"))?;
    let measured = document.fit.as_ref().map_or(&[][..], |fit| &fit.points);
    let chart = svg::chart(&document.model, &rows, measured);
    output::write_document("--svg", target, &chart.svg())
}

/// Everything that is predicted. The error says what is wrong with the arguments.
fn prepare(args: &WhatIfArgs) -> Result<Document, String> {
    output::check_targets(&[("--json", &args.json), ("--svg", &args.svg)])?;
    let text = |error: linerate::Error| error.to_string();
    let trace = args.trace.load(1.0)?;
    let known = Known::load(&trace.name)?;
    let mut base = base(args)?;
    let bandwidths = bandwidths(args)?;
    let rows = [args.workers.len(), bandwidths.len(), args.algo.len()];
    let rows = rows.into_iter().product::<usize>() * args.compression.len();
    if rows > ROWS_MAX {
        return Err(format!(
            "{rows} combinations of --workers, --bandwidth, --compression and --algo: at most {ROWS_MAX}"
        ));
    }
    let found = match &args.measured {
        Some(file) => Some(fit::run(args, file, &trace, &mut base)?),
        None => None,
    };
    let mut document = Document::new(&trace, &base, known);
    document.fit = found;
    if args.validate {
        if let Some(rank) = settings::launched_rank() {
            return Err(format!(
                "--validate starts ranks itself, and a launcher has made this process rank {rank}: run it by itself"
            ));
        }
        document.common.mode = "linerate";
        document.validation = Some(validate::run(args, &trace, &known)?);
        return Ok(document);
    }
    for &gpus in &args.workers {
        let rest = args.compression.iter();
        let rest = rest.flat_map(|ratio| args.algo.iter().map(move |algo| (*ratio, algo)));
        for (compression, algorithm) in rest {
            let whatif = WhatIf {
                gpus,
                compression,
                algorithm: algorithm.clone(),
                ..base.clone()
            };
            for &gbit in &bandwidths {
                let entry = Entry::new(&trace, &at(&whatif, gbit, &known), args.what_reaches);
                document.results.push(entry.map_err(text)?);
            }
            let target = args.what_reaches.unwrap_or(GOOD_FACTOR);
            let advice = advice::build(&trace, &whatif, (&bandwidths, &known), target);
            document.advice.push(advice.map_err(text)?);
        }
    }
    Ok(document)
}

/// The bandwidths of all rows.
fn bandwidths(args: &WhatIfArgs) -> Result<Vec<f64>, String> {
    let Some(count) = args.sweep else {
        return Ok(args.bandwidth.clone());
    };
    let least = args.bandwidth.iter().copied().fold(f64::INFINITY, f64::min);
    let most = args.bandwidth.iter().copied().fold(0.0, f64::max);
    if !(least < most && most.is_finite()) {
        return Err(format!(
            "--sweep goes from {least} to {most} Gbit/s: give two finite bandwidths in --bandwidth"
        ));
    }
    let last = f64::from(count - 1);
    let place = |at: u32| least * (most / least).powf(f64::from(at) / last);
    Ok((0..count).map(place).collect())
}

fn at(whatif: &WhatIf, gbit: f64, known: &Known) -> WhatIf {
    WhatIf {
        errors: known.at(gbit),
        bits_per_second: gbit * 1e9,
        ..whatif.clone()
    }
}

/// What all rows have.
fn base(args: &WhatIfArgs) -> Result<WhatIf, String> {
    let overheads = &args.overheads;
    let members = match args.count {
        CountBy::Gpus => Members::Gpus,
        CountBy::Servers => Members::Servers {
            gpus_per_server: args.gpus_per_server,
            inside_bits_per_second: args.inside * 1e9,
        },
    };
    Ok(WhatIf {
        members,
        latency_us: args.latency_us,
        link_share: overheads.link_share,
        operation_us: overheads.operation_us,
        cycle_us: overheads.cycle_us,
        slowing: overheads.slowing,
        packing_bytes_per_second: overheads.packing * 1e9 / 8.0,
        adds_compressed: overheads.adds_compressed,
        wire_dtype: overheads.wire_dtype,
        spread: overheads.spread,
        additions: additions(&overheads.additions)?,
        rule: args.mode.into(),
        fusion: args.trace.fusion(),
        ..WhatIf::default()
    })
}

/// `v100`, `none`, or the file of this name.
fn additions(name: &str) -> Result<Additions, String> {
    match name {
        "v100" => return Ok(Additions::v100()),
        "none" => return Ok(Additions::free()),
        _ => {}
    }
    let text = std::fs::read_to_string(name)
        .map_err(|cause| format!("--additions '{name}': {cause}; or v100, or none"))?;
    Additions::parse(&text).map_err(|error| format!("--additions {name}: {error}"))
}

fn gbit(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(gbit) if gbit > 0.0 => Ok(gbit),
        _ => Err("Gbit/s above 0, such as 10 or 2.5, or inf".into()),
    }
}
