//! Windows: puts, gets, atomic operations and signals, over connections, in shared memory and on
//! hosts of both.

use super::on_ranks_with;
use linerate::sim::SimOptions;
use linerate::{Buffer, Communicator, Config, Error, Simulation, Window};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Runs `body` on ranks in shared memory, over connections, on hosts of two ranks, and over verbs
/// where a library for it is named.
fn everywhere(ranks: u32, body: impl Fn(Communicator) + Sync) {
    on_ranks_with(ranks, false, &body);
    on_ranks_with(ranks, true, &body);
    if std::env::var_os("LINERATE_IBVERBS_LIB").is_some() {
        super::on_ranks_over("verbs", ranks, false, &body);
    }
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let index = JOBS.fetch_add(1, Ordering::Relaxed);
    let job = format!("windows-{}-{index}", std::process::id());
    std::thread::scope(|scope| {
        for rank in 0..ranks {
            let config = Config {
                transport: "router:tcp".into(),
                host_id: Some(format!("{job} {}", rank / 2)),
                ..Config::default()
            };
            let (job, body) = (&job, &body);
            scope.spawn(move || body(Communicator::join(rank, ranks, job, config).unwrap()));
        }
    });
}

/// Registered or not, with these elements.
fn memory(comm: &Communicator, is_registered: bool, elements: Vec<u64>) -> Buffer<u64> {
    match is_registered {
        true => {
            let buffer = comm.alloc(elements.len()).unwrap();
            buffer.write(0, &elements).unwrap();
            buffer
        }
        false => Buffer::from_vec(elements),
    }
}

#[test]
fn what_is_put_is_what_is_got_whatever_its_length_and_memory() {
    everywhere(3, |comm| {
        let (rank, ranks) = (comm.rank(), comm.ranks());
        // Parts of several lengths: each rank has a third for each rank.
        let third = 300_000 + rank as usize;
        let buffer = comm.alloc::<u64>(third * ranks as usize).unwrap();
        let window = comm.window(&buffer).unwrap();
        assert_eq!(window.len_of(1).unwrap(), 300_001 * 3);
        for (round, count) in [0usize, 1, 7, 8, 9, 513, 70_001, 300_000]
            .into_iter()
            .enumerate()
        {
            for peer in 0..ranks {
                let at = (300_000 + peer as usize) * rank as usize;
                let value = |i: usize| (i as u64) << 8 | u64::from(rank) << 4 | round as u64;
                let source = memory(&comm, round % 2 == 0, (0..count).map(value).collect());
                window.put(&source, peer, at).unwrap().wait().unwrap();
                let back = memory(&comm, round % 3 == 0, vec![u64::MAX; count]);
                window.get(&back, peer, at).unwrap().wait().unwrap();
                assert_eq!(back.to_vec().unwrap(), source.to_vec().unwrap(), "{round}");
            }
            comm.barrier().unwrap();
            for peer in 0..ranks {
                let mut seen = vec![0; count];
                window.read(third * peer as usize, &mut seen).unwrap();
                let value = |i: usize| (i as u64) << 8 | u64::from(peer) << 4 | round as u64;
                assert!(
                    seen.iter().enumerate().all(|(i, &x)| x == value(i)),
                    "{round} {peer}"
                );
            }
            comm.barrier().unwrap();
        }
        window.close().unwrap();
        // The buffer is its owner's again.
        buffer.as_mut_slice().unwrap()[0] = 1;
    });
}

#[test]
fn atomic_operations_of_all_ranks_and_threads_count_once_each() {
    const EACH: u64 = 200;
    everywhere(4, |comm| {
        let buffer = comm.alloc::<u64>(2).unwrap();
        let window = comm.window(&buffer).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let before = comm.alloc::<u64>(1).unwrap();
                    let mut last = 0;
                    for _ in 0..EACH {
                        window
                            .fetch_and_add(1, 0, 3, &before)
                            .unwrap()
                            .wait()
                            .unwrap();
                        let found = before.to_vec().unwrap()[0];
                        assert!(found % 3 == 0 && (last == 0 || found > last));
                        last = found;
                        // A lock, by which a word that nobody else adds to goes up by one.
                        let mut known = 0;
                        loop {
                            let both = (known, known + 1);
                            let swap = window.compare_and_swap(2, 1, both, &before).unwrap();
                            swap.wait().unwrap();
                            match before.to_vec().unwrap()[0] {
                                found if found == known => break,
                                found => known = found,
                            }
                        }
                    }
                });
            }
        });
        comm.barrier().unwrap();
        let mut words = [0; 2];
        window.read(0, &mut words).unwrap();
        let all = u64::from(comm.ranks()) * 2 * EACH;
        match comm.rank() {
            1 => assert_eq!(words, [3 * all, 0]),
            2 => assert_eq!(words, [0, all]),
            _ => assert_eq!(words, [0, 0]),
        }
        window.close().unwrap();
    });
}

