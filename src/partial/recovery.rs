//! What the ranks that live do after a death, as decisions: who has which result, which rounds are
//! repeated, and how rounds begin from then on. [`super`] says why nothing is lost.

use super::activation::{Activation, Fired};
use super::header::{HEADER_BYTES, Header, RoundReport};
use super::machine::Machine;
use super::options::PartialOptions;
use super::ranks::RankSet;
use super::results::Settled;
use crate::error::{Error, Result};
use crate::time::Time;
use crate::types::Rank;

/// Words of a header.
const HEADER_WORDS: usize = HEADER_BYTES / 8;
/// In the words of a round: this rank took part in it.
const TOOK_PART: u64 = 1 << 32;

/// Words of a standing.
pub const STANDING_WORDS: usize = 3;

/// How far a rank has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Rounds that have ended there.
    pub completed: u64,
    /// Rounds whose snapshot was taken there.
    pub begun: u64,
    /// The round that finishes, if the rank has come there.
    pub last: Option<u64>,
}

impl Standing {
    /// As words.
    pub fn emit(&self) -> [u64; STANDING_WORDS] {
        [self.completed, self.begun, self.last.unwrap_or(u64::MAX)]
    }

    /// Parses words of a peer. [`Recovery::of`] checks what they say.
    pub fn parse(words: [u64; STANDING_WORDS]) -> Standing {
        let [completed, begun, last] = words;
        Standing {
            completed,
            begun,
            last: (last != u64::MAX).then_some(last),
        }
    }
}

/// What the ranks that live do; equal on all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    live: Vec<Rank>,
    /// Rounds that have ended anywhere: the others fetch their results.
    completed: u64,
    /// Rounds that have begun anywhere: those that have not ended are repeated.
    begun: u64,
    /// The round that finishes, if a rank has come there: each enters it with its own step.
    last: Option<u64>,
    /// The first round that has not ended everywhere.
    first: u64,
    /// The lowest rank that has all results.
    source: Rank,
}

impl Recovery {
    /// The recovery of these ranks, ascending, from how far each has come.
    ///
    /// # Errors
    /// [`Error::Malformed`] for ranks that are further apart than rounds may be in flight.
    pub fn of(live: &[Rank], standings: &[Standing], options: &PartialOptions) -> Result<Recovery> {
        let all = || live.iter().zip(standings);
        let completed = all().map(|(_, s)| s.completed).max().unwrap_or(0);
        let window = u64::from(options.rounds_in_flight);
        // If a rank has completed a round, all have entered it, and so have completed the one
        // `window` rounds before it.
        let is_possible = |s: &Standing| {
            completed - s.completed <= window
                && s.begun >= completed
                && s.begun - s.completed <= window
        };
        if let Some((rank, standing)) = all().find(|(_, s)| !is_possible(s)) {
            return Err(Error::Malformed(format!(
                "rank {rank} says {standing:?} after a death in a partial allreduce with {window} rounds in flight, where \
                 {completed} rounds have ended: ranks may differ in their version of linerate"
            )));
        }
        let source = all().find(|(_, s)| s.completed == completed);
        Ok(Recovery {
            live: live.to_vec(),
            completed,
            begun: all().map(|(_, s)| s.begun).max().unwrap_or(0),
            last: all().filter_map(|(_, s)| s.last).max(),
            first: all().map(|(_, s)| s.completed).min().unwrap_or(0),
            source: *source.expect("this rank lives").0,
        })
    }

    /// The rounds whose results are fetched, in this order.
    pub fn fetches(&self) -> std::ops::Range<u64> {
        self.first..self.completed
    }

    /// The rank that they are fetched from.
    pub fn source(&self) -> Rank {
        self.source
    }
}

impl Machine {
    /// How far this rank has come.
    pub fn standing(&self) -> Standing {
        Standing {
            completed: self.completed,
            begun: self.begun,
            last: self.last,
        }
    }

    /// Words of a round as [`Machine::emit_round`] gives them.
    pub fn round_words(&self) -> usize {
        self.ranks as usize * HEADER_WORDS
    }

    /// Where the result of a round lies here, or will lie: one that was completed not long ago, or
    /// is under way.
    pub fn place_of(&self, round: u64) -> Option<usize> {
        match round.checked_sub(self.completed) {
            None => self.results.kept(round).map(|kept| kept.2),
            Some(_) if round >= self.begun => None,
            Some(ahead) => Some(self.pending[ahead as usize].place),
        }
    }

    /// What was said of a round that this rank has completed not long ago, for ranks that have not.
    pub fn emit_round(&self, round: u64) -> Option<Vec<u64>> {
        let (_, (live, headers), _) = self.results.kept(round)?;
        let mut words = vec![0; self.round_words()];
        for (header, &rank) in headers.iter().zip(live) {
            let own = &mut words[rank as usize * HEADER_WORDS..][..HEADER_WORDS];
            own.copy_from_slice(&header.emit());
            own[1] |= TOOK_PART;
        }
        Some(words)
    }

    /// The oldest round has ended elsewhere: its result has been fetched to its place, with what
    /// was said of it.
    ///
    /// # Errors
    /// [`Error::Malformed`]: words that cannot be.
    pub fn handle_fetched(&mut self, words: &[u64]) -> Result<(Settled, RoundReport)> {
        let (mut live, mut headers) = (Vec::new(), Vec::new());
        for (own, rank) in words.chunks_exact(HEADER_WORDS).zip(0..self.ranks) {
            if own[1] & TOOK_PART != 0 {
                live.push(rank);
                headers.push(Header::parse(std::array::from_fn(|i| own[i])));
            }
        }
        if live.is_empty() || self.completed >= self.begun {
            let round = self.completed;
            return Err(Error::Malformed(format!(
                "round {round} of a partial allreduce was fetched of which nobody said anything, or that had not begun here"
            )));
        }
        self.complete(&live, &headers)
    }

    /// Every rank that lives has the results of all rounds that have ended anywhere. The other
    /// rounds that had begun somewhere begin everywhere, from the snapshots that were taken. Rounds
    /// that had not begun are announced again, to the rank that counts them from then on.
    pub fn handle_survived(&mut self, recovery: &Recovery, now: Time) {
        assert_eq!(
            self.completed, recovery.completed,
            "results are fetched first"
        );
        self.live.clone_from(&recovery.live);
        let own = self.live.binary_search(&self.rank);
        let own = own.expect("this rank lives") as Rank;
        self.activation = Activation::new(own, self.live.len() as u32);
        self.told.clear();
        self.settled = self.completed;
        self.entered = self.completed;
        for (pending, round) in self.pending.iter_mut().zip(self.completed..) {
            pending.arrived = RankSet::new(self.ranks);
            pending.first_at = None;
            pending.fired = match round < recovery.begun && Some(round) != recovery.last {
                true => Fired::all_know(&self.activation),
                false => Fired::default(),
            };
        }
        for round in self.begun..self.submitted {
            self.arrive(round, now);
        }
    }
}
