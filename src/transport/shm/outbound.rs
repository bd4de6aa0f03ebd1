//! [`Outbound`]: the ring to one peer, and messages to it that lie in this rank's memory.

use super::ring::{Producer, RecordHeader, RingMemory};
use crate::limits::CACHE_LINE_BYTES;
use crate::memory::View;

/// Messages to one peer that may lie in this rank's memory without an acknowledgement. The ring
/// back keeps a cache line for the acknowledgement of each, so that none has to wait for room: a
/// rank may send its last one and end.
pub const ACKNOWLEDGEMENTS_MAX: usize = 128;

/// Bytes of a ring that only acknowledgements use.
pub const ACKNOWLEDGEMENTS_ROOM: usize = ACKNOWLEDGEMENTS_MAX * CACHE_LINE_BYTES;

/// A send whose bytes the peer has not fetched yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outstanding {
    id: u32,
    /// `None`: it was withdrawn, and has completed.
    pub token: Option<u64>,
    pub bytes: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Outbound {
    producer: Option<Producer>,
    outstanding: Vec<Outstanding>,
    /// The number of the next message that lies in this rank's memory, from 1 on. The peer
    /// acknowledges its lower half.
    next_id: u64,
}

impl Outbound {
    pub fn new() -> Outbound {
        Outbound {
            producer: None,
            outstanding: Vec::new(),
            next_id: 1,
        }
    }

    /// Records go into this ring.
    pub fn open(&mut self, ring: RingMemory) {
        self.producer = Some(Producer::new(ring));
    }

    /// Nothing goes out any more, and what has gone out is not waited for.
    pub fn close(&mut self) {
        self.producer = None;
        self.outstanding.clear();
    }

    pub fn is_open(&self) -> bool {
        self.producer.is_some()
    }

    /// Appends a record, if `room_kept` bytes stay free in the ring; false: they do not, or it is
    /// closed.
    #[inline]
    pub fn push(&mut self, record: RecordHeader, payload: View, room_kept: usize) -> bool {
        let producer = self.producer.as_mut();
        producer.is_some_and(|producer| producer.push(record, payload, room_kept))
    }

    /// Whether another message that lies in this rank's memory may be sent.
    pub fn has_place(&self) -> bool {
        self.outstanding.len() < ACKNOWLEDGEMENTS_MAX
    }

    /// The number of the next message that lies in this rank's memory.
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    /// The message with that number was sent.
    pub fn note_sent(&mut self, token: u64, bytes: u64) {
        self.outstanding.push(Outstanding {
            id: self.next_id as u32,
            token: Some(token),
            bytes,
        });
        self.next_id += 1;
    }

    /// The peer has fetched one.
    pub fn acknowledge(&mut self, id: u64) -> Result<Outstanding, String> {
        let at = self.outstanding.iter().position(|o| u64::from(o.id) == id);
        let at = at.ok_or_else(|| format!("it acknowledged message {id}, which was not sent"))?;
        Ok(self.outstanding.remove(at))
    }

    /// Whether there are messages that the peer may still fetch.
    pub fn has_unread(&self) -> bool {
        self.outstanding.iter().any(|o| o.token.is_some())
    }

    /// Takes back all that the peer has not fetched; their tokens. They keep their places until
    /// they are acknowledged, because the room for acknowledgements is bounded.
    pub fn take_back(&mut self) -> Vec<u64> {
        let outstanding = self.outstanding.iter_mut();
        outstanding.filter_map(|o| o.token.take()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_acknowledged_once_and_keep_their_places_when_they_are_taken_back() {
        let mut outbound = Outbound::new();
        for token in 0..ACKNOWLEDGEMENTS_MAX as u64 {
            assert!(outbound.has_place());
            outbound.note_sent(token, 9);
        }
        assert!(!outbound.has_place());
        let first = outbound.acknowledge(1).unwrap();
        assert_eq!((first.token, first.bytes), (Some(0), 9));
        assert!(outbound.acknowledge(1).is_err() && outbound.has_unread());
        assert_eq!(outbound.take_back().len(), ACKNOWLEDGEMENTS_MAX - 1);
        assert_eq!(outbound.acknowledge(2).unwrap().token, None);
        assert!(!outbound.has_unread() && !outbound.is_open());
    }
}
