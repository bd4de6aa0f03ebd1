//! Rails over TLS with somebody in between, who listens, changes bytes, carries the challenge
//! faithfully and then pretends, or has other settings. Real sockets: the two ranks run in one
//! thread, no matter who is in between in others.

mod between;

use crate::pair::{self, Pair, moved, over, place};
use between::{Between, Direction};
use linerate::options::TcpSettings;
use linerate::transport::open;
use linerate::unstable::wire::{Claim, HANDSHAKE_BYTES, Initiator, JobKey, Purpose, Tls};
use linerate::{Communicator, ReduceOp};
use linerate_children::{end, free_address, results, spawn, start_each};
use std::io::{Read, Write};
use std::net::TcpStream;

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

fn settings(has_tls: bool) -> TcpSettings {
    TcpSettings {
        secret: Some(SECRET.to_vec()),
        has_tls,
        ..TcpSettings::default()
    }
}

/// Two ranks, of which rank 0 reaches rank 1 through a relay.
fn through(settings: &TcpSettings, between: &Between) -> Pair {
    let mut pair = Pair::new(settings);
    let addresses = [0, 1].map(|rank: usize| pair.0[rank].transport.local_address());
    between.leads_to(place(&addresses[1]).0);
    let there = moved(&addresses[1], between.port);
    (pair.0[0].transport).connect(1, &there).unwrap();
    (pair.0[1].transport).connect(0, &addresses[0]).unwrap();
    pair
}

/// Whether bytes of an exchange are readable: it sends runs of one value.
fn shows_runs(bytes: &[u8]) -> bool {
    bytes.windows(32).any(|w| w.iter().all(|&b| b == w[0]))
}

#[test]
fn whoever_listens_in_between_reads_the_payload_without_tls_and_nothing_of_it_with_it() {
    for (has_tls, has_crc) in [(false, false), (true, false), (true, true)] {
        let between = Between::new(|_, _| {});
        let settings = TcpSettings {
            has_crc,
            ..settings(has_tls)
        };
        let mut pair = through(&settings, &between);
        for bytes in [100, 5_000, 3 << 20] {
            pair.exchange(bytes);
        }
        drop(pair);
        for direction in [Direction::Up, Direction::Down] {
            let heard = between.heard(direction);
            assert!(heard.len() > 3 << 20, "{direction:?}: {}", heard.len());
            // The challenge is readable in any case, and has zeros at its ends.
            let after = &heard[2 * HANDSHAKE_BYTES..];
            assert_eq!(shows_runs(after), !has_tls, "{direction:?}");
        }
    }
}

#[test]
fn a_byte_that_is_changed_on_its_way_costs_a_rail_and_no_data() {
    // Behind the handshakes, in the middle of the first long message, once.
    let between = Between::new(|direction, (from, bytes)| {
        let at = 1_000_000;
        let is_here = (from..from + bytes.len() as u64).contains(&at);
        if direction == Direction::Up && is_here {
            bytes[(at - from) as usize] ^= 1;
        }
    });
    let mut pair = through(&settings(true), &between);
    for bytes in [100, 3 << 20, 100, 3 << 20] {
        pair.exchange(bytes);
    }
    assert_eq!(pair.0[1].count("rails lost"), 1);
    assert_eq!(pair.0[0].count("unauthenticated peers turned away"), 0);
}

#[test]
fn whoever_carries_the_challenge_and_then_speaks_tls_itself_is_found_out() {
    // Rank 1, for all that rank 0 sees: it passes the four messages on, and has no key.
    let pretender = Between::pretending(|| {
        let key = JobKey::derive(b"another secret of any length", b"linerate tcp");
        let claim = Claim {
            purpose: Purpose::Data,
            initiator: 0,
            responder: 1,
            epoch: 0,
            detail: 0,
        };
        let secrets = Initiator::new(&key, &claim, &[0; 32]).0.channel();
        Tls::responder(&secrets, 4).unwrap()
    });
    let mut pair = through(&settings(true), &pretender);
    pair.until("a failure", |pair| pair.0[0].failure().is_some());
    let text = pair.0[0].failure().unwrap();
    assert!(text.contains("somebody is between"), "{text}");
    assert!(pair.0[0].events.len() == 1, "{:?}", pair.0[0].events);
}

#[test]
fn a_rank_that_proves_itself_and_then_speaks_no_tls_is_turned_away_and_the_job_goes_on() {
    // The connection of rank 0 is carried until the proof, and then rank 1 gets noise from it.
    let between = Between::new(|direction, (from, bytes)| {
        let end = 2 * HANDSHAKE_BYTES as u64;
        if direction == Direction::Up && from + bytes.len() as u64 > end {
            let skip = end.saturating_sub(from) as usize;
            bytes[skip..].fill(0xaa);
        }
    });
    let mut pair = through(&settings(true), &between);
    pair.until("somebody turned away", |pair| {
        pair.0[1].count("unauthenticated peers turned away") >= 1
    });
    // The next connection is carried as it is.
    pair.exchange(1 << 20);
}

