//! What comes: positions of the ring, records in its slots, and confirmations of what was posted.

use super::Peer;
use crate::kernel;
use crate::memory::{RegionKey, View};
use crate::transport::rdma::device::Device;
use crate::transport::rdma::greeting::Had;
use crate::transport::rdma::link::{Then, What};
use crate::transport::rdma::record::{
    HEADER_BYTES, Immediate, RAILS_MAX, RailKeys, Record, Told, VALUE_MASK,
};
use crate::transport::rdma::regions::Target;
use crate::transport::rdma::shared::Shared;
use crate::transport::rdma::transfers::{Kind, Transfer};
use crate::transport::{Atomic, Outcome, PostError, RemoteRange};

impl<D: Device> Peer<D> {
    /// Something has come that took a receive.
    pub fn handle_immediate(&mut self, bits: u32, shared: &mut Shared<D>) -> Result<(), String> {
        match Immediate::parse(bits)? {
            Immediate::Slot => {
                let position = self.inbox.receive();
                self.handle_slot(position, shared)?;
            }
            Immediate::Bare(count) => {
                self.inbox.receive();
                self.handle_consumed(count, shared)?;
            }
            Immediate::Last(transfer) => {
                self.inbox.receive();
                self.handle_last(transfer, shared);
            }
            Immediate::Consumed(count) => self.handle_consumed(count, shared)?,
            Immediate::BadPut(position) => self.handle_bad_put(position, shared),
            Immediate::Matched(class, count) => self.credits.handle_told(class, count),
        }
        if self.inbox.is_due() {
            self.mark(shared);
        }
        Ok(())
    }

    fn handle_slot(&mut self, position: u64, shared: &mut Shared<D>) -> Result<(), String> {
        let slot = self.inbox.slot(position);
        let (mut header, mut tail) = ([0; HEADER_BYTES], [0; 4 * RAILS_MAX]);
        kernel::read(slot, 0, &mut header);
        kernel::read(slot, HEADER_BYTES, &mut tail);
        let record = Record::parse(&header, &tail)?;
        let told = Told::parse(&header);
        self.handle_consumed(told.consumed, shared)?;
        self.credits.handle_all_told(told.matched);
        let payload = |bytes: u32| slot.part(HEADER_BYTES, bytes as usize);
        match record {
            Record::Message { tag, header, bytes } => {
                self.handle_message((tag, header), payload(bytes), shared)?;
            }
            Record::Put { key, offset, bytes } => {
                self.handle_put(position, (key, offset), payload(bytes), shared);
            }
            Record::Offer {
                tag,
                header,
                transfer,
                total,
            } => self.handle_offer((tag, header), (transfer, total), shared)?,
            Record::Grant {
                transfer,
                address,
                keys,
            } => self.handle_grant(transfer, Target { address, keys }, shared)?,
            Record::Skip { transfer } => self.handle_skip(transfer, shared),
            Record::Region {
                key,
                address,
                bytes,
                keys,
            } => self.handle_region(key, (address, keys), bytes, shared),
            Record::Forget { key } => {
                self.regions.forget(RegionKey(key));
                self.resolve_all(RegionKey(key), shared);
            }
            Record::Nothing => {}
            Record::Ask { key } => self.tell_region(RegionKey(key), shared),
            Record::Change {
                id,
                key,
                offset,
                compare,
                operand,
            } => {
                let what = Atomic::of_operands(compare, operand);
                self.handle_change(id, RemoteRange::of(key, offset), what, shared)?;
            }
            Record::Changed { id, before } => self.handle_changed(id, before, shared)?,
        }
        Ok(())
    }

    /// The peer has consumed positions of its ring.
    fn handle_consumed(&mut self, told: u32, shared: &mut Shared<D>) -> Result<(), String> {
        let count = self.outbox.newly_consumed(told)?;
        for _ in 0..count {
            self.pop_position(shared);
        }
        if count > 0 && self.outbox.waiting_count() > 0 || self.transfers.queued_count() > 0 {
            self.mark(shared);
        }
        Ok(())
    }

