//! [`Shard`]: a part of the weights, which takes pushes and updates them.
//!
//! Nothing here waits: [`Shard::turn`] does what can be done now. Servers tell the leaders what has
//! come ([`Leading`]), and those tell them the order.

mod places;

pub use places::NoPlace;

use super::checkpoint::{self, Checkpoint, Rule};
use super::gradients::MappedGradients;
use super::layout::{BY_LOAD, LIES_THERE, LOST, SKIPPED, parts_of, word_of};
use super::leading::Leading;
#[cfg(test)]
use super::leading::Mutant;
use super::living::Living;
use super::options::{NonFinitePush, ServerOptions};
use super::order::entry_of;
use super::report::{Counts, ServerReport};
use super::request::{Failure, REQUEST_BYTES, Request};
use super::shared::Shared;
use super::signals::Signals;
use super::weights::{UpdateFn, Weights};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::memory::View;
use crate::optimizer;
use crate::staleness::Entry;
use std::collections::VecDeque;
use std::sync::Arc;

/// What a shard knows of a worker.
#[derive(Clone, Default)]
struct Pushes {
    /// How many have come, how many have been applied, and how many were in the weights to begin
    /// with.
    come: u64,
    done: u64,
    before: u64,
    /// Those that are not applied: the versions that they were computed from, and where they lie.
    waiting: VecDeque<(u32, View)>,
    /// It pushes no more.
    is_finished: bool,
    /// It was taken out, and its process may be there.
    is_evicted: bool,
    /// Its place was given to a process that has not come: its words are those of the one before.
    is_awaited: bool,
    /// Its words, as this server has made them: the last answer, and what is applied; and what was
    /// added to the words of leaders that count its pushes here.
    answered: u64,
    applied: u64,
    told: u64,
    /// How often its place was given to another process, and the signals that say so to leaders.
    replaced: u64,
    told_by: u64,
}

/// See the module.
pub struct Shard {
    shared: Arc<Shared>,
    /// The number of this server.
    index: usize,
    options: ServerOptions,
    weights: Weights,
    gradients: MappedGradients,
    /// Of the servers of the first shard.
    leading: Option<Leading>,
    living: Living,
    /// The server whose order this one does.
    leader: usize,
    signals: Signals,
    workers: Vec<Pushes>,
    /// Entries of the order that are not done yet, and how many there have been.
    queue: VecDeque<Entry>,
    numbered: u64,
    /// Workers and pushes of the next update.
    open: Vec<(usize, View)>,
    has_begun: bool,
    /// What the first worker has asked to begin with.
    loaded: Option<Checkpoint>,
    counts: Counts,
    /// The words that peers change, and the peers that have ended, as they were.
    seen: (Vec<u64>, u32),
    #[cfg(test)]
    pub mutant: Mutant,
    /// All entries of the order that were done.
    #[cfg(test)]
    pub log: Vec<Entry>,
}

impl Shard {
    pub fn new(
        shared: Arc<Shared>,
        index: usize,
        options: ServerOptions,
        function: Option<UpdateFn>,
    ) -> Result<Shard> {
        let layout = &shared.layout;
        let workers = layout.workers.len();
        let leads = index < layout.leaders();
        let spares = workers - layout.spares..;
        let leading = leads.then(|| {
            let mut leading = Leading::new(
                shared.clone(),
                index,
                options.staleness,
                options.evict_after,
            )?;
            (spares.clone().take(layout.spares)).for_each(|spare| leading.detach(spare, true));
            Ok(leading)
        });
        let mut of_workers = vec![Pushes::default(); workers];
        (of_workers[spares].iter_mut()).for_each(|spare| spare.is_finished = true);
        Ok(Shard {
            leading: leading.transpose()?,
            living: Living::new(layout),
            leader: 0,
            gradients: MappedGradients::new(workers),
            signals: Signals::new(),
            workers: of_workers,
            queue: VecDeque::new(),
            numbered: 0,
            open: Vec::new(),
            has_begun: false,
            loaded: None,
            counts: Counts::new(options.staleness),
            seen: (Vec::new(), 0),
            #[cfg(test)]
            mutant: Mutant::None,
            #[cfg(test)]
            log: Vec::new(),
            weights: {
                let (optimizer, rate) = (options.optimizer, options.rate);
                Weights::new(shared.clone(), index, Rule { optimizer, rate }, function)?
            },
            options,
            index,
            shared,
        })
    }

