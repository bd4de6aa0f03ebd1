//! What leaves: records for the peer's ring, and pieces of long transfers, which every rail with room takes in turn.

use super::link::{Link, Then, What};
use super::peer::{Entry, Kind, Peer, Shared, Target, Transfer, Waiting};
use super::pieces::{Pieces, choose_rail, piece_bytes};
use super::record::{HEADER_BYTES, Immediate, Record, SLOT_BYTES, TOLD_AT, Told, VALUE_MASK};
use crate::limits::{INLINE_BYTES_MAX, MESSAGES_PER_PEER};
use crate::memory::{RegionKey, View};
use crate::transport::{Outcome, PostError, RemoteRange, URGENT_CLASS, tag_class};
use linerate_verbs_sys::{Operation, Place};

/// Long transfers under way to one peer.
const TRANSFERS_MAX: usize = 1024;
/// The least piece into which a transfer is cut to occupy several rails: 64 KiB take 5 us at 100 Gbit/s, more than a post.
const PIECE_BYTES_MIN: u64 = 64 * 1024;
/// Pieces under way per rail: two fill it, two more let the choice of the rail follow its speed.
const WINDOW_PIECES: u64 = 4;
/// Puts of at most a flag line are copied by the peer's processor, unless they are one word: a device may write a line in
/// parts, and whoever looks at its stamp must find all of it. (A word is written at once.)
const LINE_BYTES: u64 = 64;
const WORD_BYTES: u64 = 8;

impl Target {
    /// The place `offset` bytes on, as a rail names it.
    fn place(&self, rail: usize, offset: u64) -> Place {
        Place {
            address: self.address.wrapping_add(offset),
            key: self.keys[rail],
        }
    }
}

impl Peer {
    /// Whether an ordinary record would find a position now.
    fn has_room(&self) -> Result<(), PostError> {
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
        shared.counts.copied_bytes += payload.len_bytes() as u64;
        if self.has_room().is_ok() && self.staging.is_some() {
            let slot = self.slot_of_next();
            slot.part(HEADER_BYTES, payload.len_bytes())
                .copy_from(payload);
            self.place(record, put, slot);
        } else {
            let mut bytes = vec![0; payload.len_bytes()];
            payload.read(0, &mut bytes);
            self.waiting.push_back(Waiting {
                record,
                payload: bytes,
                put,
            });
        }
        shared.mark(self);
    }

    fn slot_of_next(&self) -> View {
        let staging = self.staging.as_ref().expect("made with the connection");
        let slot = self.send.slot(self.send.next());
        staging.view().part(slot * SLOT_BYTES, SLOT_BYTES)
    }

    /// Gives a record whose payload lies in the next slot its position.
    fn place(&mut self, record: Record, put: Option<(u64, u64)>, slot: View) {
        slot.write(0, &record.emit());
        if let Some(tail) = record.tail() {
            slot.write(HEADER_BYTES, &tail);
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
        if self.backlog(class) >= MESSAGES_PER_PEER as u16 {
            return Err(PostError::WouldBlock);
        }
        let total = source.len_bytes();
        let is_short = total <= INLINE_BYTES_MAX;
        // Its places are few and its messages short: there is room whatever else waits.
        if class != URGENT_CLASS || !is_short {
            self.has_room()?;
        }
        if is_short {
            let bytes = total as u32;
            self.push(Record::Message { tag, header, bytes }, source, None, shared);
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
            self.push(record, View::empty(), None, shared);
        }
        self.sent[class] = self.sent[class].wrapping_add(1);
        Ok(())
    }

    pub fn put(
        &mut self,
        source: View,
        to: RemoteRange,
        token: u64,
        shared: &mut Shared,
    ) -> Result<(), PostError> {
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
            Some(target) => {
                let slot = self.slot_of_next();
                slot.part(HEADER_BYTES, source.len_bytes())
                    .copy_from(source);
                shared.counts.copied_bytes += bytes;
                let bytes = bytes as u32;
                let token = Some(token);
                self.send.push(Entry::Put {
                    bytes,
                    target,
                    token,
                });
                shared.mark(self);
            }
            None => {
                let record = Record::Put {
                    key: to.key.0,
                    offset: to.offset,
                    bytes: bytes as u32,
                };
                self.push(record, source, Some((token, bytes)), shared);
            }
        }
        Ok(())
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
        let id = self.add_transfer(Kind::Get, destination, range, Some(token), shared)?;
        self.resolve(id, shared);
        Ok(())
    }