    /// The first position is consumed.
    fn pop_position(&mut self, shared: &mut Shared<D>) {
        if let Some((token, bytes)) = self.outbox.pop() {
            shared
                .ends
                .complete(self.rank, token, Outcome::Done, bytes, 0);
        }
    }

    /// A put that came as a record: this processor copies it into a region of this rank.
    fn handle_put(
        &mut self,
        position: u64,
        (key, offset): (u32, u64),
        source: View,
        shared: &mut Shared<D>,
    ) {
        let bytes = source.len_bytes() as u64;
        match shared.regions.range(RemoteRange::of(key, offset), bytes) {
            Some(place) => {
                kernel::copy(source, place);
                shared.counts.copied_bytes += bytes;
            }
            None => {
                self.outbox.push_bad_put(position as u32 & VALUE_MASK);
                self.mark(shared);
            }
        }
        self.inbox.await_slowly();
    }

    fn handle_bad_put(&mut self, position: u32, shared: &mut Shared<D>) {
        if let Some((token, bytes)) = self.outbox.take_bad_put(position) {
            shared
                .ends
                .complete(self.rank, token, Outcome::BadKey, bytes, 0);
        }
    }

    /// The peer says where a long message goes.
    fn handle_grant(
        &mut self,
        transfer: u32,
        target: Target,
        shared: &mut Shared<D>,
    ) -> Result<(), String> {
        let id = u64::from(transfer & VALUE_MASK);
        match self.transfers.get(id).map(|transfer| transfer.kind) {
            Some(Kind::Message) => self.start(id, target, shared),
            // It has ended since.
            None => {}
            Some(kind) => return Err(format!("it granted transfer {id}, a {kind:?}")),
        }
        Ok(())
    }

    /// The peer does not want a long message: the send is over.
    fn handle_skip(&mut self, transfer: u32, shared: &mut Shared<D>) {
        let id = u64::from(transfer);
        let is_message = |t: &Transfer<D>| t.kind == Kind::Message;
        if self.transfers.get(id).is_some_and(is_message)
            && let Some(transfer) = self.transfers.remove(id)
        {
            let (token, total) = (transfer.token, transfer.total);
            shared
                .ends
                .complete(self.rank, token, Outcome::Done, total, 0);
        }
    }

    fn handle_region(
        &mut self,
        key: u32,
        (address, keys): (u64, RailKeys),
        bytes: u64,
        shared: &mut Shared<D>,
    ) {
        let target = Target { address, keys };
        self.regions.learn(RegionKey(key), target, bytes);
        self.resolve_all(RegionKey(key), shared);
    }

    /// Tells the peer of a region of this rank, unless it was told. A peer without queues is not
    /// connected for that: it asks where it needs the region.
    pub fn export(&mut self, key: RegionKey, shared: &mut Shared<D>) -> Result<(), PostError> {
        if self.regions.is_exported(key) || self.pair.is_unused() {
            return Ok(());
        }
        if self.outbox.waiting_count() > 0 {
            return Err(PostError::WouldBlock);
        }
        self.tell_region(key, shared);
        Ok(())
    }

    /// A region of this rank is no more, which the peer hears if it was told of it.
    pub fn end_export(&mut self, key: RegionKey, shared: &mut Shared<D>) {
        if self.regions.end_export(key) && self.is_open() {
            self.tell_region(key, shared);
        }
    }

    /// Tells the peer of a region of this rank, or that it is none.
    fn tell_region(&mut self, key: RegionKey, shared: &mut Shared<D>) {
        let record = match shared.regions.get(key) {
            Some(registered) => {
                self.regions.note_exported(key);
                Record::Region {
                    key: key.0,
                    address: registered.address(),
                    bytes: registered.view().len_bytes() as u64,
                    keys: registered.keys(),
                }
            }
            None => Record::Forget { key: key.0 },
        };
        self.push(record, View::empty(), None, shared);
    }

