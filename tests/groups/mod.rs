//! Several communicators per process: split, duplicate, abort, groups of sends and receives, and
//! waits that move them all.
//!
//! Ranks are threads here, each with communicators of its own family, as if they were processes;
//! `tests/rebuild.rs` has real ones.

mod batches;
mod exchange;
mod hosts;
mod joined;
mod lists;
mod queue;
mod random;
mod registered;
mod repeats;
mod servers;
mod siblings;
mod tagged;
mod timeouts;
mod traffic;
mod windows;

use crate::threads::on_threads;
use linerate::{Buffer, Collective, Communicator, Config, DataType, Error, Progress, ReduceOp};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Runs `body` on every rank of a job of its own.
pub fn on_ranks<T: Send>(ranks: u32, body: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    on_ranks_with(ranks, false, body)
}

/// As [`on_ranks`], with or without progress threads: over connections, and then over shared
/// memory, of which the results are.
pub fn on_ranks_with<T: Send>(
    ranks: u32,
    progress_thread: bool,
    body: impl Fn(Communicator) -> T + Sync,
) -> Vec<T> {
    on_ranks_over("tcp", ranks, progress_thread, &body);
    on_ranks_over("shm", ranks, progress_thread, &body)
}

fn on_ranks_over<T: Send>(
    transport: &str,
    ranks: u32,
    progress_thread: bool,
    body: &(impl Fn(Communicator) -> T + Sync),
) -> Vec<T> {
    let config = Config {
        timeout: Duration::from_secs(30),
        progress: match progress_thread {
            true => Progress::Thread,
            false => Progress::Inline,
        },
        transport: transport.into(),
        ..Config::default()
    };
    on_threads(ranks, &config, body)
}

/// Sums a value over the ranks, in `count` elements of registered memory of `home`.
pub fn sum(comm: &Communicator, home: &Communicator, value: u64, count: usize) -> u64 {
    let buffer = home.alloc(count).unwrap();
    buffer.write(0, &vec![value; count]).unwrap();
    comm.all_reduce(&buffer, ReduceOp::Sum).unwrap();
    let all = buffer.as_slice().unwrap();
    assert!(all.iter().all(|&v| v == all[0]));
    all[0]
}

#[test]
fn ranks_of_one_colour_are_ordered_by_key_and_sum_among_themselves() {
    for ranks in 1..=5u32 {
        on_ranks(ranks, |world| {
            let rank = world.rank();
            // Even and odd, in reverse.
            let part = world
                .split(Some(rank % 2), -(rank as i32))
                .unwrap()
                .unwrap();
            let members: Vec<u32> = (0..ranks).rev().filter(|r| r % 2 == rank % 2).collect();
            assert_eq!(part.ranks() as usize, members.len());
            assert_eq!(members[part.rank() as usize], rank);
            let wanted = members.iter().map(|&r| 10u64.pow(r)).sum::<u64>();
            assert_eq!(sum(&part, &part, 10u64.pow(rank), 3), wanted);
            assert_eq!(sum(&part, &part, 10u64.pow(rank), 100_000), wanted);
            // A child of a child: everybody alone.
            let alone = part.split(Some(part.rank() + 7), 0).unwrap().unwrap();
            assert_eq!((alone.rank(), alone.ranks()), (0, 1));
            assert_eq!(sum(&alone, &alone, 5, 9), 5);
            // Equal keys keep the order; the parent still works, and with the child's memory.
            let same = world.split(Some(u32::MAX), 3).unwrap().unwrap();
            assert_eq!((same.rank(), same.ranks()), (rank, ranks));
            assert_eq!(sum(&world, &part, 1, 50_000), u64::from(ranks));
        });
    }
}

#[test]
fn a_rank_without_a_colour_takes_part_and_gets_none() {
    on_ranks(3, |world| {
        let part = world.split((world.rank() != 1).then_some(4), 0).unwrap();
        assert_eq!(part.is_none(), world.rank() == 1);
        if let Some(part) = part {
            assert_eq!((part.rank(), part.ranks()), (world.rank() / 2, 2));
            assert_eq!(sum(&part, &part, 1, 1), 2);
        }
        assert!(world.split(None, 0).unwrap().is_none());
        assert_eq!(sum(&world, &world, 1, 1), 3);
    });
}

#[test]
fn the_parent_may_go_first_and_the_children_live_on() {
    on_ranks(3, |world| {
        let child = world.duplicate().unwrap();
        let buffer = world.alloc::<u64>(100_000).unwrap();
        let grandchild = child.split(Some(0), 0).unwrap().unwrap();
        // Who goes first differs between the ranks.
        match world.rank() {
            0 => drop((world, child)),
            1 => drop((child, world)),
            _ => drop(world),
        }
        for _ in 0..20 {
            buffer.as_mut_slice().unwrap().fill(2);
            grandchild.all_reduce(&buffer, ReduceOp::Sum).unwrap();
            assert_eq!(buffer.to_vec().unwrap(), vec![6; 100_000]);
        }
    });
}

