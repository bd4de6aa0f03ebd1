//! [`Peer`]: what one rank knows of another, and [`Shared`]: what all of them use.
//!
//! How messages match is in `messages.rs`, what leaves in `sending.rs`, what comes in
//! `receiving.rs`, how queue pairs begin and end in `joining.rs`.

use super::device::{Rail, Registered, Sizes};
use super::generation::{Generation, Phase};
use super::gets::Get;
use super::greeting::Proposal;
use super::link::{Link, Then};
use super::pieces::Pieces;
use super::record::{RailKeys, Record, SLOT_BYTES};
use super::ring::{ReceiveRing, SendRing};
use crate::config::VerbsSettings;
use crate::error::Result;
use crate::memory::{Region, RegionKey, View};
use crate::time::Time;
use crate::transport::credits::Credits;
use crate::transport::matching::Matching;
use crate::transport::posts::{Ends, PeerState, part_of};
use crate::transport::{Atomic, Outcome};
use crate::types::Rank;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// A long message that is with its sender, who waits to be told where to write it.
#[derive(Clone, Copy, Debug)]
pub struct Offered {
    pub transfer: u32,
    pub total: u64,
}

/// A long message that is being written here.
#[derive(Debug)]
pub struct Incoming {
    pub total: u64,
    pub header: u64,
    pub token: u64,
    /// Where; `None`: nobody wants it any more, and its sender is still to hear that.
    pub place: Option<Arc<Registered>>,
    /// Of the first byte in it.
    pub offset: u64,
}

/// What a long transfer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Message,
    Put,
    Get,
}

/// A place in the peer's memory, by the keys of all rails.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub address: u64,
    pub keys: RailKeys,
}

/// A long transfer that this rank moves.
#[derive(Debug)]
pub struct Transfer {
    pub kind: Kind,
    /// A get that changes the word that it reads.
    pub atomic: Option<Atomic>,
    pub token: u64,
    pub total: u64,
    /// The own bytes, and where they begin in them.
    pub memory: Arc<Registered>,
    pub offset: u64,
    /// The peer's; a message has it once the peer wants it, others once the key is known.
    pub target: Option<Target>,
    /// The peer's region and the offset in it, of puts and gets.
    pub range: (RegionKey, u64),
    pub pieces: Pieces,
    /// Pieces under way, by rail.
    pub under_way: Vec<u32>,
    /// The end has a position in the ring.
    pub has_end: bool,
    /// It is in the queue of those that can go on.
    pub is_busy: bool,
    /// Where a get's bytes are copied at its end, if its memory is not registered.
    pub bounce: Option<View>,
    /// How often the peer's device has refused it.
    pub refusals: u32,
}

/// What the sender knows of a position of its ring.
#[derive(Clone, Copy, Debug)]
pub enum Entry {
    /// A record of this many bytes in the slot.
    Record {
        bytes: u32,
        /// A place that may end before the peer reads of it.
        is_grant: bool,
        /// A put that is complete when the peer has copied it: token and length.
        put: Option<(u64, u64)>,
    },
    /// A put of this many bytes, which are in the slot; the token until it has arrived.
    Put {
        bytes: u32,
        target: Target,
        token: Option<u64>,
    },
    /// The last bytes of a transfer, or none.
    End {
        transfer: u64,
        offset: u64,
        bytes: u64,
    },
    /// What was here is not needed any more.
    Nothing,
}

/// A record that waits for a position.
#[derive(Debug)]
pub struct Waiting {
    pub record: Record,
    pub payload: Vec<u8>,
    pub put: Option<(u64, u64)>,
}

/// A peer's region.
#[derive(Clone, Copy, Debug)]
pub struct RemoteRegion {
    pub target: Target,
    pub bytes: u64,
}

/// Something that has gone wrong with a queue pair.
#[derive(Debug)]
pub struct Fault {
    /// The rail that is to blame, if one is.
    pub rail: Option<usize>,
    pub cause: String,
    /// It follows from something that was not seen yet, or from what this rank did.
    pub is_consequence: bool,
}

impl Fault {
    pub fn of_rail(rail: usize, cause: &str) -> Fault {
        Fault {
            rail: Some(rail),
            cause: cause.into(),
            is_consequence: false,
        }
    }
}

