//! What users hold: [`Communicator`], [`Buffer`], [`Operation`] and [`Group`], and [`Simulation`]
//! for ranks in virtual time.
//!
//! A communicator is made from a job (`join.rs`), from another communicator (`split.rs`,
//! `sibling.rs`), or from the survivors of one that has failed (`rebuild/`). Each of these ways
//! ends in `connect.rs`.
//!
//! How a call runs: a method makes a `Call` (`collectives.rs`, `started.rs`, `builder.rs`,
//! `group.rs`). Then `submit.rs` takes four steps: it checks the call (`check.rs`), chooses a
//! schedule (`plans.rs`), binds the schedule to the call's memory (`bind.rs`), and submits it to
//! the engine. `driving.rs` drives the engine and waits for the end.

mod adopt;
mod batch;
mod bind;
mod buffer;
mod builder;
mod cached;
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
mod findings;
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
mod profiling;
mod progress;
mod queue;
mod ranges;
mod raw;
mod rebuild;
mod repeats;
mod say;
mod server;
mod shape;
mod sibling;
mod simulation;
mod slots;
mod sparse;
mod split;
mod started;
mod submit;
mod tagged;
mod window;

pub use batch::Batch;
pub use buffer::Buffer;
pub use builder::CollectiveBuilder;
pub use communicator::Communicator;
pub use findings::host as findings_host;
pub use fusion::{FlushReport, Fusion, StepReport};
pub use group::Group;
pub use host::last_level_cache_bytes;
pub use lend::{Input, Lend, Output};
pub use operation::Operation;
pub use partial::{PartialAllreduce, PartialFusion, PartialFusionOptions};
pub use plans::{Explanation, Path};
pub use profiling::{begin_profile, end_profile};
pub use queue::CompletionQueue;
pub use server::{
    Answer, Decisions, NonFinitePush, ParameterServer, ServerOptions, ServerReport,
    SimulatedServer, Training,
};
pub use simulation::Simulation;
pub use sparse::{SparseAllreduce, SparseResult, StepTimes};
pub use tagged::Tagged;
pub use window::Window;
