//! How ranks find each other before the first operation.
//!
//! [`place_from_env`] reads what launchers set; [`exchange`] carries one blob of every rank to every rank of
//! a job on this host; [`MeetingPlace`] is where the survivors of a failed communicator meet. Across hosts there is nothing yet.

mod contact;
mod cores;
mod descriptors;
mod env;
mod local;
mod survivors;

pub use contact::{emit_contact, parse_contact};
pub use cores::Cores;
pub use descriptors::check_descriptors;
pub use env::{Place, place_from_env};
pub use local::{Introduction, decline, exchange};
pub use survivors::{Conversation, Lost, MeetingPlace, Message};

use crate::error::{Error, Result};

/// A number that differs between all processes and calls on this host, for names of sockets.
pub fn nonce() -> Result<u64> {
    let path = "/proc/sys/kernel/random/uuid";
    let text =
        std::fs::read_to_string(path).map_err(|e| Error::os(format!("reading {path}"), e))?;
    let digits: String = text
        .chars()
        .filter(char::is_ascii_hexdigit)
        .take(16)
        .collect();
    u64::from_str_radix(&digits, 16)
        .map_err(|e| Error::Malformed(format!("{path} says '{}': {e}", text.trim())))
}