    /// Everything up to this post on a rail has arrived.
    pub fn handle_arrived(&mut self, rail: usize, id: u64, shared: &mut Shared<D>) {
        self.pair.generation_mut().handle_proof();
        while let Some(link) = self.pair.link(rail)
            && let Some(what) = link.pop_arrived(id)
        {
            match what {
                What::Position(position, then) => self.follow(position, then, shared),
                What::Piece { transfer, .. } => self.handle_piece(rail, transfer, shared),
                What::Word { token, bytes } => {
                    shared
                        .ends
                        .complete(self.rank, token, Outcome::Done, bytes, 0);
                }
                What::Get => self.end_first_get(Outcome::Done, shared),
                What::Told | What::BadPut(_) | What::Nothing => {}
            }
        }
        if self.transfers.queued_count() > 0 || !self.outbox.is_posted() {
            self.mark(shared);
        }
    }

    fn handle_piece(&mut self, rail: usize, id: u64, shared: &mut Shared<D>) {
        let Some(transfer) = self.transfers.get_mut(id) else {
            return;
        };
        transfer.under_way[rail] = transfer.under_way[rail].saturating_sub(1);
        if !transfer.pieces.is_empty() || transfer.is_under_way() {
            return;
        }
        match transfer.kind {
            Kind::Get => self.end_get(id, shared),
            _ if !transfer.has_end => {
                self.transfers.make_busy(id);
                self.mark(shared);
            }
            _ => {}
        }
    }

    /// The peer's device has refused a post: its region is gone, or the range is not inside.
    pub fn handle_refused(&mut self, rail: usize, id: u64, shared: &mut Shared<D>) {
        let found = self.pair.link(rail).and_then(|link| link.find(id));
        let Some(what) = found else {
            return;
        };
        let of_transfer = match *what {
            What::Piece { transfer, .. } => Some(transfer),
            What::Word { token, bytes } => {
                *what = What::Told;
                shared
                    .ends
                    .complete(self.rank, token, Outcome::BadKey, bytes, 0);
                None
            }
            What::Position(_, Then::EndTransfer(transfer)) => Some(transfer),
            What::Position(position, Then::Complete { token, bytes }) => {
                if self.outbox.clear_entry(position) {
                    if let Some(link) = self.pair.link(rail) {
                        link.forget(position);
                    }
                    shared
                        .ends
                        .complete(self.rank, token, Outcome::BadKey, bytes, 0);
                }
                None
            }
            What::Get => {
                // Those before it have come.
                if let Some(link) = self.pair.link(rail) {
                    link.end_post(id);
                }
                self.end_first_get(Outcome::BadKey, shared);
                None
            }
            _ => None,
        };
        let Some(transfer) = of_transfer.and_then(|id| self.transfers.get_mut(id)) else {
            return;
        };
        transfer.refusals += 1;
        let (kind, refusals) = (transfer.kind, transfer.refusals);
        if let (Some(id), true) = (of_transfer, kind != Kind::Message) {
            self.regions.forget(transfer.range.0);
            self.end_badly(id, shared);
        } else if refusals > 2 {
            let text = "its receive's memory cannot be written: it ended before the receive";
            self.pair.note_offence(text.into());
        }
    }

    /// The queues are no more, and the peer has had this many positions: what had come is over, the
    /// rest begins again.
    pub fn settle(&mut self, had: &Had, shared: &mut Shared<D>) -> Result<(), String> {
        let count = (self.outbox).newly_consumed(had.received as u32 & VALUE_MASK)?;
        let received = self.outbox.consumed() + count;
        for (position, then) in self.pair.settle(received) {
            self.follow(position, then, shared);
        }
        for _ in u64::from(had.untold)..count {
            self.pop_position(shared);
        }
        self.credits.handle_all_told(had.matched);
        let (lost, again) = self.outbox.rewind(received);
        shared.counts.positions_again += again;
        for (id, offset, bytes) in lost {
            if !self.transfers.give_back_end(id, offset, bytes) {
                return Err(String::from(
                    "its device has acknowledged the end of a long message and failed before that came to it",
                ));
            }
        }
        Ok(())
    }
}
