//! How ranks find each other before the first operation.
//!
//! [`place_from_env`] reads what launchers set; [`exchange`] carries one blob of every rank to every rank of
//! a job on this host. Across hosts there is nothing yet.

mod contact;
mod env;
mod local;

pub use contact::{emit_contact, parse_contact};
pub use env::{Place, place_from_env};
pub use local::{Introduction, exchange};
