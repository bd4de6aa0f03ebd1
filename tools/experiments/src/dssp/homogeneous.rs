//! Sections V-B and V-C of the paper on this host: four workers that are alike train over links
//! whose rate is set, one model with little to send and one with much.
//!
//! The paper's models differ in the same way: a ResNet computes long and has few weights, and the
//! fully connected layers of its AlexNet have many weights and compute little. Here a step of both
//! takes equally long, and a worker sends the gradient of the large model for as long as a step.

use super::training::{BATCH, End, Plan, Trained, heading, median, text_of, train_all};
use super::{DsspArgs, Mode, modes_with_ssp};
use crate::digits::Digits;
use crate::model::Classifier;
use crate::plot::{Chart, Line};
use crate::section::Section;
use linerate::options::Staleness;
use linerate::{Communicator, Config, Rank};
use linerate_job::settings;
use serde_json::{Value, json};

/// Times of a step.
const SPEEDS: [f64; 4] = [1.0; 4];
/// The server, and the workers.
pub const RANKS: u32 = 1 + SPEEDS.len() as u32;
/// A step takes this many times `--scale`: the host's cores must not be what five ranks wait for.
const STEP: f64 = 5.0;
/// The server's link is as fast as those of all workers. With a slower one the workers that the
/// paced link serves last would be slower than the others.
const SERVER_LINKS: u64 = SPEEDS.len() as u64;

/// A model, and what the paper says of those like it.
struct Setting {
    /// Its communication.
    name: &'static str,
    hidden: usize,
    /// The least time of an epoch first.
    paper_times: &'static str,
    /// The best first.
    paper_accuracies: &'static str,
    /// Why ours may differ.
    reason: &'static str,
}

const SMALL: Setting = Setting {
    name: "small",
    hidden: 32,
    paper_times: "BSP, SSP, DSSP, ASP (ResNets)",
    paper_accuracies: "DSSP, SSP and ASP close together, BSP (ResNets)",
    reason: "BSP waits for the slowest of each round besides, and the three updates of a round that it \
             spares the server take microseconds each (linerate bench push-pull); a server of the paper has millions of weights",
};
/// It has 154 KB of weights: a paced link hands over 64 KiB at a time, and what is shorter arrives
/// as if its own bytes took no time.
const LARGE: Setting = Setting {
    name: "large",
    hidden: 512,
    paper_times: "ASP, SSP and DSSP alike, BSP (AlexNet)",
    paper_accuracies: "BSP, DSSP, SSP, ASP (AlexNet)",
    reason: "of as many epochs BSP makes a quarter of the others' updates, and it has no 300 epochs to \
             catch up; the others' gradients are late by three updates, too few to cost accuracy",
};

/// Joins the ranks over paced links and trains both models; the section is rank 0's.
pub fn run(args: &DsspArgs, mut config: Config, rank: Rank) -> Result<Section, String> {
    let step_ms = STEP * args.scale;
    let bits = 32.0 * Classifier::new(LARGE.hidden).parameters() as f64;
    let own = (bits / (step_ms / 1e3)).max(1e3) as u64;
    let pace = config.tcp.pace_bits_per_second.unwrap_or(own);
    config.tcp.pace_bits_per_second = Some(match rank {
        0 => pace.saturating_mul(SERVER_LINKS),
        _ => pace,
    });
    config.transport = "tcp".into();
    let comm = settings::join(config).map_err(|error| error.to_string())?;
    let mut modes = modes_with_ssp(args, args.s_lower..=args.s_upper);
    modes.retain(|mode| !mode.is_literal());

    let mut section = Section::new("homogeneous");
    section.line(format!(
        "four workers whose steps take {step_ms} ms, {:.0} Mbit/s leave one and {SERVER_LINKS} times as much the server, digits, {} runs of {} epochs each: medians, and least and most",
        pace as f64 / 1e6,
        runs(args),
        args.epochs
    ));
    let mut rows = Vec::new();
    for setting in [SMALL, LARGE] {
        rows.extend(setting.run(args, &modes, &comm, &mut section)?);
    }
    section.document = Value::Array(rows);
    Ok(section)
}

impl Setting {
    /// Trains with every mode; the rows of the document.
    fn run(
        &self,
        args: &DsspArgs,
        modes: &[Mode],
        comm: &Communicator,
        section: &mut Section,
    ) -> Result<Vec<Value>, String> {
        let epoch = Digits::load().training.len() / (SPEEDS.len() * BATCH);
        let plan = Plan {
            speeds: &SPEEDS,
            step_ms: STEP * args.scale,
            hidden: self.hidden,
            end: End::Pushes(args.epochs * epoch as u32),
            runs: runs(args),
        };
        let bytes = 4 * Classifier::new(self.hidden).parameters();
        section.line(format!(
            "communication {}: {:.1} KB of weights",
            self.name,
            bytes as f64 / 1e3
        ));
        section.line(format!("{:>8} {}", "s/epoch", heading()));
        let per_epoch = |run: &Trained| seconds_per_epoch(run, args);
        let all = train_all(args, &plan, modes, comm)?;
        let mut rows = Vec::new();
        for (mode, runs) in modes.iter().zip(&all) {
            let seconds = median(runs, per_epoch);
            section.line(format!("{seconds:>8.4} {}", text_of(mode, runs)));
            for (seed, run) in (args.seed..).zip(runs) {
                let mut row = run.row(&plan, mode, seed);
                row["communication"] = json!(self.name);
                row["seconds_per_epoch"] = json!(per_epoch(run));
                rows.push(row);
            }
        }
        self.compare(args, (modes, &all), section);
        Ok(rows)
    }

