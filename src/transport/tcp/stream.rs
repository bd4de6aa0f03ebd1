//! [`Stream`]: the ordered frames for one peer, as bytes that are kept until the peer has
//! acknowledged them; and [`Received`]: how much of the peer's own stream has come.
//!
//! Frames go over one rail at a time, the lead. When it is lost, what is not acknowledged goes over
//! the next one, and the receiver, which knows how much it has, drops what comes again. Positions
//! count bytes from the beginning of the connection and never start anew.

use crate::kernel;
use crate::memory::View;

/// Acknowledged bytes at the front are given back when they are at least this many.
const COMPACT_BYTES: usize = 64 * 1024;
/// A rank tells what has come at the latest after this many bytes of the stream.
pub const TELL_STREAM_BYTES: u64 = 32 * 1024;

/// See the module.
#[derive(Debug, Default)]
pub struct Stream {
    bytes: Vec<u8>,
    /// Bytes at the front that are not needed any more.
    head: usize,
    /// Position of the byte at `head`.
    base: u64,
    /// Position of the next byte for the lead rail.
    sent: u64,
    /// Highest position that the peer has acknowledged.
    acknowledged: u64,
}

impl Stream {
    /// Where the next frame begins.
    pub fn end(&self) -> u64 {
        self.base + (self.bytes.len() - self.head) as u64
    }

    /// Bytes kept.
    pub fn len_bytes(&self) -> usize {
        self.bytes.len() - self.head
    }

    /// Appends a frame; gives its bytes, for the checksum.
    #[inline]
    pub fn push(&mut self, header: &[u8], payload: View) -> &mut [u8] {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(header);
        if !payload.is_empty() {
            let body = self.bytes.len();
            self.bytes.resize(body + payload.len_bytes(), 0);
            kernel::read(payload, 0, &mut self.bytes[body..]);
        }
        &mut self.bytes[at..]
    }

    /// What the lead rail has to send.
    #[inline]
    pub fn unsent(&self) -> &[u8] {
        &self.bytes[self.head + (self.sent - self.base) as usize..]
    }

    /// Whether the lead rail has sent everything.
    pub fn is_sent(&self) -> bool {
        self.sent == self.end()
    }

    /// The lead rail has taken this many bytes.
    pub fn note_sent(&mut self, bytes: usize) {
        self.sent += bytes as u64;
        debug_assert!(self.sent <= self.end());
        self.release();
    }

    /// The peer has everything before `position`.
    #[inline]
    pub fn acknowledge(&mut self, position: u64) -> Result<(), String> {
        if position > self.end() {
            let end = self.end();
            return Err(format!(
                "it acknowledges {position} bytes, and {end} were sent"
            ));
        }
        if position > self.acknowledged {
            self.acknowledged = position;
            self.release();
        }
        Ok(())
    }

    /// The lead rail is lost: the next one begins with the first byte that is not acknowledged.
    pub fn rewind(&mut self) {
        // An acknowledged position is the end of a frame. Bytes before it are kept only where the
        // lead was behind.
        self.sent = self.acknowledged.max(self.base);
        self.release();
    }

    /// Forgets what the peer has. What the lead rail sends again is sent to its end all the same,
    /// so that frames stay whole.
    fn release(&mut self) {
        let to = self.acknowledged.min(self.sent);
        if to > self.base {
            self.head += (to - self.base) as usize;
            self.base = to;
        }
        if self.head == self.bytes.len() {
            self.bytes.clear();
            self.head = 0;
        } else if self.head >= COMPACT_BYTES && self.head >= self.bytes.len() / 2 {
            self.bytes.drain(..self.head);
            self.head = 0;
        }
    }
}

/// How much of the peer's stream has come here, and what of that it was told.
#[derive(Debug, Default)]
pub struct Received {
    position: u64,
    told: u64,
    /// Something has come, and its sender waits to hear that.
    owes_soon: bool,
    /// Something has come besides acknowledgements.
    owes_later: bool,
}

impl Received {
    /// Where the next frame begins.
    #[inline]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The next frame has come, with this many bytes.
    #[inline]
    pub fn note(&mut self, bytes: usize, is_urgent: bool, is_acknowledgement: bool) {
        self.position += bytes as u64;
        self.owes_soon |= is_urgent;
        self.owes_later |= !is_acknowledgement;
    }

    /// What has come, which the peer is being told of.
    #[inline]
    pub fn tell(&mut self) -> u64 {
        self.told = self.position;
        self.position
    }

    /// The peer gets an acknowledgement now.
    pub fn note_acknowledged(&mut self) {
        (self.owes_soon, self.owes_later) = (false, false);
    }

    /// Whether it should get one; `is_time`: for whatever has come.
    #[inline]
    pub fn is_due(&self, is_time: bool) -> bool {
        let untold = self.position - self.told;
        self.owes_soon || untold >= TELL_STREAM_BYTES || (is_time && self.owes_later && untold > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(stream: &mut Stream, bytes: &[u8]) {
        stream.push(bytes, View::empty());
    }

    #[test]
    fn what_is_not_acknowledged_is_sent_again() {
        let mut stream = Stream::default();
        push(&mut stream, b"aaaa");
        push(&mut stream, b"bbb");
        stream.note_sent(7);
        stream.acknowledge(4).unwrap();
        assert_eq!(stream.unsent(), b"");
        stream.rewind();
        assert_eq!(stream.unsent(), b"bbb");
        push(&mut stream, b"cc");
        assert_eq!((stream.unsent(), stream.end()), (&b"bbbcc"[..], 9));
    }

    #[test]
    fn a_frame_that_was_begun_again_is_ended_although_it_is_acknowledged_meanwhile() {
        let mut stream = Stream::default();
        push(&mut stream, b"aaaa");
        push(&mut stream, b"bbb");
        stream.note_sent(7);
        stream.rewind();
        stream.note_sent(2);
        stream.acknowledge(7).unwrap();
        assert_eq!(stream.unsent(), b"aabbb");
        stream.note_sent(5);
        assert_eq!((stream.len_bytes(), stream.is_sent()), (0, true));
    }

    #[test]
    fn an_acknowledgement_of_what_was_not_sent_is_refused() {
        let mut stream = Stream::default();
        push(&mut stream, b"aaaa");
        assert!(stream.acknowledge(5).unwrap_err().contains("5 bytes"));
    }

    #[test]
    fn acknowledged_bytes_are_given_back() {
        let mut stream = Stream::default();
        for _ in 0..100 {
            push(&mut stream, &[7; 4096]);
            stream.note_sent(4096);
            stream.acknowledge(stream.end() - 4096).unwrap();
            assert!(stream.bytes.len() <= 2 * COMPACT_BYTES + 4096);
        }
        assert_eq!(stream.end(), 409_600);
    }

    #[test]
    fn what_has_come_is_told_soon_where_its_sender_waits_and_later_elsewhere() {
        let mut received = Received::default();
        received.note(40, false, true);
        assert!(!received.is_due(true), "an acknowledgement needs none");
        received.note(60, false, false);
        assert_eq!(
            [false, true].map(|slow| received.is_due(slow)),
            [false, true]
        );
        received.note(1, true, false);
        assert!(received.is_due(false));
        received.note_acknowledged();
        assert_eq!((received.tell(), received.is_due(true)), (101, false));
        received.note(TELL_STREAM_BYTES as usize, false, false);
        assert!(received.is_due(false));
    }
}
