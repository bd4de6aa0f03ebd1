//! [`note`]: lines on standard error.

use std::io::Write;

/// Something that anyone who runs the job should know.
pub(super) fn note(text: &str) {
    // Nobody can be told that standard error is closed.
    let _ = std::io::stderr().write_all(format!("linerate: {text}\n").as_bytes());
}