    /// Where a range of the peer's regions is, if it is known and inside.
    fn target_of(&self, (key, offset): (RegionKey, u64), bytes: u64) -> Option<Target> {
        let region = self.regions.get(&key)?;
        let is_inside = offset <= region.bytes && bytes <= region.bytes - offset;
        is_inside.then(|| Target {
            address: region.target.address + offset,
            ..region.target
        })
    }

    /// Finds the peer's region of a put or get; asks the peer where it is not known.
    fn resolve(&mut self, id: u64, shared: &mut Shared) {
        let Some(transfer) = self.transfers.get(&id) else {
            return;
        };
        let (range, total) = (transfer.range, transfer.total);
        if !self.regions.contains_key(&range.0) {
            let record = Record::Ask { key: range.0.0 };
            return self.push(record, View::empty(), None, shared);
        }
        match self.target_of(range, total) {
            Some(target) => self.start(id, target, shared),
            None => self.end_badly(id, shared),
        }
    }

    /// The peer has told of a region, or that there is none: what had asked goes on.
    pub fn resolve_all(&mut self, key: RegionKey, shared: &mut Shared) {
        let is_waiting =
            |t: &Transfer| t.kind != Kind::Message && t.target.is_none() && t.range.0 == key;
        let waiting: Vec<u64> = (self.transfers.iter())
            .filter(|(_, transfer)| is_waiting(transfer))
            .map(|(&id, _)| id)
            .collect();
        for id in waiting {
            match self.regions.contains_key(&key) {
                true => self.resolve(id, shared),
                false => self.end_badly(id, shared),
            }
        }
    }

    /// A put or get names no region of the peer.
    pub fn end_badly(&mut self, id: u64, shared: &mut Shared) {
        let Some(transfer) = self.transfers.remove(&id) else {
            return;
        };
        shared.complete(
            self.rank,
            transfer.token,
            Outcome::BadKey,
            transfer.total,
            0,
        );
        for (_, entry) in self.send.entries_mut() {
            if matches!(entry, Entry::End { transfer, .. } if *transfer == id) {
                *entry = Entry::Nothing;
            }
        }
    }

    /// Where a transfer goes is known.
    pub fn start(&mut self, id: u64, target: Target, shared: &mut Shared) {
        let Some(transfer) = self.transfers.get_mut(&id) else {
            return;
        };
        transfer.target = Some(target);
        if transfer.total == 0 && transfer.kind == Kind::Get {
            return self.end_get(id, shared);
        }
        self.make_busy(id);
        shared.mark(self);
    }

    /// It can go on.
    pub fn make_busy(&mut self, id: u64) {
        if let Some(transfer) = self.transfers.get_mut(&id)
            && transfer.target.is_some()
            && !std::mem::replace(&mut transfer.is_busy, true)
        {
            self.busy.push_back(id);
        }
    }

