//! Parameter servers: weights that are read while they change, and ranks of several hosts.

use super::hosts::on_hosts;
use crate::threads::on_threads;
use linerate::options::{ServerOptions, Staleness};
use linerate::{Buffer, Config, DataType, ParameterServer, TensorSpec};

fn tensors(count: usize) -> Vec<TensorSpec> {
    vec![TensorSpec {
        name: "weights".into(),
        count: count as u64,
        dtype: DataType::F32,
    }]
}

#[test]
fn weights_that_are_pulled_while_others_push_are_of_one_version() {
    // 64 MiB and 16, which are read for as long as updates take, or longer.
    let steps = 4;
    for (transport, count) in [("shm", 16 << 20), ("tcp", 4 << 20)] {
        let config = Config {
            transport: transport.into(),
            ..Config::default()
        };
        let most = on_threads(4, &config, |comm| {
            let options = ServerOptions {
                servers: vec![0],
                staleness: Staleness::Asp,
                rate: 1.0,
                slots: 1,
                ..ServerOptions::default()
            };
            let server = ParameterServer::new(&comm, tensors(count), options).unwrap();
            let mut most = 0.0;
            if comm.rank() > 0 {
                let weights = [comm.alloc::<f32>(count).unwrap()];
                server.init(&weights).unwrap();
                let pushes = |gradient: &[Buffer<f32>]| {
                    for _ in 0..steps {
                        server.push(gradient).unwrap();
                    }
                };
                // Two push all the time, and one pulls.
                if comm.rank() < 3 {
                    let gradient = [comm.alloc::<f32>(count).unwrap()];
                    gradient[0].write(0, &vec![-1.0; count]).unwrap();
                    pushes(&gradient);
                }
                let mut version = 0;
                while version < 2 * steps {
                    version = server.pull(&weights).unwrap()[0];
                    let all = weights[0].as_slice().unwrap();
                    assert!(all.iter().all(|&one| one == version as f32), "{transport}");
                    most = all[0];
                }
            }
            server.finish().unwrap();
            most
        });
        assert_eq!(most[1..], [2.0 * steps as f32; 3], "{transport}");
    }
}

#[test]
fn ranks_of_two_hosts_train_with_one_server() {
    for staleness in [Staleness::Bsp, Staleness::dssp(1, 4).unwrap()] {
        on_hosts(2, 2, |comm| {
            let (count, steps) = (10_007, 20);
            let options = ServerOptions {
                servers: vec![3, 0],
                workers: vec![0, 1, 2, 3],
                staleness,
                rate: 1.0,
                ..ServerOptions::default()
            };
            let server = ParameterServer::new(&comm, tensors(count), options).unwrap();
            let weights = [Buffer::from_vec(vec![0f32; count])];
            let gradient = [Buffer::from_vec(vec![-1f32; count])];
            server.init(&weights).unwrap();
            for step in 1..=steps {
                server.step(&gradient, &weights).unwrap();
                let all = weights[0].to_vec().unwrap();
                let least = all.iter().copied().fold(f32::MAX, f32::min);
                assert!(least >= step as f32, "{least}");
            }
            let report = server.finish().unwrap();
            let updates = if staleness == Staleness::Bsp { 1 } else { 4 } * steps;
            assert!(report.is_none_or(|report| report.version == updates));
        });
    }
}
