//! [`Numbers`]: the numbers of collectives: which comes next, which this rank and its peers have
//! retired, and the signatures of the latest ones.

use super::signature::Signature;
use crate::limits::OPERATION_SLOTS;

/// Operations whose signatures are remembered, so that they can be compared with that of a peer
/// that asks.
const HISTORY: usize = 64;
const _: () = assert!(HISTORY as u64 >= 2 * OPERATION_SLOTS);

/// The numbers of one engine's collectives.
pub struct Numbers {
    /// The number of the next one.
    pub next: u64,
    /// Calls that may be repeated at once so far: the number of the latest.
    pub calls: u64,
    /// Collectives that this rank has retired, without gaps.
    retired: u64,
    is_retired: [bool; OPERATION_SLOTS as usize],
    /// The count of retired collectives that the peers were last told.
    pub published: u64,
    /// The least retired count of the peers at the last look.
    pub retired_by_all: u64,
    history: [(u64, Signature); HISTORY],
}

impl Numbers {
    /// No collective has started.
    pub fn new() -> Numbers {
        Numbers {
            next: 0,
            calls: 0,
            retired: 0,
            is_retired: [false; OPERATION_SLOTS as usize],
            published: 0,
            retired_by_all: 0,
            history: [(u64::MAX, Signature(0)); HISTORY],
        }
    }

    /// Notes the signature of a collective.
    pub fn note(&mut self, sequence: u64, signature: Signature) {
        self.history[(sequence % HISTORY as u64) as usize] = (sequence, signature);
    }

    /// The signature of a collective, if it is one of the latest.
    pub fn signature_of(&self, sequence: u64) -> Option<Signature> {
        let (of, signature) = self.history[(sequence % HISTORY as u64) as usize];
        (of == sequence).then_some(signature)
    }

    /// A collective has ended; returns how many have, without gaps.
    pub fn retire(&mut self, sequence: u64) -> u64 {
        self.is_retired[(sequence % OPERATION_SLOTS) as usize] = true;
        while std::mem::take(&mut self.is_retired[(self.retired % OPERATION_SLOTS) as usize]) {
            self.retired += 1;
        }
        self.retired
    }

    /// Whether a quarter of the slots has been retired since the peers were last told a count. If
    /// so, the caller tells them the new one. A peer that is ahead by less than the other slots is
    /// never held up, and to tell all peers costs a quarter of what it would after every operation.
    pub fn is_publishing_due(&mut self) -> bool {
        let is_due = self.retired - self.published >= OPERATION_SLOTS / 4;
        if is_due {
            self.published = self.retired;
        }
        is_due
    }

    /// Whether all peers are known to have retired what used the slot of this collective.
    pub fn is_slot_free(&self, sequence: u64) -> bool {
        self.retired_by_all.saturating_add(OPERATION_SLOTS) > sequence
    }
}
