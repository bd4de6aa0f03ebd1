//! Who connects to a rank of the `tcp` transport and should not: peers of no job, replays, floods,
//! and ranks that have the secret and break the rules. Real sockets; the job goes on, memory stays
//! bounded, and the log says who.
//!
//! What needs limits or a log of its own runs in a process: this program again, with
//! `LINERATE_TEST_ROLE` set.

mod access;
#[path = "rails/connections.rs"]
mod connections;
#[path = "strangers/crowd.rs"]
mod crowd;
#[path = "strangers/hostile.rs"]
mod hostile;
#[path = "strangers/limits.rs"]
mod limits;
#[path = "strangers/pair.rs"]
mod pair;
#[path = "../src/prng.rs"]
#[allow(dead_code)]
mod prng;
#[path = "strangers/rules.rs"]
mod rules;
#[path = "tls/mod.rs"]
mod tls;

use hostile::initiator;
use linerate::options::TcpSettings;
use linerate::unstable::wire::HANDSHAKE_BYTES;
use pair::{HANG, Pair, moved, place};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

#[test]
fn child_entry() {
    match std::env::var("LINERATE_TEST_ROLE").as_deref() {
        Ok("flood") => limits::flood(),
        Ok("few-descriptors") => limits::few_descriptors(),
        Ok("no-ports") => limits::no_ports(),
        Ok("sums") => tls::sums(),
        Ok(other) => panic!("no role {other}"),
        Err(_) => {}
    }
}

fn settings() -> TcpSettings {
    TcpSettings {
        secret: Some(SECRET.to_vec()),
        ..TcpSettings::default()
    }
}

