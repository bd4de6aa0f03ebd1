//! `linerate whatif`: what another network would do for a step of training, predicted from the
//! gradients of a trace; and `linerate trace`, what is understood of one.
//!
//! Nothing runs and nothing is measured. Read first: [`run`], then `advice.rs`; the model is
//! [`linerate::whatif`].

mod advice;
pub mod describe;
mod document;
mod print;

use clap::{Args, ValueEnum};
use document::{Document, Reached};
use linerate::FusionOptions;
use linerate::whatif::{Additions, Count, Trace, WhatIf};
use linerate_job::ending::{self, FAILED, USAGE};
use linerate_job::{output, settings};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

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

/// Predict how training scales with another network: bandwidth, compression, number of GPUs
#[derive(Args, Clone, Debug)]
#[command(allow_negative_numbers = true)]
pub struct WhatIfArgs {
    /// resnet50, resnet101, vgg16 (built in), or a file: .bk.log, .layers.csv, or what
    /// torch.profiler exports
    #[arg(long, default_value = "resnet50", value_name = "NAME|FILE")]
    pub trace: String,
    /// Gbit/s of each link, separated by commas; inf: a network that takes no time
    #[arg(long, value_delimiter = ',', default_value = "1,10,25,40,100,200,400", value_name = "GBIT,...", value_parser = gbit)]
    pub bandwidth: Vec<f64>,
    /// GPUs that train together, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "64",
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
    /// Share of the link that the transport reaches
    #[arg(long, default_value_t = 1.0, value_name = "SHARE")]
    pub link_share: f64,
    /// How long a GPU takes to add: v100 (measured), none, or a file of lines "bytes,seconds"
    #[arg(long, default_value = "v100", value_name = "v100|none|FILE")]
    pub additions: String,
    /// Who decides what is flushed when: the published simulation, or linerate's fusion
    #[arg(long, value_enum, default_value = "paper")]
    pub mode: crate::replay::Mode,
    /// Bytes of one flush (K, M, G)
    #[arg(long, default_value = "64M", value_parser = settings::parse_size)]
    pub fusion_bytes: u64,
    /// How long a ready gradient waits for company, in milliseconds
    #[arg(long, default_value = "5", value_parser = crate::replay::milliseconds)]
    pub fusion_age_ms: f64,
    /// Time of a step on one GPU, in milliseconds; default: as measured, or 1.5 times the backward
    /// pass
    #[arg(long, value_parser = crate::replay::milliseconds)]
    pub batch_ms: Option<f64>,
    /// Say which bandwidth, compression or latency reaches this scaling factor
    #[arg(long, value_name = "FACTOR")]
    pub what_reaches: Option<f64>,
    /// Write one JSON document here, - for standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Checks the arguments, predicts and prints.
pub fn run(args: &WhatIfArgs) -> ExitCode {
    let document = match prepare(args) {
        Ok(document) => document,
        Err(reason) => return ending::fail(USAGE, &reason),
    };
    let is_json_only = args.json.as_deref().is_some_and(output::is_stdout);
    let printed = match is_json_only {
        true => Ok(()),
        false => output::print_text(&print::text(&document)),
    };
    let written = match &args.json {
        Some(target) => output::write_json(target, &document),
        None => Ok(()),
    };
    match printed.and(written) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => ending::fail(FAILED, &reason),
    }
}

/// Everything that is predicted. The error says what is wrong with the arguments.
fn prepare(args: &WhatIfArgs) -> Result<Document, String> {
    if let Some(target) = &args.json {
        output::check_target("--json", target)?;
    }
    let text = |error: linerate::Error| error.to_string();
    let mut trace = Trace::load(&args.trace).map_err(text)?;
    trace.batch_ms = args.batch_ms.or(trace.batch_ms);
    let base = base(args)?;
    let rows = args.workers.len() * args.bandwidth.len() * args.compression.len();
    if rows > ROWS_MAX {
        return Err(format!(
            "{rows} combinations of --workers, --bandwidth and --compression: at most {ROWS_MAX}"
        ));
    }
    let target = args.what_reaches.unwrap_or(GOOD_FACTOR);
    let mut document = Document::new(&trace, &base);
    for &gpus in &args.workers {
        for &compression in &args.compression {
            let whatif = WhatIf {
                gpus,
                compression,
                ..base.clone()
            };
            for &gbit in &args.bandwidth {
                let whatif = at(&whatif, gbit);
                let predicted = whatif.predict(&trace).map_err(text)?;
                document.add(&whatif, &predicted);
                if args.what_reaches.is_some() {
                    let reached = Reached::new(&trace, &whatif, target).map_err(text)?;
                    document.reached.push(reached);
                }
            }
            let advice = advice::build(&trace, &whatif, &args.bandwidth, target);
            document.advice.push(advice.map_err(text)?);
        }
    }
    Ok(document)
}

fn at(whatif: &WhatIf, gbit: f64) -> WhatIf {
    WhatIf {
        bits_per_second: gbit * 1e9,
        ..whatif.clone()
    }
}

/// What all rows have.
fn base(args: &WhatIfArgs) -> Result<WhatIf, String> {
    let fusion = FusionOptions {
        bytes_max: args.fusion_bytes,
        age_max: Duration::from_secs_f64(args.fusion_age_ms / 1e3),
        ..FusionOptions::default()
    };
    let count = match args.count {
        CountBy::Gpus => Count::Gpus,
        CountBy::Servers => Count::Servers {
            gpus_per_server: args.gpus_per_server,
            inside_bits_per_second: args.inside * 1e9,
        },
    };
    Ok(WhatIf {
        count,
        latency_us: args.latency_us,
        link_share: args.link_share,
        additions: additions(&args.additions)?,
        rule: args.mode.into(),
        fusion,
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
    let mut points = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let point = line.split_once(',').and_then(|(bytes, seconds)| {
            let number = |text: &str| text.trim().parse::<f64>().ok();
            Some((number(bytes)?, number(seconds)?))
        });
        let wrong = || format!("--additions {name}, line {number}: expected bytes,seconds");
        points.push(point.ok_or_else(wrong)?);
    }
    if points.is_empty() {
        return Err(format!(
            "--additions {name}: no lines; expected bytes,seconds"
        ));
    }
    Additions::measured(points).map_err(|error| format!("--additions {name}: {error}"))
}

fn gbit(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(gbit) if gbit > 0.0 => Ok(gbit),
        _ => Err("Gbit/s above 0, such as 10 or 2.5, or inf".into()),
    }
}
