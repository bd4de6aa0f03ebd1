//! Jobs of processes in the tests of partial allreduce, and what they print.

#[path = "roles.rs"]
mod roles;

use linerate::{Communicator, Config};
use std::process::Output;
use std::time::Duration;

pub const TRANSPORTS: [(&str, &str); 2] =
    [("LINERATE_TRANSPORT", "shm"), ("LINERATE_TRANSPORT", "tcp")];

/// What a child process does: the role that its environment names, if it does.
pub fn run_as_child() {
    let Ok(role) = std::env::var("LINERATE_TEST_ROLE") else {
        return;
    };
    let mut config = Config::from_env().unwrap();
    if std::env::var("LINERATE_TIMEOUT").is_err() {
        config.timeout = Duration::from_secs(60);
    }
    roles::run(&role, &Communicator::from_env_with(config).unwrap());
}

/// The result of each rank; fails if one did not end well or has none.
pub fn results(outputs: &[Output]) -> Vec<String> {
    let results = linerate_children::results(outputs);
    assert!(
        results.iter().all(|result| !result.is_empty()),
        "{results:?}"
    );
    results
}

pub fn all_equal(results: &[String]) {
    assert!(results.iter().all(|r| *r == results[0]), "{results:#?}");
}
