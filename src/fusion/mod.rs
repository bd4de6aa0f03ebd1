//! The fusion buffer as a pure state machine: tensors become ready, flushes come out, the same on
//! every rank.
//!
//! No I/O, no clock, no thread: [`crate::comm::Fusion`] drives a [`Machine`], packs, communicates
//! and unpacks.
//!
//! # How the ranks agree
//!
//! All ranks declare the same tensors once. A rank that has a reason to flush (enough ready bytes
//! or tensors of one type, a ready tensor at its deadline, the end of its backward pass) enters a
//! *round*: a small bitwise-and reduction of the set of its ready tensors and two flags. It ends
//! when all have entered it. From the reduced words, the kept order and the limits, every rank
//! derives the same flushes ([`build_flushes`]). A round travels while the flushes of the one
//! before are still under way, so it is not on the critical path. Only the last round of a
//! step is exposed, 45 us of 128 ms (`linerate replay --trace resnet50`).
//!
//! A tensor is flushed only in a round that it is ready for on all ranks, so the slowest rank
//! decides when a tensor's age begins. A round that flushes nothing (each rank waits for a tensor
//! that another does not have yet) is repeated at the next arrival, or after a quarter of the age
//! limit (at least 100 us).
//!
//! # Order
//!
//! Tensors are packed in the order in which rank 0 announced them in the first step. That order is
//! known at the end of the step; it is then broadcast behind the step's last flushes, and kept for
//! good. In the first step itself the order of the declaration is used: no rank has to wait for an
//! order, and both orders are the same everywhere.
//!
//! # Missing tensors
//!
//! When the backward pass has ended on all ranks and a tensor is not ready on all, every rank
//! learns that from the round itself. The ready sets are then gathered, and the error names the
//! tensors and the ranks.
//!
//! Read first: `plan.rs`, then `machine.rs`. The published rule, for comparison, is `paper.rs`.

mod ahead;
mod bits;
mod machine;
mod options;
mod paper;
mod plan;
mod step;
mod tensors;

pub use ahead::Ahead;
pub use machine::{Action, Machine};
pub use options::{BUFFERS_COUNT_MAX, FusionOptions};
pub use paper::{Arrival, build_paper_plan};
pub use plan::{Flush, FlushList, build_flushes};
pub use tensors::{TENSORS_MAX, TensorSet, TensorSpec};

#[cfg(test)]
mod sim_tests;
