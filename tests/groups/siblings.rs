//! Communicators of some ranks of another one, made by these ranks alone.

use super::exchange::{Counted, Map};
use super::{on_ranks, on_ranks_with, sum};
use crate::prng::{Prng, mix};
use crate::threads::on_threads;
use linerate::{Buffer, Communicator, Config, Error, Operation, ReduceOp};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// The members of which this rank is one.
fn sibling(world: &Communicator, members: &[u32], name: &str, map: &Map) -> Communicator {
    // One map serves the jobs over both transports.
    let name = format!("{name} over {}", world.transport());
    let made = world.sibling(members, &name, map);
    made.unwrap_or_else(|error| panic!("{name} of {members:?}: {error}"))
}

/// What the members sum, if each gives ten to the power of its rank here.
fn sum_of(members: &[u32]) -> u64 {
    members.iter().map(|&member| 10u64.pow(member)).sum()
}

#[test]
fn members_have_the_order_in_which_they_are_named_and_the_others_take_no_part() {
    let map = Map::default();
    let all: [&[u32]; 6] = [
        &[3, 1],
        &[4],
        &[1, 2, 3, 4],
        &[0, 1, 2, 3, 4],
        &[4, 0],
        &[2],
    ];
    on_ranks(5, |world| {
        let own = 10u64.pow(world.rank());
        let memory = world.alloc::<u64>(1000).unwrap();
        for (index, members) in (0..).zip(all) {
            if !members.contains(&world.rank()) {
                continue;
            }
            let part = sibling(&world, members, &format!("part {index}"), &map);
            assert_eq!(part.ranks() as usize, members.len());
            assert_eq!(members[part.rank() as usize], world.rank());
            // With its own memory, the parent's, and the other way round.
            assert_eq!(sum(&part, &part, own, 3), sum_of(members));
            assert_eq!(sum(&part, &world, own, 100_000), sum_of(members));
            memory.as_mut_slice().unwrap().fill(own);
            part.all_reduce(&memory, ReduceOp::Sum).unwrap();
            assert_eq!(memory.to_vec().unwrap(), vec![sum_of(members); 1000]);
        }
        assert_eq!(sum(&world, &world, own, 10), 11_111);
    });
}

#[test]
fn what_a_member_puts_and_gets_does_not_depend_on_the_number_of_members() {
    let map = Map::default();
    on_ranks(12, |world| {
        let all: Vec<u32> = (0..12).collect();
        for members in [&all[..2], &all[..]] {
            if !members.contains(&world.rank()) {
                continue;
            }
            let exchange = Counted::new(&map);
            let name = format!("{} over {}", members.len(), world.transport());
            let part = world.sibling(members, &name, &exchange).unwrap();
            part.barrier().unwrap();
            let puts = if world.rank() == 0 { 2 } else { 0 };
            assert_eq!(exchange.puts.get(), puts);
        }
        world.barrier().unwrap();
    });
    // One value a group stays.
    assert_eq!(map.values().len(), 4);
}

#[test]
fn wrong_members_are_refused_before_anything_is_exchanged() {
    let map = Map::default();
    on_ranks(3, |world| {
        let rank = world.rank();
        let exchange = Counted::new(&map);
        let next = (rank + 1) % 3;
        for (members, words) in [
            (&[][..], "do not name rank"),
            (&[next], "do not name rank"),
            (&[rank, 3], "rank 3 is none of the 3 ranks"),
            (&[rank, next, rank], "is named twice"),
        ] {
            let error = world.sibling(members, "part", &exchange).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
        let error = world.sibling(&[rank], "", &exchange).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
        // One rank has nobody to meet.
        let alone = world.sibling(&[rank], "part", &exchange).unwrap();
        alone.barrier().unwrap();
        assert_eq!((exchange.puts.get(), exchange.gets.get()), (0, 0));
    });
}

#[test]
fn members_that_name_others_or_another_order_are_told() {
    let map = Map::default();
    on_ranks(3, |world| {
        let members = [[0, 1, 2], [0, 1, 2], [0, 2, 1]][world.rank() as usize];
        let name = format!("part over {}", world.transport());
        // In its order, rank 2 is rank 1 of the new one, and rank 1 too.
        let error = world.sibling(&members, &name, &map).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("other members than rank 1"), "{text}");
        assert!(text.contains(&format!("{members:?}")), "{text}");
    });
}

#[test]
fn a_parent_that_has_failed_and_ranks_that_are_gone_do_not_matter() {
    let map = Map::default();
    on_ranks(4, |world| {
        let rank = world.rank();
        if rank == 0 {
            return; // It leaves, and the others fail by it.
        }
        assert!(world.barrier().is_err());
        world.abort("given up");
        let part = sibling(&world, &[2, 3, 1], "rest", &map);
        assert_eq!(sum(&part, &part, 10u64.pow(rank), 5000), 1110);
        assert!(world.failure().is_some());
        drop(world);
        let pair = (rank != 1).then(|| sibling(&part, &[0, 1], "pair", &map));
        if let Some(pair) = pair {
            assert_eq!(sum(&pair, &part, 1, 10), 2);
        }
        assert_eq!(sum(&part, &part, 1, 10), 3);
    });
}

