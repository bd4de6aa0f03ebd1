//! What leaves: positions of the peer's ring and what they carry. Pieces of long transfers are in
//! `moving.rs`.

use super::Peer;
use crate::kernel;
use crate::limits::INLINE_BYTES_MAX;
use crate::memory::{RegionKey, View};
use crate::transport::rdma::device::{Device, Local, Operation, Queue};
use crate::transport::rdma::link::What;
use crate::transport::rdma::outbox::About;
use crate::transport::rdma::pair::Fault;
use crate::transport::rdma::record::{Immediate, Record, Told};
use crate::transport::rdma::shared::Shared;
use crate::transport::rdma::transfers::{Kind, Transfer};
use crate::transport::{
    Atomic, Outcome, PostError, RemoteRange, TAG_CLASSES, URGENT_CLASS, tag_class,
};

const WORD_BYTES: u64 = 8;

impl<D: Device> Peer<D> {
    /// Adds a record for the peer behind those that are there.
    pub(super) fn push(
        &mut self,
        record: Record,
        payload: View,
        about: About,
        shared: &mut Shared<D>,
    ) {
        self.add(record, payload, about, shared);
        self.mark(shared);
    }

    fn add(&mut self, record: Record, payload: View, about: About, shared: &mut Shared<D>) {
        shared.counts.copied_bytes += payload.len_bytes() as u64;
        self.outbox.add(record, payload, about);
    }

    /// Whether nothing else waits to leave.
    #[inline]
    pub(super) fn is_free(&self) -> bool {
        self.pair.is_up()
            && !self.is_dirty
            && self.outbox.is_clear()
            && self.transfers.queued_count() == 0
    }

    /// Whether an ordinary post finds room; the first of all begins the connection.
    #[inline]
    pub(super) fn check_room(&mut self, shared: &mut Shared<D>) -> Result<(), PostError> {
        let room = self.outbox.check_room();
        if room.is_err() && self.pair.is_unused() {
            self.mark(shared);
        }
        room
    }

    /// Lets what a post has added leave: at once where nothing else is under way or waits,
    /// otherwise together with what follows, with the next poll. It tells counters, and must not be
    /// called while a record is handled.
    fn hand_over(&mut self, shared: &mut Shared<D>) {
        match self.is_free() && self.pair.lead_link().is_some_and(|link| link.is_idle()) {
            true => {
                self.queue_positions();
                self.ring_doorbell(self.pair.lead(), shared);
            }
            false => self.mark(shared),
        }
    }

    fn ring_doorbell(&mut self, rail: usize, shared: &mut Shared<D>) {
        let Some(link) = self.pair.link(rail) else {
            return;
        };
        match link.flush() {
            Ok(doorbells) => shared.counts.doorbells += doorbells as u64,
            Err(cause) => {
                self.note_fault(Fault::of_rail(rail, &cause), shared);
            }
        }
    }

    pub fn send(
        &mut self,
        (tag, header): (u64, u64),
        source: View,
        token: Option<u64>,
        shared: &mut Shared<D>,
    ) -> Result<(), PostError> {
        let class = tag_class(tag);
        self.credits.check(class)?;
        let total = source.len_bytes();
        let is_short = total <= INLINE_BYTES_MAX;
        // Urgent messages are few and short: there is room whatever else waits.
        if class != URGENT_CLASS || !is_short {
            self.check_room(shared)?;
        }
        if is_short {
            let bytes = total as u32;
            let record = Record::Message { tag, header, bytes };
            self.add(record, source, About::Nothing, shared);
            if let Some(token) = token {
                shared
                    .ends
                    .complete(self.rank, token, Outcome::Done, total as u64, 0);
            }
        } else {
            let range = (RegionKey::NONE, 0);
            let id = self.add_transfer(Kind::Message, source, range, token, shared)?;
            let record = Record::Offer {
                tag,
                header,
                transfer: id as u32,
                total: total as u64,
                pieces: self.transfers.get(id).map_or(0, Transfer::pieces_count),
            };
            self.add(record, View::empty(), About::Nothing, shared);
        }
        self.credits.note_sent(class);
        self.hand_over(shared);
        Ok(())
    }

