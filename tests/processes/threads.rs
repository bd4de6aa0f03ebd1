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
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| name.trim() == "linerate-pool")
        .count()
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