#[test]
fn a_member_that_never_comes_is_named_and_the_parent_goes_on() {
    let map = Map::default();
    let config = Config {
        timeout: Duration::from_secs(2),
        ..Config::default()
    };
    on_threads(3, &config, |world| {
        if world.rank() != 0 {
            let start = Instant::now();
            let error = world.sibling(&[1, 0, 2], "part", &map).unwrap_err();
            let text = error.to_string();
            // The numbers are those of the new one.
            assert!(text.contains("ranks [1] did not come in time"), "{text}");
            assert!(text.contains("[1, 0, 2]"), "{text}");
            assert!(start.elapsed() < Duration::from_secs(10));
        } else {
            // Longer than the others wait for it there, and less than they wait for it here.
            thread::sleep(Duration::from_millis(2500));
        }
        world.barrier().unwrap();
    });
}

#[test]
fn a_simulated_rank_is_told_that_it_cannot_make_one() {
    let options = linerate::sim::SimOptions::new(2, 1);
    let simulation = linerate::Simulation::new(options, Config::default()).unwrap();
    let comm = &simulation.communicators()[0];
    let error = comm.sibling(&[0], "part", &Map::default()).unwrap_err();
    assert!(error.to_string().contains("simulated rank"), "{error}");
}

/// Without progress threads: only waits move anything.
#[test]
fn a_wait_on_one_sibling_moves_the_other() {
    let map = Map::default();
    on_ranks(2, |world| {
        let [a, b] = ["a", "b"].map(|name| sibling(&world, &[0, 1], name, &map));
        let memory = |comm: &Communicator| comm.alloc::<u64>(300_000).unwrap();
        for _ in 0..20 {
            let buffers = [memory(&a), memory(&b)];
            let start = |comm: &Communicator, buffer: &Buffer<u64>| {
                comm.start_all_reduce(buffer, ReduceOp::Sum).unwrap()
            };
            let of_a = start(&a, &buffers[0]);
            let of_b = start(&b, &buffers[1]);
            let order = match world.rank() {
                0 => [of_a, of_b],
                _ => [of_b, of_a],
            };
            order.into_iter().for_each(|one| one.wait().unwrap());
        }
    });
}

#[test]
fn a_queue_of_the_parent_takes_operations_of_a_sibling() {
    let map = Map::default();
    on_ranks(3, |world| {
        let queue = world.completion_queue().unwrap();
        let members = [[2, 0], [1, 2], [0, 1]].map(|pair| pair.to_vec());
        let own = (0..).zip(&members);
        let own = own.filter(|(_, pair)| pair.contains(&world.rank()));
        let parts: Vec<(u64, Communicator)> = own
            .map(|(user, pair)| (user, sibling(&world, pair, &format!("pair {user}"), &map)))
            .collect();
        let buffer = || world.alloc::<u64>(1000).unwrap();
        for (user, part) in &parts {
            let mut started = part.start_all_reduce(&buffer(), ReduceOp::Sum).unwrap();
            started.notify(&queue, *user).unwrap();
        }
        let mut ended = Vec::new();
        while ended.len() < parts.len() {
            ended.extend(queue.wait(Duration::from_secs(10)).unwrap());
        }
        ended.sort_by_key(|completion| completion.user);
        for (completion, (user, _)) in ended.iter().zip(&parts) {
            assert_eq!((completion.user, &completion.result), (*user, &Ok(())));
        }
    });
}

#[test]
fn a_rank_that_waits_to_make_one_moves_what_it_has_started_before() {
    let map = Map::default();
    on_ranks(2, |world| {
        for turn in 0..6 {
            let buffer = world.alloc::<u64>(500_000).unwrap();
            buffer.write(0, &vec![1; 500_000]).unwrap();
            let started = world.start_all_reduce(&buffer, ReduceOp::Sum).unwrap();
            // The other one comes when the operation has ended. Rank 0 of the new one waits for a
            // connection, and the other rank in the exchange.
            let mut started = Some(started);
            if world.rank() == 0 {
                started.take().unwrap().wait().unwrap();
            }
            let members = [[0, 1], [1, 0]][turn % 2];
            let part = sibling(&world, &members, &format!("turn {turn}"), &map);
            if let Some(started) = started {
                started.wait().unwrap();
            }
            assert_eq!(buffer.as_slice().unwrap()[turn], 2);
            assert_eq!(sum(&part, &part, 1, 10), 2);
        }
    });
}

#[test]
fn several_threads_make_overlapping_ones_at_once() {
    let map = Map::default();
    on_ranks_with(4, true, |world| {
        let groups: [&[u32]; 5] = [&[0, 1], &[2, 3], &[3, 0, 1], &[1, 2, 3, 0], &[0, 2]];
        let own: Vec<_> = (0..)
            .zip(groups)
            .filter(|(_, members)| members.contains(&world.rank()))
            .collect();
        let together = Barrier::new(own.len());
        thread::scope(|scope| {
            for (index, members) in own {
                let (world, map, together) = (&world, &map, &together);
                scope.spawn(move || {
                    together.wait();
                    let part = sibling(world, members, &format!("group {index}"), map);
                    for _ in 0..5 {
                        let own = 10u64.pow(world.rank());
                        assert_eq!(sum(&part, &part, own, 20_000), sum_of(members));
                    }
                    part.finalize().unwrap();
                });
            }
        });
    });
}

