//! `linerate experiment whatif`: figures 1 to 8 of the paper that asked whether the network is the
//! bottleneck (Zhang et al., NetAI 2020).
//!
//! The paper prints few of its numbers; those stand beside the published model (`figures.rs`),
//! beside the same models with linerate's fusion and schedules on the paper's fabric in virtual
//! time, and beside replays on this host, for what the paper measured of computation, links and
//! processors (`replays.rs`). Read first: [`run`].

mod figures;
mod replays;

use clap::Args;
use linerate::whatif::Trace;
use linerate_job::ending::{self, USAGE};
use linerate_job::output;
use linerate_job::plot::PlotPoint;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// The paper's models.
const MODELS: [&str; 3] = ["resnet50", "resnet101", "vgg16"];
/// What the paper measured in figure 1: scaling factors of 2, 4 and 8 servers of 8 GPUs.
const MEASURED: [[f64; 3]; 3] = [
    [0.7505, 0.7424, 0.716],
    [0.6892, 0.6628, 0.6699],
    [0.5599, 0.6301, 0.598],
];
/// Servers of the paper.
const SERVERS: [u32; 3] = [2, 4, 8];
const GPUS_PER_SERVER: u32 = 8;

/// Reproduce the figures of the paper.
#[derive(Args, Clone, Debug)]
pub struct BottleneckArgs {
    /// Models, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "resnet50,resnet101,vgg16",
        value_name = "NAME,..."
    )]
    models: Vec<String>,
    /// Leave out the replays: figures 2, 4 and 5
    #[arg(long)]
    no_replay: bool,
    /// Ranks of the replays, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "2,4",
        value_name = "N,..."
    )]
    ranks: Vec<u32>,
    /// Steps of a replay; below 5 Gbit/s at most 3
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    steps: u32,
    /// Gbit/s of the replays over tcp, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,10,inf",
        value_name = "GBIT,..."
    )]
    gbit: Vec<f64>,
    /// Write one JSON document here, - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Everything: a row is a point of a figure.
#[derive(Debug, Serialize)]
struct Document {
    experiment: &'static str,
    version: &'static str,
    results: Vec<PlotPoint>,
}

/// Rows of a figure that have the same axes.
struct Figure<'r> {
    rows: &'r mut Vec<PlotPoint>,
    title: String,
    x: (&'static str, bool),
    y: &'static str,
}

impl Figure<'_> {
    fn add(&mut self, series: &str, is_measured: bool, x: f64, y: f64) {
        self.rows.push(PlotPoint {
            figure: self.title.clone(),
            series: series.into(),
            is_measured,
            x_label: self.x.0.into(),
            is_x_log: self.x.1,
            x,
            y_label: self.y.into(),
            y,
        });
    }
}

/// Checks the arguments, predicts, replays and prints.
pub fn run(args: &BottleneckArgs) -> ExitCode {
    let document = match build(args) {
        Ok(document) => document,
        Err(reason) => return ending::fail(USAGE, &reason),
    };
    let text = text(&document);
    ending::end(output::end(&text, args.json.as_deref(), &document))
}

fn build(args: &BottleneckArgs) -> Result<Document, String> {
    if let Some(target) = &args.json {
        output::check_target("--json", target)?;
    }
    let mut models = Vec::new();
    for name in &args.models {
        let Some(at) = MODELS.iter().position(|model| model == name) else {
            return Err(format!(
                "--models has '{name}': the paper's are {}",
                MODELS.join(", ")
            ));
        };
        models.push((at, Trace::load(name).map_err(|error| error.to_string())?));
    }
    let mut rows = Vec::new();
    figures::of_servers(&models, &mut rows)?;
    if !args.no_replay {
        replays::of_computation(args, &models, &mut rows)?;
    }
    figures::of_bandwidths(&models, &mut rows)?;
    if !args.no_replay {
        replays::of_links(args, &models, &mut rows)?;
    }
    figures::of_models(&models, &mut rows)?;
    Ok(Document {
        experiment: "whatif",
        version: env!("CARGO_PKG_VERSION"),
        results: rows,
    })
}

fn text(document: &Document) -> String {
    let mut lines = vec![
        "# linerate experiment whatif: the figures of Zhang et al., NetAI 2020".to_string(),
        "# paper: what its text says; model: its simulation of full use of the network; linerate: our fusion and schedules in virtual time; replay: measured on this host".into(),
    ];
    let mut before = "";
    for row in &document.results {
        if row.figure != before {
            lines.push(format!("\n# {}", row.figure));
            lines.push(format!(
                "{:<44} {:>20} {:>24}",
                "what", row.x_label, row.y_label
            ));
            before = &row.figure;
        }
        lines.push(format!("{:<44} {:>20} {:>24.4}", row.series, row.x, row.y));
    }
    lines.join("\n") + "\n"
}
