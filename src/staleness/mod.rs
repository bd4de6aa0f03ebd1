//! Bounded staleness: which worker of a parameter server may go on after a push, as a pure state
//! machine.
//!
//! No I/O and no clock: the driver of a [`Controller`] tells it of pushes and their times, and
//! carries its decisions to the workers. Source: Zhao et al., "Dynamic Stale Synchronous Parallel
//! Distributed Training for Deep Learning" (DSSP), ICDCS 2019, arXiv 1908.11848. Where that leaves
//! something open, the types here say what holds.
//!
//! # Words
//!
//! A worker *pushes* a gradient and waits for its *OK*; then it pulls the weights and computes the
//! next gradient. Its *drift* is its own pushes less the fewest of any living worker, after its
//! push. The *slowest* worker has the fewest pushes; of several, it is the one whose next push is
//! expected last, then the one with the least number. The *fastest* ones have the most.
//!
//! # Decisions
//!
//! A push gets its OK at once where the worker has some of a grant left, or its drift is at most
//! the lower bound. Else, if the worker is among the fastest, the controller looks after how many
//! further pushes it would wait least for the slowest one (`predict.rs`), and grants it that many.
//! A grant of r is exactly r OKs, the one that is given with it included. A worker that gets no OK
//! waits; [`Release`] says until when, and what bounds a grant.
//!
//! No worker waits while it is the slowest, because its drift is 0.

mod controller;
mod ledger;
mod options;
mod predict;
mod virtual_time;

#[cfg(test)]
mod tests;

pub use controller::{Controller, Decision, Reason};
pub use ledger::{Entry, Ledger};
pub use options::{Reading, Release, Staleness};
pub use virtual_time::{Run, run};
