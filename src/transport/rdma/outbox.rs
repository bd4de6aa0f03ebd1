//! [`Outbox`]: what leaves to one peer by positions of its ring, and what waits for them.

use super::device::{Device, Place};
use super::rail::{Registered, SegmentOf};
use super::record::{HEADER_BYTES, Record, SLOT_BYTES, TOLD_AT, Told};
use super::regions::Target;
use super::ring::SendRing;
use crate::kernel;
use crate::memory::View;
use crate::transport::PostError;
use std::collections::VecDeque;
use std::sync::Arc;

/// What follows when a record is consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    Nothing,
    /// The put with this token and length has been copied.
    Put {
        token: u64,
        bytes: u64,
    },
    /// The peer knows of the first of its puts that named no region.
    BadPut,
    /// The peer knows where this message goes, as long as its receive lasts.
    Grant(u32),
    /// The peer knows that this put has come.
    PutDone(u32),
}

/// What the sender knows of a position of the peer's ring.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Of the record in the slot.
    bytes: u32,
    about: About,
}

/// A record that waits for a position.
#[derive(Debug)]
struct Waiting {
    record: Record,
    payload: Vec<u8>,
    about: About,
}

/// See the module.
#[derive(Debug)]
pub struct Outbox<D: Device> {
    ring: SendRing<Entry>,
    /// Where records for the peer's ring are made.
    staging: Option<Arc<Registered<D>>>,
    /// The peer's ring, and the number that the peer knows this rank by.
    target: Option<(Target, u32)>,
    /// Both sides have been able to receive.
    is_reached: bool,
    waiting: VecDeque<Waiting>,
    /// Where the ring ended at the last wake-up.
    notified: u64,
    /// By slot, whether a device without order may still read it, though the peer has its record.
    is_read: Vec<bool>,
}

impl<D: Device> Outbox<D> {
    pub fn new(slots: u32) -> Outbox<D> {
        Outbox {
            ring: SendRing::new(slots),
            staging: None,
            target: None,
            is_reached: false,
            waiting: VecDeque::new(),
            notified: 0,
            is_read: vec![false; slots as usize],
        }
    }

    pub fn set_staging(&mut self, staging: Arc<Registered<D>>) {
        self.staging = Some(staging);
    }

    /// Where the peer's ring is from now on, and the number that it knows this rank by.
    pub fn set_target(&mut self, target: Target, number: u32) {
        self.target = Some((target, number));
    }

    /// The number that the peer knows this rank by.
    pub fn number(&self) -> Option<u32> {
        self.target.map(|(_, number)| number)
    }

    /// Both sides can receive.
    pub fn note_reached(&mut self) {
        self.is_reached = true;
    }

    /// Where the peer's ring begins, as a rail names it.
    #[inline]
    pub fn ring_place(&self, rail: usize) -> Option<Place> {
        self.target.map(|(target, _)| target.place(rail, 0))
    }

    /// Whether an ordinary record would find a position now, and leave.
    #[inline]
    pub fn check_room(&self) -> Result<(), PostError> {
        match self.has_place() && self.is_reached {
            true => Ok(()),
            false => Err(PostError::WouldBlock),
        }
    }

    /// Whether the next record gets a position.
    #[inline]
    fn has_place(&self) -> bool {
        self.waiting.is_empty() && self.has_room()
    }

    /// Whether the next position is free.
    #[inline]
    fn has_room(&self) -> bool {
        self.ring.has_room() && self.is_next_slot_free()
    }

    /// Whether no device reads the next slot. One with order has read it before the peer could say
    /// that it has the record.
    #[inline]
    fn is_next_slot_free(&self) -> bool {
        D::IS_CONNECTED || !self.is_read[self.ring.slot(self.ring.next())]
    }

    /// A device has read this slot.
    pub fn note_read(&mut self, slot: usize) {
        self.is_read[slot] = false;
    }

    /// The queues are no more, so no device reads any slot.
    pub fn note_unread(&mut self) {
        self.is_read.fill(false);
    }

