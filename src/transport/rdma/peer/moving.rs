//! Long transfers: where they go, and their pieces, which every rail with room takes in turn.

use super::Peer;
use crate::kernel;
use crate::limits::INLINE_BYTES_MAX;
use crate::memory::{RegionKey, View};
use crate::transport::pieces::{choose_rail, piece_bytes, window_bytes};
use crate::transport::rdma::device::{Device, Local, Operation};
use crate::transport::rdma::gets::{self, Get};
use crate::transport::rdma::link::{AT_ONCE_MAX, Link, What};
use crate::transport::rdma::record::Record;
use crate::transport::rdma::regions::Target;
use crate::transport::rdma::shared::Shared;
use crate::transport::rdma::sizes::PIECES_UNDER_WAY;
use crate::transport::rdma::transfers::{Kind, Transfer};
use crate::transport::{Atomic, Outcome, PostError};
use std::sync::Arc;

/// Bytes that are read behind pieces. Some devices touch no memory for a read of none.
const SEEN_BYTES: u64 = 8;

/// What is posted next, after a piece of a transfer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Its next piece.
    Piece,
    /// Another transfer: this one has nothing to post now.
    Other,
    /// Nothing: no rail has room.
    NoRoom,
}

impl<D: Device> Peer<D> {
    /// Finds the peer's region of a put or get; asks the peer where it is not known.
    pub(super) fn resolve(&mut self, id: u64, shared: &mut Shared<D>) {
        let Some(transfer) = self.transfers.get(id) else {
            return;
        };
        let (range, total) = (transfer.range, transfer.total);
        if !self.regions.is_known(range.0) {
            let record = Record::Ask { key: range.0.0 };
            return self.push(record, View::empty(), None, shared);
        }
        match self.regions.target(range, total) {
            Some(target) => self.start(id, target, shared),
            None => self.end_badly(id, shared),
        }
    }

    /// The peer has told of a region, or that there is none: what had asked goes on.
    pub(super) fn resolve_all(&mut self, key: RegionKey, shared: &mut Shared<D>) {
        for id in self.transfers.waiting_for(key) {
            match self.regions.is_known(key) {
                true => self.resolve(id, shared),
                false => self.end_badly(id, shared),
            }
        }
    }

    /// A put or get names no region of the peer.
    pub(super) fn end_badly(&mut self, id: u64, shared: &mut Shared<D>) {
        self.end_unmoved(id, Outcome::BadKey, shared);
    }

    /// Whether the device may be reading memory of this rank for messages or puts.
    pub fn is_read(&self) -> bool {
        self.transfers.is_read()
    }

    /// Ends every message and put of this rank that has not ended. No device reads for them any
    /// more.
    pub fn withdraw(&mut self, shared: &mut Shared<D>) {
        for id in self.transfers.ids(|transfer| transfer.kind != Kind::Get) {
            self.end_unmoved(id, Outcome::Cancelled, shared);
        }
    }

    /// A transfer ends before it has moved.
    fn end_unmoved(&mut self, id: u64, outcome: Outcome, shared: &mut Shared<D>) {
        let Some(transfer) = self.transfers.remove(id) else {
            return;
        };
        shared
            .ends
            .complete(self.rank, transfer.token, outcome, transfer.total, 0);
        self.outbox.clear_end(id);
    }

    /// Where a transfer goes is known.
    pub(super) fn start(&mut self, id: u64, target: Target, shared: &mut Shared<D>) {
        let Some(transfer) = self.transfers.get_mut(id) else {
            return;
        };
        transfer.target = Some(target);
        if transfer.total == 0 && transfer.kind == Kind::Get {
            return self.end_get(id, shared);
        }
        self.transfers.make_busy(id);
        self.mark(shared);
    }

    pub(super) fn add_transfer(
        &mut self,
        kind: Kind,
        view: View,
        range: (RegionKey, u64),
        token: Option<u64>,
        shared: &mut Shared<D>,
    ) -> Result<u64, PostError> {
        self.transfers.check()?;
        let total = view.len_bytes() as u64;
        let registered = shared.regions.get(view.key()).cloned();
        let (memory, offset, bounce) = match registered {
            Some(registered) => (registered, view.offset(), None),
            // Only gets come here without: they need no more than a page (clause 10).
            None => {
                let page = shared.bounce()?;
                (page, 0, Some(view))
            }
        };
        let token = token.expect("long transfers have completions");
        let mut transfer = Transfer::new(kind, (memory, offset), total, range, token);
        transfer.bounce = bounce;
        Ok(self.transfers.insert(transfer))
    }

