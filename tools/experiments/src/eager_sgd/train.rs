//! One run: steps of a model on this rank, and what came of them.

use super::plan::{self, Scheme, Task, Trial};
use crate::digits::Share;
use crate::model::{Classifier, Hyperplane, Verdict, are_equal};
use linerate::unstable::prng::mix;
use linerate::{
    Buffer, Communicator, DataType, PartialAllreduce, PartialOptions, ReduceOp, Result,
};
use std::time::{Duration, Instant};

/// Points of a curve.
const POINTS: u32 = 16;
/// Units of the classifier.
const HIDDEN: usize = 32;
/// Digits of a rank in a batch.
const DIGITS_BATCH: usize = 16;
/// Deviation of the targets around the hyperplane. Half its square, 4.5, remains of the loss in the
/// end; in the paper it is 4.7.
const PLANE_NOISE: f64 = 3.0;
/// Learning rates that converge in a hundred steps although gradients come some rounds late.
const PLANE_RATE: f32 = 0.1;
const DIGITS_RATE: f32 = 0.2;

/// Where a run stood after some steps.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    pub step: u32,
    pub seconds: f64,
    pub verdict: Verdict,
}

/// What came of a run. It is equal on all ranks but for the seconds of `points`, which are this
/// rank's.
#[derive(Clone, Debug)]
pub struct Run {
    /// Until the slowest rank has its last step's result.
    pub seconds: f64,
    /// Gradients in all results until then, of all ranks.
    pub included: u64,
    /// Samples of a gradient.
    pub batch: usize,
    pub points: Vec<Point>,
    /// Whether all ranks ended with the same parameters.
    pub is_equal: bool,
}

/// What is trained on this rank.
pub enum Learner {
    Plane(Hyperplane),
    Digits { model: Classifier, images: Share },
}

impl Learner {
    pub fn new(task: Task, place: (u32, u32), seed: u64) -> Learner {
        match task {
            Task::Hyperplane => {
                let shape = (plan::HYPERPLANE_DIMENSIONS, plan::HYPERPLANE_SAMPLES);
                let own_seed = mix(seed ^ mix(u64::from(place.0) + 1));
                Learner::Plane(Hyperplane::new(shape, PLANE_NOISE, seed, own_seed))
            }
            Task::Digits => Learner::Digits {
                model: Classifier::new(HIDDEN),
                images: Share::new(place, seed),
            },
        }
    }

    fn start(&self, seed: u64) -> Vec<f32> {
        match self {
            Learner::Plane(plane) => vec![0.0; plane.parameters()],
            Learner::Digits { model, .. } => model.start(seed),
        }
    }

    fn rate(&self) -> f32 {
        match self {
            Learner::Plane(_) => PLANE_RATE,
            Learner::Digits { .. } => DIGITS_RATE,
        }
    }

    fn batch(&self) -> usize {
        match self {
            Learner::Plane(_) => plan::HYPERPLANE_BATCH,
            Learner::Digits { .. } => DIGITS_BATCH,
        }
    }

    /// The mean gradient of this rank's batch.
    fn compute(&mut self, parameters: &[f32], step: u32, gradient: &mut [f32]) {
        gradient.fill(0.0);
        let batch = self.batch();
        match self {
            Learner::Plane(plane) => {
                let start = step as usize * batch % plane.samples();
                plane.add_gradient(parameters, start..start + batch, gradient);
            }
            Learner::Digits { model, images } => {
                model.add_gradient(parameters, &images.batch(step, batch), gradient);
            }
        }
    }

    /// This rank's part of a verdict: all samples that it has of the hyperplane, or all digits of
    /// the test.
    fn judge(&mut self, parameters: &[f32]) -> Verdict {
        match self {
            Learner::Plane(plane) => plane.judge(parameters),
            Learner::Digits { model, images } => model.judge(parameters, images.test()),
        }
    }
}

/// How gradients are brought together.
struct Exchange<'a> {
    comm: &'a Communicator,
    /// None: an ordinary allreduce.
    partial: Option<PartialAllreduce>,
    /// Where the gradient goes in and what is applied comes out.
    buffer: Buffer<f32>,
}

