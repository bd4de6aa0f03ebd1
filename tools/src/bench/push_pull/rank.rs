//! One rank: serves and trains row after row, checks the weights, and reports if it is rank 0.

use super::document::Entry;
use super::expected::{self, Expected};
use super::report::{Measure, Report, Times, measure_all};
use super::{Gradients, Plan};
use crate::bench::values::Value;
use linerate::{Buffer, Communicator, DataType, ParameterServer, ReduceOp, Result};
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
    let name = job.comm.transport();
    let report = (job.comm.rank() == 0).then(|| Report::new(plan, name));
    let report = measure_all(plan, report, &job)?;
    job.comm.barrier()?;
    Ok(report.map_or(Ok(()), Report::finish))
}

impl Measure for Job<'_> {
    fn measure<G: Value, W: Value>(&self, count: u64) -> Result<Entry> {
        measure::<G, W>(self, count)
    }
}

fn measure<G: Value, W: Value>(job: &Job, count: u64) -> Result<Entry> {
    let plan = job.plan;
    let server = ParameterServer::new(&job.comm, vec![plan.tensor(count)], plan.options())?;
    let mut times = Times::new(plan.args.iterations as usize);
    let mut wrong = [0];
    if let Some(workers) = &job.workers {
        let mut trainer = Trainer::<G, W>::new(job, &server, count as usize)?;
        for _ in 0..plan.args.warmup {
            trainer.step()?;
        }
        workers.barrier()?;
        let mut end = 0.0;
        for at in 0..plan.args.iterations as usize {
            let (push, pull) = trainer.step()?;
            end += push + pull;
            times.note(at, end, (push, pull));
        }
        wrong[0] += trainer.count_wrong(&plan.expected_at_end())?;
        // After a barrier all pushes are in the weights: each worker has pulled its own ones.
        for time in &mut times.pull_alone {
            trainer.spoil()?;
            workers.barrier()?;
            *time = trainer.pull()?;
        }
        wrong[0] += trainer.count_wrong(&plan.expected_of_all())?;
    }
    let report = server.finish()?.unwrap_or_default();
    times.combine(&job.comm)?;
    job.comm.all_reduce(&mut wrong, ReduceOp::Sum)?;
    Ok(times.entry(plan, count, wrong[0], &report))
}

/// The gradients of a worker, in the order in which it pushes them.
pub fn gradients<G: Value>(comm: &Communicator, count: usize) -> Result<Vec<Buffer<G>>> {
    let gradients = (0..expected::ROTATION as u64).map(|step| {
        let gradient = comm.alloc::<G>(count)?;
        for (index, value) in (0..).zip(gradient.as_mut_slice()?.iter_mut()) {
            *value = G::from_int(-expected::added(step, index));
        }
        Ok(gradient)
    });
    gradients.collect()
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
        let gradients = gradients(comm, count)?;
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
        let pulled = self.pull()?;
        self.steps += 1;
        Ok((pushed.as_secs_f64() * 1e6, pulled))
    }

    /// Pulls; its time, us.
    fn pull(&mut self) -> Result<f64> {
        let started = Instant::now();
        self.versions = self.server.pull(from_ref(&self.weights))?;
        Ok(started.elapsed().as_secs_f64() * 1e6)
    }

    /// Makes all weights wrong, so that the next pull shows.
    fn spoil(&self) -> Result<()> {
        self.weights.as_mut_slice()?.fill(W::from_real(f64::NAN));
        Ok(())
    }

    fn count_wrong(&self, expected: &Expected) -> Result<u64> {
        Ok(expected.count_wrong(&self.weights.as_slice()?, &self.versions))
    }
}

impl Times {
    /// Takes the times of the slowest worker, step by step.
    fn combine(&mut self, comm: &Communicator) -> Result<()> {
        comm.all_reduce(&mut self.ends, ReduceOp::Max)?;
        comm.all_reduce(&mut self.push, ReduceOp::Max)?;
        comm.all_reduce(&mut self.pull, ReduceOp::Max)?;
        comm.all_reduce(&mut self.pull_alone, ReduceOp::Max)
    }
}
