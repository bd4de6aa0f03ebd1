//! Allreduces of hosts with several ranks each: within a host ranks reach each other's memory, or a
//! copy of it where it is not mapped.

use linerate::{Buffer, Collective, Communicator, Config, DataType, Element, Error, ReduceOp};
use std::sync::atomic::{AtomicU32, Ordering};

/// Runs `body` on every rank of a job of hosts with `each` ranks.
pub fn on_hosts(hosts: u32, each: u32, body: impl Fn(Communicator) + Sync) {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let index = JOBS.fetch_add(1, Ordering::Relaxed);
    let job = format!("hosts-{}-{index}", std::process::id());
    let run = |rank| {
        let config = Config {
            transport: "router:tcp".into(),
            host_id: Some(format!("{job} {}", rank / each)),
            ..Config::default()
        };
        body(Communicator::join(rank, hosts * each, &job, config).unwrap())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..hosts * each)
            .map(|rank| scope.spawn(move || run(rank)))
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
}

fn memory<T: Element + Default>(
    comm: &Communicator,
    is_registered: bool,
    count: usize,
) -> Buffer<T> {
    match is_registered {
        true => comm.alloc(count).unwrap(),
        false => Buffer::from_vec(vec![T::default(); count]),
    }
}

/// Of one rank and round, at this place.
fn value(rank: u32, round: u64, at: usize) -> u64 {
    (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(rank) << 40) ^ round
}

#[test]
fn sums_are_right_whichever_ranks_have_registered_memory_or_are_in_place() {
    // The longest is cut into several rounds, of which the last is shorter.
    for (hosts, each) in [(2, 2), (2, 3), (3, 2), (1, 4)] {
        on_hosts(hosts, each, |comm| {
            let (rank, ranks) = (comm.rank(), comm.ranks());
            for (round, count) in [1, 5, 1000, 700_001]
                .into_iter()
                .cycle()
                .take(16)
                .enumerate()
            {
                // Each rank has memory of its own kind, another one in each round.
                let code = (round as u32 / 4) * 5 + rank * 3;
                let [input, output] =
                    [code & 1, code >> 1 & 1].map(|bit| memory::<u64>(&comm, bit == 1, count));
                let is_in_place = code >> 2 & 1 == 1;
                let round = round as u64;
                for (at, element) in input.as_mut_slice().unwrap().iter_mut().enumerate() {
                    *element = value(rank, round, at);
                }
                let output = if is_in_place { &input } else { &output };
                let sum = comm.collective(Collective::AllReduce, DataType::U64, count as u64);
                let sum = sum.algorithm("hierarchical").input(&input).output(output);
                sum.run().unwrap();
                for (at, element) in output.as_slice().unwrap().iter().enumerate() {
                    let all = (0..ranks).map(|rank| value(rank, round, at));
                    let all = all.fold(0u64, u64::wrapping_add);
                    assert_eq!(*element, all, "rank {rank}, round {round}, element {at}");
                }
            }
            comm.barrier().unwrap();
        });
    }
}

#[test]
fn factors_averages_and_operations_under_way_together_are_right() {
    on_hosts(2, 2, |comm| {
        let rank = comm.rank();
        let count = 1_200_000;
        let buffers: Vec<Buffer<f32>> = (0..4)
            .map(|index| memory(&comm, (rank + index) % 2 == 0, count))
            .collect();
        for round in 0..3 {
            let started: Vec<_> = buffers
                .iter()
                .zip(0u32..)
                .map(|(buffer, index)| {
                    let own = (rank + 4 * index + round) as f32;
                    buffer.as_mut_slice().unwrap().fill(own);
                    let op = match index % 2 {
                        0 => ReduceOp::Avg,
                        _ => ReduceOp::PremulSum(f64::from(rank + 1)),
                    };
                    let sum = comm.collective(Collective::AllReduce, DataType::F32, count as u64);
                    let sum = sum.algorithm("hierarchical").op(op);
                    sum.input(buffer).output(buffer).start().unwrap()
                })
                .collect();
            started.into_iter().for_each(|one| one.wait().unwrap());
            for (buffer, index) in buffers.iter().zip(0u32..) {
                let values = (0..4).map(|rank| (rank + 4 * index + round) as f32);
                let wanted = match index % 2 {
                    0 => values.sum::<f32>() / 4.0,
                    _ => values
                        .zip(1u8..)
                        .map(|(v, factor)| v * f32::from(factor))
                        .sum(),
                };
                let is_wrong = |v: &&f32| **v != wanted;
                assert_eq!(buffer.as_slice().unwrap().iter().find(is_wrong), None);
            }
        }
        comm.barrier().unwrap();
    });
}

#[test]
fn ranks_of_a_host_that_disagree_learn_it_and_so_do_the_others() {
    on_hosts(2, 2, |comm| {
        let count = if comm.rank() == 1 { 900 } else { 1000 };
        let buffer = comm.alloc::<u64>(count).unwrap();
        let sum = comm.collective(Collective::AllReduce, DataType::U64, count as u64);
        let sum = sum.algorithm("hierarchical").input(&buffer).output(&buffer);
        let error = sum.run().unwrap_err();
        assert!(
            matches!(error.first_cause(), Error::Mismatch { .. }),
            "{error}"
        );
    });
}
