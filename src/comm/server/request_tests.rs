//! What workers ask of all shards: another optimizer, a checkpoint; and how a worker is taken out.

use super::thread_tests::{TRANSPORTS, gradient, ranks, tensors};
use super::*;
use crate::staleness::Staleness;
use crate::types::Rank;
use half::bf16;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const COUNT: usize = 300;

/// A folder that is not there yet, and is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("linerate-{name}-{}", std::process::id());
        Folder(std::env::temp_dir().join(name))
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut all: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        all.sort();
        all
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn served_by(servers: Vec<Rank>, optimizer: Optimizer) -> ServerOptions {
    ServerOptions {
        servers,
        workers: vec![0, 1],
        optimizer,
        rate: 0.1,
        ..ServerOptions::default()
    }
}

fn steps(server: &ParameterServer, rank: Rank, numbers: Range<u32>) -> Vec<Buffer<f32>> {
    let weights = vec![Buffer::from_vec(vec![0f32; COUNT])];
    for number in numbers {
        let own = [Buffer::from_vec(gradient(rank, number, COUNT))];
        server.step(&own, &weights).unwrap();
    }
    weights
}

fn first() -> [Buffer<f32>; 1] {
    [Buffer::from_vec((0..COUNT).map(|at| at as f32).collect())]
}

#[test]
fn another_rate_holds_from_its_version_on_in_all_shards() {
    let mut options = served_by(vec![0, 1, 2], Optimizer::sgd());
    options.staleness = Staleness::Asp;
    options.workers = vec![0];
    for transport in TRANSPORTS {
        ranks((3, transport), |comm| {
            let server =
                ParameterServer::new(&comm, tensors(DataType::F32, &[COUNT]), options.clone())
                    .unwrap();
            if comm.rank() == 0 {
                let weights = [Buffer::from_vec(vec![0f32; COUNT])];
                server.init(&weights).unwrap();
                let one = [Buffer::from_vec(vec![-1f32; COUNT])];
                let value_after_step = || {
                    server.step(&one, &weights).unwrap();
                    let all = weights[0].to_vec().unwrap();
                    assert!(all.iter().all(|value| *value == all[0]));
                    all[0]
                };
                let set = |rate, from| server.set_optimizer(Optimizer::sgd(), rate, from);
                assert_eq!(value_after_step(), 0.1);
                assert_eq!(set(1.0, 0).unwrap(), 2);
                // Later ones wait, also those that are given out of their order.
                assert_eq!(set(100.0, 4).unwrap(), 4);
                assert_eq!(set(10.0, 3).unwrap(), 3);
                assert_eq!(value_after_step(), 1.1);
                assert_eq!(value_after_step(), 11.1);
                assert_eq!(value_after_step(), 111.1);
                // The first step of another kind: its own rate, and no state.
                let set = server.set_optimizer(Optimizer::adam(), 1.0, 0);
                assert_eq!(set.unwrap(), 5);
                assert!((value_after_step() - 112.1).abs() < 1e-3);
                let wrong = server.set_optimizer(Optimizer::momentum(-1.0), 1.0, 0);
                assert!(wrong.unwrap_err().to_string().contains("momentum"));
                let wrong = server.set_optimizer(Optimizer::sgd(), f32::NAN, 0);
                assert!(wrong.unwrap_err().to_string().contains("NaN"));
            }
            server.finish().unwrap();
        });
    }
}

/// The weights after eight rounds, in the middle of which the job is ended and goes on from its
/// checkpoint with other shards, or not.
fn train(optimizer: Optimizer, pulls: DataType, stop: bool) -> Vec<f32> {
    let folder = Folder::new("train");
    let mut results = Vec::new();
    let parts = match stop {
        true => vec![(vec![0, 1, 2], 0..3), (vec![1], 3..5), (vec![2, 0], 5..8)],
        false => vec![(vec![0, 1], 0..8)],
    };
    for (servers, numbers) in parts {
        let mut options = served_by(servers, optimizer);
        options.pulls = pulls;
        results = ranks((3, "shm"), |comm| {
            let server =
                ParameterServer::new(&comm, tensors(DataType::F32, &[COUNT]), options.clone())
                    .unwrap();
            let mut all = Vec::new();
            if comm.rank() < 2 {
                match numbers.start {
                    0 => server.init(&first()).unwrap(),
                    start => {
                        let start = u64::from(start);
                        assert_eq!(server.load(&folder.0).unwrap(), (start, start));
                    }
                }
                all = match pulls {
                    DataType::F32 => {
                        let weights = steps(&server, comm.rank(), numbers.clone());
                        weights[0].to_vec().unwrap()
                    }
                    _ => {
                        let weights = vec![Buffer::from_vec(vec![bf16::ZERO; COUNT])];
                        for number in numbers.clone() {
                            let own = gradient(comm.rank(), number, COUNT);
                            server.step(&[Buffer::from_vec(own)], &weights).unwrap();
                        }
                        let all = weights[0].to_vec().unwrap();
                        all.into_iter().map(bf16::to_f32).collect()
                    }
                };
                if comm.rank() == 1 && stop {
                    let version = server.save(&folder.0).unwrap();
                    assert_eq!(version, u64::from(numbers.end));
                }
            }
            server.finish().unwrap();
            all
        });
    }
    results.swap_remove(0)
}

