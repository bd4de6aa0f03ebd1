//! [`Peer`]: what one rank knows of one peer, made of parts that each keep one thing.

use super::control::{Control, Past, PeerProcess};
use super::fetch::Place;
use super::outbound::Outbound;
use super::regions::PeerRegions;
use super::ring::Consumer;
use super::segment::Segment;
use super::socket::identity_of;
use crate::memory::RegionKey;
use crate::transport::credits::Credits;
use crate::transport::matching::Matching;

/// Where the connection stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// Not asked for.
    Idle,
    /// Asked for; the peer's socket name.
    Connecting(Vec<u8>),
    /// Ready for posts.
    Connected,
    /// Failed or closed.
    Gone,
}

/// Where the bytes of a message are that did not come through the ring.
#[derive(Debug)]
pub enum Far {
    /// In the sender's region; `id` is the lower half of its number among the messages to this rank
    /// that lie in the sender's memory.
    InRegion {
        key: RegionKey,
        offset: u64,
        bytes: u64,
        id: u32,
    },
    /// In memory of the sender that is not registered.
    Unregistered(Place),
}

/// One peer. What messages touch comes first, together.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Peer {
    /// The ring that it writes into.
    pub consumer: Option<Consumer>,
    pub matching: Matching<Far>,
    pub credits: Credits,
    pub outbound: Outbound,
    pub state: PeerState,
    pub segment: Option<Segment>,
    pub regions: PeerRegions,
    pub process: PeerProcess,
    pub control: Control,
    /// The last connection, until its other side writes into this rank's memory no more.
    pub past: Option<Past>,
}

impl Peer {
    pub fn new() -> Peer {
        Peer {
            consumer: None,
            matching: Matching::new(),
            credits: Credits::default(),
            outbound: Outbound::new(),
            state: PeerState::Idle,
            segment: None,
            regions: PeerRegions::default(),
            process: PeerProcess::default(),
            control: Control::default(),
            past: None,
        }
    }

    /// Whether it has messages to read in memory of this rank, which it cannot read after this rank
    /// ends.
    pub fn has_fetches(&self) -> bool {
        self.state == PeerState::Connected && self.outbound.has_unread()
    }

    /// Whether it was asked for, and is not connected yet.
    pub fn is_connecting(&self) -> bool {
        matches!(self.state, PeerState::Connecting(_))
    }

    /// Whether it was asked for and has this identity, and no connection to it was begun.
    pub fn is_awaited(&self, identity: u64) -> bool {
        !self.control.is_open() && self.past.is_none() && self.has_identity(identity)
    }

    /// Whether it was asked for, and has this identity.
    pub fn has_identity(&self, identity: u64) -> bool {
        matches!(&self.state, PeerState::Connecting(name) if identity_of(name) == identity)
    }

    /// Wakes it, if it sleeps.
    #[inline]
    pub fn wake(&self) {
        if let Some(segment) = &self.segment {
            segment.wake();
        }
    }

    /// Looks whether the last connection is over on the other side too, if that matters now.
    pub fn look_at_past(&mut self, is_time: bool) {
        if (is_time || self.is_connecting()) && self.past.as_ref().is_some_and(Past::has_let_go) {
            self.past = None;
        }
    }
}
