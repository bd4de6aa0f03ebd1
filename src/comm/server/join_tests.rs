//! Processes that join a parameter server later, as threads with a communicator of their own.

use super::thread_tests::{TRANSPORTS, ranks, tensors};
use super::*;
use crate::comm::Simulation;
use crate::staleness::Staleness;
use crate::transport::sim::SimOptions;
use std::sync::Barrier;
use std::time::Duration;

/// Elements, of which each of two shards has half.
const COUNT: usize = 2 * 1536;

fn options(staleness: Staleness, spares: u32, replicas: u32) -> ServerOptions {
    ServerOptions {
        servers: (0..2).collect(),
        staleness,
        spares,
        replicas,
        rate: 1.0,
        ..ServerOptions::default()
    }
}

fn config() -> Config {
    Config {
        timeout: Duration::from_secs(20),
        ..Config::default()
    }
}

fn join(address: &str, options: &ServerOptions) -> Result<ParameterServer> {
    let all = tensors(DataType::F32, &[COUNT]);
    ParameterServer::join(address, all, options.clone(), config())
}

fn new(comm: &Communicator, options: &ServerOptions) -> ParameterServer {
    ParameterServer::new(comm, tensors(DataType::F32, &[COUNT]), options.clone()).unwrap()
}

/// Steps with gradients of -1; gives the weights after them.
fn steps(server: &ParameterServer, count: u32) -> f32 {
    let weights = [Buffer::from_vec(vec![0f32; COUNT])];
    for _ in 0..count {
        let gradient = Buffer::from_vec(vec![-1f32; COUNT]);
        server.step(&[gradient], &weights).unwrap();
        let all = weights[0].to_vec().unwrap();
        let is_whole = |part: &[f32]| part.iter().all(|one| *one == part[0]);
        assert!(all.chunks(COUNT / 2).all(is_whole), "not of one version");
    }
    weights[0].to_vec().unwrap()[0]
}

#[test]
fn processes_take_the_place_of_one_that_has_ended_and_a_spare_one() {
    for transport in TRANSPORTS {
        for (staleness, replicas) in [
            (Staleness::Asp, 0),
            (Staleness::Asp, 1),
            (Staleness::Ssp(1), 1),
            (Staleness::Bsp, 0),
        ] {
            let options = options(staleness, 1, replicas);
            let case = format!("{transport} {staleness:?} {replicas}");
            let (stepped, joined) = (Barrier::new(2), Barrier::new(3));
            // Adds up all pushes, and in rounds the mean of each.
            let (sum, pulled) = match staleness {
                Staleness::Bsp => (7.0, 3.0),
                _ => (18.0, 6.0),
            };
            let come = |address: &str| {
                let server = join(address, &options).unwrap();
                let weights = [Buffer::from_vec(vec![0f32; COUNT])];
                let versions = server.pull(&weights).unwrap();
                assert!(versions.iter().all(|&one| one as f32 == pulled), "{case}");
                assert_eq!(weights[0].to_vec().unwrap(), vec![pulled; COUNT], "{case}");
                joined.wait();
                steps(&server, 4);
                let (place, address) = (server.worker(), server.address().unwrap());
                server.finish().unwrap();
                (place.unwrap(), address)
            };
            let reports = ranks((4, transport), |comm| {
                let server = new(&comm, &options);
                if comm.rank() < 2 {
                    return server.finish().unwrap();
                }
                server.init(&[Buffer::from_vec(vec![0f32; COUNT])]).unwrap();
                steps(&server, 3);
                stepped.wait();
                if comm.rank() == 2 {
                    joined.wait();
                    steps(&server, 4);
                    server.finish().unwrap();
                    return None;
                }
                let address = server.address().unwrap();
                // It goes without a word to the servers.
                drop((server, comm));
                let mut places = std::thread::scope(|scope| {
                    let two = [0, 1].map(|_| scope.spawn(|| come(&address)));
                    two.map(|one| one.join().unwrap())
                });
                places.sort();
                assert_eq!(
                    places,
                    [(1, address.clone()), (2, address.clone())],
                    "{case}"
                );
                None
            });
            let servers: Vec<ServerReport> = reports.into_iter().flatten().collect();
            for report in servers {
                assert_eq!(report.pushes, [7, 7, 4], "{case}");
                assert_eq!(report.version as f32, sum, "{case}");
            }
        }
    }
}

