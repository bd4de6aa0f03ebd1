//! Sparse allreduce as pure machines: what a rank sends, receives and reduces, without I/O, clock
//! or threads.
//!
//! A rank's *accumulator* is its residual plus its gradient. The rank selects about k entries of it
//! ([`LocalSelection`]), its *picks*. An algorithm makes a *result* of the picks of all ranks:
//! indices and values, the same bits on every rank. Picks that take part in no sum return to their
//! rank's residual:
//!
//! ```text
//! sum over steps of the result + sum over ranks of the residuals == sum of all gradients, in every coordinate
//! ```
//!
//! That is exact where sums of `f32` are exact, as those of integers below 2^24. Elsewhere an
//! addition of picks, or of a gradient to a residual, may round something away, which is lost as in
//! a dense allreduce: the picks 1e8, 1 and -1e8 of three ranks are 0 in this order, and 1 in
//! another.
//!
//! Picks whose sum is 0 are in no result. With Ok-Topk and TopkA2, which keep some coordinates of
//! the sum, such picks return whole, as do all picks whose coordinate is not in the result. With
//! TopkA, TopkDSA, Gaussiank and gTopk they have taken part in the sum and do not return.
//!
//! A machine gives the picks and the *returned* entries ([`Finished::returned`]): a rank's residual
//! after the step is its accumulator, zero at its picks, plus the returned entries. Picks that the
//! result does not have come back whole; rounding errors of values that were sent in fewer bits,
//! and partial sums that gTopk drops, come back to the rank where that happened.
//!
//! # Machines
//!
//! A [`Machine`] asks for communication ([`Request`]) and is told what came ([`Arrived`]). It is
//! written as one function that awaits, and each call of [`Machine::next`] moves it on.
//! `comm/sparse` runs it on a communicator, and the tests run it in memory under any order of
//! delivery. Between the start of an exchange and its end it reduces what came before. There are
//! few kinds of requests: groups of messages, and sums and gathers of some words. A machine works
//! on [`Entries`]: real ones ([`Stream`]) or sizes only ([`Sized`]), so that 256 ranks and 133
//! million coordinates fit a test.
//!
//! # Algorithms
//!
//! | algorithm | words per rank (Table 1 of the paper) | file |
//! |---|---|---|
//! | Ok-Topk | up to 6k | `oktopk.rs` |
//! | TopkA, TopkA2, Gaussiank | 2k(P-1) | `gather.rs` |
//! | TopkDSA (SparCML): small, big, recursive doubling | 4k(P-1)/P to (2k+n)(P-1)/P | `dsa.rs` |
//! | gTopk | 4k log P | `gtopk.rs` |
//!
//! Sums are made in rank order from left to right (recursive doubling and gTopk: in the order of
//! their trees), never in the order of arrival. In step j of Ok-Topk a rank sends to rank - j and
//! receives from rank + j: so the parts come in rank order from that of rank 0 on, and most can be
//! added while the next are under way.
//!
//! # Agreement
//!
//! All that ranks must decide alike follows from words that all have: sizes, histograms, counts of
//! values that are not finite. Nothing is changed before all know whether the step counts: if a
//! value is not finite, the machines of all ranks end with [`Finished::not_finite`], and the
//! caller's policy decides.
//!
//! Sources: Li and Hoefler (PPoPP 2022); Renggli and others, "SparCML" (SC 2019); Shi and others,
//! "gTop-k" (ICDCS 2019) and "Understanding Top-k Sparsification" (2019). Read first: [`Machine`],
//! then `oktopk.rs`.

mod balance;
mod choose;
mod coding;
mod counters;
mod dsa;
mod entries;
mod faults;
mod foresight;
mod format;
mod gather;
mod global;
mod gtopk;
mod io;
mod local;
mod machine;
mod matching;
mod message;
mod oktopk;
mod options;
mod real;
mod regions;
mod sized;
mod spare;
mod state;
mod step;
mod stream;
mod sum;
#[cfg(test)]
mod tests;
mod threshold;
mod window;

pub use balance::build_plan;
pub use choose::{Experience, LocalPrices, Prices, StepModel, choose, choose_with, probe_after};
pub use counters::{Counters, PHASES, Phase, Traffic};
pub use entries::Entries;
pub use format::{IndexFormat, ValueFormat};
pub use io::{Action, Arrived, Request};
pub use local::LocalSelection;
pub use machine::Machine;
pub(crate) use matching::{IndexMarks, WINDOW};
pub use message::{Message, Seen};
pub use options::{
    Algorithm, Amount, Balance, DsaVariant, Mode, NonFinite, Regions, SparseOptions, SwitchRule,
};
pub use sized::{Sized, Support};
pub use spare::{MESSAGE_ALIGNMENT, Spare};
pub use state::OkTopkState;
pub use step::{Finished, Step};
pub use stream::Stream;