#[test]
fn training_goes_on_from_a_checkpoint_with_the_same_bits_whatever_the_shards() {
    for optimizer in [
        Optimizer::sgd(),
        Optimizer::momentum(0.9),
        Optimizer::adamw(),
    ] {
        for pulls in [DataType::F32, DataType::Bf16] {
            let whole = train(optimizer, pulls, false);
            assert_eq!(
                train(optimizer, pulls, true),
                whole,
                "{optimizer:?} {pulls}"
            );
        }
    }
}

#[test]
fn what_is_no_checkpoint_is_refused_by_all_and_init_still_begins() {
    let folder = Folder::new("refused");
    let try_load = |names: &[usize]| {
        let texts = ranks((3, "tcp"), |comm| {
            let options = served_by(vec![1, 2], Optimizer::momentum(0.5));
            let server =
                ParameterServer::new(&comm, tensors(DataType::F32, names), options).unwrap();
            let mut text = String::new();
            let count: usize = names.iter().sum();
            let weights = [Buffer::from_vec(vec![1f32; count])];
            if comm.rank() == 0 {
                text = server.load(&folder.0).unwrap_err().to_string();
                server.init(&weights).unwrap();
            } else if comm.rank() == 1 {
                server.load(&folder.0).unwrap();
            }
            if comm.rank() < 2 {
                assert_eq!(server.step(&weights, &weights).unwrap(), [1, 1]);
                // Two workers, and the file of a folder's name is not a folder.
                if comm.rank() == 0 && folder.0.is_dir() {
                    let file = folder.files()[0].join("x");
                    let text = server.save(file).unwrap_err().to_string();
                    assert!(text.contains("Not a directory") && text.contains("rank 1"));
                    server.save(&folder.0).unwrap();
                }
            }
            server.finish().unwrap();
            text
        });
        texts[0].clone()
    };
    let none = try_load(&[COUNT]);
    assert!(
        none.contains("there is no checkpoint") && none.contains("rank 1"),
        "{none}"
    );
    std::fs::create_dir(&folder.0).unwrap();
    std::fs::write(folder.0.join("readme.weights"), "nothing").unwrap();
    assert!(try_load(&[COUNT]).contains("there is no checkpoint"));
    // Saved by that one; now a checkpoint of 300 elements is there.
    let other = try_load(&[COUNT - 100, 100]);
    assert!(other.contains("of other tensors"), "{other}");
    let files: Vec<PathBuf> = folder.files();
    let names: Vec<_> = files.iter().map(|file| file.file_name().unwrap()).collect();
    assert_eq!(names[1], "shard-0-of-2.000000000001.weights");
    assert_eq!(files.len(), 3, "{names:?}");
    let good = std::fs::read(&files[1]).unwrap();
    for bad in 0..4 {
        let mut bytes = good.clone();
        match bad {
            0 => bytes.truncate(good.len() - 9),
            1 => bytes[good.len() / 2] ^= 1,
            2 => bytes[3] ^= 1,
            _ => bytes.clear(),
        }
        std::fs::write(&files[1], &bytes).unwrap();
        let text = try_load(&[COUNT - 100, 100]);
        assert!(text.contains("is damaged"), "{bad}: {text}");
        // What try_load saves replaced it.
        assert_eq!(std::fs::read(&files[1]).unwrap(), good);
    }
    let mut bytes = good.clone();
    bytes[8] = 2;
    std::fs::write(&files[1], &bytes).unwrap();
    assert!(try_load(&[COUNT - 100, 100]).contains("later version"));
    std::fs::remove_file(&files[2]).unwrap();
    assert!(try_load(&[COUNT - 100, 100]).contains("there is no checkpoint"));
}