/// Every rank starts an operation on each communicator and waits in an order of its own: unless a
/// wait on one moves the others, all of them wait for each other.
#[test]
fn operations_on_several_communicators_may_be_waited_for_in_any_order() {
    for (ranks, progress_thread) in [(2, false), (3, false), (2, true)] {
        on_ranks_with(ranks, progress_thread, |world| {
            let mut all = vec![world.clone()];
            for _ in 0..3 {
                all.push(world.duplicate().unwrap());
            }
            for turn in 0..40 {
                // Small, and so large that an operation needs both sides several times.
                let count = if turn % 2 == 0 { 5 } else { 300_000 };
                let started: Vec<_> = all
                    .iter()
                    .map(|comm| {
                        let buffer = comm.alloc(count).unwrap();
                        buffer.write(0, &vec![1u64; count]).unwrap();
                        let sum =
                            comm.collective(Collective::AllReduce, DataType::U64, count as u64);
                        let sum = sum.input(&buffer).output(&buffer);
                        let sum = match turn % 4 > 1 {
                            true => sum.algorithm("ring"),
                            false => sum,
                        };
                        (sum.start().unwrap(), buffer)
                    })
                    .collect();
                let mut order: Vec<_> = started.into_iter().enumerate().collect();
                order.rotate_left((world.rank() as usize + turn) % all.len());
                if world.rank() == 1 {
                    order.reverse();
                }
                for (index, (operation, buffer)) in order {
                    operation.wait().unwrap();
                    let wanted = vec![u64::from(ranks); count];
                    assert!(buffer.to_vec().unwrap() == wanted, "{turn} {index}");
                }
            }
        });
    }
}

/// The plain deadlock: both ranks start on A and B by themselves, and only then wait, one first on
/// A, the other first on B, with operations that cannot end without the other rank inside a call.
#[test]
fn a_wait_on_one_communicator_moves_another_of_the_same_process() {
    for first in [0, 1] {
        on_ranks(2, |world| {
            let other = world.duplicate().unwrap();
            let plain = || {
                // Staged through windows in many rounds: each needs both ranks again.
                Buffer::from_vec(vec![1u64; 2 << 20])
            };
            let (a, b) = (plain(), plain());
            let on_a = world.start_all_reduce(&a, ReduceOp::Sum).unwrap();
            if world.rank() == first {
                // This rank waits on B, which the peer enters only when A has ended.
                other.all_reduce(&b, ReduceOp::Sum).unwrap();
                on_a.wait().unwrap();
            } else {
                on_a.wait().unwrap();
                other.all_reduce(&b, ReduceOp::Sum).unwrap();
            }
            assert_eq!(a.as_slice().unwrap()[1 << 20], 2);
            assert_eq!(b.as_slice().unwrap()[1 << 20], 2);
        });
    }
}

#[test]
fn a_sleep_on_one_communicator_hears_the_bell_of_another() {
    on_ranks(2, |world| {
        let other = world.duplicate().unwrap();
        let a = world.alloc::<u64>(1).unwrap();
        let b = Buffer::from_vec(vec![0u64; 3 << 20]);
        let under_way = other.start_all_reduce(&b, ReduceOp::Sum).unwrap();
        if world.rank() == 0 {
            // Long enough that rank 1 sleeps; then rank 1 must serve B from its wait on A.
            std::thread::sleep(Duration::from_millis(100));
            under_way.wait().unwrap();
            world.all_reduce(&a, ReduceOp::Sum).unwrap();
        } else {
            world.all_reduce(&a, ReduceOp::Sum).unwrap();
            under_way.wait().unwrap();
        }
    });
}

#[test]
fn an_abort_ends_waits_on_all_ranks_with_the_reason_and_leaves_relatives_alone() {
    // In shared memory, what others had done before an abort is seen before it; connections do not
    // wait for one another.
    on_ranks_over("shm", 3, false, &|world: Communicator| {
        let child = world.duplicate().unwrap();
        let sibling = world.split(Some(0), 0).unwrap().unwrap();
        std::thread::scope(|scope| {
            if world.rank() == 1 {
                // From another thread than the one that waits.
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(200));
                    child.abort("the loss is not a number");
                    child.abort("not the first cause");
                });
            }
            let start = Instant::now();
            let error = match world.rank() {
                // Rank 0 hears of it outside of any operation.
                0 => {
                    while child.failure().is_none() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    child.barrier().unwrap_err()
                }
                _ => child.barrier().unwrap_err(),
            };
            assert!(start.elapsed() < Duration::from_secs(20));
            let wanted = Error::Aborted {
                by: 1,
                reason: "the loss is not a number".into(),
            };
            assert_eq!(*error.first_cause(), wanted);
            assert_eq!(*child.barrier().unwrap_err().first_cause(), wanted);
            assert_eq!(child.failure(), Some(wanted));
        });
        assert_eq!(world.failure(), None);
        assert_eq!(sum(&world, &child, 1, 1000), 3);
        assert_eq!(sum(&sibling, &world, 1, 1000), 3);
        // The parent's end is not its children's. A barrier of another communicator shows that
        // every rank has left this one's.
        world.barrier().unwrap();
        sibling.barrier().unwrap();
        world.abort("done");
        assert!(world.barrier().is_err());
        assert_eq!(sum(&sibling, &sibling, 1, 10), 3);
    });
}

