//! Long transfers: where they go, and their pieces, which every rail with room takes in turn.

use super::device::{PIECES_UNDER_WAY, Registered};
use super::gets::{self, Get};
use super::link::{AT_ONCE_MAX, Link, What};
use super::peer::{Entry, Kind, Peer, Shared, Target, Transfer};
use super::pieces::{Pieces, choose_rail, piece_bytes, window_bytes};
use super::record::{Record, VALUE_MASK};
use crate::kernel;
use crate::limits::INLINE_BYTES_MAX;
use crate::memory::{RegionKey, View};
use crate::transport::{Atomic, Outcome, PostError};
use linerate_verbs_sys::{Local, Operation};
use std::sync::Arc;

/// Long transfers under way to one peer.
const TRANSFERS_MAX: usize = 1024;
/// The least piece into which a transfer is cut to occupy several rails: 64 KiB take 5 us at 100
/// Gbit/s, more than a post.
const PIECE_BYTES_MIN: u64 = 64 * 1024;

/// Registered memory of this rank, the first byte in it, and where what comes there is copied at
/// its end.
type OwnPlace = (Arc<Registered>, u64, Option<View>);

impl Peer {
    /// Where a range of the peer's regions is, if it is known and inside.
    #[inline]
    pub fn target_of(&self, (key, offset): (RegionKey, u64), bytes: u64) -> Option<Target> {
        let region = self.regions.get(&key)?;
        let is_inside = offset <= region.bytes && bytes <= region.bytes - offset;
        is_inside.then(|| Target {
            address: region.target.address + offset,
            ..region.target
        })
    }

    /// Finds the peer's region of a put or get; asks the peer where it is not known.
    pub fn resolve(&mut self, id: u64, shared: &mut Shared) {
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
        self.end_unmoved(id, Outcome::BadKey, shared);
    }

    /// Whether the device may be reading memory of this rank for messages or puts.
    pub fn is_read(&self) -> bool {
        let is_posted = |t: &Transfer| t.has_end || t.under_way.iter().any(|&count| count > 0);
        let mut written = self.transfers.values().filter(|t| t.kind != Kind::Get);
        written.any(is_posted)
    }

    /// Ends every message and put of this rank that has not ended. No device reads for them any
    /// more.
    pub fn withdraw(&mut self, shared: &mut Shared) {
        let written = self.transfers.iter().filter(|(_, t)| t.kind != Kind::Get);
        let ids: Vec<u64> = written.map(|(&id, _)| id).collect();
        for id in ids {
            self.end_unmoved(id, Outcome::Cancelled, shared);
        }
    }

