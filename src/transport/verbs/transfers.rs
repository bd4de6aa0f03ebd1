//! [`Transfers`]: long messages, puts and gets that this rank moves, by number.

use super::device::Registered;
use super::pieces::Pieces;
use super::record::VALUE_MASK;
use super::regions::Target;
use crate::memory::{RegionKey, View};
use crate::transport::{Atomic, PostError};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Long transfers under way to one peer.
const TRANSFERS_MAX: usize = 1024;

/// What a long transfer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Message,
    Put,
    Get,
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

impl Transfer {
    /// One that has not moved, from or to `memory` from `offset` on.
    pub fn new(
        kind: Kind,
        (memory, offset): (Arc<Registered>, u64),
        total: u64,
        range: (RegionKey, u64),
        token: u64,
    ) -> Transfer {
        Transfer {
            kind,
            atomic: None,
            token,
            total,
            memory,
            offset,
            target: None,
            range,
            pieces: Pieces::all(total),
            under_way: Vec::new(),
            has_end: false,
            is_busy: false,
            bounce: None,
            refusals: 0,
        }
    }

    /// Whether pieces are under way on any rail.
    pub fn is_under_way(&self) -> bool {
        self.under_way.iter().any(|&count| count > 0)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Transfers {
    all: BTreeMap<u64, Transfer>,
    next: u64,
    /// Those that can go on.
    busy: VecDeque<u64>,
}

impl Transfers {
    pub fn new() -> Transfers {
        Transfers {
            all: BTreeMap::new(),
            next: 1,
            busy: VecDeque::new(),
        }
    }

    /// Whether another one may begin.
    pub fn check(&self) -> Result<(), PostError> {
        match self.all.len() >= TRANSFERS_MAX {
            true => Err(PostError::WouldBlock),
            false => Ok(()),
        }
    }

    /// Whether all have ended.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The number of a new transfer, over this many rails.
    pub fn insert(&mut self, mut transfer: Transfer, rails: usize) -> u64 {
        // Numbers come again after 2^28 transfers, unless they are still in use.
        let id = loop {
            let id = self.next & u64::from(VALUE_MASK);
            self.next += 1;
            if !self.all.contains_key(&id) {
                break id;
            }
        };
        transfer.under_way = vec![0; rails];
        self.all.insert(id, transfer);
        id
    }

    #[inline]
    pub fn get(&self, id: u64) -> Option<&Transfer> {
        self.all.get(&id)
    }

    #[inline]
    pub fn get_mut(&mut self, id: u64) -> Option<&mut Transfer> {
        self.all.get_mut(&id)
    }

    /// Ends one.
    pub fn remove(&mut self, id: u64) -> Option<Transfer> {
        self.all.remove(&id)
    }

    /// The puts and gets that wait to be told where this region of the peer is.
    pub fn waiting_for(&self, key: RegionKey) -> Vec<u64> {
        let is_waiting =
            |t: &Transfer| t.kind != Kind::Message && t.target.is_none() && t.range.0 == key;
        let waiting = self.all.iter().filter(|(_, transfer)| is_waiting(transfer));
        waiting.map(|(&id, _)| id).collect()
    }

    /// Messages and puts.
    pub fn written(&self) -> Vec<u64> {
        let written = self.all.iter().filter(|(_, t)| t.kind != Kind::Get);
        written.map(|(&id, _)| id).collect()
    }

    /// Whether the device may be reading memory of this rank for messages or puts.
    pub fn is_read(&self) -> bool {
        let mut written = self.all.values().filter(|t| t.kind != Kind::Get);
        written.any(|t| t.has_end || t.is_under_way())
    }

    /// One can go on, if it is known where it goes.
    pub fn make_busy(&mut self, id: u64) {
        if let Some(transfer) = self.all.get_mut(&id)
            && transfer.target.is_some()
            && !std::mem::replace(&mut transfer.is_busy, true)
        {
            self.busy.push_back(id);
        }
    }

    /// All can go on of which it is known where they go.
    pub fn make_all_busy(&mut self) {
        let ids: Vec<u64> = self.all.keys().copied().collect();
        for id in ids {
            self.make_busy(id);
        }
    }

    /// How many can go on.
    #[inline]
    pub fn busy_count(&self) -> usize {
        self.busy.len()
    }

    /// Takes out the next one that can go on.
    pub fn pop_busy(&mut self) -> Option<u64> {
        self.busy.pop_front()
    }

    /// One that was taken out can go on or not, until [`Transfers::make_busy`] says so.
    pub fn put_back_busy(&mut self, id: u64) {
        let Some(transfer) = self.all.get_mut(&id) else {
            return;
        };
        // What only waits for pieces that are under way goes on when they have arrived.
        let waits = transfer.pieces.is_empty()
            && (transfer.has_end || transfer.kind == Kind::Get || transfer.is_under_way());
        transfer.is_busy = !waits;
        if !waits {
            self.busy.push_back(id);
        }
    }

    /// The queue pairs are no more: nothing is under way, and nothing goes on.
    pub fn stop(&mut self) {
        self.busy.clear();
        for transfer in self.all.values_mut() {
            transfer.is_busy = false;
            transfer.under_way.fill(0);
            if transfer.kind == Kind::Message {
                // The peer says anew where it goes, if it still wants it.
                transfer.target = None;
            }
        }
    }

    /// The end of one did not come.
    pub fn give_back_end(&mut self, id: u64, offset: u64, bytes: u64) {
        if let Some(transfer) = self.all.get_mut(&id) {
            transfer.has_end = false;
            transfer.pieces.give_back(offset, bytes);
        }
    }

    /// The peer is gone: the tokens of all.
    pub fn flush(&mut self) -> Vec<u64> {
        self.busy.clear();
        let all = std::mem::take(&mut self.all).into_values();
        all.map(|transfer| transfer.token).collect()
    }
}
