//! A rank that has the secret and breaks the rules: everything it sends after a good handshake is
//! made here.

use super::pair::{HANG, Rank, place};
use crate::prng::mix;
use linerate::transport::Address;
use linerate::unstable::wire::{
    Claim, Frame, FrameHeader, HANDSHAKE_BYTES, Initiator, JobKey, Purpose,
};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

/// Its own identity.
pub const IDENTITY: [u8; 16] = [0x5a; 16];

/// Rank 0 of two, connected to a real rank 1.
pub struct Hostile {
    pub stream: TcpStream,
    position: u64,
}

/// What it tells the real rank of itself: nobody listens there.
pub fn address() -> Address {
    let mut bytes = b"LRT1".to_vec();
    bytes.extend(IDENTITY);
    bytes.extend([4, 0, 1, 0]);
    bytes.extend([0; 10]);
    bytes.extend([0xff, 0xff, 127, 0, 0, 1]);
    Address(bytes)
}

/// What `who` says to open a connection to the rank at `address`.
pub fn initiator(
    address: &Address,
    own: [u8; 16],
    secret: &[u8],
    number: u64,
) -> (Initiator, [u8; HANDSHAKE_BYTES]) {
    let theirs = place(address).1;
    let key = JobKey::derive(secret, b"linerate tcp").derive_for(&[own, theirs].concat());
    let word = |id: [u8; 16]| u64::from_le_bytes(std::array::from_fn(|i| id[i]));
    let claim = Claim {
        purpose: Purpose::Data,
        initiator: 0,
        responder: 1,
        epoch: mix(word(own)).wrapping_add(word(theirs)),
        detail: 2 * number,
    };
    Initiator::new(&key, &claim, &[number as u8; 32])
}

/// Reads while the real rank is stepped; `None`: the other side has closed.
pub fn read(stream: &mut TcpStream, rank: &mut Rank) -> Option<[u8; HANDSHAKE_BYTES]> {
    stream.set_nonblocking(true).unwrap();
    let (start, mut bytes, mut filled) = (Instant::now(), [0; HANDSHAKE_BYTES], 0);
    while filled < HANDSHAKE_BYTES {
        assert!(start.elapsed() < HANG, "no answer and no end");
        rank.step();
        match stream.read(&mut bytes[filled..]) {
            Ok(0) => return None,
            Ok(more) => filled += more,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
    }
    Some(bytes)
}

impl Hostile {
    /// Connects, proves itself and is accepted.
    pub fn connect(rank: &mut Rank, secret: &[u8], number: u64) -> Hostile {
        let address = rank.transport.local_address();
        let mut stream = TcpStream::connect(place(&address).0).unwrap();
        let (mut initiator, hello) = initiator(&address, IDENTITY, secret, number);
        stream.write_all(&hello).unwrap();
        let challenge = read(&mut stream, rank).expect("a challenge");
        let proof = initiator.handle_challenge(&challenge).unwrap();
        stream.write_all(&proof).unwrap();
        let verdict = read(&mut stream, rank).expect("a verdict");
        initiator.handle_verdict(&verdict).unwrap();
        Hostile {
            stream,
            position: 0,
        }
    }

    /// A frame with its place in the stream.
    pub fn header(&mut self, frame: Frame) -> FrameHeader {
        let position = if frame.is_chunk() { 0 } else { self.position };
        if !frame.is_chunk() {
            self.position +=
                linerate::unstable::wire::HEADER_BYTES as u64 + u64::from(frame.payload_bytes());
        }
        FrameHeader {
            position,
            acknowledged: 0,
            matched: [0; 4],
            is_urgent: false,
            crc: None,
            frame,
        }
    }

    /// Sends what the kernel takes; false: the other side has closed.
    pub fn send(&mut self, bytes: &[u8], rank: &mut Rank) -> bool {
        let (start, mut sent) = (Instant::now(), 0);
        while sent < bytes.len() {
            assert!(start.elapsed() < HANG, "it takes nothing");
            match self.stream.write(&bytes[sent..]) {
                Ok(more) => sent += more,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return false,
            }
            rank.step();
        }
        true
    }

    /// Sends a frame and that much of a payload.
    pub fn send_frame(&mut self, frame: Frame, rank: &mut Rank) -> bool {
        let mut bytes = self.header(frame).emit().to_vec();
        bytes.resize(bytes.len() + frame.payload_bytes() as usize, 7);
        self.send(&bytes, rank)
    }
}
