//! Ranks as threads, each with communicators of its own family, as if they were processes.

use linerate::{Communicator, Config};
use std::sync::atomic::{AtomicU32, Ordering};

/// Runs `body` on every rank of a job of its own; the results in the order of ranks.
pub fn on_threads<T: Send>(
    ranks: u32,
    config: &Config,
    body: impl Fn(Communicator) -> T + Sync,
) -> Vec<T> {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let index = JOBS.fetch_add(1, Ordering::Relaxed);
    let job = format!("threads-{}-{index}", std::process::id());
    let run = |rank| body(Communicator::join(rank, ranks, &job, config.clone()).unwrap());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks)
            .map(|rank| scope.spawn(move || run(rank)))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}
