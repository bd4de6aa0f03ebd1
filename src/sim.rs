//! What a [`Simulation`](crate::Simulation) is told: the network between its ranks, where they
//! live, and what goes wrong; and the [`World`] in which they run, which kills ranks and cuts
//! links.

pub use crate::transport::sim::{Flaw, Hosts, Link, SimOptions, SimTransport, Statistics, World};