    pub fn put(
        &mut self,
        source: View,
        to: RemoteRange,
        token: u64,
        shared: &mut Shared<D>,
    ) -> Result<(), PostError> {
        if D::IS_CONNECTED
            && shared.settings.has_plain_words
            && let Some(posted) = self.put_plainly(source, to, token, shared)
        {
            return posted;
        }
        self.check_room(shared)?;
        let bytes = source.len_bytes() as u64;
        if bytes > INLINE_BYTES_MAX as u64 {
            let range = (to.key, to.offset);
            let id = self.add_transfer(Kind::Put, source, range, Some(token), shared)?;
            self.resolve(id, shared);
            return Ok(());
        }
        // The peer's processor copies it: a device may write a line in parts, and may make it
        // visible before what was put earlier; but a rank that finds a stamp must also find all
        // that was put before it.
        let record = Record::Put {
            key: to.key.0,
            offset: to.offset,
            bytes: bytes as u32,
        };
        self.add(record, source, About::Put { token, bytes }, shared);
        self.hand_over(shared);
        Ok(())
    }

    /// Puts a word without telling its owner; `None`: it cannot go so, or something waits to leave
    /// before it.
    #[inline]
    fn put_plainly(
        &mut self,
        source: View,
        to: RemoteRange,
        token: u64,
        shared: &mut Shared<D>,
    ) -> Option<Result<(), PostError>> {
        let bytes = source.len_bytes() as u64;
        let is_word =
            bytes <= WORD_BYTES && bytes.is_power_of_two() && to.offset.is_multiple_of(bytes);
        if !is_word || !self.is_free() || !self.outbox.is_posted() {
            return None;
        }
        let target = self.regions.target((to.key, to.offset), bytes)?;
        let rail = self.pair.lead();
        let link = self.pair.lead_link().filter(|link| link.is_inline(bytes))?;
        if !link.has_room_for_word() {
            return Some(Err(PostError::WouldBlock));
        }
        let mut word = [0; WORD_BYTES as usize];
        match bytes {
            // The usual word is loaded without a call.
            WORD_BYTES => word = kernel::load(source, 0),
            _ => kernel::read(source, 0, &mut word[..bytes as usize]),
        }
        let word = &word[..bytes as usize];
        let operation = Operation::Write(target.place(rail, 0), None);
        let local = (Local::Bytes(word), bytes);
        let posted = link.post_now(operation, local, What::Word { token, bytes });
        self.note_post(posted, shared);
        Some(Ok(()))
    }

    /// What was posted by itself was one doorbell, or a fault.
    #[inline]
    pub(super) fn note_post(&mut self, posted: Result<(), String>, shared: &mut Shared<D>) {
        shared.counts.doorbells += 1;
        if let Err(cause) = posted {
            self.note_fault(Fault::of_rail(self.pair.lead(), &cause), shared);
        }
    }

    /// A slow look: makes a completion for words that have none, and tells what may wait until now.
    /// A peer whose message is waited for is to be connected, so that its death is seen.
    pub fn look_slowly(&mut self, shared: &mut Shared<D>) {
        if self.pair.is_unused() {
            if self.awaits_message() {
                self.mark(shared);
            }
            return;
        }
        self.queue_telling(shared);
        if self.inbox.look_slowly() {
            self.mark(shared);
        }
    }

    /// Makes a completion for words that have none.
    fn queue_telling(&mut self, shared: &mut Shared<D>) {
        let ring = self.outbox.ring_place(self.pair.lead());
        let link = self.pair.lead_with_room().filter(|link| link.is_untold());
        if let (Some(place), Some(link)) = (ring, link) {
            link.queue(Operation::Write(place, None), None, What::Nothing);
            self.mark(shared);
        }
    }

    pub fn get(
        &mut self,
        from: RemoteRange,
        destination: View,
        token: u64,
        shared: &mut Shared<D>,
    ) -> Result<(), PostError> {
        self.check_room(shared)?;
        let range = (from.key, from.offset);
        if self.get_at_once(range, (destination, token), None, shared) {
            return Ok(());
        }
        let id = self.add_transfer(Kind::Get, destination, range, Some(token), shared)?;
        self.resolve(id, shared);
        Ok(())
    }