    fn add_transfer(
        &mut self,
        kind: Kind,
        view: View,
        range: (RegionKey, u64),
        token: Option<u64>,
        shared: &mut Shared,
    ) -> Result<u64, PostError> {
        if self.transfers.len() >= TRANSFERS_MAX {
            return Err(PostError::WouldBlock);
        }
        let total = view.len_bytes() as u64;
        let registered = shared.regions.get(&view.key()).cloned();
        let (memory, offset, bounce) = match registered {
            Some(registered) => (registered, view.offset(), None),
            // Only gets come here without: they need no more than a page (clause 10).
            None => {
                let page = shared.bounce();
                let page = page.map_err(|e| PostError::Invalid(e.to_string()))?;
                (page, 0, Some(view))
            }
        };
        // Numbers come again after 2^28 transfers, unless they are still in use.
        let id = loop {
            let id = self.next_transfer & u64::from(VALUE_MASK);
            self.next_transfer += 1;
            if !self.transfers.contains_key(&id) {
                break id;
            }
        };
        let transfer = Transfer {
            kind,
            token: token.expect("long transfers have completions"),
            total,
            memory,
            offset,
            target: None,
            range,
            pieces: Pieces::all(total),
            under_way: vec![0; shared.rails.len()],
            has_end: false,
            is_busy: false,
            bounce,
            refusals: 0,
        };
        self.transfers.insert(id, transfer);
        Ok(id)
    }

