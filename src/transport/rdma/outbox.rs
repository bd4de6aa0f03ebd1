//! [`Outbox`]: what leaves to one peer by positions of its ring, and what waits for them.

use super::device::{Device, Place};
use super::rail::{Registered, SegmentOf};
use super::record::{HEADER_BYTES, Record, SLOT_BYTES, TOLD_AT, Told, VALUE_MASK};
use super::regions::Target;
use super::ring::SendRing;
use crate::kernel;
use crate::memory::View;
use crate::transport::PostError;
use std::collections::VecDeque;
use std::sync::Arc;

/// Token and length of a put that is complete when the peer has copied it.
pub type CopiedPut = Option<(u64, u64)>;

/// What the sender knows of a position of the peer's ring.
#[derive(Clone, Copy, Debug)]
pub enum Entry {
    /// A record of this many bytes in the slot.
    Record {
        bytes: u32,
        /// It grants a place that may end before the peer reads the record.
        is_grant: bool,
        put: CopiedPut,
    },
    /// A put of this many bytes, which are in the slot; the token until it has arrived.
    Put {
        bytes: u32,
        target: Target,
        token: Option<u64>,
    },
    /// The last bytes of a transfer, or none.
    End {
        transfer: u64,
        offset: u64,
        bytes: u64,
    },
    /// What had this position is not needed any more.
    Nothing,
}

/// A record that waits for a position.
#[derive(Debug)]
struct Waiting {
    record: Record,
    payload: Vec<u8>,
    put: CopiedPut,
}

/// The end of a transfer that did not come: its number, and the last bytes.
pub type LostEnd = (u64, u64, u64);

/// See the module.
#[derive(Debug)]
pub struct Outbox<D: Device> {
    ring: SendRing<Entry>,
    /// Where records for the peer's ring are made.
    staging: Option<Arc<Registered<D>>>,
    /// The peer's ring.
    target: Option<Target>,
    /// Both sides have been able to receive.
    is_reached: bool,
    waiting: VecDeque<Waiting>,
    /// Positions of the peer's puts that named no region, to be told before anything else.
    bad_puts: Vec<u32>,
    /// Where the ring ended at the last wake-up.
    notified: u64,
}

impl<D: Device> Outbox<D> {
    pub fn new(slots: u32) -> Outbox<D> {
        Outbox {
            ring: SendRing::new(slots),
            staging: None,
            target: None,
            is_reached: false,
            waiting: VecDeque::new(),
            bad_puts: Vec::new(),
            notified: 0,
        }
    }

    pub fn set_staging(&mut self, staging: Arc<Registered<D>>) {
        self.staging = Some(staging);
    }

    /// Where the peer's ring is from now on.
    pub fn set_target(&mut self, target: Target) {
        self.target = Some(target);
    }

    /// Both sides can receive.
    pub fn note_reached(&mut self) {
        self.is_reached = true;
    }

    /// Where the peer's ring begins, as a rail names it.
    #[inline]
    pub fn ring_place(&self, rail: usize) -> Option<Place> {
        self.target.map(|target| target.place(rail, 0))
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
        self.waiting.is_empty() && self.ring.has_room()
    }

