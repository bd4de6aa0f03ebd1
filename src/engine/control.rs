//! Control memory of one rank: retirement counts, flag lines, and places for control messages.
//!
//! Each rank owns a control region and, where memory is mapped, a window region; peers write into
//! them. A flag line is one cache line: a stamp (sequence + 1), a [`Signature`], and 48 bytes that
//! are a payload or the addresses of the sender's buffers. The stamp is stored last: a peer
//! that sees it sees the whole line.
//!
//! Lines and windows exist once per slot, and sequence s uses slot s mod [`OPERATION_SLOTS`]. A
//! rank uses a slot again only when every peer that signals has retired the operation that had it
//! before: *retired* counts are published by each rank to these peers. They are all peers, or those
//! of this host where only a host's ranks map each other's memory.
//!
//! `tests/loom.rs` compiles this file against a model of memory and fails as soon as one release
//! store is weaker.
//!
//! ```text
//! 0            retired count of each peer, one word per rank, in a cache line each
//! then         lines [slot][lane][sender]
//! then         receive area of control messages, one per rank, and one to send from
//! ```

use super::signature::Signature;
use crate::kernel;
use crate::limits::{CACHE_LINE_BYTES, CONTROL_BYTES, LANES, LINE_PAYLOAD_BYTES, OPERATION_SLOTS};
use crate::memory::{RegionKey, View};
use crate::schedule::Lane;
use crate::types::Rank;
use std::sync::atomic::Ordering;

/// Words of a line behind the stamp and the signature.
pub const PAYLOAD_WORDS: usize = LINE_PAYLOAD_BYTES / 8;

/// Where everything is in a control region of a job with `ranks` ranks.
#[derive(Clone, Copy, Debug)]
pub struct ControlLayout {
    ranks: usize,
}

/// What a rank says of its buffers when it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Binding {
    /// The region of the input, [`RegionKey::NONE`] if it is not registered.
    pub input_key: RegionKey,
    /// The region of the output, [`RegionKey::NONE`] if it is not registered.
    pub output_key: RegionKey,
    /// Offset of the input in its region.
    pub input_offset: u64,
    /// Offset of the output in its region.
    pub output_offset: u64,
    /// Whether every buffer that this rank uses is registered.
    pub is_registered: bool,
}

impl ControlLayout {
    pub fn new(ranks: u32) -> ControlLayout {
        ControlLayout {
            ranks: ranks as usize,
        }
    }

    /// Bytes of the region.
    pub fn bytes(self) -> usize {
        self.messages() + (self.ranks + 1) * CONTROL_BYTES
    }

    /// The word in which `peer` publishes how many operations it has retired.
    pub fn retired(self, peer: Rank) -> usize {
        peer as usize * CACHE_LINE_BYTES
    }

    /// The line that `sender` stores for an operation on a lane.
    pub fn line(self, sequence: u64, lane: Lane, sender: Rank) -> usize {
        let slot = (sequence % OPERATION_SLOTS) as usize;
        let index = (slot * LANES + lane as usize) * self.ranks + sender as usize;
        (self.ranks + index) * CACHE_LINE_BYTES
    }

    /// Where control messages of `peer` are received; `ranks` is the place to send from.
    pub fn message(self, peer: Rank) -> usize {
        self.messages() + peer as usize * CONTROL_BYTES
    }

    fn messages(self) -> usize {
        (self.ranks + self.ranks * LANES * OPERATION_SLOTS as usize) * CACHE_LINE_BYTES
    }
}

/// Bits of a stamp that hold the number of its operation plus 1. Those above hold the core of the
/// sender plus 1, or 0 if the sender does not say it.
const STAMP_BITS: u32 = 48;

/// The words of a flag line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// See [`Line::stamp_of`].
    pub stamp: u64,
    /// What the sender believes the operation to be.
    pub signature: Signature,
    /// A payload or a binding.
    pub payload: [u64; PAYLOAD_WORDS],
}

impl Line {
    /// The stamp of an operation's line. `core` is the core of the sender plus 1, or 0 if it does
    /// not say it.
    pub fn stamp_of(sequence: u64, core: u16) -> u64 {
        (sequence + 1) | (u64::from(core) << STAMP_BITS)
    }

