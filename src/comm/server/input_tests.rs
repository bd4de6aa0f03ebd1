//! Bad input of parameter servers: each is an error that says which value was given and what is
//! allowed, and the rest goes on.

use super::layout::word_of;
use super::thread_tests::{ranks, tensors};
use super::*;
use crate::staleness::{Ledger, Release};
use crate::types::Rank;
use half::bf16;
use std::slice::from_ref;
use std::time::Duration;

/// Fails unless this is an error whose text has all of these.
fn says<T: std::fmt::Debug>(result: Result<T>, words: &[&str]) {
    let error = result.expect_err(&words.join(" ")).to_string();
    for word in words {
        assert!(error.contains(word), "'{word}' is not in '{error}'");
    }
}

/// Rank 0 serves, and all others train.
fn served() -> ServerOptions {
    ServerOptions {
        servers: vec![0],
        ..ServerOptions::default()
    }
}

#[test]
fn options_out_of_range_are_named_with_their_value_and_bound() {
    let with = |set: fn(&mut ServerOptions)| {
        let mut options = ServerOptions::default();
        set(&mut options);
        options
    };
    let cases: [(ServerOptions, &[&str]); 14] = [
        // Two servers of one range.
        (
            with(|o| o.servers = vec![1, 1]),
            &["servers name rank 1", "named twice", "below 3"],
        ),
        (
            with(|o| o.servers = vec![0, 3]),
            &["servers name rank 3", "below 3"],
        ),
        (
            with(|o| o.workers = vec![2, 0, 2]),
            &["workers name rank 2", "named twice"],
        ),
        (
            with(|o| o.workers = vec![9]),
            &["workers name rank 9", "below 3"],
        ),
        (with(|o| o.slots = 0), &["0 slots", "1 to 64"]),
        (with(|o| o.slots = 65), &["65 slots", "1 to 64"]),
        (with(|o| o.rate = -0.5), &["rate of -0.5", "not below 0"]),
        (with(|o| o.rate = f32::NAN), &["rate of NaN", "finite"]),
        (with(|o| o.rate = f32::INFINITY), &["rate of inf", "finite"]),
        (
            with(|o| o.pulls = DataType::I8),
            &["pulls of i8", "f32, f16 or bf16"],
        ),
        (
            with(|o| o.pulls = DataType::F64),
            &["pulls of f64", "f32, f16 or bf16"],
        ),
        (
            with(|o| o.evict_after = Some(Duration::ZERO)),
            &["evict_after is 0"],
        ),
        (
            with(|o| o.optimizer = Optimizer::momentum(-1.0)),
            &["momentum is -1", "at least 0"],
        ),
        (
            with(|o| {
                o.staleness = Staleness::Dssp {
                    s_lower: 1,
                    r_max: 4097,
                    release: Release::Strict,
                    reading: Default::default(),
                }
            }),
            &["4097 pushes", "4096 at most"],
        ),
    ];
    for (options, words) in cases {
        says(options.check(3), words);
    }
    let bounds = Staleness::dssp(5, 3);
    says(bounds, &["is 5", "upper one 3", "must not be below"]);
}

#[test]
fn there_is_no_shard_without_workers_and_no_worker_without_a_shard() {
    for ranks in 1..5u32 {
        let sets = || (0..1u32 << ranks).map(|bits| (0..ranks).filter(move |r| bits >> r & 1 == 1));
        for servers in sets() {
            for workers in sets() {
                let options = ServerOptions {
                    servers: servers.clone().collect(),
                    workers: workers.collect(),
                    ..ServerOptions::default()
                };
                let (found_servers, found_workers) = options.check(ranks).unwrap();
                assert!(
                    !found_servers.is_empty() && !found_workers.is_empty(),
                    "{options:?}"
                );
                let is_kept = |given: &[Rank], found: &[Rank]| given.is_empty() || given == found;
                assert!(is_kept(&options.servers, &found_servers), "{options:?}");
                assert!(is_kept(&options.workers, &found_workers), "{options:?}");
            }
        }
    }
}

#[test]
fn tensors_that_no_server_can_have_are_named() {
    ranks((2, "shm"), |comm| {
        let new = |tensors| ParameterServer::new(&comm, tensors, served());
        says(
            new(Vec::new()),
            &["0 tensors with 1 shards", "at least one element"],
        );
        let mut mixed = tensors(DataType::F32, &[3, 4]);
        mixed[1].dtype = DataType::F16;
        says(
            new(mixed),
            &["'tensor 1'", "f16", "of f32, of f16 or of bf16"],
        );
        let endless = tensors(DataType::F32, &[usize::MAX]);
        says(new(endless), &["no more than fit memory"]);
        let twice = tensors(DataType::F32, &[usize::MAX, usize::MAX]);
        says(new(twice), &["no more than fit memory"]);
        // Of one length, and of another name on each rank.
        let mut own = tensors(DataType::F32, &[8]);
        own[0].name = format!("of rank {}", comm.rank());
        let error = new(own).unwrap_err().to_string();
        let is_told = error.contains("all ranks give the same")
            && error.contains("of rank 0")
            && error.contains("of rank 1");
        assert!(is_told, "{error}");
    });
}