    /// Does what can be done now. True: all workers have finished, and all that they have pushed is
    /// applied.
    pub fn turn(&mut self) -> Result<bool> {
        let words = self.shared.layout.server_words();
        self.seen.0 = words.map(|at| self.word(at)).collect();
        self.begin()?;
        let is_there = |worker: usize| !self.workers[worker].is_awaited;
        self.gradients
            .note(&self.shared, self.index, is_there, &mut self.signals)?;
        self.note_pushes()?;
        self.note_ends()?;
        self.read_order()?;
        self.make_order()?;
        self.follow_order()?;
        let layout = &self.shared.layout;
        let needed = self.living.needed(layout);
        self.signals.collect(&self.shared.comm, needed)?;
        let mut ends = (0..layout.leaders()).map(|leader| self.word(layout.ended(leader)));
        let is_over = match &self.leading {
            Some(leading) if leading.leads() => leading.has_told_end(),
            _ => ends.any(|end| end == self.numbered + 1),
        };
        Ok(is_over && self.queue.is_empty() && self.signals.is_idle())
    }

    /// Whether something has come that a turn may go on with.
    pub fn has_news(&self, engine: &Engine) -> bool {
        let mut places = self.shared.layout.server_words().zip(&self.seen.0);
        places.any(|(at, &seen)| self.word(at) != seen) || engine.peers_changed() != self.seen.1
    }

    /// All workers have finished: what is left to be waited for is no news.
    pub fn is_ending(&self) -> bool {
        self.workers.iter().all(|pushes| pushes.is_finished)
    }

    /// The weights.
    #[cfg(test)]
    pub fn weights(&self) -> Vec<f32> {
        self.weights.to_vec()
    }

    pub fn report(&self) -> ServerReport {
        let shard = self.shared.layout.shard_of(self.index);
        let report = self.counts.report(shard, self.weights.version());
        ServerReport {
            pushes: self.pushes(),
            ..report
        }
    }

    /// By worker: pushes that were taken, also before the weights to begin with.
    fn pushes(&self) -> Vec<u64> {
        let all = self.workers.iter();
        all.map(|pushes| pushes.before + pushes.done).collect()
    }

    fn word(&self, at: usize) -> u64 {
        self.shared.words.load(at)
    }

    /// Takes the weights to begin with.
    fn begin(&mut self) -> Result<()> {
        let (shared, layout) = (self.shared.clone(), &self.shared.layout);
        let begun = self.word(layout.begun());
        if self.has_begun || begun == 0 {
            return Ok(());
        }
        let mut pushes = Vec::new();
        if let Some(checkpoint) = self.loaded.take().filter(|_| begun == BY_LOAD) {
            self.weights.begin_with(&checkpoint)?;
            pushes = checkpoint.head.pushes;
        }
        self.weights.publish_first();
        self.has_begun = true;
        let way = (&shared.comm, &shared.words);
        // Those of other workers say nothing of these.
        pushes.resize_with(layout.workers.len(), || 0);
        for ((&worker, pushes), known) in layout.workers.iter().zip(pushes).zip(&mut self.workers) {
            known.before = pushes;
            if known.is_finished {
                continue;
            }
            let place = (worker, layout.resumed(self.index));
            self.signals.add(way, place, pushes + 1)?;
            let place = (worker, layout.ready(self.index));
            self.signals.add(way, place, self.weights.version() + 1)?;
        }
        Ok(())
    }

