//! Positions of the rings: they say when a rank may post what, so that every post finds a receive
//! and a free slot.
//!
//! Each direction of a pair has a ring of slots in the receiver's memory. A record takes the next
//! *position*. No more positions are under way than the ring has slots: that is the credit. Records
//! may come in any order, and are done in the order of their positions: one that is early waits in
//! its slot. A position is consumed when the receiver has done what it says. The sender is told so
//! in passing, or by a record of its own when half of the ring was not told. After a fault the
//! receiver says how many positions it has consumed, and the others are posted again.
//!
//! Two slots are kept for records that only tell. Each of them tells of half a ring at least: when
//! both are under way, all that the peer has sent is told, so it can tell in turn. Without them two
//! ranks with full rings would wait for each other.

use super::record::VALUE_MASK;
use std::collections::VecDeque;

/// Slots for records that only tell.
pub const TELLING_SLOTS: u32 = 2;

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
        (self.entries.len() as u64) + u64::from(TELLING_SLOTS) < self.slots
    }

    /// Whether there is a free position for a record that only tells.
    #[inline]
    pub fn has_room_to_tell(&self) -> bool {
        (self.entries.len() as u64) < self.slots
    }

    /// Takes the next position.
    #[inline]
    pub fn push(&mut self, entry: E) -> u64 {
        assert!(self.has_room_to_tell(), "a position of a ring that is full");
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
    /// By slot: whether the record that belongs there has come, and was not done yet.
    is_early: Vec<bool>,
    received: u64,
    told: u64,
    /// Positions from the first of these on are not told: the peer does not know yet that the put
    /// there has named no region.
    bad_puts: VecDeque<u64>,
}

impl ReceiveRing {
    /// Nothing has come yet.
    pub fn new(slots: u32) -> ReceiveRing {
        ReceiveRing {
            is_early: vec![false; slots as usize],
            received: 0,
            told: 0,
            bad_puts: VecDeque::new(),
        }
    }

    /// The record of the position with these low bits has come.
    #[inline]
    pub fn arrive(&mut self, low_bits: u32) -> Result<(), String> {
        let ahead = low_bits.wrapping_sub(self.received as u32) & VALUE_MASK;
        if ahead as usize >= self.is_early.len() {
            return Err(format!(
                "a record {ahead} positions ahead, in a ring of {} slots",
                self.is_early.len()
            ));
        }
        let slot = self.slot(self.received + u64::from(ahead));
        match std::mem::replace(&mut self.is_early[slot], true) {
            true => Err(format!("the record of position {low_bits} has come twice")),
            false => Ok(()),
        }
    }

    /// The next position, if its record has come, to be done now.
    #[inline]
    pub fn take_next(&mut self) -> Option<u64> {
        let slot = self.slot(self.received);
        let has_come = std::mem::take(&mut self.is_early[slot]);
        has_come.then(|| {
            self.received += 1;
            self.received - 1
        })
    }

    /// Forgets what has come early: it is posted again.
    pub fn forget_early(&mut self) {
        self.is_early.fill(false);
    }

    /// The slot of a position.
    pub fn slot(&self, position: u64) -> usize {
        (position % self.is_early.len() as u64) as usize
    }

    /// Positions that were done.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// The put at this position has named no region.
    pub fn hold_back(&mut self, position: u64) {
        self.bad_puts.push_back(position);
    }

    /// The peer knows that the first such put has named no region.
    pub fn let_go(&mut self) {
        self.bad_puts.pop_front();
    }

    /// Positions that the peer may be told of as consumed.
    #[inline]
    pub fn consumed(&self) -> u64 {
        self.bad_puts.front().copied().unwrap_or(self.received)
    }

    /// Whether the peer should be told now: half of the ring was not told.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.untold() >= self.is_early.len() as u64 / 2
    }

    /// Positions that the peer could be told of.
    #[inline]
    pub fn untold(&self) -> u64 {
        self.consumed() - self.told
    }

    /// The peer was told, or will be by what is being posted; the low bits of what it is told.
    #[inline]
    pub fn tell(&mut self) -> u32 {
        self.told = self.consumed();
        self.told as u32 & VALUE_MASK
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;

    #[test]
    fn a_full_ring_has_no_room_until_something_is_consumed() {
        let mut ring = SendRing::new(6);
        for number in 0..4 {
            assert_eq!(ring.push(number), number);
        }
        assert!(!ring.has_room() && ring.has_room_to_tell() && !ring.is_posted());
        while ring.unposted().is_some() {
            ring.note_posted();
        }
        assert_eq!(ring.newly_consumed(1), Ok(1));
        assert_eq!(ring.pop(), Some((0, 0)));
        assert!(ring.has_room());
        assert_eq!(ring.push(9), 4);
        assert_eq!((ring.slot(4), ring.slot(6)), (4, 0));
        assert_eq!(ring.unposted(), Some((4, &9)));
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

    #[test]
    fn what_is_early_waits_and_what_is_no_position_is_refused() {
        let mut ring = ReceiveRing::new(4);
        ring.arrive(2).unwrap();
        assert_eq!(ring.take_next(), None);
        assert!(ring.arrive(2).unwrap_err().contains("twice"));
        assert!(ring.arrive(4).unwrap_err().contains("4 positions ahead"));
        ring.arrive(0).unwrap();
        assert_eq!((ring.take_next(), ring.take_next()), (Some(0), None));
        ring.arrive(1).unwrap();
        assert_eq!((ring.take_next(), ring.take_next()), (Some(1), Some(2)));
        ring.hold_back(1);
        assert_eq!((ring.consumed(), ring.tell(), ring.received()), (1, 1, 3));
        ring.let_go();
        assert_eq!((ring.untold(), ring.tell()), (2, 3));
    }

    /// Two sides over a wire without order that breaks at any time: everything is done once and in
    /// order, however often.
    #[test]
    fn what_had_not_come_is_posted_again_and_nothing_else() {
        for seed in 0..200 {
            let mut prng = Prng::new(seed);
            let slots = 4 + prng.below(7) as u32;
            let (mut sender, mut receiver) = (SendRing::new(slots), ReceiveRing::new(slots));
            let (mut wire, mut back) = (Vec::new(), VecDeque::new());
            let (mut sent, mut came) = (0u64, Vec::new());
            let mut written = vec![0; slots as usize];
            while came.len() < 100 {
                match prng.below(6) {
                    0 if sender.has_room() => {
                        sender.push(sent);
                        sent += 1;
                    }
                    1 => {
                        if let Some((position, entry)) = sender.unposted() {
                            wire.push((position, *entry));
                            sender.note_posted();
                        }
                    }
                    2 if !wire.is_empty() => {
                        let at = prng.below(wire.len() as u64) as usize;
                        let (position, entry) = wire.swap_remove(at);
                        receiver.arrive(position as u32).unwrap();
                        written[receiver.slot(position)] = entry;
                        while let Some(position) = receiver.take_next() {
                            came.push(written[receiver.slot(position)]);
                        }
                    }
                    3 if receiver.is_due() || prng.below(4) == 0 => {
                        back.push_back(receiver.tell());
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
                        receiver.forget_early();
                        let received = receiver.received();
                        let count = sender.newly_consumed(received as u32).unwrap();
                        for _ in 0..count {
                            sender.pop().unwrap();
                        }
                        sender.rewind(received);
                    }
                    _ => {}
                }
            }
            assert!(came.iter().copied().eq(0..came.len() as u64), "seed {seed}");
        }
    }
}