    /// The order of the paradigms beside the paper's, and the curves.
    fn compare(
        &self,
        args: &DsspArgs,
        (modes, all): (&[Mode], &[Vec<Trained>]),
        section: &mut Section,
    ) {
        let compared = compared(modes, all);
        let times = compared.iter().map(|one| {
            let seconds = one.mean(|run| seconds_per_epoch(run, args));
            (one.name, seconds)
        });
        let times = sorted(times.collect());
        let accuracies = compared
            .iter()
            .map(|one| (one.name, one.mean(|run| run.verdict.accuracy)));
        let mut accuracies = sorted(accuracies.collect());
        accuracies.reverse();
        section.line(format!("s/epoch, least first:   {}", list(&times)));
        section.line(format!("  paper:                {}", self.paper_times));
        section.line(format!("accuracy, best first:   {}", list(&accuracies)));
        section.line(format!("  paper:                {}", self.paper_accuracies));
        section.line(format!("  where ours may differ: {}", self.reason));
        let of = |name: &str| times.iter().find(|one| one.0 == name).map(|one| one.1);
        if let (Some(dssp), Some(ssp)) = (of("DSSP strict"), of("SSP, mean")) {
            section.line(format!(
                "seconds per epoch, DSSP strict / mean of SSP: {:.3} (expected 0.97 to 1.03)",
                dssp / ssp
            ));
        }
        let is_ssp = |mode: &Mode| matches!(mode.staleness, Staleness::Ssp(_));
        let mut each: Vec<_> = modes.iter().zip(all).collect();
        each.retain(|(mode, _)| is_ssp(mode) || mode.name.ends_with("strict"));
        each.sort_by_key(|(mode, _)| is_ssp(mode)); // DSSP has the color that stands out.
        let each = each
            .iter()
            .map(|(mode, runs)| line(&mode.name, &[runs.as_slice()]));
        let paradigms = compared.iter().map(|one| line(one.name, &one.runs));
        section.charts.extend([
            self.chart("", paradigms.collect()),
            self.chart("-ssp", each.collect()),
        ]);
    }

    fn chart(&self, suffix: &str, lines: Vec<Line>) -> (String, Chart) {
        let chart = Chart {
            title: format!("dssp, 4 alike, communication {}", self.name),
            x: "seconds".into(),
            y: "accuracy".into(),
            lines,
        };
        (format!("homogeneous-{}{suffix}", self.name), chart)
    }
}

fn runs(args: &DsspArgs) -> u32 {
    args.runs.unwrap_or(3)
}

fn seconds_per_epoch(run: &Trained, args: &DsspArgs) -> f64 {
    run.seconds / f64::from(args.epochs)
}

/// A paradigm of the paper: one mode, or all bounds of SSP.
struct Paradigm<'a> {
    name: &'static str,
    /// Of each of its modes.
    runs: Vec<&'a [Trained]>,
}

impl Paradigm<'_> {
    /// The mean over its modes of their medians.
    fn mean(&self, of: impl Fn(&Trained) -> f64) -> f64 {
        let medians = self.runs.iter().map(|runs| median(runs, &of));
        medians.sum::<f64>() / self.runs.len() as f64
    }
}

/// What the paper compares.
fn compared<'a>(modes: &[Mode], all: &'a [Vec<Trained>]) -> Vec<Paradigm<'a>> {
    type Takes = fn(&Mode) -> bool;
    let paradigms: [(&'static str, Takes); 5] = [
        ("BSP", |mode| mode.staleness == Staleness::Bsp),
        ("SSP, mean", |mode| {
            matches!(mode.staleness, Staleness::Ssp(_))
        }),
        ("DSSP strict", |mode| mode.name.ends_with("strict")),
        ("DSSP paper", |mode| mode.name.ends_with("paper")),
        ("ASP", |mode| mode.staleness == Staleness::Asp),
    ];
    let runs_of = |takes: Takes| {
        let own = modes.iter().zip(all).filter(move |(mode, _)| takes(mode));
        own.map(|(_, runs)| runs.as_slice()).collect()
    };
    paradigms
        .map(|(name, takes)| Paradigm {
            name,
            runs: runs_of(takes),
        })
        .into()
}

fn sorted(mut values: Vec<(&'static str, f64)>) -> Vec<(&'static str, f64)> {
    values.sort_by(|left, right| left.1.total_cmp(&right.1));
    values
}

fn list(values: &[(&str, f64)]) -> String {
    let texts = values
        .iter()
        .map(|(name, value)| format!("{name} {value:.4}"));
    texts.collect::<Vec<String>>().join(", ")
}

/// The mean curve of all these runs, as far as the shortest reaches: the points of a run follow
/// each other after equal times.
fn line(name: &str, modes: &[&[Trained]]) -> Line {
    let curves = || modes.iter().flat_map(|runs| *runs).map(|run| &run.curve);
    let shortest = curves().map(Vec::len).min().unwrap_or_default();
    let count = curves().count() as f64;
    let point = |at: usize| {
        let sum = curves().fold((0.0, 0.0), |sum, curve| {
            (sum.0 + curve[at].0, sum.1 + curve[at].1)
        });
        (sum.0 / count, sum.1 / count)
    };
    Line {
        name: name.into(),
        points: (0..shortest).map(point).collect(),
    }
}
