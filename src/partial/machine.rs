//! [`Machine`]: one rank's decisions. What happens comes in (`handle_*`), what to do comes out ([`Machine::poll_action`]).

use super::activation::{Activation, Fired};
use super::header::{Header, RoundReport};
use super::notice::Notice;
use super::options::{Divisor, PartialOptions, Policy};
use super::ranks::RankSet;
use super::results::{Next, Results, Settled};
use crate::error::{Error, Result};
use crate::prng::{Prng, mix};
use crate::time::Time;
use crate::types::Rank;
use std::collections::VecDeque;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Tell a peer.
    Tell {
        /// Whom.
        to: Rank,
        /// What.
        notice: Notice,
    },
    /// The snapshot of a round is what has been gathered for it until now: enter its reduction, after those of the rounds
    /// before it.
    Begin {
        /// What this rank says of it.
        header: Header,
        /// The place for the result.
        place: usize,
    },
}

/// A round that has not ended here.
#[derive(Clone, Debug)]
struct Pending {
    /// Who has arrived, where this rank counts.
    arrived: RankSet,
    /// When the first of them did.
    first_at: Option<Time>,
    fired: Fired,
    /// What the snapshot holds.
    first_generation: u64,
    generations: u64,
    is_held: bool,
    /// The result's, once it has begun.
    place: usize,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Machine {
    rank: Rank,
    ranks: u32,
    options: PartialOptions,
    activation: Activation,
    /// Own steps: gradients submitted, and the last one.
    submitted: u64,
    /// The own step that finishes.
    last: Option<u64>,
    /// Rounds whose snapshot was taken here.
    begun: u64,
    /// Rounds that have ended here.
    completed: u64,
    /// The round whose snapshot is being written to.
    filling: Option<u64>,
    /// From round `completed` on.
    pending: VecDeque<Pending>,
    results: Results,
    told: VecDeque<Action>,
}

impl Machine {
    /// Of one rank of so many. The options were checked.
    pub fn new(rank: Rank, ranks: u32, options: PartialOptions) -> Machine {
        let new = || Pending::new(ranks);
        Machine {
            rank,
            ranks,
            activation: Activation::new(rank, ranks),
            submitted: 0,
            last: None,
            begun: 0,
            completed: 0,
            filling: None,
            pending: (0..2 * options.rounds_in_flight).map(|_| new()).collect(),
            results: Results::new(&options),
            told: VecDeque::new(),
            options,
        }
    }

    /// The options.
    pub fn options(&self) -> &PartialOptions {
        &self.options
    }

    /// Own steps so far.
    pub fn submitted(&self) -> u64 {
        self.submitted
    }

    /// Rounds whose snapshot was taken here.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Rounds that have ended here.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Rounds that have ended here less own steps, 0 if it is not behind.
    pub fn lag(&self) -> u64 {
        self.completed.saturating_sub(self.submitted)
    }

    /// Snapshots that exist at once at most: those in flight, and those that are gathered.
    pub fn snapshots_max(&self) -> usize {
        2 * self.options.rounds_in_flight as usize
    }

    /// Whether the next step may be submitted, or a result has to be taken first.
    pub fn has_room(&self) -> bool {
        self.submitted < self.results.taken() + u64::from(self.options.rounds_in_flight)
    }

    /// Begins a submit, if there is room and no other is under way: the round whose snapshot it enters, and whether it is the
    /// first to do so (else it is to be added). Until [`Machine::handle_submitted`] that round does not begin here.
    pub fn begin_submit(&mut self) -> Option<(u64, bool)> {
        if !self.has_room() || self.filling.is_some() || self.last.is_some() {
            return None;
        }
        let target = self.submitted.max(self.begun);
        self.filling = Some(target);
        Some((target, self.pending_of(target).generations == 0))
    }

    /// The gradient is in the snapshot.
    pub fn handle_submitted(&mut self, now: Time) {
        let target = self.filling.take().expect("a submit has begun");
        let generation = self.submitted;
        self.submitted += 1;
        let pending = self.pending_of(target);
        if pending.generations == 0 {
            pending.first_generation = generation;
        }
        pending.generations += 1;
        if generation >= self.begun {
            self.arrive(generation, now);
        }
    }

    /// This rank submits nothing more: its next step is a round that waits for all, and delivers what is pending. False: a
    /// result has to be taken first.
    pub fn handle_finish(&mut self) -> bool {
        let may = self.has_room() && self.filling.is_none() && self.last.is_none();
        if may {
            self.last = Some(self.submitted);
            self.submitted += 1;
        }
        may
    }