    /// Notes which pushes have come whole, here and, on a leader, in the other servers.
    fn note_pushes(&mut self) -> Result<()> {
        let shared = self.shared.clone();
        let layout = &shared.layout;
        for worker in 0..layout.workers.len() {
            let word = self.word(layout.pushed(worker));
            let pushes = &mut self.workers[worker];
            let (count, pulled) = parts_of(word);
            let new = count.wrapping_sub(pushes.come as u32);
            if new == 0 || pushes.is_awaited {
                continue;
            }
            pushes.come += u64::from(new);
            // A worker pushes again when it has its OK, which follows from this.
            if new > 1 || pushes.come - pushes.done > layout.slots as u64 {
                return Err(Error::Malformed(format!(
                    "worker {worker}, rank {}, has pushed {new} times at once, or has more than {} pushes that are not applied",
                    layout.workers[worker], layout.slots
                )));
            }
            let push = pushes.come - 1;
            let place = match pulled & LIES_THERE {
                0 => self.weights.slot(worker, push),
                _ => self.gradients.place(&shared, (self.index, worker), push)?,
            };
            let waiting = &mut self.workers[worker].waiting;
            waiting.push_back((pulled & !LIES_THERE, place));
            let is_skipped = self.is_left_out(worker, push, place)?;
            #[cfg(test)]
            if self.mutant == Mutant::AppliesAtOnce && self.leading.is_none() {
                self.queue.push_back(Entry::Push {
                    worker: worker as u32,
                    is_last: true,
                    is_skipped: false,
                });
            }
            if let Some(leading) = self.leading.as_mut().filter(|_| is_skipped) {
                leading.skip(worker);
            }
            self.tell_leaders(worker, if is_skipped { SKIPPED + 1 } else { 1 })?;
        }
        let Some(leading) = &mut self.leading else {
            return Ok(());
        };
        #[cfg(test)]
        {
            leading.mutant = self.mutant;
        }
        let come: Vec<u64> = self.workers.iter().map(|pushes| pushes.come).collect();
        leading.note(&come)
    }

    /// Adds to the words of a worker's pushes in this server that the other leaders have.
    fn tell_leaders(&mut self, worker: usize, add: u64) -> Result<()> {
        let (shared, layout) = (&self.shared, &self.shared.layout);
        let others = (0..layout.leaders()).filter(|&leader| leader != self.index);
        for leader in others.filter(|&leader| self.living.is_there(leader)) {
            let place = (layout.servers[leader], layout.arrived(self.index, worker));
            (self.signals).add((&shared.comm, &shared.words), place, add)?;
        }
        let told = &mut self.workers[worker].told;
        *told = told.wrapping_add(add);
        Ok(())
    }

    /// Whether a push that has come is to be left out.
    ///
    /// # Errors
    /// It has a NaN or an infinity, and that is an error.
    fn is_left_out(&self, worker: usize, push: u64, place: View) -> Result<bool> {
        let is_bad = self.options.nonfinite != NonFinitePush::Accept
            && optimizer::has_nonfinite(self.shared.layout.gradients, place);
        if is_bad && self.options.nonfinite == NonFinitePush::Error {
            let layout = &self.shared.layout;
            return Err(Error::invalid(format!(
                "push {} of worker {worker}, rank {}, has a NaN or an infinity among elements {:?}: look at that rank's loss, or take NonFinitePush::Skip",
                push + 1,
                layout.workers[worker],
                layout.range(layout.shard_of(self.index))
            )));
        }
        Ok(is_bad)
    }

    /// Notes which servers and workers have ended, and which workers have finished.
    ///
    /// # Errors
    /// No server of a shard is left; or the first worker ended before it gave the weights to begin
    /// with.
    fn note_ends(&mut self) -> Result<()> {
        let shared = self.shared.clone();
        let layout = &shared.layout;
        let engine = shared.comm.driving()?.engine();
        self.seen.1 = engine.peers_changed();
        let (leader, index) = (self.leader, self.index);
        let has_told_end = self.leading.as_ref().is_some_and(Leading::has_told_end);
        let is_complete = has_told_end || shared.words.load(layout.ended(leader)) != 0;
        let has_ended = |server: usize, rank| {
            // Those that know that the order is complete leave.
            let is_needed = (server == leader || index == leader) && !is_complete;
            engine.has_failed(rank) || (is_needed && engine.has_ended(rank))
        };
        let what = |server| format!("the work of shard {}", layout.shard_of(server));
        let gone = self.living.note(layout, &engine, has_ended, what)?;
        let first = layout.workers[0];
        let has_begun = self.has_begun || shared.words.load(layout.begun()) != 0;
        if !has_begun && engine.has_ended(first) {
            let what = "the wait for the weights to begin with".to_string();
            return Err(engine.error_of_ended(first, what));
        }
        let mut lost = Vec::new();
        for (worker, pushes) in self.workers.iter_mut().enumerate() {
            let says_so = shared.words.load(layout.finished(worker)) % 2 == 1;
            let rank = layout.workers[worker];
            if !pushes.is_finished && (says_so || engine.has_ended(rank)) {
                pushes.is_finished = true;
                if !says_so {
                    self.counts.lost.push(rank);
                    lost.push(worker);
                }
                if let Some(leading) = &mut self.leading {
                    leading.detach(worker, !says_so);
                }
            }
        }
        drop(engine);
        if self.living.may_lose() {
            // A worker that this server has lost may be there for others.
            (lost.into_iter()).try_for_each(|worker| self.tell_leaders(worker, LOST))?;
        }
        gone.into_iter().try_for_each(|server| self.lose(server))
    }

