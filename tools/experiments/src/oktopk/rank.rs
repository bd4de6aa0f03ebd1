//! One rank of the training: every scheme with every optimiser, one after another.

use super::OkTopkArgs;
use super::learner::Learner;
use super::shape::Scheme;
use crate::model::{Verdict, are_equal};
use linerate::options::{Amount, Mode};
use linerate::{
    Buffer, Communicator, Config, DataType, ReduceOp, Result, SparseAllreduce, SparseOptions,
    SparseResult, TensorSpec,
};
use linerate_job::progress::Progress;
use linerate_job::settings;
use std::time::Instant;

/// Points of a curve.
const POINTS: u32 = 16;
/// The share of all parameters that is picked in every step.
pub const DENSITY: f64 = 0.02;

/// How the mean gradient changes the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Optimiser {
    Sgd,
    Momentum,
    Adam,
}

impl Optimiser {
    pub const ALL: [Optimiser; 3] = [Optimiser::Sgd, Optimiser::Momentum, Optimiser::Adam];

    pub fn name(self) -> &'static str {
        match self {
            Optimiser::Sgd => "sgd",
            Optimiser::Momentum => "momentum",
            Optimiser::Adam => "adam",
        }
    }
}

/// Where a run stood after some steps.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    pub step: u32,
    pub seconds: f64,
    /// Sent by a rank, in the mean.
    pub bytes: f64,
    pub verdict: Verdict,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Run {
    pub scheme: Scheme,
    pub optimiser: Optimiser,
    pub points: Vec<Point>,
    /// Whether all ranks ended with the same bits.
    pub is_equal: bool,
    /// Coordinates where results and residuals together are not what the gradients were.
    pub lost: u64,
    /// Entries of the results, in the mean.
    pub selected: f64,
}

/// What was trained, on how many ranks.
pub struct Training {
    pub ranks: u32,
    pub transport: &'static str,
    pub count: u64,
    pub steps: u32,
    pub runs: Vec<Run>,
}

/// Trains every scheme with every optimiser on this rank. Only rank 0 gets the results.
pub fn train_all(args: &OkTopkArgs, config: Config) -> Result<Option<Training>> {
    let comm = settings::join(config)?;
    let steps = (args.steps).unwrap_or(if args.quick { 24 } else { 240 });
    let mut learner = Learner::new((comm.rank(), comm.ranks()), args.seed);
    let count = Scheme::ALL.len() * Optimiser::ALL.len();
    let mut progress = Progress::new("runs", count, comm.rank() == 0);
    let mut runs = Vec::new();
    for optimiser in Optimiser::ALL {
        for scheme in Scheme::ALL {
            runs.push(train(
                &comm,
                &mut learner,
                (scheme, optimiser),
                steps,
                args.seed,
            )?);
            progress.advance(format!("{} {}", scheme.name(), optimiser.name()));
        }
    }
    comm.barrier()?;
    progress.finish();
    let training = Training {
        ranks: comm.ranks(),
        transport: comm.transport(),
        count: learner.start(args.seed).len() as u64,
        steps,
        runs,
    };
    Ok((comm.rank() == 0).then_some(training))
}

/// Sums of a run that are exact, because gradients are whole steps of a grid.
struct Account {
    /// The sum of this rank's gradients.
    computed: Vec<f64>,
    /// The sum of the results.
    applied: Vec<f64>,
}

fn train(
    comm: &Communicator,
    learner: &mut Learner,
    (scheme, optimiser): (Scheme, Optimiser),
    steps: u32,
    seed: u64,
) -> Result<Run> {
    let mut descent = Descent::new(optimiser, learner.start(seed));
    let count = descent.parameters.len();
    let tensor = TensorSpec {
        name: "parameters".into(),
        count: count as u64,
        dtype: DataType::F32,
    };
    let options = SparseOptions {
        algorithm: scheme.algorithm(),
        amount: Amount::Density(DENSITY),
        mode: match scheme {
            Scheme::OkTopk => Mode::Threshold,
            _ => Mode::Exact,
        },
        ..SparseOptions::default()
    };
    let mut sparse = SparseAllreduce::new(comm, vec![tensor], options)?;
    let buffer = comm.alloc(count)?;
    let (mut gradient, mut sum) = (vec![0f32; count], vec![0f32; count]);
    let mut account = Account {
        computed: vec![0.0; count],
        applied: vec![0.0; count],
    };
    let stride = steps.div_ceil(POINTS);
    let mut kept = vec![(0, 0.0, 0u64, descent.parameters.clone())];
    let (mut bytes, mut selected) = (0, 0);
    comm.barrier()?;
    let began = Instant::now();
    for step in 0..steps {
        learner.compute(&descent.parameters, step, &mut gradient);
        buffer.write(0, &gradient)?;
        let result = sparse.run(std::slice::from_ref(&buffer))?;
        dense_of(&result, &mut sum)?;
        account.add(&gradient, &sum);
        descent.step(&sum, comm.ranks());
        bytes += result.counters.total().bytes_sent;
        selected += result.selected_global;
        if (step + 1) % stride == 0 || step + 1 == steps {
            kept.push((
                step + 1,
                began.elapsed().as_secs_f64(),
                bytes,
                descent.parameters.clone(),
            ));
        }
    }
    let residual = sparse.residual("parameters").map(Buffer::to_vec);
    let residual = residual.transpose()?;
    Ok(Run {
        scheme,
        optimiser,
        points: points(comm, learner, &kept)?,
        is_equal: are_equal(comm, &descent.parameters)?,
        lost: account.lost(comm, &residual.unwrap_or_default())?,
        selected: selected as f64 / f64::from(steps),
    })
}

