//! Positions of the rings: they say when a rank may post what, so that every post finds a receive
//! and a free slot.
//!
//! Each direction of a pair has a ring of slots in the receiver's memory. A write that consumes a
//! receive of the peer and carries something takes the next *position*. No more positions are under
//! way than the ring has slots: that is the credit. A position is consumed when the receiver has
//! done what it says. The sender is told so in passing, or by a message of its own when half of the
//! ring was not told. After a fault the receiver says how many positions have come, and exactly the
//! others are posted again.

use super::record::VALUE_MASK;
use std::collections::VecDeque;

/// The sender's side of a ring. `E` is what it has to know of a position.
#[derive(Debug)]
pub struct SendRing<E> {
    slots: u64,
    /// The first position that the peer has not consumed, as far as is known; of `entries` the
    /// first.
    consumed: u64,
    /// The first one that is not posted.
    posted: u64,
    entries: VecDeque<E>,
}

impl<E> SendRing<E> {
    /// Nothing was sent yet.
    pub fn new(slots: u32) -> SendRing<E> {
        SendRing {
            slots: u64::from(slots),
            consumed: 0,
            posted: 0,
            entries: VecDeque::with_capacity(slots as usize),
        }
    }

    /// Whether there is a free position.
    #[inline]
    pub fn has_room(&self) -> bool {
        (self.entries.len() as u64) < self.slots
    }

    /// Takes the next position.
    #[inline]
    pub fn push(&mut self, entry: E) -> u64 {
        assert!(self.has_room(), "a position of a ring that is full");
        self.entries.push_back(entry);
        self.next() - 1
    }

    /// The position that comes next.
    #[inline]
    pub fn next(&self) -> u64 {
        self.consumed + self.entries.len() as u64
    }

    /// The slot of a position.
    #[inline]
    pub fn slot(&self, position: u64) -> usize {
        (position % self.slots) as usize
    }

    /// The next position to post.
    #[inline]
    pub fn unposted(&self) -> Option<(u64, &E)> {
        let entry = self.entries.get((self.posted - self.consumed) as usize)?;
        Some((self.posted, entry))
    }

    /// The position given by [`SendRing::unposted`] was posted.
    #[inline]
    pub fn note_posted(&mut self) {
        self.posted += 1;
        debug_assert!(self.posted <= self.next());
    }

    /// What is known of a position that is not consumed yet.
    pub fn entry(&mut self, position: u64) -> Option<&mut E> {
        let index = position.checked_sub(self.consumed)?;
        self.entries.get_mut(index as usize)
    }

    /// The position under way whose low bits these are.
    pub fn position(&self, low_bits: u32) -> u64 {
        self.consumed + u64::from(low_bits.wrapping_sub(self.consumed as u32) & VALUE_MASK)
    }

    /// The first position that is not consumed, as far as is known.
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// All positions that are not consumed, in order.
    pub fn entries_mut(&mut self) -> impl Iterator<Item = (u64, &mut E)> {
        (self.consumed..).zip(&mut self.entries)
    }

    /// How many more posted positions are consumed, by the low bits that the peer tells.
    pub fn newly_consumed(&self, told: u32) -> Result<u64, String> {
        let count = u64::from(told.wrapping_sub(self.consumed as u32) & VALUE_MASK);
        if count > self.posted - self.consumed {
            return Err(format!(
                "it says that it has consumed {count} more of its ring, of {} under way",
                self.posted - self.consumed
            ));
        }
        Ok(count)
    }

    /// The first position is consumed.
    pub fn pop(&mut self) -> Option<(u64, E)> {
        let entry = self.entries.pop_front()?;
        self.consumed += 1;
        self.posted = self.posted.max(self.consumed);
        Some((self.consumed - 1, entry))
    }

    /// Everything from this position on is to be posted again.
    pub fn rewind(&mut self, received: u64) {
        debug_assert!((self.consumed..=self.next()).contains(&received));
        self.posted = received;
    }

    /// Nothing waits to be posted.
    #[inline]
    pub fn is_posted(&self) -> bool {
        self.posted == self.next()
    }
}

/// The receiver's side.
#[derive(Debug)]
pub struct ReceiveRing {
    slots: u64,
    received: u64,
    told: u64,
}

impl ReceiveRing {
    /// Nothing has come yet.
    pub fn new(slots: u32) -> ReceiveRing {
        ReceiveRing {
            slots: u64::from(slots),
            received: 0,
            told: 0,
        }
    }

