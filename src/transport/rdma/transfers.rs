//! [`Transfers`]: long messages, puts and gets that this rank moves.

use super::device::Device;
use super::rail::Registered;
use super::record::VALUE_MASK;
use super::regions::Target;
use crate::memory::{RegionKey, View};
use crate::transport::pieces::Pieces;
use crate::transport::{Atomic, transfers};
use std::sync::Arc;

/// What a long transfer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Message,
    Put,
    Get,
}

/// A long transfer that this rank moves.
#[derive(Debug)]
pub struct Transfer<D: Device> {
    pub kind: Kind,
    /// A get that changes the word that it reads.
    pub atomic: Option<Atomic>,
    pub token: u64,
    pub total: u64,
    /// The own memory, and where the bytes begin in it.
    pub memory: Arc<Registered<D>>,
    pub offset: u64,
    /// The place in the peer's memory, once the message is granted or the region is known.
    pub target: Option<Target>,
    /// The peer's region and the offset in it, of puts and gets.
    pub range: (RegionKey, u64),
    pub pieces: Pieces,
    /// Pieces under way, by rail.
    pub under_way: Vec<u32>,
    /// By rail: pieces were written there that are not known to be visible to the peer.
    pub unseen: Vec<bool>,
    /// The end has a position in the ring.
    pub has_end: bool,
    /// Where a get's bytes are copied at its end, if its memory is not registered.
    pub bounce: Option<View>,
    /// How often the peer's device has refused it.
    pub refusals: u32,
}

impl<D: Device> Transfer<D> {
    /// One that has not moved, from or to `memory` from `offset` on.
    pub fn new(
        kind: Kind,
        (memory, offset): (Arc<Registered<D>>, u64),
        total: u64,
        range: (RegionKey, u64),
        token: u64,
    ) -> Transfer<D> {
        Transfer {
            kind,
            atomic: None,
            token,
            total,
            under_way: vec![0; memory.rails_count()],
            unseen: vec![false; memory.rails_count()],
            memory,
            offset,
            target: None,
            range,
            pieces: Pieces::all(total),
            has_end: false,
            bounce: None,
            refusals: 0,
        }
    }

    /// Whether it is a message that the peer has not granted a place yet.
    pub fn is_offered(&self) -> bool {
        self.kind == Kind::Message && self.target.is_none()
    }

    /// Whether pieces are under way on any rail.
    pub fn is_under_way(&self) -> bool {
        self.under_way.iter().any(|&count| count > 0)
    }

    /// Whether it only waits for pieces that are under way, and goes on when they have arrived.
    pub fn waits(&self) -> bool {
        self.pieces.is_empty() && (self.has_end || self.kind == Kind::Get || self.is_under_way())
    }
}

/// Long transfers under way to one peer; their numbers fit immediate data.
pub type Transfers<D> = transfers::Transfers<Transfer<D>>;

/// The transfers of a new peer.
pub fn none<D: Device>() -> Transfers<D> {
    Transfers::new(u64::from(VALUE_MASK))
}

impl<D: Device> Transfers<D> {
    /// The puts and gets that wait to be told where this region of the peer is.
    pub fn waiting_for(&self, key: RegionKey) -> Vec<u64> {
        self.ids(|t| t.kind != Kind::Message && t.target.is_none() && t.range.0 == key)
    }

    /// Whether the device may be reading memory of this rank for messages or puts.
    pub fn is_read(&self) -> bool {
        let mut written = self.iter().filter(|t| t.kind != Kind::Get);
        written.any(|t| t.has_end || t.is_under_way())
    }

    /// Lets a transfer go on, if its target is known.
    pub fn make_busy(&mut self, id: u64) {
        if self.get(id).is_some_and(|t| t.target.is_some()) {
            self.enqueue(id);
        }
    }

    /// Lets all transfers go on whose targets are known.
    pub fn make_all_busy(&mut self) {
        for id in self.ids(|t| t.target.is_some()) {
            self.enqueue(id);
        }
    }

    /// The queues are no more: nothing is under way, and nothing goes on.
    pub fn end_links(&mut self) {
        self.stop(|transfer| {
            transfer.under_way.fill(0);
            transfer.unseen.fill(false);
            if transfer.kind == Kind::Message {
                // The peer says anew where it goes, if it still wants it.
                transfer.target = None;
            }
        });
    }

    /// The end of a transfer did not come; false: it has ended well already.
    pub fn give_back_end(&mut self, id: u64, offset: u64, bytes: u64) -> bool {
        let Some(transfer) = self.get_mut(id) else {
            return false;
        };
        transfer.has_end = false;
        transfer.pieces.give_back(offset, bytes);
        true
    }
}
