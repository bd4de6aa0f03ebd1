//! [`Worker`]: pushes gradients to all servers and pulls weights from them.
//!
//! Nothing here waits: [`Worker::turn`] does what can be done now.

use super::asking::Asking;
use super::gradients::OwnGradients;
use super::layout::{BY_INIT, BY_LOAD, LIES_THERE, parts_of, word_of};
use super::living::Living;
use super::operations::end_some;
use super::pulling::Pulling;
use super::request::{Failure, Request};
use super::shared::Shared;
use super::signals::Signals;
use crate::comm::{Buffer, Operation};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::types::{DataType, Rank};
use std::sync::Arc;
use std::time::Duration;

/// What is said with the OK of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Pushes of this worker less the fewest of any worker, at the time of the decision.
    pub drift: u64,
    /// The worker that others wait for, by number.
    pub slowest: Option<u32>,
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
    living: Living,
    /// The OKs that the first leader had given when it failed.
    oks_before: Option<u64>,
    /// Its words in the servers, as it has made them.
    pushed: Vec<u64>,
    /// The gradients that are being pushed lie in its own memory for them.
    lies_there: bool,
    /// What is pushed: bytes of all tensors; the servers that have no room yet, and the operations.
    source: Option<Buffer<u8>>,
    unsent: Vec<usize>,
    sends: Vec<Operation>,
    pulling: Pulling,
    gradients: OwnGradients,
    asking: Asking,
    /// Memory for gradients and weights that do not lie in one buffer.
    packed: [Option<Buffer<u8>>; 2],
    /// The words that peers change, and the peers that have ended, as they were.
    seen: (Vec<u64>, u32),
}

