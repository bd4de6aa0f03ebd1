//! One row of the table: check, find the pace, measure.

use super::layout::{Layout, Placement};
use super::pacing::{Pace, pace};
use super::plan::Plan;
use super::slots::{Arenas, Call, Row, Slot};
use super::statistics::Summary;
use super::sweep;
use super::values::{self, Data};
use crate::profile::Profiled;
use linerate::unstable::comm::{begin_profile, end_profile};
use linerate::unstable::wait::{Activity, Spent};
use linerate::{Communicator, DataType, Rank, ReduceOp, Result};
use std::time::Instant;

/// Iterations that find the time of one: two that do not count, then three that do.
const PROBES: (usize, usize) = (2, 3);

/// What one placement of a row gave; the same on all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Algorithm by name.
    pub algorithm: String,
    /// Timed iterations.
    pub iterations: u32,
    /// Times of the slowest rank.
    pub time_us: Summary,
    /// Bytes over the median, GB/s.
    pub algbw: f64,
    /// `algbw` times the factor that makes it comparable with a link's bandwidth, GB/s.
    pub busbw: f64,
    /// Wrong elements, all ranks together; `None`: not checked.
    pub wrong: Option<u64>,
    /// Where the time went, by rank; empty: not asked for.
    pub profile: Vec<Profiled>,
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Bytes of the larger side.
    pub bytes: u64,
    /// Elements per rank.
    pub count: u64,
    /// Element type.
    pub dtype: DataType,
    /// Operator.
    pub op: ReduceOp,
    /// Columns, if they are measured.
    pub out_of_place: Option<Cell>,
    /// Columns, if they are measured.
    pub in_place: Option<Cell>,
}

/// What a rank measures with.
pub struct Bench<'a> {
    /// What is asked for.
    pub plan: &'a Plan,
    /// The ranks.
    pub communicator: &'a Communicator,
    /// The memory.
    pub arenas: Arenas,
}

impl Measured {
    /// A row of one size of one type and operator, as `rank` sees it: `cell` measures each
    /// placement.
    pub fn of(
        plan: &Plan,
        rank: Rank,
        (size, dtype, op): (u64, DataType, ReduceOp),
        mut cell: impl FnMut(&Row, u64) -> Result<Cell>,
    ) -> Result<Measured> {
        let width = dtype.size_bytes() as u64;
        let count = sweep::count_of(plan.collective, size, width, plan.ranks);
        let mut measured = Measured {
            bytes: sweep::bytes_of(plan.collective, count, width, plan.ranks),
            count,
            dtype,
            op,
            out_of_place: None,
            in_place: None,
        };
        for &placement in &plan.placements {
            let row = Row {
                layout: Layout {
                    collective: plan.collective,
                    rank,
                    ranks: plan.ranks,
                    root: plan.root,
                    count,
                },
                placement,
                dtype,
                op,
                algorithm: plan.algorithm.as_deref(),
            };
            let cell = cell(&row, measured.bytes)?;
            match placement {
                Placement::OutOfPlace => measured.out_of_place = Some(cell),
                Placement::InPlace => measured.in_place = Some(cell),
            }
        }
        Ok(measured)
    }
}

impl Cell {
    /// The numbers of a placement from the times of the slowest rank, us.
    pub fn of(plan: &Plan, bytes: u64, algorithm: Result<&str>, samples: &[f64]) -> Cell {
        let time_us = Summary::of(samples);
        let algbw = sweep::algorithm_bandwidth(bytes, time_us.p50);
        Cell {
            algorithm: algorithm.map_or_else(|_| "unknown".into(), String::from),
            iterations: samples.len() as u32,
            time_us,
            algbw,
            busbw: algbw * sweep::bus_factor(plan.collective, plan.ranks),
            wrong: None,
            profile: Vec::new(),
        }
    }
}

/// The check of one rank's buffers: it writes known data ahead of a run and compares everything
/// after it.
pub struct Check {
    slot: Slot,
    data: Data,
}

impl Check {
    /// Writes the input, and makes the output wrong.
    pub fn prepare(plan: &Plan, arenas: &Arenas, row: &Row) -> Result<Check> {
        let layout = &row.layout;
        let check = Check {
            slot: arenas.slot(row, 0),
            data: Data {
                seed: plan.seed,
                dtype: row.dtype,
                op: layout.collective.is_reducing().then_some(row.op),
                ranks: layout.ranks,
            },
        };
        if let Some(output) = &check.slot.output {
            values::poison(output)?;
        }
        if let Some(input) = &check.slot.input {
            check.data.fill(layout.rank, input)?;
        }
        Ok(check)
    }

    /// Wrong elements of the output, and out of place also of the input, which must not change.
    pub fn count_wrong(&self, row: &Row) -> Result<u64> {
        let mut wrong = 0;
        if let Some(output) = &self.slot.output {
            wrong += self.data.count_wrong(&row.layout.segments(), output)?;
        }
        if let (Some(input), Placement::OutOfPlace) = (&self.slot.input, row.placement) {
            wrong += self.data.count_wrong(&row.layout.input_segments(), input)?;
        }
        Ok(wrong)
    }

