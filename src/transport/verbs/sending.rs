//! What leaves: records for the peer's ring, and pieces of long transfers, which every rail with
//! room takes in turn.

use super::link::{AT_ONCE_MAX, Link, Then, What};
use super::peer::{Entry, Fault, Kind, Peer, Shared, Target, Waiting};
use super::record::{HEADER_BYTES, Immediate, Record, SLOT_BYTES, TOLD_AT, Told};
use crate::kernel;
use crate::limits::INLINE_BYTES_MAX;
use crate::memory::{RegionKey, View};
use crate::transport::{
    Atomic, Outcome, PostError, RemoteRange, TAG_CLASSES, URGENT_CLASS, tag_class,
};
use linerate_verbs_sys::{Local, Operation, Place};

/// Puts of at most a flag line are copied by the peer's processor, unless they are one word: a
/// device may write a line in parts, and anyone who looks at its stamp must find all of it. (A word
/// is written at once.)
const LINE_BYTES: u64 = 64;
const WORD_BYTES: u64 = 8;

impl Target {
    /// The place `offset` bytes on, as a rail names it.
    #[inline]
    pub fn place(&self, rail: usize, offset: u64) -> Place {
        Place {
            address: self.address.wrapping_add(offset),
            key: self.keys[rail],
        }
    }
}

impl Peer {
    /// Whether an ordinary record would find a position now.
    #[inline]
    pub fn has_room(&self) -> Result<(), PostError> {
        match self.waiting.is_empty() && self.send.has_room() {
            true => Ok(()),
            false => Err(PostError::WouldBlock),
        }
    }

    /// A record for the peer, in order after those before it.
    pub fn push(
        &mut self,
        record: Record,
        payload: View,
        put: Option<(u64, u64)>,
        shared: &mut Shared,
    ) {
        self.add(record, payload, put, shared);
        shared.mark(self);
    }