#[test]
fn who_sees_a_signal_sees_what_was_put_before_it() {
    const ROUNDS: u64 = 60;
    everywhere(3, |comm| {
        let (rank, ranks) = (comm.rank(), comm.ranks());
        let count = 40_000;
        let buffers = (
            comm.alloc::<u64>(count).unwrap(),
            comm.alloc::<u64>(2).unwrap(),
        );
        let data = comm.window(&buffers.0).unwrap();
        let signals = comm.window(&buffers.1).unwrap();
        let (next, last) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        for round in 1..=ROUNDS {
            let length = [1, 9, 600, count][round as usize % 4];
            let source = memory(&comm, round % 2 == 0, vec![round; length]);
            let put = data.put_signal(&source, next, 0, (&signals, 0), 1).unwrap();
            signals.wait_signal(0, round).unwrap().wait().unwrap();
            let mut seen = vec![0; length];
            data.read(0, &mut seen).unwrap();
            assert!(
                seen.iter().all(|&x| x == round),
                "rank {rank}, round {round}"
            );
            put.wait().unwrap();
            // The one before may put again.
            let empty = Buffer::from_vec(vec![0u64; 0]);
            data.put_signal(&empty, last, 0, (&signals, 1), 1)
                .unwrap()
                .wait()
                .unwrap();
            signals.wait_signal(1, round).unwrap().wait().unwrap();
        }
        data.flush(next).unwrap().wait().unwrap();
        data.close().unwrap();
        signals.close().unwrap();
    });
}

#[test]
fn a_flush_ends_after_all_that_was_started_before_it() {
    everywhere(2, |comm| {
        let buffer = comm.alloc::<u64>(100_000).unwrap();
        let window = comm.window(&buffer).unwrap();
        let peer = 1 - comm.rank();
        let source = Buffer::from_vec(vec![5; 50_000]);
        let puts: Vec<_> = [0, 50_000]
            .map(|at| window.put(&source, peer, at).unwrap())
            .into();
        window.flush(peer).unwrap().wait().unwrap();
        for mut put in puts {
            assert!(put.test().unwrap(), "it has ended");
        }
        comm.barrier().unwrap();
        let mut seen = vec![0; 100_000];
        window.read(0, &mut seen).unwrap();
        assert!(seen.iter().all(|&x| x == 5));
        window.close().unwrap();
    });
}

#[test]
fn what_does_not_fit_is_refused_with_the_length_of_the_part() {
    everywhere(2, |comm| {
        let buffer = comm.alloc::<u64>(10 + comm.rank() as usize).unwrap();
        let window = comm.window(&buffer).unwrap();
        let small = comm.alloc::<u64>(2).unwrap();
        let refused = |error: Error, what: &str| {
            assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
            assert!(error.to_string().contains(what), "{error}");
        };
        let put = window.put(&small, 1, 10).unwrap_err();
        refused(
            put,
            "a put of 2 elements from element 10 on, in the window of rank 1, which has 11 elements",
        );
        refused(
            window.get(&small, 0, usize::MAX).unwrap_err(),
            "rank 0, which has 10 elements",
        );
        refused(
            window.put(&small, 2, 0).unwrap_err(),
            "names rank 2 of a window of 2",
        );
        refused(
            window.fetch_and_add(0, 0, 1, &small).unwrap_err(),
            "a buffer of one element",
        );
        refused(
            window.read(11, &mut [0]).unwrap_err(),
            "in this rank's part",
        );
        refused(
            window.wait_signal(11, 0).unwrap_err(),
            "in this rank's part",
        );
        // The buffer is the window's, and memory that is not registered cannot be one.
        assert!(matches!(buffer.as_slice(), Err(Error::InUse { .. })));
        assert!(matches!(
            comm.start_window(&buffer),
            Err(Error::InUse { .. })
        ));
        let plain = Buffer::from_vec(vec![0u64; 4]);
        refused(
            comm.start_window(&plain).unwrap_err(),
            "Communicator::alloc",
        );
        window.close().unwrap();
    });
    everywhere(2, |comm| {
        let error = match comm.rank() {
            0 => comm.window(&comm.alloc::<f32>(4).unwrap()).unwrap_err(),
            _ => comm.window(&comm.alloc::<u32>(4).unwrap()).unwrap_err(),
        };
        assert!(error.to_string().contains("make it of one type"), "{error}");
        comm.barrier().unwrap();
    });
}