    pub fn change(
        &mut self,
        atomic: Atomic,
        word: RemoteRange,
        result: View,
        token: u64,
        shared: &mut Shared<D>,
    ) -> Result<(), PostError> {
        self.check_room(shared)?;
        let range = (word.key, word.offset);
        if self.get_at_once(range, (result, token), Some(atomic), shared) {
            return Ok(());
        }
        let id = self.add_transfer(Kind::Get, result, range, Some(token), shared)?;
        (self.transfers.get_mut(id).expect("added just now")).atomic = Some(atomic);
        self.resolve(id, shared);
        Ok(())
    }

    /// Wakes the peer, unless something on its way does.
    pub fn notify(&mut self, shared: &mut Shared<D>) {
        if self.outbox.needs_wake_up() {
            self.push(Record::Nothing, View::empty(), About::Nothing, shared);
        }
        self.outbox.note_notified();
    }

    /// Posts what there is room for, and rings the doorbells.
    pub fn pump(&mut self, shared: &mut Shared<D>) {
        if !self.pair.is_up() {
            return;
        }
        self.tell_forgotten(shared);
        self.outbox.place_waiting();
        self.queue_positions();
        self.queue_transfers(shared);
        self.tell_alone();
        for at in 0..self.pair.rails_count() {
            self.ring_doorbell(at, shared);
        }
    }

    /// Tells the peer of its regions that it has ended and to which nothing is under way.
    fn tell_forgotten(&mut self, shared: &mut Shared<D>) {
        if !self.regions.has_ending() {
            return;
        }
        let (transfers, gets) = (&self.transfers, &self.gets);
        let ended = self.regions.take_ended(|key| {
            let mut moved = transfers.iter().filter(|t| t.kind != Kind::Message);
            moved.any(|t| t.range.0 == key) || gets.is_under_way_to(key)
        });
        for key in ended {
            let record = Record::Forgotten { key: key.0 };
            self.add(record, View::empty(), About::Nothing, shared);
        }
    }

    /// Posts the positions of the ring that are not posted yet.
    pub(super) fn queue_positions(&mut self) {
        let rail = self.pair.lead();
        while let Some((position, bytes)) = self.outbox.unposted() {
            let slot = self.outbox.slot_of(position);
            let Some((place, sender)) = self.outbox.slot_place(slot, rail) else {
                return;
            };
            let segment = self.outbox.segment(slot, rail, u64::from(bytes));
            let Some(link) = self.pair.lead_with_room() else {
                return;
            };
            let immediate = Immediate::Slot(position as u32).emit(sender);
            let operation = Operation::Write(place, Some(immediate));
            link.queue(operation, segment, What::Record(slot));
            let told = self.tell();
            self.outbox.write_told(slot, told);
            self.outbox.note_posted(slot);
        }
    }

    /// Counters as the next post tells them.
    fn tell(&mut self) -> Told {
        Told {
            consumed: self.inbox.tell(),
            matched: self.credits.tell(),
        }
    }

    /// Posts a record that only tells, where counters cannot wait for another one.
    fn tell_alone(&mut self) {
        let is_urgent = self.inbox.is_due();
        let is_match_due = (0..TAG_CLASSES).any(|class| self.is_match_due(class));
        let is_due = is_urgent || self.inbox.is_asked() || is_match_due;
        if is_due && self.outbox.is_posted() && self.outbox.add_telling(is_urgent) {
            self.queue_positions();
        }
    }

    /// Brings the queue into the error state where a test has asked for that.
    pub(super) fn break_if_asked(&mut self, rail: usize, shared: &mut Shared<D>) {
        let Some(left) = shared.until_break.as_mut() else {
            return;
        };
        *left -= 1;
        if *left == 0 {
            shared.until_break = None;
            if let Some(link) = self.pair.link(rail) {
                // What was queued before is posted, and may or may not arrive.
                let _ = link.flush();
                link.queue.stop();
            }
        }
    }
}
