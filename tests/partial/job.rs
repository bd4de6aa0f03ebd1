//! Jobs of processes in the tests of partial allreduce, and what they print.

// Each of the programs that use it needs a part.
#![allow(dead_code)]

#[path = "roles.rs"]
mod roles;

use linerate::{Communicator, Config};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::{Child, Output};
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

pub fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(err)
    )
}

/// What follows `RESULT ` in what each rank printed; fails if one did not end well.
pub fn results(outputs: &[Output]) -> Vec<String> {
    let result = |output: &Output| {
        let text = text(output);
        assert!(output.status.success(), "{text}");
        let found = text.lines().find_map(|line| line.split_once("RESULT "));
        found
            .unwrap_or_else(|| panic!("no result in {text}"))
            .1
            .to_string()
    };
    outputs.iter().map(result).collect()
}

pub fn all_equal(results: &[String]) {
    assert!(results.iter().all(|r| *r == results[0]), "{results:#?}");
}

/// Waits until a rank has printed this word.
pub fn wait_for_word(child: &mut Child, word: &str) -> BufReader<std::process::ChildStdout> {
    let mut lines = BufReader::new(child.stdout.take().expect("it is a pipe"));
    let mut line = String::new();
    while !line.contains(word) {
        line.clear();
        let bytes = lines.read_line(&mut line).unwrap();
        assert!(bytes > 0, "a rank ended without saying {word}");
    }
    lines
}

pub fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

pub const NO_VARIABLE: (&str, &str) = ("LINERATE_TEST_NOTHING", "");
