//! linerate moves registered buffers between the ranks of a distributed training job and builds the
//! collectives of data-parallel training on that.
//!
//! ```no_run
//! use linerate::{Communicator, ReduceOp};
//!
//! fn main() -> linerate::Result<()> {
//!     // From `linerate launch`, torchrun, mpirun or srun.
//!     let communicator = Communicator::from_env()?;
//!
//!     // Registered memory: peers read it where it lies. Zeroed, freed when its last user is gone.
//!     let gradients = communicator.alloc::<f32>(1 << 20)?;
//!     gradients.as_mut_slice()?.fill(communicator.rank() as f32);
//!
//!     // It borrows the buffer until it has ended, and goes on while this thread computes.
//!     let operation = communicator.start_all_reduce(&gradients, ReduceOp::Avg)?;
//!     let computed: f32 = (1..10_000_000).map(|i| 1.0 / i as f32).sum();
//!     operation.wait()?;
//!
//!     println!("rank {}: {} {computed}", communicator.rank(), gradients.as_slice()?[0]);
//!     Ok(())
//! }
//! ```
//!
//! Read first: [`Communicator`] with its collectives, [`Buffer`], [`Operation`], [`Config`]; then
//! [`Fusion`], [`SparseAllreduce`], [`PartialAllreduce`] and [`Window`]. `examples/` has programs.
//! Names that most programs never need lie in modules: [`elements`] has element types beyond
//! Rust's, [`options`] and [`reports`] have the types of fields, [`sim`] the settings of a
//! [`Simulation`]. To write a provider, read [`transport`]; to write an algorithm, [`schedule`] and
//! [`collective`].
//!
//! The rest of this text is the architecture, for readers of the source: modules without a link are
//! private, and each says more in its own file.
//!
//! # Data flow
//!
//! ```text
//! call ──► collective ──► Schedule ──► engine ──► transport ──► peers
//!  (buffers) (pure; cached)  (a DAG)   │   ▲          │
//!                                      ▼   └─ events ─┘
//!                                    kernel
//! ```
//!
//! A call names a collective, buffers, a count, a type and an operator. [`collective`] picks an
//! algorithm by the `cost` model and builds one rank's [`schedule`]: a graph of steps over
//! symbolic buffers, without counts, so that it is built once and cached. The `engine` binds it
//! to memory and a count and runs it: it cuts chunks, follows dependencies, posts messages to the
//! [`transport`], stores signals, and calls the `kernel`s for reductions. `comm` is what users
//! hold.
//!
//! # Layers
//!
//! Each imports only from those above it (`tests/tidy.rs` checks it).
//!
//! | layer | modules | what |
//! |---|---|---|
//! | 0 | `error`, `types`, `limits`, `config`, `time`, `prng`, `sync` | words and bounds; no I/O, no clock |
//! | 1 | `memory` | regions, views (raw ranges that peers may write), words that processes share |
//! |   | `wire` | control messages, frames, the handshake of connections, TLS behind it: check, parse, emit |
//! |   | `kernel` | reduce, scale, select, update on views: scalar oracle and SIMD |
//! |   | `pattern` | who talks to whom at step k |
//! |   | `wait` | how a thread waits, what it sleeps on, who drives; the one reader of the clock |
//! | 2 | [`schedule`] | steps, ranges, builder, printout, checker |
//! | 3 | `cost` | what an algorithm costs |
//! |   | [`collective`] | request to schedule; choice of algorithm |
//! |   | `fusion` | which tensors are reduced together: a pure state machine |
//! |   | `optimizer` | how the weights of a parameter server follow gradients |
//! |   | `partial` | which round of a partial allreduce begins when, with what: a pure state machine |
//! |   | `sparse` | sparse allreduce: what a rank sends, receives and keeps, as pure machines |
//! |   | `staleness` | which worker of a parameter server waits for which: a pure state machine |
//! |   | [`transport`] | the contract and its providers: `shm`, `tcp`, `verbs`, `sim` |
//! | 4 | `engine` | runs schedules on transports |
//! | 5 | `bootstrap` | how ranks find and trust each other: launchers, rendezvous, secret, interfaces |
//! | 6 | `comm` | what users hold: communicators, buffers, operations, simulations |
//! | 7 | [`whatif`] | what another network would do for a step of training: a pure prediction |
//! |   | [`elements`], [`options`], [`reports`], [`sim`] | more names that users may need |
//! |   | `unstable` | what tools, benches and tests of internals reach; no part of the interface |
//!
//! # Invariants
//!
//! These ten hold everywhere. Each module states its own in its first lines.
//!
//! 1. Schedules are checked. [`schedule::check`] runs every builder for many numbers of ranks on
//!    sets of contributors, and the same schedules run with real numbers in virtual time under any
//!    order of delivery.
//! 2. The order of a reduction depends on the ranks and never on what arrives first: the same
//!    inputs, ranks and algorithm give the same bits on every rank and in every run.
//! 3. Memory that peers may write is a [`transport::View`], never a slice, and its accesses are
//!    `unsafe` (`kernel/access.rs` says why they are safe in this crate). Signals order them: the
//!    stamp of a flag line is stored last, and a rank that sees it sees everything before it.
//! 4. A buffer knows who uses which of its elements (`memory/borrows.rs`). A use that meets another
//!    is an error.
//! 5. Everything is bounded. Queues answer "would block", operations beyond the slots wait in
//!    order, and receivers hold a fixed number of messages per peer. Half of those places belong to
//!    the oldest operation, so that later ones cannot block it.
//! 6. Every wait has a deadline, and a thread that waits spins only where every rank has a core
//!    (`wait/patience.rs`).
//! 7. The first failure ends the communicator on all ranks with one cause. A rank that hears of it
//!    passes it on, and a transport has room for this news whatever else it holds (clause 7).
//! 8. A communicator belongs to the process that made it (`memory::ProcessOwned`). A forked child
//!    gets an error from every call and says nothing to the parent's peers.
//! 9. Trust begins with the job's secret. A rank believes nobody before the handshake of `wire`,
//!    and keeps a bounded number of bytes of an unauthenticated peer for a bounded time.
//! 10. Some things exist once: `engine/driver.rs` is where schedule, transport and kernel meet,
//!     `wait/clock.rs` reads the clock, `transport::open` lists the providers.
//!
//! # Deliberately absent
//!
//! * Files in /dev/shm, a central daemon, asynchronous runtimes.
//! * Global state, but for a page that tells a forked child from its parent, and a count of the
//!   bytes of regions.
//! * Background threads that nobody asked for. A [`Fusion`] and a [`PartialAllreduce`] have one
//!   each, [`Config::progress`] may make one, and a rank with several cores shares large copies and
//!   reductions among [`Config::threads`], which sleep in between.
//! * Unregistered memory on the wire, but for messages inside a host (see [`Config::cma`]).
//! * Not supported yet: device memory, ranks that join later.

/// The program of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod bootstrap;
pub mod collective;
mod comm;
mod config;
mod cost;
pub mod elements;
mod engine;
mod error;
mod fusion;
pub mod guide;
mod kernel;
mod limits;
mod memory;
mod optimizer;
pub mod options;
mod partial;
mod pattern;
mod prng;
pub mod reports;
pub mod schedule;
pub mod sim;
mod sparse;
mod staleness;
mod sync;
mod time;
pub mod transport;
mod types;
#[doc(hidden)]
#[allow(missing_docs)]
pub mod unstable;
mod wait;
pub mod whatif;
mod wire;

pub use comm::{
    Batch, Buffer, CollectiveBuilder, Communicator, CompletionQueue, Fusion, Group, Input, Lend,
    Operation, Output, ParameterServer, PartialAllreduce, PartialFusion, Simulation,
    SparseAllreduce, SparseResult, Tagged, Window,
};
pub use config::{Config, Progress};
pub use error::{Error, Result};
pub use fusion::{FusionOptions, TensorSpec};
pub use memory::{BufferMut, BufferRef, Element};
pub use partial::{PartialOptions, Policy};
pub use sparse::SparseOptions;
pub use types::{Collective, DataType, Rank, ReduceOp};