/// One peer.
#[derive(Debug)]
pub struct Peer {
    pub rank: Rank,
    pub state: PeerState,
    /// It may call over the control transport, and has no rings before it does.
    pub is_expected: bool,
    /// It has been told to the caller that posts are taken.
    pub is_told: bool,
    pub generation: Generation,
    /// The peer's last word about its queue pairs, until they are joined.
    pub proposal: Option<Proposal>,
    /// By rail.
    pub links: Vec<Option<Link>>,
    /// Rails that can be used again and have no link; looked at when the pair is up.
    pub returned: Vec<usize>,
    /// The rail that the ring uses.
    pub lead: usize,
    /// What has gone wrong since the last look.
    pub fault: Option<Fault>,
    /// It breaks the rules.
    pub offence: Option<String>,
    /// The ring that the peer writes into, and where the records for its ring are made.
    pub ring: Option<Arc<Registered>>,
    pub staging: Option<Arc<Registered>>,
    /// The peer's ring.
    pub target: Option<Target>,
    pub send: SendRing<Entry>,
    pub receive: ReceiveRing,
    /// Positions of puts that named no region, to be told before anything else.
    pub bad_puts: Vec<u32>,
    /// Somebody waits to hear that a position was consumed.
    pub is_awaited: bool,
    /// The same, but it need not hear before the next slow look.
    pub is_awaited_slowly: bool,
    /// What would have followed from positions that were under way when their queue pair ended.
    pub unsettled: Vec<(u64, Then)>,
    pub waiting: VecDeque<Waiting>,
    /// It is in the list of those with something to post.
    pub is_dirty: bool,
    pub matching: Matching<Offered>,
    pub credits: Credits,
    pub incoming: BTreeMap<u32, Incoming>,
    /// Short gets under way on the lead, in order.
    pub gets: VecDeque<Get>,
    pub transfers: BTreeMap<u64, Transfer>,
    pub next_transfer: u64,
    /// Transfers that can go on.
    pub busy: VecDeque<u64>,
    /// The peer's regions, as far as it has told; and the own ones that it was told.
    pub regions: BTreeMap<RegionKey, RemoteRegion>,
    pub exported: BTreeSet<RegionKey>,
    /// Atomic operations that the peer's processor does, by number: where what was there goes, and
    /// the token.
    pub changes: BTreeMap<u32, (View, u64)>,
    pub next_change: u32,
    /// Where the ring ended at the last wake-up.
    pub notified: u64,
}

/// What the peers of one rank share.
#[derive(Debug)]
pub struct Shared {
    pub rank: Rank,
    pub settings: VerbsSettings,
    pub sizes: Sizes,
    pub rails: Vec<Rail>,
    pub regions: BTreeMap<RegionKey, Arc<Registered>>,
    pub ends: Ends,
    /// Peers with something to post.
    pub dirty: Vec<Rank>,
    /// Memory for short gets whose own is not registered.
    pub bounces: Vec<Arc<Registered>>,
    pub now: Time,
    pub counts: Counts,
    /// Pieces until the queue pair is broken on purpose.
    pub until_break: Option<u64>,
}

/// What has happened so far: for tests and for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes of messages, puts and gets that this rank's processor has copied.
    pub copied_bytes: u64,
    /// Bytes that the devices have moved from or to their places.
    pub written_bytes: u64,
    pub pieces: u64,
    pub pieces_again: u64,
    /// Positions of rings posted once more.
    pub positions_again: u64,
    /// Queue pairs that failed, and sets of them that were replaced.
    pub faults: u64,
    pub generations: u64,
    /// Receives whose memory was registered for them alone.
    pub lent: u64,
    pub doorbells: u64,
}

impl Counts {
    pub fn named(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("copied bytes", self.copied_bytes),
            ("written bytes", self.written_bytes),
            ("pieces sent", self.pieces),
            ("pieces sent again", self.pieces_again),
            ("positions sent again", self.positions_again),
            ("queue pairs failed", self.faults),
            ("generations begun", self.generations),
            ("receives registered for themselves", self.lent),
            ("doorbells", self.doorbells),
        ]
    }
}

impl Shared {
    pub fn complete(&mut self, peer: Rank, token: u64, outcome: Outcome, bytes: u64, header: u64) {
        self.ends.complete(peer, token, outcome, bytes, header);
    }

    /// Part of a region of this rank, `None` if there is no such range.
    pub fn range(&self, key: RegionKey, offset: u64, bytes: u64) -> Option<View> {
        let view = self.regions.get(&key)?.view().in_region(key, 0);
        part_of(view, offset, bytes)
    }

    /// The peer has something to post.
    pub fn mark(&mut self, peer: &mut Peer) {
        if !std::mem::replace(&mut peer.is_dirty, true) {
            self.dirty.push(peer.rank);
        }
    }

    /// Memory of a page that all rails know.
    pub fn bounce(&mut self) -> Result<Arc<Registered>> {
        if let Some(spare) = self.bounces.pop() {
            return Ok(spare);
        }
        let region = Arc::new(Region::private(crate::limits::INLINE_BYTES_MAX)?);
        Registered::region(region, &self.rails, false).map(Arc::new)
    }
}

