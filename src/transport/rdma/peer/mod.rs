//! [`Peer`]: what one rank knows of another, made of parts that each keep one thing.
//!
//! How messages match is in `messages.rs`, what leaves in `sending.rs` and `moving.rs`, what comes
//! in `receiving.rs`, atomic operations by processors in `asking.rs`; how queues begin and end in
//! `joining.rs` beside this folder.

mod asking;
mod messages;
mod moving;
mod receiving;
mod sending;

use super::device::Device;
use super::gets::Gets;
use super::greeting::{Goodbye, Had};
use super::inbox::Inbox;
use super::incoming::{IncomingMessages, IncomingPuts};
use super::link::{Link, What};
use super::outbox::{About, Outbox};
use super::pair::{Fault, Pair};
use super::rail::Registered;
use super::record::{Record, SENDERS_MAX, SLOT_BYTES, VALUE_MASK};
use super::regions::{Regions, Target};
use super::shared::Shared;
use super::transfers::{self, Transfer, Transfers};
use crate::error::{Error, Result};
use crate::memory::{Region, View};
use crate::transport::credits::Credits;
use crate::transport::matching::Matching;
use crate::transport::posts::PeerState;
use crate::transport::requests::Requests;
use crate::transport::{Event, Outcome, Traffic};
use crate::types::Rank;
use std::sync::Arc;

/// A long message that is with its sender, who waits to be told where to write it.
#[derive(Clone, Copy, Debug)]
struct Offered {
    transfer: u32,
    total: u64,
    pieces: u32,
}

/// One peer. What every message touches comes first, together.
#[derive(Debug)]
#[repr(C)]
pub struct Peer<D: Device> {
    rank: Rank,
    state: PeerState,
    /// It is in the list of those with something to post.
    is_dirty: bool,
    /// It may call over the control transport, and has no rings before it does.
    is_expected: bool,
    /// The control transport has a receive for its next greeting.
    is_listening: bool,
    /// The caller was told that posts are taken.
    is_told: bool,
    /// What it has said when it left in good order.
    goodbye: Option<Goodbye>,
    /// How often its slot was used (clause 23).
    epoch: u32,
    /// What this rank knows it by, beside its positions, in this generation and in the last one.
    numbers: [Option<u32>; 2],
    pair: Pair<D>,
    outbox: Outbox<D>,
    inbox: Inbox<D>,
    credits: Credits,
    matching: Matching<Offered>,
    /// Short gets under way on the lead.
    gets: Gets<D>,
    transfers: Transfers<D>,
    incoming: IncomingMessages<D>,
    puts: IncomingPuts,
    regions: Regions<D>,
    /// Atomic operations that the peer's processor does.
    changes: Requests,
}

impl<D: Device> Peer<D> {
    pub fn new(rank: Rank, slots: u32) -> Peer<D> {
        Peer {
            rank,
            state: PeerState::Idle,
            is_dirty: false,
            is_expected: false,
            is_listening: false,
            is_told: false,
            goodbye: None,
            epoch: 0,
            numbers: [None; 2],
            pair: Pair::new(),
            outbox: Outbox::new(slots),
            inbox: Inbox::new(slots),
            credits: Credits::default(),
            matching: Matching::new(),
            gets: Gets::new(),
            transfers: transfers::none(),
            incoming: IncomingMessages::new(),
            puts: IncomingPuts::default(),
            regions: Regions::new(),
            changes: Requests::default(),
        }
    }

    #[inline]
    pub fn state(&self) -> PeerState {
        self.state
    }

    #[inline]
    pub fn is_open(&self) -> bool {
        self.state == PeerState::Open
    }

    /// The slot is used again: nothing of the old connection is left, whose queues are gone.
    pub fn renew(&mut self, slots: u32) {
        let epoch = self.epoch.wrapping_add(1);
        *self = Peer {
            epoch,
            ..Peer::new(self.rank, slots)
        };
    }

    /// How often its slot was used.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// It takes posts.
    pub fn open(&mut self) {
        self.state = PeerState::Open;
    }

