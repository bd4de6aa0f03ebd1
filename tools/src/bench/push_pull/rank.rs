//! One rank: serves and trains row after row, checks the weights, and reports if it is rank 0.

use super::document::{Document, Entry};
use super::expected::{self, Expected};
use super::{Gradients, Plan, table};
use crate::bench::statistics::Summary;
use crate::bench::sweep;
use crate::bench::values::Value;
use half::{bf16, f16};
use linerate::{Buffer, Communicator, DataType, ParameterServer, ReduceOp, Result, TensorSpec};
use linerate_job::ending::Outcome;
use linerate_job::settings;
use std::slice::from_ref;
use std::time::Instant;

/// The ranks, and the workers of them if this rank is one.
struct Job<'a> {
    plan: &'a Plan,
    comm: Communicator,
    workers: Option<Communicator>,
}

/// Runs everything.
pub fn run(plan: &Plan) -> Outcome {
    let comm = settings::join(plan.config.clone())?;
    // A rank that only serves never waits for workers that are slow.
    let workers = comm.split(plan.is_worker(comm.rank()).then_some(0), 0)?;
    let job = Job {
        plan,
        comm,
        workers,
    };
    let is_reporting = job.comm.rank() == 0;
    let mut report = is_reporting.then(|| Document::new(plan, job.comm.transport()));
    if is_reporting {
        print(plan, &table::header(plan, job.comm.transport()));
    }
    let mut wrong = 0;
    for &count in &plan.counts {
        let entry = measure_as_typed(&job, count)?;
        wrong += entry.wrong;
        if let Some(document) = &mut report {
            print(plan, &table::row(plan, &entry));
            document.results.push(entry);
        }
    }
    job.comm.barrier()?;
    let written = match &mut report {
        Some(document) => {
            print(plan, &table::footer(plan.counts.len(), wrong));
            document.wrong = wrong;
            plan.args.job.write_json(document)
        }
        None => Ok(()),
    };
    Ok(match (is_reporting, wrong) {
        (true, 1..) => Err(vec![format!(
            "{wrong} elements are wrong: see the column #wrong"
        )]),
        _ => written.map_err(|text| vec![text]),
    })
}

fn measure_as_typed(job: &Job, count: u64) -> Result<Entry> {
    match job.plan.args.dtype {
        DataType::F16 => measure_gradients::<f16>(job, count),
        DataType::Bf16 => measure_gradients::<bf16>(job, count),
        _ => measure_gradients::<f32>(job, count),
    }
}

fn measure_gradients<G: Value>(job: &Job, count: u64) -> Result<Entry> {
    match job.plan.args.pull {
        DataType::F16 => measure::<G, f16>(job, count),
        DataType::Bf16 => measure::<G, bf16>(job, count),
        _ => measure::<G, f32>(job, count),
    }
}

fn measure<G: Value, W: Value>(job: &Job, count: u64) -> Result<Entry> {
    let plan = job.plan;
    let tensor = TensorSpec {
        name: "weights".into(),
        count,
        dtype: plan.args.dtype,
    };
    let server = ParameterServer::new(&job.comm, vec![tensor], plan.options())?;
    let mut times = Times::new(plan.args.iterations as usize);
    let mut wrong = [0];
    if let Some(workers) = &job.workers {
        let mut trainer = Trainer::<G, W>::new(job, &server, count as usize)?;
        for _ in 0..plan.args.warmup {
            trainer.step()?;
        }
        workers.barrier()?;
        for at in 0..plan.args.iterations as usize {
            times.set(at, trainer.step()?);
        }
        wrong[0] += trainer.count_wrong(&plan.expected_at_end())?;
        // After it all pushes are in the weights: each worker has pulled its own ones.
        workers.barrier()?;
        trainer.pull_again()?;
        wrong[0] += trainer.count_wrong(&plan.expected_of_all())?;
    }
    let report = server.finish()?.unwrap_or_default();
    times.combine(&job.comm)?;
    job.comm.all_reduce(&mut wrong, ReduceOp::Sum)?;
    let pushes: u64 = report.staleness.iter().sum();
    let staleness = (0..).zip(&report.staleness);
    let staleness: u64 = staleness.map(|(versions, pushes)| versions * pushes).sum();
    let bytes = count * plan.args.dtype.size_bytes() as u64;
    let time_us = Summary::of(&times.whole);
    Ok(Entry {
        collective: "push-pull",
        bytes,
        count,
        dtype: plan.args.dtype.name(),
        pull: plan.args.pull.name(),
        memory: plan.args.gradients.name(),
        iterations: plan.args.iterations,
        time_us,
        push_us: Summary::of(&times.push),
        pull_us: Summary::of(&times.pull),
        algbw: sweep::algorithm_bandwidth(bytes, time_us.p50),
        wrong: wrong[0],
        updates: report.version,
        drift_max: report.drift_max,
        waits: report.decisions.waits,
        staleness_mean: staleness as f64 / pushes.max(1) as f64,
    })
}

