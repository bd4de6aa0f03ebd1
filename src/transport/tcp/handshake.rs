//! What both ends of a connection need while it is made: messages of the handshake of
//! [`crate::wire`] as they come, and what a look at such a connection comes to.

use super::socket;
use crate::wire::{HANDSHAKE_BYTES, HandshakeMessage, NONCE_BYTES};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Set in the detail of a claim by ranks with integrity checks.
pub const DETAIL_CRC: u64 = 1 << 63;
/// Set in the detail of a claim by ranks with TLS.
pub const DETAIL_TLS: u64 = 1 << 62;
/// The rest of a claim's detail is the number of the rail.
pub const DETAIL_RAIL: u64 = DETAIL_TLS - 1;
/// High bits of a rail's number are the epoch of the side that has connected (clause 23).
pub const EPOCH_SHIFT: u32 = 32;
/// The last epoch that they hold: slots are used again a billion times at most.
pub const EPOCH_MAX: u32 = (DETAIL_RAIL >> EPOCH_SHIFT) as u32;

/// The epoch of the side that has opened this rail.
pub fn epoch_of_rail(rail: u64) -> u32 {
    (rail >> EPOCH_SHIFT) as u32 & EPOCH_MAX
}

/// What a look at a connection that is being made comes to.
pub enum Look {
    /// It waits for the other side.
    Wait,
    /// It is a rail.
    Done,
    /// It is over, for this reason.
    Over(String),
    /// The peer itself is over.
    Fatal(String),
    /// The peer connects itself, or has connections enough.
    Awaited,
}

/// A message of a handshake, as far as it has come.
#[derive(Debug)]
pub struct Incomplete {
    bytes: HandshakeMessage,
    filled: usize,
}

impl Incomplete {
    pub fn new() -> Incomplete {
        Incomplete {
            bytes: [0; HANDSHAKE_BYTES],
            filled: 0,
        }
    }

    /// Reads; the message if it is whole.
    pub fn read(&mut self, socket: BorrowedFd<'_>) -> Result<Option<HandshakeMessage>, String> {
        loop {
            match socket::receive_plain(socket, &mut self.bytes[self.filled..]) {
                Ok(0) => return Err("it closed the connection during the handshake, as ranks with another LINERATE_SECRET do".into()),
                Ok(bytes) => self.filled += bytes,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.to_string()),
            }
            if self.filled == HANDSHAKE_BYTES {
                self.filled = 0;
                return Ok(Some(self.bytes));
            }
        }
    }
}

/// Sends a message of a handshake, for which a new connection has room.
pub fn send(socket: &OwnedFd, message: &HandshakeMessage) -> Result<(), String> {
    socket::send_whole(socket.as_fd(), message).map_err(|e| e.to_string())
}

/// Random bytes for a handshake.
pub fn nonce() -> Result<[u8; NONCE_BYTES], String> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).map_err(|e| format!("no random bytes: {e}"))?;
    Ok(nonce)
}
