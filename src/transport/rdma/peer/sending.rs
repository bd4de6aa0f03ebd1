//! What leaves: positions of the peer's ring and what they carry. Pieces of long transfers are in
//! `moving.rs`.

use super::Peer;
use crate::kernel;
use crate::limits::INLINE_BYTES_MAX;
use crate::memory::{RegionKey, View};
use crate::transport::rdma::device::{Device, Local, Operation, Place, Queue};
use crate::transport::rdma::link::{Then, What};
use crate::transport::rdma::outbox::{CopiedPut, Entry};
use crate::transport::rdma::pair::Fault;
use crate::transport::rdma::record::{HEADER_BYTES, Immediate, Record, Told};
use crate::transport::rdma::regions::Target;
use crate::transport::rdma::shared::Shared;
use crate::transport::rdma::transfers::Kind;
use crate::transport::{
    Atomic, Outcome, PostError, RemoteRange, TAG_CLASSES, URGENT_CLASS, tag_class,
};

/// Puts of at most a flag line are copied by the peer's processor. A device may write a line in
/// parts, and with relaxed ordering even a word may be there before what was put earlier; but a
/// rank that finds a stamp must also find all that was put before it.
const LINE_BYTES: u64 = 64;
const WORD_BYTES: u64 = 8;

impl<D: Device> Peer<D> {
    /// Adds a record for the peer behind those that are there.
    pub(super) fn push(
        &mut self,
        record: Record,
        payload: View,
        put: CopiedPut,
        shared: &mut Shared<D>,
    ) {
        self.add(record, payload, put, shared);
        self.mark(shared);
    }