#[test]
fn weights_that_no_memory_holds_are_an_error_on_all_ranks() {
    let texts = ranks((2, "shm"), |comm| {
        // 4 TiB, twice, and two pushes of it.
        let many = tensors(DataType::F32, &[1 << 40]);
        let error = ParameterServer::new(&comm, many, served()).unwrap_err();
        assert_eq!(
            comm.rank() == 0,
            matches!(error, Error::Exhausted { .. }),
            "{error}"
        );
        error.to_string()
    });
    assert!(texts[0].contains("TiB"), "{}", texts[0]);
    assert!(texts[1].contains("rank 0"), "{}", texts[1]);
}

#[test]
fn calls_before_there_are_weights_say_what_to_call_first() {
    ranks((2, "shm"), |comm| {
        let server = ParameterServer::new(&comm, tensors(DataType::F32, &[8]), served()).unwrap();
        let one = Buffer::from_vec(vec![0f32; 8]);
        let (one, folder) = (from_ref(&one), std::env::temp_dir());
        let calls = || {
            [
                ("push", server.push(one)),
                ("pull", server.pull(one).map(drop)),
                ("push_pull", server.push_pull(one, one).map(drop)),
                ("step", server.step(one, one).map(drop)),
                ("a wait for an OK", server.wait_ok().map(drop)),
                ("gradients", server.gradients::<f32>().map(drop)),
                ("save", server.save(&folder).map(drop)),
                (
                    "set_optimizer",
                    server.set_optimizer(Optimizer::sgd(), 1.0, 0).map(drop),
                ),
            ]
        };
        for (name, result) in calls() {
            match comm.rank() {
                0 => says(
                    result,
                    &[name, "rank 0, which is no worker", "workers are ranks [1]"],
                ),
                _ => says(result, &[name, "call init first, on every worker"]),
            }
        }
        if comm.rank() == 0 {
            says(server.init(one), &["init of rank 0", "no worker"]);
            says(server.detach(), &["detach of rank 0", "no worker"]);
        } else {
            server.init(one).unwrap();
            assert_eq!(server.step(one, one).unwrap(), [1]);
        }
        server.finish().unwrap();
    });
}

#[test]
fn buffers_of_wrong_lengths_and_tensors_that_there_are_not_are_named() {
    ranks((2, "shm"), |comm| {
        let sizes = tensors(DataType::F32, &[6, 4]);
        let server = ParameterServer::new(&comm, sizes, served()).unwrap();
        if comm.rank() == 0 {
            server.finish().unwrap();
            return;
        }
        let of = |sizes: &[usize]| -> Vec<Buffer<f32>> {
            let buffer = |&size: &usize| Buffer::from_vec(vec![0f32; size]);
            sizes.iter().map(buffer).collect()
        };
        let right = of(&[6, 4]);
        says(
            server.init(&of(&[6, 5])),
            &["5 elements", "'tensor 1'", "4"],
        );
        server.init(&right).unwrap();
        let cases: [(&[usize], &[&str]); 5] = [
            (&[], &["0 buffers for 2 tensors", "one of 10 elements"]),
            (&[11], &["1 buffers for 2 tensors", "one of 10 elements"]),
            // A third tensor, which there is not.
            (&[6, 4, 1], &["3 buffers for 2 tensors"]),
            (&[7, 4], &["7 elements", "'tensor 0'", "which has 6"]),
            (&[6, 0], &["0 elements", "'tensor 1'", "which has 4"]),
        ];
        for (sizes, words) in cases {
            let wrong = of(sizes);
            says(server.push(&wrong), words);
            says(server.pull(&wrong), words);
            says(server.step(&wrong, &right), words);
            says(server.step(&right, &wrong), words);
            says(server.push_pull(&right, &wrong), words);
        }
        let narrow = [Buffer::from_vec(vec![bf16::ZERO; 10])];
        says(server.pull(&narrow), &["pull", "bf16", "has f32"]);
        // Nothing of all that was pushed.
        assert_eq!(server.step(&right, &right).unwrap(), [1]);
        server.finish().unwrap();
    });
}

