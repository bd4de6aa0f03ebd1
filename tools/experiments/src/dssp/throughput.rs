//! Pushes per unit of time, in virtual time: only computing takes time.
//!
//! The derived figures come from an evaluation of the paper's rules that is independent of this
//! code: two workers, uniform times of +- 10 %, 3000 units of time.

use super::{DsspArgs, Mode};
use crate::plot::{Chart, Line};
use crate::section::Section;
use linerate::unstable::prng::Prng;
use linerate::unstable::staleness::{Decision, Run, run as run_workers};
use serde_json::{Value, json};
use std::time::Duration;

/// How long a worker computes, around its mean.
#[derive(Clone, Copy, Debug)]
enum Times {
    /// Uniform, 10 % more or less.
    Uniform,
    /// Uniform; after each 50 pushes of a worker its mean is drawn anew, from the least to the
    /// greatest of all.
    Changing,
    /// Pareto with the exponent 1.1 and the mean as its least, and at most a thousand times that.
    Pareto,
}

/// Workers that are compared in all modes.
struct Case {
    name: &'static str,
    means: &'static [f64],
    times: Times,
    until: f64,
    /// What the rules give, for BSP, SSP 3, 6, 15, strict, literal, paper, ASP. Literal depends on
    /// the seed.
    derived: Option<[f64; 8]>,
}

const CASES: [Case; 7] = [
    Case {
        name: "1.0/2.1",
        means: &[1.0, 2.1],
        times: Times::Uniform,
        until: 3000.0,
        derived: Some([0.952, 0.953, 0.954, 0.957, 0.954, 0.978, 1.472, 1.476]),
    },
    Case {
        name: "1.0/2.5",
        means: &[1.0, 2.5],
        times: Times::Uniform,
        until: 3000.0,
        derived: Some([0.800, 0.800, 0.802, 0.804, 0.801, 0.800, 1.397, 1.399]),
    },
    Case {
        name: "1.0/2.7",
        means: &[1.0, 2.7],
        times: Times::Uniform,
        until: 3000.0,
        derived: None,
    },
    Case {
        name: "1.0/2.1, short",
        means: &[1.0, 2.1],
        times: Times::Uniform,
        until: 60.0,
        derived: None,
    },
    Case {
        name: "changing",
        means: &[1.0, 2.7],
        times: Times::Changing,
        until: 3000.0,
        derived: None,
    },
    Case {
        name: "4, Pareto",
        means: &[1.0; 4],
        times: Times::Pareto,
        until: 3000.0,
        derived: None,
    },
    Case {
        name: "4 alike",
        means: &[1.0; 4],
        times: Times::Uniform,
        until: 3000.0,
        derived: None,
    },
];
/// Pushes after which [`Times::Changing`] draws.
const CHANGE_PUSHES: u64 = 50;
const PARETO_EXPONENT: f64 = 1.1;
const PARETO_MAX: f64 = 1000.0;

/// Runs every case in every mode.
pub fn run(args: &DsspArgs, modes: &[Mode]) -> Result<Section, String> {
    let mut section = Section::new("throughput");
    section.line(format!(
        "pushes per unit of time of all workers, virtual time, {} seeds from {} on: mean (least to greatest)",
        args.seeds, args.seed
    ));
    section.line(format!(
        "{:>15} {:>20} {:>22} {:>8} {:>8} {:>10} {:>10} {:>8}",
        "workers", "mode", "pushes per time", "derived", "drift", "staleness", "(most)", "waiting"
    ));
    let mut rows = Vec::new();
    for case in &CASES {
        for (at, mode) in modes.iter().enumerate() {
            let runs: Vec<(u64, Run)> = (args.seed..args.seed + args.seeds)
                .map(|seed| Ok((seed, case.run(mode, seed, |_, _| ())?)))
                .collect::<linerate::Result<_>>()
                .map_err(|error| error.to_string())?;
            let derived = case.derived.map(|all| all[at]);
            section.line(line_of(case, mode, &runs, derived));
            rows.extend(
                runs.iter()
                    .map(|(seed, run)| row_of(case, mode, *seed, run)),
            );
            if let Some(limit) = mode.staleness.drift_max()
                && let Some((seed, run)) = runs.iter().find(|(_, run)| run.drift_max > limit)
            {
                section.violation(format!(
                    "{}, {}, seed {seed}: a drift of {}, and its bound is {limit}",
                    case.name, mode.name, run.drift_max
                ));
            }
        }
        let name = case.name.replace(", ", "-").replace([' ', '/'], "-");
        let chart = chart_of(case, modes, args.seed).map_err(|error| error.to_string())?;
        section.charts.push((format!("throughput-{name}"), chart));
    }
    section.line("DSSP paper has no bound on the drift: it lets a worker go on at every push of the slowest one".into());
    section.document = Value::Array(rows);
    Ok(section)
}

