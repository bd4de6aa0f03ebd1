//! What comes: positions of the ring, records in its slots, and confirmations of what was posted.

use super::{Offered, Peer};
use crate::kernel;
use crate::memory::{RegionKey, View};
use crate::transport::rdma::device::Device;
use crate::transport::rdma::greeting::Had;
use crate::transport::rdma::link::What;
use crate::transport::rdma::outbox::About;
use crate::transport::rdma::record::{
    HEADER_BYTES, Immediate, KEYS_BYTES, RailKeys, Record, Told, VALUE_MASK,
};
use crate::transport::rdma::regions::Target;
use crate::transport::rdma::shared::Shared;
use crate::transport::rdma::transfers::{Kind, Transfer};
use crate::transport::{Atomic, Outcome, PostError, RemoteRange};

impl<D: Device> Peer<D> {
    /// A write of it has come.
    #[inline]
    pub fn handle_immediate(
        &mut self,
        (number, what): (u32, Immediate),
        shared: &mut Shared<D>,
    ) -> Result<(), String> {
        match what {
            // One of the last generation is posted again.
            Immediate::Slot(_) if self.numbers[0] != Some(number) => {}
            Immediate::Slot(position) => {
                self.inbox.arrive(position)?;
                while let Some(position) = self.inbox.take_next() {
                    self.handle_slot(position, shared)?;
                }
            }
            Immediate::Piece(transfer) => self.handle_piece_come(transfer, number, shared)?,
        }
        if self.inbox.is_due() {
            self.mark(shared);
        }
        Ok(())
    }

