//! Peers that are not ranks of the job, and ranks that are.

use super::super::busy::BusyClock;
use super::super::connector::Connector;
use super::super::credentials::read_secret;
use super::super::link::{Kind, Link};
use super::*;
use crate::config::{JobSettings, Secret};
use crate::transport::PROOF_TIME;
use crate::wait::Clock;
use crate::wire::NONCE_BYTES;
use std::io::Write;
use std::thread;

fn credentials() -> Credentials {
    Credentials::new(&JobSettings::default(), false, "a job", 3).unwrap()
}

fn listener() -> (Listener, SocketAddr) {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    (
        Listener::new(vec![socket], 0, &credentials()).unwrap(),
        address,
    )
}

fn poll(listener: &mut Listener, now: Time) -> Result<Vec<Authenticated>> {
    let mut authenticated = Vec::new();
    listener
        .poll(now, &mut authenticated)
        .map(|()| authenticated)
}

/// Polls until this many have been refused; the time is an argument, so nothing here waits for a
/// clock.
fn poll_until_refused(listener: &mut Listener, count: u64, now: Time) {
    while listener.refused < count {
        assert!(poll(listener, now).unwrap().is_empty());
        std::thread::yield_now();
    }
}

#[test]
fn garbage_is_refused_and_told_from_where() {
    let (mut listener, address) = listener();
    let mut peer = TcpStream::connect(address).unwrap();
    peer.write_all(&[b'x'; HANDSHAKE_BYTES]).unwrap();
    poll_until_refused(&mut listener, 1, Time(0));
    let from = peer.local_addr().unwrap().to_string();
    let text = listener.refusals();
    assert!(text.contains(&from) && text.contains("no hello"), "{text}");
    assert_eq!(peer.read(&mut [0; 8]).unwrap_or(0), 0);
}

#[test]
fn whoever_says_nothing_is_put_out_when_its_time_is_over() {
    let (mut listener, address) = listener();
    let _silent = TcpStream::connect(address).unwrap();
    while listener.places.is_empty() {
        poll(&mut listener, Time(0)).unwrap();
    }
    let just_before = Time(0).after(HANDSHAKE_TIME - Duration::from_nanos(1));
    poll(&mut listener, just_before).unwrap();
    assert_eq!((listener.places.is_empty(), listener.refused), (false, 0));
    poll_until_refused(&mut listener, 1, Time(0).after(HANDSHAKE_TIME));
    assert!(listener.refusals().contains("said nothing more in time"));
}

/// Connections that say these bytes and nothing else; the listener has taken or refused them all.
fn connect_silent(
    listener: &mut Listener,
    to: SocketAddr,
    count: usize,
    says: &[u8],
) -> Vec<TcpStream> {
    let mut silent = Vec::new();
    for _ in 0..count {
        let mut stream = TcpStream::connect(to).unwrap();
        stream.write_all(says).unwrap();
        silent.push(stream);
        poll(listener, Time(0)).unwrap();
    }
    silent
}

