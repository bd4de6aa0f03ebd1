//! Loss after equally many pushes against the bound of staleness, in virtual time: one process has
//! the weights and all workers, and computes each gradient from the weights that its worker pulled.
//!
//! The convex model is a regression on a hyperplane, one sample at a time, with the step sizes of
//! the theorem: its regret is the sum of the losses that the workers saw less those of the best
//! weights, and stands beside the bound 4 F L sqrt(2 (s + 1) P T) of Ho et al. (NIPS 2013), which
//! theorem 2 of the paper has with s = s_L + r_max. The other model is a classifier of digits.

use super::{DsspArgs, Mode, modes_with_ssp};
use crate::digits::{Digits, Image};
use crate::model::{Classifier, Hyperplane, Verdict};
use crate::plot::{Chart, Line};
use crate::section::Section;
use linerate::options::Staleness;
use linerate::unstable::prng::Prng;
use linerate::unstable::staleness::{Decision, Run, run as run_workers};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::time::Duration;

/// Mean times of a step.
const MEANS: [f64; 4] = [1.0, 1.3, 1.9, 2.7];
/// Pushes of all workers.
const PUSHES: u64 = 4000;
/// The bounds that are compared.
const BOUNDS: [u32; 7] = [0, 1, 3, 6, 15, 40, 100];

const DIMENSIONS: usize = 32;
const SAMPLES: usize = 4000;
const NOISE: f64 = 0.1;
/// Full gradient steps until the weights are the best ones, and their size.
const FIT: (u32, f32) = (400, 1.0);

const HIDDEN: usize = 32;
const BATCH: usize = 16;
const RATE: f32 = 0.1;

/// What a run gave.
struct Outcome {
    run: Run,
    verdict: Verdict,
    /// Of the hyperplane: the regret, and its bound.
    regret: Option<(f64, Option<f64>)>,
}

/// Weights that workers pull, and how a push changes them.
trait Learner {
    fn weights(&self) -> &[f32];
    /// A worker pushes the gradient of these weights.
    fn push(&mut self, pulled: &[f32], prng: &mut Prng);
    fn outcome(&mut self, run: Run) -> Outcome;
}

/// Runs both models with every bound.
pub fn run(args: &DsspArgs) -> Result<Section, String> {
    let mut section = Section::new("staleness");
    section.line(format!(
        "after {PUSHES} pushes of {} workers whose steps take {MEANS:?}, virtual time, means of {} seeds from {} on",
        MEANS.len(),
        args.seeds,
        args.seed
    ));
    section.line(format!(
        "{:>10} {:>20} {:>9} {:>9} {:>8} {:>10} {:>9} {:>9}",
        "model", "mode", "loss", "accuracy", "drift", "staleness", "regret", "at most"
    ));
    let mut rows = Vec::new();
    for model in ["hyperplane", "digits"] {
        let mut line = Vec::new();
        for mode in modes_with_ssp(args, BOUNDS) {
            let outcomes: Vec<Outcome> = (args.seed..args.seed + args.seeds)
                .map(|seed| measure(model, &mode, seed))
                .collect::<linerate::Result<_>>()
                .map_err(|error| error.to_string())?;
            section.line(text_of(model, &mode, &outcomes));
            let beyond = |of: &&Outcome| {
                of.regret
                    .is_some_and(|(regret, bound)| bound.is_some_and(|most| regret > most))
            };
            if let Some(outcome) = outcomes.iter().find(beyond) {
                let (regret, bound) = outcome.regret.unwrap_or_default();
                section.violation(format!(
                    "{}: a regret of {regret}, and its bound is {}",
                    mode.name,
                    bound.unwrap_or_default()
                ));
            }
            if let Staleness::Ssp(bound) = mode.staleness {
                line.push((f64::from(bound), mean(&outcomes, |one| one.verdict.loss)));
            }
            let seeds = args.seed..;
            rows.extend(
                seeds
                    .zip(&outcomes)
                    .map(|(seed, one)| row_of(model, &mode, seed, one)),
            );
        }
        section.charts.push((
            format!("staleness-{model}"),
            Chart {
                title: format!("dssp, {model}: loss after {PUSHES} pushes"),
                x: "bound of SSP".into(),
                y: "loss".into(),
                lines: vec![Line {
                    name: "SSP".into(),
                    points: line,
                }],
            },
        ));
    }
    section.document = Value::Array(rows);
    Ok(section)
}