    /// Whether the last round is still to come.
    pub fn is_finishing(&self) -> bool {
        self.last.is_some()
    }

    /// A peer says something.
    ///
    /// # Errors
    /// [`Error::Malformed`]: a round that cannot be, or a peer that does not say such things to this rank.
    pub fn handle_notice(&mut self, from: Rank, notice: Notice, now: Time) -> Result<()> {
        let (Notice::Arrived(round) | Notice::Activate(round)) = notice;
        if round < self.completed {
            return Ok(());
        }
        let is_near = round - self.completed < self.pending.len() as u64;
        let is_right = match notice {
            _ if !is_near => false,
            Notice::Arrived(_) => {
                self.count(round, from, now);
                true
            }
            Notice::Activate(_) => self.activate(round, Some(from)),
        };
        if is_right {
            return Ok(());
        }
        Err(Error::Malformed(format!(
            "rank {from} tells rank {} {notice:?} of a partial allreduce while round {} is the oldest: not in this state",
            self.rank, self.completed
        )))
    }

    /// Time has passed.
    pub fn handle_time(&mut self, now: Time) {
        for round in self.begun..self.completed + self.pending.len() as u64 {
            self.initiate_if_due(round, now);
        }
    }

    /// When [`Machine::handle_time`] is to be called.
    pub fn next_deadline(&self) -> Option<Time> {
        let Policy::Deadline { quorum, time } = self.options.policy else {
            return None;
        };
        let in_flight = (self.begun - self.completed) as usize;
        let waiting = self.pending.iter().skip(in_flight);
        waiting
            .filter(|p| !p.fired.is_go(&self.activation) && p.arrived.count() >= quorum)
            .filter_map(|p| p.first_at.map(|at| at.after(time)))
            .min()
    }

    /// The next thing to do, if there is one.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.told.pop_front().or_else(|| self.begin_next())
    }

    /// Whether the next round to begin here has been activated, and cannot begin yet.
    pub fn is_activated(&self) -> bool {
        let in_flight = (self.begun - self.completed) as usize;
        let next = self.pending.get(in_flight);
        next.is_some_and(|pending| pending.fired.is_go(&self.activation))
    }

    /// Whether somebody waits for something: a result of an own step is due.
    pub fn is_waiting(&self) -> bool {
        self.completed < self.submitted
    }

    /// The oldest round has been reduced; these are all ranks' headers. What to do with the result, and its report.
    pub fn handle_completed(&mut self, headers: &[Header]) -> Result<(Settled, RoundReport)> {
        assert!(
            self.completed < self.begun,
            "a round ends after it has begun"
        );
        let round = self.completed;
        let is_full = self.is_full(round);
        let mut report = RoundReport::of(round, headers, is_full, self.options.staleness_max)?;
        report.divisor = match self.options.divisor {
            Divisor::Creation | Divisor::Live => u64::from(self.ranks),
            Divisor::Generations => report.generations().max(1),
            Divisor::One => 1,
        };
        self.completed += 1;
        let mut ended = self
            .pending
            .pop_front()
            .expect("rounds in flight are pending");
        let place = std::mem::replace(&mut ended, Pending::new(self.ranks)).place;
        self.pending.push_back(ended);
        let settled = self.results.settle(report.clone(), place);
        if report.is_last {
            self.last = None;
        }
        Ok((settled, report))
    }

    /// The next result that this rank has not taken.
    pub fn take(&mut self) -> Next {
        self.results.take(self.submitted)
    }

    /// What was taken has been copied.
    pub fn give_back(&mut self, place: usize) {
        self.results.give_back(place);
    }

    fn pending_of(&mut self, round: u64) -> &mut Pending {
        &mut self.pending[(round - self.completed) as usize]
    }

    /// Whether a round waits for all ranks' own steps, as far as this rank knows.
    fn is_full(&self, round: u64) -> bool {
        let is_limited = |limiter: u32| (round + 1).is_multiple_of(u64::from(limiter) + 1);
        self.options.limiter.is_some_and(is_limited)
            || self.last == Some(round)
            || self.options.staleness_max == Some(0)
            || self.ranks == 1
            || match self.options.policy {
                Policy::RandomInitiator { .. } => false,
                _ => self.options.quorum(self.ranks) == self.ranks,
            }
    }