    /// A transfer ends before it has moved.
    fn end_unmoved(&mut self, id: u64, outcome: Outcome, shared: &mut Shared) {
        let Some(transfer) = self.transfers.remove(&id) else {
            return;
        };
        shared.complete(self.rank, transfer.token, outcome, transfer.total, 0);
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

    pub fn add_transfer(
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
                let page = page.map_err(|e| PostError::invalid(e.to_string()))?;
                (page, 0, Some(view))
            }
        };
        let token = token.expect("long transfers have completions");
        let place = (memory, offset, bounce);
        Ok(self.insert_transfer(kind, (place, total), range, token, shared.rails.len()))
    }

    /// The number of a new transfer from or to this place in registered memory.
    pub fn insert_transfer(
        &mut self,
        kind: Kind,
        ((memory, offset, bounce), total): (OwnPlace, u64),
        range: (RegionKey, u64),
        token: u64,
        rails: usize,
    ) -> u64 {
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
            atomic: None,
            token,
            total,
            memory,
            offset,
            target: None,
            range,
            pieces: Pieces::all(total),
            under_way: vec![0; rails],
            has_end: false,
            is_busy: false,
            bounce,
            refusals: 0,
        };
        self.transfers.insert(id, transfer);
        id
    }

    /// A fault has lost the answer of an atomic operation: to do it again could be to do it twice.
    pub fn end_lost(&mut self, id: u64, shared: &mut Shared) {
        if let Some(transfer) = self.transfers.remove(&id) {
            let (token, total) = (transfer.token, transfer.total);
            shared.complete(self.rank, token, Outcome::Flushed, total, 0);
        }
    }

    /// All bytes of a get are here.
    pub fn end_get(&mut self, id: u64, shared: &mut Shared) {
        let Some(transfer) = self.transfers.remove(&id) else {
            return;
        };
        let (token, total) = (transfer.token, transfer.total);
        match transfer.bounce {
            Some(view) => {
                kernel::copy(transfer.memory.view().part(0, view.len_bytes()), view);
                shared.counts.copied_bytes += total;
                shared.bounces.push(transfer.memory);
            }
            None => shared.counts.written_bytes += total,
        }
        shared.complete(self.rank, token, Outcome::Done, total, 0);
    }

    /// Posts pieces of long transfers, as long as a rail has room.
    pub fn queue_transfers(&mut self, shared: &mut Shared) {
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
        let window = window_bytes(u64::from(shared.settings.chunk_bytes));
        let has_room = |link: &&Link| {
            link.has_room() && link.pieces < PIECES_UNDER_WAY && link.outstanding_bytes < window
        };
        let open = self.links.iter().flatten().filter(has_room);
        // Only those of one device are at once for each other.
        let is_bound = transfer.atomic.is_some();
        let open = open.filter(|link| !is_bound || link.rail == lead);
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
            Kind::Get => gets::operation(transfer.atomic, place),
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

    /// Posts a get by itself if it is short and finds nothing before it (`gets.rs`); false: nothing
    /// has happened.
    #[inline]
    pub fn get_at_once(
        &mut self,
        range: (RegionKey, u64),
        (view, token): (View, u64),
        atomic: Option<Atomic>,
        shared: &mut Shared,
    ) -> bool {
        let bytes = view.len_bytes() as u64;
        let is_short = (1..=INLINE_BYTES_MAX as u64).contains(&bytes);
        if !is_short || !self.is_open_for_gets() {
            return false;
        }
        let rail = self.lead;
        let (Some(target), Some(memory)) = (
            self.target_of(range, bytes),
            shared.regions.get(&view.key()),
        ) else {
            return false;
        };
        let memory = Arc::clone(memory);
        let Some(segment) = memory.segment(rail, view.offset(), bytes) else {
            return false;
        };
        let operation = gets::operation(atomic, target.place(rail, 0));
        let link = self.lead_link().expect("looked at just now");
        let posted = link.post_now(operation, (Local::One(segment), bytes), What::Get);
        self.gets.push_back(Get {
            token,
            view,
            memory,
            range,
            atomic,
        });
        shared.counts.pieces += 1;
        self.note_post(posted, shared);
        self.break_if_asked(rail, shared);
        true
    }

    #[inline]
    fn is_open_for_gets(&mut self) -> bool {
        let is_open = |link: &mut Link| {
            link.under_way() < AT_ONCE_MAX && link.pieces < PIECES_UNDER_WAY && link.has_room()
        };
        self.is_free() && self.send.is_posted() && self.lead_link().is_some_and(is_open)
    }

    /// The first short get has come: a queue pair ends them in order.
    pub fn end_first_get(&mut self, outcome: Outcome, shared: &mut Shared) {
        let Some(get) = self.gets.pop_front() else {
            return;
        };
        let bytes = get.view.len_bytes() as u64;
        if outcome == Outcome::Done {
            shared.counts.written_bytes += bytes;
        }
        if outcome == Outcome::BadKey {
            self.regions.remove(&get.range.0);
        }
        shared.complete(self.rank, get.token, outcome, bytes, 0);
    }

    /// The queue pair has ended before any of the short gets had come.
    pub fn go_on_with_gets(&mut self, shared: &mut Shared) {
        while let Some(first) = self.gets.front() {
            if first.atomic.is_some() {
                self.end_first_get(Outcome::Flushed, shared);
                continue;
            }
            let get = self.gets.pop_front().expect("looked at just now");
            shared.counts.pieces_again += 1;
            let (view, offset) = (get.view, get.view.offset());
            let total = view.len_bytes() as u64;
            let place = (get.memory, offset, None);
            let id = self.insert_transfer(
                Kind::Get,
                (place, total),
                get.range,
                get.token,
                shared.rails.len(),
            );
            self.resolve(id, shared);
        }
    }
}