fn measure(model: &str, mode: &Mode, seed: u64) -> linerate::Result<Outcome> {
    match model {
        "hyperplane" => learn(Plane::new(mode, seed), mode, seed),
        _ => learn(Classes::new(seed), mode, seed),
    }
}

/// Lets the workers push until there were [`PUSHES`].
fn learn(learner: impl Learner, mode: &Mode, seed: u64) -> linerate::Result<Outcome> {
    struct State<L> {
        learner: L,
        pulled: Vec<Vec<f32>>,
        is_waiting: Vec<bool>,
        samples: Prng,
        left: u64,
    }
    let workers = MEANS.len();
    let state = RefCell::new(State {
        learner,
        pulled: vec![Vec::new(); workers],
        is_waiting: vec![false; workers],
        samples: Prng::new(seed ^ 0x7365_6564),
        left: PUSHES,
    });
    let mut times = Prng::new(seed);
    let compute = |worker: u32, _| {
        let own = worker as usize;
        let mut state = state.borrow_mut();
        state.pulled[own] = state.learner.weights().to_vec();
        Duration::from_secs_f64(MEANS[own] * (0.9 + 0.2 * times.unit()))
    };
    let decided = |decision: &Decision, _| {
        let own = decision.worker as usize;
        let mut state = state.borrow_mut();
        let State {
            learner,
            pulled,
            is_waiting,
            samples,
            left,
        } = &mut *state;
        // A decision on a worker that waits is no push.
        if !std::mem::replace(&mut is_waiting[own], !decision.is_ok) && *left > 0 {
            *left -= 1;
            learner.push(&pulled[own], samples);
        }
    };
    // Enough for all modes: the slowest worker never waits.
    let slowest = MEANS.iter().copied().fold(0.0, f64::max);
    let until = Duration::from_secs_f64(1.2 * slowest * PUSHES as f64 / workers as f64);
    let run = run_workers(mode.staleness, workers as u32, until, compute, decided)?;
    let mut state = state.into_inner();
    assert_eq!(state.left, 0, "there was time for all pushes");
    Ok(state.learner.outcome(run))
}

/// The hyperplane, with the step sizes of the theorem.
struct Plane {
    samples: Hyperplane,
    weights: Vec<f32>,
    best: Vec<f32>,
    /// s of the theorem; `None`: there is no bound.
    bound: Option<f64>,
    pushes: u64,
    regret: f64,
    /// F and L of the theorem, as they were seen.
    distance_max: f64,
    slope_max: f64,
}

impl Plane {
    fn new(mode: &Mode, seed: u64) -> Plane {
        let samples = Hyperplane::new((DIMENSIONS, SAMPLES), NOISE, seed, seed ^ 0x706c_616e);
        let mut best = vec![0.0; samples.parameters()];
        for _ in 0..FIT.0 {
            let mut gradient = vec![0.0; samples.parameters()];
            samples.add_gradient(&best, 0..SAMPLES, &mut gradient);
            step(&mut best, &gradient, FIT.1);
        }
        let bound = match mode.staleness {
            Staleness::Dssp { s_lower, r_max, .. } if mode.staleness.drift_max().is_some() => {
                Some(f64::from(s_lower + r_max))
            }
            Staleness::Bsp => Some(0.0),
            Staleness::Ssp(bound) => Some(f64::from(bound)),
            _ => None,
        };
        Plane {
            weights: vec![0.0; samples.parameters()],
            samples,
            best,
            bound,
            pushes: 0,
            regret: 0.0,
            distance_max: 0.0,
            slope_max: 0.0,
        }
    }

    /// sqrt(2 (s + 1) P), with the upper bound of the paper where there is none.
    fn spread(&self) -> f64 {
        (2.0 * (self.bound.unwrap_or(15.0) + 1.0) * MEANS.len() as f64).sqrt()
    }
}

impl Learner for Plane {
    fn weights(&self) -> &[f32] {
        &self.weights
    }

    fn push(&mut self, pulled: &[f32], prng: &mut Prng) {
        self.pushes += 1;
        let sample = prng.below(SAMPLES as u64) as usize;
        let mut gradient = vec![0.0; self.weights.len()];
        let loss = self
            .samples
            .add_gradient(pulled, sample..sample + 1, &mut gradient);
        let mut unused = vec![0.0; self.weights.len()];
        let best = self
            .samples
            .add_gradient(&self.best, sample..sample + 1, &mut unused);
        self.regret += loss - best;
        self.slope_max = self.slope_max.max(norm(&gradient));
        // D(x, y) is half the square of the distance, and F^2 at most.
        let apart: Vec<f32> = pulled.iter().zip(&self.best).map(|(a, b)| a - b).collect();
        self.distance_max = self.distance_max.max(norm(&apart) / 2f64.sqrt());
        let size = self.distance_max / (self.slope_max * self.spread()).max(f64::MIN_POSITIVE);
        step(
            &mut self.weights,
            &gradient,
            (size / (self.pushes as f64).sqrt()) as f32,
        );
    }

