//! `bench --transport sim`: all ranks in this process, in virtual time, on a modelled network.
//!
//! The communicators and schedules are those of real runs; only the network and the clock are not
//! real. Local work, such as adding, takes no virtual time. The same arguments give the same times.

use super::measure::{Cell, Check, Measured};
use super::plan::Plan;
use super::rank::{Report, measure_all};
use super::slots::{Arenas, Row};
use linerate::sim::{self, SimOptions};
use linerate::{Operation, Rank, Result, Simulation};
use linerate_job::ending::Outcome;

/// Measures everything.
pub fn run(plan: &Plan) -> Outcome {
    let mut bench = SimulatedBench::new(plan)?;
    let report = Report::new(plan, "sim");
    let report = measure_all(plan, Some(report), |row| {
        Measured::of(plan, 0, row, |row, bytes| bench.cell(row, bytes))
    })?;
    Ok(report.map_or(Ok(()), Report::finish))
}

struct SimulatedBench<'a> {
    plan: &'a Plan,
    simulation: Simulation,
    /// By rank.
    arenas: Vec<Arenas>,
}

impl SimulatedBench<'_> {
    fn new(plan: &Plan) -> Result<SimulatedBench<'_>> {
        let simulation = Simulation::new(options(plan), plan.config.clone())?;
        let communicators = simulation.communicators().iter();
        let arenas = communicators
            .map(|communicator| Arenas::new(communicator, plan))
            .collect::<Result<_>>()?;
        Ok(SimulatedBench {
            plan,
            simulation,
            arenas,
        })
    }

    fn cell(&mut self, row: &Row, bytes: u64) -> Result<Cell> {
        let wrong = match self.plan.check {
            true => Some(self.check(row)?),
            false => None,
        };
        for _ in 0..self.plan.warmup.unwrap_or(0) {
            self.once(row)?;
        }
        let samples: Vec<f64> = (0..self.plan.iterations.unwrap_or(1))
            .map(|_| self.once(row))
            .collect::<Result<_>>()?;
        let algorithm = self.arenas[0].call(row, 0).algorithm();
        Ok(Cell {
            wrong,
            ..Cell::of(self.plan, bytes, algorithm, &samples)
        })
    }

    /// Runs once on known data and compares everything on every rank.
    fn check(&mut self, row: &Row) -> Result<u64> {
        let rows: Vec<Row> = (0..self.plan.ranks)
            .map(|rank| seen_by(row, rank))
            .collect();
        let checks: Vec<Check> = (self.arenas.iter().zip(&rows))
            .map(|(arenas, row)| Check::prepare(self.plan, arenas, row))
            .collect::<Result<_>>()?;
        self.once(row)?;
        let wrong = checks.iter().zip(&rows).map(|(c, row)| c.count_wrong(row));
        let wrong = wrong.sum::<Result<_>>()?;
        checks.iter().try_for_each(Check::clear)?;
        Ok(wrong)
    }

    /// Runs one iteration, which all ranks start at the same virtual time. Returns the time until
    /// the last has ended, us.
    fn once(&mut self, row: &Row) -> Result<f64> {
        let begin = self.simulation.now();
        let mut pending: Vec<Operation> = (0..)
            .zip(&self.arenas)
            .map(|(rank, arenas)| arenas.call(&seen_by(row, rank), 0).start())
            .collect::<Result<_>>()?;
        let mut failure = None;
        self.simulation.run(|_| {
            // Only those that are left are asked: with a thousand ranks this is most of the work.
            pending.retain_mut(|operation| match operation.test() {
                Ok(is_done) => !is_done,
                Err(error) => {
                    failure.get_or_insert(error);
                    false
                }
            });
            pending.is_empty()
        })?;
        match failure {
            Some(error) => Err(error),
            None => Ok(self.simulation.now().since(begin).as_secs_f64() * 1e6),
        }
    }
}

fn options(plan: &Plan) -> SimOptions {
    let mut options = SimOptions::new(plan.ranks, plan.seed);
    if let Some(link) = plan.link {
        options.network = sim::Link {
            latency_ns: link.latency_ns(),
            bytes_per_second: link.bytes_per_second(),
            ..options.network
        };
    }
    options.size_only = plan.is_size_only();
    options
}

fn seen_by<'a>(row: &Row<'a>, rank: Rank) -> Row<'a> {
    let mut row = *row;
    row.layout.rank = rank;
    row
}
