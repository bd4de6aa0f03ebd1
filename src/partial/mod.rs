//! Partial allreduce as a pure state machine: fast ranks do not wait for slow ones, and nothing is
//! lost or counted twice.
//!
//! No I/O, no clock, no thread: [`crate::comm::PartialAllreduce`] drives a [`Machine`], copies,
//! sends and reduces. Source: Li et al., "Taming Unbalanced Training Workloads in Deep Learning
//! with Partial Collective Operations", PPoPP 2020; where that and its released code lose gradients
//! or need a power of two of ranks, this differs.
//!
//! # Words
//!
//! A *round* is one reduction over all ranks, numbered from 0. A rank's i-th submit is its *own
//! step* i, and the gradient is *generation* i; it belongs to round i. A rank is *active* in a
//! round if its generation had come before its *snapshot* was taken, and *included* if the snapshot
//! holds anything at all.
//!
//! # A round
//!
//! 1. *Arrival.* A rank that submits generation i tells the rank that counts round i (rank i mod
//!    P), or, where one arrival is enough, initiates. The counting rank keeps a set, so that no
//!    rank is counted twice, and initiates at the quorum.
//! 2. *Activation.* Signals wake every rank, once each (`activation.rs`). Several initiators do no
//!    harm.
//! 3. *Snapshot.* Each rank that is woken takes what it has for the round, which may be nothing,
//!    and enters the reduction. Rounds begin in order. In a round that waits for all (full, every
//!    limiter-th, the last) a rank enters with its own submit, and there are no arrivals and no
//!    activation.
//! 4. *Reduction.* Ordinary collectives on a communicator of its own: the headers of all ranks are
//!    gathered, so that all know the same sets, and the included snapshots are summed in the order
//!    of the ranks. A rank that is not included contributes the neutral element.
//! 5. *Result.* It is kept until this rank takes it (`results.rs`).
//!
//! # Which round a generation enters
//!
//! A generation enters its own round or, if this rank's snapshot of that has been taken, the next
//! round whose snapshot is still to be taken: round `max(i, begun)`. Gradients for the same round
//! are added up. Each generation enters exactly one round, however long its rank is stopped,
//! because gradients wait in the next snapshot until that is taken.
//!
//! # Staleness
//!
//! The staleness of a generation is the round that included it less its own round. `staleness_max`
//! bounds it. After a passive snapshot of round t, a rank's next generation n enters round t + 1 at
//! the earliest. So the rank takes none if t - n >= the bound: the round then waits for it, and its
//! report says so ([`RoundReport::held`]). The gradients of a rank that is always slowest have
//! exactly that staleness.
//!
//! # Deaths
//!
//! By default a death is an error on all ranks. With [`PartialOptions::survive`] the others go on
//! (`recovery.rs`):
//!
//! 1. They make a communicator of those that live, and say how far each has come ([`Standing`]).
//!    All derive the same [`Recovery`] from that. If another rank dies meanwhile, this begins
//!    again.
//! 2. A round that ended on any of them has ended: the others *fetch* its result from that rank. It
//!    has the whole contribution of the dead rank, since a rank that completed the round had all of
//!    it.
//! 3. A round that began and ended on none of them is *repeated*, without the dead rank, from the
//!    snapshots that were taken: no rank has seen its sum, and the dead rank's bits are 0. So its
//!    active ranks may fall short of the quorum by as many as have died.
//! 4. Rounds that have begun nowhere are announced anew to the living rank that counts them. From
//!    then on a majority is one of the living ranks, and a quorum larger than their number means
//!    all of them. Where initiators are drawn, the first drawn rank that lives counts.
//!
//! A snapshot is kept until its round ends on its own rank. From then on the result is kept
//! instead, until a later header shows that all ranks have it. With W rounds in flight the header
//! of round t + W shows it, because a rank enters that round only when it has completed round t. So
//! only W more results are kept. After a last round a rank tells all others that it has completed
//! it, and waits for all of them, so that none leaves with a result that another may have to fetch.
//!
//! Ranks keep the numbers that they had at creation, in bits and reports ([`RoundReport::dead`]). A
//! rank that drops its part counts as dead. A stopped rank does not: rounds stall, and the timeout
//! is an error on all ranks. So is any failure that is not a death.
//!
//! # Bounds
//!
//! With W rounds in flight a rank submits generation i only after it has taken the result of round
//! i - W. So at most W snapshots wait and W are in flight; no notice names a round 2 W or more past
//! the oldest that is under way; and with ordered delivery at most bound + W results wait, with W
//! more where deaths are survived.
//!
//! Read first: `machine.rs`, then `activation.rs`.

mod activation;
mod header;
mod machine;
mod notice;
mod options;
mod ranks;
mod recovery;
mod results;

pub use header::{HEADER_BYTES, Header, RoundReport, Waited};
pub use machine::{Action, Machine, initiator};
pub use notice::Notice;
pub use options::{Delivery, Divisor, PartialOptions, Policy};
pub use ranks::RankSet;
pub use recovery::{Recovery, STANDING_WORDS, Standing};
pub use results::{Next, Settled};

#[cfg(test)]
mod history;
#[cfg(test)]
mod machine_tests;
#[cfg(test)]
mod recovery_tests;
#[cfg(test)]
mod sim_tests;
#[cfg(test)]
mod survive_tests;
