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
    /// Into how many bytes it is cut.
    pub piece_bytes: u64,
    /// Pieces under way.
    pub under_way: u32,
    /// Pieces posted in this generation.
    pub posted: u32,
    /// The owner has all of a put. It ends when this rank's devices read nothing of it any more.
    pub has_come: bool,
    /// A fault came after the first piece: the peer is asked what to do.
    pub is_asking: bool,
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
            piece_bytes: total,
            under_way: 0,
            posted: 0,
            has_come: false,
            is_asking: false,
            memory,
            offset,
            target: None,
            range,
            pieces: Pieces::all(total),
            bounce: None,
            refusals: 0,
        }
    }

    /// Whether it is a message that the peer has not granted a place yet.
    pub fn is_offered(&self) -> bool {
        self.kind == Kind::Message && self.target.is_none()
    }

    /// In how many pieces it goes.
    pub fn pieces_count(&self) -> u32 {
        self.total.div_ceil(self.piece_bytes.max(1)) as u32
    }

    /// Whether it has pieces that can be posted.
    pub fn can_go_on(&self) -> bool {
        self.target.is_some() && !self.is_asking && !self.pieces.is_empty()
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
        written.any(|t| t.under_way > 0)
    }

    /// Lets a transfer go on, if it can.
    pub fn make_busy(&mut self, id: u64) {
        if self.get(id).is_some_and(Transfer::can_go_on) {
            self.enqueue(id);
        }
    }

    /// The queues are no more: nothing is under way. Messages and puts that had a place are moved
    /// from the start, if the peer says so. Returns those of which it was not asked yet.
    pub fn end_links(&mut self) -> Vec<u64> {
        self.stop(|transfer| (transfer.under_way, transfer.posted) = (0, 0));
        let has_place = |t: &Transfer<D>| t.kind != Kind::Get && t.target.is_some();
        let cut = self.ids(|transfer| has_place(transfer) && !transfer.is_asking);
        for &id in &cut {
            if let Some(transfer) = self.get_mut(id) {
                transfer.pieces = Pieces::all(transfer.total);
                transfer.is_asking = true;
            }
        }
        cut
    }
}
