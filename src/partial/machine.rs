//! [`Machine`]: one rank's decisions. What happens comes in (`handle_*`), what to do comes out
//! ([`Machine::poll_action`]).

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
    /// Enter the reduction of a round, after those of the rounds before it. Its snapshot is what
    /// has been gathered for it until now.
    Begin {
        /// What this rank says of it.
        header: Header,
        /// The place for the result.
        place: usize,
    },
}

/// A round that has not ended here.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    /// Who has arrived, where this rank counts.
    pub arrived: RankSet,
    /// When the first of them did.
    pub first_at: Option<Time>,
    pub fired: Fired,
    /// What the snapshot holds.
    first_generation: u64,
    generations: u64,
    is_held: bool,
    /// What this rank says of it, once it has begun, and the place of the result.
    header: Header,
    pub place: usize,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Machine {
    pub(super) rank: Rank,
    /// Number of ranks at creation.
    pub(super) ranks: u32,
    /// Those that live, ascending.
    pub(super) live: Vec<Rank>,
    pub(super) options: PartialOptions,
    /// The activation among the ranks that live, by their places in that list.
    pub(super) activation: Activation,
    /// Own steps so far: the gradients submitted, and the step that finishes.
    pub(super) submitted: u64,
    /// The own step that finishes.
    pub(super) last: Option<u64>,
    /// Rounds whose snapshot was taken here.
    pub(super) begun: u64,
    /// Rounds whose reduction was entered since the last death. These are all that have begun,
    /// except while some are entered again after a death.
    pub(super) entered: u64,
    /// Rounds that have ended here.
    pub(super) completed: u64,
    /// The round whose snapshot is being written to.
    filling: Option<u64>,
    /// The rounds from `completed` on.
    pub(super) pending: VecDeque<Pending>,
    pub(super) results: Results,
    /// Who has completed which last round, as far as this rank was told.
    ends: (u64, RankSet),
    /// Rounds that all living ranks had completed when they recovered from the last death.
    pub(super) settled: u64,
    pub(super) told: VecDeque<Action>,
}

/// Most draws of an initiator. If all drawn ranks have died, the rank that counts the round
/// initiates.
const ATTEMPTS_MAX: u32 = 64;