    fn add(&mut self, record: Record, payload: View, put: CopiedPut, shared: &mut Shared<D>) {
        shared.counts.copied_bytes += payload.len_bytes() as u64;
        self.outbox.add(record, payload, put);
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
                self.queue_positions(shared);
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
            self.add(Record::Message { tag, header, bytes }, source, None, shared);
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
            };
            self.add(record, View::empty(), None, shared);
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
        if shared.settings.has_plain_words
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
        let target = self.regions.target((to.key, to.offset), bytes);
        match target.filter(|_| bytes > LINE_BYTES) {
            Some(target) => self.keep_put(source, target, token, shared),
            None => {
                let record = Record::Put {
                    key: to.key.0,
                    offset: to.offset,
                    bytes: bytes as u32,
                };
                self.add(record, source, Some((token, bytes)), shared);
            }
        }
        self.hand_over(shared);
        Ok(())
    }

    /// Gives a put a position, and keeps its bytes until it is known to have come.
    #[inline]
    fn keep_put(&mut self, source: View, target: Target, token: u64, shared: &mut Shared<D>) {
        shared.counts.copied_bytes += source.len_bytes() as u64;
        self.outbox.push_put(source, target, token);
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
            link.queue(Operation::Write(place, None), None, What::Told);
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
            self.push(Record::Nothing, View::empty(), None, shared);
        }
        self.outbox.note_notified();
    }

    /// Posts what there is room for, and rings the doorbells.
    pub fn pump(&mut self, shared: &mut Shared<D>) {
        if !self.pair.is_up() || !self.queue_bad_puts() {
            return;
        }
        self.outbox.place_waiting();
        self.queue_positions(shared);
        self.queue_transfers(shared);
        self.queue_told();
        for at in 0..self.pair.rails_count() {
            self.ring_doorbell(at, shared);
        }
    }

    /// Posts the positions of the ring that are not posted yet.
    pub(super) fn queue_positions(&mut self, shared: &mut Shared<D>) {
        let rail = self.pair.lead();
        while let Some((position, entry)) = self.outbox.unposted() {
            let slot = self.outbox.slot_of(position);
            let Some(ring) = self.outbox.ring_place(rail) else {
                return;
            };
            let Some(link) = self.pair.lead_with_room() else {
                return;
            };
            let write =
                |place, immediate: Immediate| Operation::Write(place, Some(immediate.emit()));
            match entry {
                Entry::Record { bytes, .. } => {
                    let segment = self.outbox.segment(slot, rail, 0, u64::from(bytes));
                    let place = self.outbox.slot_place(slot, rail).unwrap_or(ring);
                    let operation = write(place, Immediate::Slot);
                    link.queue(operation, segment, What::Position(position, Then::Nothing));
                    let told = self.tell();
                    self.outbox.write_told(slot, told);
                }
                Entry::Put {
                    bytes,
                    target,
                    token,
                } => {
                    let (at, bytes) = (HEADER_BYTES as u64, u64::from(bytes));
                    let segment = self.outbox.segment(slot, rail, at, bytes);
                    let complete = |token| Then::Complete { token, bytes };
                    let then = token.map_or(Then::Nothing, complete);
                    let bare = Immediate::Bare(self.inbox.tell());
                    let operation = write(target.place(rail, 0), bare);
                    link.queue(operation, segment, What::Position(position, then));
                }
                Entry::End {
                    transfer: id,
                    offset,
                    bytes,
                } => self.queue_end((position, ring), id, (offset, bytes), shared),
                Entry::Nothing => {
                    let operation = write(ring, Immediate::Bare(self.inbox.tell()));
                    link.queue(operation, None, What::Position(position, Then::Nothing));
                }
            }
            self.outbox.note_posted();
        }
    }

    /// Posts the last bytes of a transfer, whose position tells the peer of its end.
    fn queue_end(
        &mut self,
        (position, ring): (u64, Place),
        id: u64,
        (offset, bytes): (u64, u64),
        shared: &mut Shared<D>,
    ) {
        let rail = self.pair.lead();
        let transfer = self.transfers.get(id).expect("ends of others are gone");
        let immediate = match transfer.kind {
            Kind::Message => Immediate::Last(id as u32),
            _ => Immediate::Bare(self.inbox.tell()),
        };
        let target = transfer.target.expect("it was posted before its end");
        let segment = match bytes {
            0 => None,
            _ => (transfer.memory).segment(rail, transfer.offset + offset, bytes),
        };
        let place = match segment {
            Some(_) => target.place(rail, offset),
            None => ring,
        };
        shared.counts.pieces += u64::from(bytes > 0);
        let operation = Operation::Write(place, Some(immediate.emit()));
        let what = What::Position(position, Then::EndTransfer(id));
        if let Some(link) = self.pair.lead_link() {
            link.queue(operation, segment, what);
        }
        if bytes > 0 {
            self.break_if_asked(rail, shared);
        }
    }

    /// Counters as the next post tells them.
    fn tell(&mut self) -> Told {
        Told {
            consumed: self.inbox.tell(),
            matched: self.credits.tell(),
        }
    }

    /// Posts news of puts that named no region, before anything tells that they are consumed;
    /// false: not all found room.
    fn queue_bad_puts(&mut self) -> bool {
        while let Some(position) = self.outbox.pop_bad_put() {
            let ring = self.outbox.ring_place(self.pair.lead());
            let (Some(place), Some(link)) = (ring, self.pair.lead_with_room()) else {
                self.outbox.push_bad_put(position);
                return false;
            };
            let immediate = Immediate::BadPut(position).emit();
            let operation = Operation::Write(place, Some(immediate));
            link.queue(operation, None, What::BadPut(position));
        }
        true
    }

    /// Posts counters that cannot wait for a record.
    fn queue_told(&mut self) {
        let Some(place) = self.outbox.ring_place(self.pair.lead()) else {
            return;
        };
        let write = |immediate: Immediate| Operation::Write(place, Some(immediate.emit()));
        for class in 0..TAG_CLASSES {
            if self.is_match_due(class) {
                let Some(link) = self.pair.lead_with_room() else {
                    return;
                };
                let told = Immediate::Matched(class, self.credits.tell_class(class));
                link.queue(write(told), None, What::Told);
            }
        }
        if self.inbox.is_due()
            && let Some(link) = self.pair.lead_with_room()
        {
            let told = Immediate::Consumed(self.inbox.tell());
            link.queue(write(told), None, What::Told);
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