/// The drift of each push of worker 0 over time, a line for each mode.
fn chart_of(case: &Case, modes: &[Mode], seed: u64) -> linerate::Result<Chart> {
    let mut lines = Vec::new();
    for mode in modes {
        let mut points = Vec::new();
        case.run(mode, seed, |decision, time| {
            if decision.worker == 0 {
                points.push((time.as_secs_f64(), decision.drift as f64));
            }
        })?;
        let name = mode.name.clone();
        lines.push(Line { name, points });
    }
    Ok(Chart {
        title: format!("dssp, workers {}", case.name),
        x: "time".into(),
        y: "drift of worker 0".into(),
        lines,
    })
}

impl Case {
    fn run(
        &self,
        mode: &Mode,
        seed: u64,
        decided: impl FnMut(&Decision, Duration),
    ) -> linerate::Result<Run> {
        let mut prng = Prng::new(seed);
        let least = self.means.iter().copied().fold(f64::MAX, f64::min);
        let greatest = self.means.iter().copied().fold(0.0, f64::max);
        let (mut means, mut steps) = (self.means.to_vec(), vec![0u64; self.means.len()]);
        let compute = |worker: u32, _| {
            let own = worker as usize;
            if matches!(self.times, Times::Changing) && steps[own] % CHANGE_PUSHES == 0 {
                means[own] = least + (greatest - least) * prng.unit();
            }
            steps[own] += 1;
            let factor = match self.times {
                Times::Uniform | Times::Changing => 0.9 + 0.2 * prng.unit(),
                Times::Pareto => {
                    let drawn = (1.0 - prng.unit()).powf(-1.0 / PARETO_EXPONENT);
                    drawn.min(PARETO_MAX)
                }
            };
            Duration::from_secs_f64(means[own] * factor)
        };
        let workers = self.means.len() as u32;
        let until = Duration::from_secs_f64(self.until);
        run_workers(mode.staleness, workers, until, compute, decided)
    }
}

/// Mean, least and greatest throughput.
fn summary(case: &Case, runs: &[(u64, Run)]) -> (f64, f64, f64) {
    let rates = || {
        runs.iter()
            .map(|(_, run)| pushes_of(run) as f64 / case.until)
    };
    let mean = rates().sum::<f64>() / runs.len() as f64;
    (
        mean,
        rates().fold(f64::MAX, f64::min),
        rates().fold(0.0, f64::max),
    )
}

fn pushes_of(run: &Run) -> u64 {
    run.pushes.iter().sum()
}

fn staleness_mean(run: &Run) -> f64 {
    run.staleness_sum as f64 / pushes_of(run).max(1) as f64
}

/// The share of all workers' time in which they waited.
fn waiting(case: &Case, run: &Run) -> f64 {
    let waited: f64 = run.waited.iter().map(Duration::as_secs_f64).sum();
    waited / (case.until * case.means.len() as f64)
}

fn line_of(case: &Case, mode: &Mode, runs: &[(u64, Run)], derived: Option<f64>) -> String {
    let (mean, least, greatest) = summary(case, runs);
    let all = |of: &dyn Fn(&Run) -> f64| runs.iter().map(|(_, run)| of(run)).collect::<Vec<f64>>();
    let average = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
    let most = |values: Vec<f64>| values.into_iter().fold(0.0, f64::max);
    format!(
        "{:>15} {:>20} {:>22} {:>8} {:>8} {:>10.2} {:>10} {:>6.1} %",
        case.name,
        mode.name,
        format!("{mean:.3} ({least:.3} to {greatest:.3})"),
        derived.map_or("-".into(), |value| format!("{value:.3}")),
        most(all(&|run| run.drift_max as f64)),
        average(all(&staleness_mean)),
        most(all(&|run| run.staleness_max as f64)),
        100.0 * average(all(&|run| waiting(case, run))),
    )
}

fn row_of(case: &Case, mode: &Mode, seed: u64, run: &Run) -> Value {
    let (s_lower, r_max) = mode.bounds();
    json!({
        "mode": mode.name, "s_lower": s_lower, "r_max": r_max,
        "workers": case.means.len(), "speeds": case.name, "seed": seed,
        "iterations_per_s": pushes_of(run) as f64 / case.until,
        "drift_max": run.drift_max,
        "staleness_mean": staleness_mean(run),
        "staleness_max": run.staleness_max,
        "wait_s": run.waited.iter().map(Duration::as_secs_f64).sum::<f64>(),
    })
}
