//! [`Leading`]: what the servers of the first shard do besides: one makes the order, and the other
//! follows it so that it can go on when the first has failed.
//!
//! An entry of the order is done and told only when the second leader has it, and so is the OK of a
//! push. So the second has all that anybody has done. When it sees that the first has failed, it
//! waits until all others that it sees have seen that too (`moved` in the layout): from then on
//! nobody does what the first may still say.

use super::layout::{LOST, SKIPPED, word_of};
use super::living::Living;
use super::order::value_of;
use super::report::Counts;
use super::shared::Shared;
use super::signals::Signals;
use crate::error::{Error, Result};
use crate::staleness::{Decision, Entry, Ledger, Staleness};
use crate::types::Rank;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// What a worker has been told.
#[derive(Clone, Default)]
struct Told {
    oks: u64,
    /// Its words, as this leader has made them.
    oks_word: u64,
    slowest_word: u64,
}

/// See the module.
pub struct Leading {
    shared: Arc<Shared>,
    index: usize,
    evict_after: Option<Duration>,
    ledger: Ledger,
    /// By server and worker: pushes of which that server has said that they are left out.
    skipped: Vec<u64>,
    /// Entries that are not told to everybody, and how many are.
    fresh: VecDeque<Entry>,
    told: u64,
    /// How many entries are told before a decision is.
    decisions: VecDeque<(u64, Decision)>,
    /// The words of the order, as the others have them; of those to come in the second leader.
    order: Vec<u64>,
    workers: Vec<Told>,
    /// By worker: how often its place was given to another process, and whether that has not come
    /// yet: then its words are those of the one before.
    replaced: Vec<(u64, bool)>,
    /// Of the second leader: the entries that it has said to have, and since when it waits for the
    /// others.
    confirmed: u64,
    waits_since: Option<Duration>,
    has_told_end: bool,
    #[cfg(test)]
    pub mutant: Mutant,
}

/// What a broken implementation would do. Each must be found.
#[cfg(test)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Mutant {
    #[default]
    None,
    /// A shard applies a push when it has come there.
    AppliesAtOnce,
    /// The leader numbers a push when it has come there.
    NumbersEarly,
    /// The leader tells everybody an entry before the second leader has it.
    TellsEarly,
    /// A server lets a process in before it has come to where that gets its place.
    LetsInEarly,
}

impl Leading {
    pub fn new(
        shared: Arc<Shared>,
        index: usize,
        staleness: Staleness,
        evict_after: Option<Duration>,
    ) -> Result<Leading> {
        let layout = &shared.layout;
        let (workers, servers) = (layout.workers.len(), layout.servers.len());
        let make = match index {
            0 => Ledger::new,
            _ => Ledger::following,
        };
        Ok(Leading {
            ledger: make(staleness, workers as u32, servers as u32)?,
            index,
            evict_after,
            skipped: vec![0; servers * workers],
            fresh: VecDeque::new(),
            told: 0,
            decisions: VecDeque::new(),
            order: vec![0; layout.order_len()],
            workers: vec![Told::default(); workers],
            replaced: vec![(0, false); workers],
            confirmed: 0,
            waits_since: None,
            has_told_end: false,
            #[cfg(test)]
            mutant: Mutant::None,
            shared,
        })
    }

    /// Whether this server makes the order.
    pub fn leads(&self) -> bool {
        self.ledger.leads()
    }

    /// Whether the others know that the order is complete.
    pub fn has_told_end(&self) -> bool {
        self.has_told_end
    }

    /// The next push of a worker is left out.
    pub fn skip(&mut self, worker: usize) {
        self.ledger.skip(worker as u32);
    }

    /// A worker has finished, or has ended for good.
    pub fn detach(&mut self, worker: usize, for_good: bool) {
        let now = self.shared.now();
        match for_good {
            true => self.ledger.end(worker as u32, now),
            false => self.ledger.detach(worker as u32, now),
        }
    }

    /// Gives the place of a worker to another process; gives how often that was done, where a
    /// process that got it and was never there does not count. `None`: it cannot be given now.
    pub fn replace(&mut self, worker: usize) -> Option<u64> {
        let is_again = self.ledger.is_awaited(worker as u32);
        let is_given = !self.has_told_end && self.ledger.replace(worker as u32);
        is_given.then(|| {
            match is_again {
                true => self.replaced[worker].1 = true,
                false => self.await_next(worker),
            }
            self.replaced[worker].0
        })
    }

    fn await_next(&mut self, worker: usize) {
        let (count, is_awaited) = &mut self.replaced[worker];
        *count += 1;
        *is_awaited = true;
    }

    /// All that this server has told the worker that had this place is over.
    pub fn forget(&mut self, worker: usize) {
        self.workers[worker] = Told::default();
        let workers = self.workers.len();
        let of_worker = self.skipped.iter_mut().skip(worker).step_by(workers);
        of_worker.for_each(|known| *known = 0);
    }