    fn handle_slot(&mut self, position: u64, shared: &mut Shared<D>) -> Result<(), String> {
        let slot = self.inbox.slot(position);
        let mut header = [0; HEADER_BYTES];
        kernel::read(slot, 0, &mut header);
        let record = Record::parse(&header, || {
            let mut keys = [0; KEYS_BYTES];
            kernel::read(slot, HEADER_BYTES, &mut keys);
            keys
        })?;
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
                pieces,
            } => {
                let offered = Offered {
                    transfer,
                    total,
                    pieces,
                };
                self.handle_offer((tag, header), offered, shared)?;
            }
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
            Record::Forget { key } => self.handle_forget(RegionKey(key), shared),
            Record::Forgotten { key } => self.regions.handle_forgotten(RegionKey(key)),
            Record::Nothing => {}
            Record::BadPut { position } => self.handle_bad_put(position, shared),
            Record::PutOffer { transfer, pieces } => {
                if self.puts.begin(transfer, pieces)? {
                    self.tell_put_done(transfer, shared);
                }
            }
            Record::PutAgain { transfer, pieces } => {
                self.handle_put_again((transfer, pieces), shared);
            }
            Record::PutOver { transfer, pieces } => self.puts.give_up(transfer, pieces)?,
            Record::Go { transfer } => self.handle_go(u64::from(transfer), shared),
            Record::PutDone { transfer } => self.handle_put_done(u64::from(transfer), shared),
            Record::Again { transfer } => self.handle_again(transfer, shared),
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
    pub(super) fn pop_position(&mut self, shared: &mut Shared<D>) {
        match self.outbox.pop() {
            About::Put { token, bytes } => {
                shared
                    .ends
                    .complete(self.rank, token, Outcome::Done, bytes, 0);
            }
            About::BadPut => self.inbox.let_go(),
            About::Grant(transfer) => self.incoming.note_told(transfer),
            About::PutDone(_) | About::Nothing => {}
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
                self.inbox.hold_back(position);
                let position = position as u32 & VALUE_MASK;
                let record = Record::BadPut { position };
                self.push(record, View::empty(), About::BadPut, shared);
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

    /// All pieces of a put have come.
    fn handle_put_done(&mut self, id: u64, shared: &mut Shared<D>) {
        let Some(put) = self.transfers.get_mut(id).filter(|t| t.kind == Kind::Put) else {
            return;
        };
        put.has_come = true;
        if put.under_way == 0 {
            self.end_whole(id, shared);
        }
    }

    /// A message or put has moved.
    pub(super) fn end_whole(&mut self, id: u64, shared: &mut Shared<D>) {
        if let Some(transfer) = self.transfers.remove(id) {
            shared.counts.written_bytes += transfer.total;
            let (token, total) = (transfer.token, transfer.total);
            shared
                .ends
                .complete(self.rank, token, Outcome::Done, total, 0);
        }
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

    /// A region of the peer is no more. Without connected queues the peer hears when nothing is
    /// under way there.
    fn handle_forget(&mut self, key: RegionKey, shared: &mut Shared<D>) {
        match D::IS_CONNECTED {
            true => self.regions.forget(key),
            false => self.regions.end(key),
        }
        self.resolve_all(key, shared);
        self.mark(shared);
    }

    /// Tells the peer of a region of this rank, or that it is none.
    fn tell_region(&mut self, key: RegionKey, shared: &mut Shared<D>) {
        let relaxed = shared.settings.is_relaxed;
        let exposed = (shared.regions.get(key))
            .map(|for_all| self.regions.expose(key, for_all, &shared.rails, relaxed));
        let record = match exposed {
            Some(Err(error)) => {
                return self.pair.note_offence(format!("a region for it: {error}"));
            }
            Some(Ok(registered)) => {
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
        self.push(record, View::empty(), About::Nothing, shared);
    }

    /// Everything up to this post on a rail has arrived.
    pub fn handle_arrived(&mut self, rail: usize, id: u64, shared: &mut Shared<D>) {
        self.pair.generation_mut().handle_proof();
        while let Some(link) = self.pair.link(rail)
            && let Some(what) = link.pop_arrived(id)
        {
            match what {
                What::Piece { transfer, .. } => self.handle_moved(transfer, shared),
                What::Word { token, bytes } => {
                    shared
                        .ends
                        .complete(self.rank, token, Outcome::Done, bytes, 0);
                }
                What::Get(number) => self.end_short_get(number, Outcome::Done, shared),
                What::Record(slot) => self.outbox.note_read(slot),
                What::Nothing => {}
            }
        }
        // Where the next slot was not free, what waits for it goes on now.
        let has_waited = !D::IS_CONNECTED && (!self.outbox.is_clear() || self.inbox.is_due());
        if self.transfers.queued_count() > 0 || !self.outbox.is_posted() || has_waited {
            self.mark(shared);
        }
        self.look_for_end(shared);
    }

    /// A post has ended, perhaps the last one of a generation that is to end.
    pub fn look_for_end(&mut self, shared: &mut Shared<D>) {
        if !D::IS_CONNECTED && (!self.pair.is_up() || self.regions.has_ending()) {
            self.mark(shared);
        }
    }

    /// A piece has moved. A put ends when its owner has said so, too.
    fn handle_moved(&mut self, id: u64, shared: &mut Shared<D>) {
        let Some(transfer) = self.transfers.get_mut(id) else {
            return;
        };
        transfer.under_way = transfer.under_way.saturating_sub(1);
        if !transfer.pieces.is_empty() || transfer.under_way > 0 {
            return;
        }
        match transfer.kind {
            Kind::Get => self.end_get(id, shared),
            Kind::Message => self.end_whole(id, shared),
            Kind::Put if transfer.has_come => self.end_whole(id, shared),
            Kind::Put => {}
        }
    }

    /// The peer's device has refused a post: its region is gone, or the range is not inside.
    pub fn handle_refused(&mut self, rail: usize, id: u64, shared: &mut Shared<D>) {
        let found = self.pair.link(rail).and_then(|link| link.find(id));
        // Without connected queues, the owner of memory says what has become of it.
        let Some(what) = found.filter(|_| D::IS_CONNECTED) else {
            return;
        };
        let of_transfer = match *what {
            What::Piece { transfer, .. } => Some(transfer),
            What::Word { token, bytes } => {
                *what = What::Nothing;
                shared
                    .ends
                    .complete(self.rank, token, Outcome::BadKey, bytes, 0);
                None
            }
            What::Get(number) => {
                if let Some(link) = self.pair.link(rail) {
                    link.end_post(id);
                }
                self.end_short_get(number, Outcome::BadKey, shared);
                None
            }
            What::Record(_) | What::Nothing => None,
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
        let (granted, again) = self.outbox.rewind(received);
        shared.counts.positions_again += again;
        for transfer in granted {
            self.incoming.note_told(transfer);
        }
        for _ in u64::from(had.untold)..count {
            self.pop_position(shared);
        }
        self.credits.handle_all_told(had.matched);
        Ok(())
    }
}