/// A worker with its memory.
struct Trainer<'a, G: Value, W: Value> {
    server: &'a ParameterServer,
    /// Whose memory is pushed.
    place: Gradients,
    gradients: Vec<Buffer<G>>,
    weights: Buffer<W>,
    /// Pushes that were made.
    steps: u64,
    /// Of the last pull, by shard.
    versions: Vec<u64>,
}

impl<'a, G: Value, W: Value> Trainer<'a, G, W> {
    /// Allocates, and gives weights of zero to begin with.
    fn new(job: &Job, server: &'a ParameterServer, count: usize) -> Result<Trainer<'a, G, W>> {
        let comm = &job.comm;
        let gradients = (0..expected::ROTATION as u64).map(|step| {
            let gradient = comm.alloc::<G>(count)?;
            for (index, value) in (0..).zip(gradient.as_mut_slice()?.iter_mut()) {
                *value = G::from_int(-expected::added(step, index));
            }
            Ok(gradient)
        });
        let gradients = gradients.collect::<Result<_>>()?;
        let weights = comm.alloc::<W>(count)?;
        let first = match W::DTYPE {
            DataType::F32 => weights.cast::<f32>()?,
            _ => comm.alloc::<f32>(count)?,
        };
        server.init(from_ref(&first))?;
        Ok(Trainer {
            server,
            place: job.plan.args.gradients,
            gradients,
            weights,
            steps: 0,
            versions: Vec::new(),
        })
    }

    /// Pushes and pulls; the times of the push until its OK, and of the pull, us.
    fn step(&mut self) -> Result<(f64, f64)> {
        let mut gradient = self.gradients[self.steps as usize % expected::ROTATION].clone();
        if self.place == Gradients::Server {
            let room = self.server.gradients::<G>()?;
            room.as_mut_slice()?.copy_from_slice(&gradient.as_slice()?);
            gradient = room;
        }
        let started = Instant::now();
        self.server.push(from_ref(&gradient))?;
        self.server.wait_ok()?;
        let pushed = started.elapsed();
        self.versions = self.server.pull(from_ref(&self.weights))?;
        let pulled = started.elapsed() - pushed;
        self.steps += 1;
        Ok((pushed.as_secs_f64() * 1e6, pulled.as_secs_f64() * 1e6))
    }

    /// Makes all weights wrong and pulls them.
    fn pull_again(&mut self) -> Result<()> {
        self.weights.as_mut_slice()?.fill(W::from_real(f64::NAN));
        self.versions = self.server.pull(from_ref(&self.weights))?;
        Ok(())
    }

    fn count_wrong(&self, expected: &Expected) -> Result<u64> {
        Ok(expected.count_wrong(&self.weights.as_slice()?, &self.versions))
    }
}

/// Times of steps, us; zeros on a rank that only serves.
struct Times {
    whole: Vec<f64>,
    push: Vec<f64>,
    pull: Vec<f64>,
}

impl Times {
    fn new(steps: usize) -> Times {
        Times {
            whole: vec![0.0; steps],
            push: vec![0.0; steps],
            pull: vec![0.0; steps],
        }
    }

    fn set(&mut self, at: usize, (push, pull): (f64, f64)) {
        (self.whole[at], self.push[at], self.pull[at]) = (push + pull, push, pull);
    }

    /// Takes the times of the slowest worker, step by step.
    fn combine(&mut self, comm: &Communicator) -> Result<()> {
        comm.all_reduce(&mut self.whole, ReduceOp::Max)?;
        comm.all_reduce(&mut self.push, ReduceOp::Max)?;
        comm.all_reduce(&mut self.pull, ReduceOp::Max)
    }
}

/// Prints to stdout, or to stderr where the document goes to stdout.
fn print(plan: &Plan, text: &str) {
    // Nobody can be told that the output is closed.
    let _ = plan.args.job.print(text);
}
