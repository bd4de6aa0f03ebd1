//! `--transport sim`: all ranks in this process, in virtual time, on a modelled network.
//!
//! Shards and workers are those of real runs; only the network and the clock are not real. Updates
//! take no virtual time. The same arguments give the same times.

use super::Plan;
use super::document::Entry;
use super::rank::gradients;
use super::report::{Measure, Report, Times, measure_all};
use crate::bench::link::Link;
use crate::bench::values::Value;
use linerate::sim::{self, SimOptions};
use linerate::transport::Time;
use linerate::unstable::comm::{SimulatedServer, Training};
use linerate::{Buffer, Result, Simulation};
use linerate_job::ending::Outcome;

/// A row is a job of its own.
struct SimulatedJob<'a> {
    plan: &'a Plan,
    link: Link,
}

/// Runs everything.
pub fn run(plan: &Plan, link: Link) -> Outcome {
    let report = Report::new(plan, "sim");
    let report = measure_all(plan, Some(report), &SimulatedJob { plan, link })?;
    Ok(report.map_or(Ok(()), Report::finish))
}

impl SimulatedJob<'_> {
    fn options(&self) -> SimOptions {
        let options = SimOptions::new(self.plan.ranks, 1);
        SimOptions {
            network: sim::Link {
                latency_ns: self.link.latency_ns(),
                bytes_per_second: self.link.bytes_per_second(),
                ..options.network
            },
            ..options
        }
    }
}

impl Measure for SimulatedJob<'_> {
    fn measure<G: Value, W: Value>(&self, count: u64) -> Result<Entry> {
        let plan = self.plan;
        let mut simulation = Simulation::new(self.options(), plan.config.clone())?;
        let tensors = [plan.tensor(count)];
        let mut server = SimulatedServer::new(&simulation, &tensors, &plan.options())?;
        let workers = &simulation.communicators()[plan.args.servers as usize..];
        let first = workers[0].alloc::<f32>(count as usize)?;
        let mut weights: Vec<Buffer<W>> = Vec::new();
        let mut all = Vec::new();
        for comm in workers {
            let pulled = comm.alloc::<W>(count as usize)?;
            let gradients = gradients::<G>(comm, count as usize)?;
            all.push(Training {
                gradients: gradients.iter().map(Buffer::cast).collect::<Result<_>>()?,
                weights: pulled.cast()?,
                versions: Vec::new(),
                steps: Vec::new(),
            });
            weights.push(pulled);
        }
        server.init(&mut simulation, &first)?;
        server.train(&mut simulation, &mut all, plan.args.warmup as usize)?;
        server.train(&mut simulation, &mut all, plan.args.iterations as usize)?;
        let count_wrong = |all: &[Training], expected: &super::Expected| -> Result<u64> {
            let one = |(own, weights): (&Training, &Buffer<W>)| {
                Ok(expected.count_wrong(&weights.as_slice()?, &own.versions))
            };
            all.iter().zip(&weights).map(one).sum()
        };
        let mut wrong = count_wrong(&all, &plan.expected_at_end())?;
        let us = |later: Time, earlier| later.since(earlier).as_secs_f64() * 1e6;
        let mut times = Times::new(plan.args.iterations as usize);
        for time in &mut times.pull_alone {
            for weights in &weights {
                weights.as_mut_slice()?.fill(W::from_real(f64::NAN));
            }
            let begun = simulation.now();
            server.pull(&mut simulation, &mut all)?;
            *time = us(simulation.now(), begun);
        }
        wrong += count_wrong(&all, &plan.expected_of_all())?;
        let reports = server.finish(&mut simulation)?;
        for own in &all {
            let steps = &own.steps[plan.args.warmup as usize..];
            for (at, step) in steps.iter().enumerate() {
                let end = us(step.pulled, steps[0].begun);
                times.note(at, end, (us(step.ok, step.begun), us(step.pulled, step.ok)));
            }
        }
        Ok(times.entry(plan, count, wrong, &reports[0]))
    }
}
