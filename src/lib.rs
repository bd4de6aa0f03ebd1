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
//! [`Fusion`], [`SparseAllreduce`] and [`PartialAllreduce`]. `examples/` has a program for each.
//! What most programs never name lies in modules: [`options`] and [`reports`] have the types of
//! fields, [`sim`] what a [`Simulation`] is told. Who writes a provider reads [`transport`], and
//! who writes an algorithm [`schedule`] and [`collective`].
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
//! |   | `kernel` | reduce, scale, select on views: scalar oracle and SIMD |
//! |   | `pattern` | who talks to whom at step k |
//! | 2 | [`schedule`] | steps, ranges, builder, printout, checker |
//! | 3 | `cost` | what an algorithm costs |
//! |   | [`collective`] | request to schedule; choice of algorithm |
//! |   | `fusion` | which tensors are reduced together: a pure state machine |
//! |   | `partial` | which round of a partial allreduce begins when, with what: a pure state machine |
//! |   | `sparse` | sparse allreduce: what a rank sends, receives and keeps, as pure machines |
//! |   | [`transport`] | the contract and its providers: `shm`, `tcp`, `verbs`, `sim` |
//! | 4 | `engine` | runs schedules on transports |
//! | 5 | `bootstrap` | how ranks find and trust each other: launchers, rendezvous, secret, interfaces |
//! | 6 | `comm` | what users hold: communicators, buffers, operations, simulations |
//! | 7 | [`options`], [`reports`], [`sim`] | names of the layers above that users may need |
//! |   | `unstable` | what tools, benches and tests of internals reach; no part of the interface |
//!
//! # Invariants
//!
//! * A buffer knows who uses which of its elements (`memory/borrows.rs`): slices and copies while
//!   they live, operations until the engine has ended them. What meets another use is an error.
//!   Memory that peers could reach when its operation failed is never a slice again, because a peer
//!   that is only stopped may still write there.
//! * A schedule is right by check, not by luck: [`schedule::check`] runs every builder for every
//!   rank count on contributor sets, and the same schedules run with real numbers in virtual time
//!   under any order of delivery.
//! * The order of a reduction is fixed by ranks, never by arrival: the same inputs, ranks and
//!   algorithm give the same bits on every rank and in every run.
//! * Memory that peers may write is a [`memory::View`], never a slice, and its accesses are
//!   `unsafe` (`kernel/access.rs` says why not in this crate). Its order is made by signals: a flag
//!   line's stamp is stored last, and anyone who sees it sees everything before it.
//! * Flag lines and windows are reused only after every rank has retired the operation that had
//!   them.
//! * Everything is bounded: queues answer "would block", operations beyond the slots wait in order,
//!   receivers hold a fixed number of messages per peer. Half of those places belong to the oldest
//!   operation, so later ones cannot block it.
//! * Registered memory has its pages before the first operation, next to its owner's core and huge
//!   where it can be.
//! * In the steady state an operation reuses rounds, schedules and scratch memory, and makes no
//!   system call unless its wait yields or sleeps.
//! * A blocking call that has come before runs its round without a task while nothing else is under
//!   way (`engine/at_once.rs`); the same round becomes a task's as soon as it has to wait for long.
//! * Anyone who waits spins only where every rank has a core. Elsewhere it gives its core to a peer
//!   beside it and looks longer for those on other cores: flag lines say where their sender ran.
//! * A lone thread that sleeps until several signals have come says how many (`memory/quota.rs`)
//!   and is woken by the last of them: where ranks share cores a wake-up costs more than what it
//!   brings.
//! * Where ranks share cores, a rank that sleeps has lent its part of the next round of a partial
//!   allreduce to the rank that collects (`engine/lent.rs`), and takes it back by an atomic swap
//!   before it changes it: nobody is woken for what it has said before.
//! * A caller that waits for a fused step takes it over from the fusion buffer's thread
//!   (`comm/fusion/seat.rs`), so that no thread has to be woken between the last gradient and the
//!   end of the step.
//! * Ranks tell each other of things that are no operation yet by notices (`engine/notices.rs`):
//!   words in a class of tags of their own, which may come at any time. A partial allreduce begins
//!   its rounds by them; a round itself is ordinary operations on a communicator that nothing else
//!   uses and that is no member of a family, because a thread of its own attends to it.
//! * Every wait has a deadline. The first failure ends the communicator on all ranks with one
//!   cause: anyone who hears of it passes it on, so that a rank that leaves because of it never
//!   looks like its cause. A transport has room for this news whatever else it holds (clause 7), so
//!   that a rank which takes nothing finds it at its next call.
//! * A rank that drops its communicator after its last operation leaves in good order, which is no
//!   failure (`engine/leaving.rs`): transports tell it from a death (clause 21) with the number of
//!   collectives it has done, what it has sent counts, and only what needs more of it fails.
//! * A view of a peer's memory stays valid whatever that peer does: regions that it frees stay
//!   mapped until every round that may have a view of them has ended, and it cannot free its
//!   control memory at all.
//! * Memory is compared with what the machine, its control groups and the process may have before
//!   it is touched. Pages that a stopped peer could still write belong to nobody else, because they
//!   are never reused.
//! * A communicator belongs to the process that made it: what drives it lies in a
//!   `memory::ProcessOwned`, which is the one way to it. A forked child gets an error from every
//!   call and, whatever it drops, says nothing to the parent's peers; those see the parent's death
//!   although the child holds copies of its sockets.
//! * What threads and processes share without a lock (`transport/shm/{ring,recall}.rs`,
//!   `engine/control.rs`, `memory/bell.rs`, `memory/quota.rs`) takes its memory from `memory`
//!   alone, so that `tests/loom.rs` compiles the same files against a model and shows that each
//!   ordering is needed; `comm/driving.rs`, where threads hand the engine over, runs under shuttle
//!   the same way.
//! * Communicators made from one another are a family: each has a transport and an engine of its
//!   own, so that they fail and run independently, and anyone who waits on one drives the others of
//!   its process too.
//! * Memory of the caller is reached by peers only where it lies inside a registered buffer
//!   (`comm/ranges.rs` knows where those are), or by reading it out of this process
//!   (`transport/shm/fetch.rs`), both sides allowing. A rank that fails takes all of it back before
//!   its caller gets it (`transport/shm/recall.rs`): what peers read of it later they do not count,
//!   and hand on to nobody. Each looks after it has read, before the step or message counts as
//!   done. What waits for a connection or a device is sent no more
//!   (`transport/tcp/peer/withdrawal.rs`, clause 18).
//! * Connections between ranks (`transport/tcp`) begin with a proof of the job's secret on both
//!   sides. One that is lost is replaced, and exactly what had not come on it is sent again; a rank
//!   sleeps on one descriptor for all of them.
//! * With TLS everything behind that proof is sealed, control and data, with keys that both sides
//!   derive from it and that nobody else can present (`wire/tls.rs`): trust has one source, the
//!   job's secret. Ranks that differ in it do not start.
//! * Over RDMA (`transport/verbs`) nothing finds its receiver unprepared: whatever takes a receive
//!   there has a credit. When a queue pair fails, both sides end all of theirs before anything is
//!   sent again, and what had come is never written again.
//! * Two ranks of a host share memory if each has mapped the other's, else both use what leads to
//!   other hosts (`transport/router.rs`): RDMA if every rank has said that it can, else connections
//!   (`transport/between.rs`).
//! * A rebuild gives every survivor the new communicator or none: who is told to commit tells all
//!   others first. Where ranks that are left out may live behind a cut, at most one side of it gets
//!   one; that a rank has ended only its host knows.
//! * Nobody is believed before the handshake of `wire`: a rank keeps one message's bytes of an
//!   unauthenticated peer for a bounded time. Where a rank can be reached is what rank 0 sees of
//!   it, not what it says. Until every rank has the contacts of all, each keeps its connection to
//!   rank 0, so that the first failure is everyone's.
//! * Where a partial allreduce survives deaths, a result stands for the snapshots in it as long as
//!   any rank may lack it: what one survivor has completed the others fetch, what none has is
//!   repeated without the dead, and no rank leaves with a result that others lack (`partial`).
//! * A sparse allreduce loses no gradient but what additions of `f32` round away: what of a rank's
//!   picks takes part in no sum returns to its residual, in whole or as the error of its rounding
//!   on the wire (`sparse`). Its peers depend on data, so that it is no schedule but a machine that
//!   asks for messages and small collectives; `comm/sparse` carries them with ordinary operations,
//!   so every transport has it. Nothing changes before all ranks know that the step counts, in any
//!   tensor of the call; bytes of a peer that cannot be right end in an error that names it.
//! * `engine/driver.rs` is the only place where schedule, transport and kernel meet;
//!   `engine/clock.rs` is the only reader of the clock; `transport::open` is the one list of
//!   providers.
//!
//! # Deliberately absent
//!
//! Files in /dev/shm, global state (but for a page that tells a forked child from its parent, and a
//! count of the bytes of regions), background threads that nobody asked for (a [`Fusion`] has one,
//! a [`PartialAllreduce`] too, [`Config::progress`] may make one, and a rank with several cores
//! shares large copies and reductions among [`Config::threads`], which sleep in between), a central
//! daemon, asynchronous runtimes, unregistered memory on the wire (but for messages inside a host,
//! see [`Config::cma`]). Not yet there: device memory, ranks that join later.
//!
//! Of the design these went, because nothing but tests ran them: schedules that the engine arms
//! again and again, steps of the engine that start with the first of several or with the caller's
//! arrival (a partial allreduce follows such schedules by itself, one per round), receives that
//! tell their length, and kernels that convert between element types.

/// The program of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod bootstrap;
pub mod collective;
mod comm;
mod config;
mod cost;
mod engine;
mod error;
mod fusion;
pub mod guide;
mod kernel;
mod limits;
mod memory;
pub mod options;
mod partial;
mod pattern;
mod prng;
pub mod reports;
pub mod schedule;
pub mod sim;
mod sparse;
mod sync;
mod time;
pub mod transport;
mod types;
#[doc(hidden)]
#[allow(missing_docs)]
pub mod unstable;
mod wire;

pub use comm::{
    Buffer, CollectiveBuilder, Communicator, Fusion, Group, Input, Lend, Operation, Output,
    PartialAllreduce, PartialFusion, PartialFusionOptions, Simulation, SparseAllreduce,
    SparseResult,
};
pub use config::{Config, Progress};
pub use error::{Error, Result};
pub use fusion::{FusionOptions, TensorSpec};
pub use memory::{BufferMut, BufferRef, Element};
pub use partial::{PartialOptions, Policy, RankSet};
pub use sparse::SparseOptions;
pub use types::{Collective, DataType, Rank, ReduceOp};
