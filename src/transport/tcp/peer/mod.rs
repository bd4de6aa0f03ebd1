//! [`Peer`]: what one rank knows of another, made of parts that each keep one thing.
//!
//! What leaves is in `sending.rs`, what comes in `receiving.rs`, how a message matches in
//! `messages.rs`, rails that are lost in `losses.rs`, memory that is taken back in `withdrawal.rs`.

mod losses;
mod messages;
mod receiving;
mod sending;
mod withdrawal;

use super::address::PeerAddress;
use super::incoming::IncomingMessages;
use super::rail::Rail;
use super::rails::Rails;
use super::reach::Reach;
use super::shared::Shared;
use super::short_puts::ShortPuts;
use super::stream::{Received, Stream};
use super::transfers::Transfers;
use crate::transport::Traffic;
use crate::transport::credits::{Credits, Ledger};
use crate::transport::matching::Matching;
use crate::transport::posts::PeerState;
use crate::transport::requests::Requests;
use crate::types::Rank;
use std::os::fd::OwnedFd;

/// What ends a rail or a peer.
#[derive(Debug)]
enum Loss {
    /// One connection is lost.
    Rail(String),
    /// The peer breaks the rules, or what it sent was changed on its way.
    Peer(String),
}

impl From<String> for Loss {
    fn from(reason: String) -> Loss {
        Loss::Peer(reason)
    }
}

/// One peer. What every poll and message touches comes first, together.
#[derive(Debug)]
#[repr(C)]
pub struct Peer {
    rank: Rank,
    state: PeerState,
    /// It has said goodbye with this word, and is read no more. The event follows with the next
    /// slow look, so that operations for which the peer has done its part can end well.
    left: Option<u64>,
    rails: Rails,
    stream: Stream,
    received: Received,
    credits: Credits,
    /// Long messages are named by their transfers.
    matching: Matching<u64>,
    transfers: Transfers,
    short_puts: ShortPuts,
    /// Gets and atomic operations.
    gets: Requests,
    /// Bytes of long messages that leave before anybody asks for them.
    eager: Ledger,
    incoming: IncomingMessages,
    /// Where the stream ended at the last wake-up.
    notified: u64,
    reach: Reach,
}

impl Peer {
    /// A peer in an epoch of its slot; 0: none yet.
    pub fn new(rank: Rank, epoch: u32) -> Peer {
        Peer {
            rank,
            state: PeerState::Idle,
            left: None,
            rails: Rails::default(),
            stream: Stream::default(),
            received: Received::default(),
            credits: Credits::default(),
            matching: Matching::new(),
            transfers: Transfers::new(),
            short_puts: ShortPuts::default(),
            gets: Requests::default(),
            eager: Ledger::default(),
            incoming: IncomingMessages::default(),
            notified: 0,
            reach: Reach::of_epoch(epoch),
        }
    }

    /// It can be reached at this address, and takes posts.
    pub fn open(&mut self, address: PeerAddress) {
        self.reach.set_address(address);
        self.state = PeerState::Open;
    }

    #[inline]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    #[inline]
    pub fn state(&self) -> PeerState {
        self.state
    }

    /// The word with which it has left in good order, if it has.
    #[inline]
    pub fn left(&self) -> Option<u64> {
        self.left
    }

    /// How it is reached.
    pub fn reach(&self) -> &Reach {
        &self.reach
    }

    /// How it is reached.
    pub fn reach_mut(&mut self) -> &mut Reach {
        &mut self.reach
    }

    /// The connections to it.
    #[inline]
    pub fn rails(&self) -> &Rails {
        &self.rails
    }

    /// The connections to it.
    pub fn rails_mut(&mut self) -> &mut Rails {
        &mut self.rails
    }

    /// Whether nothing is said to it any more: it has failed, or has left.
    pub fn is_over(&self) -> bool {
        self.state != PeerState::Open || self.left.is_some()
    }

    /// Whether there is something that waits for a rail.
    #[inline]
    pub fn has_output(&self) -> bool {
        !self.stream.is_sent()
            || self.transfers.has_output()
            || self
                .rails
                .iter()
                .any(|r| r.chunk.is_some() || r.holds_sealed())
    }

    /// What is under way between this rank and it.
    pub fn traffic(&self) -> Traffic {
        let mut rails = self.rails.iter();
        let is_moving = self.has_output()
            || self.incoming.are_coming()
            || !self.gets.is_empty()
            || rails.any(|rail| rail.body.is_some() || !rail.unacked.is_empty());
        match (is_moving, self.has_transfers()) {
            (true, _) => Traffic::Moving,
            (false, true) => Traffic::Held,
            (false, false) => Traffic::Idle,
        }
    }

    /// Whether it has bytes of this rank to get that lie in this rank's memory.
    pub fn has_transfers(&self) -> bool {
        !self.transfers.is_empty()
    }

    /// Whether everything that is said to it was handed to the kernel.
    pub fn is_told(&self) -> bool {
        self.stream.is_sent()
    }

    /// Whether it is to be connected although it takes and sends nothing now: for posts that wait,
    /// or so that lost rails are settled.
    pub fn is_to_be_connected(&self) -> bool {
        self.rails.is_unsettled() || self.reach.is_to_be_opened() || self.reach.is_asked_for()
    }

    /// It has a connection from now on; true where this was awaited.
    pub fn adopt(&mut self, rail: Rail) -> bool {
        let was_awaited = self.reach.note_connected(rail.is_outgoing);
        self.rails.add(rail);
        was_awaited
    }

    /// Ends its connections as its failure does, and everything outstanding as flushed; what had
    /// come whole can be received later.
    pub fn end(&mut self, shared: &mut Shared) {
        drop(self.rails.take_all());
        self.flush(shared);
    }

    /// Takes out the sockets of its connections.
    pub fn take_sockets(&mut self) -> impl Iterator<Item = OwnedFd> + use<> {
        self.rails.take_all().into_iter().map(|rail| rail.socket)
    }

    /// Ends everything outstanding as flushed; what had come whole can be received later.
    pub fn flush(&mut self, shared: &mut Shared) {
        self.state = PeerState::Gone;
        if let Some(pace) = &mut shared.pace {
            pace.forget(self.rank);
        }
        let mut tokens: Vec<u64> = self.short_puts.flush().collect();
        tokens.extend(self.transfers.flush());
        tokens.extend(self.gets.flush());
        tokens.extend(self.incoming.flush());
        let incoming = &self.incoming;
        let is_here = |transfer: &u64| incoming.is_known(*transfer);
        tokens.extend(self.matching.flush(is_here));
        self.rails.forget_lost();
        self.stream = Stream::default();
        shared.ends.flush(self.rank, tokens);
    }

    /// Nothing of the connection is reported, nor is a new one made.
    pub fn forget(&mut self) {
        self.state = PeerState::Gone;
        self.matching.clear();
        self.incoming.clear();
    }
}
