//! Lines on standard error, for people.

use std::io::Write;

/// Writes a line in one piece, so that it stays whole when several ranks share a terminal.
pub(super) fn say(text: &str) {
    // Ignores errors: there is nowhere else to report them.
    let _ = std::io::stderr().write_all(format!("linerate: {text}\n").as_bytes());
}
