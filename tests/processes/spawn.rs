//! Ranks as processes: a test starts its own program again, once per rank, with a role in its
//! environment.

// Each of the programs that use it needs a part.
#![allow(dead_code)]

use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Starts `ranks` processes in a role and waits for them. `extra` is set in their environment.
pub fn spawn(role: &str, ranks: u32, extra: &[(&str, &str)]) -> Vec<Output> {
    spawn_each(
        role,
        &vec![("LINERATE_TEST_NOTHING", ""); ranks as usize],
        extra,
    )
}

/// As [`spawn`], with one more variable per rank, in which ranks differ.
pub fn spawn_each(role: &str, own: &[(&str, &str)], extra: &[(&str, &str)]) -> Vec<Output> {
    end(start(role, own, extra))
}

/// Starts them.
pub fn start(role: &str, own: &[(&str, &str)], extra: &[(&str, &str)]) -> Vec<Child> {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let index = JOBS.fetch_add(1, Ordering::Relaxed);
    let job = format!("test-{}-{index}", std::process::id());
    let ranks = own.len().to_string();
    let start = |(rank, own): (usize, &(&str, &str))| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_entry", "--nocapture"])
            .env("LINERATE_TEST_ROLE", role)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", &ranks)
            .env("LINERATE_JOB", &job)
            .envs(extra.iter().copied())
            .env(own.0, own.1)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    own.iter().enumerate().map(start).collect()
}

/// Waits for them.
pub fn end(children: Vec<Child>) -> Vec<Output> {
    let wait = |child: Child| child.wait_with_output().unwrap();
    children.into_iter().map(wait).collect()
}
