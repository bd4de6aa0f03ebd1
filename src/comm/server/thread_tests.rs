//! Parameter servers of real ranks, which wait: over shared memory and over sockets.

use super::*;
use crate::config::Config;
use crate::staleness::Staleness;
use crate::types::{Collective, ReduceOp};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Runs ranks as threads, each with its communicator.
pub fn ranks<T: Send>(
    (ranks, transport): (u32, &str),
    run: impl Fn(Communicator) -> T + Sync,
) -> Vec<T> {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let number = JOBS.fetch_add(1, Ordering::Relaxed);
    let job = format!("servers-{}-{number}", std::process::id());
    let config = || Config {
        transport: transport.into(),
        timeout: Duration::from_secs(20),
        ..Config::default()
    };
    std::thread::scope(|scope| {
        let start = |rank| {
            let (job, run) = (&job, &run);
            scope.spawn(move || run(Communicator::join(rank, ranks, job, config()).unwrap()))
        };
        let all: Vec<_> = (0..ranks).map(start).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

/// Tensors of these lengths.
pub fn tensors(dtype: DataType, counts: &[usize]) -> Vec<TensorSpec> {
    let tensor = |(at, &count): (usize, &usize)| TensorSpec {
        name: format!("tensor {at}"),
        count: count as u64,
        dtype,
    };
    counts.iter().enumerate().map(tensor).collect()
}

pub const TRANSPORTS: [&str; 2] = ["shm", "tcp"];

/// The gradient of a worker's step: floats that no sum keeps exactly.
pub fn gradient(rank: u32, step: u32, count: usize) -> Vec<f32> {
    let at = |index: usize| 0.1 + (index as f32).sin() * (rank + 1) as f32 / (step + 1) as f32;
    (0..count).map(at).collect()
}

#[test]
fn a_round_of_bsp_is_an_allreduce_with_the_mean_and_the_same_optimizer() {
    let sizes = [1000, 1, 77];
    for transport in TRANSPORTS {
        for servers in [vec![], vec![1], vec![2, 0]] {
            let options = ServerOptions {
                servers,
                workers: vec![0, 1, 2],
                rate: 0.1,
                ..ServerOptions::default()
            };
            ranks((3, transport), |comm| {
                let total: usize = sizes.iter().sum();
                let server =
                    ParameterServer::new(&comm, tensors(DataType::F32, &sizes), options.clone())
                        .unwrap();
                let cut = |all: &[f32]| -> Vec<Buffer<f32>> {
                    let mut all = all;
                    let parts = sizes.iter().map(|&size| {
                        let (own, rest) = all.split_at(size);
                        all = rest;
                        Buffer::from_vec(own.to_vec())
                    });
                    parts.collect()
                };
                let mut expected = vec![1f32; total];
                let weights = cut(&expected);
                server.init(&weights).unwrap();
                for step in 0..5 {
                    let own = gradient(comm.rank(), step, total);
                    let versions = server.step(&cut(&own), &weights).unwrap();
                    assert!(
                        versions
                            .iter()
                            .all(|&version| version == u64::from(step) + 1)
                    );
                    let all = [0, 1, 2].map(|rank| gradient(rank, step, total));
                    let sums = (0..total).map(|at| (all[0][at] + all[1][at]) + all[2][at]);
                    let mean: Vec<f32> = sums.map(|sum| sum / 3.0).collect();
                    if transport == "shm" {
                        let sum = comm.alloc::<f32>(total).unwrap();
                        sum.write(0, &own).unwrap();
                        comm.collective(Collective::AllReduce, DataType::F32, total as u64)
                            .algorithm("direct")
                            .op(ReduceOp::Avg)
                            .input(&sum)
                            .output(&sum)
                            .run()
                            .unwrap();
                        assert_eq!(mean, sum.to_vec().unwrap());
                    }
                    for (weight, mean) in expected.iter_mut().zip(&mean) {
                        *weight -= 0.1 * mean;
                    }
                    let pulled: Vec<f32> = weights
                        .iter()
                        .flat_map(|one| one.to_vec().unwrap())
                        .collect();
                    assert_eq!(pulled, expected, "{transport}, {options:?}, step {step}");
                }
                let report = server.finish().unwrap();
                if let Some(report) = report {
                    assert_eq!((report.version, report.staleness), (5, vec![15]));
                }
            });
        }
    }
}

#[test]
fn workers_of_any_speed_go_on_by_the_mode_and_no_push_is_lost() {
    let count = 300;
    for transport in TRANSPORTS {
        let modes = [
            Staleness::Ssp(0),
            Staleness::Ssp(2),
            Staleness::dssp(1, 4).unwrap(),
            Staleness::Asp,
        ];
        for staleness in modes {
            let options = ServerOptions {
                servers: vec![0, 3],
                workers: vec![1, 2, 3],
                staleness,
                rate: 1.0,
                ..ServerOptions::default()
            };
            let last = ranks((4, transport), |comm| {
                let server =
                    ParameterServer::new(&comm, tensors(DataType::F32, &[count]), options.clone())
                        .unwrap();
                let mut most = 0f32;
                if comm.rank() > 0 {
                    let weights = comm.alloc::<f32>(count).unwrap();
                    let gradient = comm.alloc::<f32>(count).unwrap();
                    gradient.write(0, &vec![-1.0; count]).unwrap();
                    server.init(std::slice::from_ref(&weights)).unwrap();
                    let mut before = vec![0; 2];
                    for _ in 0..30 {
                        if comm.rank() == 1 {
                            std::thread::sleep(Duration::from_micros(300));
                        }
                        let one = std::slice::from_ref(&weights);
                        server.push(std::slice::from_ref(&gradient)).unwrap();
                        let answer = server.wait_ok().unwrap();
                        if let Staleness::Ssp(bound) = staleness {
                            assert!(answer.drift <= u64::from(bound) + 1);
                        }
                        let versions = server.pull(one).unwrap();
                        assert!(versions.iter().zip(&before).all(|(new, old)| new > old));
                        before = versions;
                    }
                    most = weights.to_vec().unwrap().into_iter().fold(0.0, f32::max);
                }
                let report = server.finish().unwrap();
                assert_eq!(report.is_some(), [0, 3].contains(&comm.rank()));
                if let Some(report) = report {
                    assert_eq!(report.version, 90);
                    assert_eq!(report.staleness.iter().sum::<u64>(), 90);
                }
                most
            });
            let most = last.into_iter().fold(0.0, f32::max);
            assert_eq!(most, 90.0, "{transport}, {staleness:?}");
        }
    }
}

#[test]
fn what_is_misused_is_refused_and_the_rest_goes_on() {
    ranks((2, "shm"), |comm| {
        let wrong = [
            ServerOptions {
                servers: vec![2],
                ..ServerOptions::default()
            },
            ServerOptions {
                workers: vec![0, 0],
                ..ServerOptions::default()
            },
            ServerOptions {
                slots: 0,
                ..ServerOptions::default()
            },
            ServerOptions {
                rate: f32::NAN,
                ..ServerOptions::default()
            },
            ServerOptions {
                pulls: DataType::I32,
                ..ServerOptions::default()
            },
        ];
        for options in wrong {
            let refused = ParameterServer::new(&comm, tensors(DataType::F32, &[10]), options);
            assert!(
                matches!(refused, Err(Error::InvalidArgument(_))),
                "{refused:?}"
            );
        }
        let few = ParameterServer::new(
            &comm,
            tensors(DataType::F32, &[1]),
            ServerOptions::default(),
        )
        .unwrap_err();
        assert!(
            few.to_string()
                .contains("at least one element for each shard"),
            "{few}"
        );
        let sizes = [10 + comm.rank() as usize];
        let differ = ParameterServer::new(
            &comm,
            tensors(DataType::F32, &sizes),
            ServerOptions::default(),
        )
        .unwrap_err();
        assert!(
            differ.to_string().contains("all ranks give the same"),
            "{differ}"
        );

        let whole_numbers = tensors(DataType::I32, &[9]);
        let refused = ParameterServer::new(&comm, whole_numbers, ServerOptions::default());
        assert!(refused.unwrap_err().to_string().contains("'tensor 0'"));
        let options = ServerOptions {
            servers: vec![0],
            ..ServerOptions::default()
        };
        let server = ParameterServer::new(&comm, tensors(DataType::F32, &[6, 4]), options).unwrap();
        let says = |result: Result<()>, text: &str| {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        };
        let whole = Buffer::from_vec(vec![0f32; 10]);
        let one = std::slice::from_ref(&whole);
        if comm.rank() == 0 {
            says(server.push(one), "rank 0, which is no worker");
        } else {
            says(server.push(one), "call init first");
            server.init(one).unwrap();
            says(server.init(one), "init or load is called once");
            says(server.push(&[whole.range(..6)]), "1 buffers for 2 tensors");
            let swapped = [whole.range(..4), whole.range(4..)];
            says(
                server.push(&swapped),
                "4 elements for tensor 'tensor 0', which has 6",
            );
            says(server.push(&[Buffer::from_vec(vec![0f64; 10])]), "has f32");
            says(
                server.step(one, &[whole.range(..3)]).map(drop),
                "for 2 tensors",
            );
            assert_eq!(server.step(one, one).unwrap(), [1]);
        }
        server.finish().unwrap();
    });
}

#[test]
fn a_worker_that_goes_early_holds_nobody_up() {
    ranks((3, "shm"), |comm| {
        let options = ServerOptions {
            servers: vec![0],
            ..ServerOptions::default()
        };
        let server = ParameterServer::new(&comm, tensors(DataType::F32, &[8]), options).unwrap();
        let weights = [Buffer::from_vec(vec![0f32; 8])];
        let result = match comm.rank() {
            0 => server.finish().map(drop),
            1 => {
                server.init(&weights).unwrap();
                drop(server);
                return;
            }
            _ => {
                server.init(&weights).unwrap();
                for step in 1..=3 {
                    let versions = server.step(&weights, &weights).unwrap();
                    assert_eq!(versions, [step]);
                }
                server.finish().map(drop)
            }
        };
        result.unwrap();
    });
}

#[test]
fn a_server_whose_shard_another_has_may_go_early() {
    for transport in TRANSPORTS {
        for gone in 0..4 {
            let reports = ranks((6, transport), |comm| {
                let options = ServerOptions {
                    servers: vec![0, 1, 2, 3],
                    replicas: 1,
                    staleness: Staleness::Ssp(1),
                    rate: 1.0,
                    ..ServerOptions::default()
                };
                let rank = comm.rank();
                let server = ParameterServer::new(&comm, tensors(DataType::F32, &[300]), options);
                let server = server.unwrap();
                drop(comm);
                if rank == gone {
                    // A worker tells it that all have begun.
                    while server.report().unwrap().unwrap().version < 2 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    return None; // It is dropped.
                }
                if rank < 4 {
                    return server.finish().unwrap();
                }
                let weights = [Buffer::from_vec(vec![0f32; 300])];
                server.init(&weights).unwrap();
                for push in 0..40 {
                    let versions = (server.step(&[Buffer::from_vec(vec![-1f32; 300])], &weights))
                        .unwrap_or_else(|error| panic!("{transport}, {gone}, {push}: {error}"));
                    assert_eq!(versions.len(), 2);
                }
                server.finish().unwrap();
                None
            });
            let reports: Vec<ServerReport> = reports.into_iter().flatten().collect();
            assert_eq!(reports.len(), 3);
            for report in &reports {
                assert_eq!((report.version, &report.pushes[..]), (80, &[40, 40][..]));
            }
            // The one that leads needs it.
            assert_eq!(reports[0].lost, [gone], "{transport}");
        }
    }
}

#[test]
fn a_server_that_goes_early_is_an_error_on_all_that_names_it() {
    ranks((4, "shm"), |comm| {
        let options = ServerOptions {
            servers: vec![0, 1],
            ..ServerOptions::default()
        };
        let server = ParameterServer::new(&comm, tensors(DataType::F32, &[200]), options).unwrap();
        let weights = [Buffer::from_vec(vec![0f32; 200])];
        let result = match comm.rank() {
            0 => server.finish().map(drop),
            1 => {
                std::thread::sleep(Duration::from_millis(50));
                drop(server);
                return;
            }
            _ => {
                let begun = server.init(&weights);
                begun.and_then(|()| {
                    loop {
                        server.step(&weights, &weights)?;
                    }
                })
            }
        };
        let error = result.unwrap_err().to_string();
        assert!(error.contains("rank 1 has left"), "{error}");
    });
}

#[test]
fn a_worker_that_stays_away_is_named_after_the_timeout() {
    ranks((3, "shm"), |comm| {
        let options = ServerOptions {
            servers: vec![0],
            ..ServerOptions::default()
        };
        let server = ParameterServer::new(&comm, tensors(DataType::F32, &[8]), options).unwrap();
        server
            .calls
            .shared
            .comm
            .set_timeout(Duration::from_millis(300))
            .unwrap();
        let weights = [Buffer::from_vec(vec![0f32; 8])];
        let error = match comm.rank() {
            0 => server.finish().map(drop),
            1 => {
                server.init(&weights).unwrap();
                server.step(&weights, &weights).map(drop)
            }
            _ => {
                server.init(&weights).unwrap();
                // Until the others have given up.
                while server
                    .calls
                    .shared
                    .comm
                    .driving()
                    .unwrap()
                    .engine()
                    .check()
                    .is_ok()
                {
                    server
                        .calls
                        .shared
                        .comm
                        .driving()
                        .unwrap()
                        .drive_then(|_| ());
                    std::thread::sleep(Duration::from_millis(1));
                }
                server.step(&weights, &weights).map(drop)
            }
        };
        let error = error.unwrap_err().to_string();
        let is_named = error.contains("rank 2") || error.contains("[2]");
        assert!(
            is_named && error.contains("worker 1 has the fewest"),
            "{error}"
        );
    });
}

#[test]
fn gradients_and_weights_of_16_bits_are_kept_in_32() {
    let count = 100;
    for (gradients, pulls) in [
        (DataType::F16, DataType::Bf16),
        (DataType::Bf16, DataType::F16),
        (DataType::F32, DataType::F16),
    ] {
        let options = ServerOptions {
            servers: vec![0, 1],
            staleness: Staleness::Asp,
            rate: 0.125,
            pulls,
            ..ServerOptions::default()
        };
        ranks((3, "shm"), |comm| {
            let server =
                ParameterServer::new(&comm, tensors(gradients, &[count]), options.clone()).unwrap();
            if comm.rank() == 2 {
                server.init(&[Buffer::from_vec(vec![1f32; count])]).unwrap();
                let versions = match (gradients, pulls) {
                    (DataType::F16, _) => {
                        let gradient = vec![half::f16::from_f32(2.0); count];
                        let weights = Buffer::from_vec(vec![half::bf16::ZERO; count]);
                        let gradient = [Buffer::from_vec(gradient)];
                        let versions = server
                            .step(&gradient, std::slice::from_ref(&weights))
                            .unwrap();
                        assert_eq!(weights.to_vec().unwrap()[count - 1].to_f32(), 0.75);
                        versions
                    }
                    (DataType::Bf16, _) => {
                        let gradient = vec![half::bf16::from_f32(2.0); count];
                        let weights = Buffer::from_vec(vec![half::f16::ZERO; count]);
                        // Before anything is pushed.
                        assert_eq!(server.pull(std::slice::from_ref(&weights)).unwrap(), [0, 0]);
                        assert_eq!(weights.to_vec().unwrap()[0].to_f32(), 1.0);
                        let gradient = [Buffer::from_vec(gradient)];
                        let versions = server
                            .step(&gradient, std::slice::from_ref(&weights))
                            .unwrap();
                        assert_eq!(weights.to_vec().unwrap()[0].to_f32(), 0.75);
                        versions
                    }
                    _ => {
                        // Steps that 16 bits would lose, one by one.
                        let weights = [Buffer::from_vec(vec![half::f16::ZERO; count])];
                        let gradient = [Buffer::from_vec(vec![-2f32.powi(-10); count])];
                        let mut versions = Vec::new();
                        for _ in 0..16 {
                            versions = server.step(&gradient, &weights).unwrap();
                        }
                        let expected = 1.0 + 2f32.powi(-9);
                        assert_eq!(weights[0].to_vec().unwrap()[0].to_f32(), expected);
                        versions
                    }
                };
                assert_eq!(versions[0], versions[1]);
            }
            server.finish().unwrap();
        });
    }
}

#[test]
fn pushes_that_are_not_finite_are_left_out_or_an_error_as_is_asked_for() {
    for (nonfinite, servers) in [
        (NonFinitePush::Accept, vec![0]),
        (NonFinitePush::Skip, vec![0]),
        (NonFinitePush::Skip, vec![0, 1]),
        (NonFinitePush::Error, vec![0, 1]),
    ] {
        let options = ServerOptions {
            servers: servers.clone(),
            workers: vec![2, 3],
            rate: 1.0,
            nonfinite,
            ..ServerOptions::default()
        };
        ranks((4, "shm"), |comm| {
            let server =
                ParameterServer::new(&comm, tensors(DataType::F32, &[200]), options.clone())
                    .unwrap();
            let run = || -> Result<()> {
                if comm.rank() < 2 {
                    return Ok(());
                }
                let weights = [Buffer::from_vec(vec![0f32; 200])];
                server.init(&weights)?;
                for step in 0..3 {
                    let mut gradient = vec![-2f32; 200];
                    if step == 1 && comm.rank() == 3 {
                        // In the last shard only.
                        gradient[199] = f32::NAN;
                    }
                    server.step(&[Buffer::from_vec(gradient)], &weights)?;
                }
                let last = weights[0].to_vec()?[199];
                assert_eq!(last.is_nan(), nonfinite == NonFinitePush::Accept);
                // The mean of a round is that of the pushes in it.
                assert!(nonfinite != NonFinitePush::Skip || last == 6.0, "{last}");
                Ok(())
            };
            let result = run().and_then(|()| server.finish());
            match nonfinite {
                NonFinitePush::Error => {
                    let is_server = servers.contains(&comm.rank());
                    let error = result.map(|_| ()).unwrap_err().to_string();
                    assert!(error.contains("worker 1, rank 3") || !is_server, "{error}");
                    assert!(error.contains("NaN"), "{error}");
                }
                _ => {
                    let report = result.unwrap();
                    let skipped = report.map_or(0, |report| report.skipped);
                    let is_server = servers.contains(&comm.rank());
                    assert_eq!(skipped == 1, is_server && nonfinite == NonFinitePush::Skip);
                }
            }
        });
    }
}
