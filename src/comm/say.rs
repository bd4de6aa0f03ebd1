//! Lines on standard error, for people.

use std::io::Write;

/// A line for people, whole even when several ranks share the terminal.
pub(super) fn say(text: &str) {
    // Nobody can be told that standard error is closed.
    let _ = std::io::stderr().write_all(format!("linerate: {text}\n").as_bytes());
}
