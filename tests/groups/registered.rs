//! Memory of the caller, registered once: used where it lies, found by its address on every
//! communicator of the family, and its owner's again when it is deregistered.
#![allow(unsafe_code)]

use super::exchange::Map;
use super::{on_ranks, on_ranks_over};
use crate::threads::on_threads;
use linerate::options::CrossMemory;
use linerate::sim::SimOptions;
use linerate::{
    Buffer, Collective, Communicator, Config, DataType, Error, Operation, ReduceOp, Simulation,
};
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::{AsFd, OwnedFd};

/// Several chunks, and no whole number of pages.
const COUNT: usize = 100_001;
const BYTES: usize = 8 * COUNT;
/// Where the memory begins in its memfd.
const OFFSET: u64 = 8192;

/// Memory as a framework has it: the library neither maps nor frees it.
struct Own {
    mapping: MmapRaw,
    memfd: Option<OwnedFd>,
}

impl Own {
    /// Memory of this process alone.
    fn private() -> Own {
        let mapping = MmapOptions::new().len(BYTES).map_anon().unwrap();
        Own {
            mapping: mapping.into(),
            memfd: None,
        }
    }

    /// Memory in a memfd.
    fn shared() -> Own {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memfd = memfd_create("a framework", flags).unwrap();
        ftruncate(&memfd, OFFSET + BYTES as u64).unwrap();
        let place = MmapOptions::new().offset(OFFSET).len(BYTES).to_owned();
        Own {
            mapping: place.map_raw(&memfd).unwrap(),
            memfd: Some(memfd),
        }
    }

    /// Shared memory over shared memory, so that it is registered with every transport.
    fn for_transport(comm: &Communicator) -> Own {
        match comm.transport() {
            "shm" => Own::shared(),
            _ => Own::private(),
        }
    }

    fn at(&self, index: usize) -> *mut u8 {
        self.mapping.as_mut_ptr().wrapping_add(8 * index)
    }

    fn register(&self, comm: &Communicator) -> linerate::Result<Buffer<u64>> {
        let (address, bytes) = (self.at(0), BYTES);
        let registered = match &self.memfd {
            // SAFETY: the tests keep the mapping for longer than the registration, and refer to it
            // by its buffers alone.
            None => unsafe { comm.register(address, bytes) },
            // SAFETY: as above; this is where it is mapped from.
            Some(memfd) => unsafe { comm.register_memfd(address, bytes, memfd.as_fd(), OFFSET) },
        };
        registered?.cast()
    }
}

/// How many regions a rank has registered with its transport so far.
fn registered_count(comm: &Communicator) -> u64 {
    let counts = comm.transport_counts();
    let found = counts
        .iter()
        .find(|(name, _)| *name == "regions registered");
    found.expect("every transport counts them").1
}

fn fill(buffer: &Buffer<u64>, value: u64) {
    buffer.as_mut_slice().unwrap().fill(value);
}

fn check(buffer: &Buffer<u64>, value: u64) {
    let elements = buffer.as_slice().unwrap();
    assert!(elements.iter().all(|&element| element == value));
}

fn in_use<T>(result: linerate::Result<T>) -> String {
    let error = result.err().expect("it is refused");
    assert!(matches!(error, Error::InUse { .. }), "{error:?}");
    error.to_string()
}

fn invalid<T>(result: linerate::Result<T>) -> String {
    let error = result.err().expect("it is refused");
    assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
    error.to_string()
}

/// Reduces once on memory of each of these lengths, so that what the engine needs for itself is
/// there.
fn warm_up(comm: &Communicator, counts: &[usize]) {
    for &count in counts {
        let buffer = comm.alloc::<u64>(count).unwrap();
        comm.all_reduce(&buffer, ReduceOp::Sum).unwrap();
    }
}

#[test]
fn a_thousand_calls_on_memory_of_the_caller_register_it_once() {
    on_ranks(2, |world| {
        let own = Own::for_transport(&world);
        warm_up(&world, &[1000, COUNT - 100]);
        let before = registered_count(&world);
        let all = own.register(&world).unwrap();
        assert!(all.is_registered());
        fill(&all, 1);
        for round in 0..1000 {
            let count = if round % 50 == 0 { COUNT - 100 } else { 1000 };
            let part = world.buffer_at(own.at(round % 100), 8 * count).unwrap();
            let part = part.unwrap().cast::<u64>().unwrap();
            world.all_reduce(&part, ReduceOp::Max).unwrap();
        }
        check(&all, 1);
        assert_eq!(registered_count(&world), before + 1);
        world.deregister(own.at(0)).unwrap();
    });
}

