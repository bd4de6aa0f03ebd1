//! Table I of the paper on this host: two workers, one 2.7 times as fast as the other, train a
//! classifier of digits with a parameter server. Real processes and real times; only the time of a
//! step is prescribed: a worker sleeps for what computing leaves of it.
//!
//! The paper's ratio of its two GPUs is not printed there: 2.7 follows from its times, if SSP has
//! the rate of the slower worker twice and ASP that of both.

use super::{DsspArgs, Mode};
use crate::digits::Share;
use crate::model::{Classifier, Verdict};
use crate::plot::{Chart, Line};
use crate::section::Section;
use linerate::options::{Release, ServerOptions, Staleness};
use linerate::unstable::prng::{Prng, mix};
use linerate::{Buffer, Communicator, DataType, ParameterServer, ReduceOp, Result, TensorSpec};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The server, and the two workers.
pub const RANKS: u32 = 3;
/// Times of a step.
const SPEEDS: [f64; 2] = [1.0, 2.7];
/// The accuracies until which times are taken; the paper's are 0.67 and 0.68 of CIFAR-100.
const TARGETS: [f64; 2] = [0.80, 0.85];
/// How often the fast worker keeps its weights, to be judged after the run.
const KEEP_EVERY: Duration = Duration::from_millis(25);

const HIDDEN: usize = 32;
const BATCH: usize = 16;
const RATE: f32 = 0.1;

/// The paper's seconds to 0.67 and 0.68, by mode. `None`: not reached.
const PAPER: [(&str, [Option<f64>; 2]); 6] = [
    ("BSP", [Some(6159.2), None]),
    ("ASP", [Some(2993.1), Some(3017.2)]),
    ("SSP 3", [Some(5678.2), None]),
    ("SSP 6", [Some(5703.8), Some(6908.2)]),
    ("SSP 15", [Some(5564.9), Some(7255.6)]),
    ("DSSP(3,12) paper", [Some(3016.4), Some(3046.3)]),
];

/// What came of a run, on every rank.
#[derive(Clone, Debug, Default)]
struct Trained {
    pushes: f64,
    seconds: f64,
    /// Of both workers together.
    wait_s: f64,
    /// Seconds until the accuracies; 0: not reached.
    reached: [f64; 2],
    verdict: Verdict,
    drift_max: f64,
    staleness: [f64; 2],
    /// Of rank 1 only.
    curve: Vec<(f64, f64)>,
}

impl Trained {
    fn seconds_per_push(&self) -> f64 {
        self.seconds / self.pushes
    }
}

/// Trains with every mode; the section is rank 0's.
pub fn run(
    args: &DsspArgs,
    modes: &[Mode],
    comm: &Communicator,
) -> std::result::Result<Section, String> {
    let is_literal = |mode: &&Mode| {
        matches!(
            mode.staleness,
            Staleness::Dssp {
                release: Release::Literal,
                ..
            }
        )
    };
    let modes: Vec<&Mode> = modes.iter().filter(|mode| !is_literal(mode)).collect();
    let mut section = Section::new("table1");
    section.line(format!(
        "two workers whose steps take {SPEEDS:?} times {} ms, digits, {} runs of {} s each: medians, and least and most",
        args.scale, args.runs, args.seconds
    ));
    section.line(format!(
        "{:>18} {:>9} {:>20} {:>20} {:>9} {:>6} {:>10} {:>8}   paper: s to 0.67, 0.68",
        "mode",
        "ms/push",
        format!("s to {}", TARGETS[0]),
        format!("s to {}", TARGETS[1]),
        "accuracy",
        "drift",
        "staleness",
        "wait s"
    ));
    let (mut rows, mut lines, mut per_push) = (Vec::new(), Vec::new(), Vec::new());
    for mode in modes {
        let mut runs = Vec::new();
        for run in 0..args.runs {
            let seed = mix(args.seed ^ mix(u64::from(run)));
            runs.push(train(args, mode, comm, seed).map_err(|error| error.to_string())?);
        }
        section.line(text_of(mode, &runs));
        per_push.push((mode.name.clone(), median(&runs, Trained::seconds_per_push)));
        rows.extend(
            (args.seed..)
                .zip(&runs)
                .map(|(seed, run)| row_of(mode, seed, run)),
        );
        lines.push(Line {
            name: mode.name.clone(),
            points: runs.first().map_or(Vec::new(), |run| run.curve.clone()),
        });
    }
    let of = |name: &str| {
        per_push
            .iter()
            .find(|one| one.0.ends_with(name))
            .map(|one| one.1)
    };
    let ratios = [
        ("SSP 15", "paper", 1.6, 2.0),
        ("paper", "ASP", 0.97, 1.05),
        ("strict", "SSP 15", 0.95, 1.05),
    ];
    for (above, below, least, most) in ratios {
        if let (Some(a), Some(b)) = (of(above), of(below)) {
            section.line(format!(
                "seconds per push, {above} / {below}: {:.3} (expected {least} to {most})",
                a / b
            ));
        }
    }
    section.charts.push((
        "table1".into(),
        Chart {
            title: "dssp, steps of 1.0 and 2.7: accuracy".into(),
            x: "seconds".into(),
            y: "accuracy".into(),
            lines,
        },
    ));
    section.document = Value::Array(rows);
    Ok(section)
}