    /// The words of a worker are those of the process that has its place now.
    pub fn let_in(&mut self, worker: usize) {
        self.replaced[worker].1 = false;
    }

    /// A server has failed.
    pub fn lose(&mut self, server: usize) -> Result<()> {
        self.ledger.lose(server as u32, self.shared.now())
    }

    /// Notes what the servers have, and what workers ask for. `come`: the pushes of each worker
    /// that have come here.
    pub fn note(&mut self, come: &[u64]) -> Result<()> {
        if self.has_told_end {
            // A worker that asks for something now finds that the servers leave.
            return Ok(());
        }
        let (layout, words) = (&self.shared.layout, &self.shared.words);
        let now = self.shared.now();
        for (worker, &come) in come.iter().enumerate() {
            let number = worker as u32;
            if self.replaced[worker].1 {
                continue;
            }
            let servers = match self.ledger.is_living(number) {
                true => layout.servers.len(),
                // What they have of one who was replaced is not up to date.
                false => 0,
            };
            for server in 0..servers {
                if server == self.index {
                    self.ledger.arrive(server as u32, number, come, now)?;
                    continue;
                }
                let word = words.load(layout.arrived(server, worker));
                let known = &mut self.skipped[server * layout.workers.len() + worker];
                if std::mem::replace(known, word / SKIPPED) != word / SKIPPED {
                    self.ledger.skip(number);
                }
                let count = word % LOST;
                #[cfg(test)]
                let count = match self.mutant {
                    Mutant::NumbersEarly => come,
                    _ => count,
                };
                self.ledger.arrive(server as u32, number, count, now)?;
                if word & LOST != 0 {
                    self.ledger.evict_lost(number, now);
                }
            }
            let asked = words.load(layout.asked(worker));
            self.ledger.request(number, asked, now)?;
        }
        if let Some(patience) = self.evict_after.filter(|_| self.ledger.leads()) {
            self.ledger.evict(now, patience);
        }
        Ok(())
    }

    /// Takes the next entry of the other leader's order, which its words told as `word`.
    pub fn follow(&mut self, entry: Entry, word: u64) {
        let place = self.told as usize % self.order.len();
        self.order[place] = word;
        self.told += 1;
        if let Entry::Replace(worker) = entry {
            self.await_next(worker as usize);
        }
        self.ledger.follow(entry);
    }

    /// Tells the first leader how much of its order is here.
    pub fn confirm(&mut self, signals: &mut Signals) -> Result<()> {
        let new = self.told - std::mem::replace(&mut self.confirmed, self.told);
        if new == 0 || self.leads() {
            return Ok(());
        }
        let shared = &self.shared;
        let place = (shared.layout.servers[0], shared.layout.confirmed());
        signals.add((&shared.comm, &shared.words), place, new)
    }

    /// Leads from now on, if all have seen that the first leader has failed. `is_finished` says
    /// which workers need no order any more.
    ///
    /// # Errors
    /// They have not within the timeout; or somebody has more of the order than this server.
    pub fn take_over(
        &mut self,
        living: &Living,
        is_finished: impl Fn(usize) -> bool,
        signals: &mut Signals,
    ) -> Result<()> {
        if self.leads() || living.leader() != self.index {
            return Ok(());
        }
        let shared = self.shared.clone();
        let (layout, words) = (&shared.layout, &shared.words);
        let now = shared.now();
        let servers = || living.servers().filter(|&server| server != self.index);
        let since = *self.waits_since.get_or_insert(now);
        let waited = now.saturating_sub(since);
        let moved = |at| words.load(at) != 0;
        let missing = servers().filter(|&server| !moved(layout.moved_server(server)));
        let mut missing: Vec<Rank> = missing.map(|server| layout.servers[server]).collect();
        let workers = (0..layout.workers.len()).filter(|&worker| !is_finished(worker));
        let (workers, late): (Vec<usize>, Vec<usize>) =
            workers.partition(|&worker| moved(layout.moved_worker(worker)));
        let is_patient = self.evict_after.is_none_or(|patience| waited <= patience);
        if !missing.is_empty() || (is_patient && !late.is_empty()) {
            missing.extend(late.iter().map(|&worker| layout.workers[worker]));
            return self.wait_to_lead(missing, waited);
        }
        for worker in late {
            self.ledger.evict_missing(worker as u32);
        }
        for server in servers() {
            let theirs = words.load(layout.moved_server(server)) - 1;
            if theirs > self.told {
                return Err(Error::Malformed(format!(
                    "server {server} has {theirs} entries of the order of the first leader, and the second has {}: the two had lost each other before",
                    self.told
                )));
            }
        }
        let mut oks = vec![0; self.workers.len()];
        for &worker in &workers {
            oks[worker] = words.load(layout.moved_worker(worker)) - 1;
            self.workers[worker].oks = oks[worker];
        }
        self.ledger.lead(&oks, now)?;
        // Nobody lacks more than these.
        for server in servers() {
            for number in self.told.saturating_sub(layout.order_len() as u64)..self.told {
                let place = layout.order(self.index, number);
                let word = self.order[number as usize % self.order.len()];
                let way = (&shared.comm, words);
                signals.add(way, (layout.servers[server], place), word)?;
            }
        }
        Ok(())
    }