    /// Whether these are stamps of the same operation, from whatever core.
    #[inline]
    fn is_of(stamp: u64, other: u64) -> bool {
        (stamp ^ other) << (64 - STAMP_BITS) == 0
    }

    /// Stores the line where its reader polls, the stamp last.
    #[inline]
    pub fn store(&self, memory: View, offset: usize) {
        let [stamp, signature, payload @ ..] = kernel::line(&memory, offset);
        signature.store(self.signature.0, Ordering::Relaxed);
        for (place, &word) in payload.iter().zip(&self.payload) {
            place.store(word, Ordering::Relaxed);
        }
        // Publishes the line and everything stored before it to the acquire load in `arrived`.
        stamp.store(self.stamp, Ordering::Release);
    }

    /// The line as 64 bytes, for transports that carry signals as puts.
    pub fn emit(&self, target: View) {
        kernel::store(target, 0, self.stamp);
        kernel::store(target, 1, self.signature.0);
        for (index, &word) in self.payload.iter().enumerate() {
            kernel::store(target, 2 + index, word);
        }
    }

    /// The signature of the line with this stamp, from whatever core, if it has arrived.
    #[inline]
    pub fn arrived(memory: View, offset: usize, stamp: u64) -> Option<Signature> {
        Line::arrived_within(memory, offset, stamp, 1).map(|(signature, _)| signature)
    }

    /// As [`Line::arrived`], but looks up to `looks` times, and gives the sender's core besides, as
    /// in [`Line::stamp_of`].
    #[inline]
    pub fn arrived_within(
        memory: View,
        offset: usize,
        stamp: u64,
        looks: u32,
    ) -> Option<(Signature, u16)> {
        let [first, signature, ..] = kernel::line(&memory, offset);
        for _ in 0..looks {
            // Pairs with the release store in `store`.
            let found = first.load(Ordering::Acquire);
            if Line::is_of(found, stamp) {
                let core = (found >> STAMP_BITS) as u16;
                return Some((Signature(signature.load(Ordering::Relaxed)), core));
            }
        }
        None
    }

    /// The operation that a line was last stored for, and its signature.
    pub fn last(memory: View, offset: usize) -> Option<(u64, Signature)> {
        // Only a guess, which `arrived` checks.
        let stamp = kernel::word(&memory, offset).load(Ordering::Relaxed);
        let signature = Line::arrived(memory, offset, stamp)?;
        let sequence = stamp & ((1 << STAMP_BITS) - 1);
        Some((sequence.checked_sub(1)?, signature))
    }

    /// The payload of a line that has arrived.
    pub fn payload_view(memory: View, offset: usize) -> View {
        memory.part(offset + 16, LINE_PAYLOAD_BYTES)
    }
}

/// Tells the owner of `memory` how many operations this rank has retired.
#[inline]
pub fn store_retired(memory: View, offset: usize, retired: u64) {
    // Publishes "this rank has read all of its lines and windows up to here" to `load_retired`.
    kernel::word(&memory, offset).store(retired, Ordering::Release);
}

/// How many operations a peer has retired.
#[inline]
pub fn load_retired(memory: View, offset: usize) -> u64 {
    // Pairs with the release store in `store_retired`.
    kernel::word(&memory, offset).load(Ordering::Acquire)
}

impl Binding {
    /// As words of a line.
    pub fn emit(&self) -> [u64; PAYLOAD_WORDS] {
        [
            u64::from(self.input_key.0) | (u64::from(self.output_key.0) << 32),
            self.input_offset,
            self.output_offset,
            u64::from(self.is_registered),
            0,
            0,
        ]
    }

    /// From the payload of a line. Every bit pattern is a binding; keys and ranges are checked when
    /// used.
    pub fn parse(payload: View) -> Binding {
        let keys: u64 = kernel::load(payload, 0);
        Binding {
            input_key: RegionKey(keys as u32),
            output_key: RegionKey((keys >> 32) as u32),
            input_offset: kernel::load(payload, 1),
            output_offset: kernel::load(payload, 2),
            is_registered: kernel::load::<u64>(payload, 3) == 1,
        }
    }
}