    /// A fault has lost the answer of an atomic operation: to do it again could be to do it twice.
    pub(super) fn end_lost(&mut self, id: u64, shared: &mut Shared<D>) {
        if let Some(transfer) = self.transfers.remove(id) {
            let (token, total) = (transfer.token, transfer.total);
            shared
                .ends
                .complete(self.rank, token, Outcome::Flushed, total, 0);
        }
    }

    /// All bytes of a get are here.
    pub(super) fn end_get(&mut self, id: u64, shared: &mut Shared<D>) {
        let Some(transfer) = self.transfers.remove(id) else {
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
        shared
            .ends
            .complete(self.rank, token, Outcome::Done, total, 0);
    }

    /// Posts pieces of long transfers, as long as a rail has room.
    pub(super) fn queue_transfers(&mut self, shared: &mut Shared<D>) {
        for _ in 0..self.transfers.queued_count() {
            let Some(id) = self.transfers.pop_first() else {
                return;
            };
            let mut has_moved = false;
            let next = loop {
                match self.queue_piece(id, shared) {
                    Next::Piece => has_moved = true,
                    next => break next,
                }
            };
            let has_more = self.transfers.get(id).is_some_and(|t| !t.waits());
            match next == Next::NoRoom && !has_moved {
                // The others would find none either, and there may be a thousand.
                true => return self.transfers.enqueue_first(id),
                false if has_more => self.transfers.enqueue(id),
                false => {}
            }
        }
    }

    /// Posts one piece or the end.
    fn queue_piece(&mut self, id: u64, shared: &mut Shared<D>) -> Next {
        let Some(transfer) = self.transfers.get(id).filter(|t| t.target.is_some()) else {
            return Next::Other;
        };
        let lead = self.pair.lead();
        let others = |at: usize| at != lead && transfer.under_way[at] > 0;
        let is_apart = (0..transfer.under_way.len()).any(others);
        let unseen = transfer.unseen.iter().position(|&is_unseen| is_unseen);
        let can_end = !is_apart
            && unseen.is_none()
            && self.outbox.check_room().is_ok()
            && transfer.kind != Kind::Get;
        if transfer.pieces.is_empty() {
            if let Some(rail) = unseen {
                return self.read_behind(id, rail, shared);
            }
            let is_end = can_end && !transfer.has_end;
            if is_end {
                self.push_end(id, (transfer.total, 0), shared);
            }
            return Next::Other;
        }
        let count = self.pair.links().count();
        let most = u64::from(shared.settings.chunk_bytes);
        let bytes_max = piece_bytes(transfer.total, count, most);
        let window = window_bytes(bytes_max, most);
        let has_room = |link: &&Link<D>| {
            transfer.memory.is_on(link.rail)
                && link.has_room()
                && link.pieces < PIECES_UNDER_WAY
                && link.outstanding_bytes < window
        };
        let open = self.pair.links().filter(has_room);
        // Atomic operations are atomic only among those of one device.
        let is_bound = transfer.atomic.is_some();
        let open = open.filter(|link| !is_bound || link.rail == lead);
        let rail = choose_rail(open.map(|link| (link.rail, link.outstanding_bytes)));
        let Some(rail) = rail else {
            return Next::NoRoom;
        };
        let Some((offset, bytes, is_last)) = transfer.pieces.peek(bytes_max) else {
            return Next::Other;
        };
        if is_last && can_end && rail == lead {
            self.take(id, bytes);
            self.push_end(id, (offset, bytes), shared);
            return Next::Other;
        }
        self.take(id, bytes);
        self.queue_one(id, rail, (offset, bytes), shared);
        Next::Piece
    }

    /// Reads a word of the peer behind the pieces of a rail. When it has come, they are visible
    /// there: an acknowledgement of a write says only that the peer's device has it, and what the
    /// lead writes later may overtake it.
    fn read_behind(&mut self, id: u64, rail: usize, shared: &mut Shared<D>) -> Next {
        let transfer = self.transfers.get_mut(id).expect("looked at just now");
        let landing = shared.landing.as_ref();
        let segment = landing.and_then(|memory| memory.segment(rail, 0, SEEN_BYTES));
        let place = self.outbox.ring_place(rail);
        let link = self.pair.link(rail).filter(|link| link.has_room());
        let (Some(segment), Some(place), Some(link)) = (segment, place, link) else {
            return Next::NoRoom;
        };
        let what = What::Piece {
            transfer: id,
            offset: 0,
            bytes: 0,
        };
        link.queue(Operation::Read(place), Some(segment), what);
        transfer.unseen[rail] = false;
        transfer.under_way[rail] += 1;
        shared.counts.reads_behind += 1;
        Next::Piece
    }

    fn take(&mut self, id: u64, bytes: u64) {
        let transfer = self.transfers.get_mut(id).expect("looked at just now");
        transfer.pieces.take(bytes);
    }

    fn push_end(&mut self, id: u64, (offset, bytes): (u64, u64), shared: &mut Shared<D>) {
        let transfer = self.transfers.get_mut(id).expect("looked at just now");
        transfer.has_end = true;
        self.outbox.push_end(id, offset, bytes);
        self.queue_positions(shared);
    }

    fn queue_one(
        &mut self,
        id: u64,
        rail: usize,
        (offset, bytes): (u64, u64),
        shared: &mut Shared<D>,
    ) {
        let lead = self.pair.lead();
        let transfer = self.transfers.get_mut(id).expect("looked at just now");
        let segment = (transfer.memory).segment(rail, transfer.offset + offset, bytes);
        let place = transfer.target.expect("checked").place(rail, offset);
        let operation = match transfer.kind {
            Kind::Get => gets::operation(transfer.atomic, place),
            _ => Operation::Write(place, None),
        };
        transfer.under_way[rail] += 1;
        transfer.unseen[rail] = transfer.kind != Kind::Get && rail != lead;
        shared.counts.pieces += 1;
        let what = What::Piece {
            transfer: id,
            offset,
            bytes,
        };
        if let Some(link) = self.pair.link(rail) {
            link.queue(operation, segment, what);
        }
        self.break_if_asked(rail, shared);
    }

    /// Posts a get by itself if it is short and finds nothing before it (`gets.rs`); false: nothing
    /// has happened.
    #[inline]
    pub(super) fn get_at_once(
        &mut self,
        range: (RegionKey, u64),
        (view, token): (View, u64),
        atomic: Option<Atomic>,
        shared: &mut Shared<D>,
    ) -> bool {
        let bytes = view.len_bytes() as u64;
        let is_short = (1..=INLINE_BYTES_MAX as u64).contains(&bytes);
        if !is_short || !self.is_open_for_gets() {
            return false;
        }
        let rail = self.pair.lead();
        let (Some(target), Some(memory)) = (
            self.regions.target(range, bytes),
            shared.regions.get(view.key()),
        ) else {
            return false;
        };
        let memory = Arc::clone(memory);
        let Some(segment) = memory.segment(rail, view.offset(), bytes) else {
            return false;
        };
        let operation = gets::operation(atomic, target.place(rail, 0));
        let link = self.pair.lead_link().expect("looked at just now");
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
        let is_open = |link: &mut Link<D>| {
            link.under_way() < AT_ONCE_MAX && link.pieces < PIECES_UNDER_WAY && link.has_room()
        };
        self.is_free() && self.outbox.is_posted() && self.pair.lead_link().is_some_and(is_open)
    }

    /// The first short get has come: a queue ends them in order.
    pub(super) fn end_first_get(&mut self, outcome: Outcome, shared: &mut Shared<D>) {
        let Some(get) = self.gets.pop_front() else {
            return;
        };
        let bytes = get.view.len_bytes() as u64;
        if outcome == Outcome::Done {
            shared.counts.written_bytes += bytes;
        }
        if outcome == Outcome::BadKey {
            self.regions.forget(get.range.0);
        }
        shared
            .ends
            .complete(self.rank, get.token, outcome, bytes, 0);
    }

    /// The queue has ended before the rest of the short gets came.
    pub(super) fn go_on_with_gets(&mut self, shared: &mut Shared<D>) {
        while let Some(first) = self.gets.front() {
            if first.atomic.is_some() {
                self.end_first_get(Outcome::Flushed, shared);
                continue;
            }
            let get = self.gets.pop_front().expect("looked at just now");
            shared.counts.pieces_again += 1;
            let total = get.view.len_bytes() as u64;
            let place = (get.memory, get.view.offset());
            let transfer = Transfer::new(Kind::Get, place, total, get.range, get.token);
            let id = self.transfers.insert(transfer);
            self.resolve(id, shared);
        }
    }
}
