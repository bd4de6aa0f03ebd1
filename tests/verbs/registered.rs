//! Memory of the caller that a device knows: registered once for all calls.
#![allow(unsafe_code)]

use super::pair::has_device;
use linerate::{Buffer, Communicator, Config, ReduceOp};
use std::time::Duration;

const COUNT: usize = 200_000;

/// A sum of the first elements, and one half of them sent while the other one is received.
fn two_calls(comm: &Communicator, part: &Buffer<u64>, round: u64) {
    part.as_mut_slice().unwrap().fill(round);
    comm.all_reduce(part, ReduceOp::Sum).unwrap();
    assert!(part.as_slice().unwrap().iter().all(|&sum| sum == 2 * round));
    let (half, other) = (part.len() / 2, 1 - comm.rank());
    let (sent, received) = (part.range(..half), part.range(half..));
    let both = comm.group().send(&sent, other).recv(&received, other);
    both.run().unwrap();
}

/// A thousand calls of one rank; what its transport has registered for them.
fn calls(comm: &Communicator) -> [u64; 2] {
    let mut own = vec![0u64; COUNT];
    let address = own.as_mut_ptr().cast::<u8>();
    // What the engine needs for itself is there after calls like those that follow.
    let warm = comm.alloc::<u64>(COUNT).unwrap();
    for count in [1000, COUNT] {
        two_calls(comm, &warm.range(..count), 1);
    }
    let counts = || {
        let counts = comm.transport_counts();
        ["regions registered", "receives registered for themselves"].map(|name| {
            let found = counts.iter().find(|count| count.0 == name);
            found.expect("a count of this name").1
        })
    };
    let before = counts();
    // SAFETY: the vector lives until the memory is deregistered, and is not named before.
    let all = unsafe { comm.register(address, 8 * COUNT) }.unwrap();
    let all = all.cast::<u64>().unwrap();
    for round in 0..500 {
        let count = if round % 50 == 0 { COUNT } else { 1000 };
        let part = comm.buffer_at(address, 8 * count).unwrap().unwrap();
        two_calls(comm, &part.cast().unwrap(), round);
    }
    let after = counts();
    comm.deregister(address).unwrap();
    assert!(comm.all_reduce(&all, ReduceOp::Sum).is_err());
    comm.barrier().unwrap();
    [after[0] - before[0], after[1] - before[1]]
}

#[test]
fn a_thousand_calls_on_memory_of_the_caller_register_it_once() {
    if !has_device("memory of the caller") {
        return;
    }
    let config = Config {
        transport: "verbs".into(),
        timeout: Duration::from_secs(60),
        ..Config::default()
    };
    let job = format!("registered-{}", std::process::id());
    let run = &|rank| calls(&Communicator::join(rank, 2, &job, config.clone()).unwrap());
    let counts = std::thread::scope(|scope| {
        let ranks = [0, 1].map(|rank| scope.spawn(move || run(rank)));
        ranks.map(|rank| rank.join().unwrap())
    });
    assert_eq!(counts, [[1, 0]; 2]);
}
