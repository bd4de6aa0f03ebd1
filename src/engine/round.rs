//! [`Round`]: one execution of a schedule: a program, how far it has come, and its memory.

use super::arguments::RoundCall;
use super::memory::Memory;
use super::prepared::Prepared;
use super::program::{Program, What};
use super::progress::Progress;
use super::tag::{self, RoundToken};
use crate::schedule::StepId;
use crate::time::Time;
use crate::types::Rank;
use std::sync::Arc;

/// Which messages belong to the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundId {
    /// A collective: its number among those of the communicator.
    Collective(u64),
    /// Sends and receives between pairs, numbered per pair (see [`Round::message_bases`]).
    Pairwise,
    /// One send or receive with a tag of the user: the tag of its first chunk.
    Tagged(u64),
}

/// What a round is given when it begins.
#[derive(Clone, Copy)]
pub struct RoundOf {
    pub id: RoundId,
    pub task: usize,
    pub generation: u32,
    /// How many elements of the call it is for, and from which on.
    pub part: (u64, u64),
}

/// One execution of a schedule.
#[derive(Debug)]
pub struct Round {
    /// Tells the completions of this round from those of other rounds, also of one that used its
    /// place before.
    pub token: RoundToken,
    pub id: RoundId,
    /// What the tags of all its messages have in common, unless it is pairwise.
    pub tag: u64,
    /// The number of a collective. Any other round has a number above all others, because each of
    /// its messages has to wait for its turn.
    pub order: u64,
    /// The task it belongs to.
    pub task: usize,
    /// Its number among the rounds of the engine.
    pub generation: u32,
    /// When it last made progress.
    pub last_moved: Time,
    /// Some rank's memory is not registered, so the round is to be repeated by staging.
    pub is_redirected: bool,
    /// Steps on lane 0 that have completed.
    pub arrivals: u32,
    pub progress: Progress,
    /// Steps to try again: waits whose signals have not all come, posts that a full queue refused,
    /// copies and reductions that could not go on.
    pub parked: Vec<StepId>,
    pub program: Program,
    pub memory: Memory,
    /// Per peer: the numbers of the first send and the first receive (pairwise rounds).
    pub message_bases: Vec<(u64, u64)>,
    /// A peer of a pairwise round that has left. Sends and receives with other peers go on.
    pub lost: Option<Rank>,
}

impl Round {
    /// A round of no call yet.
    pub fn new(prepared: Arc<Prepared>) -> Round {
        Round {
            token: RoundToken::default(),
            id: RoundId::Pairwise,
            tag: 0,
            order: u64::MAX,
            task: 0,
            generation: 0,
            last_moved: Time::default(),
            is_redirected: false,
            arrivals: 0,
            progress: Progress::default(),
            parked: Vec::new(),
            program: Program::new(prepared),
            memory: Memory::new(),
            message_bases: Vec::new(),
            lost: None,
        }
    }

    /// Takes up a part of a call. Returns true if that is not what it has run last, or if it is on
    /// other memory of the caller. `sizes`: the number of ranks, and bytes of a chunk.
    #[inline]
    pub fn take_up(&mut self, call: &RoundCall<'_>, part: (u64, u64), sizes: (u32, usize)) -> bool {
        let is_new = (self.program).take_up(&mut self.progress, call, part, sizes);
        if is_new {
            // All steps get room now, so that no later round of the call allocates.
            self.parked.reserve(call.prepared.steps.len());
        }
        is_new
    }

    /// Begins to run what it has taken up.
    #[inline]
    pub fn begin(&mut self, of: RoundOf, ranks: u32) {
        (self.id, self.task, self.generation) = (of.id, of.task, of.generation);
        (self.order, self.tag) = match of.id {
            RoundId::Collective(sequence) => (sequence, tag::collective(sequence, 0, 0)),
            RoundId::Pairwise => (u64::MAX, 0),
            RoundId::Tagged(first) => (u64::MAX, first),
        };
        if self.program.prepared.reaches_buffers {
            self.memory.forget_peers(ranks);
        }
        self.parked.clear();
        (self.progress).arm(&self.program.prepared, self.program.has_counts);
        (self.is_redirected, self.arrivals, self.lost) = (false, 0, None);
    }

    /// A step has done all it does. The steps that may start now are queued. One of them may be
    /// returned instead, to be run next ([`Progress::process`]).
    #[inline(always)]
    pub fn end_step(&mut self, step: StepId) -> StepId {
        self.progress.process(&self.program.prepared, step)
    }

    /// Whether its steps are sends and receives of pairs, not a collective.
    #[inline]
    pub fn is_pairwise(&self) -> bool {
        self.id == RoundId::Pairwise
    }

    /// Whether it is a send or receive with a tag of the user.
    #[inline]
    pub fn is_tagged(&self) -> bool {
        matches!(self.id, RoundId::Tagged(_))
    }

    /// Whether every step has completed.
    #[inline]
    pub fn is_finished(&self) -> bool {
        self.progress.is_finished()
    }

    /// Whether the transport has a message of this step that has not completed.
    pub fn is_posted(&self, step: StepId) -> bool {
        let is_refused = || self.progress.is_whole() && self.parked.contains(&step);
        self.progress.is_under_way(step) && !is_refused()
    }

    /// Whether there is something to run, to look at or to end.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.progress.has_ready() || !self.parked.is_empty() || self.has_ended()
    }

    /// Whether there is something to do that needs no new signal: a step to run or to try again, or
    /// the end of the round.
    pub fn has_runnable(&self) -> bool {
        let mut parked = self.parked.iter();
        self.progress.has_ready() || parked.any(|&step| !self.is_wait(step)) || self.has_ended()
    }

    /// Whether a step waits for signals.
    pub fn is_wait(&self, step: StepId) -> bool {
        matches!(self.program.steps[step as usize], What::Wait { .. })
    }

    /// Whether the round is over: every step has completed (a message does so when its completion
    /// has been reported), or the round is to be repeated.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.is_redirected || self.is_finished()
    }

    /// The sequence number of a collective.
    #[inline]
    pub fn sequence(&self) -> Option<u64> {
        match self.id {
            RoundId::Collective(sequence) => Some(sequence),
            RoundId::Pairwise | RoundId::Tagged(_) => None,
        }
    }

    /// Whether this rank knows if all memory that the round may reach is registered.
    pub fn is_decided(&self) -> bool {
        let prepared = &self.program.prepared;
        self.is_redirected || !prepared.needs_registered || self.arrivals == prepared.arrivals
    }

    /// The number of a message of this round to or from a peer.
    pub fn message_number(&self, peer: Rank, message: u32, is_send: bool) -> u64 {
        let (sends, receives) = self.message_bases[peer as usize];
        u64::from(message) + if is_send { sends } else { receives }
    }
}