#[test]
fn a_rank_that_has_dropped_its_window_or_left_is_named() {
    everywhere(3, |comm| {
        let buffer = comm.alloc::<u64>(4).unwrap();
        let window = comm.window(&buffer).unwrap();
        comm.barrier().unwrap();
        match comm.rank() {
            0 => {
                // The operation fails, and the communicator does not.
                comm.barrier().unwrap();
                let small = comm.alloc::<u64>(1).unwrap();
                let error = window.put(&small, 1, 0).unwrap().wait().unwrap_err();
                assert!(
                    error
                        .to_string()
                        .contains("rank 1: that rank has ended its window"),
                    "{error}"
                );
                comm.barrier().unwrap();
                // Rank 2 drops its window a moment before its communicator.
                let error = loop {
                    match window.put(&small, 2, 0).unwrap().wait() {
                        Ok(()) => std::thread::sleep(Duration::from_millis(1)),
                        Err(Error::InvalidArgument(text)) => assert!(
                            text.contains("rank 2: that rank has ended its window"),
                            "{text}"
                        ),
                        Err(error) => break error,
                    }
                };
                assert!(matches!(error, Error::Left { rank: 2, .. }), "{error:?}");
            }
            1 => {
                drop(window);
                let error = buffer.as_slice().unwrap_err();
                assert!(error.to_string().contains("a window"), "{error}");
                drop(buffer);
                // What is deregistered goes with the next call.
                drop(comm.alloc::<u64>(1).unwrap());
                comm.barrier().unwrap();
                comm.barrier().unwrap();
            }
            _ => {
                comm.barrier().unwrap();
                comm.barrier().unwrap();
            }
        }
    });
}

#[test]
fn a_signal_that_does_not_come_times_out_and_names_its_rank() {
    on_ranks_with(2, false, |comm| {
        let buffer = comm.alloc::<u64>(1).unwrap();
        let window = comm.window(&buffer).unwrap();
        comm.barrier().unwrap();
        if comm.rank() == 0 {
            comm.set_timeout(Duration::from_millis(300)).unwrap();
            let error = window.wait_signal(0, 1).unwrap().wait().unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
            assert!(
                text.contains("a wait for a signal") && text.contains("rank 1"),
                "{text}"
            );
        } else {
            while comm.failure().is_none() {
                let _ = comm.barrier();
            }
        }
    });
}

#[test]
fn ranks_in_virtual_time_use_windows_too() {
    for mapped in [false, true] {
        let mut options = SimOptions::new(4, 7);
        options.mapped = mapped;
        let mut simulation = Simulation::new(options, Config::default()).unwrap();
        let buffers: Vec<Buffer<u64>> = simulation
            .communicators()
            .iter()
            .map(|comm| comm.alloc(8).unwrap())
            .collect();
        let both = simulation.communicators().iter().zip(&buffers);
        let windows: Vec<Window<u64>> = both
            .map(|(comm, b)| comm.start_window(b).unwrap())
            .collect();
        let source = simulation.communicators()[0].alloc::<u64>(1).unwrap();
        let early = windows[0].put(&source, 1, 0);
        assert!(early.is_err_and(|error| error.to_string().contains("Window::is_ready")));
        simulation
            .run(|_| windows.iter().all(|window| window.is_ready().unwrap()))
            .unwrap();
        source.write(0, &[9]).unwrap();
        let mut put = windows[0]
            .put_signal(&source, 3, 5, (&windows[3], 0), 2)
            .unwrap();
        let mut wait = windows[3].wait_signal(0, 2).unwrap();
        simulation
            .run(|_| put.test().unwrap() & wait.test().unwrap())
            .unwrap();
        let mut seen = [0; 8];
        windows[3].read(0, &mut seen).unwrap();
        assert_eq!(seen, [2, 0, 0, 0, 0, 9, 0, 0]);
    }
}