/// Steps until the other side has closed this connection.
fn until_closed(pair: &mut Pair, stream: &mut TcpStream) {
    stream.set_nonblocking(true).unwrap();
    pair.until("the end of a stranger's connection", |_| {
        match stream.read(&mut [0; 256]) {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    });
}

fn turned_away(pair: &Pair) -> u64 {
    pair.0[1].count("unauthenticated peers turned away")
}

#[test]
fn garbage_other_programs_and_half_a_hello_are_turned_away_and_the_job_goes_on() {
    let mut pair = Pair::connected(&settings());
    let place = place(&pair.0[1].transport.local_address()).0;
    let mut random = crate::prng::Prng::new(11);
    let noise: Vec<u8> = (0..100_000).map(|_| random.next_u64() as u8).collect();
    let request = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n";
    let half = &hostile::initiator(&pair.0[1].transport.local_address(), [1; 16], SECRET, 9).1
        [..HANDSHAKE_BYTES / 2];
    for (number, bytes) in [&noise, &request[..], half, &[0; HANDSHAKE_BYTES], &[]]
        .iter()
        .enumerate()
    {
        let mut stream = TcpStream::connect(place).unwrap();
        // The other side may have closed before all of it is written.
        let _ = stream.write_all(bytes);
        pair.exchange(100);
        // What says nothing, or too little, is turned away after five seconds.
        until_closed(&mut pair, &mut stream);
        assert_eq!(turned_away(&pair), number as u64 + 1);
        pair.exchange(1 << 20);
    }
}

#[test]
fn another_secret_and_another_rank_are_refused() {
    let mut pair = Pair::connected(&settings());
    let address = pair.0[1].transport.local_address();
    let own = place(&pair.0[0].transport.local_address()).1;
    // It knows both identities, which the rendezvous carries, and not the secret.
    let (mut thief, hello) = initiator(&address, own, b"another secret, just as long", 500);
    let mut stream = TcpStream::connect(place(&address).0).unwrap();
    stream.write_all(&hello).unwrap();
    let challenge = hostile::read(&mut stream, &mut pair.0[1]).expect("anybody is challenged");
    assert!(thief.handle_challenge(&challenge).is_err());
    stream.write_all(&[9; HANDSHAKE_BYTES]).unwrap();
    until_closed(&mut pair, &mut stream);
    assert_eq!(turned_away(&pair), 1);
    // The rank of another incarnation of the job.
    let (_, hello) = initiator(&address, [3; 16], SECRET, 501);
    let mut stream = TcpStream::connect(place(&address).0).unwrap();
    stream.write_all(&hello).unwrap();
    until_closed(&mut pair, &mut stream);
    assert_eq!(turned_away(&pair), 2);
    pair.exchange(1 << 20);
}

/// Carries bytes between a connection to `listener` and one to `to`, and keeps what the one who
/// connects says first.
fn relay(listener: &TcpListener, to: SocketAddr, pair: &mut Pair, recorded: &mut Vec<u8>) {
    let mut outer = None;
    pair.until("a connection to the relay", |_| {
        outer = listener.accept().ok().map(|(stream, _)| stream);
        outer.is_some()
    });
    let (mut outer, mut inner) = (outer.unwrap(), TcpStream::connect(to).unwrap());
    for stream in [&outer, &inner] {
        stream.set_nonblocking(true).unwrap();
    }
    let start = Instant::now();
    let carry = |from: &mut TcpStream, to: &mut TcpStream, kept: Option<&mut Vec<u8>>| {
        let mut bytes = [0; 4096];
        if let Ok(count) = from.read(&mut bytes) {
            to.write_all(&bytes[..count]).unwrap();
            kept.into_iter().for_each(|k| k.extend(&bytes[..count]));
        }
    };
    // Hello and proof, and then the first frames.
    while recorded.len() < 2 * HANDSHAKE_BYTES || pair.0[1].events.is_empty() {
        assert!(start.elapsed() < HANG, "no handshake");
        carry(&mut outer, &mut inner, Some(recorded));
        carry(&mut inner, &mut outer, None);
        pair.step();
    }
}

#[test]
fn a_recorded_hello_is_worth_nothing() {
    let mut pair = Pair::new(&settings());
    let addresses = [0, 1].map(|rank: usize| pair.0[rank].transport.local_address());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let real = place(&addresses[1]).0;
    (pair.0[0].transport)
        .connect(1, &moved(&addresses[1], port))
        .unwrap();
    (pair.0[1].transport).connect(0, &addresses[0]).unwrap();
    let mut recorded = Vec::new();
    relay(&listener, real, &mut pair, &mut recorded);
    assert_eq!(turned_away(&pair), 0);
    // Sends the recorded bytes again, at once and in pieces.
    for pieces in [1, 2] {
        let mut stream = TcpStream::connect(real).unwrap();
        for piece in recorded.chunks(recorded.len() / pieces) {
            let _ = stream.write_all(piece);
            (0..100).for_each(|_| pair.step());
        }
        until_closed(&mut pair, &mut stream);
        assert_eq!(turned_away(&pair), pieces as u64);
    }
}

/// Breaks every rail of this process to the rank that listens there, but not these
/// connections from outside the job.
fn break_rails(place: SocketAddr, strangers: &[TcpStream]) -> usize {
    let ports: Vec<SocketAddr> = strangers.iter().map(|s| s.local_addr().unwrap()).collect();
    let is_rail = |c: &connections::Connection| c.own == place && !ports.contains(&c.peer);
    let rails = connections::of_process(std::process::id());
    let rails = rails.into_iter().filter(is_rail);
    rails
        .map(|rail| connections::cut(&rail.socket, true))
        .count()
}

#[test]
fn silent_connections_do_not_hold_up_those_that_replace_rails() {
    let mut pair = Pair::connected(&TcpSettings {
        rails: 2,
        ..settings()
    });
    let place = place(&pair.0[1].transport.local_address()).0;
    let silent: Vec<TcpStream> = (0..200)
        .map(|_| TcpStream::connect(place).unwrap())
        .collect();
    for lost in [2, 4] {
        pair.until("both rails", |_| {
            let found = connections::of_process(std::process::id());
            found.iter().filter(|c| c.peer == place).count() >= silent.len() + 2
        });
        assert_eq!(break_rails(place, &silent), 2);
        pair.exchange(3 << 20);
        assert_eq!(pair.0[1].count("rails lost"), lost);
    }
    pair.until("the end of the silent", |pair| turned_away(pair) >= 200);
}
