//! Training a classifier of digits with a parameter server, for [`table1`](super::table1) and
//! [`homogeneous`](super::homogeneous): real processes and real times. Rank 0 has the weights and
//! the ranks from 1 on are the workers; further ranks look on.
//!
//! Only the time of a step is prescribed: a worker sleeps for what computing leaves of it, because
//! a host has fewer cores than workers.

use super::{DsspArgs, Mode};
use crate::digits::Share;
use crate::model::{Classifier, Verdict};
use linerate::options::ServerOptions;
use linerate::unstable::prng::{Prng, mix};
use linerate::{Buffer, Communicator, DataType, ParameterServer, ReduceOp, Result, TensorSpec};
use linerate_job::progress::Progress;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The accuracies until which times are taken; the paper's are 0.67 and 0.68 of CIFAR-100.
const TARGETS: [f64; 2] = [0.80, 0.85];
/// How often the first worker keeps its weights, to be judged after the run.
const KEEP_EVERY: Duration = Duration::from_millis(25);
/// Images of a gradient.
pub const BATCH: usize = 16;
const RATE: f32 = 0.1;

/// What is trained, by whom, and for how long.
pub struct Plan {
    /// Times of a step of each worker, relative to `step_ms`.
    pub speeds: &'static [f64],
    /// Milliseconds of a step.
    pub step_ms: f64,
    /// Hidden units of the classifier.
    pub hidden: usize,
    pub end: End,
    /// How often.
    pub runs: u32,
}

/// When a worker has done its part.
#[derive(Clone, Copy)]
pub enum End {
    Seconds(f64),
    Pushes(u32),
}

/// What came of a run, on every rank.
#[derive(Clone, Debug, Default)]
pub struct Trained {
    /// Of all workers together.
    pub pushes: f64,
    /// From the first step of a worker to its last; of the worker that takes longest.
    pub seconds: f64,
    /// Of all workers together: from the end of computing to the pulled weights.
    pub wait_s: f64,
    /// Seconds until the accuracies; 0: not reached.
    pub reached: [f64; 2],
    pub verdict: Verdict,
    pub drift_max: f64,
    pub staleness_mean: f64,
    pub staleness_max: f64,
    /// Seconds and accuracies.
    pub curve: Vec<(f64, f64)>,
}

/// Trains with every mode, as often as is asked: the runs of each mode. A run of every mode comes
/// before the second of any, so that a change of the host's load meets all modes.
pub fn train_all(
    args: &DsspArgs,
    plan: &Plan,
    modes: &[Mode],
    comm: &Communicator,
) -> std::result::Result<Vec<Vec<Trained>>, String> {
    let mut all = vec![Vec::new(); modes.len()];
    let runs = plan.runs as usize * modes.len();
    let mut progress = Progress::new("runs", runs, comm.rank() == 0);
    for run in 0..plan.runs {
        let seed = mix(args.seed ^ mix(u64::from(run)));
        for (mode, runs) in modes.iter().zip(&mut all) {
            runs.push(plan.train(mode, comm, seed).map_err(|e| e.to_string())?);
            progress.advance(mode.name.clone());
        }
    }
    progress.finish();
    Ok(all)
}

impl Plan {
    /// One run: the server and the workers go their ways, and then tell each other.
    fn train(&self, mode: &Mode, comm: &Communicator, seed: u64) -> Result<Trained> {
        let tensor = TensorSpec {
            name: "classifier".into(),
            count: Classifier::new(self.hidden).parameters() as u64,
            dtype: DataType::F32,
        };
        let options = ServerOptions {
            servers: vec![0],
            workers: (1..=self.speeds.len() as u32).collect(),
            staleness: mode.staleness,
            rate: RATE,
            ..ServerOptions::default()
        };
        let server = ParameterServer::new(comm, vec![tensor], options)?;
        let worker = comm.rank().checked_sub(1).map(|worker| worker as usize);
        let mut own = match worker.filter(|&worker| worker < self.speeds.len()) {
            Some(worker) => self.work(&server, worker, seed)?,
            None => Trained::default(),
        };
        if let Some(report) = server.finish()? {
            let (mut versions, mut pushes) = (0, 0);
            for (staleness, &count) in (0..).zip(&report.staleness) {
                versions += staleness * count;
                pushes += count;
                if count > 0 {
                    own.staleness_max = staleness as f64;
                }
            }
            own.staleness_mean = versions as f64 / pushes.max(1) as f64;
            own.drift_max = report.drift_max as f64;
        }
        own.share(comm)
    }

