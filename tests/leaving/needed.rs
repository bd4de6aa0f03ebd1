//! What needs a rank that has left, and what does not.

use linerate::options::CrossMemory;
use linerate::sim::SimOptions;
use linerate::{Buffer, Communicator, Config, Error, Operation, Simulation};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Runs `body` on every rank of a job of 4, over each transport; the communicator is the rank's to
/// drop.
fn on_each_transport(body: impl Fn(Communicator) + Sync) {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    for transport in ["shm", "tcp", "router"] {
        let index = JOBS.fetch_add(1, Ordering::Relaxed);
        let job = format!("needed-{}-{index}", std::process::id());
        let config = |rank: u32| Config {
            timeout: Duration::from_secs(20),
            transport: transport.into(),
            host_id: (transport == "router").then(|| format!("{job} {}", rank / 2)),
            cma: CrossMemory::On,
            ..Config::default()
        };
        std::thread::scope(|scope| {
            for rank in 0..4 {
                let (job, body, config) = (&job, &body, config(rank));
                scope.spawn(move || body(Communicator::join(rank, 4, job, config).unwrap()));
            }
        });
    }
}

fn is_left(error: &Error, who: u32) -> bool {
    let text = error.to_string();
    matches!(error, Error::Left { rank, .. } if *rank == who)
        && text.contains(&format!("rank {who} has left"))
        && text.contains("Communicator::rebuild")
}

/// One message around these ranks, of registered memory and of other.
fn pass_around(comm: &Communicator, ranks: &[u32]) {
    let place = ranks.iter().position(|&rank| rank == comm.rank()).unwrap();
    let next = ranks[(place + 1) % ranks.len()];
    let last = ranks[(place + ranks.len() - 1) % ranks.len()];
    for bytes in [8, 5_000, 300_000] {
        let to = comm.alloc::<u32>(bytes / 4).unwrap();
        let from = Buffer::from_vec(vec![0u32; bytes / 4]);
        to.write(0, &[comm.rank()]).unwrap();
        comm.group()
            .send(&to, next)
            .recv(&from, last)
            .run()
            .unwrap();
        assert_eq!(from.as_slice().unwrap()[0], last);
    }
}

#[test]
fn collectives_after_a_leave_fail_on_all_and_name_the_rank_and_nothing_else_does() {
    let survivors = Barrier::new(3);
    on_each_transport(|comm| {
        comm.barrier().unwrap();
        if comm.rank() == 2 {
            return;
        }
        for _ in 0..3 {
            let error = comm.barrier().unwrap_err();
            assert!(is_left(&error, 2), "{error}");
            pass_around(&comm, &[0, 1, 3]);
        }
        let error = comm.all_reduce(&mut [1.0f32; 500], linerate::ReduceOp::Sum);
        assert!(is_left(&error.unwrap_err(), 2));
        assert_eq!(comm.failure(), None);
        pass_around(&comm, &[0, 1, 3]);
        // A rank that rebuilds gives the old communicator up.
        survivors.wait();
        let comm = comm.rebuild().unwrap();
        assert_eq!(comm.ranks(), 3);
        comm.finalize().unwrap();
    });
}

#[test]
fn messages_between_others_are_not_disturbed_by_a_rank_that_has_no_part_in_them() {
    on_each_transport(|comm| {
        if comm.rank() == 3 {
            return;
        }
        for _ in 0..20 {
            pass_around(&comm, &[0, 1, 2]);
            std::thread::sleep(Duration::from_millis(2));
        }
    });
}