    /// Something has come, and takes this position.
    #[inline]
    pub fn receive(&mut self) -> u64 {
        self.received += 1;
        self.received - 1
    }

    /// The slot of a position.
    pub fn slot(&self, position: u64) -> usize {
        (position % self.slots) as usize
    }

    /// Positions that have come.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Their low bits, as the peer is told them.
    #[inline]
    pub fn low_bits(&self) -> u32 {
        self.received as u32 & VALUE_MASK
    }

    /// Whether the peer should be told now: half of the ring was not told, or the peer waits for
    /// any of it.
    #[inline]
    pub fn is_due(&self, is_awaited: bool) -> bool {
        let untold = self.received - self.told;
        untold >= self.slots / 2 || (is_awaited && untold > 0)
    }

    /// The peer was told, or will be by what is being posted.
    pub fn note_told(&mut self) {
        self.told = self.received;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;

    #[test]
    fn a_full_ring_has_no_room_until_something_is_consumed() {
        let mut ring = SendRing::new(4);
        for number in 0..4 {
            assert_eq!(ring.push(number), number);
        }
        assert!(!ring.has_room() && !ring.is_posted());
        while ring.unposted().is_some() {
            ring.note_posted();
        }
        assert_eq!(ring.newly_consumed(1), Ok(1));
        assert_eq!(ring.pop(), Some((0, 0)));
        assert!(ring.has_room());
        assert_eq!(ring.push(9), 4);
        assert_eq!((ring.slot(4), ring.unposted()), (0, Some((4, &9))));
        assert_eq!((ring.position(1), ring.position(3)), (1, 3));
    }

    #[test]
    fn a_peer_that_has_consumed_more_than_was_posted_is_found_out() {
        let mut ring = SendRing::new(4);
        ring.push(());
        ring.push(());
        ring.note_posted();
        assert_eq!(ring.newly_consumed(0), Ok(0));
        assert_eq!(ring.newly_consumed(1), Ok(1));
        let text = ring.newly_consumed(2).unwrap_err();
        assert!(text.contains("of 1 under way"), "{text}");
        assert!(ring.newly_consumed(VALUE_MASK).is_err());
    }

    /// Two sides over a wire that breaks at any position: everything comes once and in order,
    /// however often.
    #[test]
    fn what_had_not_come_is_posted_again_and_nothing_else() {
        for seed in 0..200 {
            let mut prng = Prng::new(seed);
            let slots = 2 + prng.below(7) as u32;
            let (mut sender, mut receiver) = (SendRing::new(slots), ReceiveRing::new(slots));
            let (mut wire, mut back) = (VecDeque::new(), VecDeque::new());
            let (mut sent, mut came) = (0u64, Vec::new());
            while came.len() < 100 {
                match prng.below(6) {
                    0 if sender.has_room() => {
                        sender.push(sent);
                        sent += 1;
                    }
                    1 => {
                        if let Some((position, entry)) = sender.unposted() {
                            wire.push_back((position, *entry));
                            sender.note_posted();
                        }
                    }
                    2 => {
                        if let Some((position, entry)) = wire.pop_front() {
                            assert_eq!(receiver.receive(), position);
                            came.push(entry);
                        }
                        assert!(wire.len() <= slots as usize, "more than the credits");
                    }
                    3 if receiver.is_due(prng.below(4) == 0) => {
                        back.push_back(receiver.low_bits());
                        receiver.note_told();
                    }
                    4 => {
                        if let Some(told) = back.pop_front() {
                            let count = sender.newly_consumed(told).unwrap();
                            for _ in 0..count {
                                sender.pop().unwrap();
                            }
                        }
                    }
                    5 if prng.below(10) == 0 => {
                        // The queues die: what is under way is lost both ways.
                        wire.clear();
                        back.clear();
                        // The receiver says what has come, and that some of it is not consumed yet.
                        let received = receiver.received();
                        let count = sender.newly_consumed(receiver.low_bits()).unwrap();
                        let untold = prng.below(count + 1);
                        for _ in untold..count {
                            sender.pop().unwrap();
                        }
                        sender.rewind(received);
                        back.push_back(receiver.low_bits());
                        receiver.note_told();
                    }
                    _ => {}
                }
            }
            assert!(came.iter().copied().eq(0..came.len() as u64), "seed {seed}");
        }
    }
}