#[test]
fn an_abort_reaches_a_rank_that_has_no_room_for_anything_else() {
    ["shm", "tcp"].into_iter().for_each(abort_without_room);
}

fn abort_without_room(transport: &str) {
    let (is_aborted, is_known) = (AtomicBool::new(false), AtomicBool::new(false));
    on_ranks_over(transport, 2, false, &|comm: Communicator| {
        if comm.rank() == 0 {
            let buffer = comm.alloc::<u8>(4096).unwrap();
            let start = |bytes| {
                let part = buffer.range(..bytes);
                comm.group().send(&part, 1).start().unwrap()
            };
            // The peer is in no call: thirteen large ones and as many small ones as fit leave room
            // for nothing in its ring (64 KiB) but for news of a failure.
            let large = std::iter::repeat_n(4096, 13);
            let small = std::iter::repeat_n(64, 45);
            let _under_way: Vec<_> = large.chain(small).map(start).collect();
            comm.abort("full");
            is_aborted.store(true, Ordering::SeqCst);
            // In no call, and not gone either.
            while !is_known.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
        } else {
            while !is_aborted.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let looks = (0..5000).map(|_| {
                std::thread::sleep(Duration::from_millis(1));
                comm.failure()
            });
            let failure = looks.flatten().next();
            is_known.store(true, Ordering::SeqCst);
            let reason = "full".to_string();
            assert_eq!(failure, Some(Error::Aborted { by: 0, reason }));
        }
    });
}

#[test]
fn what_is_refused_leaves_its_buffers_as_they_were() {
    on_ranks(2, |world| {
        let (first, second) = (
            world.alloc::<u8>(64).unwrap(),
            world.alloc::<u8>(64).unwrap(),
        );
        let peer = 1 - world.rank();
        let group = world.group().send(&first, peer).recv(&second, peer);
        let error = group.recv(&second.range(63..), peer).start().unwrap_err();
        assert!(matches!(error, Error::InUse { .. }), "{error}");
        first.as_mut_slice().unwrap()[0] = 1;
        second.as_mut_slice().unwrap()[63] = 1;
        world.barrier().unwrap();
        // Whichever of two ranks says so first.
        world.abort("done");
        let error = world.start_all_reduce(&first, ReduceOp::Sum).unwrap_err();
        assert!(matches!(error, Error::CommunicatorFailed(_)), "{error}");
        assert_eq!(first.as_mut_slice().unwrap()[0], 1);
    });
}

/// Memory that failed with its operation is in use for good, but a later call there is about the
/// first cause.
#[test]
fn a_call_on_a_communicator_that_has_failed_gives_the_first_cause_whatever_its_memory_is() {
    on_ranks(2, |world| {
        let other = world.duplicate().unwrap();
        if world.rank() == 0 {
            let buffer = world.alloc::<f32>(1000).unwrap();
            let operation = world.start_all_reduce(&buffer, ReduceOp::Sum).unwrap();
            world.abort("done");
            operation.wait().unwrap_err();
            let sums = [
                world.all_reduce(&buffer, ReduceOp::Sum),
                world.start_all_reduce(&buffer, ReduceOp::Sum).map(drop),
                world.group().send(&buffer, 1).run(),
            ];
            for error in sums.map(Result::unwrap_err) {
                assert!(matches!(error, Error::CommunicatorFailed(_)), "{error}");
            }
            let error = other.all_reduce(&buffer, ReduceOp::Sum).unwrap_err();
            assert!(matches!(error, Error::InUse { .. }), "{error}");
            assert!(buffer.as_slice().is_err());
            assert_eq!(buffer.to_vec().unwrap(), [0.0; 1000]);
        }
        other.barrier().unwrap();
    });
}

#[test]
fn a_simulated_rank_is_told_that_it_cannot_split() {
    let options = linerate::sim::SimOptions::new(2, 1);
    let simulation = linerate::Simulation::new(options, Config::default()).unwrap();
    let comm = &simulation.communicators()[0];
    for result in [
        comm.split(Some(0), 0).map(|_| ()),
        comm.duplicate().map(|_| ()),
        comm.rebuild().map(|_| ()),
    ] {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("simulated rank"), "{text}");
    }
    assert_eq!(comm.failure(), None);
}