#[test]
fn simulated_ranks_register_it_once() {
    let mut simulation = Simulation::new(SimOptions::new(2, 1), Config::default()).unwrap();
    let comms = simulation.communicators().to_vec();
    let mut reduce = |buffers: &[Buffer<u64>]| {
        let start = |(comm, buffer): (&Communicator, &Buffer<u64>)| {
            comm.start_all_reduce(buffer, ReduceOp::Sum).unwrap()
        };
        let mut started: Vec<Operation> = comms.iter().zip(buffers).map(start).collect();
        let ended = simulation.run(|_| started.iter_mut().all(|o| o.test().unwrap()));
        ended.unwrap();
    };
    let warm: Vec<_> = comms.iter().map(|c| c.alloc(COUNT).unwrap()).collect();
    reduce(&warm);
    let counts = || [0, 1].map(|rank: usize| registered_count(&comms[rank]));
    let before = counts();
    let owns = [Own::private(), Own::private()];
    let registered = owns
        .iter()
        .zip(&comms)
        .map(|(own, comm)| own.register(comm));
    let buffers: Vec<Buffer<u64>> = registered.map(Result::unwrap).collect();
    buffers.iter().for_each(|buffer| fill(buffer, 1));
    (0..10).for_each(|_| reduce(&buffers));
    buffers.iter().for_each(|buffer| check(buffer, 1 << 10));
    assert_eq!(counts(), before.map(|count| count + 1));
    for ((own, comm), buffer) in owns.iter().zip(&comms).zip(&buffers) {
        comm.deregister(own.at(0)).unwrap();
        let refused = comm.start_all_reduce(buffer, ReduceOp::Sum);
        assert!(in_use(refused).contains("deregistered"));
    }
}

/// Registering is no collective: here one rank has memory that peers map, another one memory that
/// is private, and the third one has registered none.
#[test]
fn ranks_register_what_they_like() {
    on_ranks(3, |world| {
        let (shared, private) = (Own::shared(), Own::private());
        let buffer = match world.rank() {
            0 => shared.register(&world).unwrap(),
            1 => private.register(&world).unwrap(),
            _ => Buffer::from_vec(vec![0; COUNT]),
        };
        let is_mapped = world.transport() == "shm";
        let is_registered = [true, !is_mapped, false][world.rank() as usize];
        assert_eq!(buffer.is_registered(), is_registered);
        for round in 0..5u64 {
            fill(&buffer, round + u64::from(world.rank()));
            world.all_reduce(&buffer, ReduceOp::Sum).unwrap();
            check(&buffer, 3 * round + 3);
            world.broadcast(&buffer, round as u32 % 3).unwrap();
            let (next, previous) = ((world.rank() + 1) % 3, (world.rank() + 2) % 3);
            let other = Buffer::from_vec(vec![0; COUNT]);
            let ring = world.group().send(&buffer, next).recv(&other, previous);
            ring.run().unwrap();
            check(&other, 3 * round + 3);
        }
        world.barrier().unwrap();
    });
}

/// Ranks of one host in a job of several: what they do not map they read where it lies, or copy.
#[test]
fn memory_that_no_peer_maps_is_registered_for_the_way_to_other_hosts() {
    for cma in [CrossMemory::On, CrossMemory::Off] {
        let config = Config {
            transport: "router:tcp".into(),
            cma,
            ..Config::default()
        };
        on_threads(2, &config, |world| {
            for own in [Own::private(), Own::shared()] {
                let buffer = own.register(&world).unwrap();
                assert!(buffer.is_registered());
                for round in 0..5 {
                    fill(&buffer, round);
                    world.all_reduce(&buffer, ReduceOp::Sum).unwrap();
                    check(&buffer, 2 * round);
                }
                world.deregister(own.at(0)).unwrap();
            }
            world.barrier().unwrap();
        });
    }
}

