//! Attackers on the other host, as processes there: what they send, how many connections they open,
//! and a relay that records how a rank proves itself and says the same again.

use linerate::unstable::wire::{
    Claim, HANDSHAKE_BYTES, HandshakeMessage, Initiator, JobKey, Purpose,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Far longer than a rank lets a stranger wait.
const PATIENCE: Duration = Duration::from_secs(30);

fn addresses(name: &str) -> Vec<SocketAddr> {
    let text = std::env::var(name).unwrap();
    text.split(',').map(|one| one.parse().unwrap()).collect()
}

/// What is no hello: noise, another program's request, and a frame that claims 2^63 bytes.
fn garbage() -> [Vec<u8>; 3] {
    let mut random = crate::prng::Prng::new(7);
    let noise = (0..100_000).map(|_| random.next_u64() as u8).collect();
    let mut frame = (1u64 << 63).to_le_bytes().repeat(3);
    frame.resize(4096, 0xff);
    [
        noise,
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n".to_vec(),
        frame,
    ]
}

/// Bytes that the other side says until it closes the connection, which it must.
fn until_closed(stream: &mut TcpStream) -> usize {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut said, mut bytes) = (0, [0; 4096]);
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return said,
            Ok(count) => said += count,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return said,
            Err(error) => panic!("a stranger is neither answered nor turned away: {error}"),
        }
    }
}

/// Who has another secret: it is challenged, at most, and never accepted.
fn with_another_secret(target: SocketAddr) {
    let claim = Claim {
        purpose: Purpose::Control,
        initiator: 1,
        responder: 0,
        epoch: 0,
        detail: 1,
    };
    let key = JobKey::derive(b"another secret, just as long", b"");
    let (mut thief, hello) = Initiator::new(&key, &claim, &[3; 32]);
    let mut stream = TcpStream::connect(target).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&hello).unwrap();
    let mut challenge: HandshakeMessage = [0; HANDSHAKE_BYTES];
    if stream.read_exact(&mut challenge).is_ok() {
        assert!(thief.handle_challenge(&challenge).is_err());
        let _ = stream.write_all(&[9; HANDSHAKE_BYTES]);
        assert!(until_closed(&mut stream) < HANDSHAKE_BYTES, "a verdict");
    }
}

/// A connection that is begun; whether it comes to be is the other side's affair.
fn begin(target: SocketAddr) -> OwnedFd {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
    let _ = connect(&socket, &target);
    socket
}

/// Everything at once, and `LINERATE_TEST_SILENT` connections that say nothing, open until standard
/// input ends.
pub fn attack() {
    let targets = addresses("LINERATE_TEST_TARGETS");
    let silent: usize = std::env::var("LINERATE_TEST_SILENT")
        .unwrap()
        .parse()
        .unwrap();
    let mut halves = Vec::new();
    for &target in &targets {
        for bytes in garbage() {
            let mut stream = TcpStream::connect(target).unwrap();
            // The other side may close before all of it is written.
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(Shutdown::Write);
            let said = until_closed(&mut stream);
            assert!(said < HANDSHAKE_BYTES, "{target} answers garbage");
        }
        with_another_secret(target);
        // It stops in the middle of its hello, and stays.
        let mut half = TcpStream::connect(target).unwrap();
        half.write_all(&[b'L'; HANDSHAKE_BYTES / 2]).unwrap();
        halves.push(half);
    }
    let open: Vec<OwnedFd> = (0..silent)
        .map(|number| {
            if number % 100 == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
            begin(targets[number % targets.len()])
        })
        .collect();
    println!("DONE {}", open.len());
    let _ = std::io::stdin().read(&mut [0; 1]);
}

/// Copies until the end of either side; what was copied.
fn copy(mut from: TcpStream, mut to: TcpStream) -> Vec<u8> {
    let (mut all, mut bytes) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        all.extend(&bytes[..count]);
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
        if all.len() >= 2 * HANDSHAKE_BYTES && all.len() - count < 2 * HANDSHAKE_BYTES {
            let hello_and_proof = all[..2 * HANDSHAKE_BYTES].to_vec();
            let target = to.peer_addr().unwrap();
            std::thread::spawn(move || say_again(&hello_and_proof, target));
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    all
}

/// What another rank has said, word for word.
fn say_again(recorded: &[u8], target: SocketAddr) {
    let mut stream = TcpStream::connect(target).unwrap();
    stream.write_all(recorded).unwrap();
    let said = until_closed(&mut stream);
    println!("REPLAYED {said}");
}

/// Takes connections at the first place, carries them to the second, and says again what has let
/// the first one in.
pub fn relay() {
    let places = addresses("LINERATE_TEST_TARGETS");
    let listener = TcpListener::bind(places[0]).unwrap();
    println!("DONE listening");
    for outer in listener.incoming() {
        let (outer, inner) = (outer.unwrap(), TcpStream::connect(places[1]).unwrap());
        let [there, back] = [&outer, &inner].map(|s| s.try_clone().unwrap());
        std::thread::spawn(move || copy(outer, inner));
        std::thread::spawn(move || std::io::copy(&mut &back, &mut &there));
    }
}
