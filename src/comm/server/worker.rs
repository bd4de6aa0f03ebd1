//! [`Worker`]: pushes gradients to all shards and pulls weights from them.
//!
//! Nothing here waits: [`Worker::turn`] does what can be done now.

use super::asking::Asking;
use super::gradients::OwnGradients;
use super::layout::{BY_INIT, BY_LOAD, LIES_THERE, READY_BITS, parts_of, word_of};
use super::operations::end_some;
use super::request::{Failure, Request};
use super::shared::Shared;
use super::signals::Signals;
use super::versions;
use crate::comm::{Buffer, Operation};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::types::DataType;
use std::sync::Arc;
use std::time::Duration;

/// Times that a pull meets an update before it has the next update held back.
const TORN_MAX: u32 = 2;

/// What is said with the OK of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Pushes of this worker less the fewest of any worker, at the time of the decision.
    pub drift: u64,
    /// The worker that others wait for, by number.
    pub slowest: Option<u32>,
}

/// A pull from one shard.
enum Pull {
    /// Until this worker's last push is in the weights.
    Apply,
    /// Of the versions, before and after the weights are read.
    Look(Operation, Buffer<u64>),
    /// Of weights of this version.
    Read(Operation, u64),
    /// Of the versions again.
    Check(Operation, Buffer<u64>, u64),
    /// The weights of this version are there.
    Done(u64),
}

struct Puller {
    state: Pull,
    /// Updates that were met, and whether the next one is held back.
    torn: u32,
    is_holding: bool,
}

/// See the module.
pub struct Worker {
    shared: Arc<Shared>,
    /// Its number.
    pub number: usize,
    /// Its caller has given the weights to begin with.
    pub has_begun: bool,
    /// It pushes no more.
    is_finishing: bool,
    evict_after: Duration,
    signals: Signals,
    /// Pushes that have been started.
    pub clock: u64,
    /// The version of the last pull, the oldest of all shards.
    pulled: u64,
    /// Its words in the shards, as it has made them.
    pushed: Vec<u64>,
    /// The gradients that are being pushed lie in its own memory for them.
    lies_there: bool,
    /// What is pushed: bytes of all tensors; the shards that have no room yet, and the operations.
    source: Option<Buffer<u8>>,
    unsent: Vec<usize>,
    sends: Vec<Operation>,
    /// Where a pull goes, by shard.
    target: Option<Buffer<u8>>,
    pullers: Vec<Puller>,
    /// Two words for each shard: the versions that a pull reads there.
    versions: Buffer<u64>,
    gradients: OwnGradients,
    asking: Asking,
    /// Memory for gradients and weights that do not lie in one buffer.
    packed: [Option<Buffer<u8>>; 2],
    /// The words that peers change, as they were.
    seen: Vec<u64>,
}

impl Worker {
    pub fn new(
        shared: Arc<Shared>,
        number: usize,
        evict_after: Option<Duration>,
    ) -> Result<Worker> {
        Ok(Worker {
            versions: shared.comm.alloc(2 * shared.layout.shards())?,
            number,
            has_begun: false,
            is_finishing: false,
            evict_after: evict_after.unwrap_or_default(),
            signals: Signals::new(),
            clock: 0,
            pulled: 0,
            pushed: vec![0; shared.layout.shards()],
            lies_there: false,
            source: None,
            unsent: Vec::new(),
            sends: Vec::new(),
            target: None,
            pullers: Vec::new(),
            gradients: OwnGradients::new(shared.clone()),
            asking: Asking::new(shared.clone(), number),
            packed: [None, None],
            seen: Vec::new(),
            shared,
        })
    }

    /// One buffer for all tensors in elements of `dtype`, kept between calls. 0 is for pushes, 1
    /// for pulls.
    pub fn packed(&mut self, which: usize, dtype: DataType) -> Result<Buffer<u8>> {
        let bytes = self.shared.layout.total() * dtype.size_bytes();
        let known = self.packed[which].take();
        let all = match known.filter(|known| known.len() >= bytes) {
            Some(known) => known,
            None => self.shared.comm.alloc::<u8>(bytes)?,
        };
        self.packed[which] = Some(all.clone());
        Ok(all.range(..bytes))
    }

    /// Puts the weights to begin with to all shards.
    pub fn start_init(&mut self, weights: &Buffer<u8>) -> Result<()> {
        let shared = self.shared.clone();
        let layout = &shared.layout;
        for shard in 0..layout.shards() {
            let source = weights.range(layout.bytes(shard, DataType::F32));
            let (rank, at) = (layout.servers[shard], layout.first(shard));
            let signal = (&shared.words, layout.begun());
            let send = shared.data.put_signal(&source, rank, at, signal, BY_INIT)?;
            self.sends.push(send);
        }
        Ok(())
    }

