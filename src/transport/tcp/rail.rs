//! [`Rail`]: one connection to a peer, with what is under way on it in both directions.

use super::secure::Secure;
use super::shared::Shared;
use super::socket;
use super::zerocopy::Zerocopy;
use crate::memory::{Region, View};
use crate::wire::{FrameHeader, HEADER_BYTES};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

/// Bytes read at once where no chunk is under way. Several short frames fit, and what is copied of
/// a chunk whose header comes with them costs little.
pub const RX_BYTES: usize = 16 * 1024;

/// A chunk that is being sent.
#[derive(Debug)]
pub struct OutChunk {
    pub header: [u8; HEADER_BYTES],
    pub view: View,
    /// Bytes sent, of header and view together.
    pub sent: usize,
    /// Holds the memory of the view, if the chunk's own memory was taken back.
    pub copy: Option<Region>,
}

/// A piece of a transfer, as sent on a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub transfer: u64,
    pub offset: u64,
    pub bytes: u32,
}

/// A chunk that is being received.
#[derive(Debug)]
pub struct Body {
    pub header: FrameHeader,
    /// Bytes of it that have come.
    pub done: usize,
    /// Where they are kept while nobody wants them yet.
    pub staged: Option<Vec<u8>>,
}

/// See the module.
#[derive(Debug)]
pub struct Rail {
    pub id: u64,
    pub socket: OwnedFd,
    /// What encrypts it, if anything does.
    pub secure: Option<Box<Secure>>,
    /// This rank has opened it, and opens another one when it is lost.
    pub is_outgoing: bool,
    /// Names the other end, for people.
    pub name: String,
    pub rx: Box<[u8]>,
    pub rx_start: usize,
    pub rx_end: usize,
    pub body: Option<Body>,
    /// The poll that found a chunk without a place, which stays where it is until the next poll.
    pub parked: Option<u32>,
    /// Chunks that have come whole.
    pub chunks_received: u64,
    pub chunks_told: u64,
    /// The peer waits to be told.
    pub is_owed: bool,
    pub chunk: Option<OutChunk>,
    /// Pieces sent or being sent, oldest first, that the peer has not acknowledged.
    pub unacked: VecDeque<Piece>,
    pub chunks_acked: u64,
    /// The kernel had no room at the last try.
    pub is_blocked: bool,
    /// The wait source looks for room.
    pub is_armed: bool,
    pub zerocopy: Zerocopy,
}

/// A rail that this rank uses no more, until the peer has said how much of it had come.
#[derive(Debug)]
pub struct LostRail {
    pub id: u64,
    pub unacked: VecDeque<Piece>,
    pub chunks_acked: u64,
}

impl Rail {
    pub fn new(
        id: u64,
        socket: OwnedFd,
        secure: Option<Box<Secure>>,
        is_outgoing: bool,
        name: String,
    ) -> Rail {
        Rail {
            id,
            zerocopy: match secure {
                None => Zerocopy::new(socket.as_fd()),
                // What leaves is a sealed copy.
                Some(_) => Zerocopy::off(),
            },
            socket,
            secure,
            is_outgoing,
            name,
            rx: vec![0; RX_BYTES].into_boxed_slice(),
            rx_start: 0,
            rx_end: 0,
            body: None,
            parked: None,
            chunks_received: 0,
            chunks_told: 0,
            is_owed: false,
            chunk: None,
            unacked: VecDeque::new(),
            chunks_acked: 0,
            is_blocked: false,
            is_armed: false,
        }
    }

    /// Reads what the kernel says of bytes sent without a copy.
    #[inline]
    pub fn look_at_copies(&mut self, shared: &mut Shared) {
        if self.zerocopy.look(self.socket.as_fd()) {
            shared.counts.rails_copying += 1;
        }
    }