#[test]
fn a_worker_that_is_away_for_too_long_is_taken_out_and_told_so() {
    for (transport, staleness) in [("shm", Staleness::Bsp), ("tcp", Staleness::Ssp(1))] {
        let reports = ranks((4, transport), |comm| {
            let options = ServerOptions {
                servers: vec![0, 3],
                workers: vec![0, 1, 2],
                staleness,
                evict_after: Some(Duration::from_secs(1)),
                ..ServerOptions::default()
            };
            let sizes = tensors(DataType::F32, &[COUNT]);
            let server = ParameterServer::new(&comm, sizes, options).unwrap();
            if comm.rank() == 3 {
                return server.finish().unwrap();
            }
            server.init(&first()).unwrap();
            let rounds = if comm.rank() == 1 { 2 } else { 10 };
            let weights = steps(&server, comm.rank(), 0..rounds);
            if comm.rank() == 1 {
                std::thread::sleep(Duration::from_millis(2500));
                let error = server.step(&first(), &weights).unwrap_err().to_string();
                assert!(error.contains("evict_after") && error.contains("rank 1"));
                let again = server.finish().unwrap_err().to_string();
                assert!(again.contains("evict_after"), "{again}");
                return None;
            }
            server.finish().unwrap()
        });
        for report in reports.into_iter().flatten() {
            assert_eq!(report.lost, [1], "{transport}, {staleness:?}");
            assert_eq!(report.pushes, [10, 2, 10]);
            let updates = if staleness == Staleness::Bsp { 10 } else { 22 };
            assert_eq!(report.version, updates);
        }
    }
}

#[test]
fn a_rank_that_has_detached_serves_on_and_reports_while_it_does() {
    let reports = ranks((2, "shm"), |comm| {
        let options = ServerOptions {
            staleness: Staleness::Ssp(2),
            ..ServerOptions::default()
        };
        let server =
            ParameterServer::new(&comm, tensors(DataType::F32, &[COUNT]), options).unwrap();
        server.init(&first()).unwrap();
        let weights = [Buffer::from_vec(vec![0f32; COUNT])];
        if comm.rank() == 0 {
            let versions = server.push_pull(&first(), &weights).unwrap();
            assert!(versions[0] >= 1 && versions[1] >= 1);
            server.detach().unwrap();
            server.detach().unwrap();
            let error = server.push(&first()).unwrap_err().to_string();
            assert!(error.contains("push after detach"), "{error}");
        } else {
            steps(&server, 1, 0..20);
            let report = server.report().unwrap().unwrap();
            assert!(report.version >= 20 && report.pushes[1] == 20, "{report:?}");
        }
        server.finish().unwrap().unwrap()
    });
    for report in reports {
        assert_eq!((report.version, report.lost), (21, vec![]));
    }
}

#[test]
fn a_worker_that_was_away_comes_back_as_the_slowest_one() {
    for transport in TRANSPORTS {
        for staleness in [Staleness::Bsp, Staleness::Ssp(0), Staleness::Ssp(3)] {
            let (is_away, is_back) = (AtomicBool::new(false), AtomicBool::new(false));
            let reports = ranks((3, transport), |comm| {
                let options = ServerOptions {
                    servers: vec![0],
                    staleness,
                    ..ServerOptions::default()
                };
                let server =
                    ParameterServer::new(&comm, tensors(DataType::F32, &[COUNT]), options).unwrap();
                let weights = first();
                match comm.rank() {
                    0 => {}
                    1 => {
                        server.init(&weights).unwrap();
                        steps(&server, 1, 0..2);
                        while !is_away.load(Ordering::SeqCst) {
                            std::thread::yield_now();
                        }
                        // Nobody waits for the other.
                        steps(&server, 1, 2..12);
                        is_away.store(false, Ordering::SeqCst);
                        // With the last worker the server would finish.
                        while !is_back.load(Ordering::SeqCst) {
                            std::thread::yield_now();
                        }
                        steps(&server, 1, 12..20);
                    }
                    _ => {
                        server.init(&weights).unwrap();
                        let error = server.attach().unwrap_err().to_string();
                        assert!(error.contains("has not detached"), "{error}");
                        steps(&server, 2, 0..2);
                        server.detach().unwrap();
                        is_away.store(true, Ordering::SeqCst);
                        while is_away.load(Ordering::SeqCst) {
                            std::thread::yield_now();
                        }
                        server.attach().unwrap();
                        is_back.store(true, Ordering::SeqCst);
                        server.pull(&weights).unwrap();
                        steps(&server, 2, 2..7);
                    }
                }
                server.finish().unwrap()
            });
            let report = reports[0].as_ref().unwrap();
            assert_eq!(report.pushes, [20, 7], "{transport} {staleness:?}");
            assert!(report.lost.is_empty() && report.drift_max <= 4);
        }
    }
}