    /// Tells all shards that they have the weights to begin with, from a checkpoint.
    pub fn start_loaded(&mut self) -> Result<()> {
        let shared = self.shared.clone();
        for &server in &shared.layout.servers {
            let place = (server, shared.layout.begun());
            let way = (&shared.comm, &shared.words);
            self.signals.add(way, place, BY_LOAD)?;
        }
        Ok(())
    }

    /// Puts a request to all shards. The last one is answered.
    pub fn start_request(&mut self, request: &Request) -> Result<()> {
        self.asking.start(request)
    }

    /// All shards have answered the last request.
    pub fn is_answered(&self) -> bool {
        self.asking.is_answered()
    }

    /// What the shards have answered: the least version, or the first shard that has failed and
    /// why.
    pub fn answer_of_all(&self) -> std::result::Result<u64, (usize, Failure)> {
        let versions = self.asking.answers()?.into_iter();
        Ok(versions.map(|low| self.near(low)).min().unwrap_or(0))
    }

    /// The version of which these are the low bits, which is not long before the last pull.
    fn near(&self, low: u32) -> u64 {
        let since = low.wrapping_sub(self.pulled as u32) as i32;
        self.pulled.saturating_add_signed(i64::from(since))
    }

    /// The weights to begin with are there: gives their version, and how many pushes of this worker
    /// they have.
    pub fn begin(&mut self) -> (u64, u64) {
        let (words, layout) = (&self.shared.words, &self.shared.layout);
        let versions = words.load(layout.ready()) >> READY_BITS;
        self.pulled = versions / layout.shards() as u64;
        self.has_begun = true;
        (self.pulled, words.load(layout.resumed()) - 1)
    }

    /// An error if the others wait for this worker no more.
    pub fn check_evicted(&self) -> Result<()> {
        let (comm, layout) = (&self.shared.comm, &self.shared.layout);
        if self.shared.words.load(layout.evicted()) == 0 {
            return Ok(());
        }
        Err(Error::Timeout {
            rank: comm.rank(),
            operation: format!("worker {} after push {}", self.number, self.clock),
            waited: self.evict_after,
            missing: vec![comm.rank()],
            detail: "the other workers have waited for it and go on without it (ServerOptions::evict_after)".into(),
        })
    }

    /// Takes memory for gradients, and tells all shards where it is.
    pub fn start_gradients(&mut self) -> Result<()> {
        self.gradients.start(self.number, &mut self.signals)
    }

    /// There is room for the next push in the memory for gradients.
    pub fn has_room(&self) -> bool {
        self.gradients.has_room(self.clock + 1)
    }

    /// The room for the next push.
    pub fn slot(&self) -> Option<Buffer<u8>> {
        self.gradients.slot(self.clock + 1)
    }

    /// The pushes that all shards have applied.
    fn applied_by_all(&self) -> u64 {
        let shards = 0..self.shared.layout.shards();
        let behind = |shard| (self.clock as u32).wrapping_sub(self.applied(shard).0);
        self.clock - u64::from(shards.map(behind).max().unwrap_or(0))
    }

    /// Starts to push gradients, which hold the bytes of all tensors.
    ///
    /// # Errors
    /// Something writes them.
    pub fn start_push(&mut self, gradients: Buffer<u8>) -> Result<()> {
        self.lies_there = self.gradients.lend(&gradients, self.clock + 1)?;
        self.clock += 1;
        self.source = Some(gradients);
        // Each worker begins with another shard, so that none waits while another has them all.
        let shards = self.shared.layout.shards();
        self.unsent = (0..shards).map(|at| (at + self.number) % shards).collect();
        Ok(())
    }

    /// Starts to pull weights into memory for the bytes of all tensors.
    pub fn start_pull(&mut self, weights: Buffer<u8>) {
        self.target = Some(weights);
        let fresh = |_| Puller {
            state: Pull::Apply,
            torn: 0,
            is_holding: false,
        };
        self.pullers = (0..self.shared.layout.shards()).map(fresh).collect();
    }

    /// Tells all shards that this worker pushes no more.
    pub fn start_finish(&mut self) -> Result<()> {
        self.is_finishing = true;
        let shared = self.shared.clone();
        for &server in &shared.layout.servers {
            let place = (server, shared.layout.finished(self.number));
            self.signals.add((&shared.comm, &shared.words), place, 1)?;
        }
        Ok(())
    }

