//! Ranks as threads that meet over loopback.

use super::super::coming::FRAME_BYTES_MAX;
use super::super::contact::CONTACT_BYTES_MAX;
use super::super::descriptors::raise_descriptors;
use super::super::listener::UNAUTHENTICATED_MAX;
use super::super::ports::free_port;
use super::*;
use crate::config::{JobSettings, Secret};
use crate::transport::{Agreed, Fabric, Far, Lack};
use crate::wait::Clock;
use crate::wire::{Claim, HANDSHAKE_BYTES, Initiator, JobKey, NONCE_BYTES, Purpose};
use rustix::net::sockopt;
use std::collections::VecDeque;
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

fn settings() -> Config {
    Config {
        timeout: Duration::from_secs(60),
        job: JobSettings {
            secret: Secret::Text(b"a secret of these tests".to_vec()),
            ..JobSettings::default()
        },
        ..Config::default()
    }
}

/// Runs one thread for each rank.
fn run<T: Send>(ranks: u32, rank: impl Fn(Place, Config) -> T + Sync) -> Vec<T> {
    run_at(free_port().unwrap(), ranks, rank)
}

/// As [`run`]; rank 0 listens on this port.
fn run_at<T: Send>(port: u16, ranks: u32, run: impl Fn(Place, Config) -> T + Sync) -> Vec<T> {
    let name = format!("tcp://127.0.0.1:{port}");
    std::thread::scope(|scope| {
        let start = |rank| {
            let place = Place::named(rank, ranks, &name).unwrap();
            let run = &run;
            let thread = std::thread::Builder::new().stack_size(512 << 10);
            thread
                .spawn_scoped(scope, move || run(place, settings()))
                .unwrap()
        };
        let threads: Vec<_> = (0..ranks).map(start).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

#[test]
fn two_hundred_ranks_exchange_blobs_of_any_length() {
    let ranks = 200;
    let blob = |rank: Rank| vec![rank as u8; (rank as usize * 37) % (CONTACT_BYTES_MAX + 1)];
    let results = run(ranks, |place, config| {
        let clock = Clock::monotonic();
        let clock = BusyClock::idle(&clock);
        let network = Network::meet(&place, &config, clock).unwrap();
        assert!(network.address.is_loopback());
        network.exchange(&blob(place.rank), clock).unwrap()
    });
    let expected: Vec<Vec<u8>> = (0..ranks).map(blob).collect();
    assert!(results.iter().all(|result| *result == expected));
}

/// Connects again and again until the job has met, as a peer that is no rank: it says nothing, half
/// a hello, a good hello and no proof, or what no rank says. Counts the connections.
fn flood(to: SocketAddr, has_met: &AtomicBool, count: &AtomicUsize) {
    let claim = |initiator| Claim {
        purpose: Purpose::Control,
        initiator,
        responder: 0,
        epoch: 0,
        detail: TO_HEAD,
    };
    let key = JobKey::derive(b"another secret", b"");
    let mut open = VecDeque::new();
    while !has_met.load(Ordering::Relaxed) {
        let number = count.load(Ordering::Relaxed);
        let (_, hello) = Initiator::new(&key, &claim(number as Rank), &[7; NONCE_BYTES]);
        let Ok(mut stream) = TcpStream::connect_timeout(&to, Duration::from_millis(500)) else {
            std::thread::yield_now();
            continue;
        };
        let said: &[u8] = match number % 4 {
            0 => &[],
            1 => &hello[..HANDSHAKE_BYTES / 2],
            2 => &hello,
            _ => &[b'x'; HANDSHAKE_BYTES],
        };
        // When it is closed, nothing of it stays in the kernel, where other tests look.
        sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        // It may have been refused already.
        let _ = stream.write_all(said);
        open.push_back(stream);
        if open.len() > 300 {
            open.pop_front();
        }
        count.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_thousand_ranks_meet_at_once_beside_a_flood_of_peers_that_are_none() {
    // Both ends of all connections are in this process.
    raise_descriptors(1 << 14);
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let ranks = match limit.is_none_or(|limit| limit >= 10_000) {
        true => 1024,
        false => 100,
    };
    let port = free_port().unwrap();
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let (met, count) = (AtomicU32::new(0), AtomicUsize::new(0));
    let has_met = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let floods = [(); 3].map(|()| scope.spawn(|| flood(to, &has_met, &count)));
        let results = run_at(port, ranks, |place, config| {
            // All places are taken many times before the first rank comes.
            while place.rank > 0 && count.load(Ordering::Relaxed) < 3 * UNAUTHENTICATED_MAX {
                std::thread::sleep(Duration::from_millis(1));
            }
            let clock = Clock::monotonic();
            let clock = BusyClock::idle(&clock);
            let network = Network::meet(&place, &config, clock)?;
            if met.fetch_add(1, Ordering::Relaxed) + 1 == ranks {
                has_met.store(true, Ordering::Relaxed);
            }
            network.exchange(&place.rank.to_le_bytes(), clock)
        });
        has_met.store(true, Ordering::Relaxed);
        for flood in floods {
            flood.join().unwrap();
        }
        println!("{} connections of others", count.load(Ordering::Relaxed));
        for result in results {
            let of_ranks = (0..ranks).map(|rank| rank.to_le_bytes().to_vec());
            assert!(result.unwrap().into_iter().eq(of_ranks));
        }
    });
}

#[test]
fn a_rank_that_leaves_between_meeting_and_exchange_is_named_to_all() {
    // Rank 5 is below rank 1, so it is rank 0 that finds out, and ranks 2 to 4 have nothing to do
    // with it.
    let results = run(6, |place, config| {
        let clock = Clock::monotonic();
        let clock = BusyClock::idle(&clock);
        let met = Network::meet(&place, &config, clock);
        match place.rank {
            5 => met.map(|_| String::new()).unwrap(),
            // Who is slow hears of it while it still meets.
            _ => match met.and_then(|network| network.exchange(&[1], clock)) {
                Err(error) => error.to_string(),
                Ok(_) => String::from("no error"),
            },
        }
    });
    for text in &results[..5] {
        assert!(
            text.contains("rank 5 failed while others were waited for"),
            "{results:?}"
        );
    }
}

#[test]
fn a_rank_that_declines_tells_all_why() {
    let results = run(6, |place, config| {
        let clock = Clock::monotonic();
        let clock = BusyClock::idle(&clock);
        let met = Network::meet(&place, &config, clock);
        let told = match place.rank {
            5 => met.map(|network| network.decline(Error::invalid("no memory is left"), clock)),
            // Who is slow hears of it while it still meets.
            _ => Ok((met.and_then(|network| network.exchange(&[1], clock))).unwrap_err()),
        };
        told.unwrap().to_string()
    });
    for text in &results {
        assert!(text.contains("no memory is left"), "{results:?}");
    }
    assert!(
        results[..5]
            .iter()
            .all(|text| text.contains("rank 5 cannot take part"))
    );
}

fn coming() -> Coming {
    Coming {
        ranks: 7,
        fingerprint: u64::MAX - 1,
        port: 65535,
        host: HostIdentity::own(None).unwrap(),
        user: 7,
        offer: Ok(Fabric::RoceV2),
    }
}

#[test]
fn what_a_rank_says_when_it_comes_survives_and_a_stump_is_refused() {
    let coming = coming();
    assert_eq!(Coming::parse(&coming.emit()).unwrap(), coming);
    let without = |has_device| Coming {
        offer: Err(Lack {
            why: "no device".into(),
            has_device,
        }),
        ..coming.clone()
    };
    for has_device in [false, true] {
        let without = without(has_device);
        assert_eq!(Coming::parse(&without.emit()).unwrap(), without);
    }
    let without = without(false);
    assert!(Coming::parse(&coming.emit()[1..]).is_err());
    let mut other = coming.emit();
    *other.last_mut().unwrap() = 1 + Fabric::ALL.len() as u8;
    assert!(Coming::parse(&other).is_err(), "no such fabric");
    other.push(0);
    assert!(Coming::parse(&other).is_err(), "something behind it");
    let mut long = without.emit();
    long.resize(FRAME_BYTES_MAX + 1, b'x');
    assert!(Coming::parse(&long).is_err(), "a reason without end");
}

#[test]
fn where_a_rank_goes_survives_and_other_words_are_refused() {
    let agreed = |far, is_pity| Agreed {
        far,
        reason: "rank 3 has no usable RDMA device: none".into(),
        is_pity,
    };
    let all = Far::ALL.into_iter().map(|far| (far, false));
    for (far, is_pity) in all.chain([(Far::Tcp, true)]) {
        let going = Going {
            own: "fd00::1".parse().unwrap(),
            parent: Some("[fd00::1]:4".parse().unwrap()),
            is_one_host: is_pity,
            local: (3, 8),
            agreed: agreed(far, is_pity),
        };
        assert_eq!(Going::parse(going.emit().as_bytes()).unwrap(), going);
    }
    let head = Going::parse(b"10.0.0.1 - one 0 1 tcp no rank has").unwrap();
    assert!(head.parent.is_none() && head.is_one_host);
    for bad in [
        &b""[..],
        b"10.0.0.1",
        b"10.0.0.1 ",
        b"x - one 0 1 tcp why",
        b"10.0.0.1 -",
        b"10.0.0.1 - one",
        b"10.0.0.1 - two 0 1 tcp why",
        b"10.0.0.1 - one -1 tcp why",
        b"10.0.0.1 - one tcp why",
        b"10.0.0.1 - one 0 ofi why",
        b"10.0.0.1 10.0.0.1 one 0 1 tcp why",
        b"\xff \xff",
    ] {
        assert!(Going::parse(bad).is_err(), "{bad:?}");
    }
}

/// If ranks are dealt out to hosts in turns, those of one host all have the same remainder, so
/// their own numbers would not spread them over its devices.
#[test]
fn ranks_are_counted_by_their_hosts() {
    let [a, b] = ["a", "b"].map(|name| HostIdentity::own(Some(name)).unwrap());
    let numbers = |hosts: &[HostIdentity]| -> Vec<(u32, u32)> {
        let come: Vec<Coming> = hosts
            .iter()
            .map(|&host| Coming { host, ..coming() })
            .collect();
        local_ranks(&come)
    };
    assert_eq!(
        numbers(&[a, b, a, b, a]),
        [(0, 3), (0, 2), (1, 3), (1, 2), (2, 3)]
    );
    assert_eq!(numbers(&[b, b, a, a]), [(0, 2), (1, 2), (0, 2), (1, 2)]);
    assert_eq!(numbers(&[a]), [(0, 1)]);
}
