//! The engine: runs schedules on a transport.
//!
//! * A *task* is one call of the user. It becomes one *round* (an execution of a schedule), or
//!   several when memory that is not registered is staged through windows: one per segment.
//! * Collective rounds are numbered in the order of the calls; the number selects flag lines and
//!   windows (`control.rs`) and is part of every tag (`tag.rs`). Sends and receives of pairs are
//!   numbered per pair.
//! * Any number of tasks may be under way; at most [`crate::limits::OPERATION_SLOTS`] collective
//!   rounds are, and the others wait in order.
//! * Where a schedule reaches peers' buffers, the first signals of its round say of each rank
//!   whether its buffers are registered. If some are not, all ranks repeat the call by staging it,
//!   and stage the next calls like it at once (`staged.rs`). Until a rank knows whether a round is
//!   to be repeated, it starts no later collective, so that all ranks number rounds alike.
//! * A schedule becomes a [`Prepared`] once, laid out flat, and a program (`program.rs`) once for
//!   all calls that are alike: what each step does to which elements. One loop (`driver.rs`) runs
//!   the steps that may run; a step that is not yet possible is parked and tried again.
//! * Nothing here blocks. [`Engine::drive`] does what can be done now; a thread that waits calls it
//!   (`comm/driving.rs`).
//!
//! In the steady state an operation reuses rounds, schedules and scratch memory, and makes no
//! system call unless its wait yields or sleeps.
//!
//! `progress.rs` is the order of steps, `driver.rs` runs them, `tasks.rs` takes calls, `rounds.rs`
//! starts and ends rounds, `fault.rs` turns silence and disagreement into errors on every rank, and
//! `news.rs` turns these errors into messages. `meeting.rs` is about sends and receives with tags,
//! `leaving.rs` about ranks that leave in good order, `members.rs` about ending a communicator on
//! purpose and making a new one of its survivors, `notices.rs` about words that belong to no
//! operation, `connecting.rs` about peers that come one by one, and `profiling.rs` about where time
//! goes.

mod arguments;
mod at_once;
mod chunk_ring;
mod connecting;
mod control;
#[cfg(test)]
mod control_tests;
mod core;
mod driver;
mod fault;
mod leaving;
mod links;
mod meeting;
mod members;
mod memory;
mod news;
mod notices;
mod numbers;
mod pool;
mod posts;
mod prepared;
mod profiling;
mod program;
mod progress;
mod reach;
mod remote;
mod round;
mod rounds;
mod signature;
mod staged;
mod state;
mod step_state;
mod streaming;
mod suspect;
mod tag;
mod tagged;
mod task;
mod tasks;
mod thread_pool;
mod under_way;

#[cfg(test)]
mod tests;

pub use arguments::Arguments;
pub use at_once::AtOnce;
pub(crate) use chunk_ring::{RING_CHUNKS, rings_of};
pub use core::Engine;
pub use driver::Host;
pub use links::Contact;
pub use prepared::Prepared;
pub(crate) use program::PIECE_BYTES;
pub use remote::{RemoteCall, RemoteWork};
pub(crate) use suspect::name_ranks;
pub use tagged::{Source, TaggedCall, Transfer};
pub use task::{TaskCall, TaskId};