    /// Does what can be done now.
    pub fn turn(&mut self) -> Result<()> {
        self.check_evicted()?;
        // Of a worker that was stopped, the servers may be gone.
        self.go_on()
            .or_else(|error| self.check_evicted().and(Err(error)))
    }

    fn go_on(&mut self) -> Result<()> {
        let shared = self.shared.clone();
        let words = shared.layout.worker_words();
        self.seen = words.map(|at| shared.words.load(at)).collect();
        self.push()?;
        self.gradients.take_back(self.applied_by_all());
        self.asking.turn(&mut self.signals)?;
        for shard in 0..self.pullers.len() {
            while self.pull(shard)? {}
        }
        let needed = match self.is_finishing {
            // Servers leave as soon as all workers have finished.
            true => &[],
            false => &shared.layout.servers[..],
        };
        self.signals.collect(&shared.comm, needed)?;
        let engine = shared.comm.driving()?.engine();
        let gone = needed.iter().find(|&&server| engine.has_ended(server));
        match gone {
            Some(&server) => {
                let what = format!("push {} of worker {}", self.clock, self.number);
                Err(engine.error_of_ended(server, what))
            }
            None => Ok(()),
        }
    }

    /// Whether something has come that a turn may go on with.
    pub fn has_news(&self, engine: &Engine) -> bool {
        let words = &self.shared.words;
        let mut places = self.shared.layout.worker_words().zip(&self.seen);
        let has_ended = |operation: &Operation| operation.has_ended(engine);
        let pulls = || {
            self.pullers.iter().any(|puller| match &puller.state {
                Pull::Look(one, _) | Pull::Read(one, _) | Pull::Check(one, ..) => has_ended(one),
                Pull::Apply | Pull::Done(_) => false,
            })
        };
        places.any(|(at, &seen)| words.load(at) != seen)
            || self.sends.iter().any(has_ended)
            || self.asking.has_news(engine)
            || pulls()
    }

    /// The weights to begin with are on all shards.
    pub fn is_ready(&self) -> bool {
        let (words, layout) = (&self.shared.words, &self.shared.layout);
        let count = words.load(layout.ready()) & ((1 << READY_BITS) - 1);
        count == layout.shards() as u64 && words.load(layout.resumed()) != 0
    }

    /// The gradients of the last push may be changed: all of them are sent.
    pub fn is_pushed(&self) -> bool {
        self.unsent.is_empty() && self.sends.is_empty()
    }

    /// The last push has its OK.
    pub fn is_ok(&self) -> bool {
        let oks = self.shared.words.load(self.shared.layout.oks());
        parts_of(oks).0 == self.clock as u32
    }

    /// It has said that it pushes no more.
    pub fn is_finishing(&self) -> bool {
        self.is_finishing
    }

    /// Nothing of this worker is under way.
    pub fn is_idle(&self) -> bool {
        self.is_pushed() && self.signals.is_idle()
    }

    /// All pushes are in the weights.
    pub fn is_applied(&self) -> bool {
        let mut shards = 0..self.shared.layout.shards();
        shards.all(|shard| self.applied(shard).0 == self.clock as u32)
    }

    /// How many pushes a shard has applied, and its version after the last one.
    fn applied(&self, shard: usize) -> (u32, u32) {
        let at = self.shared.layout.applied(shard);
        parts_of(self.shared.words.load(at))
    }

    /// What the controller has said last.
    pub fn answer(&self) -> Answer {
        let (words, layout) = (&self.shared.words, &self.shared.layout);
        let slowest = words.load(layout.slowest());
        Answer {
            drift: u64::from(parts_of(words.load(layout.oks())).1),
            slowest: slowest.checked_sub(1).map(|slowest| slowest as u32),
        }
    }

    /// All weights are there.
    pub fn is_pulled(&self) -> bool {
        let mut pullers = self.pullers.iter();
        pullers.all(|puller| matches!(puller.state, Pull::Done(_)))
    }

    /// The versions of the weights that were pulled, by shard.
    pub fn take_pulled(&mut self) -> Vec<u64> {
        let versions = self
            .pullers
            .drain(..)
            .filter_map(|puller| match puller.state {
                Pull::Done(version) => Some(version),
                _ => None,
            });
        let versions: Vec<u64> = versions.collect();
        self.pulled = versions.iter().copied().min().unwrap_or(self.pulled);
        self.target = None;
        versions
    }

