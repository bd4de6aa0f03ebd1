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

/// Whether the system lets a process notice that memory is unmapped.
fn can_keep_registrations() -> bool {
    use rustix::mm::{UserfaultfdFlags, userfaultfd};
    let user_mode_only = UserfaultfdFlags::from_bits_retain(1);
    // SAFETY: no page is registered with it.
    let made = unsafe { userfaultfd(user_mode_only) };
    made.inspect_err(|error| println!("skipped: registrations that stay: userfaultfd: {error}"))
        .is_ok()
}

/// Runs this on both ranks of a job, in threads of this process. At most this many bytes of callers
/// stay registered.
fn on_both<T: Send>(
    name: &str,
    cached_bytes: u64,
    run: impl Fn(&Communicator) -> T + Sync,
) -> [T; 2] {
    let mut config = Config {
        transport: "verbs".into(),
        timeout: Duration::from_secs(60),
        ..Config::default()
    };
    config.verbs.cached_bytes = cached_bytes;
    let job = format!("{name}-{}", std::process::id());
    let run = &|rank| run(&Communicator::join(rank, 2, &job, config.clone()).unwrap());
    std::thread::scope(|scope| {
        let ranks = [0, 1].map(|rank| scope.spawn(move || run(rank)));
        ranks.map(|rank| rank.join().unwrap())
    })
}

fn count_of(comm: &Communicator, name: &str) -> u64 {
    let counts = comm.transport_counts();
    let found = counts.iter().find(|count| count.0 == name);
    found.expect("a count of this name").1
}

/// Sums this value and that of the other rank, which is larger by 1 than that of rank 0.
fn sum(comm: &Communicator, elements: &mut [u64], value: u64) {
    elements.fill(value + u64::from(comm.rank()));
    comm.all_reduce(&mut *elements, ReduceOp::Sum).unwrap();
    assert!(elements.iter().all(|&sum| sum == 2 * value + 1));
}

/// Memory of a mapping that is replaced by another one at the same address.
#[test]
fn memory_of_the_caller_stays_registered_until_it_is_unmapped() {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    if !has_device("registrations that stay") || !can_keep_registrations() {
        return;
    }
    let counts = on_both("stays", 1 << 30, |comm| {
        // What the engine needs for itself is there after calls like those that follow.
        let warm = comm.alloc::<u64>(COUNT).unwrap();
        for part in [warm.range(..), warm.range(COUNT / 2..)] {
            comm.all_reduce(&part, ReduceOp::Sum).unwrap();
        }
        let names = ["regions registered", "receives registered for themselves"];
        let before = names.map(|name| count_of(comm, name));
        let (bytes, access) = (8 * COUNT, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: nothing is mapped there before.
        let address =
            unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE) }
                .unwrap();
        for round in 0..20 {
            // SAFETY: the slice is of the mapping that is there now, and ends before the next one.
            let elements = unsafe { std::slice::from_raw_parts_mut(address.cast::<u64>(), COUNT) };
            sum(comm, elements, round);
            sum(comm, &mut elements[COUNT / 2..], round + 100);
            if round % 5 == 4 {
                let flags = MapFlags::PRIVATE | MapFlags::FIXED;
                // SAFETY: it replaces the mapping, to which nothing refers now.
                unsafe { mmap_anonymous(address, bytes, access, flags) }.unwrap();
            }
        }
        // SAFETY: nothing refers to it any more.
        unsafe { munmap(address, bytes) }.unwrap();
        let after = names.map(|name| count_of(comm, name));
        comm.barrier().unwrap();
        [after[0] - before[0], after[1] - before[1]]
    });
    // Once for each mapping that was used.
    assert_eq!(counts, [[4, 0]; 2]);
}

#[test]
fn vectors_that_come_and_go_at_the_addresses_of_others_are_summed_right() {
    if !has_device("vectors that come and go") {
        return;
    }
    for cached_bytes in [0, 2 << 20, 1 << 30] {
        on_both("come-and-go", cached_bytes, |comm| {
            let mut prng = crate::prng::Prng::new(cached_bytes);
            let mut kept: Vec<Vec<u64>> = Vec::new();
            for round in 0..60 {
                let count = prng.below(COUNT as u64) as usize;
                let (place, is_kept) = (prng.below(8) as usize, prng.chance(0.5));
                // Ranks allocate alike and yet not at equal addresses.
                let mut elements = match kept.get_mut(place) {
                    Some(old) if is_kept => std::mem::take(old),
                    _ => vec![0; count],
                };
                sum(comm, &mut elements, round);
                if is_kept {
                    kept.truncate(7);
                    kept.push(elements);
                }
            }
        });
    }
}

#[test]
fn memory_of_a_call_that_has_failed_is_its_callers_again() {
    if !has_device("memory of a call that has failed") {
        return;
    }
    on_both("failed", 1 << 30, |comm| {
        let mut elements = vec![0u64; COUNT];
        sum(comm, &mut elements, 1);
        comm.barrier().unwrap();
        if comm.rank() == 1 {
            return comm.abort("as the test wants");
        }
        for _ in 0..2 {
            let error = comm.all_reduce(&mut elements, ReduceOp::Sum).unwrap_err();
            assert!(error.to_string().contains("as the test wants"), "{error}");
            elements.fill(7);
        }
        std::thread::sleep(Duration::from_millis(50));
        assert!(elements.iter().all(|&element| element == 7));
    });
}

#[test]
fn a_forked_child_has_the_memory_that_stays_registered() {
    if !has_device("memory that stays registered in a forked child") {
        return;
    }
    on_both("forked", 1 << 30, |comm| {
        let mut elements = vec![0u64; COUNT];
        sum(comm, &mut elements, 5);
        // SAFETY: the child allocates nothing and takes no lock.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_right = elements.iter().all(|&sum| sum == 11);
            elements.fill(3);
            // SAFETY: it ends the child without running anything of the parent.
            unsafe { libc::_exit(i32::from(!is_right)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child that was just made.
        let ended = unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!((ended, status), (child, 0));
        assert!(elements.iter().all(|&sum| sum == 11));
        sum(comm, &mut elements, 6);
    });
}