#[test]
fn ranks_with_and_without_tls_refuse_each_other_and_name_both() {
    for (first, expected) in [
        (true, ["LINERATE_TLS=off", "connects on (--tls)"]),
        (false, ["LINERATE_TLS=on (--tls)", "connects off"]),
    ] {
        let mut pair = Pair([
            pair::Rank::new(0, &settings(first)),
            pair::Rank::new(1, &settings(!first)),
        ]);
        let addresses = [0, 1].map(|rank: usize| pair.0[rank].transport.local_address());
        (pair.0[0].transport).connect(1, &addresses[1]).unwrap();
        (pair.0[1].transport).connect(0, &addresses[0]).unwrap();
        pair.until("a failure", |pair| pair.0[0].failure().is_some());
        let text = pair.0[0].failure().unwrap();
        assert!(expected.iter().all(|e| text.contains(e)), "{text}");
    }
}

#[test]
fn without_a_secret_there_is_no_tls() {
    let alone = TcpSettings {
        secret: None,
        ..settings(true)
    };
    let error = open("tcp", 0, 2, 0, &over(&alone)).err().unwrap();
    let text = error.to_string();
    assert!(
        text.contains("LINERATE_TLS") && text.contains("LINERATE_SECRET"),
        "{text}"
    );
}

#[test]
fn a_stranger_without_the_secret_gets_no_further_than_the_challenge() {
    let mut pair = Pair::connected(&settings(true));
    let place = place(&pair.0[1].transport.local_address()).0;
    let mut stream = TcpStream::connect(place).unwrap();
    // A client of TLS that knows nothing of linerate.
    let secrets = {
        let key = JobKey::derive(b"", b"");
        let claim = Claim {
            purpose: Purpose::Data,
            initiator: 0,
            responder: 1,
            epoch: 0,
            detail: 0,
        };
        Initiator::new(&key, &claim, &[0; 32]).0.channel()
    };
    stream
        .write_all(Tls::initiator(&secrets, 4).unwrap().unsent())
        .unwrap();
    stream.set_nonblocking(true).unwrap();
    pair.until("the end of the stranger's connection", |_| {
        matches!(stream.read(&mut [0; 64]), Ok(0))
            || stream.take_error().is_ok_and(|error| error.is_some())
    });
    assert_eq!(pair.0[1].count("unauthenticated peers turned away"), 1);
    pair.exchange(1 << 20);
}

/// Sums whose bits depend on the order, and those bits.
pub fn sums() {
    let comm = Communicator::from_env().unwrap();
    for count in [1usize, 1000, 1_000_003] {
        let buffer = comm.alloc(count).unwrap();
        // Sums that depend on the order.
        let own = |i: usize| (1 + i % 7) as f32 * 10f32.powi(comm.rank() as i32 * 5 - 5);
        let values: Vec<f32> = (0..count).map(own).collect();
        buffer.write(0, &values).unwrap();
        comm.all_reduce(&buffer, ReduceOp::Sum).unwrap();
        let bits = buffer.to_vec().unwrap().into_iter().fold(0u64, |hash, v| {
            crate::prng::mix(hash ^ u64::from(v.to_bits()))
        });
        println!("RESULT {count} {bits:016x}");
    }
    comm.barrier().unwrap();
}

/// What the ranks of a job print, all the same.
fn bits(extra: &[(&str, &str)]) -> String {
    let lines = results(&spawn("sums", 3, extra));
    assert!(lines[0].lines().count() == 3, "{lines:?}");
    assert!(lines.iter().all(|line| *line == lines[0]), "{lines:?}");
    lines[0].clone()
}

#[test]
fn sums_over_tls_have_the_same_bits_as_without() {
    let secret = ("LINERATE_SECRET", "a secret for sums over tls");
    let over = [("LINERATE_TRANSPORT", "tcp"), ("LINERATE_ALGO", "ring")];
    let plain = bits(&[secret, over[0], over[1]]);
    for rails in ["1", "3"] {
        let place = format!("tcp://{}", free_address());
        for rendezvous in ["", &place] {
            let extra = [
                secret,
                over[0],
                over[1],
                ("LINERATE_TLS", "on"),
                ("LINERATE_TCP_RAILS", rails),
                ("LINERATE_RENDEZVOUS", rendezvous),
            ];
            assert_eq!(bits(&extra), plain, "{rails} rails, {rendezvous}");
        }
    }
}

#[test]
fn a_rank_without_tls_fails_all_by_name_before_any_data() {
    let place = format!("tcp://{}", free_address());
    let tls = ("LINERATE_TLS", "on");
    let each = [tls, tls, ("LINERATE_TLS", "off")].map(|own| vec![own]);
    for rendezvous in ["", &place] {
        let extra = [
            ("LINERATE_SECRET", "a secret for a rank without tls"),
            ("LINERATE_TRANSPORT", "tcp"),
            ("LINERATE_TIMEOUT", "20"),
            ("LINERATE_RENDEZVOUS", rendezvous),
        ];
        let outputs = end(start_each("sums", &each, &extra));
        for (rank, output) in outputs.into_iter().enumerate() {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            // Over a connection the odd one is told by the other side's refusal.
            let names = match (rank, rendezvous) {
                (2, place) if !place.is_empty() => ["LINERATE_TLS=on (--tls)", "connects off"],
                _ => ["rank 2 has LINERATE_TLS=off", "rank 0 on (--tls)"],
            };
            let is_named = names.iter().all(|name| text.contains(name));
            assert!(!output.status.success() && is_named, "rank {rank}: {text}");
        }
    }
}