#[test]
fn peers_reach_what_lies_in_a_memfd() {
    on_ranks_over("shm", 3, false, &|world: Communicator| {
        let own = Own::shared();
        let buffer = own.register(&world).unwrap();
        for round in 0..3 {
            fill(&buffer, round + u64::from(world.rank()));
            // `direct` works on registered memory only, and says so where it finds other.
            let sum = world.collective(Collective::AllReduce, DataType::U64, COUNT as u64);
            let sum = sum.algorithm("direct").input(&buffer).output(&buffer);
            sum.run().unwrap();
            check(&buffer, 3 * round + 3);
        }
        drop(buffer);
        world.deregister(own.at(0)).unwrap();
        world.barrier().unwrap();
    });
}

#[test]
fn the_family_sees_it_and_each_member_registers_it_once() {
    let map = Map::default();
    on_ranks(2, |world| {
        let own = Own::for_transport(&world);
        let copy = world.duplicate().unwrap();
        let name = format!("registered over {}", world.transport());
        let sibling = world.sibling(&[1, 0], &name, &map).unwrap();
        // A communicator that is gone leaves its registrations to the others.
        let first = world.duplicate().unwrap();
        let buffer = own.register(&first).unwrap();
        first.barrier().unwrap();
        drop(first);
        for comm in [&world, &copy, &sibling] {
            warm_up(comm, &[COUNT]);
            let before = registered_count(comm);
            for round in 0..50 {
                fill(&buffer, round);
                let found = comm.buffer_at(own.at(0), BYTES).unwrap().unwrap();
                let found = found.cast::<u64>().unwrap();
                comm.all_reduce(&found, ReduceOp::Sum).unwrap();
                check(&buffer, 2 * round);
            }
            assert_eq!(registered_count(comm), before + 1, "{}", comm.transport());
        }
        // By any of them, in all of them.
        copy.deregister(own.at(0)).unwrap();
        for comm in [&world, &copy, &sibling] {
            assert!(comm.buffer_at(own.at(0), 1).unwrap().is_none());
            in_use(comm.all_reduce(&buffer, ReduceOp::Sum));
            invalid(comm.deregister(own.at(0)));
        }
        world.barrier().unwrap();
    });
}

#[test]
fn wrong_memory_is_refused() {
    on_ranks(1, |world| {
        let own = Own::private();
        let register = |address: *mut u8, bytes| {
            // SAFETY: it is refused, or lies in what `own` keeps.
            unsafe { world.register(address, bytes) }
        };
        let null = std::ptr::null_mut();
        for (address, bytes) in [
            (null, 8),
            (null, 0),
            (own.at(0), 0),
            (own.at(0), usize::MAX),
        ] {
            let text = invalid(register(address, bytes));
            let wanted = format!("registering {bytes} bytes at {address:p}");
            assert!(text.contains(&wanted), "{text}");
        }
        // What meets the middle, in every way; what only touches it does not.
        drop(register(own.at(100), 800).unwrap());
        for (from, to) in [(100, 200), (150, 160), (99, 101), (199, 201), (0, 300)] {
            let text = invalid(register(own.at(from), 8 * (to - from)));
            assert!(text.contains("800 bytes"), "{text}");
        }
        drop(register(own.at(0), 800).unwrap());
        drop(register(own.at(200), 800).unwrap());
        let allocated = world.alloc::<u64>(8).unwrap();
        let address = allocated.as_mut_slice().unwrap().as_mut_ptr().cast::<u8>();
        assert!(invalid(register(address, 8)).contains("buffer_at"));
        let found = |address, bytes| world.buffer_at(address, bytes).unwrap();
        assert_eq!(found(own.at(150), 400).map(|part| part.len()), Some(400));
        assert!(found(own.at(150), 401).is_none() && found(null, 0).is_none());
        assert_eq!(found(address, 64).map(|all| all.len()), Some(64));
        for (address, words) in [
            (own.at(101), "800 bytes from"),
            (address, "was allocated"),
            (own.at(400), "is not registered"),
            (null, "is not registered"),
        ] {
            let text = invalid(world.deregister(address));
            assert!(text.contains(words), "{text}");
        }
        for start in [0, 100, 200] {
            world.deregister(own.at(start)).unwrap();
            let text = invalid(world.deregister(own.at(start)));
            assert!(text.contains("not any more"), "{text}");
        }
        // A memfd that is too short, and a descriptor of something else.
        let memfd = Own::shared().memfd.unwrap();
        let null_device = std::fs::File::open("/dev/null").unwrap();
        for (fd, offset) in [
            (memfd.as_fd(), OFFSET + 4096),
            (memfd.as_fd(), 1),
            (null_device.as_fd(), 0),
        ] {
            // SAFETY: it is refused.
            let refused = unsafe { world.register_memfd(own.at(0), BYTES, fd, offset) };
            assert!(invalid(refused).contains("MFD_ALLOW_SEALING"));
        }
    });
}