    /// Goes on without a server, of which another one has the shard.
    fn lose(&mut self, server: usize) -> Result<()> {
        let shared = self.shared.clone();
        let layout = &shared.layout;
        let rank = layout.servers[server];
        if !self.counts.lost.contains(&rank) {
            self.counts.lost.push(rank);
        }
        self.signals.leave(rank);
        if let Some(leading) = &mut self.leading {
            leading.lose(server)?;
        }
        let leader = self.living.leader();
        if std::mem::replace(&mut self.leader, leader) != leader && leader != self.index {
            let place = (layout.servers[leader], layout.moved_server(self.index));
            let way = (&shared.comm, &shared.words);
            self.signals.add(way, place, self.numbered + 1)?;
        }
        Ok(())
    }

    /// Takes the order of the leader, if that is another server.
    fn read_order(&mut self) -> Result<()> {
        let layout = &self.shared.layout;
        while self.leader != self.index {
            let word = self.word(layout.order(self.leader, self.numbered));
            let (number, value) = parts_of(word);
            if number != self.numbered as u32 + 1 {
                break;
            }
            let Some(entry) = entry_of(value, layout.workers.len()) else {
                let text = format!("entry {} of the order is {value:#x}", self.numbered);
                return Err(Error::Malformed(text));
            };
            self.numbered += 1;
            #[cfg(test)]
            if self.mutant == Mutant::AppliesAtOnce && self.leading.is_none() {
                continue;
            }
            if let Some(leading) = &mut self.leading {
                leading.follow(entry, word);
            }
            self.queue.push_back(entry);
        }
        match &mut self.leading {
            Some(leading) if self.leader != self.index => leading.confirm(&mut self.signals),
            _ => Ok(()),
        }
    }

    /// Makes the order, if this server leads or may do so now.
    fn make_order(&mut self) -> Result<()> {
        let is_ending = self.is_ending();
        let Some(leading) = &mut self.leading else {
            return Ok(());
        };
        let (living, signals) = (&self.living, &mut self.signals);
        let workers = &self.workers;
        leading.take_over(living, |worker| workers[worker].is_finished, signals)?;
        let entries = leading.make(living, &mut self.counts, signals)?;
        self.numbered += entries.len() as u64;
        self.queue.extend(entries);
        match is_ending {
            true => leading.tell_end(living, signals),
            false => Ok(()),
        }
    }

    /// Whether a worker reads the weights and has met too many updates.
    fn is_held(&self) -> bool {
        let layout = &self.shared.layout;
        let mut workers = self.workers.iter().enumerate();
        workers.any(|(worker, pushes)| !pushes.is_finished && self.word(layout.held(worker)) != 0)
    }

    /// Does what is in order.
    fn follow_order(&mut self) -> Result<()> {
        while let Some(&next) = self.queue.front() {
            let updates = matches!(next, Entry::Push { is_last: true, .. } | Entry::EndOfRound);
            if updates && self.is_held() {
                return Ok(());
            }
            self.queue.pop_front();
            #[cfg(test)]
            self.log.push(next);
            match next {
                Entry::Push {
                    worker, is_skipped, ..
                } => self.take_push(worker as usize, is_skipped)?,
                Entry::EndOfRound => {}
                Entry::Request(worker) => self.answer(worker as usize)?,
                Entry::Evict(worker) => self.evict(worker as usize)?,
                Entry::Replace(worker) => self.forget(worker as usize)?,
            }
            if updates {
                self.update()?;
            }
        }
        Ok(())
    }