#[test]
fn the_oldest_silent_connection_makes_room_at_once() {
    let (mut listener, address) = listener();
    let mut silent = connect_silent(&mut listener, address, UNAUTHENTICATED_MAX + 40, &[]);
    poll_until_refused(&mut listener, 40, Time(0));
    assert_eq!(listener.places.iter().count(), UNAUTHENTICATED_MAX);
    assert!(listener.refusals().contains("others wanted its place"));
    // The last connection that made room is closed, and the next one is not.
    assert_eq!(silent[39].read(&mut [0; 8]).unwrap(), 0);
    silent[40].set_nonblocking(true).unwrap();
    assert_eq!(
        silent[40].read(&mut [0; 8]).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
}

fn claim(rank: Rank) -> Claim {
    Claim {
        purpose: Purpose::Control,
        initiator: rank,
        responder: 0,
        epoch: 3,
        detail: TO_HEAD,
    }
}

fn hello(claim: &Claim) -> HandshakeMessage {
    let key = credentials().key().unwrap();
    crate::wire::Initiator::new(&key, claim, &[7; NONCE_BYTES]).1
}

#[test]
fn who_says_hello_has_time_for_a_proof_and_the_others_wait_meanwhile() {
    let (mut listener, address) = listener();
    let hello = hello(&claim(1));
    let _liars = connect_silent(&mut listener, address, UNAUTHENTICATED_MAX, &hello);
    while !listener.places.is_full() || listener.places.least_likely(Time(0)).is_some() {
        poll(&mut listener, Time(0)).unwrap();
    }
    let _more = connect_silent(&mut listener, address, 40, &hello);
    assert_eq!((listener.places.is_open(), listener.refused), (false, 0));
    poll_until_refused(&mut listener, 40, Time(0).after(PROOF_TIME));
    assert!(listener.refusals().contains("had proven nothing"));
    while !listener.places.is_open() {
        poll(&mut listener, Time(0).after(PROOF_TIME)).unwrap();
    }
}

#[test]
fn a_hello_for_another_rank_start_or_purpose_gets_no_challenge() {
    let of = |claim: Claim, word: &str| {
        let (mut listener, address) = listener();
        let mut peer = TcpStream::connect(address).unwrap();
        peer.write_all(&hello(&claim)).unwrap();
        poll_until_refused(&mut listener, 1, Time(0));
        assert!(
            listener.refusals().contains(word),
            "{}",
            listener.refusals()
        );
        assert_eq!(peer.read(&mut [0; 8]).unwrap_or(0), 0);
    };
    let good = claim(1);
    of(
        Claim {
            responder: 2,
            ..good
        },
        "wants rank 2",
    );
    of(Claim { epoch: 2, ..good }, "start 2 of the job");
    of(
        Claim {
            purpose: Purpose::Data,
            ..good
        },
        "wants data",
    );
}

#[test]
fn without_a_secret_only_loopback_is_served() {
    let open = JobSettings {
        is_insecure: true,
        ..JobSettings::default()
    };
    let far = "10.0.0.1".parse().unwrap();
    assert!(
        credentials()
            .check_may_serve("127.0.0.2".parse().unwrap())
            .is_ok()
    );
    let text = credentials().check_may_serve(far).unwrap_err().to_string();
    assert!(
        text.contains("LINERATE_SECRET") && text.contains("LINERATE_INSECURE"),
        "{text}"
    );
    assert!(
        Credentials::new(&open, false, "", 0)
            .unwrap()
            .check_may_serve(far)
            .is_ok()
    );
    let secret = JobSettings {
        secret: Secret::Text(vec![1; 16]),
        ..JobSettings::default()
    };
    assert!(
        Credentials::new(&secret, false, "", 0)
            .unwrap()
            .check_may_serve(far)
            .is_ok()
    );
}

fn encrypting(has_tls: bool) -> Result<Credentials> {
    let secret = JobSettings {
        secret: Secret::Text(vec![7; 16]),
        ..JobSettings::default()
    };
    Credentials::new(&secret, has_tls, "a job", 3)
}

/// What rank 1 gets when it connects to rank 0 through somebody who reads along: rank 0's link or
/// error, its own, and what was read.
fn connect_through(
    listener_has_tls: bool,
    connector_has_tls: bool,
) -> (Result<Link>, Result<Link>, thread::JoinHandle<Vec<u8>>) {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = socket.local_addr().unwrap();
    let own = encrypting(listener_has_tls).unwrap();
    let mut listener = Listener::new(vec![socket], 0, &own).unwrap();
    let between = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = between.local_addr().unwrap();
    let listening = thread::spawn(move || {
        let (outer, inner) = (between.accept().unwrap().0, TcpStream::connect(to).unwrap());
        let [mut back, mut up] = [&inner, &outer].map(|s| s.try_clone().unwrap());
        let (mut outer, mut inner) = (outer, inner);
        thread::spawn(move || std::io::copy(&mut back, &mut outer));
        let (mut heard, mut bytes) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = up.read(&mut bytes) {
            heard.extend(&bytes[..count]);
            let _ = inner.write_all(&bytes[..count]);
        }
        heard
    });
    let connecting = thread::spawn(move || {
        let connector = Connector {
            credentials: &encrypting(connector_has_tls).unwrap(),
            own: 1,
            peer: 0,
            detail: TO_PARENT,
            source: None,
            bytes_max: 100,
        };
        let clock = Clock::monotonic();
        let deadline = clock.now().after(Duration::from_secs(20));
        connector.connect(|| Ok(vec![address]), (deadline, BusyClock::idle(&clock)))
    });
    let there = loop {
        match poll(&mut listener, Time(0)) {
            Ok(mut new) => match new.pop() {
                Some(new) => {
                    assert_eq!((new.rank, new.detail), (1, TO_PARENT));
                    break Link::new(new.stream, new.tls, 100).map_err(|e| Error::os("", e));
                }
                None => thread::yield_now(),
            },
            Err(error) => break Err(error),
        }
    };
    (there, connecting.join().unwrap(), listening)
}

#[test]
fn what_is_said_over_tls_is_heard_by_the_other_side_alone() {
    const TEXT: &[u8] = b"readable contacts of every rank";
    for has_tls in [false, true] {
        let (there, here, listening) = connect_through(has_tls, has_tls);
        let (mut there, mut here) = (there.unwrap(), here.unwrap());
        let clock = Clock::monotonic();
        let by = (
            clock.now().after(Duration::from_secs(20)),
            BusyClock::idle(&clock),
        );
        for _ in 0..3 {
            here.send(Kind::Contacts, TEXT, by).unwrap();
            let heard = there.wait("rank 1", by).unwrap();
            assert_eq!(heard, (Kind::Contacts, TEXT.to_vec()));
            there.send(Kind::Go, &heard.1, by).unwrap();
            let heard = here.wait("rank 0", by).unwrap();
            assert_eq!(heard, (Kind::Go, TEXT.to_vec()));
        }
        drop((there, here));
        let heard = listening.join().unwrap();
        let is_shown = heard.windows(TEXT.len()).any(|w| w == TEXT);
        assert_eq!(is_shown, !has_tls);
    }
}

#[test]
fn ranks_with_and_without_tls_refuse_each_other_by_name_at_once() {
    for has_tls in [false, true] {
        let (there, here, _) = connect_through(has_tls, !has_tls);
        let [own, other] = match has_tls {
            true => ["rank 0 on (--tls)", "rank 1 has LINERATE_TLS=off"],
            false => ["rank 0 off", "rank 1 has LINERATE_TLS=on (--tls)"],
        };
        let text = there.unwrap_err().to_string();
        assert!(text.contains(own) && text.contains(other), "{text}");
        let text = here.unwrap_err().to_string();
        assert!(
            text.contains("it has LINERATE_TLS=") && text.contains("the rank that connects"),
            "{text}"
        );
    }
    let open = Credentials::new(&JobSettings::default(), true, "a job", 3);
    assert!(open.unwrap_err().to_string().contains("LINERATE_SECRET"));
}

#[test]
fn a_secret_s_file_is_its_owner_s_alone() {
    use std::os::unix::fs::PermissionsExt;
    let path = std::env::temp_dir().join(format!("linerate-secret-{}", std::process::id()));
    std::fs::write(&path, "0123456789abcdef\n").unwrap();
    let read = |mode| {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        read_secret(&Secret::File(path.clone()))
    };
    assert_eq!(
        read(0o600).unwrap().as_deref(),
        Some(&b"0123456789abcdef"[..])
    );
    let text = read(0o640).unwrap_err().to_string();
    assert!(text.contains("chmod 600") && text.contains("640"), "{text}");
    std::fs::write(&path, "short").unwrap();
    assert!(read(0o600).unwrap_err().to_string().contains("16 to"));
    std::fs::remove_file(&path).unwrap();
    assert!(
        read_secret(&Secret::File(path))
            .unwrap_err()
            .to_string()
            .contains("SECRET_FILE")
    );
}
