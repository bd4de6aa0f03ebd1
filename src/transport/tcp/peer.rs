//! [`Peer`]: what one rank knows of another.
//!
//! How a message matches is in `messages.rs`, what leaves in `sending.rs`, what comes in
//! `receiving.rs`, rails that are lost in `losses.rs`.

use super::rail::{LostRail, Piece, Rail};
use super::reach::Reach;
use super::shared::Shared;
use super::stream::Stream;
use crate::memory::{Region, View};
use crate::transport::TAG_CLASSES;
use crate::transport::matching::Matching;
use crate::transport::posts::PeerState;
use crate::types::Rank;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// What ends a rail or a peer.
#[derive(Debug)]
pub enum Loss {
    /// One connection is lost.
    Rail(String),
    /// The peer breaks the rules, or says that it leaves.
    Peer(String),
}

/// What becomes of a long message that comes.
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    /// No receive yet.
    Unmatched,
    /// Into this memory; the token and the sender's header.
    Into(View, u64, u64),
    /// Nobody wants it (any more).
    Dropped,
}

/// A long message that comes.
#[derive(Debug)]
pub struct Incoming {
    pub total: u64,
    /// Chunks on other rails may come before the announcement.
    pub is_announced: bool,
    pub is_eager: bool,
    pub fate: Fate,
    pub arrived: u64,
    /// What came before there was a place for it.
    pub staged: Vec<(u64, Vec<u8>)>,
}

/// What a long transfer is, for the header of its chunks.
#[derive(Clone, Copy, Debug)]
pub enum OutgoingKind {
    Message,
    Put { key: u32, base: u64 },
    GetReply { id: u64 },
}

/// A long transfer that leaves.
#[derive(Debug)]
pub struct Outgoing {
    pub kind: OutgoingKind,
    pub view: View,
    /// `None`: nobody waits for its end.
    pub token: Option<u64>,
    /// Where the next piece begins.
    pub next: u64,
    pub acked: u64,
    pub is_bad: bool,
    /// Kept for the answer to a get, whose memory may be deregistered meanwhile.
    pub region: Option<Arc<Region>>,
}

/// A short put that the peer has not acknowledged.
#[derive(Clone, Copy, Debug)]
pub struct ShortPut {
    pub position: u64,
    pub end: u64,
    pub token: u64,
    pub bytes: u64,
    pub is_bad: bool,
}

/// One peer.
#[derive(Debug)]
pub struct Peer {
    pub rank: Rank,
    pub state: PeerState,
    pub reach: Reach,
    pub rails: Vec<Rail>,
    /// The rail that the stream goes over.
    pub lead: Option<u64>,
    pub stream: Stream,
    /// How much of the peer's stream has come, and was told.
    pub expected: u64,
    pub expected_told: u64,
    /// Something has come whose sender waits to hear that; or has come at all.
    pub owes_soon: bool,
    pub owes_later: bool,
    /// Rails that are used no more: chunks that had come, until the peer asks; and those of which
    /// this rank asks.
    pub retired: Vec<(u64, u64)>,
    pub lost: Vec<LostRail>,
    /// Rails of which the peer has asked that since the last look.
    pub asked: Vec<u64>,
    /// It has said goodbye with this word, and is read no more. That is told at the next slow look:
    /// operations for which it had done its part end well until then.
    pub left: Option<u64>,
    /// Of long messages, which transfer.
    pub matching: Matching<u64>,
    /// Messages sent, and of those matched as far as is known, modulo 2^16.
    pub sent: [u16; TAG_CLASSES],
    pub matched_seen: [u16; TAG_CLASSES],
    /// Messages of the peer matched here, and told.
    pub matched: [u16; TAG_CLASSES],
    pub matched_told: [u16; TAG_CLASSES],
    /// The same for bytes of long messages that come without being asked for.
    pub eager_sent: u64,
    pub eager_seen: u64,
    pub eager_matched: u64,
    pub eager_told: u64,
    pub staged_bytes: u64,
    pub incoming: BTreeMap<u64, Incoming>,
    pub outgoing: BTreeMap<u64, Outgoing>,
    pub next_transfer: u64,
    /// Transfers below this one that are not known were taken back.
    pub withdrawn_below: u64,
    /// Transfers with pieces to send, and pieces to send again.
    pub waiting: VecDeque<u64>,
    pub again: VecDeque<Piece>,
    pub short_puts: VecDeque<ShortPut>,
    pub gets: BTreeMap<u64, (View, u64, u64)>,
    pub next_get: u64,
    /// Where the stream ended at the last wake-up.
    pub notified: u64,
    /// Its bytes wait until the rank's pace lets them go.
    pub is_paced: bool,
}

impl Peer {
    pub fn new(rank: Rank) -> Peer {
        Peer {
            rank,
            state: PeerState::Idle,
            reach: Reach::default(),
            rails: Vec::new(),
            lead: None,
            stream: Stream::default(),
            expected: 0,
            expected_told: 0,
            owes_soon: false,
            owes_later: false,
            retired: Vec::new(),
            lost: Vec::new(),
            asked: Vec::new(),
            left: None,
            matching: Matching::new(),
            sent: [0; TAG_CLASSES],
            matched_seen: [0; TAG_CLASSES],
            matched: [0; TAG_CLASSES],
            matched_told: [0; TAG_CLASSES],
            eager_sent: 0,
            eager_seen: 0,
            eager_matched: 0,
            eager_told: 0,
            staged_bytes: 0,
            incoming: BTreeMap::new(),
            outgoing: BTreeMap::new(),
            next_transfer: 1,
            withdrawn_below: 0,
            waiting: VecDeque::new(),
            again: VecDeque::new(),
            short_puts: VecDeque::new(),
            gets: BTreeMap::new(),
            next_get: 1,
            notified: 0,
            is_paced: false,
        }
    }

    /// Whether nothing is said to it any more: it has failed, or has left.
    pub fn is_over(&self) -> bool {
        self.state != PeerState::Open || self.left.is_some()
    }

    /// Whether there is something that waits for a rail.
    pub fn has_output(&self) -> bool {
        !self.stream.is_sent()
            || !self.waiting.is_empty()
            || !self.again.is_empty()
            || self
                .rails
                .iter()
                .any(|r| r.chunk.is_some() || r.holds_sealed())
    }

    /// Ends everything outstanding as flushed; what had come whole can be received later.
    pub fn flush(&mut self, shared: &mut Shared) {
        self.state = PeerState::Gone;
        if let Some(pace) = &mut shared.pace {
            pace.forget(&mut self.is_paced);
        }
        let is_whole =
            |incoming: &Incoming| incoming.is_announced && incoming.arrived == incoming.total;
        let mut tokens: Vec<u64> = self.short_puts.drain(..).map(|p| p.token).collect();
        let outgoing = std::mem::take(&mut self.outgoing).into_values();
        tokens.extend(outgoing.filter_map(|o| o.token));
        let gets = std::mem::take(&mut self.gets).into_values();
        tokens.extend(gets.map(|(_, token, _)| token));
        self.incoming.retain(|_, incoming| match incoming.fate {
            Fate::Unmatched => is_whole(incoming),
            Fate::Into(_, token, _) => {
                tokens.push(token);
                false
            }
            Fate::Dropped => false,
        });
        let incoming = &self.incoming;
        tokens.extend(
            self.matching
                .flush(|transfer| incoming.contains_key(transfer)),
        );
        self.waiting.clear();
        self.again.clear();
        self.lost.clear();
        self.asked.clear();
        self.retired.clear();
        self.stream = Stream::default();
        shared.ends.flush(self.rank, tokens);
    }
}