#[test]
fn of_a_group_only_what_needs_the_rank_that_has_left_is_lost_and_its_error_names_it() {
    on_each_transport(|comm| {
        let [to, from] = [(); 2].map(|()| comm.alloc::<u32>(1_250).unwrap());
        match comm.rank() {
            0 => {
                let other = comm.alloc::<u32>(1_250).unwrap();
                to.write(0, &[7]).unwrap();
                let group = comm.group().recv(&from, 2).send(&to, 1).recv(&other, 1);
                let error = group.run().unwrap_err();
                assert!(is_left(&error, 2), "{error}");
                assert_eq!(other.as_slice().unwrap()[0], 8);
                pass_around(&comm, &[0, 1]);
            }
            1 => {
                to.write(0, &[8]).unwrap();
                comm.group().recv(&from, 0).send(&to, 0).run().unwrap();
                assert_eq!(from.as_slice().unwrap()[0], 7);
                pass_around(&comm, &[0, 1]);
            }
            _ => {}
        }
    });
}

#[test]
fn what_a_rank_has_sent_before_it_left_is_received_later() {
    on_each_transport(|comm| {
        let small = comm.alloc::<u32>(16).unwrap();
        // In memory that ends with its rank, which shared memory reads where it lies.
        let large = Buffer::from_vec(vec![0u32; 50_000]);
        match comm.rank() {
            0 => {
                small.write(0, &[3]).unwrap();
                large.as_mut_slice().unwrap().fill(5);
                comm.group().send(&small, 1).run().unwrap();
                drop(comm.group().send(&large, 1).start().unwrap());
                drop(comm);
                large.as_mut_slice().unwrap().fill(6);
            }
            1 => {
                std::thread::sleep(Duration::from_millis(60));
                comm.group().recv(&small, 0).run().unwrap();
                comm.group().recv(&large, 0).run().unwrap();
                assert_eq!(small.as_slice().unwrap()[0], 3);
                assert!(large.as_slice().unwrap().iter().all(|value| *value == 5));
            }
            _ => {}
        }
    });
}

#[test]
fn finalize_returns_when_all_ranks_have_called_it_or_names_one_that_has_left() {
    let called = AtomicU32::new(0);
    on_each_transport(|comm| {
        std::thread::sleep(Duration::from_millis(u64::from(comm.rank())));
        called.fetch_add(1, Ordering::SeqCst);
        comm.finalize().unwrap();
        // Each job adds 4, and the jobs come one after another.
        assert!(called.load(Ordering::SeqCst).is_multiple_of(4));
    });
    on_each_transport(|comm| {
        if comm.rank() != 1 {
            let error = comm.finalize().unwrap_err();
            assert!(is_left(&error, 1), "{error}");
        }
    });
}

#[test]
fn simulated_ranks_fail_what_needs_one_that_has_left_and_nothing_else() {
    let mut simulation = Simulation::new(SimOptions::new(4, 7), Config::default()).unwrap();
    let comms = simulation.communicators().to_vec();
    simulation.leave(2).unwrap();
    let others = [0, 1, 3];
    let start = |rank: usize| {
        let [to, from] = [(); 2].map(|()| comms[rank].alloc::<u8>(9_000).unwrap());
        let place = others.iter().position(|&other| other == rank).unwrap();
        let (next, last) = (
            others[(place + 1) % 3] as u32,
            others[(place + 2) % 3] as u32,
        );
        let group = comms[rank].group().send(&to, next).recv(&from, last);
        (comms[rank].start_barrier(), group.start().unwrap())
    };
    let (mut barriers, mut groups): (Vec<_>, Vec<Operation>) =
        others.map(start).into_iter().unzip();
    let mut failed = 0;
    simulation
        .run(|_| {
            for barrier in &mut barriers {
                let ended = match barrier {
                    Ok(operation) => operation.test().err(),
                    Err(error) => Some(error.clone()),
                };
                if let Some(error) = ended {
                    assert!(is_left(&error, 2), "{error}");
                    failed += 1;
                }
            }
            groups.iter_mut().all(|group| group.test().unwrap()) && failed >= 3
        })
        .unwrap();
    assert!(barriers.into_iter().all(|mut barrier| match &mut barrier {
        Ok(operation) => operation.test().is_err(),
        Err(_) => true,
    }));
}