impl Machine {
    /// The machine of one rank of this many. The options were checked.
    pub fn new(rank: Rank, ranks: u32, options: PartialOptions) -> Machine {
        let new = || Pending::new(ranks);
        Machine {
            rank,
            ranks,
            live: (0..ranks).collect(),
            activation: Activation::new(rank, ranks),
            submitted: 0,
            last: None,
            begun: 0,
            entered: 0,
            completed: 0,
            filling: None,
            pending: (0..2 * options.rounds_in_flight).map(|_| new()).collect(),
            results: Results::new(&options),
            ends: (0, RankSet::new(ranks)),
            settled: 0,
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

    /// Begins a submit, if there is room and no other is under way. Returns the round whose
    /// snapshot it enters, and whether it is the first there (else the caller adds it). Until
    /// [`Machine::handle_submitted`] that round does not begin here.
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

    /// This rank submits nothing more: its next step is a round that waits for all, and delivers
    /// what is pending. False: a result has to be taken first.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: that round has begun here already, because another rank has
    /// submitted a gradient of it. A round that all ranks finish in begins with each rank's own
    /// step only, so these ranks do not finish alike.
    pub fn handle_finish(&mut self) -> Result<bool> {
        if !self.has_room() || self.filling.is_some() || self.last.is_some() {
            return Ok(false);
        }
        if self.begun > self.submitted {
            return Err(Error::invalid(format!(
                "rank {} has finished its partial allreduce in round {}, which began before that because another rank has \
                 submitted a gradient of it: all ranks finish after the same number of submits",
                self.rank, self.submitted
            )));
        }
        self.last = Some(self.submitted);
        self.submitted += 1;
        Ok(true)
    }

    /// Whether the last round is still to come.
    pub fn is_finishing(&self) -> bool {
        self.last.is_some()
    }

    /// A peer says something.
    ///
    /// # Errors
    /// [`Error::Malformed`]: a round that cannot be, or a peer that does not say such things to
    /// this rank.
    pub fn handle_notice(&mut self, from: Rank, notice: Notice, now: Time) -> Result<()> {
        let round = match notice {
            Notice::Arrived(round) | Notice::Activate(round) => round,
            Notice::Completed(round) => {
                self.count_end(round, from);
                return Ok(());
            }
        };
        if round < self.completed {
            return Ok(());
        }
        let is_near = round - self.completed < self.pending.len() as u64;
        let is_right = match notice {
            _ if !is_near => false,
            Notice::Activate(_) => self.activate(round, Some(from)),
            _ => {
                self.count(round, from, now);
                true
            }
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
        let Policy::Deadline { time, .. } = self.options.policy else {
            return None;
        };
        let quorum = self.quorum();
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

    /// Whether the next round to begin here has been activated.
    pub fn is_activated(&self) -> bool {
        let in_flight = (self.begun - self.completed) as usize;
        let next = self.pending.get(in_flight);
        next.is_some_and(|pending| pending.fired.is_go(&self.activation))
    }

    /// Whether something is still to come: the result of an own step is due, or other ranks may
    /// need the result of the last round.
    pub fn is_waiting(&self) -> bool {
        let (ended, by) = &self.ends;
        self.completed < self.submitted || (by.contains(self.rank) && !self.is_everywhere(*ended))
    }

    /// The oldest round has been reduced; these are the headers of all ranks that live. Returns
    /// what to do with the result, and its report.
    pub fn handle_completed(&mut self, headers: &[Header]) -> Result<(Settled, RoundReport)> {
        assert!(
            self.completed < self.entered,
            "a round ends after it has begun"
        );
        let live = std::mem::take(&mut self.live);
        let completed = self.complete(&live, headers);
        self.live = live;
        completed
    }

    /// The oldest round ends with what these ranks have said of it.
    pub(super) fn complete(
        &mut self,
        live: &[Rank],
        headers: &[Header],
    ) -> Result<(Settled, RoundReport)> {
        let round = self.completed;
        let is_full = self.is_full_among(round, live.len() as u32);
        let (of, bound) = ((self.ranks, live), self.options.staleness_max);
        let mut report = RoundReport::of(round, of, headers, is_full, bound)?;
        report.divisor = match self.options.divisor {
            Divisor::Creation => u64::from(self.ranks),
            Divisor::Live => live.len() as u64,
            Divisor::Generations => report.generations().max(1),
            Divisor::One => 1,
        };
        self.completed += 1;
        self.entered = self.entered.max(self.completed);
        let mut ended = self
            .pending
            .pop_front()
            .expect("rounds in flight are pending");
        let place = std::mem::replace(&mut ended, Pending::new(self.ranks)).place;
        self.pending.push_back(ended);
        let said = (self.options.survive).then(|| (live.to_vec(), headers.to_vec()));
        let settled = self.results.settle(report.clone(), place, said);
        if report.is_last {
            self.last = None;
            self.tell_end(round, live);
        }
        Ok((settled, report))
    }

    /// The next result that this rank has not taken.
    pub fn take(&mut self) -> Next {
        self.results.take(self.submitted)
    }

    /// Whether there is a result that this rank has not taken.
    pub fn has_result(&self) -> bool {
        self.results.are_ready()
    }

    /// Whether there is or will be a result of what this rank has submitted, not taken yet.
    pub fn is_result_due(&self) -> bool {
        self.has_result() || self.results.taken() < self.submitted
    }

    /// What was taken has been copied.
    pub fn give_back(&mut self, place: usize) {
        self.results.give_back(place);
    }

    /// Whether every rank that lives has completed a last round, so that nobody needs its result
    /// from this one any more.
    pub fn is_everywhere(&self, round: u64) -> bool {
        let (ended, by) = &self.ends;
        let all_have = || self.live.iter().all(|&rank| by.contains(rank));
        !self.options.survive || round < self.settled || (*ended == round && all_have())
    }

    /// Tells the others that this rank has completed a last round. Where deaths are survived, no
    /// rank leaves before all have its result.
    fn tell_end(&mut self, round: u64, live: &[Rank]) {
        if !self.options.survive {
            return;
        }
        self.count_end(round, self.rank);
        let notice = Notice::Completed(round);
        let others = live.iter().filter(|&&rank| rank != self.rank);
        self.told
            .extend(others.map(|&to| Action::Tell { to, notice }));
    }

    fn count_end(&mut self, round: u64, rank: Rank) {
        if round > self.ends.0 {
            self.ends = (round, RankSet::new(self.ranks));
        }
        if round == self.ends.0 {
            self.ends.1.insert(rank);
        }
    }

    fn pending_of(&mut self, round: u64) -> &mut Pending {
        &mut self.pending[(round - self.completed) as usize]
    }

    /// Whether a round waits for all ranks' own steps, as far as this rank knows.
    pub(super) fn is_full(&self, round: u64) -> bool {
        self.is_full_among(round, self.live.len() as u32)
    }

    fn is_full_among(&self, round: u64, live: u32) -> bool {
        let is_limited = |limiter: u32| (round + 1).is_multiple_of(u64::from(limiter) + 1);
        self.options.limiter.is_some_and(is_limited)
            || self.last == Some(round)
            || self.options.staleness_max == Some(0)
            || live == 1
            || match self.options.policy {
                Policy::RandomInitiator { .. } => false,
                _ => self.options.quorum(live) == live,
            }
    }

    /// The ranks whose gradient the oldest round needs before it can begin, as far as this rank
    /// knows: the rank that is drawn to begin it, or, on the rank that counts, those that have not
    /// arrived.
    pub fn awaited(&self) -> Vec<Rank> {
        let (round, live) = (self.completed, self.live.iter().copied());
        let arrived = &self.pending[0].arrived;
        match self.options.policy {
            Policy::RandomInitiator { seed } => vec![self.initiator(seed, round)],
            _ if self.counting_rank(round) == self.rank => {
                live.filter(|&rank| !arrived.contains(rank)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Distinct ranks that have to arrive before a round may begin.
    fn quorum(&self) -> u32 {
        self.options.quorum(self.live.len() as u32)
    }

    /// The rank that counts a round.
    fn counting_rank(&self, round: u64) -> Rank {
        self.live[counting_rank(round, self.live.len() as u32) as usize]
    }

    /// The rank that begins a round, where one is drawn: the first draw that lives.
    fn initiator(&self, seed: u64, round: u64) -> Rank {
        let draws = (0..ATTEMPTS_MAX).map(|attempt| initiator(seed, round, attempt, self.ranks));
        let mut living = draws.filter(|rank| self.live.binary_search(rank).is_ok());
        living.next().unwrap_or_else(|| self.counting_rank(round))
    }

    /// The own generation of a round has come before its snapshot was taken.
    pub(super) fn arrive(&mut self, round: u64, now: Time) {
        let is_active = self.pending_of(round).fired.is_go(&self.activation);
        if is_active || self.is_full(round) {
            return;
        }
        match self.options.policy {
            Policy::RandomInitiator { seed } => {
                if self.initiator(seed, round) == self.rank {
                    self.activate(round, None);
                }
            }
            Policy::Deadline { .. } => self.announce(round, now),
            _ if self.quorum() == 1 => {
                self.activate(round, None);
            }
            _ => self.announce(round, now),
        }
    }

    fn announce(&mut self, round: u64, now: Time) {
        let to = self.counting_rank(round);
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
        let (ranks, quorum) = (self.live.len() as u32, self.quorum());
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
        let (notice, live) = (Notice::Activate(round), &self.live);
        let tell = |place: Rank| {
            let to = live[place as usize];
            self.told.push_back(Action::Tell { to, notice });
        };
        match from.map(|from| live.binary_search(&from)) {
            Some(Err(_)) => false,
            Some(Ok(place)) => {
                (self.activation).handle_signal(&mut pending.fired, place as Rank, tell)
            }
            None => {
                self.activation.handle_arrival(&mut pending.fired, tell);
                true
            }
        }
    }

    /// The next round, if it may begin now.
    fn begin_next(&mut self) -> Option<Action> {
        if self.entered < self.begun {
            // A round that is entered again after a death has the snapshot that was taken before.
            let pending = &self.pending[(self.entered - self.completed) as usize];
            let (header, place) = (pending.header, pending.place);
            self.entered += 1;
            return Some(Action::Begin { header, place });
        }
        if !self.has_place() {
            return None;
        }
        let round = self.begun;
        let is_own = self.submitted > round;
        let is_active = self.is_activated();
        let may_begin = match self.is_full(round) {
            true => is_own,
            false => is_active && (is_own || self.may_miss(round)),
        };
        if !may_begin {
            // The activation says that the round is under way elsewhere: this rank holds it up.
            self.pending_of(round).is_held |= is_active && !is_own;
            return None;
        }
        Some(self.begin())
    }

    /// Whether the next round has a place among those in flight and a place for its result, and
    /// nothing is being added to its snapshot.
    pub(super) fn has_place(&self) -> bool {
        let in_flight = self.begun - self.completed;
        in_flight < u64::from(self.options.rounds_in_flight)
            && self.filling != Some(self.begun)
            && self.results.has_room()
    }

    /// Takes the snapshot of the next round. The caller has checked [`Machine::has_place`].
    pub(super) fn begin(&mut self) -> Action {
        let place = self.results.reserve().expect("there is room");
        let header = self.next_header();
        let pending = self.pending_of(header.round);
        pending.place = place;
        pending.header = header;
        self.begun += 1;
        self.entered += 1;
        Action::Begin { header, place }
    }

    /// What this rank says of the snapshot of the next round as it is now.
    pub(super) fn next_header(&self) -> Header {
        let round = self.begun;
        let pending = &self.pending[(round - self.completed) as usize];
        Header {
            round,
            is_active: self.submitted > round && self.last != Some(round),
            is_last: self.last == Some(round),
            is_held: pending.is_held,
            first_generation: pending.first_generation,
            generations: pending.generations,
        }
    }

    /// Whether a round may begin without the own generation, which then enters a later round,
    /// within the bound of staleness.
    pub(super) fn may_miss(&self, round: u64) -> bool {
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
            header: Header::default(),
            place: 0,
        }
    }
}

/// The rank that counts the arrivals of a round: a different one each round, so that none is always
/// busy.
pub fn counting_rank(round: u64, ranks: u32) -> Rank {
    (round % u64::from(ranks)) as Rank
}

/// The rank that begins a round of [`Policy::RandomInitiator`]. An attempt above 0 draws again,
/// because the ranks drawn before have died.
pub fn initiator(seed: u64, round: u64, attempt: u32, ranks: u32) -> Rank {
    let mut draws = Prng::new(mix(seed ^ mix(round)).wrapping_add(u64::from(attempt)));
    draws.below(u64::from(ranks)) as Rank
}