    /// One system call for `ordered` and what is left of the chunk, at most about `most` bytes.
    /// Returns the bytes taken of both together, and whether the kernel has no room for more.
    #[inline]
    pub fn send(&mut self, ordered: &[u8], most: usize) -> rustix::io::Result<(usize, bool)> {
        let is_cut = ordered.len() > most;
        let ordered = if is_cut { &ordered[..most] } else { ordered };
        if self.secure.is_some() {
            return self.send_sealed(ordered, most);
        }
        let (header, view) = self.chunk_part(ordered.len(), most);
        let is_zerocopy = self.zerocopy.is_for(view.len_bytes());
        if is_zerocopy && ordered.is_empty() && header.is_empty() {
            match socket::send_zerocopy(self.socket.as_fd(), view) {
                // The kernel has no room to remember another one.
                Err(Errno::NOBUFS) => {}
                Err(error) => return Err(error),
                Ok(sent) => {
                    self.zerocopy.note_sent();
                    return Ok((sent, sent < view.len_bytes()));
                }
            }
        }
        // Frames and headers lie in memory that changes soon and are copied; the view follows by
        // itself.
        let view = match is_zerocopy && !(ordered.is_empty() && header.is_empty()) {
            true => View::empty(),
            false => view,
        };
        let total = ordered.len() + header.len() + view.len_bytes();
        let sent = socket::send_parts(self.socket.as_fd(), ordered, header, view)?;
        Ok((sent, sent < total))
    }

    #[inline(never)]
    fn send_sealed(&mut self, ordered: &[u8], most: usize) -> rustix::io::Result<(usize, bool)> {
        let mut secure = self.secure.take().expect("a rail that is secured");
        let (header, view) = self.chunk_part(ordered.len(), most);
        let sent = secure.send_parts(self.socket.as_fd(), ordered, header, view);
        self.secure = Some(secure);
        sent
    }

    /// Whether encrypted bytes wait for room.
    #[inline]
    pub fn holds_sealed(&self) -> bool {
        self.secure.as_ref().is_some_and(|s| s.holds_sealed())
    }

    /// Whether bytes have come that are decrypted and not taken, of which the kernel knows nothing.
    #[inline]
    pub fn holds_opened(&self) -> bool {
        self.secure.as_ref().is_some_and(|s| s.holds_opened())
    }

    /// Whether a read that brought less than was asked for has left nothing.
    #[inline]
    pub fn is_drained(&self) -> bool {
        self.secure.as_ref().is_none_or(|s| s.is_drained())
    }

    /// Why receiving failed.
    pub fn explain(&self, error: Errno) -> String {
        match self.secure.as_ref().and_then(|s| s.failure()) {
            Some(failure) => format!("receiving: {failure}"),
            None => format!("receiving: {error}"),
        }
    }

    /// Whether a chunk has been begun: nothing else may be sent before its end.
    pub fn is_inside_chunk(&self) -> bool {
        self.chunk.as_ref().is_some_and(|chunk| chunk.sent > 0)
    }

    /// The chunk being sent, as what is left of its header and of its bytes.
    pub fn chunk_rest(&self) -> (&[u8], View) {
        match &self.chunk {
            None => (&[], View::empty()),
            Some(chunk) => {
                let header = &chunk.header[chunk.sent.min(HEADER_BYTES)..];
                let at = chunk.sent.saturating_sub(HEADER_BYTES);
                (header, chunk.view.part(at, chunk.view.len_bytes() - at))
            }
        }
    }

    /// The part of the chunk that may be sent behind `ordered` bytes, if these leave room.
    #[inline]
    fn chunk_part(&self, ordered: usize, most: usize) -> (&[u8], View) {
        let (header, view) = self.chunk_rest();
        let room = most - ordered;
        match room >= header.len() + view.len_bytes() {
            true => (header, view),
            false if room == 0 => (&[], View::empty()),
            false => (header, view.part(0, room.min(view.len_bytes()))),
        }
    }

    /// This many bytes of the chunk were taken.
    pub fn note_chunk_sent(&mut self, bytes: usize) {
        if let Some(chunk) = &mut self.chunk {
            chunk.sent += bytes;
            if chunk.sent == HEADER_BYTES + chunk.view.len_bytes() {
                self.chunk = None;
            }
        }
    }
}

/// Takes off the pieces that an acknowledgement of `chunks` chunks covers; the last `sending` have
/// not been sent whole.
pub fn acknowledge(
    unacked: &mut VecDeque<Piece>,
    sending: usize,
    chunks_acked: &mut u64,
    chunks: u64,
) -> Result<Vec<Piece>, String> {
    let count = chunks.saturating_sub(*chunks_acked);
    let sent = (unacked.len() - sending) as u64;
    if count > sent {
        return Err(format!(
            "it acknowledges {chunks} chunks of a rail, and {} were sent",
            *chunks_acked + sent
        ));
    }
    *chunks_acked += count;
    Ok(unacked.drain(..count as usize).collect())
}
