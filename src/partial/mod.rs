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
//!    P), or, where one arrival is enough, initiates. The counting rank keeps a set, so that nobody
//!    counts twice, and initiates at the quorum.
//! 2. *Activation.* Signals wake every rank, once each (`activation.rs`). Several initiators do no
//!    harm.
//! 3. *Snapshot.* Each rank that is woken takes what it has for the round, which may be nothing,
//!    and enters the reduction. Rounds begin in order. In a round that waits for all (full, every
//!    limiter-th, the last) a rank enters with its own submit, and there are no arrivals and no
//!    activation.
//! 4. *Reduction.* Ordinary collectives on a communicator of its own: the headers of all ranks are
//!    gathered, so that all know the same sets, and the included snapshots are summed in the order
//!    of the ranks. Who is not included contributes the neutral element.
//! 5. *Result.* Kept until this rank takes it (`results.rs`).
//!
//! # Which round a generation enters
//!
//! Its own, or, if this rank's snapshot of that has been taken, the next one whose snapshot is
//! still to be taken. So it is `max(i, begun)`; what comes for the same round is added up. Each
//! generation enters exactly one round, also when its rank is stopped for as long as it likes:
//! gradients lie in the snapshot to be until that is taken.
//!
//! # Staleness
//!
//! Of a generation: the round that included it less its own. A rank takes no passive snapshot of
//! round t if that would let its next generation, n, miss round n + `staleness_max`: if t - n >=
//! bound. The round then waits for that rank, and says so ([`RoundReport::held`]). So the staleness
//! is at most the bound, and exactly the bound for a rank that is always slowest.
//!
//! # Deaths
//!
//! By default a death is an error on all ranks. With [`PartialOptions::survive`] the others go on
//! (`recovery.rs`):
//!
//! 1. They make a communicator of those that live, and say how far each has come ([`Standing`]).
//!    From that all know the same [`Recovery`]. A rank that dies meanwhile begins this again.
//! 2. A round that ended on any of them has ended: the others *fetch* its result from it. With the
//!    contribution of the dead rank, whole, since a rank that completed the round had all of it.
//! 3. A round that ended on none of them is *repeated*, without the dead rank, from the snapshots
//!    that were taken: nobody has seen a sum of it, and the dead rank's bits are 0. So it may have
//!    fewer active ranks than the quorum, by those that died.
//! 4. Rounds that have begun nowhere are announced anew to the living rank that counts them.
//!    A majority is one of the living from then on, and a quorum of more than live means all of
//!    them. Where initiators are drawn, the first draw that lives counts.
//!
//! A snapshot is kept until its round ends on its own rank: from then on the result stands for it,
//! which is kept until a later header shows that all have it. That of round t + W does (W rounds in
//! flight): a rank enters it when it has completed round t. So W more results are all that has to
//! be kept. After a last round a rank tells all others that it has completed it, and waits for all
//! of them, so that none leaves with a result that another may have to fetch.
//!
//! Ranks keep the numbers of creation, in bits and reports ([`RoundReport::dead`]). A rank that
//! drops its part counts as dead. One that is stopped does not: rounds stall, and the timeout is an
//! error on all. So is anything else that is not a death.
//!
//! # Bounds
//!
//! With W rounds in flight a rank submits generation i only after it has taken the result of round
//! i - W. From that: at most W snapshots wait and W are in flight; no notice names a round 2 W or
//! more past the oldest that is under way; and with ordered delivery at most bound + W results
//! wait, with W more where deaths are survived.
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
