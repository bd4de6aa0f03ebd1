//! A fabric in virtual time: the provider that tests and predictions run on.
//!
//! One thread steps up to thousands of ranks through a modelled network: latency, bandwidth, cost
//! per message and congestion of ports ([`Link`]) and of trunks between switches ([`Tier`]), and,
//! drawn from a seed, jitter, reordering, loss with retransmission, and duplicates. Ranks can be
//! killed, and groups partitioned and healed. The ranks see an ordinary
//! [`Transport`](super::Transport): what they do is the production code.
//!
//! It is a reliable transport over an unreliable wire: losses cost time and duplicates are
//! filtered, so every clause of the contract holds whatever the seed. What it deliberately does not
//! model: the time of local
//! computation (see [`World::wake_at`]), packets of a large message (it is lost and sent again as a
//! whole), credits and acknowledgements as traffic, and memory bandwidth.
//!
//! It is stricter than the contract where that finds faults: regions must be exported to a peer
//! before its puts and gets find them, and sources must lie exactly where their key and offset say.
//!
//! Read first: [`World`]; then `wire.rs` (what a message costs), `matching.rs`, `connection.rs`.

mod connection;
mod matching;
mod options;
mod ports;
mod posting;
mod provider;
mod state;
#[cfg(test)]
mod tests;
mod wire;
mod wires;
mod world;

pub use options::{Flaw, Hosts, Link, SimOptions, SlowNic, Statistics, Tier};
pub use provider::SimTransport;
pub(crate) use wires::{Carried, Route, Wires};
pub use world::World;