/// One run: the server and the workers go their ways, and then tell each other.
fn train(args: &DsspArgs, mode: &Mode, comm: &Communicator, seed: u64) -> Result<Trained> {
    let mut model = Classifier::new(HIDDEN);
    let tensor = TensorSpec {
        name: "classifier".into(),
        count: model.parameters() as u64,
        dtype: DataType::F32,
    };
    let options = ServerOptions {
        servers: vec![0],
        staleness: mode.staleness,
        rate: RATE,
        ..ServerOptions::default()
    };
    let server = ParameterServer::new(comm, vec![tensor], options)?;
    let mut own = Trained::default();
    let mut kept = Vec::new();
    if let Some(worker) = comm.rank().checked_sub(1) {
        let worker = worker as usize;
        let images = Share::new((worker as u32, SPEEDS.len() as u32), seed);
        let weights = [Buffer::from_vec(model.start(seed))];
        let gradient = [Buffer::from_vec(vec![0f32; model.parameters()])];
        let mut prng = Prng::new(seed ^ worker as u64);
        server.init(&weights)?;
        let (started, until) = (Instant::now(), Duration::from_secs_f64(args.seconds));
        let mut steps = 0;
        while started.elapsed() < until {
            let computing = Instant::now();
            {
                let mut slots = gradient[0].as_mut_slice()?;
                slots.fill(0.0);
                let batch = images.batch(steps, BATCH);
                model.add_gradient(&weights[0].as_slice()?, &batch, &mut slots);
            }
            let wanted = SPEEDS[worker] * args.scale * (0.9 + 0.2 * prng.unit());
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
        if worker == 0 {
            own.seconds = started.elapsed().as_secs_f64();
            for (at, weights) in &kept {
                own.verdict = model.judge(weights, images.test());
                own.curve.push((at.as_secs_f64(), own.verdict.accuracy));
            }
            own.reached = TARGETS.map(|target| {
                let first = own.curve.iter().find(|(_, accuracy)| *accuracy >= target);
                first.map_or(0.0, |(at, _)| *at)
            });
        }
    }
    if let Some(report) = server.finish()? {
        let pushes = (0..)
            .zip(&report.staleness)
            .map(|(versions, &pushes)| (versions, pushes));
        own.staleness[0] = pushes
            .map(|(versions, pushes): (u64, u64)| (versions * pushes) as f64)
            .sum();
        own.staleness[1] = report.staleness.iter().sum::<u64>() as f64;
        own.drift_max = report.drift_max as f64;
    }
    own.share(comm)
}

impl Trained {
    /// Each number is of one rank, or a sum over ranks.
    fn share(mut self, comm: &Communicator) -> Result<Trained> {
        let count = self.curve.len() as u64;
        let mut points = [count];
        comm.all_reduce(&mut points, ReduceOp::Max)?;
        let mut all = vec![
            self.pushes,
            self.seconds,
            self.wait_s,
            self.reached[0],
            self.reached[1],
            self.verdict.loss,
            self.verdict.accuracy,
            self.drift_max,
            self.staleness[0],
            self.staleness[1],
        ];
        self.curve.resize(points[0] as usize, (0.0, 0.0));
        all.extend(self.curve.iter().flat_map(|&(at, accuracy)| [at, accuracy]));
        comm.all_reduce(&mut all, ReduceOp::Sum)?;
        let (numbers, curve) = all.split_at(10);
        Ok(Trained {
            pushes: numbers[0],
            seconds: numbers[1],
            wait_s: numbers[2],
            reached: [numbers[3], numbers[4]],
            verdict: Verdict {
                loss: numbers[5],
                accuracy: numbers[6],
            },
            drift_max: numbers[7],
            staleness: [numbers[8], numbers[9]],
            curve: curve
                .chunks_exact(2)
                .map(|pair| (pair[0], pair[1]))
                .collect(),
        })
    }

    fn staleness_mean(&self) -> f64 {
        self.staleness[0] / self.staleness[1].max(1.0)
    }
}

fn sorted(runs: &[Trained], of: impl Fn(&Trained) -> f64) -> Vec<f64> {
    let mut all: Vec<f64> = runs.iter().map(of).collect();
    all.sort_by(f64::total_cmp);
    all
}

fn median(runs: &[Trained], of: impl Fn(&Trained) -> f64) -> f64 {
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

fn text_of(mode: &Mode, runs: &[Trained]) -> String {
    let paper = PAPER.iter().find(|(name, _)| *name == mode.name);
    let seconds = |seconds: Option<f64>| seconds.map_or("-".into(), |one| format!("{one:.1}"));
    let paper = paper.map_or("not in the paper".into(), |(_, both)| {
        format!("{}, {}", seconds(both[0]), seconds(both[1]))
    });
    format!(
        "{:>18} {:>9.3} {:>20} {:>20} {:>9.3} {:>6} {:>10.2} {:>8.2}   {paper}",
        mode.name,
        1e3 * median(runs, Trained::seconds_per_push),
        reached_text(runs, 0),
        reached_text(runs, 1),
        median(runs, |run| run.verdict.accuracy),
        median(runs, |run| run.drift_max),
        median(runs, Trained::staleness_mean),
        median(runs, |run| run.wait_s),
    )
}

fn row_of(mode: &Mode, seed: u64, run: &Trained) -> Value {
    let (s_lower, r_max) = mode.bounds();
    let reached = run
        .reached
        .map(|seconds| (seconds > 0.0).then_some(seconds));
    json!({
        "mode": mode.name,
        "s_lower": s_lower,
        "r_max": r_max,
        "workers": SPEEDS.len(),
        "speeds": SPEEDS,
        "seed": seed,
        "iterations_per_s": run.pushes / run.seconds,
        "time_to_target_s": reached,
        "drift_max": run.drift_max,
        "staleness_mean": run.staleness_mean(),
        "wait_s": run.wait_s,
        "accuracy": run.verdict.accuracy,
        "loss": run.verdict.loss,
    })
}
