//! What users hold: [`Communicator`], [`Buffer`], [`Operation`], [`Group`], and [`Simulation`] for
//! ranks in virtual time.
//!
//! Communicators come from a job (`join.rs`), from another one (`split.rs`), or from the survivors
//! of one that failed (`rebuild/`); `connect.rs` is the end of each of these ways.
//!
//! The way of a call: a method makes a `Call` (`collectives.rs`, `started.rs`, `builder.rs`,
//! `group.rs`), and `submit.rs` runs it in four steps: check it (`check.rs`), choose its schedule
//! (`plans.rs`), bind it to its memory (`bind.rs`), submit it to the engine. `driving.rs` waits.

mod adopt;
mod bind;
mod buffer;
mod builder;
mod call;
mod check;
#[cfg(test)]
mod check_tests;
mod collectives;
mod communicator;
mod connect;
mod driving;
mod family;
mod fetching;
#[cfg(test)]
mod fork_tests;
mod fusion;
mod gather;
mod group;
mod host;
mod inside;
mod join;
mod lend;
mod operation;
#[cfg(test)]
mod overflow_tests;
mod partial;
mod plans;
mod prices;
mod progress;
mod queue;
mod ranges;
mod raw;
mod rebuild;
mod repeats;
mod say;
mod shape;
mod simulation;
mod sparse;
mod split;
mod started;
mod submit;

pub use buffer::Buffer;
pub use builder::CollectiveBuilder;
pub use communicator::Communicator;
pub use fusion::{FlushReport, Fusion, StepReport};
pub use group::Group;
pub use host::last_level_cache_bytes;
pub use lend::{Input, Lend, Output};
pub use operation::Operation;
pub use partial::{PartialAllreduce, PartialFusion, PartialFusionOptions};
pub use plans::{Explanation, Path};
pub use prices::host as price_host;
pub use queue::CompletionQueue;
pub use simulation::Simulation;
pub use sparse::{SparseAllreduce, SparseResult, StepTimes};