    /// All bytes of a get are here.
    pub fn end_get(&mut self, id: u64, shared: &mut Shared) {
        let Some(transfer) = self.transfers.remove(&id) else {
            return;
        };
        let (token, total) = (transfer.token, transfer.total);
        match transfer.bounce {
            Some(view) => {
                view.copy_from(transfer.memory.view().part(0, view.len_bytes()));
                shared.counts.copied_bytes += total;
                shared.bounces.push(transfer.memory);
            }
            None => shared.counts.written_bytes += total,
        }
        shared.complete(self.rank, token, Outcome::Done, total, 0);
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
            slot.write(HEADER_BYTES, &waiting.payload);
            self.place(waiting.record, waiting.put, slot);
        }
        self.queue_positions(shared);
        self.queue_transfers(shared);
        self.queue_told();
        for at in 0..self.links.len() {
            if let Some(link) = &mut self.links[at] {
                shared.counts.doorbells += 1;
                if let Err(cause) = link.flush() {
                    self.fault.get_or_insert((Some(at), cause));
                }
            }
        }
    }

    /// Posts the positions of the ring that are not posted yet.
    fn queue_positions(&mut self, shared: &mut Shared) {
        while let Some((position, &entry)) = self.send.unposted() {
            let rail = self.lead;
            let staging = self.staging.clone().expect("made with the connection");
            let (slot, ring) = (self.send.slot(position), self.target);
            let (Some(ring), Some(link)) = (ring, self.lead_link().filter(|l| l.has_room())) else {
                return;
            };
            let at = (slot * SLOT_BYTES) as u64;
            let write =
                |place, immediate: Immediate| Operation::Write(place, Some(immediate.emit()));
            match entry {
                Entry::Record { bytes, .. } => {
                    let segment = staging.segment(rail, at, u64::from(bytes));
                    let operation = write(ring.place(rail, at), Immediate::Slot);
                    link.queue(operation, segment, What::Position(position, Then::Nothing));
                    let told = self.tell();
                    staging
                        .view()
                        .write(slot * SLOT_BYTES + TOLD_AT, &told.emit());
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
                    let operation = write(target.place(rail, 0), Immediate::Bare);
                    link.queue(operation, segment, What::Position(position, then));
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
                    let operation = write(ring.place(rail, 0), Immediate::Bare);
                    link.queue(operation, None, What::Position(position, Then::Nothing));
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
        let immediate = match transfer.kind {
            Kind::Message => Immediate::Last(id as u32),
            _ => Immediate::Bare,
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
        if bytes > 0 {
            self.break_if_asked(rail, shared);
        }
    }

    /// Counters as the next post tells them.
    fn tell(&mut self) -> Told {
        self.receive.note_told();
        self.is_awaited = false;
        self.matched_told = self.matched;
        Told {
            consumed: self.receive.low_bits(),
            matched: self.matched,
        }
    }

    /// Puts that named no region, before anything tells that they are consumed; false: not all found room.
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
        for class in 0..self.matched.len() {
            if self.is_match_due(class) {
                let count = self.matched[class];
                let Some(link) = self.lead_link().filter(|link| link.has_room()) else {
                    return;
                };
                link.queue(write(Immediate::Matched(class, count)), None, What::Told);
                self.matched_told[class] = count;
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

    /// Posts pieces of long transfers, as long as a rail has room.
    fn queue_transfers(&mut self, shared: &mut Shared) {
        for _ in 0..self.busy.len() {
            let Some(id) = self.busy.pop_front() else {
                return;
            };
            while self.queue_piece(id, shared) {}
            let Some(transfer) = self.transfers.get_mut(&id) else {
                continue;
            };
            // What only waits for pieces that are under way goes on when they have arrived.
            let waits = transfer.pieces.is_empty()
                && (transfer.has_end
                    || transfer.kind == Kind::Get
                    || transfer.under_way.iter().any(|&count| count > 0));
            transfer.is_busy = !waits;
            if !waits {
                self.busy.push_back(id);
            }
        }
    }

    /// Posts one piece or the end; false: not now.
    fn queue_piece(&mut self, id: u64, shared: &mut Shared) -> bool {
        let Some(transfer) = self.transfers.get(&id).filter(|t| t.target.is_some()) else {
            return false;
        };
        let lead = self.lead;
        let others = |at: usize| at != lead && transfer.under_way[at] > 0;
        let is_apart = (0..transfer.under_way.len()).any(others);
        let can_end = !is_apart && self.has_room().is_ok() && transfer.kind != Kind::Get;
        if transfer.pieces.is_empty() {
            let is_end = can_end && !transfer.has_end;
            if is_end {
                self.push_end(id, (transfer.total, 0), shared);
            }
            return false;
        }
        let window = WINDOW_PIECES * u64::from(shared.settings.chunk_bytes);
        let has_room = |link: &&Link| {
            link.has_room()
                && link.pieces < super::device::PIECES_UNDER_WAY
                && link.outstanding_bytes < window
        };
        let open = self.links.iter().flatten().filter(has_room);
        let rail = choose_rail(open.map(|link| (link.rail, link.outstanding_bytes)));
        let Some(rail) = rail else {
            return false;
        };
        let count = self.links.iter().flatten().count();
        let most = u64::from(shared.settings.chunk_bytes);
        let bytes_max = piece_bytes(transfer.total, count, PIECE_BYTES_MIN, most);
        let Some((offset, bytes, is_last)) = transfer.pieces.peek(bytes_max) else {
            return false;
        };
        if is_last && can_end && rail == lead {
            self.take(id, bytes);
            self.push_end(id, (offset, bytes), shared);
            return false;
        }
        self.take(id, bytes);
        self.queue_one(id, rail, (offset, bytes), shared);
        true
    }

    fn take(&mut self, id: u64, bytes: u64) {
        let transfer = self.transfers.get_mut(&id).expect("looked at just now");
        transfer.pieces.take(bytes);
    }

    fn push_end(&mut self, id: u64, (offset, bytes): (u64, u64), shared: &mut Shared) {
        let transfer = self.transfers.get_mut(&id).expect("looked at just now");
        transfer.has_end = true;
        self.send.push(Entry::End {
            transfer: id,
            offset,
            bytes,
        });
        self.queue_positions(shared);
    }

    fn queue_one(
        &mut self,
        id: u64,
        rail: usize,
        (offset, bytes): (u64, u64),
        shared: &mut Shared,
    ) {
        let transfer = self.transfers.get_mut(&id).expect("looked at just now");
        let segment = (transfer.memory).segment(rail, transfer.offset + offset, bytes);
        let place = transfer.target.expect("checked").place(rail, offset);
        let operation = match transfer.kind {
            Kind::Get => Operation::Read(place),
            _ => Operation::Write(place, None),
        };
        transfer.under_way[rail] += 1;
        shared.counts.pieces += 1;
        let what = What::Piece {
            transfer: id,
            offset,
            bytes,
        };
        if let Some(link) = &mut self.links[rail] {
            link.queue(operation, segment, what);
        }
        self.break_if_asked(rail, shared);
    }

    /// Brings the queue pair into the error state where a test has asked for that.
    fn break_if_asked(&mut self, rail: usize, shared: &mut Shared) {
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
