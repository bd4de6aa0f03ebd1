//! A single-producer, single-consumer ring of records in shared memory.
//!
//! The producer owns `head`, the consumer owns `tail`; both count bytes and never wrap. A record is
//! a header of six words and a payload, padded to cache lines; one that would cross the end of the
//! ring is preceded by a padding record. The consumer checks everything it reads: the producer is
//! another process.
//!
//! `tests/loom.rs` compiles this file against a model of memory and finds a failure as soon as one
//! release is weaker.

use crate::kernel;
use crate::limits::{CACHE_LINE_BYTES, RING_BYTES};
use crate::memory::View;
use std::sync::atomic::Ordering;

/// Bytes of a record's header.
pub const HEADER_BYTES: usize = 48;

pub(super) const KIND_PADDING: u64 = 0xff;

/// The six words in front of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// What it is; the meaning belongs to the provider. Below 255.
    pub kind: u8,
    /// Bytes of payload behind it in the ring.
    pub payload_bytes: u32,
    /// Provider's words.
    pub words: [u64; 5],
}

/// The two indices and the bytes of one ring, as views of a segment in shared memory. The transport
/// of each end keeps the segment mapped as long as that end lives.
#[derive(Clone, Copy, Debug)]
pub struct RingMemory {
    /// Index written by the producer, in a cache line of its own.
    pub head: View,
    /// Index written by the consumer, in a cache line of its own.
    pub tail: View,
    /// [`RING_BYTES`] bytes.
    pub bytes: View,
}

/// The sending end.
#[derive(Debug)]
pub struct Producer {
    memory: RingMemory,
    head: u64,
    tail_seen: u64,
}

/// The receiving end.
#[derive(Debug)]
pub struct Consumer {
    pub(super) memory: RingMemory,
    tail: u64,
}

/// A record that was read but not yet released.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// Its header.
    pub header: RecordHeader,
    /// Its payload, where it lies in the ring.
    pub payload: View,
    total_bytes: u64,
}

impl Producer {
    /// The sending end of an empty ring.
    pub fn new(memory: RingMemory) -> Producer {
        Producer {
            memory,
            head: 0,
            tail_seen: 0,
        }
    }

    /// Appends a record if `keep_free` bytes stay free behind it; false if not, and then nothing
    /// has changed.
    pub fn push(&mut self, header: RecordHeader, payload: View, keep_free: usize) -> bool {
        debug_assert_eq!(header.payload_bytes as usize, payload.len_bytes());
        let total = record_bytes(payload.len_bytes());
        let at = (self.head as usize) & (RING_BYTES - 1);
        let padding = if at + total > RING_BYTES {
            RING_BYTES - at
        } else {
            0
        };
        if !self.has_room(padding + total + keep_free) {
            return false;
        }
        if padding > 0 {
            let word = KIND_PADDING | ((padding as u64) << 32);
            // SAFETY: see `RingMemory`.
            unsafe { self.memory.bytes.store(at / 8, word) };
            self.head += padding as u64;
        }
        let at = (self.head as usize) & (RING_BYTES - 1);
        let record = self.memory.bytes.part(at, total);
        let first = u64::from(header.kind) | (u64::from(header.payload_bytes) << 32);
        // SAFETY: see `RingMemory`.
        unsafe { record.store(0, first) };
        for (index, word) in header.words.into_iter().enumerate() {
            // SAFETY: see `RingMemory`.
            unsafe { record.store(1 + index, word) };
        }
        kernel::copy(payload, record.part(HEADER_BYTES, payload.len_bytes()));
        self.head += total as u64;
        // Publishes the record's bytes to the consumer's acquire load in `peek`.
        kernel::word(&self.memory.head, 0).store(self.head, Ordering::Release);
        true
    }

    fn has_room(&mut self, bytes: usize) -> bool {
        let fits = |tail: u64, head: u64| (head - tail) as usize + bytes <= RING_BYTES;
        if !fits(self.tail_seen, self.head) {
            // Pairs with the release store in `release`: the consumer has read what it gives back.
            // A hostile tail cannot pass the head or go back.
            let tail = kernel::word(&self.memory.tail, 0).load(Ordering::Acquire);
            self.tail_seen = tail.clamp(self.tail_seen, self.head);
        }
        fits(self.tail_seen, self.head)
    }
}

impl Consumer {
    /// The receiving end of an empty ring.
    pub fn new(memory: RingMemory) -> Consumer {
        Consumer { memory, tail: 0 }
    }

    /// The oldest record, if there is one; an error if the producer wrote nonsense.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Record>, String> {
        // Pairs with the release store in `push`: the record's bytes are visible.
        let head = kernel::word(&self.memory.head, 0).load(Ordering::Acquire);
        if head == self.tail {
            return Ok(None);
        }
        self.read(head)
    }

    fn read(&mut self, head: u64) -> Result<Option<Record>, String> {
        loop {
            let available = head.wrapping_sub(self.tail);
            let at = (self.tail as usize) & (RING_BYTES - 1);
            if available > RING_BYTES as u64 {
                return Err(format!("ring index {head} with {} read", self.tail));
            }
            if available == 0 {
                return Ok(None);
            }
            // SAFETY: see `RingMemory`.
            let first: u64 = unsafe { self.memory.bytes.load(at / 8) };
            let payload_bytes = (first >> 32) as usize;
            let (kind, total) = match first & 0xff {
                KIND_PADDING => (None, payload_bytes),
                kind => (Some(kind as u8), record_bytes(payload_bytes)),
            };
            if total == 0
                || total as u64 > available
                || at + total > RING_BYTES
                || payload_bytes > RING_BYTES
            {
                return Err(format!(
                    "a record of {total} bytes at {at} with {available} available"
                ));
            }
            let Some(kind) = kind else {
                self.tail += total as u64;
                continue;
            };
            let record = self.memory.bytes.part(at, total);
            // SAFETY: see `RingMemory`.
            let words = std::array::from_fn(|i| unsafe { record.load(1 + i) });
            return Ok(Some(Record {
                header: RecordHeader {
                    kind,
                    payload_bytes: payload_bytes as u32,
                    words,
                },
                payload: record.part(HEADER_BYTES, payload_bytes),
                total_bytes: total as u64,
            }));
        }
    }

    /// Gives the record's bytes back to the producer.
    pub fn release(&mut self, record: &Record) {
        self.tail += record.total_bytes;
        // Publishes that the record was read to the producer's acquire load in `has_room`.
        kernel::word(&self.memory.tail, 0).store(self.tail, Ordering::Release);
    }

    /// How much has been read: where this is the head, there is nothing new.
    pub fn read_so_far(&self) -> u64 {
        self.tail
    }
}

fn record_bytes(payload_bytes: usize) -> usize {
    (HEADER_BYTES + payload_bytes).next_multiple_of(CACHE_LINE_BYTES)
}