    /// Records that wait for positions.
    #[inline]
    pub fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no record waits.
    #[inline]
    pub fn is_clear(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether every position is posted.
    #[inline]
    pub fn is_posted(&self) -> bool {
        self.ring.is_posted()
    }

    /// The slot of a position.
    #[inline]
    pub fn slot_of(&self, position: u64) -> usize {
        self.ring.slot(position)
    }

    #[inline]
    fn slot(&self, slot: usize) -> View {
        let staging = self.staging.as_ref().expect("made with the connection");
        staging.view().part(slot * SLOT_BYTES, SLOT_BYTES)
    }

    /// The slot of the position that comes next.
    #[inline]
    fn next_slot(&self) -> View {
        self.slot(self.ring.slot(self.ring.next()))
    }

    /// Adds a record behind those that are there.
    pub fn add(&mut self, record: Record, payload: View, about: About) {
        if self.has_place() && self.staging.is_some() {
            let slot = self.next_slot();
            kernel::copy(payload, slot.part(HEADER_BYTES, payload.len_bytes()));
            self.place(record, about, slot);
        } else {
            let mut bytes = vec![0; payload.len_bytes()];
            kernel::read(payload, 0, &mut bytes);
            self.waiting.push_back(Waiting {
                record,
                payload: bytes,
                about,
            });
        }
    }

    /// Adds a record that only tells, before those that wait; false: there is no room even for
    /// that. `is_urgent`: it may take a slot that is kept for this.
    pub fn add_telling(&mut self, is_urgent: bool) -> bool {
        let has_room = match is_urgent {
            true => self.ring.has_room_to_tell() && self.is_next_slot_free(),
            false => self.has_place(),
        };
        if has_room && self.staging.is_some() {
            self.place(Record::Nothing, About::Nothing, self.next_slot());
            return true;
        }
        false
    }

    /// Gives a record whose payload lies in the next slot its position.
    fn place(&mut self, record: Record, about: About, slot: View) {
        kernel::write(slot, 0, &record.emit());
        if let Some(tail) = record.tail() {
            kernel::write(slot, HEADER_BYTES, &tail);
        }
        self.ring.push(Entry {
            bytes: (HEADER_BYTES + record.tail_bytes()) as u32,
            about,
        });
    }

    /// Gives records that wait their positions, as far as there is room.
    pub fn place_waiting(&mut self) {
        while self.has_room()
            && let Some(waiting) = self.waiting.pop_front()
        {
            let slot = self.next_slot();
            kernel::write(slot, HEADER_BYTES, &waiting.payload);
            self.place(waiting.record, waiting.about, slot);
        }
    }

    /// The next position to post, and the length of its record.
    #[inline]
    pub fn unposted(&self) -> Option<(u64, u32)> {
        (self.ring.unposted()).map(|(position, entry)| (position, entry.bytes))
    }

    /// The position given by [`Outbox::unposted`] was posted, from this slot.
    #[inline]
    pub fn note_posted(&mut self, slot: usize) {
        self.ring.note_posted();
        self.is_read[slot] = true;
    }

    /// This slot of the peer's ring, as a rail names it, and the number that the peer knows this
    /// rank by.
    #[inline]
    pub fn slot_place(&self, slot: usize, rail: usize) -> Option<(Place, u32)> {
        let at = (slot * SLOT_BYTES) as u64;
        (self.target).map(|(target, number)| (target.place(rail, at), number))
    }

    /// This many bytes of a slot, for posts on a rail.
    #[inline]
    pub fn segment(&self, slot: usize, rail: usize, bytes: u64) -> Option<SegmentOf<D>> {
        let at = (slot * SLOT_BYTES) as u64;
        self.staging.as_ref()?.segment(rail, at, bytes)
    }

    /// Writes what is told in passing into the record in a slot.
    #[inline]
    pub fn write_told(&self, slot: usize, told: Told) {
        let header = self.slot(slot).part(0, HEADER_BYTES);
        kernel::write(header, TOLD_AT, &told.emit());
    }

    /// How many more posted positions are consumed, by the low bits that the peer tells.
    #[inline]
    pub fn newly_consumed(&self, told: u32) -> Result<u64, String> {
        self.ring.newly_consumed(told)
    }

    /// The first position is consumed; what follows.
    #[inline]
    pub fn pop(&mut self) -> About {
        self.ring
            .pop()
            .map_or(About::Nothing, |(_, entry)| entry.about)
    }

    /// The put whose position has these low bits has named no region; its token and length.
    pub fn take_bad_put(&mut self, low_bits: u32) -> Option<(u64, u64)> {
        let position = self.ring.position(low_bits);
        let entry = self.ring.entry(position)?;
        match std::mem::replace(&mut entry.about, About::Nothing) {
            About::Put { token, bytes } => Some((token, bytes)),
            other => {
                entry.about = other;
                None
            }
        }
    }

    /// Positions that were ever given away.
    pub fn sent(&self) -> u64 {
        self.ring.next()
    }

    /// The first position that the peer has not consumed, as far as is known.
    pub fn consumed(&self) -> u64 {
        self.ring.consumed()
    }

    /// The queues are no more, and the peer has done the records of all positions before this one:
    /// the others are posted again, but for grants, whose places may have ended. Returns the grants
    /// that the peer has, and how many positions are posted again.
    pub fn rewind(&mut self, received: u64) -> (Vec<u32>, u64) {
        let (mut granted, mut again, mut ended) = (Vec::new(), 0, Vec::new());
        for (position, entry) in self.ring.entries_mut() {
            match entry.about {
                About::Grant(transfer) if position < received => granted.push(transfer),
                About::Grant(_) => {
                    *entry = Entry {
                        bytes: HEADER_BYTES as u32,
                        about: About::Nothing,
                    };
                    ended.push(position);
                }
                _ => {}
            }
            again += u64::from(position >= received);
        }
        for position in ended {
            let slot = self.slot(self.ring.slot(position));
            kernel::write(slot, 0, &Record::Nothing.emit());
        }
        self.ring.rewind(received);
        (granted, again)
    }

    /// Whether the peer is being told that this put has come.
    pub fn is_telling_put(&mut self, transfer: u32) -> bool {
        let wanted = About::PutDone(transfer);
        let is_waiting = self.waiting.iter().any(|waiting| waiting.about == wanted);
        is_waiting || (self.ring.entries_mut()).any(|(_, entry)| entry.about == wanted)
    }

    /// Drops grants that wait for positions: those that are still right are made anew.
    pub fn drop_waiting_grants(&mut self) {
        let is_grant = |record: &Record| matches!(record, Record::Grant { .. });
        self.waiting.retain(|waiting| !is_grant(&waiting.record));
    }

    /// Whether a record is to be sent to wake the peer, and has room: nothing has been sent since
    /// the last wake-up.
    pub fn needs_wake_up(&self) -> bool {
        self.ring.next() == self.notified && self.has_place()
    }

    /// Something on its way wakes the peer.
    pub fn note_notified(&mut self) {
        self.notified = self.ring.next();
    }

    /// The peer is gone: the tokens of puts.
    pub fn flush(&mut self) -> Vec<u64> {
        let mut tokens = Vec::new();
        let mut add = |about: About| {
            if let About::Put { token, .. } = about {
                tokens.push(token);
            }
        };
        while let Some((_, entry)) = self.ring.pop() {
            add(entry.about);
        }
        self.waiting
            .drain(..)
            .for_each(|waiting| add(waiting.about));
        tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::rdma::simulated::SimDevice;

    #[test]
    fn without_queues_records_wait() {
        let mut outbox = Outbox::<SimDevice<true>>::new(4);
        let put = About::Put { token: 5, bytes: 8 };
        outbox.add(Record::Nothing, View::empty(), put);
        assert_eq!((outbox.waiting_count(), outbox.is_clear()), (1, false));
        assert!(!outbox.needs_wake_up(), "the record is one");
        assert!(!outbox.add_telling(true), "there is no memory");
        assert_eq!(outbox.check_room(), Err(PostError::WouldBlock));
        assert_eq!(outbox.flush(), [5]);
    }
}
