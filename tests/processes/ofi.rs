//! The ranks of `processes.rs` over libfabric's software providers, with the algorithms and traffic
//! of `network.rs`. A provider that is not here is skipped, and the test says so.

use super::network::{OF_PAIRS, TCP};
use super::{results, spawn};
use linerate::transport::{Event, Options, Region, Time, Transport, open};
use linerate_children::spawn_late;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PROVIDERS: [&str; 3] = ["ofi:shm", "ofi:tcp;ofi_rxm", "ofi:udp;ofi_rxd"];

fn providers() -> Vec<&'static str> {
    let is_here = |name: &&str| match open(name, 0, 1, 0, &Options::default()) {
        Ok(_) => true,
        Err(reason) => {
            println!("skipped: {name}: {reason}");
            false
        }
    };
    PROVIDERS.into_iter().filter(is_here).collect()
}

#[test]
fn every_algorithm_gives_the_bits_that_it_gives_over_connections() {
    for ranks in [2, 3, 4] {
        let connections = results(spawn("sweep", ranks, &[TCP]));
        for provider in providers() {
            let of_provider = results(spawn("sweep", ranks, &[(TCP.0, provider)]));
            assert_eq!(of_provider, connections, "{ranks} ranks over {provider}");
        }
    }
}

/// Those that lose no packets on a busy machine, and do not wait longer and longer for them.
fn prompt() -> impl Iterator<Item = &'static str> {
    let is_prompt = |name: &&str| !name.ends_with("ofi_rxd");
    providers().into_iter().filter(is_prompt)
}

#[test]
fn traffic_of_pairs_flows_over_libfabric() {
    for provider in prompt() {
        let transport = (TCP.0, provider);
        for (role, ranks) in OF_PAIRS.into_iter().chain([("overlap", 3)]) {
            results(spawn(role, ranks, &[transport]));
        }
    }
}

#[test]
fn absence_and_death_are_named_over_libfabric() {
    for provider in prompt() {
        let timeout = [(TCP.0, provider), ("LINERATE_TIMEOUT", "2")];
        let lines = results(spawn_late(("absent", 3), (2, &[0, 1], "RESULT"), &timeout));
        for line in &lines[..2] {
            // shm holds up what others are sent, and may lose their answers, too.
            let is_named = match provider {
                "ofi:shm" => line.contains("2 is missing") || line.contains("2 are missing"),
                _ => line.contains("rank 2 is missing"),
            };
            assert!(is_named, "{provider}: {line}");
        }
        let lines = results(spawn("leave", 3, &[(TCP.0, provider)]));
        for rank in [0, 2] {
            let line = &lines[rank];
            assert!(
                line.contains("rank 1 failed: its process ended"),
                "{provider}: {line}"
            );
        }
    }
}

/// Two transports of this process that are connected, exchange a message and end.
fn meet(provider: &str, nonce: u64) {
    let opened = |rank| {
        open(
            provider,
            rank,
            2,
            nonce + u64::from(rank),
            &Options::default(),
        )
    };
    let mut both: [Box<dyn Transport>; 2] = [0, 1].map(|rank| opened(rank).unwrap());
    let addresses = both.each_ref().map(|transport| transport.local_address());
    for (rank, transport) in both.iter_mut().enumerate() {
        let peer = 1 - rank;
        transport.connect(peer as u32, &addresses[peer]).unwrap();
    }
    let until = Instant::now() + Duration::from_secs(20);
    let mut connected = [false; 2];
    while connected != [true; 2] {
        assert!(Instant::now() < until, "{provider}: they do not connect");
        for (rank, transport) in both.iter_mut().enumerate() {
            let mut events = Vec::new();
            transport.poll(Time(0), &mut events);
            transport.poll_slow(Time(0), &mut events);
            let is_peer =
                |event: &Event| matches!(event, Event::Connected(p) if *p == 1 - rank as u32);
            connected[rank] |= events.iter().any(is_peer);
        }
    }
    let region = Arc::new(Region::private(1 << 16).unwrap());
    let key = both[0].register(region.clone()).unwrap();
    both[0].deregister(key).unwrap();
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn files_of_libfabric() -> usize {
    let names = std::fs::read_dir("/dev/shm").unwrap().flatten();
    let own = format!("-{:x}-", std::process::id());
    let is_own = |name: &str| name.starts_with("linerate-ofi-") && name.contains(&own);
    names
        .filter(|entry| is_own(&entry.file_name().to_string_lossy()))
        .count()
}

#[test]
fn connections_that_have_ended_leave_nothing_behind() {
    for provider in providers() {
        // What a provider keeps for good, it has after the first.
        meet(provider, 1);
        let before = descriptors();
        for round in 1..100 {
            meet(provider, 2 * round);
        }
        // Tests beside this one open some, too.
        let after = descriptors();
        assert!(
            after < before + 60,
            "{provider}: {before} descriptors, then {after}"
        );
        assert_eq!(files_of_libfabric(), 0, "{provider}");
    }
}
