//! The smaller parts of an engine's state: what it has to tell its peers, and what they have told
//! it.

use super::round::Round;
use super::suspect::Suspect;
use super::task::TaskCall;
use crate::error::Error;
use crate::memory::RegionKey;
use crate::types::Rank;
use std::collections::VecDeque;

/// What this rank has to tell of the collectives that it has retired.
#[derive(Default)]
pub struct Publishing {
    /// Peers that had no room for the count yet.
    pub to: Vec<Rank>,
    /// A count has been published, and its peers have perhaps not been woken since.
    pub is_quiet: bool,
}

/// The failure of the communicator, and who knows of it.
#[derive(Default)]
pub struct Failing {
    pub cause: Option<Error>,
    /// The peer that has told this rank of a failure, and that failure, until this rank has failed
    /// with it.
    pub told: Option<(Rank, Error)>,
    /// Peers that are still to be told of the failure.
    pub untold: Vec<Rank>,
    /// The failure of a peer ends what needs that peer, as its leave does, and nothing else.
    pub is_lenient: bool,
    /// A peer has said that all ranks are connected.
    pub is_confirmed: bool,
    /// It is time to look for messages that no receive takes.
    pub looks_for_strays: bool,
    /// A disagreement that the query of a peer has shown.
    pub found: Option<Error>,
    /// How many looks for the news of peers are under way, one within another.
    pub looking: u32,
    /// Registrations of callers' memory that end when an operation fails, because its caller gets
    /// the memory back then.
    pub cached: Vec<RegionKey>,
    /// They have ended, and none is made any more.
    pub has_ended_cached: bool,
    /// An operation, or something else, that has made no progress for too long.
    pub suspect: Option<Suspect>,
    /// The generation of the last round whose signature peers were asked to compare with theirs.
    pub compared: Option<u32>,
}

/// Leaves of peers, and what they have ended here.
#[derive(Default)]
pub struct Leaving {
    /// The first collective that cannot end any more, and the rank whose leave is the cause.
    pub first: Option<Left>,
    /// What `first` was when this rank last began to tell it to the others.
    pub told: Option<Left>,
    /// Peers that are still to be told of `told`.
    pub untold: Vec<Rank>,
    pub given_up: GivenUp,
    /// This rank has begun to leave: its transport is telling the peers.
    pub is_leaving: bool,
}

/// Rounds and calls of operations that were given up. Peers may still read and write their memory,
/// so they are kept as long as the engine.
#[derive(Default)]
pub struct GivenUp {
    // Boxed, because running rounds are: their boxes move here.
    #[allow(clippy::vec_box)]
    pub rounds: Vec<Box<Round>>,
    pub calls: Vec<TaskCall>,
}

/// A rank that has left, and the first collective that cannot end without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    pub rank: Rank,
    /// The first collective that it has not done.
    pub sequence: u64,
}

/// Notices on their way. The caller that sends them bounds how many are outstanding.
#[derive(Debug, Default)]
pub struct Notices {
    pub arrived: VecDeque<(Rank, u64)>,
    /// Notices for which there was no room yet.
    pub unsent: VecDeque<(Rank, u64)>,
    /// Whether some wait for room.
    pub has_unsent: bool,
}

impl Notices {
    /// Forgets those of a peer, and to it.
    pub fn forget_peer(&mut self, peer: Rank) {
        self.arrived.retain(|(of, _)| *of != peer);
        self.unsent.retain(|(to, _)| *to != peer);
    }
}
