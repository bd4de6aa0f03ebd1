//! [`Remotes`]: puts, gets and atomic operations on memory of peers, and waits for words that peers
//! change.
//!
//! `reach.rs` starts, posts and ends them.

use super::pool::Lent;
use super::prepared::Prepared;
use crate::memory::{Kept, View};
use crate::transport::{Atomic, RemoteRange};
use crate::types::Rank;
use std::collections::VecDeque;
use std::sync::Arc;

/// What is done to memory of a peer.
#[derive(Clone, Copy, Debug)]
pub enum RemoteWork {
    /// It becomes the bytes of this view.
    Put(View),
    /// Its bytes come to this view.
    Get(View),
    /// A word of it is changed. What was there comes to the 8 bytes of this view.
    Change(Atomic, View),
}

impl RemoteWork {
    pub fn local(&self) -> View {
        match *self {
            RemoteWork::Put(view) | RemoteWork::Get(view) | RemoteWork::Change(_, view) => view,
        }
    }
}

/// An operation on memory of a peer, and what must live until it has ended.
pub struct RemoteCall {
    pub peer: Rank,
    pub place: RemoteRange,
    pub work: RemoteWork,
    /// A word of the peer, and the number that is added to it once the bytes of a put are there.
    pub signal: Option<(RemoteRange, u64)>,
    pub keep: Vec<Kept>,
}

/// What a task does, for texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteText {
    pub verb: &'static str,
    pub bytes: usize,
    /// `None`: any rank may do what it waits for.
    pub peer: Option<Rank>,
}

impl RemoteText {
    pub fn describe(&self) -> String {
        let RemoteText { verb, bytes, peer } = *self;
        match peer {
            Some(rank) => format!("{verb} of {bytes} bytes in a window of rank {rank}"),
            None => format!("{verb} in a window of this rank"),
        }
    }
}

/// One of [`RemoteCall`] under way.
pub struct Transfer {
    pub task: usize,
    pub generation: u32,
    pub peer: Rank,
    pub place: RemoteRange,
    pub work: RemoteWork,
    pub signal: Option<(RemoteRange, u64)>,
    /// Bytes that have been moved, and bytes of the piece at hand.
    pub done: usize,
    pub piece: usize,
    /// Where the piece is copied, or the result of the signal.
    pub lent: Option<Lent>,
    /// The bytes are there, and the signal is at hand.
    pub is_signalling: bool,
    /// A completion is to come.
    pub is_posted: bool,
}

/// A task that waits until a word of this rank is at least a number.
pub struct Wait {
    pub task: usize,
    pub word: View,
    pub least: u64,
}

/// A task that waits for the end of these transfers, given by place and generation.
pub struct Flush {
    pub task: usize,
    pub of: Vec<(u32, u32)>,
}

/// The operations of one rank on memory of its peers.
#[derive(Default)]
pub struct Remotes {
    /// By place; `None`: the place is free.
    pub all: Vec<Option<Transfer>>,
    pub free: Vec<u32>,
    pub generation: u32,
    /// Places of those that are to be posted, in order.
    pub unposted: VecDeque<u32>,
    pub waits: Vec<Wait>,
    pub flushes: Vec<Flush>,
    /// The schedule of their calls, which does nothing.
    pub nothing: Option<Arc<Prepared>>,
}

impl Remotes {
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.count() == 0 && self.waits.is_empty()
    }

    /// Transfers under way.
    pub fn count(&self) -> usize {
        self.all.len() - self.free.len()
    }

    /// Whether something is to be posted or looked at.
    #[inline]
    pub fn has_work(&self) -> bool {
        !self.unposted.is_empty() || !self.waits.is_empty()
    }

    /// The tasks that have not ended.
    pub fn tasks(&self) -> impl Iterator<Item = usize> + '_ {
        let transfers = self.all.iter().flatten().map(|one| one.task);
        transfers.chain(self.waits.iter().map(|wait| wait.task))
    }

    /// The peer of a task; `None`: it is none of these, or it waits for any peer.
    pub fn peer_of(&self, task: usize) -> Option<Rank> {
        let mut all = self.all.iter().flatten();
        all.find(|one| one.task == task).map(|one| one.peer)
    }

    /// Whether a task waits for a word.
    pub fn is_wait(&self, task: usize) -> bool {
        self.waits.iter().any(|wait| wait.task == task)
    }

    /// Forgets all of them, because the communicator has failed. Memory of the pool that a peer may
    /// still use is not given back.
    pub fn clear(&mut self) {
        *self = Remotes {
            generation: self.generation,
            ..Remotes::default()
        };
    }
}
