//! [`Ledger`]: the one order in which all shards of a parameter server apply pushes and do what
//! workers ask for.
//!
//! A push counts when every server has its part of it. The ledger then numbers it, and all shards
//! apply pushes in the order of these numbers: so each is applied once everywhere or nowhere, and
//! the order alone tells all weights.
//!
//! A second ledger can follow the order of the first one and lead when that has failed.

use super::controller::{Controller, Decision};
use super::options::Staleness;
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::time::Duration;

/// What all shards do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Take the next push of a worker.
    Push {
        /// Whose it is.
        worker: u32,
        /// The weights are updated with all pushes since the last update, this one included.
        is_last: bool,
        /// The push is left out.
        is_skipped: bool,
    },
    /// Update the weights with all pushes since the last update: the last worker of a round that
    /// had not pushed has gone.
    EndOfRound,
    /// Do what a worker asks for in its next request. If it had finished, it is there again.
    Request(u32),
    /// Wait no more for a worker, which others have waited for too long.
    Evict(u32),
    /// Another process takes the place of a worker that has ended: its pushes and requests are
    /// counted from 0 on. It is there when it asks for something.
    Replace(u32),
}

/// See the module.
#[derive(Debug)]
pub struct Ledger {
    /// Without workers while it follows.
    controller: Controller,
    leads: bool,
    /// One update takes the pushes of all workers.
    is_bsp: bool,
    /// By worker: how many pushes each server has.
    arrived: Vec<Vec<u64>>,
    /// Servers that have failed.
    lost: Vec<bool>,
    /// By worker: pushes that are numbered; requests, and those that are in the order.
    numbered: Vec<u64>,
    asked: Vec<u64>,
    ordered: Vec<u64>,
    /// By worker: what is added to its pushes for the controller, because it was away.
    base: Vec<i64>,
    /// Workers that are there, those that cannot come back, and those that have pushed since the
    /// last update.
    living: Vec<bool>,
    gone: Vec<bool>,
    open: Vec<bool>,
    /// By worker: whether its push that is not numbered yet is left out; and whether its place was
    /// given to a process that has not been there yet.
    skipped: Vec<bool>,
    awaited: Vec<bool>,
    order: VecDeque<Entry>,
    decisions: VecDeque<Decision>,
}

impl Ledger {
    /// For workers 0 to `workers` - 1, who are all there, and as many servers.
    ///
    /// # Errors
    /// [`Staleness::check`].
    pub fn new(staleness: Staleness, workers: u32, servers: u32) -> Result<Ledger> {
        let mut ledger = Ledger::following(staleness, workers, servers)?;
        ledger.lead(&vec![0; workers as usize], Duration::ZERO)?;
        Ok(ledger)
    }

    /// As [`Ledger::new`], but the order is that of another ledger: [`Ledger::follow`].
    ///
    /// # Errors
    /// [`Staleness::check`].
    pub fn following(staleness: Staleness, workers: u32, servers: u32) -> Result<Ledger> {
        let count = workers as usize;
        Ok(Ledger {
            controller: Controller::new(staleness, workers)?,
            leads: false,
            is_bsp: staleness == Staleness::Bsp,
            arrived: vec![vec![0; servers as usize]; count],
            lost: vec![false; servers as usize],
            numbered: vec![0; count],
            asked: vec![0; count],
            ordered: vec![0; count],
            base: vec![0; count],
            living: vec![true; count],
            gone: vec![false; count],
            open: vec![false; count],
            skipped: vec![false; count],
            awaited: vec![false; count],
            order: VecDeque::new(),
            decisions: VecDeque::new(),
        })
    }

    /// Takes the next entry of the order of the ledger that leads.
    pub fn follow(&mut self, entry: Entry) {
        match entry {
            Entry::Push {
                worker, is_last, ..
            } => {
                let worker = worker as usize;
                self.numbered[worker] += 1;
                self.open[worker] = true;
                self.skipped[worker] = false;
                if is_last {
                    self.open.fill(false);
                }
            }
            Entry::EndOfRound => self.open.fill(false),
            Entry::Request(worker) => {
                self.ordered[worker as usize] += 1;
                self.come_back(worker as usize);
            }
            Entry::Evict(worker) => {
                self.living[worker as usize] = false;
                self.gone[worker as usize] = true;
            }
            Entry::Replace(worker) => self.forget(worker as usize),
        }
    }

