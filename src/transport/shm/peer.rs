//! [`Peer`]: what one rank knows of one peer, made of parts that each keep one thing.

use super::control::{Control, PeerProcess};
use super::fetch::Place;
use super::outbound::Outbound;
use super::regions::PeerRegions;
use super::ring::Consumer;
use super::segment::Segment;
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
        }
    }

    /// Whether it has messages to read in memory of this rank, which it cannot read after this rank
    /// ends.
    pub fn has_fetches(&self) -> bool {
        self.state == PeerState::Connected && self.outbound.has_unread()
    }

    /// Whether it is not connected yet.
    pub fn is_connecting(&self) -> bool {
        matches!(self.state, PeerState::Idle | PeerState::Connecting(_))
    }

    /// Wakes it, if it sleeps.
    #[inline]
    pub fn wake(&self) {
        if let Some(segment) = &self.segment {
            segment.wake();
        }
    }
}
