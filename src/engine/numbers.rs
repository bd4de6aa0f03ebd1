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
    /// How many `AtOnce` calls have been prepared, which is the number of the latest.
    pub calls: u64,
    /// Collectives that this rank has retired, without gaps.
    retired: u64,
    is_retired: [bool; OPERATION_SLOTS as usize],
    /// 1 plus the number of the latest retired collective that used signals, of each slot and of
    /// all; 0: there is none.
    signalled: [u64; OPERATION_SLOTS as usize],
    last_signalled: u64,
    /// The count of retired collectives that the peers were last told, or did not need to be told.
    pub published: u64,
    /// The lowest retired count of all peers, as last seen.
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
            signalled: [0; OPERATION_SLOTS as usize],
            last_signalled: 0,
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

    /// Notes that a collective has ended. Returns how many have ended, without gaps.
    pub fn retire(&mut self, sequence: u64, uses_signals: bool) -> u64 {
        let slot = (sequence % OPERATION_SLOTS) as usize;
        if uses_signals {
            self.signalled[slot] = sequence + 1;
            self.last_signalled = self.last_signalled.max(sequence + 1);
        }
        self.is_retired[slot] = true;
        while std::mem::take(&mut self.is_retired[(self.retired % OPERATION_SLOTS) as usize]) {
            self.retired += 1;
        }
        self.retired
    }

    /// Whether the caller is to tell the peers the count of retired collectives. It is due when a
    /// quarter of the slots has been retired since the last time and some of these collectives used
    /// signals: peers wait for no others. A peer that is ahead by less than the other slots is
    /// never held up, and telling costs a quarter of what it would cost after every operation.
    pub fn is_publishing_due(&mut self) -> bool {
        if self.retired - self.published < OPERATION_SLOTS / 4 {
            return false;
        }
        let is_needed = self.last_signalled > self.published;
        self.published = self.retired;
        is_needed
    }

    /// Whether all peers are known to have retired what used the slot of this collective.
    pub fn is_slot_free(&self, sequence: u64) -> bool {
        self.signalled[(sequence % OPERATION_SLOTS) as usize] <= self.retired_by_all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_told_of_signals_and_slots_wait_for_them_alone() {
        let mut numbers = Numbers::new();
        for sequence in 0..100 {
            numbers.retire(sequence, false);
            assert!(!numbers.is_publishing_due() && numbers.is_slot_free(sequence + 1));
        }
        let mut told = 0;
        for sequence in 100..116 {
            numbers.retire(sequence, sequence == 101);
            told += u64::from(numbers.is_publishing_due());
        }
        assert_eq!((told, numbers.published), (1, 116));
        // Its slot, after 16 others.
        let is_free = |numbers: &Numbers| [116, 117, 118].map(|next| numbers.is_slot_free(next));
        assert_eq!(is_free(&numbers), [true, false, true]);
        numbers.retired_by_all = 102;
        assert_eq!(is_free(&numbers), [true; 3]);
    }

    #[test]
    fn what_is_retired_out_of_order_is_told_once_it_has_no_gap_before_it() {
        let mut numbers = Numbers::new();
        numbers.retire(5, true);
        assert!(!numbers.is_publishing_due());
        assert_eq!((0..5).map(|n| numbers.retire(n, false)).last(), Some(6));
        assert!(numbers.is_publishing_due());
        assert_eq!(numbers.published, 6);
    }
}
