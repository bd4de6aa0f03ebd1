//! Ranks that leave: each drops its communicator as soon as it has Ok from its last operation, in
//! any order, while others are still in that operation. None may fail by that. An operation that
//! needs a rank that has left says so.
//!
//! Ranks are threads here, each with a communicator of its own, as if they were processes: what
//! they share is in rings, sockets and mapped memory all the same. `LINERATE_TEST_LEAVING` sets the
//! jobs per algorithm and transport.

#[path = "leaving/jobs.rs"]
mod jobs;
#[path = "leaving/needed.rs"]
mod needed;
#[path = "collectives/oracle.rs"]
#[allow(dead_code)]
mod oracle;
#[path = "../src/prng.rs"]
#[allow(dead_code)]
mod prng;

use crate::prng::{Prng, mix};
use jobs::{Cell, cells, jobs_per_cell, simulated_job, threaded_job};

const RANKS: u32 = 4;

/// Runs jobs of every cell of a transport; what failed, by cell.
fn check(transport: &'static str, run: impl Fn(&Cell, u64) -> Vec<String>) {
    let jobs = jobs_per_cell();
    let mut lines = Vec::new();
    let mut ran = 0;
    for (number, cell) in (0u64..).zip(cells(RANKS, transport)) {
        let mut failed = Vec::new();
        for job in 0..jobs {
            let seed = mix(number << 32 | job);
            failed.extend(run(&cell, seed).into_iter().take(1).map(|e| (seed, e)));
            ran += 1;
        }
        if let Some((seed, first)) = failed.first() {
            let count = failed.len();
            lines.push(format!(
                "{transport} {cell}: {count} of {jobs} jobs failed; seed {seed:#x}: {first}"
            ));
        }
    }
    println!(
        "{transport}: {ran} jobs of {RANKS} ranks, {} cells with failures",
        lines.len()
    );
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}

#[test]
fn ranks_of_shared_memory_end_in_any_order_and_none_fails() {
    check("shm", |cell, seed| {
        threaded_job("shm", RANKS, cell, Prng::new(seed))
    });
}

#[test]
fn ranks_of_tcp_end_in_any_order_and_none_fails() {
    check("tcp", |cell, seed| {
        threaded_job("tcp", RANKS, cell, Prng::new(seed))
    });
}

#[test]
fn ranks_of_the_router_end_in_any_order_and_none_fails() {
    check("router", |cell, seed| {
        threaded_job("router", RANKS, cell, Prng::new(seed))
    });
}

#[test]
fn simulated_ranks_end_in_any_order_and_none_fails() {
    check("sim", |cell, seed| {
        simulated_job(RANKS, cell, Prng::new(seed))
    });
}