    fn push(&mut self) -> Result<()> {
        let shared = self.shared.clone();
        let layout = &shared.layout;
        if let (Some(source), false) = (&self.source, self.unsent.is_empty()) {
            let pulled = self.pulled as u32 & !LIES_THERE;
            let (pushed, clock) = (&mut self.pushed, self.clock);
            let (lies_there, own, signals) = (self.lies_there, &self.gradients, &mut self.signals);
            let (push, sends) = (self.clock - 1, &mut self.sends);
            let mut unsent = std::mem::take(&mut self.unsent);
            let mut failed = Ok(());
            unsent.retain(|&shard| {
                let (applied, _) = parts_of(shared.words.load(layout.applied(shard)));
                let held = (push as u32).wrapping_sub(applied) as usize;
                if held >= layout.slots || failed.is_err() {
                    return true;
                }
                let is_read = lies_there && own.is_read_by(shard);
                let flag = if is_read { LIES_THERE } else { 0 };
                let word = word_of(clock, pulled | flag);
                let add = word.wrapping_sub(std::mem::replace(&mut pushed[shard], word));
                let (rank, at) = (layout.servers[shard], layout.slot(shard, self.number, push));
                let signal = (&shared.words, layout.pushed(self.number));
                if is_read {
                    failed = signals.add((&shared.comm, signal.0), (rank, signal.1), add);
                    return false;
                }
                let part = source.range(layout.bytes(shard, layout.gradients));
                match shared.data.put_signal(&part, rank, at, signal, add) {
                    Ok(send) => sends.push(send),
                    Err(error) => failed = Err(error),
                }
                false
            });
            failed?;
            self.unsent = unsent;
            if self.unsent.is_empty() {
                self.source = None;
            }
        }
        end_some(&shared, &mut self.sends)
    }

    /// Goes on with the pull from a shard; true: it may go on at once.
    fn pull(&mut self, shard: usize) -> Result<bool> {
        let shared = self.shared.clone();
        let (layout, words) = (&shared.layout, &shared.words);
        let server = layout.servers[shard];
        let Some(target) = &self.target else {
            return Ok(false);
        };
        let (applied, version) = self.applied(shard);
        // Before its first push a worker has pulled nothing newer than what it began with.
        let known = match self.clock {
            0 => self.pulled,
            _ => self.near(version),
        };
        let read = |version: u64| -> Result<Operation> {
            let part = target.range(layout.bytes(shard, layout.pulls));
            shared
                .data
                .get(&part, server, layout.weights(shard, version))
        };
        let puller = &mut self.pullers[shard];
        let look = || -> Result<(Operation, Buffer<u64>)> {
            let versions = self.versions.range(2 * shard..2 * shard + 2);
            let look = words.get(&versions, server, layout.versions())?;
            Ok((look, versions))
        };
        let next = match &mut puller.state {
            Pull::Apply if applied != self.clock as u32 => return Ok(false),
            // No update begins before this worker pushes again.
            Pull::Apply if layout.is_bsp => Pull::Read(read(known)?, known),
            Pull::Apply => {
                let (look, versions) = look()?;
                Pull::Look(look, versions)
            }
            Pull::Look(operation, versions) => {
                if !operation.test()? {
                    return Ok(false);
                }
                let version = versions.to_vec()?[0];
                versions::read_weights_after();
                Pull::Read(read(version)?, version)
            }
            Pull::Read(operation, version) => {
                if !operation.test()? {
                    return Ok(false);
                }
                if layout.is_bsp {
                    Pull::Done(*version)
                } else {
                    versions::read_begun_after();
                    let (look, versions) = look()?;
                    Pull::Check(look, versions, *version)
                }
            }
            Pull::Check(operation, versions, version) => {
                if !operation.test()? {
                    return Ok(false);
                }
                // Two versions lie beside each other: the next but one takes the place of this.
                if versions::is_whole(*version, versions.to_vec()?[1]) {
                    if std::mem::take(&mut puller.is_holding) {
                        let place = (server, layout.held(self.number));
                        (self.signals).add((&shared.comm, words), place, u64::MAX)?;
                    }
                    Pull::Done(*version)
                } else {
                    puller.torn += 1;
                    if puller.torn >= TORN_MAX && !puller.is_holding {
                        puller.is_holding = true;
                        let place = (server, layout.held(self.number));
                        self.signals.add((&shared.comm, words), place, 1)?;
                    }
                    Pull::Apply
                }
            }
            Pull::Done(_) => return Ok(false),
        };
        puller.state = next;
        Ok(true)
    }
}