/// Trains once.
pub fn train(
    comm: &Communicator,
    learner: &mut Learner,
    trial: &Trial,
    (steps, scale): (u32, f64),
    seed: u64,
) -> Result<Run> {
    let mut parameters = learner.start(seed);
    let mut gradient = vec![0f32; parameters.len()];
    let mut exchange = Exchange::new(comm, trial, parameters.len())?;
    let place = (comm.rank(), comm.ranks());
    let (rate, stride) = (learner.rate(), steps.div_ceil(POINTS));
    let mut kept = vec![(0, 0.0, parameters.clone())];
    let mut included = 0;
    comm.barrier()?;
    let started = Instant::now();
    for step in 0..steps {
        let computing = Instant::now();
        learner.compute(&parameters, step, &mut gradient);
        let wanted = trial.load.time(place, u64::from(step), seed) * scale;
        let wanted = Duration::from_secs_f64(wanted / 1e3);
        std::thread::sleep(wanted.saturating_sub(computing.elapsed()));
        included += exchange.exchange(&mut gradient)?;
        descend(&mut parameters, &gradient, rate);
        if (step + 1) % stride == 0 || step + 1 == steps {
            kept.push((
                step + 1,
                started.elapsed().as_secs_f64(),
                parameters.clone(),
            ));
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    exchange.finish(|late| descend(&mut parameters, late, rate))?;
    if let Some(last) = kept.last_mut() {
        last.2.clone_from(&parameters);
    }
    Ok(Run {
        seconds: slowest(comm, seconds)?,
        included,
        batch: learner.batch(),
        points: judge_all(comm, learner, &kept)?,
        is_equal: are_equal(comm, &parameters)?,
    })
}

fn descend(parameters: &mut [f32], gradient: &[f32], rate: f32) {
    for (parameter, slope) in parameters.iter_mut().zip(gradient) {
        *parameter -= rate * slope;
    }
}

impl Exchange<'_> {
    fn new<'a>(comm: &'a Communicator, trial: &Trial, count: usize) -> Result<Exchange<'a>> {
        let partial = match trial.scheme {
            Scheme::Synchronous => None,
            Scheme::Partial(policy) => {
                let options = PartialOptions {
                    policy,
                    staleness_max: Some(trial.staleness),
                    ..PartialOptions::default()
                };
                Some(PartialAllreduce::new(
                    comm,
                    DataType::F32,
                    count as u64,
                    options,
                )?)
            }
        };
        Ok(Exchange {
            comm,
            partial,
            buffer: comm.alloc(count)?,
        })
    }

    /// Replaces this rank's gradient by the mean that it applies; returns the number of gradients
    /// in that.
    fn exchange(&mut self, gradient: &mut [f32]) -> Result<u64> {
        let buffer = &self.buffer;
        buffer.write(0, gradient)?;
        let included = match &self.partial {
            None => {
                self.comm.all_reduce(buffer, ReduceOp::Avg)?;
                u64::from(self.comm.ranks())
            }
            Some(partial) => {
                let report = partial.exchange(buffer, buffer)?;
                report.expect("every step has a result").generations()
            }
        };
        buffer.read(0, gradient)?;
        Ok(included)
    }

    /// Applies the results that are still to come, in order.
    fn finish(&mut self, mut apply: impl FnMut(&[f32])) -> Result<()> {
        if let Some(partial) = &self.partial {
            let mut read = Ok(());
            partial.finish(&self.buffer, |_report| match self.buffer.as_slice() {
                Ok(late) => apply(&late),
                Err(error) => read = Err(error),
            })?;
            read?;
        }
        Ok(())
    }
}

/// Verdicts on parameters of this run, by all ranks together.
fn judge_all(
    comm: &Communicator,
    learner: &mut Learner,
    kept: &[(u32, f64, Vec<f32>)],
) -> Result<Vec<Point>> {
    let own = kept.iter().flat_map(|(_, _, parameters)| {
        let verdict = learner.judge(parameters);
        [verdict.loss, verdict.accuracy]
    });
    let mut means: Vec<f64> = own.collect();
    comm.all_reduce(&mut means, ReduceOp::Avg)?;
    let points = kept.iter().zip(means.chunks(2)).map(|(kept, mean)| Point {
        step: kept.0,
        seconds: kept.1,
        verdict: Verdict {
            loss: mean[0],
            accuracy: mean[1],
        },
    });
    Ok(points.collect())
}

fn slowest(comm: &Communicator, seconds: f64) -> Result<f64> {
    let mut slowest = [seconds];
    comm.all_reduce(&mut slowest, ReduceOp::Max)?;
    Ok(slowest[0])
}