    /// What a worker does until its end.
    fn work(&self, server: &ParameterServer, worker: usize, seed: u64) -> Result<Trained> {
        let mut own = Trained::default();
        let mut model = Classifier::new(self.hidden);
        let images = Share::new((worker as u32, self.speeds.len() as u32), seed);
        let weights = [Buffer::from_vec(model.start(seed))];
        let gradient = [Buffer::from_vec(vec![0f32; model.parameters()])];
        let mut prng = Prng::new(seed ^ worker as u64);
        let mut kept: Vec<(Duration, Vec<f32>)> = Vec::new();
        let mut steps = 0;
        server.init(&weights)?;
        let started = Instant::now();
        while match self.end {
            End::Seconds(seconds) => started.elapsed().as_secs_f64() < seconds,
            End::Pushes(pushes) => steps < pushes,
        } {
            let computing = Instant::now();
            {
                let mut slots = gradient[0].as_mut_slice()?;
                slots.fill(0.0);
                let batch = images.batch(steps, BATCH);
                model.add_gradient(&weights[0].as_slice()?, &batch, &mut slots);
            }
            let wanted = self.speeds[worker] * self.step_ms * (0.9 + 0.2 * prng.unit());
            let wanted = Duration::from_secs_f64(wanted / 1e3);
            std::thread::sleep(wanted.saturating_sub(computing.elapsed()));
            let waiting = Instant::now();
            server.step(&gradient, &weights)?;
            own.wait_s += waiting.elapsed().as_secs_f64();
            steps += 1;
            let is_due = |(at, _): &(Duration, Vec<f32>)| started.elapsed() >= *at + KEEP_EVERY;
            if worker == 0 && kept.last().is_none_or(is_due) {
                kept.push((started.elapsed(), weights[0].to_vec()?));
            }
        }
        own.pushes = f64::from(steps);
        own.seconds = started.elapsed().as_secs_f64();
        if worker == 0 {
            kept.push((started.elapsed(), weights[0].to_vec()?));
        }
        for (at, weights) in &kept {
            own.verdict = model.judge(weights, images.test());
            own.curve.push((at.as_secs_f64(), own.verdict.accuracy));
        }
        own.reached = TARGETS.map(|target| {
            let first = own.curve.iter().find(|(_, accuracy)| *accuracy >= target);
            first.map_or(0.0, |(at, _)| *at)
        });
        Ok(own)
    }
}

impl Trained {
    /// Each number is of one rank, a sum over ranks, or (the seconds) the most of any.
    fn share(mut self, comm: &Communicator) -> Result<Trained> {
        let mut most = [self.curve.len() as f64, self.seconds];
        comm.all_reduce(&mut most, ReduceOp::Max)?;
        let mut all = vec![
            self.pushes,
            self.wait_s,
            self.reached[0],
            self.reached[1],
            self.verdict.loss,
            self.verdict.accuracy,
            self.drift_max,
            self.staleness_mean,
            self.staleness_max,
        ];
        self.curve.resize(most[0] as usize, (0.0, 0.0));
        all.extend(self.curve.iter().flat_map(|&(at, accuracy)| [at, accuracy]));
        comm.all_reduce(&mut all, ReduceOp::Sum)?;
        let (numbers, curve) = all.split_at(9);
        Ok(Trained {
            pushes: numbers[0],
            seconds: most[1],
            wait_s: numbers[1],
            reached: [numbers[2], numbers[3]],
            verdict: Verdict {
                loss: numbers[4],
                accuracy: numbers[5],
            },
            drift_max: numbers[6],
            staleness_mean: numbers[7],
            staleness_max: numbers[8],
            curve: curve
                .chunks_exact(2)
                .map(|pair| (pair[0], pair[1]))
                .collect(),
        })
    }

    pub fn seconds_per_push(&self) -> f64 {
        self.seconds / self.pushes
    }

    /// The run as a row of the document.
    pub fn row(&self, plan: &Plan, mode: &Mode, seed: u64) -> Value {
        let (s_lower, r_max) = mode.bounds();
        let reached = self
            .reached
            .map(|seconds| (seconds > 0.0).then_some(seconds));
        json!({
            "mode": mode.name,
            "s_lower": s_lower,
            "r_max": r_max,
            "workers": plan.speeds.len(),
            "speeds": plan.speeds,
            "seed": seed,
            "iterations_per_s": 1.0 / self.seconds_per_push(),
            "time_to_target_s": reached,
            "drift_max": self.drift_max,
            "staleness_mean": self.staleness_mean,
            "staleness_max": self.staleness_max,
            "wait_s": self.wait_s,
            "accuracy": self.verdict.accuracy,
            "loss": self.verdict.loss,
        })
    }
}

fn sorted(runs: &[Trained], of: impl Fn(&Trained) -> f64) -> Vec<f64> {
    let mut all: Vec<f64> = runs.iter().map(of).collect();
    all.sort_by(f64::total_cmp);
    all
}

pub fn median(runs: &[Trained], of: impl Fn(&Trained) -> f64) -> f64 {
    let all = sorted(runs, of);
    all[all.len() / 2]
}

/// The median and the spread of the seconds to an accuracy; runs that do not reach it are the
/// longest.
fn reached_text(runs: &[Trained], which: usize) -> String {
    let of = |run: &Trained| match run.reached[which] {
        0.0 => f64::INFINITY,
        seconds => seconds,
    };
    let all = sorted(runs, of);
    let text = |seconds: f64| match seconds.is_finite() {
        true => format!("{seconds:.2}"),
        false => "-".into(),
    };
    let (least, most) = (all[0], all[all.len() - 1]);
    format!(
        "{} ({}..{})",
        text(all[all.len() / 2]),
        text(least),
        text(most)
    )
}

/// What stands above the lines of [`text_of`].
pub fn heading() -> String {
    format!(
        "{:>18} {:>9} {:>20} {:>20} {:>9} {:>6} {:>10} {:>8}",
        "mode",
        "ms/push",
        format!("s to {}", TARGETS[0]),
        format!("s to {}", TARGETS[1]),
        "accuracy",
        "drift",
        "staleness",
        "wait s"
    )
}

/// Medians of the runs of a mode.
pub fn text_of(mode: &Mode, runs: &[Trained]) -> String {
    format!(
        "{:>18} {:>9.3} {:>20} {:>20} {:>9.3} {:>6} {:>10.2} {:>8.2}",
        mode.name,
        1e3 * median(runs, Trained::seconds_per_push),
        reached_text(runs, 0),
        reached_text(runs, 1),
        median(runs, |run| run.verdict.accuracy),
        median(runs, |run| run.drift_max),
        median(runs, |run| run.staleness_mean),
        median(runs, |run| run.wait_s),
    )
}