impl Peer {
    pub fn new(rank: Rank, slots: u32) -> Peer {
        Peer {
            rank,
            state: PeerState::Idle,
            is_expected: false,
            is_told: false,
            generation: Generation::new(),
            proposal: None,
            links: Vec::new(),
            returned: Vec::new(),
            lead: 0,
            fault: None,
            offence: None,
            ring: None,
            staging: None,
            target: None,
            send: SendRing::new(slots),
            receive: ReceiveRing::new(slots),
            bad_puts: Vec::new(),
            is_awaited: false,
            is_awaited_slowly: false,
            unsettled: Vec::new(),
            waiting: VecDeque::new(),
            is_dirty: false,
            matching: Matching::new(),
            credits: Credits::default(),
            incoming: BTreeMap::new(),
            gets: VecDeque::new(),
            transfers: BTreeMap::new(),
            next_transfer: 1,
            busy: VecDeque::new(),
            regions: BTreeMap::new(),
            exported: BTreeSet::new(),
            changes: BTreeMap::new(),
            next_change: 0,
            notified: 0,
        }
    }

    /// Makes the memory of both rings.
    pub fn make_rings(&mut self, shared: &Shared) -> Result<()> {
        for ring in [&mut self.ring, &mut self.staging] {
            let bytes = shared.settings.slots as usize * SLOT_BYTES;
            let region = Arc::new(Region::private(bytes)?);
            // A record is read when its arrival is told, which no device lets anything overtake.
            *ring = Some(Arc::new(Registered::region(region, &shared.rails, false)?));
        }
        Ok(())
    }

    /// Whether posts go out.
    #[inline]
    pub fn is_up(&self) -> bool {
        self.generation.phase == Phase::Up
    }

    /// The queue pair of the ring.
    #[inline]
    pub fn lead_link(&mut self) -> Option<&mut Link> {
        self.links.get_mut(self.lead)?.as_mut()
    }

    /// Whether everything that was posted has left and arrived.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
            && self.busy.is_empty()
            && self.send.is_posted()
            && self.links.iter().flatten().all(Link::is_idle)
    }

    /// The first cause counts, and any counts more than a consequence.
    pub fn note_fault(&mut self, fault: Fault) {
        let known = self.fault.as_ref();
        if known.is_none_or(|known| known.is_consequence && !fault.is_consequence) {
            self.fault = Some(fault);
        }
    }

    /// What follows where a position has arrived.
    pub fn follow(&mut self, position: u64, then: Then, shared: &mut Shared) {
        match then {
            Then::Nothing => {}
            Then::Complete { token, bytes } => {
                if let Some(Entry::Put { token, .. }) = self.send.entry(position) {
                    *token = None;
                }
                shared.complete(self.rank, token, Outcome::Done, bytes, 0);
            }
            Then::EndTransfer(id) => {
                if let Some(transfer) = self.transfers.remove(&id) {
                    shared.counts.written_bytes += transfer.total;
                    let (token, total) = (transfer.token, transfer.total);
                    shared.complete(self.rank, token, Outcome::Done, total, 0);
                }
            }
        }
    }

    /// Ends everything outstanding as flushed; what had come whole can be received later. No device
    /// of the peer writes here any more.
    pub fn flush(&mut self, shared: &mut Shared) {
        self.state = PeerState::Gone;
        let mut tokens = self.matching.flush(|_| false);
        while let Some((_, entry)) = self.send.pop() {
            match entry {
                Entry::Put { token, .. } => tokens.extend(token),
                Entry::Record { put, .. } => tokens.extend(put.map(|(token, _)| token)),
                Entry::End { .. } | Entry::Nothing => {}
            }
        }
        let waiting = self.waiting.drain(..);
        tokens.extend(waiting.filter_map(|w| w.put.map(|(token, _)| token)));
        let transfers = std::mem::take(&mut self.transfers);
        tokens.extend(transfers.into_values().map(|transfer| transfer.token));
        let incoming = std::mem::take(&mut self.incoming);
        let wanted = incoming.into_values().filter(|i| i.place.is_some());
        tokens.extend(wanted.map(|incoming| incoming.token));
        let changes = std::mem::take(&mut self.changes);
        tokens.extend(changes.into_values().map(|(_, token)| token));
        self.busy.clear();
        self.regions.clear();
        self.exported.clear();
        shared.ends.flush(self.rank, tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cause_is_kept_and_what_was_flushed_is_none() {
        let mut peer = Peer::new(1, 4);
        let flushed = |cause: &str| Fault {
            rail: None,
            cause: cause.into(),
            is_consequence: true,
        };
        let cause = |peer: &Peer| peer.fault.as_ref().map(|fault| fault.cause.clone());
        peer.note_fault(flushed("flushed"));
        assert_eq!(cause(&peer).as_deref(), Some("flushed"));
        peer.note_fault(Fault::of_rail(0, "retries exceeded"));
        peer.note_fault(Fault::of_rail(1, "port down"));
        peer.note_fault(flushed("flushed, too"));
        assert_eq!(cause(&peer).as_deref(), Some("retries exceeded"));
    }
}