    fn add(&mut self, record: Record, payload: View, put: Option<(u64, u64)>, shared: &mut Shared) {
        shared.counts.copied_bytes += payload.len_bytes() as u64;
        if self.has_room().is_ok() && self.staging.is_some() {
            let slot = self.slot_of_next();
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

    /// Whether nothing else waits to leave.
    #[inline]
    pub fn is_free(&self) -> bool {
        self.is_up()
            && !self.is_dirty
            && self.waiting.is_empty()
            && self.bad_puts.is_empty()
            && self.busy.is_empty()
    }

    /// Whether a word can leave at once.
    #[inline]
    fn is_open(&mut self, bytes: u64) -> bool {
        let is_open = |link: &mut Link| link.is_inline(bytes) && link.under_way() < AT_ONCE_MAX;
        self.is_free() && self.send.is_posted() && self.lead_link().is_some_and(is_open)
    }

    /// After something was added that the caller of the contract wants to leave. Where nothing else
    /// is under way or waits it leaves at once, which a poll would only make later; what follows
    /// leaves together, with the next poll. Not in the middle of what comes: it tells counters.
    fn hand_over(&mut self, shared: &mut Shared) {
        match self.is_free() && self.lead_link().is_some_and(|link| link.is_idle()) {
            true => {
                self.queue_positions(shared);
                self.ring_doorbell(self.lead, shared);
            }
            false => shared.mark(self),
        }
    }

    fn ring_doorbell(&mut self, rail: usize, shared: &mut Shared) {
        let Some(link) = &mut self.links[rail] else {
            return;
        };
        match link.flush() {
            Ok(doorbells) => shared.counts.doorbells += doorbells as u64,
            Err(cause) => {
                self.note_fault(Fault::of_rail(rail, &cause));
                shared.mark(self);
            }
        }
    }

    #[inline]
    fn slot_of_next(&self) -> View {
        let staging = self.staging.as_ref().expect("made with the connection");
        let slot = self.send.slot(self.send.next());
        staging.view().part(slot * SLOT_BYTES, SLOT_BYTES)
    }

    /// Gives a record whose payload lies in the next slot its position.
    fn place(&mut self, record: Record, put: Option<(u64, u64)>, slot: View) {
        kernel::write(slot, 0, &record.emit());
        if let Some(tail) = record.tail() {
            kernel::write(slot, HEADER_BYTES, &tail);
        }
        self.send.push(Entry::Record {
            bytes: (HEADER_BYTES + record.tail_bytes()) as u32,
            is_grant: matches!(record, Record::Grant { .. }),
            put,
        });
    }

    pub fn send(
        &mut self,
        (tag, header): (u64, u64),
        source: View,
        token: Option<u64>,
        shared: &mut Shared,
    ) -> Result<(), PostError> {
        let class = tag_class(tag);
        self.credits.check(class)?;
        let total = source.len_bytes();
        let is_short = total <= INLINE_BYTES_MAX;
        // Its places are few and its messages short: there is room whatever else waits.
        if class != URGENT_CLASS || !is_short {
            self.has_room()?;
        }
        if is_short {
            let bytes = total as u32;
            self.add(Record::Message { tag, header, bytes }, source, None, shared);
            if let Some(token) = token {
                shared.complete(self.rank, token, Outcome::Done, total as u64, 0);
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
        shared: &mut Shared,
    ) -> Result<(), PostError> {
        if shared.settings.has_plain_words && self.put_plainly(source, to, token, shared) {
            return Ok(());
        }
        self.has_room()?;
        let bytes = source.len_bytes() as u64;
        if bytes > INLINE_BYTES_MAX as u64 {
            let range = (to.key, to.offset);
            let id = self.add_transfer(Kind::Put, source, range, Some(token), shared)?;
            self.resolve(id, shared);
            return Ok(());
        }
        let target = self.target_of((to.key, to.offset), bytes);
        let is_whole = match bytes {
            0 => false,
            1 => true,
            2..=WORD_BYTES => bytes.is_power_of_two() && to.offset.is_multiple_of(bytes),
            _ => bytes > LINE_BYTES,
        };
        match target.filter(|_| is_whole) {
            Some(target) if bytes <= WORD_BYTES && self.is_open(bytes) => {
                self.put_at_once(source, target, token, shared);
                return Ok(());
            }
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
    fn keep_put(&mut self, source: View, target: Target, token: u64, shared: &mut Shared) {
        let bytes = source.len_bytes();
        let slot = self.slot_of_next();
        kernel::copy(source, slot.part(HEADER_BYTES, bytes));
        shared.counts.copied_bytes += bytes as u64;
        self.send.push(Entry::Put {
            bytes: bytes as u32,
            target,
            token: Some(token),
        });
    }

    /// A word leaves before anything is written down of it: somebody waits for it, and it is not
    /// known here what has become of it before the next poll.
    fn put_at_once(&mut self, source: View, target: Target, token: u64, shared: &mut Shared) {
        let (rail, position) = (self.lead, self.send.next());
        let bytes = source.len_bytes();
        let mut word = [0; WORD_BYTES as usize];
        kernel::read(source, 0, &mut word[..bytes]);
        let place = target.place(rail, 0);
        let operation = Operation::Write(place, Some(self.bare().emit()));
        let then = Then::Complete {
            token,
            bytes: bytes as u64,
        };
        let what = What::Position(position, then);
        let link = self.lead_link().expect("looked at just now");
        let local = Local::Inline(&word[..bytes]);
        let posted = link.post_now(operation, (local, bytes as u64), what);
        self.keep_put(source, target, token, shared);
        self.send.note_posted();
        self.note_post(posted, shared);
    }

    /// Puts a word without telling its owner; false: it is none, or cannot leave at once.
    #[inline]
    fn put_plainly(
        &mut self,
        source: View,
        to: RemoteRange,
        token: u64,
        shared: &mut Shared,
    ) -> bool {
        let bytes = source.len_bytes() as u64;
        let is_word =
            bytes <= WORD_BYTES && bytes.is_power_of_two() && to.offset.is_multiple_of(bytes);
        if !is_word || !self.is_open(bytes) {
            return false;
        }
        let Some(target) = self.target_of((to.key, to.offset), bytes) else {
            return false;
        };
        let mut word = [0; WORD_BYTES as usize];
        match bytes {
            // Without a call.
            WORD_BYTES => word = kernel::load(source, 0),
            _ => kernel::read(source, 0, &mut word[..bytes as usize]),
        }
        let word = &word[..bytes as usize];
        let operation = Operation::Write(target.place(self.lead, 0), None);
        let link = self.lead_link().expect("looked at just now");
        let local = (Local::Inline(word), bytes);
        let posted = link.post_now(operation, local, What::Word { token, bytes });
        self.note_post(posted, shared);
        true
    }

    /// What was posted by itself was one doorbell, or a fault.
    #[inline]
    pub fn note_post(&mut self, posted: Result<(), String>, shared: &mut Shared) {
        shared.counts.doorbells += 1;
        if let Err(cause) = posted {
            self.note_fault(Fault::of_rail(self.lead, &cause));
            shared.mark(self);
        }
    }

    /// Makes a completion of words that have none.
    pub fn queue_telling(&mut self, shared: &mut Shared) {
        let ring = self.target.map(|target| target.place(self.lead, 0));
        let link = self
            .lead_link()
            .filter(|link| link.is_untold() && link.has_room());
        if let (Some(place), Some(link)) = (ring, link) {
            link.queue(Operation::Write(place, None), None, What::Told);
            shared.mark(self);
        }
    }

    pub fn get(
        &mut self,
        from: RemoteRange,
        destination: View,
        token: u64,
        shared: &mut Shared,
    ) -> Result<(), PostError> {
        self.has_room()?;
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
        shared: &mut Shared,
    ) -> Result<(), PostError> {
        self.has_room()?;
        let range = (word.key, word.offset);
        if self.get_at_once(range, (result, token), Some(atomic), shared) {
            return Ok(());
        }
        let id = self.add_transfer(Kind::Get, result, range, Some(token), shared)?;
        self.transfers.get_mut(&id).expect("added just now").atomic = Some(atomic);
        self.resolve(id, shared);
        Ok(())
    }

    /// Wakes the peer, unless something on its way does.
    pub fn notify(&mut self, shared: &mut Shared) {
        if self.send.next() == self.notified && self.has_room().is_ok() {
            self.push(Record::Nothing, View::empty(), None, shared);
        }
        self.notified = self.send.next();
    }

    /// Posts what there is room for, and rings the doorbells.
    pub fn pump(&mut self, shared: &mut Shared) {
        if !self.is_up() || !self.queue_bad_puts() {
            return;
        }
        while self.send.has_room()
            && let Some(waiting) = self.waiting.pop_front()
        {
            let slot = self.slot_of_next();
            kernel::write(slot, HEADER_BYTES, &waiting.payload);
            self.place(waiting.record, waiting.put, slot);
        }
        self.queue_positions(shared);
        self.queue_transfers(shared);
        self.queue_told();
        for at in 0..self.links.len() {
            self.ring_doorbell(at, shared);
        }
    }

    /// Posts the positions of the ring that are not posted yet.
    pub fn queue_positions(&mut self, shared: &mut Shared) {
        let rail = self.lead;
        while let Some((position, &entry)) = self.send.unposted() {
            let slot = self.send.slot(position);
            let (Some(ring), Some(staging)) = (&self.target, &self.staging) else {
                return;
            };
            let link = self.links.get_mut(rail).and_then(Option::as_mut);
            let Some(link) = link.filter(|link| link.has_room()) else {
                return;
            };
            let at = (slot * SLOT_BYTES) as u64;
            let write =
                |place, immediate: Immediate| Operation::Write(place, Some(immediate.emit()));
            let bare = Immediate::Bare(self.receive.low_bits());
            match entry {
                Entry::Record { bytes, .. } => {
                    let segment = staging.segment(rail, at, u64::from(bytes));
                    let operation = write(ring.place(rail, at), Immediate::Slot);
                    link.queue(operation, segment, What::Position(position, Then::Nothing));
                    let header = staging.view().part(slot * SLOT_BYTES, HEADER_BYTES);
                    kernel::write(header, TOLD_AT, &self.tell().emit());
                }
                Entry::Put {
                    bytes,
                    target,
                    token,
                } => {
                    let bytes = u64::from(bytes);
                    let segment = staging.segment(rail, at + HEADER_BYTES as u64, bytes);
                    let complete = |token| Then::Complete { token, bytes };
                    let then = token.map_or(Then::Nothing, complete);
                    let operation = write(target.place(rail, 0), bare);
                    link.queue(operation, segment, What::Position(position, then));
                    self.note_consumed_told();
                }
                Entry::End {
                    transfer: id,
                    offset,
                    bytes,
                } => {
                    let ring = ring.place(rail, 0);
                    self.queue_end((position, ring), id, (offset, bytes), shared);
                }
                Entry::Nothing => {
                    let operation = write(ring.place(rail, 0), bare);
                    link.queue(operation, None, What::Position(position, Then::Nothing));
                    self.note_consumed_told();
                }
            }
            self.send.note_posted();
        }
    }

    /// Posts the last bytes of a transfer, whose position tells the peer of its end.
    fn queue_end(
        &mut self,
        (position, ring): (u64, Place),
        id: u64,
        (offset, bytes): (u64, u64),
        shared: &mut Shared,
    ) {
        let rail = self.lead;
        let transfer = self.transfers.get(&id).expect("ends of others are gone");
        let is_message = transfer.kind == Kind::Message;
        let immediate = match is_message {
            true => Immediate::Last(id as u32),
            false => Immediate::Bare(self.receive.low_bits()),
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
        if let Some(link) = self.lead_link() {
            link.queue(operation, segment, what);
        }
        if !is_message {
            self.note_consumed_told();
        }
        if bytes > 0 {
            self.break_if_asked(rail, shared);
        }
    }

    /// What a position without a record tells in passing.
    #[inline]
    fn bare(&mut self) -> Immediate {
        self.note_consumed_told();
        Immediate::Bare(self.receive.low_bits())
    }

    #[inline]
    fn note_consumed_told(&mut self) {
        self.receive.note_told();
        self.is_awaited = false;
    }

    /// Counters as the next post tells them.
    fn tell(&mut self) -> Told {
        self.note_consumed_told();
        Told {
            consumed: self.receive.low_bits(),
            matched: self.credits.tell(),
        }
    }

    /// Puts that named no region, before anything tells that they are consumed; false: not all
    /// found room.
    fn queue_bad_puts(&mut self) -> bool {
        let Some(place) = self.target.map(|target| target.place(self.lead, 0)) else {
            return self.bad_puts.is_empty();
        };
        while let Some(position) = self.bad_puts.pop() {
            let Some(link) = self.lead_link().filter(|link| link.has_room()) else {
                self.bad_puts.push(position);
                return false;
            };
            let immediate = Immediate::BadPut(position).emit();
            let operation = Operation::Write(place, Some(immediate));
            link.queue(operation, None, What::BadPut(position));
        }
        true
    }

    /// Counters that cannot wait for a record.
    fn queue_told(&mut self) {
        let ring = self.target.map(|target| target.place(self.lead, 0));
        let Some(place) = ring else {
            return;
        };
        let write = |immediate: Immediate| Operation::Write(place, Some(immediate.emit()));
        for class in 0..TAG_CLASSES {
            if self.is_match_due(class) {
                if !self.lead_link().is_some_and(|link| link.has_room()) {
                    return;
                }
                let told = Immediate::Matched(class, self.credits.tell_class(class));
                if let Some(link) = self.lead_link() {
                    link.queue(write(told), None, What::Told);
                }
            }
        }
        if self.receive.is_due(self.is_awaited) {
            let count = self.receive.low_bits();
            let Some(link) = self.lead_link().filter(|link| link.has_room()) else {
                return;
            };
            link.queue(write(Immediate::Consumed(count)), None, What::Told);
            self.receive.note_told();
            self.is_awaited = false;
        }
    }

    /// Brings the queue pair into the error state where a test has asked for that.
    pub fn break_if_asked(&mut self, rail: usize, shared: &mut Shared) {
        let Some(left) = shared.until_break.as_mut() else {
            return;
        };
        *left -= 1;
        if *left == 0 {
            shared.until_break = None;
            if let Some(link) = &mut self.links[rail] {
                // What was queued before is posted, and may or may not arrive.
                let _ = link.flush();
                let _ = link.pair.to_error();
            }
        }
    }
}
