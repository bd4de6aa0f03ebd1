//! Long transfers: where they go, and their pieces, which every rail with room takes in turn.

use super::Peer;
use crate::kernel;
use crate::limits::INLINE_BYTES_MAX;
use crate::memory::{RegionKey, View};
use crate::transport::pieces::{choose_rail, piece_bytes, window_bytes};
use crate::transport::rdma::device::{Device, Local, Operation};
use crate::transport::rdma::gets::{self, Get};
use crate::transport::rdma::link::{AT_ONCE_MAX, Link, What};
use crate::transport::rdma::outbox::About;
use crate::transport::rdma::record::{Immediate, Record};
use crate::transport::rdma::regions::Target;
use crate::transport::rdma::shared::Shared;
use crate::transport::rdma::sizes::PIECES_UNDER_WAY;
use crate::transport::rdma::transfers::{Kind, Transfer};
use crate::transport::{Atomic, Outcome, PostError};
use std::sync::Arc;

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
            return self.push(record, View::empty(), About::Nothing, shared);
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
        if transfer.kind == Kind::Put && transfer.target.is_some() {
            let record = Record::PutOver {
                transfer: id as u32,
                pieces: transfer.posted,
            };
            self.push(record, View::empty(), About::Nothing, shared);
        }
    }

    /// Where a transfer goes is known.
    pub(super) fn start(&mut self, id: u64, target: Target, shared: &mut Shared<D>) {
        let Some(transfer) = self.transfers.get_mut(id) else {
            return;
        };
        transfer.target = Some(target);
        transfer.is_asking = false;
        if transfer.total == 0 && transfer.kind == Kind::Get {
            return self.end_get(id, shared);
        }
        if transfer.kind == Kind::Put {
            let (transfer, pieces) = (id as u32, transfer.pieces_count());
            let record = Record::PutOffer { transfer, pieces };
            self.push(record, View::empty(), About::Nothing, shared);
        }
        self.transfers.make_busy(id);
        self.mark(shared);
    }

    /// Asks the peer what has become of a transfer that a fault has cut.
    pub(super) fn ask(&mut self, id: u64, shared: &mut Shared<D>) {
        let Some(asking) = self.transfers.get(id) else {
            return;
        };
        let (transfer, pieces) = (id as u32, asking.pieces_count());
        let record = match asking.kind {
            Kind::Put => Record::PutAgain { transfer, pieces },
            _ => Record::Again { transfer },
        };
        self.push(record, View::empty(), About::Nothing, shared);
    }

    /// The pieces of a put are to be written again.
    pub(super) fn handle_go(&mut self, id: u64, shared: &mut Shared<D>) {
        if let Some(put) = self.transfers.get_mut(id).filter(|t| t.is_asking) {
            put.is_asking = false;
            self.transfers.make_busy(id);
            self.mark(shared);
        }
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
        let most = u64::from(shared.settings.chunk_bytes);
        transfer.piece_bytes = piece_bytes(total, shared.rails.len(), most);
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
            let has_more = self.transfers.get(id).is_some_and(Transfer::can_go_on);
            match next == Next::NoRoom && !has_moved {
                // The others would find none either, and there may be a thousand.
                true => return self.transfers.enqueue_first(id),
                false if has_more => self.transfers.enqueue(id),
                false => {}
            }
        }
    }

    /// Posts one piece.
    fn queue_piece(&mut self, id: u64, shared: &mut Shared<D>) -> Next {
        let Some(transfer) = self.transfers.get(id).filter(|t| t.can_go_on()) else {
            return Next::Other;
        };
        let bytes_max = transfer.piece_bytes;
        let window = window_bytes(bytes_max, u64::from(shared.settings.chunk_bytes));
        let has_room = |link: &&Link<D>| {
            transfer.memory.is_on(link.rail)
                && link.has_room()
                && link.pieces < PIECES_UNDER_WAY
                && link.outstanding_bytes < window
        };
        let open = self.pair.links().filter(has_room);
        // Atomic operations are atomic only among those of one device.
        let (is_bound, lead) = (transfer.atomic.is_some(), self.pair.lead());
        let open = open.filter(|link| !is_bound || link.rail == lead);
        let rail = choose_rail(open.map(|link| (link.rail, link.outstanding_bytes)));
        let Some(rail) = rail else {
            return Next::NoRoom;
        };
        let Some((offset, bytes, _)) = transfer.pieces.peek(bytes_max) else {
            return Next::Other;
        };
        self.queue_one(id, rail, (offset, bytes), shared);
        Next::Piece
    }

    fn queue_one(
        &mut self,
        id: u64,
        rail: usize,
        (offset, bytes): (u64, u64),
        shared: &mut Shared<D>,
    ) {
        let number = self.outbox.number();
        let transfer = self.transfers.get_mut(id).expect("looked at just now");
        transfer.pieces.take(bytes);
        let segment = (transfer.memory).segment(rail, transfer.offset + offset, bytes);
        let place = transfer.target.expect("checked").place(rail, offset);
        let operation = match (transfer.kind, number) {
            (Kind::Get, _) | (_, None) => gets::operation(transfer.atomic, place),
            (_, Some(number)) => {
                let immediate = Immediate::Piece(id as u32).emit(number);
                Operation::Write(place, Some(immediate))
            }
        };
        transfer.under_way += 1;
        transfer.posted += 1;
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
        let what = What::Get(self.gets.add(Get {
            token,
            view,
            memory,
            range,
            atomic,
        }));
        let link = self.pair.lead_link().expect("looked at just now");
        let posted = link.post_now(operation, (Local::One(segment), bytes), what);
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

    /// A short get has come, or has ended otherwise.
    pub(super) fn end_short_get(&mut self, number: u64, outcome: Outcome, shared: &mut Shared<D>) {
        if let Some(get) = self.gets.remove(number) {
            self.end_get_as(get, outcome, shared);
        }
    }

    fn end_get_as(&mut self, get: Get<D>, outcome: Outcome, shared: &mut Shared<D>) {
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
        for get in self.gets.take_all() {
            if get.atomic.is_some() {
                self.end_get_as(get, Outcome::Flushed, shared);
                continue;
            }
            shared.counts.pieces_again += 1;
            let total = get.view.len_bytes() as u64;
            let place = (get.memory, get.view.offset());
            let transfer = Transfer::new(Kind::Get, place, total, get.range, get.token);
            let id = self.transfers.insert(transfer);
            self.resolve(id, shared);
        }
    }
}