    /// Takes the next push of a worker into the next update, or leaves it out.
    fn take_push(&mut self, worker: usize, is_skipped: bool) -> Result<()> {
        let version = self.weights.version();
        let pushes = &mut self.workers[worker];
        let Some((pulled, place)) = pushes.waiting.pop_front() else {
            let text = format!("a push of worker {worker} that has not come is in order");
            return Err(Error::Malformed(text));
        };
        pushes.done += 1;
        if is_skipped {
            self.counts.skipped += 1;
            return self.tell_applied(worker);
        }
        self.counts.note_staleness(version, pulled);
        self.open.push((worker, place));
        Ok(())
    }

    /// Updates the weights with all pushes that were taken since the last update.
    fn update(&mut self) -> Result<()> {
        if self.open.is_empty() {
            return Ok(());
        }
        self.open.sort_by_key(|&(worker, _)| worker);
        let gradients: Vec<View> = self.open.iter().map(|&(_, slot)| slot).collect();
        self.weights.update(&gradients)?;
        // Each shard tells another worker first, so that they do not all pull from one at a time.
        let first = self.index % self.open.len();
        self.open.rotate_left(first);
        for (worker, _) in std::mem::take(&mut self.open) {
            self.tell_applied(worker)?;
        }
        Ok(())
    }

    /// Tells a worker which of its pushes are done, and the version.
    fn tell_applied(&mut self, worker: usize) -> Result<()> {
        let shared = &self.shared;
        let pushes = &mut self.workers[worker];
        let word = word_of(pushes.done, self.weights.version() as u32);
        let place = (
            shared.layout.workers[worker],
            shared.layout.applied(self.index),
        );
        let way = (&shared.comm, &shared.words);
        self.signals.set(way, place, word, &mut pushes.applied)
    }

    /// Does what a worker asks for, and tells it how that went.
    fn answer(&mut self, worker: usize) -> Result<()> {
        let shared = self.shared.clone();
        let layout = &shared.layout;
        let mut bytes = vec![0; REQUEST_BYTES];
        shared
            .data
            .read(layout.request(self.index, worker), &mut bytes)?;
        let request = Request::parse(&bytes).ok_or_else(|| {
            Error::Malformed(format!("a request of worker {worker} that there is not"))
        })?;
        let mut version = self.weights.version();
        let done = match request {
            Request::SetOptimizer(optimizer, rate, from) => {
                self.weights.set_rule(from, Rule { optimizer, rate });
                // The next one, from which it may hold.
                version += 1;
                Ok(())
            }
            Request::Save(folder) => {
                let mut pushes = self.pushes();
                self.open
                    .iter()
                    .for_each(|&(worker, _)| pushes[worker] -= 1);
                self.weights.save(&folder, pushes)
            }
            Request::Attach => {
                self.workers[worker].is_finished = false;
                if let Some(leading) = &mut self.leading {
                    leading.welcome(worker, &mut self.signals)?;
                }
                Ok(())
            }
            Request::Load(folder) => {
                let range = layout.range(layout.shard_of(self.index));
                let loaded = checkpoint::load(&folder, &shared.tensors, &range);
                loaded.map(|checkpoint| {
                    version = checkpoint.head.version;
                    self.loaded = Some(checkpoint);
                })
            }
        };
        let code = done.err().map_or(0, Failure::code);
        let known = &mut self.workers[worker].answered;
        let number = (parts_of(*known).0 >> 8) + 1;
        let word = word_of(u64::from(number << 8) | u64::from(code), version as u32);
        let place = (layout.workers[worker], layout.answered(self.index));
        self.signals
            .set((&shared.comm, &shared.words), place, word, known)
    }

    /// Waits no more for a worker.
    fn evict(&mut self, worker: usize) -> Result<()> {
        let shared = self.shared.clone();
        let rank = shared.layout.workers[worker];
        if !std::mem::replace(&mut self.workers[worker].is_finished, true) {
            self.counts.lost.push(rank);
        }
        self.workers[worker].is_evicted = true;
        if self.leading.is_some() {
            let place = (rank, shared.layout.evicted());
            self.signals.add((&shared.comm, &shared.words), place, 1)?;
        }
        // It may be stopped, and then answers nothing.
        self.signals.leave(rank);
        Ok(())
    }
}
