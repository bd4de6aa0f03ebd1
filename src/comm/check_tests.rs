//! Settings that a caller has written into [`Config`] itself are checked wherever a communicator or
//! a transport is made.

use super::{Communicator, Simulation};
use crate::config::{Config, TcpSettings};
use crate::error::Error;
use crate::transport;
use crate::transport::sim::SimOptions;

#[test]
fn every_way_to_a_communicator_or_a_transport_checks() {
    let wrong = Config {
        chunk_bytes: 0,
        ..Config::default()
    };
    let wants = |error: Error, name: &str| {
        let text = error.to_string();
        assert!(
            matches!(error, Error::InvalidArgument(_)) && text.contains(name),
            "{text}"
        );
    };
    let job = format!("wrong-{}", std::process::id());
    let joined = Communicator::join(0, 1, &job, wrong.clone()).map(drop);
    wants(joined.unwrap_err(), "chunk_bytes");
    let joined = Communicator::from_env_with(wrong.clone()).map(drop);
    wants(joined.unwrap_err(), "chunk_bytes");
    let simulated = Simulation::new(SimOptions::new(2, 1), wrong).map(drop);
    wants(simulated.unwrap_err(), "chunk_bytes");
    let simulated = Simulation::new(SimOptions::new(0, 1), Config::default()).map(drop);
    wants(simulated.unwrap_err(), "ranks is 0");
    let options = transport::Options {
        tcp: TcpSettings {
            rails: 0,
            ..TcpSettings::default()
        },
        ..transport::Options::default()
    };
    let opened = transport::open("tcp", 0, 2, 7, &options).map(drop);
    wants(opened.unwrap_err(), "tcp.rails");
}
