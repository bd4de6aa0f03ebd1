//! The Rust side of what `benches/speed.c` measures, with the same loops. Started on each rank by
//! `linerate launch`; rank 0 prints the microseconds of the best round.
//!
//!     speed run | queue

use linerate::{Buffer, Communicator, CompletionQueue, ReduceOp};
use std::time::{Duration, Instant};

const RUNS: u32 = 5000;
const IN_QUEUE: usize = 1000;
const ROUNDS: u32 = 100;

fn run_one(comm: &Communicator, memory: &Buffer<f32>) -> linerate::Result<Duration> {
    let memory = memory.range(..2);
    let begun = Instant::now();
    for _ in 0..RUNS {
        comm.all_reduce(&memory, ReduceOp::Sum)?;
    }
    Ok(begun.elapsed() / RUNS)
}

fn run_into(
    comm: &Communicator,
    queue: &CompletionQueue,
    memory: &Buffer<f32>,
) -> linerate::Result<Duration> {
    comm.barrier()?;
    let begun = Instant::now();
    for number in 0..IN_QUEUE {
        let part = memory.range(16 * number..16 * (number + 1));
        let mut operation = comm.start_all_reduce(&part, ReduceOp::Sum)?;
        operation.notify(queue, number as u64)?;
    }
    let mut wanted = IN_QUEUE;
    while wanted > 0 {
        let ended = queue.wait(Duration::MAX)?;
        wanted -= ended.len();
        ended.into_iter().try_for_each(|one| one.result)?;
    }
    Ok(begun.elapsed())
}

fn main() -> linerate::Result<()> {
    let comm = Communicator::from_env()?;
    let memory = comm.alloc::<f32>(16 * IN_QUEUE)?;
    let queue = comm.completion_queue()?;
    let mode = std::env::args().nth(1).unwrap_or_default();
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let time = match mode.as_str() {
            "run" => run_one(&comm, &memory)?,
            "queue" => run_into(&comm, &queue, &memory)?,
            _ => {
                eprintln!("usage: speed run | queue");
                std::process::exit(2);
            }
        };
        best = best.min(time);
    }
    if comm.rank() == 0 {
        println!("{:.4}", best.as_nanos() as f64 / 1e3);
    }
    comm.finalize()
}