impl Worker {
    pub fn new(
        shared: Arc<Shared>,
        number: usize,
        evict_after: Option<Duration>,
    ) -> Result<Worker> {
        Ok(Worker {
            pulling: Pulling::new(shared.clone(), number)?,
            living: Living::new(&shared.layout),
            oks_before: None,
            number,
            has_begun: false,
            is_finishing: false,
            evict_after: evict_after.unwrap_or_default(),
            signals: Signals::new(),
            clock: 0,
            pushed: vec![0; shared.layout.servers.len()],
            lies_there: false,
            source: None,
            unsent: Vec::new(),
            sends: Vec::new(),
            gradients: OwnGradients::new(shared.clone()),
            asking: Asking::new(shared.clone(), number),
            packed: [None, None],
            seen: (Vec::new(), 0),
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

    /// Puts the weights to begin with to all servers.
    pub fn start_init(&mut self, weights: &Buffer<u8>) -> Result<()> {
        let shared = self.shared.clone();
        let layout = &shared.layout;
        for server in self.living.servers() {
            let source = weights.range(layout.bytes(layout.shard_of(server), DataType::F32));
            let (rank, at) = (layout.servers[server], layout.first(server));
            let signal = (&shared.words, layout.begun());
            let send = shared.data.put_signal(&source, rank, at, signal, BY_INIT)?;
            self.sends.push(send);
        }
        Ok(())
    }

    /// Tells all servers that they have the weights to begin with, from a checkpoint.
    pub fn start_loaded(&mut self) -> Result<()> {
        let shared = self.shared.clone();
        for &server in &shared.layout.servers {
            let place = (server, shared.layout.begun());
            let way = (&shared.comm, &shared.words);
            self.signals.add(way, place, BY_LOAD)?;
        }
        Ok(())
    }

    /// Puts a request to all servers. The last one is answered.
    pub fn start_request(&mut self, request: &Request) -> Result<()> {
        self.asking.start(request, &self.living)
    }

    /// All servers have answered the last request.
    pub fn is_answered(&self) -> bool {
        self.asking.is_answered(&self.living)
    }

    /// What the servers have answered: the least version, or the first server that has failed to
    /// do it and why.
    pub fn answer_of_all(&self) -> std::result::Result<u64, (usize, Failure)> {
        let versions = self.asking.answers(&self.living)?.into_iter();
        Ok((versions.map(|low| self.pulling.near(low)).min()).unwrap_or(0))
    }

    /// The weights to begin with are there: gives their version, and how many pushes of this worker
    /// they have.
    pub fn begin(&mut self) -> (u64, u64) {
        let (words, layout) = (&self.shared.words, &self.shared.layout);
        let first = self.living.servers().next().unwrap_or(0);
        self.pulling.pulled = words.load(layout.ready(first)) - 1;
        self.has_begun = true;
        let resumed = words.load(layout.resumed(first)) - 1;
        (self.pulling.pulled, resumed)
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

    /// Takes memory for gradients, and tells all servers where it is.
    pub fn start_gradients(&mut self) -> Result<()> {
        (self.gradients).start(self.number, &mut self.signals, &self.living)
    }

    /// There is room for the next push in the memory for gradients.
    pub fn has_room(&self) -> bool {
        self.gradients.has_room(self.clock + 1, &self.living)
    }

    /// The room for the next push.
    pub fn slot(&self) -> Option<Buffer<u8>> {
        self.gradients.slot(self.clock + 1)
    }

    /// The pushes that all servers have applied.
    fn applied_by_all(&self) -> u64 {
        let behind = |server| (self.clock as u32).wrapping_sub(self.applied(server));
        self.clock - u64::from(self.living.servers().map(behind).max().unwrap_or(0))
    }

    /// Starts to push gradients, which hold the bytes of all tensors.
    ///
    /// # Errors
    /// Something writes them.
    pub fn start_push(&mut self, gradients: Buffer<u8>) -> Result<()> {
        self.lies_there = (self.gradients).lend(&gradients, self.clock + 1, &self.living)?;
        self.clock += 1;
        self.source = Some(gradients);
        self.unsent = self.living.servers().collect();
        // Each worker begins with another server, so that none waits while another has them all.
        let first = self.number % self.unsent.len().max(1);
        self.unsent.rotate_left(first);
        Ok(())
    }

    /// Starts to pull weights into memory for the bytes of all tensors.
    pub fn start_pull(&mut self, weights: Buffer<u8>) {
        self.pulling.start(weights, &self.living);
    }

    /// Tells all servers that this worker pushes no more.
    pub fn start_finish(&mut self) -> Result<()> {
        self.is_finishing = true;
        let shared = self.shared.clone();
        for server in self.living.servers() {
            let place = (
                shared.layout.servers[server],
                shared.layout.finished(self.number),
            );
            self.signals.add((&shared.comm, &shared.words), place, 1)?;
        }
        Ok(())
    }

    /// Tells all servers that this worker pushes again. When nothing of that is under way, it asks
    /// to be waited for ([`Request::Attach`]).
    pub fn start_return(&mut self) -> Result<()> {
        self.start_finish()?;
        self.is_finishing = false;
        Ok(())
    }

    /// The servers wait for this worker again since this version.
    pub fn end_return(&mut self, version: u64) {
        self.pulling.back_since = version;
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
        self.seen.0 = words.map(|at| shared.words.load(at)).collect();
        if !self.is_finishing {
            self.note_servers()?;
        }
        self.push()?;
        self.gradients.take_back(self.applied_by_all());
        self.asking.turn(&mut self.signals, &self.living)?;
        (self.pulling).turn(self.clock, &self.living, &mut self.signals)?;
        let needed = match self.is_finishing {
            // Servers leave as soon as all workers have finished.
            true => &[],
            false => self.living.needed(&shared.layout),
        };
        self.signals.collect(&shared.comm, needed)
    }

    /// Notes which servers have ended.
    ///
    /// # Errors
    /// No server is left of a shard.
    fn note_servers(&mut self) -> Result<()> {
        let shared = self.shared.clone();
        let layout = &shared.layout;
        let engine = shared.comm.driving()?.engine();
        self.seen.1 = engine.peers_changed();
        let what = |_| format!("push {} of worker {}", self.clock, self.number);
        let has_ended = |_, rank| engine.has_ended(rank);
        let new = self.living.note(layout, &engine, has_ended, what)?;
        drop(engine);
        for &server in &new {
            self.unsent.retain(|&one| one != server);
            self.signals.leave(layout.servers[server]);
        }
        if self.unsent.is_empty() {
            self.source = None;
        }
        let leader = self.living.leader();
        // Before it is let in, a server may not have made its words known to this process.
        if leader > 0 && self.oks_before.is_none() && self.is_ready() {
            let oks = self.clock - u64::from(!self.is_ok());
            self.oks_before = Some(oks);
            let place = (layout.servers[leader], layout.moved_worker(self.number));
            (self.signals).add((&shared.comm, &shared.words), place, oks + 1)?;
        }
        Ok(())
    }

    /// Whether something has come that a turn may go on with.
    pub fn has_news(&self, engine: &Engine) -> bool {
        let words = &self.shared.words;
        let mut places = self.shared.layout.worker_words().zip(&self.seen.0);
        let has_ended = |operation: &Operation| operation.has_ended(engine);
        places.any(|(at, &seen)| words.load(at) != seen)
            || self.sends.iter().any(has_ended)
            || self.asking.has_news(engine)
            || self.pulling.has_news(engine)
            || engine.peers_changed() != self.seen.1
    }

    /// The ranks of the servers that are there.
    pub fn servers(&self) -> Vec<Rank> {
        let servers = self.living.servers();
        servers
            .map(|server| self.shared.layout.servers[server])
            .collect()
    }

    /// The weights to begin with are on all servers.
    pub fn is_ready(&self) -> bool {
        let (words, layout) = (&self.shared.words, &self.shared.layout);
        let has_told = |server| {
            words.load(layout.ready(server)) != 0 && words.load(layout.resumed(server)) != 0
        };
        self.living.servers().all(has_told)
    }

    /// The gradients of the last push may be changed: all of them are sent.
    pub fn is_pushed(&self) -> bool {
        self.unsent.is_empty() && self.sends.is_empty()
    }

    /// The last push has its OK.
    pub fn is_ok(&self) -> bool {
        let layout = &self.shared.layout;
        // What a leader gives that has failed is not known to the next one.
        let leader = usize::from(self.oks_before.is_some());
        let oks = parts_of(self.shared.words.load(layout.oks(leader))).0;
        self.oks_before == Some(self.clock) || oks == self.clock as u32
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
        let is_applied = |server| self.applied(server) == self.clock as u32;
        self.living.servers().all(is_applied)
    }

    /// How many pushes a server has applied.
    fn applied(&self, server: usize) -> u32 {
        let at = self.shared.layout.applied(server);
        parts_of(self.shared.words.load(at)).0
    }

    /// What the controller has said last.
    pub fn answer(&self) -> Answer {
        let (words, layout) = (&self.shared.words, &self.shared.layout);
        let leader = self.living.leader();
        let slowest = words.load(layout.slowest(leader));
        Answer {
            drift: u64::from(parts_of(words.load(layout.oks(leader))).1),
            slowest: slowest.checked_sub(1).map(|slowest| slowest as u32),
        }
    }

    /// All weights are there.
    pub fn is_pulled(&self) -> bool {
        self.pulling.is_done()
    }

    /// The versions of the weights that were pulled, by shard.
    pub fn take_pulled(&mut self) -> Vec<u64> {
        self.pulling.take()
    }

    fn push(&mut self) -> Result<()> {
        let shared = self.shared.clone();
        let layout = &shared.layout;
        if let (Some(source), false) = (&self.source, self.unsent.is_empty()) {
            let pulled = self.pulling.pulled as u32 & !LIES_THERE;
            let (pushed, clock) = (&mut self.pushed, self.clock);
            let (lies_there, own, signals) = (self.lies_there, &self.gradients, &mut self.signals);
            let (push, sends) = (self.clock - 1, &mut self.sends);
            let mut unsent = std::mem::take(&mut self.unsent);
            let mut failed = Ok(());
            unsent.retain(|&server| {
                let (applied, _) = parts_of(shared.words.load(layout.applied(server)));
                let held = (push as u32).wrapping_sub(applied) as usize;
                if held >= layout.slots || failed.is_err() {
                    return true;
                }
                let is_read = lies_there && own.is_read_by(server);
                let flag = if is_read { LIES_THERE } else { 0 };
                let word = word_of(clock, pulled | flag);
                let add = word.wrapping_sub(std::mem::replace(&mut pushed[server], word));
                let rank = layout.servers[server];
                let at = layout.slot(server, self.number, push);
                let signal = (&shared.words, layout.pushed(self.number));
                if is_read {
                    failed = signals.add((&shared.comm, signal.0), (rank, signal.1), add);
                    return false;
                }
                let bytes = layout.bytes(layout.shard_of(server), layout.gradients);
                let part = source.range(bytes);
                match shared.data.put_signal(&part, rank, at, signal, add) {
                    Ok(send) => sends.push(send),
                    Err(error) => failed = Err(error),
                }
                false
            });
            self.living.without_ends(failed)?;
            self.unsent = unsent;
            if self.unsent.is_empty() {
                self.source = None;
            }
        }
        (self.living).without_ends(end_some(&shared, &mut self.sends))
    }
}