    /// Nothing is known of the process that has the place of a worker.
    fn forget(&mut self, at: usize) {
        self.living[at] = false;
        self.gone[at] = false;
        self.skipped[at] = false;
        self.arrived[at].fill(0);
        (self.numbered[at], self.base[at]) = (0, 0);
        (self.asked[at], self.ordered[at]) = (0, 0);
        self.awaited[at] = true;
    }

    /// Gives the place of a worker to another process, in the order too, unless the one that got it
    /// last was never there. False: it cannot be given now, because the worker is there, or has
    /// pushed in a round that is not over.
    pub fn replace(&mut self, worker: u32) -> bool {
        let at = worker as usize;
        if !self.leads || self.living[at] || self.open[at] {
            return false;
        }
        if !self.awaited[at] {
            self.order.push_back(Entry::Replace(worker));
        }
        self.forget(at);
        true
    }

    /// Whether the process that got the place of a worker last has not been there yet.
    pub fn is_awaited(&self, worker: u32) -> bool {
        self.awaited[worker as usize]
    }

    /// Whether a worker is there.
    pub fn is_living(&self, worker: u32) -> bool {
        self.living[worker as usize]
    }

    /// A worker that asks for something is there again, and has pushed as often as the slowest one;
    /// whether it was away.
    fn come_back(&mut self, at: usize) -> bool {
        if self.living[at] || self.gone[at] {
            return false;
        }
        let living = (0..self.living.len()).filter(|&other| self.living[other]);
        let fewest = living.map(|other| self.clock(other)).min();
        let fewest = fewest.unwrap_or(self.clock(at));
        self.base[at] = fewest as i64 - self.numbered[at] as i64;
        self.living[at] = true;
        self.awaited[at] = false;
        true
    }

    /// The pushes of a worker, as the controller counts them.
    fn clock(&self, at: usize) -> u64 {
        self.numbered[at].saturating_add_signed(self.base[at])
    }

    /// Makes the order from here on. `oks`: how many OKs each worker has had.
    ///
    /// # Errors
    /// A worker has an OK for a push that is not in the order, or none for one before its last.
    pub fn lead(&mut self, oks: &[u64], time: Duration) -> Result<()> {
        let living = || (0..).zip(&self.living).filter(|(_, living)| **living);
        let workers: Vec<u32> = living().map(|(worker, _)| worker).collect();
        for &worker in &workers {
            let (pushes, oks) = (self.numbered[worker as usize], oks[worker as usize]);
            if oks > pushes || oks + 1 < pushes {
                return Err(Error::Malformed(format!(
                    "worker {worker} has {oks} OKs, and the order has {pushes} of its pushes"
                )));
            }
            let clock = self.clock(worker as usize) - (pushes - oks);
            self.controller.attach_with(worker, clock, None)?;
        }
        self.leads = true;
        for &worker in &workers {
            let clock = self.clock(worker as usize);
            if oks[worker as usize] < self.numbered[worker as usize] {
                let decisions = self.controller.push(worker, clock, time)?;
                self.decisions.extend(decisions);
            }
        }
        if self.open.contains(&true) && self.end_round() {
            self.order.push_back(Entry::EndOfRound);
        }
        for worker in workers {
            self.number(worker, time)?;
            self.order_requests(worker, time)?;
        }
        Ok(())
    }

    /// How many pushes of a worker are in the order.
    pub fn numbered(&self, worker: u32) -> u64 {
        self.numbered[worker as usize]
    }

    /// Whether this ledger makes the order.
    pub fn leads(&self) -> bool {
        self.leads
    }

    /// A server has `count` pushes of a worker, at this time of the controller's clock.
    ///
    /// # Errors
    /// There is no such server or worker, the count has become less, or the worker has pushed
    /// before it had the OK of its last push.
    pub fn arrive(&mut self, server: u32, worker: u32, count: u64, time: Duration) -> Result<()> {
        let of_worker = self.arrived.get_mut(worker as usize);
        let place = of_worker.and_then(|servers| servers.get_mut(server as usize));
        match place {
            Some(known) if *known <= count => *known = count,
            place => {
                let known = place.map_or(0, |known| *known);
                return Err(Error::Malformed(format!(
                    "server {server} says that it has {count} pushes of worker {worker}, and had {known} before"
                )));
            }
        }
        self.number(worker, time)
    }

    /// A server has failed: pushes count without it.
    ///
    /// # Errors
    /// As of [`Ledger::arrive`].
    pub fn lose(&mut self, server: u32, time: Duration) -> Result<()> {
        self.lost[server as usize] = true;
        (0..self.living.len() as u32).try_for_each(|worker| self.number(worker, time))
    }