    /// What the peer writes by in the next generation: a number, and where queues are not connected
    /// the ring's keys.
    pub fn renew_names(&mut self, shared: &mut Shared<D>) -> Result<u32> {
        let number = shared.numbers.take(self.rank);
        let number = number.ok_or_else(|| Error::Exhausted {
            what: "connected peers".into(),
            limit: format!("{SENDERS_MAX} at once"),
            remedy: "use collectives whose ranks have fewer partners".into(),
        })?;
        let [before, last] = self.numbers;
        self.numbers = [Some(number), before];
        last.into_iter().for_each(|n| shared.numbers.give_back(n));
        if let Some(ring) = self.inbox.memory().filter(|_| !D::IS_CONNECTED)
            && let Some(anew) = ring.anew(&shared.rails, false)
        {
            self.inbox.set_memory(Arc::new(anew?));
        }
        Ok(number)
    }

    /// Makes the memory of both rings, unless that was done.
    pub fn make_rings(&mut self, shared: &mut Shared<D>) -> Result<()> {
        if self.inbox.has_memory() {
            return Ok(());
        }
        let make = || {
            let bytes = shared.sizes.ring as usize * SLOT_BYTES;
            let region = Arc::new(Region::private(bytes)?);
            // The order is strict: a record must be there when its arrival is told.
            Registered::region(region, &shared.rails, false).map(Arc::new)
        };
        let (inbox, staging) = (make()?, make()?);
        self.inbox.set_memory(inbox);
        self.outbox.set_staging(staging);
        Ok(())
    }

    /// Whether the control transport has taken the receive for its next greeting.
    pub fn note_listening(&mut self, is_listening: bool) {
        self.is_listening = is_listening;
    }

    /// Whether a greeting of it is listened for.
    pub fn is_listening(&self) -> bool {
        self.is_listening
    }

    /// It may call.
    pub fn expect(&mut self) {
        self.is_expected = true;
    }

    /// Whether it was expected; not any more.
    pub fn take_expected(&mut self) -> bool {
        std::mem::take(&mut self.is_expected)
    }

    /// The queues with it.
    #[inline]
    pub fn pair(&self) -> &Pair<D> {
        &self.pair
    }

    /// The queues with it.
    #[inline]
    pub fn pair_mut(&mut self) -> &mut Pair<D> {
        &mut self.pair
    }

    /// The ring that it writes into.
    pub fn inbox(&self) -> &Inbox<D> {
        &self.inbox
    }

    /// It has something to post, or to be looked at.
    #[inline]
    pub fn mark(&mut self, shared: &mut Shared<D>) {
        if !std::mem::replace(&mut self.is_dirty, true) {
            shared.dirty.push(self.rank);
        }
    }

    /// It was marked, and is looked at now.
    #[inline]
    pub fn unmark(&mut self) {
        self.is_dirty = false;
    }

    /// Something has gone wrong with its queues.
    pub fn note_fault(&mut self, fault: Fault, shared: &mut Shared<D>) {
        self.pair.note_fault(fault);
        self.mark(shared);
    }

    /// Whether everything that was posted has left and arrived.
    pub fn is_idle(&self) -> bool {
        self.outbox.is_clear()
            && self.transfers.queued_count() == 0
            && self.outbox.is_posted()
            && self.pair.links().all(Link::is_idle)
    }

    /// What is under way between this rank and it.
    pub fn traffic(&self) -> Traffic {
        let is_moving = !self.pair.links().all(Link::is_idle)
            || !self.gets.is_empty()
            || !self.changes.is_empty()
            || !self.incoming.is_empty()
            || !self.transfers.iter().all(Transfer::is_offered);
        match (is_moving, self.is_idle() && !self.has_transfers()) {
            (true, _) => Traffic::Moving,
            (false, false) => Traffic::Held,
            (false, true) => Traffic::Idle,
        }
    }

    /// Whether transfers with it, whose bytes lie in this rank's memory, have not ended.
    pub fn has_transfers(&self) -> bool {
        self.transfers.count() > 0
    }

    /// Whether it has said that it leaves in good order.
    pub fn is_leaving(&self) -> bool {
        self.goodbye.is_some()
    }

    /// Whether all has come that it had sent when it left: records, and the pieces of the messages
    /// that were granted.
    pub fn has_all(&self) -> bool {
        let goodbye = self.goodbye.as_ref();
        goodbye.is_none_or(|goodbye| {
            let has_records = self.inbox.received() >= goodbye.sent;
            goodbye.sent == 0 || (has_records && self.incoming.is_empty())
        })
    }

    /// Positions that were given away, if all are confirmed; otherwise 0.
    pub fn sent(&self) -> u64 {
        match self.is_idle() {
            true => self.outbox.sent(),
            false => 0,
        }
    }

