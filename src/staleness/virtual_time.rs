//! [`run`]: workers of a parameter server in virtual time. Computing takes as long as the caller
//! says, and everything else takes no time.

use super::{Controller, Decision, Staleness};
use crate::error::Result;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// What the workers did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// The pushes of each worker.
    pub pushes: Vec<u64>,
    /// How long each worker waited for OKs.
    pub waited: Vec<Duration>,
    /// The greatest drift after a push.
    pub drift_max: u64,
    /// The updates of others between the pull of weights and the push of their gradient, over all
    /// pushes: the sum and the most.
    pub staleness_sum: u64,
    /// See `staleness_sum`.
    pub staleness_max: u64,
}

/// Lets `workers` push until this time. `compute` gives how long a worker takes for its next
/// gradient, which it begins at that time; `decided` sees each decision and when it was made. Of
/// pushes at one time the worker with the least number is the first.
///
/// # Errors
/// [`Staleness::check`].
pub fn run(
    staleness: Staleness,
    workers: u32,
    until: Duration,
    mut compute: impl FnMut(u32, Duration) -> Duration,
    mut decided: impl FnMut(&Decision, Duration),
) -> Result<Run> {
    let mut controller = Controller::new(staleness, workers)?;
    let mut done = Run {
        pushes: vec![0; workers as usize],
        waited: vec![Duration::ZERO; workers as usize],
        ..Run::default()
    };
    let mut coming = BinaryHeap::new();
    for worker in 0..workers {
        controller.attach(worker)?;
        coming.push(Reverse((compute(worker, Duration::ZERO), worker)));
    }
    // How many updates there were when a worker pulled, and when it pushed last.
    let (mut pulled, mut pushed_at) = (vec![0; workers as usize], done.waited.clone());
    let mut updates = 0u64;
    while let Some(Reverse((time, worker))) = coming.pop()
        && time <= until
    {
        let own = worker as usize;
        done.pushes[own] += 1;
        pushed_at[own] = time;
        // The gradients of a round of BSP are of one version, and are one update.
        let is_round = staleness == Staleness::Bsp;
        let stale = if is_round { 0 } else { updates - pulled[own] };
        done.staleness_sum += stale;
        done.staleness_max = done.staleness_max.max(stale);
        updates += 1;
        for decision in controller.push(worker, done.pushes[own], time)? {
            decided(&decision, time);
            let other = decision.worker as usize;
            if decision.worker == worker {
                done.drift_max = done.drift_max.max(decision.drift);
            }
            if decision.is_ok {
                done.waited[other] += time - pushed_at[other];
                pulled[other] = updates;
                let takes = compute(decision.worker, time);
                coming.push(Reverse((time + takes, decision.worker)));
            }
        }
    }
    // Who waits at the end has waited until then.
    for worker in (0..workers).filter(|&worker| controller.is_waiting(worker)) {
        done.waited[worker as usize] += until - pushed_at[worker as usize];
    }
    Ok(done)
}
