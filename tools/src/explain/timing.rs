//! Times of several calls in turns, so that what else happens on the machine happens to all of them.

use linerate::{Call, Communicator, ReduceOp, Result};
use std::time::Instant;

/// Iterations of a call in a row, the first of which is not timed: it finds the caches as the call before left them.
const ROW: u32 = 8;
/// Fewer samples have no median worth the name.
const ITERATIONS_MIN: u32 = 5;

/// The median time of each call, us, over at most `iterations` iterations and about `budget_us`. An iteration starts after
/// a barrier; its time is that of the slowest rank.
pub fn medians(
    communicator: &Communicator,
    calls: &[Call],
    iterations: u32,
    budget_us: f64,
) -> Result<Vec<f64>> {
    let mut counts = Vec::with_capacity(calls.len());
    for call in calls {
        // The first run maps memory and builds the schedule.
        once(communicator, call)?;
        let mut time_us = [once(communicator, call)?];
        communicator.all_reduce(&mut time_us, ReduceOp::Max)?;
        let fits = (budget_us / time_us[0].max(0.01)) as u32;
        counts.push(fits.clamp(ITERATIONS_MIN, iterations.max(ITERATIONS_MIN)));
    }
    let mut samples: Vec<Vec<f64>> = vec![Vec::new(); calls.len()];
    while let Some(most) = (0..calls.len())
        .map(|i| counts[i] - samples[i].len() as u32)
        .max()
        .filter(|&most| most > 0)
    {
        for (index, call) in calls.iter().enumerate() {
            let left = counts[index] - samples[index].len() as u32;
            if left == 0 {
                continue;
            }
            once(communicator, call)?;
            for _ in 0..left.min(ROW).min(most) {
                samples[index].push(once(communicator, call)?);
            }
        }
    }
    samples
        .iter_mut()
        .map(|samples| {
            communicator.all_reduce(samples, ReduceOp::Max)?;
            samples.sort_by(f64::total_cmp);
            Ok(samples[samples.len() / 2])
        })
        .collect()
}

fn once(communicator: &Communicator, call: &Call) -> Result<f64> {
    communicator.barrier()?;
    let started = Instant::now();
    communicator.run(call)?;
    Ok(started.elapsed().as_secs_f64() * 1e6)
}
