//! The activation of a partial collective, as a schedule: the rank that comes first wakes all.
//!
//! A rank signals the ranks 1, 2, 4, ... after it, where rank 0 follows the last. The signal to the
//! rank 2^k after it starts with the *first* of these: the caller's arrival (internal activation),
//! or a signal from the rank 2^j before it with j < k (external activation). So a rank at distance
//! d from an initiator is reached by the binary digits of d, the lowest first, for every d and
//! every number of ranks. Every signal is sent at most once, however many ranks initiate: at most
//! `P * ceil(log2 P)` in all. One initiator causes exactly `P - 1` where P is a power of two (its
//! binomial tree), and fewer than `2^ceil(log2 P)` elsewhere. The round begins on a rank (the step
//! *go*) with its caller's arrival or its first signal.
//!
//! The published implementation sends to `rank ^ 2^j`, which wakes all ranks only where P is a
//! power of two. Source: Li et al., "Taming Unbalanced Training Workloads in Deep Learning with
//! Partial Collective Operations", PPoPP 2020, section 4. [`crate::partial`] runs it: who has
//! something to contribute is not a matter of schedules.

use crate::pattern::bruck::distances;
use crate::schedule::{Action, Builder, Join, Schedule, StepId, Trigger};
use crate::types::Rank;

/// The lane of activation signals: the last of an operation.
const ACTIVATION: u8 = 3;

/// One rank's part of the activation. Steps, in this order: the caller's arrival, the waits by
/// distance, the signals by distance, go.
pub fn build_activation(rank: Rank, ranks: u32) -> Schedule {
    let mut builder = Builder::new("activation", rank, ranks, false);
    let caller = builder.step(Action::Nop, &[], Join::All, Trigger::Caller);
    let mut starts: Vec<StepId> = vec![caller];
    for distance in distances(ranks) {
        let external = Action::WaitCount {
            peers: vec![(rank + ranks - distance) % ranks],
            lane: ACTIVATION,
            count: 1,
        };
        starts.push(builder.step(external, &[], Join::All, Trigger::None));
    }
    for (k, distance) in distances(ranks).enumerate() {
        let pass_on = Action::Signal {
            peers: vec![(rank + distance) % ranks],
            lane: ACTIVATION,
            payload: None,
        };
        builder.step(pass_on, &starts[..=k], Join::Any, Trigger::None);
    }
    builder.step(Action::Nop, &starts, Join::Any, Trigger::None);
    builder.build()
}