/// Random sequences, and how many threads of each rank share them.
const SEQUENCES: u64 = 1000;
const THREADS: u64 = 3;
const RANKS: u32 = 4;

/// A group of ranks, and this rank's part of it.
struct Part {
    /// In the order of its ranks, as ranks of the world.
    members: Vec<u32>,
    comm: Option<Communicator>,
}

/// Some of these ranks, in any order.
fn some_of(members: &[u32], prng: &mut Prng) -> Vec<u32> {
    let mut rest = members.to_vec();
    let count = 1 + prng.below(rest.len() as u64);
    let mut take = || rest.swap_remove(prng.below(rest.len() as u64) as usize);
    (0..count).map(|_| take()).collect()
}

/// What has been started, where it sums, and what comes out.
type UnderWay = Vec<(Operation, Buffer<u64>, u64)>;

/// Starts an operation on each group, in one order on all ranks.
fn start_all(world: &Communicator, parts: &[Part], counts: &[usize], under_way: &mut UnderWay) {
    let value = 10u64.pow(world.rank());
    for (part, &count) in parts.iter().zip(counts) {
        let Some(comm) = &part.comm else {
            continue;
        };
        let buffer = world.alloc::<u64>(count).unwrap();
        buffer.write(0, &vec![value; count]).unwrap();
        let started = comm.start_all_reduce(&buffer, ReduceOp::Sum).unwrap();
        under_way.push((started, buffer, sum_of(&part.members)));
    }
}

/// Waits for `count` operations, in an order of this rank's own.
fn wait_for(count: usize, under_way: &mut UnderWay, own: &mut Prng) {
    for _ in 0..count {
        let next = own.below(under_way.len() as u64) as usize;
        let (started, buffer, wanted) = under_way.swap_remove(next);
        started.wait().unwrap();
        assert_eq!(buffer.as_slice().unwrap().last(), Some(&wanted));
    }
}

/// One sequence. Ranks differ in what they wait for when: some operations go on while the next
/// groups are made and others are dropped.
fn sequence(world: &Communicator, map: &Map, seed: u64) {
    let mut shared = Prng::new(seed);
    let mut own = Prng::new(mix(seed ^ u64::from(world.rank())));
    let everyone: Vec<u32> = (0..RANKS).collect();
    let mut parts: Vec<Part> = Vec::new();
    let mut under_way = UnderWay::new();
    for step in 0..4 {
        let index = shared.below(parts.len() as u64) as usize;
        match shared.below(5) {
            0..=2 => {
                // Of the world, or of another group.
                let parent = parts.get(index).filter(|_| shared.chance(0.3));
                let (from, comm) = match parent {
                    None => (&everyone, Some(world)),
                    Some(part) => (&part.members, part.comm.as_ref()),
                };
                let members = some_of(from, &mut shared);
                let place = |member| from.iter().position(|one| one == member).unwrap() as u32;
                let places: Vec<u32> = members.iter().map(place).collect();
                let comm = comm.filter(|_| members.contains(&world.rank()));
                let name = format!("{seed:x} {step}");
                let comm = comm.map(|comm| sibling(comm, &places, &name, map));
                parts.push(Part { members, comm });
            }
            3 if !parts.is_empty() => drop(parts.swap_remove(index)),
            _ => {
                let counts = [1, 7, 500, 40_000];
                let mut count = || counts[shared.below(4) as usize];
                let counts: Vec<usize> = parts.iter().map(|_| count()).collect();
                start_all(world, &parts, &counts, &mut under_way);
                let some = own.below(under_way.len() as u64 + 1);
                wait_for(some as usize, &mut under_way, &mut own);
            }
        }
    }
    start_all(world, &parts, &vec![9; parts.len()], &mut under_way);
    wait_for(under_way.len(), &mut under_way, &mut own);
}

#[test]
fn random_sequences_of_siblings_never_hang() {
    let base = std::env::var("LINERATE_SEED").map_or(21, |text| text.parse().unwrap());
    let map = Map::default();
    // Half of them run over each transport.
    on_ranks(RANKS, |world| {
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (world, map) = (&world, &map);
                scope.spawn(move || {
                    for index in (thread..SEQUENCES / 2).step_by(THREADS as usize) {
                        let seed = mix(base ^ (index << 8));
                        let run = || sequence(world, map, seed);
                        let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
                        if end.is_err() {
                            let (rank, way) = (world.rank(), world.transport());
                            panic!("rank {rank}, {way}: sequence {index} of LINERATE_SEED={base}");
                        }
                    }
                });
            }
        });
        world.barrier().unwrap();
    });
}