#[test]
fn a_process_that_cannot_join_is_told_why() {
    let options = options(Staleness::Asp, 0, 0);
    let text = |address: &str, options: &ServerOptions| {
        let all = tensors(DataType::F32, &[COUNT]);
        let config = Config {
            timeout: Duration::from_secs(1),
            ..Config::default()
        };
        let joined = ParameterServer::join(address, all, options.clone(), config);
        joined.map(drop).unwrap_err().to_string()
    };
    let address = ranks((3, "shm"), |comm| {
        let server = new(&comm, &options);
        let address = server.address().unwrap();
        if comm.rank() == 2 {
            let said = text(&address, &options);
            assert!(said.contains("no weights yet"), "{said}");
            server.init(&[Buffer::from_vec(vec![0f32; COUNT])]).unwrap();
            steps(&server, 1);
            let said = text(&address, &options);
            assert!(said.contains("all 1 workers are there"), "{said}");
            assert!(said.contains("ServerOptions::spares"), "{said}");
            let mut others = options.clone();
            others.rate = 0.5;
            let said = text(&address, &others);
            assert!(said.contains("other tensors or options"), "{said}");
            assert!(said.contains("rate: 0.5") && said.contains("rate: 1.0"));
            // Nothing of that has hurt.
            steps(&server, 1);
        }
        server.finish().unwrap();
        address
    });
    let said = text(&address[0], &options);
    assert!(said.contains("nobody listens there"), "{said}");
    let said = text("here", &options);
    assert!(said.contains("'here' is no address"), "{said}");
    let many = ServerOptions {
        spares: u32::MAX,
        ..options
    };
    ranks((1, "shm"), |comm| {
        let tensors = tensors(DataType::F32, &[COUNT]);
        let options = ServerOptions {
            servers: vec![0],
            ..many.clone()
        };
        let error = ParameterServer::new(&comm, tensors, options).unwrap_err();
        assert!(
            error.to_string().contains("spares besides 1 ranks"),
            "{error}"
        );
    });
}

#[test]
fn a_process_joins_where_connections_are_made_at_their_first_use() {
    let count = 20;
    let options = options(Staleness::Asp, 0, 0);
    let stepped = Barrier::new(count as usize - 2);
    let reports = ranks((count, "tcp"), |comm| {
        let server = new(&comm, &options);
        if comm.rank() < 2 {
            return server.finish().unwrap();
        }
        server.init(&[Buffer::from_vec(vec![0f32; COUNT])]).unwrap();
        steps(&server, 2);
        if comm.rank() == 7 {
            let address = server.address().unwrap();
            drop((server, comm));
            let server = join(&address, &options).unwrap();
            assert_eq!(server.worker(), Some(5));
            steps(&server, 2);
            stepped.wait();
            server.finish().unwrap();
            return None;
        }
        stepped.wait();
        server.finish().unwrap();
        None
    });
    let servers: Vec<ServerReport> = reports.into_iter().flatten().collect();
    for report in servers {
        assert_eq!(report.version, 2 * 18 + 2, "{report:?}");
        assert_eq!(report.pushes[5], 4);
    }
}

#[test]
fn a_simulation_has_no_places_for_processes_that_come_later() {
    let simulation = Simulation::new(SimOptions::new(2, 1), Config::default()).unwrap();
    let options = options(Staleness::Asp, 1, 0);
    let all = tensors(DataType::F32, &[COUNT]);
    let refused = SimulatedServer::new(&simulation, &all, &options).map(drop);
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("spares in a simulation"), "{text}");
}
