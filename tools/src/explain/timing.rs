//! Times of several calls, measured in turns, so that other programs of the machine disturb all of
//! them alike.

use crate::bench::measure::time_us;
use linerate::{CollectiveBuilder, Communicator, ReduceOp, Result};

/// The fewest timed iterations of a call in a row. One ahead of them is not timed: it finds the
/// caches as another call has left them.
const ROW: u32 = 8;
/// Time of a row of short calls, us. How long ranks that share cores spin, and where the scheduler
/// puts them, then depends on this call and not on another one.
const ROW_US: f64 = 1_500.0;
/// Fewer samples have no median worth the name.
const ITERATIONS_MIN: u32 = 5;

/// The median time of each call, us, over at most `iterations` iterations and about `budget_us`. An
/// iteration starts after a barrier; its time is that of the slowest rank.
pub fn medians(
    communicator: &Communicator,
    calls: &[CollectiveBuilder<'_>],
    iterations: u32,
    budget_us: f64,
) -> Result<Vec<f64>> {
    // For each call: all iterations, and iterations in a row.
    let mut counts = Vec::with_capacity(calls.len());
    for call in calls {
        // The first run maps memory and builds the schedule.
        once(communicator, call)?;
        let mut slowest_us = [once(communicator, call)?];
        communicator.all_reduce(&mut slowest_us, ReduceOp::Max)?;
        let fits = |limit_us: f64| (limit_us / slowest_us[0].max(0.01)) as u32;
        let count = fits(budget_us).clamp(ITERATIONS_MIN, iterations.max(ITERATIONS_MIN));
        counts.push((count, fits(ROW_US).max(ROW)));
    }
    let mut samples: Vec<Vec<f64>> = vec![Vec::new(); calls.len()];
    let is_short = |samples: &[Vec<f64>]| {
        let mut both = samples.iter().zip(&counts);
        both.any(|(samples, (count, _))| samples.len() < *count as usize)
    };
    while is_short(&samples) {
        for ((call, samples), (count, row)) in calls.iter().zip(&mut samples).zip(&counts) {
            let left = count - samples.len() as u32;
            if left == 0 {
                continue;
            }
            once(communicator, call)?;
            for _ in 0..left.min(*row) {
                samples.push(once(communicator, call)?);
            }
        }
    }
    samples
        .iter_mut()
        .map(|samples| {
            communicator.all_reduce(&mut *samples, ReduceOp::Max)?;
            samples.sort_by(f64::total_cmp);
            Ok(samples[samples.len() / 2])
        })
        .collect()
}

fn once(communicator: &Communicator, call: &CollectiveBuilder<'_>) -> Result<f64> {
    time_us(communicator, || call.run())
}
