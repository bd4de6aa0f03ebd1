//! [`Ledger`]: the one order in which all shards of a parameter server apply pushes and do what
//! workers ask for.
//!
//! A push counts when every shard has its part of it. The ledger then numbers it, and all shards
//! apply pushes in the order of these numbers: so each is applied once everywhere or nowhere, and
//! the order alone tells all weights.

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
    /// Do what a worker asks for in its next request.
    Request(u32),
    /// Wait no more for a worker, which others have waited for too long.
    Evict(u32),
}

/// See the module.
#[derive(Debug)]
pub struct Ledger {
    controller: Controller,
    /// One update takes the pushes of all workers.
    is_bsp: bool,
    /// By worker: how many pushes each shard has.
    arrived: Vec<Vec<u64>>,
    /// By worker: pushes that are numbered.
    numbered: Vec<u64>,
    /// Workers that are there, and those that have pushed since the last update.
    living: Vec<bool>,
    open: Vec<bool>,
    /// By worker: whether its push that is not numbered yet is left out.
    skipped: Vec<bool>,
    order: VecDeque<Entry>,
    decisions: VecDeque<Decision>,
}

impl Ledger {
    /// For workers 0 to `workers` - 1, who are all there, and as many shards.
    ///
    /// # Errors
    /// [`Staleness::check`].
    pub fn new(staleness: Staleness, workers: u32, shards: u32) -> Result<Ledger> {
        let mut controller = Controller::new(staleness, workers)?;
        for worker in 0..workers {
            controller.attach(worker)?;
        }
        Ok(Ledger {
            controller,
            is_bsp: staleness == Staleness::Bsp,
            arrived: vec![vec![0; shards as usize]; workers as usize],
            numbered: vec![0; workers as usize],
            living: vec![true; workers as usize],
            open: vec![false; workers as usize],
            skipped: vec![false; workers as usize],
            order: VecDeque::new(),
            decisions: VecDeque::new(),
        })
    }

    /// A shard has `count` pushes of a worker, at this time of the controller's clock.
    ///
    /// # Errors
    /// There is no such shard or worker, the count has become less, or the worker has pushed before
    /// it had the OK of its last push.
    pub fn arrive(&mut self, shard: u32, worker: u32, count: u64, time: Duration) -> Result<()> {
        let of_worker = self.arrived.get_mut(worker as usize);
        let place = of_worker.and_then(|shards| shards.get_mut(shard as usize));
        let Some(known) = place.filter(|known| **known <= count) else {
            return Err(Error::Malformed(format!(
                "shard {shard} says that it has {count} pushes of worker {worker}"
            )));
        };
        *known = count;
        if !self.living[worker as usize] {
            return Ok(());
        }
        let shards = &self.arrived[worker as usize];
        let whole = shards.iter().copied().min().unwrap_or(0);
        while self.numbered[worker as usize] < whole {
            self.number(worker, time)?;
        }
        Ok(())
    }

    /// The next push of a worker that is numbered counts and is left out of the weights. A shard
    /// says so before it says that it has the push.
    pub fn skip(&mut self, worker: u32) {
        if let Some(skipped) = self.skipped.get_mut(worker as usize) {
            *skipped = true;
        }
    }

    fn number(&mut self, worker: u32, time: Duration) -> Result<()> {
        let pushes = &mut self.numbered[worker as usize];
        let decisions = self.controller.push(worker, *pushes + 1, time)?;
        *pushes += 1;
        self.open[worker as usize] = true;
        let is_skipped = std::mem::take(&mut self.skipped[worker as usize]);
        let is_last = self.end_round();
        self.order.push_back(Entry::Push {
            worker,
            is_last,
            is_skipped,
        });
        self.decisions.extend(decisions);
        Ok(())
    }

    /// A worker asks for something of all shards, which have the request.
    pub fn request(&mut self, worker: u32) {
        if self.living.get(worker as usize) == Some(&true) {
            self.order.push_back(Entry::Request(worker));
        }
    }

    /// Takes out the workers that others have waited for, and that have not pushed, for longer than
    /// `patience`.
    pub fn evict(&mut self, now: Duration, patience: Duration) {
        while let Some(worker) = self.controller.overdue(now, patience) {
            self.order.push_back(Entry::Evict(worker));
            self.detach(worker, now);
        }
    }

    /// A worker has finished or died. What of its pushes is not numbered never is. Those go on that
    /// waited for it.
    pub fn detach(&mut self, worker: u32, time: Duration) {
        match self.living.get_mut(worker as usize) {
            Some(living) if *living => *living = false,
            _ => return,
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