    fn outcome(&mut self, run: Run) -> Outcome {
        let most = |_| {
            let scale = 4.0 * self.distance_max * self.slope_max;
            scale * self.spread() * (self.pushes as f64).sqrt()
        };
        Outcome {
            run,
            verdict: self.samples.judge(&self.weights),
            regret: Some((self.regret, self.bound.map(most))),
        }
    }
}

/// The classifier of digits.
struct Classes {
    digits: Digits,
    model: Classifier,
    weights: Vec<f32>,
}

impl Classes {
    fn new(seed: u64) -> Classes {
        let model = Classifier::new(HIDDEN);
        Classes {
            digits: Digits::load(),
            weights: model.start(seed),
            model,
        }
    }
}

impl Learner for Classes {
    fn weights(&self) -> &[f32] {
        &self.weights
    }

    fn push(&mut self, pulled: &[f32], prng: &mut Prng) {
        let images = &self.digits.training;
        let draw = |_| &images[prng.below(images.len() as u64) as usize];
        let batch: Vec<&Image> = (0..BATCH).map(draw).collect();
        let mut gradient = vec![0.0; self.weights.len()];
        self.model.add_gradient(pulled, &batch, &mut gradient);
        step(&mut self.weights, &gradient, RATE);
    }

    fn outcome(&mut self, run: Run) -> Outcome {
        Outcome {
            run,
            verdict: self.model.judge(&self.weights, &self.digits.test),
            regret: None,
        }
    }
}

fn step(weights: &mut [f32], gradient: &[f32], size: f32) {
    let both = weights.iter_mut().zip(gradient);
    both.for_each(|(weight, slope)| *weight -= size * slope);
}

fn norm(vector: &[f32]) -> f64 {
    let squares = vector.iter().map(|&value| f64::from(value).powi(2));
    squares.sum::<f64>().sqrt()
}

fn mean(outcomes: &[Outcome], of: impl Fn(&Outcome) -> f64) -> f64 {
    outcomes.iter().map(of).sum::<f64>() / outcomes.len() as f64
}

fn stale(outcome: &Outcome) -> f64 {
    let pushes: u64 = outcome.run.pushes.iter().sum();
    outcome.run.staleness_sum as f64 / pushes as f64
}

fn text_of(model: &str, mode: &Mode, outcomes: &[Outcome]) -> String {
    let show = |value: Option<f64>, digits: usize| {
        value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let accuracy = mean(outcomes, |one| 100.0 * one.verdict.accuracy);
    let drift = outcomes.iter().map(|one| one.run.drift_max).max();
    let regret = outcomes[0]
        .regret
        .map(|_| mean(outcomes, |one| one.regret.unwrap_or_default().0));
    let bound = outcomes[0].regret.and_then(|(_, bound)| bound);
    let bound = bound.map(|_| {
        mean(outcomes, |one| {
            one.regret.unwrap_or_default().1.unwrap_or_default()
        })
    });
    format!(
        "{model:>10} {:>20} {:>9.4} {:>9} {:>8} {:>10.2} {:>9} {:>9}",
        mode.name,
        mean(outcomes, |one| one.verdict.loss),
        show((accuracy > 0.0).then_some(accuracy), 1),
        drift.unwrap_or_default(),
        mean(outcomes, stale),
        show(regret, 1),
        show(bound, 0),
    )
}

fn row_of(model: &str, mode: &Mode, seed: u64, outcome: &Outcome) -> Value {
    let (s_lower, r_max) = mode.bounds();
    json!({
        "model": model, "mode": mode.name, "s_lower": s_lower, "r_max": r_max,
        "workers": MEANS.len(), "speeds": MEANS, "seed": seed,
        "drift_max": outcome.run.drift_max,
        "staleness_mean": stale(outcome),
        "staleness_max": outcome.run.staleness_max,
        "loss": outcome.verdict.loss,
        "accuracy": outcome.verdict.accuracy,
        "regret": outcome.regret.map(|(regret, _)| regret),
        "regret_max": outcome.regret.and_then(|(_, bound)| bound),
    })
}
