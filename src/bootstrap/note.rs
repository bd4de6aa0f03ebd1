//! [`note`]: lines on standard error.

use std::io::Write;

/// Prints a line for the person who runs the job.
pub fn note(text: &str) {
    // If standard error is closed, there is no other place to say it.
    let _ = std::io::stderr().write_all(format!("linerate: {text}\n").as_bytes());
}