    /// The own generation of a round has come before its snapshot was taken.
    fn arrive(&mut self, round: u64, now: Time) {
        let is_active = self.pending_of(round).fired.is_go(&self.activation);
        if is_active || self.is_full(round) {
            return;
        }
        match self.options.policy {
            Policy::RandomInitiator { seed } => {
                if initiator(seed, round, 0, self.ranks) == self.rank {
                    self.activate(round, None);
                }
            }
            Policy::Deadline { .. } => self.announce(round, now),
            _ if self.options.quorum(self.ranks) == 1 => {
                self.activate(round, None);
            }
            _ => self.announce(round, now),
        }
    }

    fn announce(&mut self, round: u64, now: Time) {
        let to = counting_rank(round, self.ranks);
        if to == self.rank {
            return self.count(round, self.rank, now);
        }
        let notice = Notice::Arrived(round);
        self.told.push_back(Action::Tell { to, notice });
    }

    /// Counts an arrival, once for each rank.
    fn count(&mut self, round: u64, rank: Rank, now: Time) {
        let pending = self.pending_of(round);
        pending.arrived.insert(rank);
        pending.first_at.get_or_insert(now);
        self.initiate_if_due(round, now);
    }

    fn initiate_if_due(&mut self, round: u64, now: Time) {
        let (ranks, quorum) = (self.ranks, self.options.quorum(self.ranks));
        let time = match self.options.policy {
            Policy::Deadline { time, .. } => Some(time),
            _ => None,
        };
        let pending = self.pending_of(round);
        let count = pending.arrived.count();
        let is_time = match (time, pending.first_at) {
            (Some(time), Some(first)) => count == ranks || now >= first.after(time),
            _ => true,
        };
        if count >= quorum && is_time {
            self.activate(round, None);
        }
    }

    /// Wakes the others as the schedule says; false if this peer does not wake this rank.
    fn activate(&mut self, round: u64, from: Option<Rank>) -> bool {
        let pending = &mut self.pending[(round - self.completed) as usize];
        let notice = Notice::Activate(round);
        let tell = |to| self.told.push_back(Action::Tell { to, notice });
        match from {
            Some(from) => (self.activation).handle_signal(&mut pending.fired, from, tell),
            None => {
                self.activation.handle_arrival(&mut pending.fired, tell);
                true
            }
        }
    }

    /// The next round, if it may begin now.
    fn begin_next(&mut self) -> Option<Action> {
        let round = self.begun;
        let in_flight = round - self.completed;
        if in_flight >= u64::from(self.options.rounds_in_flight)
            || self.filling == Some(round)
            || !self.results.has_room()
        {
            return None;
        }
        let is_own = self.submitted > round;
        let is_active = self.pending[in_flight as usize]
            .fired
            .is_go(&self.activation);
        let may_begin = match self.is_full(round) {
            true => is_own,
            false => is_active && (is_own || self.may_miss(round)),
        };
        if !may_begin {
            // What it says is that the round is under way elsewhere.
            self.pending[in_flight as usize].is_held |= is_active && !is_own;
            return None;
        }
        let place = self.results.reserve()?;
        self.begun += 1;
        let pending = &mut self.pending[in_flight as usize];
        pending.place = place;
        let header = Header {
            round,
            is_active: is_own && self.last != Some(round),
            is_last: self.last == Some(round),
            is_held: pending.is_held,
            first_generation: pending.first_generation,
            generations: pending.generations,
        };
        Some(Action::Begin { header, place })
    }

    /// Whether a round may begin without the own generation: none may be later than the bound says.
    fn may_miss(&self, round: u64) -> bool {
        let bound = self.options.staleness_max.map(u64::from);
        bound.is_none_or(|bound| round - self.submitted < bound)
    }
}

impl Pending {
    fn new(ranks: u32) -> Pending {
        Pending {
            arrived: RankSet::new(ranks),
            first_at: None,
            fired: Fired::default(),
            first_generation: 0,
            generations: 0,
            is_held: false,
            place: 0,
        }
    }
}

/// The rank that counts the arrivals of a round: a different one each round, so that none is always busy.
pub fn counting_rank(round: u64, ranks: u32) -> Rank {
    (round % u64::from(ranks)) as Rank
}

/// The rank that begins a round of [`Policy::RandomInitiator`]; further attempts are for where that one is gone.
pub fn initiator(seed: u64, round: u64, attempt: u32, ranks: u32) -> Rank {
    let mut draws = Prng::new(mix(seed ^ mix(round)).wrapping_add(u64::from(attempt)));
    draws.below(u64::from(ranks)) as Rank
}