    /// Records that wait for positions.
    #[inline]
    pub fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nothing waits to be told before what is posted next.
    #[inline]
    pub fn is_clear(&self) -> bool {
        self.waiting.is_empty() && self.bad_puts.is_empty()
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
    pub fn add(&mut self, record: Record, payload: View, put: CopiedPut) {
        if self.has_place() && self.staging.is_some() {
            let slot = self.next_slot();
            kernel::copy(payload, slot.part(HEADER_BYTES, payload.len_bytes()));
            self.place(record, put, slot);
        } else {
            let mut bytes = vec![0; payload.len_bytes()];
            kernel::read(payload, 0, &mut bytes);
            self.waiting.push_back(Waiting {
                record,
                payload: bytes,
                put,
            });
        }
    }

    /// Gives a record whose payload lies in the next slot its position.
    fn place(&mut self, record: Record, put: CopiedPut, slot: View) {
        kernel::write(slot, 0, &record.emit());
        if let Some(tail) = record.tail() {
            kernel::write(slot, HEADER_BYTES, &tail);
        }
        self.ring.push(Entry::Record {
            bytes: (HEADER_BYTES + record.tail_bytes()) as u32,
            is_grant: matches!(record, Record::Grant { .. }),
            put,
        });
    }

    /// Gives records that wait their positions, as far as there is room.
    pub fn place_waiting(&mut self) {
        while self.ring.has_room()
            && let Some(waiting) = self.waiting.pop_front()
        {
            let slot = self.next_slot();
            kernel::write(slot, HEADER_BYTES, &waiting.payload);
            self.place(waiting.record, waiting.put, slot);
        }
    }

    /// Gives a put a position, and keeps its bytes until it is known to have come.
    #[inline]
    pub fn push_put(&mut self, source: View, target: Target, token: u64) {
        let bytes = source.len_bytes();
        let slot = self.next_slot();
        kernel::copy(source, slot.part(HEADER_BYTES, bytes));
        self.ring.push(Entry::Put {
            bytes: bytes as u32,
            target,
            token: Some(token),
        });
    }

    /// Gives the end of a transfer, and its last bytes, a position.
    pub fn push_end(&mut self, transfer: u64, offset: u64, bytes: u64) {
        self.ring.push(Entry::End {
            transfer,
            offset,
            bytes,
        });
    }

    /// The next position to post, and what it is.
    #[inline]
    pub fn unposted(&self) -> Option<(u64, Entry)> {
        self.ring
            .unposted()
            .map(|(position, entry)| (position, *entry))
    }

    /// The position given by [`Outbox::unposted`] was posted.
    #[inline]
    pub fn note_posted(&mut self) {
        self.ring.note_posted();
    }

    /// This slot of the peer's ring, as a rail names it.
    #[inline]
    pub fn slot_place(&self, slot: usize, rail: usize) -> Option<Place> {
        let at = (slot * SLOT_BYTES) as u64;
        self.target.map(|target| target.place(rail, at))
    }

    /// This many bytes of a slot from `offset` on, for posts on a rail.
    #[inline]
    pub fn segment(
        &self,
        slot: usize,
        rail: usize,
        offset: u64,
        bytes: u64,
    ) -> Option<SegmentOf<D>> {
        let at = (slot * SLOT_BYTES) as u64 + offset;
        self.staging.as_ref()?.segment(rail, at, bytes)
    }

    /// Writes what is told in passing into the record in a slot.
    #[inline]
    pub fn write_told(&self, slot: usize, told: Told) {
        let header = self.slot(slot).part(0, HEADER_BYTES);
        kernel::write(header, TOLD_AT, &told.emit());
    }

    /// Nobody waits any more to hear of the put at this position.
    pub fn end_put(&mut self, position: u64) {
        if let Some(Entry::Put { token, .. }) = self.ring.entry(position) {
            *token = None;
        }
    }

    /// What is at this position is not needed any more; false: it was consumed.
    pub fn clear_entry(&mut self, position: u64) -> bool {
        let entry = self.ring.entry(position);
        entry.map(|entry| *entry = Entry::Nothing).is_some()
    }

    /// The end of this transfer is not needed any more.
    pub fn clear_end(&mut self, id: u64) {
        for (_, entry) in self.ring.entries_mut() {
            if matches!(entry, Entry::End { transfer, .. } if *transfer == id) {
                *entry = Entry::Nothing;
            }
        }
    }

    /// How many more posted positions are consumed, by the low bits that the peer tells.
    #[inline]
    pub fn newly_consumed(&self, told: u32) -> Result<u64, String> {
        self.ring.newly_consumed(told)
    }

    /// The first position is consumed; the put that the peer had to copy, if it was one.
    #[inline]
    pub fn pop(&mut self) -> CopiedPut {
        match self.ring.pop() {
            Some((_, Entry::Record { put, .. })) => put,
            _ => None,
        }
    }

    /// The put whose position has these low bits has named no region.
    pub fn take_bad_put(&mut self, low_bits: u32) -> CopiedPut {
        let position = self.ring.position(low_bits);
        match self.ring.entry(position) {
            Some(Entry::Record { put, .. }) => put.take(),
            _ => None,
        }
    }

    /// The first position that the peer has not consumed, as far as is known.
    pub fn consumed(&self) -> u64 {
        self.ring.consumed()
    }

    /// The queues are no more: everything from this position on is posted again, but for grants and
    /// for ends of transfers. Returns these ends, and how many positions are posted again.
    pub fn rewind(&mut self, received: u64) -> (Vec<LostEnd>, u64) {
        let (mut lost, mut again) = (Vec::new(), 0);
        let entries = self.ring.entries_mut();
        for (_, entry) in entries.filter(|(position, _)| *position >= received) {
            match entry {
                Entry::Record { is_grant: true, .. } => *entry = Entry::Nothing,
                Entry::End {
                    transfer,
                    offset,
                    bytes,
                } => {
                    lost.push((*transfer, *offset, *bytes));
                    *entry = Entry::Nothing;
                }
                _ => again += 1,
            }
        }
        self.ring.rewind(received);
        (lost, again)
    }

    /// Drops grants that wait for positions: those that are still right are made anew.
    pub fn drop_waiting_grants(&mut self) {
        let is_grant = |record: &Record| matches!(record, Record::Grant { .. });
        self.waiting.retain(|waiting| !is_grant(&waiting.record));
    }

    /// A put of the peer at this position has named no region.
    pub fn push_bad_put(&mut self, position: u32) {
        self.bad_puts.push(position);
    }

    /// How many of the `received` positions there are from the first put on that named no region.
    pub fn untold_count(&self, received: u64) -> u32 {
        let back = |bad: &u32| (received as u32).wrapping_sub(*bad) & VALUE_MASK;
        self.bad_puts.iter().map(back).max().unwrap_or(0)
    }

    /// The position of a put that named no region, to be told next.
    #[inline]
    pub fn pop_bad_put(&mut self) -> Option<u32> {
        self.bad_puts.pop()
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
        while let Some((_, entry)) = self.ring.pop() {
            match entry {
                Entry::Put { token, .. } => tokens.extend(token),
                Entry::Record { put, .. } => tokens.extend(put.map(|(token, _)| token)),
                Entry::End { .. } | Entry::Nothing => {}
            }
        }
        let waiting = self.waiting.drain(..);
        tokens.extend(waiting.filter_map(|w| w.put.map(|(token, _)| token)));
        tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::rdma::simulated::SimDevice;

    #[test]
    fn without_queue_pairs_records_wait_and_ends_and_places_are_not_posted_again() {
        let mut outbox = Outbox::<SimDevice>::new(4);
        outbox.add(Record::Nothing, View::empty(), Some((5, 8)));
        assert_eq!((outbox.waiting_count(), outbox.is_clear()), (1, false));
        assert!(!outbox.needs_wake_up(), "the record is one");
        assert_eq!(outbox.check_room(), Err(PostError::WouldBlock));
        for transfer in [1, 2] {
            outbox.push_end(transfer, 10, 20);
        }
        outbox.clear_end(1);
        assert!(!outbox.is_posted());
        assert_eq!(outbox.rewind(0), (vec![(2, 10, 20)], 1));
        assert_eq!(outbox.flush(), [5]);
    }
}
