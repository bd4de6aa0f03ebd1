//! How a command ends: what it says on standard error, and its exit code.

use crate::{output, settings};
use linerate::Error;
use std::process::ExitCode;

/// Exit code of a run or a check that failed.
pub const FAILED: u8 = 1;
/// Exit code of arguments that make no sense.
pub const USAGE: u8 = 2;

/// What a rank ends with: an error of the library, or else, on rank 0 only, the measurements that
/// were not good enough.
pub type Outcome = linerate::Result<Result<(), Vec<String>>>;

/// Ends with an error and this code.
pub fn fail(code: u8, text: &str) -> ExitCode {
    output::print_error(&format!("error: {text}"));
    ExitCode::from(code)
}

/// Ends because the arguments make no sense.
pub fn refuse(text: &str) -> ExitCode {
    fail(
        USAGE,
        &format!("{text}\n\nFor more information, try '--help'."),
    )
}

/// Ends a process that may be a rank; the error then names it.
pub fn end(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => fail_as_rank(FAILED, &reason),
    }
}

/// Ends a rank, or the one process of a simulation.
pub fn conclude(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(failures)) => {
            for failure in failures {
                output::print_error(&format!("error: {failure}"));
            }
            ExitCode::from(FAILED)
        }
        Err(error) => {
            let code = match error.first_cause() {
                Error::InvalidArgument(_) => USAGE,
                _ => FAILED,
            };
            fail_as_rank(code, &error.to_string())
        }
    }
}

fn fail_as_rank(code: u8, reason: &str) -> ExitCode {
    let who = settings::launched_rank().map_or(String::new(), |rank| format!("rank {rank}: "));
    output::print_error(&format!("{who}error: {reason}"));
    ExitCode::from(code)
}
