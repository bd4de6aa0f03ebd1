//! [`Shared`]: what the peers of one rank share.

use super::device::Device;
use super::rail::{Rail, Registered};
use super::record::SENDERS_MAX;
use super::sizes::Sizes;
use crate::config::VerbsSettings;
use crate::error::Result;
use crate::memory::Region;
use crate::time::Time;
use crate::transport::posts::Ends;
use crate::transport::registry::Registry;
use crate::types::Rank;
use std::sync::Arc;

/// What the peers of one rank share.
#[derive(Debug)]
pub struct Shared<D: Device> {
    pub rank: Rank,
    pub settings: VerbsSettings,
    pub sizes: Sizes,
    pub rails: Vec<Rail<D>>,
    pub regions: Registry<Arc<Registered<D>>>,
    pub ends: Ends,
    /// Peers with something to post.
    pub dirty: Vec<Rank>,
    /// Memory for short gets whose own is not registered.
    pub bounces: Vec<Arc<Registered<D>>>,
    /// The peers, by the numbers that this rank knows them by.
    pub numbers: Numbers,
    pub now: Time,
    pub counts: Counts,
    /// Pieces until the queue is broken on purpose.
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
    /// Queues that failed, and sets of them that were replaced.
    pub faults: u64,
    pub generations: u64,
    /// Receives whose memory was registered for them alone.
    pub receives_registered: u64,
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
            (
                "receives registered for themselves",
                self.receives_registered,
            ),
            ("doorbells", self.doorbells),
        ]
    }
}

impl<D: Device> Shared<D> {
    /// A page that was given back, or a new one.
    pub fn bounce(&mut self) -> Result<Arc<Registered<D>>> {
        if let Some(spare) = self.bounces.pop() {
            return Ok(spare);
        }
        page(&self.rails)
    }
}

/// Memory of a page that these rails know.
pub fn page<D: Device>(rails: &[Rail<D>]) -> Result<Arc<Registered<D>>> {
    let region = Arc::new(Region::private(crate::limits::INLINE_BYTES_MAX)?);
    Registered::region(region, rails, false).map(Arc::new)
}

/// Numbers of peers, which they write beside their positions. One that was given back is not given
/// again soon: something that was written with it may still come.
#[derive(Debug, Default)]
pub struct Numbers {
    ranks: Vec<Option<Rank>>,
    next: usize,
}

impl Numbers {
    /// A number for this peer; none: there are as many peers as numbers.
    pub fn take(&mut self, rank: Rank) -> Option<u32> {
        let all = SENDERS_MAX as usize;
        self.ranks.resize(all, None);
        let mut places = (self.next..all).chain(0..self.next);
        let at = places.find(|&at| self.ranks[at].is_none())?;
        self.next = (at + 1) % all;
        self.ranks[at] = Some(rank);
        Some(at as u32)
    }

    /// Whose number this is.
    #[inline]
    pub fn rank(&self, number: u32) -> Option<Rank> {
        self.ranks.get(number as usize).copied().flatten()
    }

    /// Nobody has this number any more.
    pub fn give_back(&mut self, number: u32) {
        self.ranks[number as usize] = None;
    }
}