    /// The next push of a worker that is numbered counts and is left out of the weights. A shard
    /// says so before it says that it has the push.
    pub fn skip(&mut self, worker: u32) {
        if let Some(skipped) = self.skipped.get_mut(worker as usize) {
            *skipped = true;
        }
    }

    /// Numbers the pushes of a worker that every server has.
    fn number(&mut self, worker: u32, time: Duration) -> Result<()> {
        let at = worker as usize;
        if !self.leads || !self.living[at] {
            return Ok(());
        }
        let servers = self.arrived[at].iter().zip(&self.lost);
        let counts = servers.filter(|(_, lost)| !**lost).map(|(&count, _)| count);
        let whole = counts.min().unwrap_or(0);
        while self.numbered[at] < whole {
            let clock = self.clock(at) + 1;
            let decisions = self.controller.push(worker, clock, time)?;
            self.numbered[at] += 1;
            self.open[at] = true;
            let is_skipped = std::mem::take(&mut self.skipped[at]);
            let is_last = self.end_round();
            self.order.push_back(Entry::Push {
                worker,
                is_last,
                is_skipped,
            });
            self.decisions.extend(decisions);
        }
        Ok(())
    }

    /// A worker has asked `count` times for something of all servers, which have the requests.
    ///
    /// # Errors
    /// There is no such worker.
    pub fn request(&mut self, worker: u32, count: u64, time: Duration) -> Result<()> {
        let asked = &mut self.asked[worker as usize];
        *asked = count.max(*asked);
        self.order_requests(worker, time)
    }

    fn order_requests(&mut self, worker: u32, time: Duration) -> Result<()> {
        let at = worker as usize;
        while self.leads && !self.gone[at] && self.ordered[at] < self.asked[at] {
            self.ordered[at] += 1;
            if self.come_back(at) {
                let clock = self.clock(at);
                self.controller.attach_with(worker, clock, Some(time))?;
            }
            self.order.push_back(Entry::Request(worker));
        }
        Ok(())
    }

    /// Takes out the workers that others have waited for, and that have not pushed, for longer than
    /// `patience`.
    pub fn evict(&mut self, now: Duration, patience: Duration) {
        while let Some(worker) = self.controller.overdue(now, patience) {
            self.order.push_back(Entry::Evict(worker));
            self.end(worker, now);
        }
    }

    /// A server has lost a worker, which may be there for others: it is taken out.
    pub fn evict_lost(&mut self, worker: u32, now: Duration) {
        if self.leads && self.living[worker as usize] {
            self.order.push_back(Entry::Evict(worker));
            self.end(worker, now);
        }
    }

    /// Takes a worker out before this ledger leads.
    pub fn evict_missing(&mut self, worker: u32) {
        self.order.push_back(Entry::Evict(worker));
        self.living[worker as usize] = false;
        self.gone[worker as usize] = true;
    }

    /// A worker has died, or is taken out. As of [`Ledger::detach`], and it cannot come back.
    pub fn end(&mut self, worker: u32, time: Duration) {
        self.detach(worker, time);
        if let Some(gone) = self.gone.get_mut(worker as usize) {
            *gone = true;
        }
    }

    /// A worker has finished. What of its pushes is not numbered never is. Those go on that
    /// waited for it.
    pub fn detach(&mut self, worker: u32, time: Duration) {
        match self.living.get_mut(worker as usize) {
            Some(living) if *living => *living = false,
            _ => return,
        }
        if !self.leads {
            return;
        }
        let decisions = self.controller.detach(worker, time);
        if self.open.contains(&true) && self.end_round() {
            self.order.push_back(Entry::EndOfRound);
        }
        self.decisions.extend(decisions);
    }

    /// Whether the weights are updated now: with bulk synchronous workers, when all that are there
    /// have pushed.
    fn end_round(&mut self) -> bool {
        let mut all = self.living.iter().zip(&self.open);
        let is_last = !self.is_bsp || all.all(|(&is_there, &has_pushed)| !is_there || has_pushed);
        if is_last {
            self.open.fill(false);
        }
        is_last
    }

    /// The next entry of the order, once.
    pub fn take_entry(&mut self) -> Option<Entry> {
        self.order.pop_front()
    }

    /// The next decision, once. Those that are no OK tell only why a worker waits.
    pub fn take_decision(&mut self) -> Option<Decision> {
        self.decisions.pop_front()
    }

    /// The worker that others wait for.
    pub fn slowest(&self) -> Option<u32> {
        self.controller.slowest()
    }
}
