//! What a [`Simulation`](crate::Simulation) is told: the network between its ranks, where they
//! live, and what goes wrong; the [`World`] in which they run, which kills ranks and cuts links;
//! and [`Fabric`], which says how long a collective takes on a fabric of thousands of GPUs.
//!
//! There are two ways to run a collective on the same modelled network. A `Simulation` runs real
//! communicators, up to about a thousand ranks. [`Fabric::run`] interprets their schedules without
//! communicators, memory or bytes, for more ranks and in less time; it also has the time of local
//! work, and says what the time goes to. Both give the same times where there is no local work.
//!
//! Read first: `fabric.rs`; then `run.rs`, `tasks.rs` (from schedules to tasks), `machine.rs` (from
//! tasks to times) and `path.rs`.

mod fabric;
mod machine;
mod path;
mod run;
mod tasks;
#[cfg(test)]
mod tests;

pub use crate::transport::sim::{
    Flaw, Hosts, Link, SimOptions, SimTransport, SlowNic, Statistics, Tier, World,
};
pub use fabric::{AddTime, Fabric, LocalWork, SlowRank};
pub use path::PathPart;
pub use run::{FabricCall, FabricTimes, Use};
