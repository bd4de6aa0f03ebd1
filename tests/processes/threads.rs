//! Large operations, which several threads of a rank share.

use super::{results, spawn};
use linerate::{Communicator, ReduceOp};

/// Elements of a rank: 18 MiB of f32 and a bit, so that pieces are shared, the last one is not
/// whole, and, out of place on two ranks, the caches of most machines are written around.
const COUNT: usize = (18 << 18) + 77;

/// An allreduce in place and out of place and an all-gather; prints a hash of all bits, and how
/// many threads of a pool this process had before and has after the communicator has gone.
pub fn large(comm: Communicator) {
    let alloc = |count| comm.alloc::<f32>(count).unwrap();
    let (input, output) = (alloc(COUNT), alloc(COUNT));
    let all = alloc(COUNT * comm.ranks() as usize);
    let values: Vec<f32> = (0..COUNT)
        .map(|index| {
            let scale = [1e-3, 1.0, 1e7][(index + comm.rank() as usize) % 3];
            (index as f32).sin() * scale
        })
        .collect();
    input.write(0, &values).unwrap();
    let op = ReduceOp::Sum;
    comm.all_reduce_into(&input, &output, op).unwrap();
    comm.all_gather(&input, &all).unwrap();
    comm.all_reduce(&input, op).unwrap();
    let mut hash = 0u64;
    for buffer in [&input, &output, &all] {
        for value in buffer.as_slice().unwrap().iter() {
            hash = crate::prng::mix(hash ^ u64::from(value.to_bits()));
        }
    }
    let before = pool_threads_count();
    drop((input, output, all));
    drop(comm);
    println!("RESULT {hash:016x} {before} {}", pool_threads_count());
}

fn pool_threads_count() -> usize {
    threads_count("linerate-pool")
}

/// The threads of this process with a name, of which the kernel keeps 15 characters.
fn threads_count(wanted: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| name.trim() == &wanted[..wanted.len().min(15)])
        .count()
}

/// Twenty communicators of one family, an operation on each: prints how many progress threads
/// there were, and are when all are gone, and how many operations ended without a wait.
pub fn family(comm: Communicator) {
    let others: Vec<_> = (0..19).map(|_| comm.duplicate().unwrap()).collect();
    let queue = comm.completion_queue().unwrap();
    let buffer = || comm.alloc::<u32>(100).unwrap();
    let buffers: Vec<_> = (0..20).map(|_| buffer()).collect();
    let all = others.iter().chain([&comm]);
    for (number, (comm, buffer)) in (0..).zip(all.zip(&buffers)) {
        let started = comm.start_all_reduce(buffer, ReduceOp::Sum);
        started.unwrap().notify(&queue, number).unwrap();
    }
    let start = std::time::Instant::now();
    while queue.running_count() > 0 {
        assert!(start.elapsed() < std::time::Duration::from_secs(30));
        std::thread::yield_now();
    }
    let ended = queue.wait(std::time::Duration::ZERO).unwrap();
    assert!(ended.iter().all(|completion| completion.result.is_ok()));
    let during = threads_count("linerate-progress");
    comm.barrier().unwrap();
    drop((others, queue, buffers, comm));
    let after = threads_count("linerate-progress");
    println!("RESULT {during} {after} {}", ended.len());
}

#[test]
fn one_thread_makes_the_progress_of_a_family_and_ends_with_it() {
    for transport in ["shm", "tcp"] {
        let settings = [
            ("LINERATE_PROGRESS", "thread"),
            ("LINERATE_TRANSPORT", transport),
        ];
        for result in results(spawn("family", 2, &settings)) {
            assert_eq!(result, "1 0 20", "{transport}");
        }
    }
}

#[test]
fn large_operations_give_the_same_bits_on_any_number_of_threads_which_end() {
    let with = |threads| results(spawn("large", 2, &[("LINERATE_THREADS", threads)]));
    let alone = with("1");
    let shared = with("3");
    for (rank, (alone, shared)) in alone.iter().zip(&shared).enumerate() {
        let hash = alone.strip_suffix(" 0 0").expect("no thread was made");
        assert_eq!(*shared, format!("{hash} 2 0"), "rank {rank}");
    }
    assert_eq!(alone[0], alone[1], "all ranks have the same results");
}