#[test]
fn a_push_that_is_not_finite_is_an_error_that_names_push_rank_elements_and_remedy() {
    for value in [bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY] {
        let texts = ranks((2, "shm"), |comm| {
            let options = ServerOptions {
                nonfinite: NonFinitePush::Error,
                ..served()
            };
            let sizes = tensors(DataType::Bf16, &[70]);
            let server = ParameterServer::new(&comm, sizes, options).unwrap();
            let run = || -> Result<()> {
                if comm.rank() == 1 {
                    let weights = [Buffer::from_vec(vec![0f32; 70])];
                    server.init(&weights)?;
                    let mut gradient = vec![bf16::ONE; 70];
                    server.step(&[Buffer::from_vec(gradient.clone())], &weights)?;
                    gradient[69] = value;
                    server.step(&[Buffer::from_vec(gradient)], &weights)?;
                }
                Ok(())
            };
            run()
                .and_then(|()| server.finish())
                .unwrap_err()
                .to_string()
        });
        for text in texts {
            for word in [
                "push 2 of worker 0, rank 1",
                "elements 0..70",
                "NonFinitePush::Skip",
            ] {
                assert!(text.contains(word), "{value}: '{word}' is not in '{text}'");
            }
        }
    }
}

#[test]
fn counts_of_pushes_that_go_back_or_come_from_nobody_are_named() {
    let now = Duration::ZERO;
    let mut ledger = Ledger::new(Staleness::Asp, 2, 2).unwrap();
    ledger.arrive(0, 1, 3, now).unwrap();
    // Twice is no news.
    ledger.arrive(0, 1, 3, now).unwrap();
    assert_eq!(ledger.take_entry(), None);
    says(
        ledger.arrive(0, 1, 2, now),
        &["server 0", "2 pushes of worker 1", "3 before"],
    );
    says(
        ledger.arrive(2, 1, 1, now),
        &["server 2", "1 pushes of worker 1"],
    );
    says(
        ledger.arrive(0, 2, 1, now),
        &["server 0", "1 pushes of worker 2"],
    );
    ledger.arrive(1, 1, 1, now).unwrap();
    assert!(ledger.take_entry().is_some());
    assert_eq!(ledger.take_entry(), None);
}

#[test]
fn a_worker_whose_clock_jumps_or_goes_back_ends_the_server_on_all_ranks() {
    // Two pushes at once, and one fewer than there were.
    for (jump, told) in [(2, "has pushed 2 times"), (u32::MAX, "times at once")] {
        let texts = ranks((3, "shm"), |comm| {
            let options = ServerOptions {
                staleness: Staleness::Asp,
                ..served()
            };
            let server =
                ParameterServer::new(&comm, tensors(DataType::F32, &[8]), options).unwrap();
            let weights = [Buffer::from_vec(vec![0f32; 8])];
            let run = || -> Result<()> {
                if comm.rank() == 0 {
                    return Ok(());
                }
                server.init(&weights)?;
                server.step(&weights, &weights)?;
                if comm.rank() == 2 {
                    let shared = &server.calls.shared;
                    let (room, at) = (shared.comm.alloc::<u64>(1)?, shared.layout.pushed(1));
                    let add = word_of(jump.into(), 0);
                    shared.words.fetch_and_add(0, at, add, &room)?.wait()?;
                    // A push of its own could make up for it before the shard looks.
                    loop {
                        server.pull(&weights)?;
                    }
                }
                loop {
                    server.step(&weights, &weights)?;
                }
            };
            run()
                .and_then(|()| server.finish())
                .unwrap_err()
                .to_string()
        });
        for (rank, text) in texts.iter().enumerate() {
            let is_told = text.contains("worker 1") && text.contains(told);
            assert!(is_told, "jump {jump}, rank {rank}: {text}");
        }
    }
}

#[test]
fn a_checkpoint_of_another_model_is_told_by_the_names_of_its_tensors() {
    let folder = std::env::temp_dir().join(format!("linerate-names-{}", std::process::id()));
    let open = |comm: &Communicator, name: &str| {
        let mut own = tensors(DataType::F32, &[8]);
        own[0].name = name.into();
        ParameterServer::new(comm, own, ServerOptions::default()).unwrap()
    };
    ranks((1, "shm"), |comm| {
        let weights = [Buffer::from_vec(vec![1f32; 8])];
        let server = open(&comm, "encoder");
        server.init(&weights).unwrap();
        server.save(&folder).unwrap();
        server.finish().unwrap();
        let server = open(&comm, "decoder");
        let name = folder.display().to_string();
        says(
            server.load(&folder),
            &["load", &name, "shard 0, rank 0", "of other tensors"],
        );
        server.init(&weights).unwrap();
        server.finish().unwrap();
        let server = open(&comm, "encoder");
        assert_eq!(server.load(&folder).unwrap(), (0, 0));
        server.finish().unwrap();
    });
    std::fs::remove_dir_all(&folder).unwrap();
}