    /// The peer leaves.
    pub fn handle_leaving(&mut self, goodbye: Goodbye) {
        self.goodbye = Some(goodbye);
    }

    /// What the peer had received when it left is known to have arrived. Its earlier counts have
    /// come.
    pub fn settle_goodbye(&mut self, shared: &mut Shared<D>) {
        let Some(goodbye) = self.goodbye else {
            return;
        };
        // Anything else is no news, or not true.
        let count = (self.outbox).newly_consumed(goodbye.received as u32 & VALUE_MASK);
        for _ in 0..count.unwrap_or(0) {
            self.pop_position(shared);
        }
    }

    /// Its queues are no more: what was under way on them goes on later, or has ended.
    pub fn handle_ended_links(&mut self, ended: Vec<What>, shared: &mut Shared<D>) {
        for what in ended {
            match what {
                What::Piece {
                    transfer,
                    offset,
                    bytes,
                } => {
                    shared.counts.pieces_again += 1;
                    match self.transfers.get_mut(transfer) {
                        Some(lost) if lost.atomic.is_some() => self.end_lost(transfer, shared),
                        Some(lost) => lost.pieces.give_back(offset, bytes),
                        None => {}
                    }
                }
                // Nobody knows whether it has come, and the word may have another value since.
                What::Word { token, bytes } => {
                    shared
                        .ends
                        .complete(self.rank, token, Outcome::Flushed, bytes, 0);
                }
                // Gets go on below, and records are posted again.
                What::Get(_) | What::Record(_) | What::Nothing => {}
            }
        }
        for id in self.transfers.ids(|transfer| transfer.has_come) {
            self.end_whole(id, shared);
        }
        for id in self.transfers.end_links() {
            self.ask(id, shared);
        }
        self.outbox.note_unread();
        self.outbox.drop_waiting_grants();
        self.inbox.forget_early();
        self.puts.begin_all_again();
        self.pair.take_fault();
        self.go_on_with_gets(shared);
    }

    /// What this rank says of what has come, in a proposal.
    pub fn tell_in_proposal(&mut self) -> Had {
        self.inbox.tell();
        let received = self.inbox.received();
        Had {
            received,
            untold: (received - self.inbox.consumed()) as u32,
            matched: self.credits.tell(),
        }
    }

    /// The peer's ring is here from now on, and the first rail with a queue leads to it; false:
    /// there is none.
    pub fn join(&mut self, target: Target, number: u32) -> bool {
        let has_lead = self.pair.choose_lead();
        if has_lead {
            self.outbox.set_target(target, number);
        }
        has_lead
    }

    /// Both sides can receive: everything goes on.
    pub fn go_up(&mut self, shared: &mut Shared<D>) {
        self.outbox.note_reached();
        for transfer in self.incoming.untold() {
            self.push_grant(transfer, shared);
        }
        for id in self.transfers.ids(Transfer::can_go_on) {
            self.transfers.make_busy(id);
        }
        if self.pair.generation().trouble.is_some() {
            // Something has to get through, so that the trouble ends.
            self.push(Record::Nothing, View::empty(), About::Nothing, shared);
        }
        self.mark(shared);
        self.tell_connected(shared);
    }

    /// Tells the caller, once, that posts are taken.
    pub fn tell_connected(&mut self, shared: &mut Shared<D>) {
        if !std::mem::replace(&mut self.is_told, true) {
            shared.ends.push(Event::Connected(self.rank));
        }
    }

    /// Ends everything outstanding as flushed; what had come whole can be received later. No device
    /// of the peer writes here any more.
    pub fn flush(&mut self, shared: &mut Shared<D>) {
        self.state = PeerState::Gone;
        let numbers = std::mem::take(&mut self.numbers).into_iter().flatten();
        numbers.for_each(|number| shared.numbers.give_back(number));
        // Registrations end before the memory is given back.
        self.inbox.end_memory();
        let mut tokens = self.matching.flush(|_| false);
        tokens.extend(self.outbox.flush());
        tokens.extend(self.transfers.flush().map(|transfer| transfer.token));
        tokens.extend(self.incoming.flush());
        tokens.extend(self.changes.flush());
        self.regions.clear();
        shared.ends.flush(self.rank, tokens);
    }

    /// Nothing of the connection is reported, nor is a new one made.
    pub fn forget(&mut self) {
        self.state = PeerState::Gone;
        self.matching.clear();
    }
}