    fn wait_to_lead(&self, missing: Vec<Rank>, waited: Duration) -> Result<()> {
        let comm = &self.shared.comm;
        let timeout = comm.driving()?.engine().config().timeout;
        if waited <= timeout {
            return Ok(());
        }
        Err(Error::Timeout {
            rank: comm.rank(),
            operation: "taking the first shard over".into(),
            waited,
            missing,
            detail: format!(
                "rank {} has failed for this one, and they have not told that they see that too: they call nothing, or its connections to some ranks alone are cut",
                self.shared.layout.servers[0]
            ),
        })
    }

    /// Takes new entries from the ledger and tells them: to the second leader at once, and to the
    /// others, with decisions, when that has them. Gives the entries that this server does now.
    pub fn make(
        &mut self,
        living: &Living,
        counts: &mut Counts,
        signals: &mut Signals,
    ) -> Result<Vec<Entry>> {
        if !self.leads() {
            return Ok(Vec::new());
        }
        let shared = self.shared.clone();
        let layout = &shared.layout;
        let second = living.second();
        while let Some(entry) = self.ledger.take_entry() {
            if let Some(second) = second {
                let number = self.told + self.fresh.len() as u64;
                self.tell(second, number, entry, signals)?;
            }
            self.fresh.push_back(entry);
        }
        let made = self.told + self.fresh.len() as u64;
        while let Some(decision) = self.ledger.take_decision() {
            self.decisions.push_back((made, decision));
        }
        let confirmed = match second {
            #[cfg(test)]
            Some(_) if self.mutant == Mutant::TellsEarly => made,
            Some(_) => shared.words.load(layout.confirmed()),
            None => made,
        };
        let mut now = Vec::new();
        while self.told < confirmed
            && let Some(entry) = self.fresh.pop_front()
        {
            for server in living.servers() {
                if server != self.index && Some(server) != second {
                    self.tell(server, self.told, entry, signals)?;
                }
            }
            let place = self.told as usize % self.order.len();
            self.order[place] = word_of(self.told + 1, value_of(entry));
            self.told += 1;
            now.push(entry);
        }
        while let Some((after, decision)) = self.decisions.front().copied() {
            if after > self.told {
                break;
            }
            self.decisions.pop_front();
            counts.note_decision(&decision);
            self.say(&decision, signals)?;
        }
        Ok(now)
    }

    /// Tells a server an entry of the order.
    fn tell(&self, server: usize, number: u64, entry: Entry, signals: &mut Signals) -> Result<()> {
        let layout = &self.shared.layout;
        let word = word_of(number + 1, value_of(entry));
        let mut old = self.order[number as usize % self.order.len()];
        let place = (layout.servers[server], layout.order(self.index, number));
        signals.set(
            (&self.shared.comm, &self.shared.words),
            place,
            word,
            &mut old,
        )
    }

    /// A worker has come back: its last push has its OK, if it went without.
    pub fn welcome(&mut self, worker: usize, signals: &mut Signals) -> Result<()> {
        if !self.leads() {
            return Ok(());
        }
        let told = &mut self.workers[worker];
        told.oks = self.ledger.numbered(worker as u32);
        let (word, layout) = (word_of(told.oks, 0), &self.shared.layout);
        let place = (layout.workers[worker], layout.oks(self.index));
        let way = (&self.shared.comm, &self.shared.words);
        signals.set(way, place, word, &mut told.oks_word)
    }

    /// Tells a worker whether it goes on.
    fn say(&mut self, decision: &Decision, signals: &mut Signals) -> Result<()> {
        let layout = &self.shared.layout;
        let way = (&self.shared.comm, &self.shared.words);
        let rank = layout.workers[decision.worker as usize];
        let told = &mut self.workers[decision.worker as usize];
        if decision.is_ok {
            told.oks += 1;
            let word = word_of(told.oks, decision.drift as u32);
            let place = (rank, layout.oks(self.index));
            signals.set(way, place, word, &mut told.oks_word)
        } else {
            let slowest = self.ledger.slowest();
            let word = slowest.map_or(0, |worker| u64::from(worker) + 1);
            let place = (rank, layout.slowest(self.index));
            signals.set(way, place, word, &mut told.slowest_word)
        }
    }

    /// No worker is left: tells the others how many entries there are.
    pub fn tell_end(&mut self, living: &Living, signals: &mut Signals) -> Result<()> {
        if !self.leads() || self.has_told_end || !self.fresh.is_empty() {
            return Ok(());
        }
        let shared = &self.shared;
        for server in living.servers().filter(|&server| server != self.index) {
            let at = shared.layout.ended(self.index);
            let place = (shared.layout.servers[server], at);
            signals.add((&shared.comm, &shared.words), place, self.told + 1)?;
        }
        self.has_told_end = true;
        Ok(())
    }
}
