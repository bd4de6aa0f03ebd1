//! What one rank knows of one peer.

use super::fetch::{Place, Readable};
use super::ring::{Consumer, Producer};
use super::segment::Segment;
use super::socket::SocketMessage;
use crate::memory::{Region, RegionKey, View};
use crate::transport::TAG_CLASSES;
use crate::transport::matching::Matching;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;

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

/// How a connection ends that this rank does not end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The peer has left in good order, with this word.
    Left(u64),
    /// It has failed, for this reason.
    Failed(String),
}

impl From<String> for Ending {
    fn from(reason: String) -> Ending {
        Ending::Failed(reason)
    }
}

/// Where the bytes of a message are that did not come through the ring.
#[derive(Debug)]
pub enum Far {
    /// In the sender's region; `id` is the lower half of its number among the sender's messages to
    /// this rank.
    InRegion {
        key: RegionKey,
        offset: u64,
        bytes: u64,
        id: u32,
    },
    /// In memory of the sender that is not registered.
    Unregistered(Place),
}

/// A send whose bytes the peer has not fetched yet.
#[derive(Clone, Copy, Debug)]
pub struct Outstanding {
    pub id: u32,
    /// `None`: it was withdrawn, and has completed.
    pub token: Option<u64>,
    pub bytes: u64,
}

/// One peer. What messages touch comes first, together.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Peer {
    pub consumer: Option<Consumer>,
    /// Messages of the peer that were matched here.
    pub matched: [u64; TAG_CLASSES],
    pub matching: Matching<Far>,
    pub state: PeerState,
    pub producer: Option<Producer>,
    /// Messages sent, and of those matched at the last look, per class of tags.
    pub sent: [u64; TAG_CLASSES],
    pub matched_seen: [u64; TAG_CLASSES],
    pub segment: Option<Segment>,
    pub outstanding: Vec<Outstanding>,
    /// Of the next message that lies in this rank's memory, from 1 on. The peer hears its lower
    /// half.
    pub next_id: u64,
    pub socket: Option<OwnedFd>,
    /// Ends when its process does. The socket does not show that while a forked child of it holds a
    /// copy.
    pub process: Option<OwnedFd>,
    /// The number of its process, until it is known whether it can be read.
    pub process_id: Option<i32>,
    /// Its memory can be read here.
    pub readable: Option<Readable>,
    /// It can read the memory of this process.
    pub reads_us: bool,
    /// Its regions, mapped here at first use.
    pub regions: BTreeMap<RegionKey, Region>,
    /// Those that are used until the end of the connection.
    pinned: Vec<RegionKey>,
    /// Regions that it has freed since views of freed ones were last let go, and those before:
    /// still mapped, because operations may have views of them.
    freed: [Vec<Region>; 2],
    /// Control-socket messages of it that were looked for.
    pub announced_seen: u64,
    /// How it ended, where that was heard while its ring was being read.
    pub ending: Option<Ending>,
    /// It has been told that this rank leaves.
    pub is_told: bool,
    /// Control messages that the socket had no room for.
    pub outbox: VecDeque<SocketMessage>,
}

impl Peer {
    pub fn new() -> Peer {
        Peer {
            state: PeerState::Idle,
            socket: None,
            segment: None,
            producer: None,
            consumer: None,
            process: None,
            process_id: None,
            readable: None,
            reads_us: false,
            regions: BTreeMap::new(),
            pinned: Vec::new(),
            freed: [Vec::new(), Vec::new()],
            announced_seen: 0,
            ending: None,
            is_told: false,
            outbox: VecDeque::new(),
            sent: [0; TAG_CLASSES],
            matched_seen: [0; TAG_CLASSES],
            matched: [0; TAG_CLASSES],
            matching: Matching::new(),
            outstanding: Vec::new(),
            next_id: 1,
        }
    }

    /// Whether it has messages to read in memory of this rank, which takes them along when it ends.
    pub fn has_fetches(&self) -> bool {
        let may_be_read = |o: &Outstanding| o.token.is_some();
        self.state == PeerState::Connected && self.outstanding.iter().any(may_be_read)
    }

    /// A region of the peer, if it has been made known.
    pub fn region(&self, key: RegionKey) -> Option<View> {
        self.regions.get(&key).map(|r| r.view().in_region(key, 0))
    }

    /// A region is used until the end of the connection.
    pub fn pin(&mut self, key: RegionKey) {
        if !self.pinned.contains(&key) {
            self.pinned.push(key);
        }
    }

    /// The peer has freed a region: nobody gets a view of it any more.
    pub fn free(&mut self, key: RegionKey) -> Result<(), String> {
        if self.pinned.contains(&key) {
            return Err(format!(
                "it freed region {}, which holds its control memory",
                key.0
            ));
        }
        self.freed[0].extend(self.regions.remove(&key));
        Ok(())
    }

    /// Unmaps what had been freed before the last call.
    pub fn release_freed(&mut self) {
        self.freed[1].clear();
        self.freed.swap(0, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel;

    #[test]
    fn freed_memory_stays_mapped_for_the_operations_that_had_views_of_it() {
        let mut peer = Peer::new();
        let region = Region::private(4096).unwrap();
        let view = region.view();
        peer.regions.insert(RegionKey(3), region);
        peer.free(RegionKey(3)).unwrap();
        assert!(peer.region(RegionKey(3)).is_none());
        peer.release_freed();
        kernel::store(view, 0, 7u64);
        assert_eq!(kernel::load::<u64>(view, 0), 7);
        assert_eq!([peer.freed[0].len(), peer.freed[1].len()], [0, 1]);
        peer.release_freed();
        assert_eq!([peer.freed[0].len(), peer.freed[1].len()], [0, 0]);
    }

    #[test]
    fn control_memory_cannot_be_freed() {
        let mut peer = Peer::new();
        let region = Region::private(4096).unwrap();
        let view = region.view();
        peer.regions.insert(RegionKey(1), region);
        peer.pin(RegionKey(1));
        let text = peer.free(RegionKey(1)).unwrap_err();
        assert!(text.contains("region 1"), "{text}");
        peer.release_freed();
        peer.release_freed();
        kernel::store(view, 0, 7u64);
        assert!(peer.region(RegionKey(1)).is_some());
    }
}