#[test]
fn memory_in_use_stays_registered_and_what_was_deregistered_is_refused() {
    on_ranks(2, |world| {
        let own = Own::for_transport(&world);
        let buffer = own.register(&world).unwrap();
        fill(&buffer, 1);
        if world.rank() == 0 {
            let started = world.start_all_reduce(&buffer, ReduceOp::Sum).unwrap();
            let text = in_use(world.deregister(own.at(0)));
            assert!(text.contains("allreduce, which has not ended"), "{text}");
            world.send(&Buffer::from_vec(vec![0u8]), 1).unwrap();
            started.wait().unwrap();
        } else {
            let slice = buffer.range(7..8);
            let slice = slice.as_slice().unwrap();
            assert!(in_use(world.deregister(own.at(0))).contains("slice"));
            drop(slice);
            // Until rank 0 has seen that its operation has not ended.
            world.recv(&Buffer::from_vec(vec![0u8]), 0).unwrap();
            world.all_reduce(&buffer, ReduceOp::Sum).unwrap();
        }
        check(&buffer, 2);
        world.deregister(own.at(0)).unwrap();
        for text in [
            in_use(buffer.as_slice()),
            in_use(buffer.as_mut_slice()),
            in_use(buffer.to_vec()),
            in_use(buffer.range(9..10).write(0, &[1])),
            in_use(world.all_reduce(&buffer, ReduceOp::Sum)),
            in_use(world.start_all_reduce(&buffer, ReduceOp::Sum)),
            in_use(world.group().send(&buffer, 1 - world.rank()).run()),
        ] {
            assert!(text.contains("has deregistered them"), "{text}");
        }
        // What is registered anew is another buffer; the old ones stay refused.
        let again = own.register(&world).unwrap();
        check(&again, 2);
        world.all_reduce(&again, ReduceOp::Sum).unwrap();
        check(&again, 4);
        in_use(buffer.as_slice());
        world.barrier().unwrap();
    });
}

#[test]
fn memory_of_a_failed_operation_is_registered_anew_for_others() {
    on_ranks(2, |world| {
        let own = Own::for_transport(&world);
        let child = world.duplicate().unwrap();
        let buffer = own.register(&world).unwrap();
        if world.rank() == 0 {
            // The other rank does not take part.
            let started = child.start_all_reduce(&buffer, ReduceOp::Sum).unwrap();
            child.abort("the loss is not a number");
            started.wait().unwrap_err();
        }
        world.barrier().unwrap();
        if buffer.as_slice().is_err() {
            world.deregister(own.at(0)).unwrap();
            in_use(world.all_reduce(&buffer, ReduceOp::Sum));
            own.register(&world).unwrap();
        }
        let buffer = world.buffer_at(own.at(0), BYTES).unwrap().unwrap();
        let buffer = buffer.cast::<u64>().unwrap();
        fill(&buffer, 1);
        world.all_reduce(&buffer, ReduceOp::Sum).unwrap();
        check(&buffer, 2);
        world.barrier().unwrap();
    });
}

/// Threads register, use and deregister memory of their own, on communicators of one family.
#[test]
fn threads_register_at_the_same_time() {
    on_ranks(2, |world| {
        let comms: Vec<_> = (0..3).map(|_| world.duplicate().unwrap()).collect();
        std::thread::scope(|scope| {
            for comm in &comms {
                scope.spawn(|| {
                    for round in 0..40 {
                        let own = Own::for_transport(comm);
                        let buffer = own.register(comm).unwrap();
                        fill(&buffer, round);
                        comm.all_reduce(&buffer, ReduceOp::Sum).unwrap();
                        check(&buffer, 2 * round);
                        // No peer reads it any more: the mapping ends with this turn.
                        comm.deregister(own.at(0)).unwrap();
                    }
                    comm.barrier().unwrap();
                });
            }
        });
    });
}

