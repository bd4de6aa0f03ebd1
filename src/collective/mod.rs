//! Collectives: from a request to a schedule. Pure; knows no transport, no memory and no time.
//!
//! Each algorithm is one function `fn(&Request) -> Schedule`, in a file of its family, listed in
//! `table.rs` ([`algorithms`], [`find`]). Layouts are NCCL's, in place too (see [`Request::input`]
//! and [`Request::output`]). What a rank sends and signals does not depend on whether it is in
//! place, so ranks may differ in that; they must agree on the algorithm.
//!
//! | file | memory | for |
//! |---|---|---|
//! | `line.rs` | payload in the signals | a few elements on one host |
//! | `window.rs` | staged through mapped windows | small vectors, unregistered memory on one host |
//! | `direct.rs` | the callers' mapped memory | everything else on one host |
//! | `ring.rs`, `doubling.rs`, `tree.rs`, `chain.rs`, `pairwise.rs`, `bruck.rs` | messages | any transport |
//! | `hierarchical.rs` | messages between hosts, mapped memory inside | several ranks on each of several hosts |
//!
//! Reductions have a fixed order, the same on all ranks. `choose.rs` picks the algorithm by the
//! cost model. `partial.rs` has only the start of a partial collective. Not here: sparse
//! collectives.
//!
//! Read first: `request.rs`, `stage.rs`, then `chain.rs` and `ring.rs`.

mod algorithm;
mod bruck;
mod chain;
pub(crate) mod choose;
mod direct;
mod doubling;
mod hierarchical;
mod line;
mod pairwise;
mod partial;
mod request;
mod ring;
mod slots;
mod stage;
mod table;
mod tree;
mod window;

#[cfg(test)]
mod tests;

pub use crate::cost::formulas::Formula;
pub use crate::cost::{Caches, LinkPrice, Shape, Work};
pub use crate::limits::LINE_PAYLOAD_BYTES;
pub use algorithm::{Algorithm, Needs, Window};
pub use choose::predict;
pub(crate) use choose::{Available, Candidate, Choice, candidates, candidates_by_messages, choose};
pub(crate) use partial::build_activation;
pub use request::Request;
pub(crate) use slots::{
    BARRIER_SLOTS, Lists, TransferShape, all_to_all_v_slots, build_send_recv, build_transfer,
    part_slots, transfer_slots, with_lists,
};
pub use table::{algorithms, find};