    /// Writes zeros, once no peer reads this rank's memory.
    pub fn clear(&self) -> Result<()> {
        for buffer in [&self.slot.input, &self.slot.output].into_iter().flatten() {
            values::clear(buffer)?;
        }
        Ok(())
    }
}

impl Bench<'_> {
    /// Measures one size of one type and operator.
    pub fn measure(&self, row: (u64, DataType, ReduceOp)) -> Result<Measured> {
        let rank = self.communicator.rank();
        Measured::of(self.plan, rank, row, |row, bytes| self.cell(row, bytes))
    }

    fn cell(&self, row: &Row, bytes: u64) -> Result<Cell> {
        let wrong = match self.plan.check {
            true => Some(self.check(row)?),
            false => None,
        };
        let pace = self.find_pace(row)?;
        let mut samples = self.time(row, pace)?;
        // A time is that of the slowest rank, iteration by iteration.
        self.communicator.all_reduce(&mut samples, ReduceOp::Max)?;
        let profile = match self.plan.profile {
            true => self.profile(row, pace)?,
            false => Vec::new(),
        };
        let algorithm = self.arenas.call(row, 0).algorithm();
        Ok(Cell {
            wrong,
            profile,
            ..Cell::of(self.plan, bytes, algorithm, &samples)
        })
    }

    /// Runs once on known data and compares everything.
    fn check(&self, row: &Row) -> Result<u64> {
        let check = Check::prepare(self.plan, &self.arenas, row)?;
        self.once(&self.arenas.call(row, 0))?;
        let mut wrong = [check.count_wrong(row)?];
        self.communicator.all_reduce(&mut wrong, ReduceOp::Sum)?;
        // No peer reads this memory now: every rank has given its part of the sum after its run.
        check.clear()?;
        Ok(wrong[0])
    }

    fn find_pace(&self, row: &Row) -> Result<Pace> {
        let plan = self.plan;
        let room = if plan.rotate {
            self.arenas.room(row)
        } else {
            1
        };
        let call = self.arenas.call(row, 0);
        let mut sum = 0.0;
        for index in 0..PROBES.0 + PROBES.1 {
            let time_us = self.once(&call)?;
            if index >= PROBES.0 {
                sum += time_us;
            }
        }
        let mut mean = [sum / PROBES.1 as f64];
        self.communicator.all_reduce(&mut mean, ReduceOp::Max)?;
        Ok(pace(plan.iterations, plan.warmup, mean[0], room))
    }

    fn time(&self, row: &Row, pace: Pace) -> Result<Vec<f64>> {
        let calls: Vec<Call> = (0..pace.copies)
            .map(|index| self.arenas.call(row, index))
            .collect();
        let mut turn = calls.iter().cycle();
        for call in turn.by_ref().take(pace.untimed as usize) {
            self.once(call)?;
        }
        turn.take(pace.iterations as usize)
            .map(|call| self.once(call))
            .collect()
    }

    /// Where the time of the timed iterations goes, on each rank. They run once more for that,
    /// because a profile takes time itself.
    fn profile(&self, row: &Row, pace: Pace) -> Result<Vec<Profiled>> {
        let calls: Vec<Call> = (0..pace.copies)
            .map(|index| self.arenas.call(row, index))
            .collect();
        let mut own = Spent::default();
        for call in calls.iter().cycle().take(pace.iterations as usize) {
            self.communicator.barrier()?;
            begin_profile(self.communicator)?;
            call.run()?;
            let spent = end_profile(self.communicator)?;
            own.iter_mut().zip(spent).for_each(|(sum, ns)| *sum += ns);
        }
        let mut all = vec![0; own.len() * self.plan.ranks as usize];
        self.communicator.all_gather(&own[..], &mut all[..])?;
        let (ranks, _) = all.as_chunks::<{ Activity::ALL.len() }>();
        let of_rank = |&spent: &Spent| Profiled {
            operations: u64::from(pace.iterations),
            spent,
        };
        Ok(ranks.iter().map(of_rank).collect())
    }

    /// One iteration; its time, us.
    fn once(&self, call: &Call) -> Result<f64> {
        match call {
            Call::Collective(call) => time_us(self.communicator, || call.run()),
            Call::Neighbours(both) => {
                // A run uses the group up.
                let group = both.group();
                time_us(self.communicator, || group.run())
            }
        }
    }
}

/// The time from start to end of what begins after a barrier, us.
pub fn time_us(communicator: &Communicator, run: impl FnOnce() -> Result<()>) -> Result<f64> {
    communicator.barrier()?;
    let started = Instant::now();
    run()?;
    Ok(started.elapsed().as_secs_f64() * 1e6)
}