#[test]
fn gradients_that_lie_in_memory_of_the_server_are_read_there_and_borrowed_meanwhile() {
    for transport in TRANSPORTS {
        for slots in [1, 2, 3] {
            ranks((3, transport), |comm| {
                let options = ServerOptions {
                    servers: vec![0, 1],
                    workers: vec![1, 2],
                    rate: 1.0,
                    slots,
                    ..ServerOptions::default()
                };
                let sizes = tensors(DataType::F32, &[COUNT - 70, 70]);
                let server = ParameterServer::new(&comm, sizes, options).unwrap();
                if comm.rank() > 0 {
                    let weights = [Buffer::from_vec(vec![0f32; COUNT])];
                    let before = server.gradients::<f32>().unwrap_err().to_string();
                    assert!(before.contains("init first"), "{before}");
                    server.init(&weights).unwrap();
                    let wrong = server.gradients::<bf16>().unwrap_err().to_string();
                    assert!(wrong.contains("has f32"), "{wrong}");
                    for step in 1..=10 {
                        let own = vec![-(step as f32); COUNT];
                        // Now and then from another place.
                        if step % 4 == 0 {
                            server.push(&[Buffer::from_vec(own)]).unwrap();
                        } else {
                            let gradients = server.gradients::<f32>().unwrap();
                            gradients.write(0, &own).unwrap();
                            if comm.rank() == 2 && step == 1 {
                                comm.recv(&mut [0u8], 1).unwrap();
                            }
                            server.push(std::slice::from_ref(&gradients)).unwrap();
                            if comm.rank() == 1 && step == 1 {
                                // The other worker has not pushed: this push is in no weights.
                                let is_lent = gradients.write(0, &own);
                                assert!(matches!(is_lent, Err(Error::InUse { .. })));
                                comm.send(&[0u8], 2).unwrap();
                            }
                        }
                        server.wait_ok().unwrap();
                        server.pull(&weights).unwrap();
                        let sum = (step * (step + 1) / 2) as f32;
                        assert_eq!(weights[0].to_vec().unwrap(), vec![sum; COUNT]);
                    }
                }
                if let Some(report) = server.finish().unwrap() {
                    assert!(report.lost.is_empty() && report.version == 10, "{report:?}");
                }
            });
        }
    }
}

#[test]
fn a_function_updates_the_weights_of_each_part_once() {
    for (pulls, servers) in [(DataType::F32, vec![0]), (DataType::Bf16, vec![1, 0])] {
        ranks((2, "shm"), |comm| {
            let options = ServerOptions {
                servers: servers.clone(),
                workers: vec![0, 1],
                pulls,
                ..ServerOptions::default()
            };
            // Longer than a block.
            let count = 5000;
            let update = |range: Range<usize>, gradient: &[f32], weights: &mut [f32]| {
                let all = range.zip(gradient).zip(weights);
                all.for_each(|((at, gradient), weight)| *weight += gradient + (at % 2) as f32);
            };
            let sizes = tensors(DataType::Bf16, &[count]);
            let server = ParameterServer::with_update(&comm, sizes, options, update).unwrap();
            server.init(&[Buffer::from_vec(vec![1f32; count])]).unwrap();
            let own = vec![bf16::from_f32(2.0 * comm.rank() as f32); count];
            let own = [Buffer::from_vec(own)];
            let expected: Vec<f32> = (0..count).map(|at| 2.0 + (at % 2) as f32).collect();
            match pulls {
                DataType::F32 => {
                    let weights = [Buffer::from_vec(vec![0f32; count])];
                    server.step(&own, &weights).unwrap();
                    assert_eq!(weights[0].to_vec().unwrap(), expected);
                }
                _ => {
                    let weights = [Buffer::from_vec(vec![bf16::ZERO; count])];
                    server.step(&own, &weights).unwrap();
                    let all = weights[0].to_vec().unwrap().into_iter();
                    assert_eq!(all.map(bf16::to_f32).collect::<Vec<_>>(), expected);
                }
            }
            let refused = server.set_optimizer(Optimizer::sgd(), 1.0, 0);
            assert!(refused.unwrap_err().to_string().contains("a function"));
            server.finish().unwrap();
        });
    }
}