/// A result as a vector.
fn dense_of(result: &SparseResult, sum: &mut [f32]) -> Result<()> {
    sum.fill(0.0);
    for (index, value) in result.nonzeros_of(0)? {
        sum[index as usize] = value;
    }
    Ok(())
}

impl Account {
    fn add(&mut self, gradient: &[f32], sum: &[f32]) {
        for (total, value) in self.computed.iter_mut().zip(gradient) {
            *total += f64::from(*value);
        }
        for (total, value) in self.applied.iter_mut().zip(sum) {
            *total += f64::from(*value);
        }
    }

    /// Coordinates where the gradients of all ranks, less what they keep, are not what was applied,
    /// to the last bit.
    fn lost(&self, comm: &Communicator, residual: &[f32]) -> Result<u64> {
        let delivered = self
            .computed
            .iter()
            .zip(residual)
            .map(|(all, kept)| all - f64::from(*kept));
        let delivered: Vec<f64> = delivered.collect();
        let sums = all_reduced(comm, &delivered, ReduceOp::Sum)?;
        Ok(sums
            .iter()
            .zip(&self.applied)
            .filter(|(sum, applied)| sum != applied)
            .count() as u64)
    }
}

/// Parameters and what an optimiser remembers.
struct Descent {
    optimiser: Optimiser,
    parameters: Vec<f32>,
    first: Vec<f32>,
    second: Vec<f32>,
    steps: i32,
}

impl Descent {
    fn new(optimiser: Optimiser, parameters: Vec<f32>) -> Descent {
        let zeros = vec![0.0; parameters.len()];
        Descent {
            optimiser,
            parameters,
            first: zeros.clone(),
            second: zeros,
            steps: 0,
        }
    }

    /// Applies the sum over ranks, whose mean is the gradient.
    fn step(&mut self, sum: &[f32], ranks: u32) {
        self.steps += 1;
        let moments = self.first.iter_mut().zip(&mut self.second);
        for ((parameter, sum), (first, second)) in self.parameters.iter_mut().zip(sum).zip(moments)
        {
            let slope = sum / ranks as f32;
            *parameter -= match self.optimiser {
                Optimiser::Sgd => 0.2 * slope,
                Optimiser::Momentum => {
                    *first = 0.9 * *first + slope;
                    0.02 * *first
                }
                Optimiser::Adam => {
                    *first = 0.9 * *first + 0.1 * slope;
                    *second = 0.999 * *second + 0.001 * slope * slope;
                    let mean = *first / (1.0 - 0.9f32.powi(self.steps));
                    let square = *second / (1.0 - 0.999f32.powi(self.steps));
                    0.001 * mean / (square.sqrt() + 1e-8)
                }
            };
        }
    }
}

/// Verdicts by rank 0, bytes as the mean of all ranks.
fn points(
    comm: &Communicator,
    learner: &mut Learner,
    kept: &[(u32, f64, u64, Vec<f32>)],
) -> Result<Vec<Point>> {
    let own: Vec<f64> = kept.iter().map(|point| point.2 as f64).collect();
    let bytes = all_reduced(comm, &own, ReduceOp::Avg)?;
    if comm.rank() != 0 {
        return Ok(Vec::new());
    }
    let points = kept
        .iter()
        .zip(bytes)
        .map(|((step, seconds, _, parameters), bytes)| Point {
            step: *step,
            seconds: *seconds,
            bytes,
            verdict: learner.judge(parameters),
        });
    Ok(points.collect())
}

fn all_reduced(comm: &Communicator, own: &[f64], op: ReduceOp) -> Result<Vec<f64>> {
    let mut all = own.to_vec();
    comm.all_reduce(&mut all, op)?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_optimiser_goes_down_a_bowl() {
        for optimiser in Optimiser::ALL {
            let mut descent = Descent::new(optimiser, vec![0.3, -0.2]);
            for _ in 0..2000 {
                let slopes: Vec<f32> = descent.parameters.iter().map(|p| 4.0 * p).collect();
                descent.step(&slopes, 4);
            }
            assert!(
                descent.parameters.iter().all(|p| p.abs() < 0.01),
                "{optimiser:?} {:?}",
                descent.parameters
            );
        }
    }
}