/// Collectives by the addresses of their memory do what they do with buffers: short ones and long
/// ones, in registered memory and in other, in place and not.
#[test]
fn calls_by_address_do_what_calls_on_buffers_do() {
    on_ranks(3, |world| {
        let (rank, ranks) = (world.rank(), world.ranks() as usize);
        let null = std::ptr::null_mut();
        for (count, is_started) in [
            (1, false),
            (6, true),
            (7, false),
            (5000, false),
            (5000, true),
        ] {
            let of_library = [(); 2].map(|()| world.alloc::<u64>(ranks * count).unwrap());
            let (mut own_in, mut own_out) = (vec![0u64; ranks * count], vec![0u64; ranks * count]);
            let registered = of_library.each_ref().map(|buffer| {
                let mut slice = buffer.as_mut_slice().unwrap();
                slice.as_mut_ptr().cast::<u8>()
            });
            let plain = [own_in.as_mut_ptr().cast(), own_out.as_mut_ptr().cast()];
            // Ranks need not have memory of one kind.
            let kinds = [[registered, plain], [plain, registered]];
            for [input, output] in kinds[usize::from(rank == 1)] {
                let run = |of: Collective, root: u32, from: *mut u8, to: *mut u8| {
                    let made = world.collective(of, DataType::U64, count as u64).root(root);
                    if is_started {
                        // SAFETY: the memory lives until the end of the round, and nothing else
                        // uses it while the operation runs.
                        return unsafe { made.at(from, to) }.and_then(|it| it.start()?.wait());
                    }
                    // SAFETY: as above.
                    unsafe { made.run_at(from, to) }
                };
                let fill = |to: *mut u8, elements: usize| {
                    for at in 0..elements {
                        // SAFETY: as above; there are as many elements.
                        unsafe { to.cast::<u64>().add(at).write(value(rank, at)) };
                    }
                };
                let read = |from: *mut u8, at: usize| {
                    // SAFETY: as above.
                    unsafe { from.cast::<u64>().add(at).read() }
                };
                let value_sum = |at| (0..ranks as u32).map(|rank| value(rank, at)).sum::<u64>();
                let last = count - 1;
                fill(input, ranks * count);
                run(Collective::AllReduce, 0, input, output).unwrap();
                assert_eq!(read(output, last), value_sum(last));
                run(Collective::ReduceScatter, 0, input, output).unwrap();
                assert_eq!(read(output, last), value_sum(rank as usize * count + last));
                run(Collective::AllGather, 0, input, output).unwrap();
                assert_eq!(read(output, 2 * count + last), value(2, last));
                run(Collective::AllToAll, 0, input, output).unwrap();
                assert_eq!(read(output, count), value(1, rank as usize * count));
                // Who has no part gives no address.
                let at_root = if rank == 2 { output } else { null };
                run(Collective::Gather, 2, input, at_root).unwrap();
                assert!(rank != 2 || read(output, count) == value(1, 0));
                let of_root = if rank == 2 { input } else { null };
                run(Collective::Broadcast, 2, of_root, output).unwrap();
                assert_eq!(read(output, last), value(2, last));
                run(Collective::Barrier, 0, null, null).unwrap();
                run(Collective::AllReduce, 0, input, input).unwrap();
                assert_eq!(read(input, 0), value_sum(0));
                let odd = input.wrapping_add(4);
                for (from, to) in [(odd, output), (input, odd), (null, output), (input, null)] {
                    let error = run(Collective::AllReduce, 0, from, to).unwrap_err();
                    assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
                }
                if count > 1 {
                    let overlapping = input.wrapping_add(8);
                    let error = run(Collective::AllReduce, 0, input, overlapping).unwrap_err();
                    assert!(error.to_string().contains("overlap"), "{error}");
                }
            }
        }
    });
}

/// Element `at` of what a rank gives.
fn value(rank: u32, at: usize) -> u64 {
    1_000_000 * u64::from(rank + 1) + at as u64
}
