//! The smaller parts of an engine's state: what it has to tell its peers, and what they have said.

use super::round::Round;
use super::task::TaskCall;
use crate::error::Error;
use crate::types::Rank;
use std::collections::VecDeque;

/// What this rank has to tell of the collectives that it has retired.
#[derive(Default)]
pub struct Publishing {
    /// Peers that had no room for the count yet.
    pub to: Vec<Rank>,
    /// Peers may not have been woken since the last count was published.
    pub is_quiet: bool,
}

/// The failure of the communicator, and who knows of it.
#[derive(Default)]
pub struct Failing {
    pub cause: Option<Error>,
    /// What a peer has said of a failure, and which one, until this rank has failed with it.
    pub told: Option<(Rank, Error)>,
    /// Peers that had no room for the news of the failure.
    pub untold: Vec<Rank>,
    /// A peer has said that all ranks are connected.
    pub is_confirmed: bool,
    /// The round that was last compared with what peers are in.
    pub compared: Option<u32>,
}

/// Who has left, and what that has ended.
#[derive(Default)]
pub struct Leaving {
    /// The first collective that cannot end any more, by whose leave.
    pub first: Option<Left>,
    /// What of that the others have been told, and those that had no room for it.
    pub told: Option<Left>,
    pub untold: Vec<Rank>,
    pub given_up: GivenUp,
    /// This rank has said goodbye.
    pub is_leaving: bool,
}

/// What operations had that were given up. Peers may still read and write there, so it is kept to
/// the end.
#[derive(Default)]
pub struct GivenUp {
    // As they were when they ran.
    #[allow(clippy::vec_box)]
    pub rounds: Vec<Box<Round>>,
    pub calls: Vec<TaskCall>,
}

/// From which collective on nothing can end, and because of whom.
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
    /// There was no room for these yet.
    pub unsent: VecDeque<(Rank, u64)>,
    /// Some wait for room.
    pub has_unsent: bool,
}
