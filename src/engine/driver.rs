//! Runs the steps of rounds: the only place where schedule, transport and kernel meet.
//!
//! This file decides what runs when; `driver/signals.rs`, `driver/messages.rs` and
//! `driver/compute.rs` run the three kinds of steps. `driver/profiled.rs` times them.

mod compute;
mod messages;
mod profiled;
mod signals;

use super::arguments::RoundCall;
use super::links::Links;
use super::memory::CallViews;
use super::pool::{Bounced, Pool};
use super::program::{Message, What};
use super::round::{Round, RoundId, RoundOf};
use super::step_state::NONE;
use super::streaming::Streaming;
use super::thread_pool::ThreadPool;
use crate::error::{Error, Result};
use crate::memory::View;
use crate::schedule::{Action, BufferId, Operand, Range, StepId};
use crate::types::Rank;
use crate::wait::{Looks, Profile};

/// What the engine may use of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Threads that share large copies and reductions, the driving one included.
    pub threads_max: usize,
    /// Bytes of the last-level cache, `usize::MAX` if unknown: operations that touch this many
    /// bytes or more use streaming stores.
    pub cache_bytes: usize,
    /// Buffers have no bytes (simulation).
    pub is_size_only: bool,
}

/// What became of a step that was run. It is as wide as a pointer, so that [`Stepped`] fits two
/// registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
enum Ran {
    /// All of it is done.
    Whole,
    /// It waits for a message that is under way or for an earlier step, whose end lets it go on.
    Part,
    /// It has to be tried again.
    NotYet,
    /// All of it is done, and the round is to be repeated. No further step of the round runs,
    /// because its input must stay as it was.
    Redirected,
}

/// What became of a step, or why its round fails. The error is boxed, because it is large.
type Stepped = std::result::Result<Ran, Box<Error>>;

/// Runs the steps of a round that may run now.
type RunSteps = fn(&mut Driver, &mut Round, StepId) -> std::result::Result<(), Box<Error>>;

/// Runs steps on links.
pub struct Driver {
    /// Something moved since this was last cleared.
    pub moved: bool,
    /// Some round may have something to do. The code that gives a round work sets it, so that an
    /// event need not look at every round.
    pub has_work: bool,
    /// Collective rounds that this rank has retired, without gaps.
    pub retired: u64,
    /// The longest message whose source need not be registered.
    inline_bytes: usize,
    chunks_in_flight: u32,
    /// Copies of unregistered memory that are being sent.
    bounced: Vec<Bounced>,
    pub links: Links,
    /// How often a wait looks for a signal that is not there before it is left for later.
    pub looks: Looks,
    pub chunk_bytes: usize,
    pub pool: Pool,
    /// Per peer: the number of the first message of pairwise rounds that has not been posted as a
    /// whole. Only this message may be sent, so that later ones never take the places that it
    /// needs.
    pair_heads: Vec<u64>,
    /// Per peer: the number of the first message with a tag that has not begun.
    tagged_heads: Vec<u64>,
    threads: ThreadPool,
    streaming: Streaming,
    /// See [`Host::cache_bytes`].
    cache_bytes: usize,
    /// Where time goes, if somebody wants to know.
    profile: Option<Box<Profile>>,
    /// [`Driver::run_steps`] with or without a profile, so that the loop itself never asks.
    run_steps: RunSteps,
    /// The views of the piece at hand.
    sources: Vec<View>,
    destinations: Vec<View>,
}

impl Driver {
    pub fn new(links: Links, pool: Pool, chunk_bytes: usize, host: Host) -> Driver {
        Driver {
            pair_heads: vec![0; links.ranks as usize],
            tagged_heads: vec![0; links.ranks as usize],
            inline_bytes: links.transport.capabilities().inline_bytes,
            chunks_in_flight: links.transport.capabilities().chunks_in_flight,
            links,
            pool,
            bounced: Vec::new(),
            chunk_bytes,
            looks: Looks::ONCE,
            moved: false,
            has_work: false,
            retired: 0,
            threads: ThreadPool::new(host.threads_max),
            streaming: Streaming::new(host.cache_bytes),
            cache_bytes: host.cache_bytes,
            profile: None,
            run_steps: Driver::run_steps::<false>,
            sources: Vec::new(),
            destinations: Vec::new(),
        }
    }

    /// Begins a round and gives it its memory: the caller's buffers, a window slot, scratch memory.
    #[inline]
    pub fn begin(&mut self, round: &mut Round, of: RoundOf, call: &RoundCall<'_>) -> Result<()> {
        let is_new = round.take_up(call, of.part, (self.links.ranks, self.chunk_bytes));
        self.begin_known(round, of, call, is_new)
    }

    /// As [`Driver::begin`], of a round that has taken up its call. `is_new`: that call is not what
    /// it has run last.
    #[inline]
    pub fn begin_known(
        &mut self,
        round: &mut Round,
        of: RoundOf,
        call: &RoundCall<'_>,
        is_new: bool,
    ) -> Result<()> {
        round.begin(of, self.links.ranks);
        match is_new || call.prepared.moves_memory {
            true => self.equip(round, call, is_new),
            false => Ok(()),
        }
    }

    /// Gives a round its memory, where that is not what it had last.
    #[inline(never)]
    fn equip(&mut self, round: &mut Round, call: &RoundCall<'_>, is_new: bool) -> Result<()> {
        let mut is_new = is_new || !call.others.is_empty();
        round.memory.scratch = None;
        if call.prepared.uses_scratch {
            let transport = self.links.transport.as_mut();
            let bytes = round.program.scratch_bytes;
            round.memory.scratch = Some(self.pool.lend(bytes, transport)?);
        }
        let mut window = View::empty();
        if let (true, RoundId::Collective(sequence)) = (call.prepared.uses_windows, round.id) {
            window = self.links.window_slot(self.links.rank, sequence);
            is_new = true;
        }
        let views = CallViews {
            input: &call.arguments.input,
            output: &call.arguments.output,
            others: call.others,
        };
        round.memory.equip(&round.program, views, window, is_new);
        Ok(())
    }

    /// Runs everything in the round that can run now.
    #[inline]
    pub fn run(&mut self, round: &mut Round) -> Result<()> {
        for at in 0..round.parked.len() {
            round.progress.enqueue(round.parked[at]);
        }
        round.parked.clear();
        self.run_ready(round, NONE).map_err(|error| *error)
    }

    /// Runs a step that may start, those that its end lets start, and all others that may start
    /// now.
    #[inline]
    pub fn run_ready(
        &mut self,
        round: &mut Round,
        first: StepId,
    ) -> std::result::Result<(), Box<Error>> {
        (self.run_steps)(self, round, first)
    }

    /// As [`Driver::run_ready`]. A step that cannot be run yet is parked. This function is not
    /// inlined, because only in a function of its own do its values fit the registers. Errors are
    /// boxed, so that the result fits one register.
    #[inline(never)]
    fn run_steps<const IS_PROFILED: bool>(
        &mut self,
        round: &mut Round,
        first: StepId,
    ) -> std::result::Result<(), Box<Error>> {
        if round.is_redirected {
            return Ok(());
        }
        let mut step = match first {
            NONE => round.progress.next_ready(),
            first => first,
        };
        while step != NONE {
            let ran = match IS_PROFILED {
                true => self.run_profiled(round, step)?,
                false => self.run_step(round, step)?,
            };
            let next = match ran {
                Ran::Whole => {
                    self.moved = true;
                    round.end_step(step)
                }
                Ran::Part => NONE,
                _ if self.puts_off(round, step, ran) => NONE,
                _ => return Ok(()),
            };
            step = match next {
                NONE => round.progress.next_ready(),
                next => next,
            };
        }
        if round.is_finished() {
            self.has_work = true;
        }
        Ok(())
    }

    /// Parks a step that has to be tried again. Returns false if the round is to be repeated
    /// instead.
    #[inline(never)]
    fn puts_off(&mut self, round: &mut Round, step: StepId, ran: Ran) -> bool {
        self.has_work = true;
        let is_parked = ran == Ran::NotYet;
        if is_parked {
            round.parked.push(step);
        }
        is_parked
    }

    /// Runs a step as far as it goes. The functions of the longer kinds of steps are not inlined,
    /// so that the loop stays small.
    #[inline(always)]
    fn run_step(&mut self, round: &mut Round, step: StepId) -> Stepped {
        let what = &round.program.steps[step as usize];
        match what {
            &What::Send(Message { view, peer, number }) => {
                let view = round.memory.view(view);
                match self.send(round, (step, 0), (peer, number, view)) {
                    Ok(ran) => {
                        self.note_sent(round, peer);
                        self.moved = true;
                        Ok(ran)
                    }
                    Err(error) => Ok(self.refuse(round, peer, error)?),
                }
            }
            &What::Receive(Message { view, peer, number }) => {
                let view = round.memory.view(view);
                match self.receive(round, (step, 0), (peer, number, view)) {
                    Ok(()) => {
                        self.moved = true;
                        Ok(Ran::Part)
                    }
                    Err(error) => Ok(self.refuse(round, peer, error)?),
                }
            }
            What::Compute(compute) => {
                if compute.has_mail {
                    let (memory, links) = (&mut round.memory, &self.links);
                    memory.find_mail(&round.program, compute, links, round.order);
                }
                let (sources, destinations) = round.memory.operands(compute);
                compute.work.run(sources, destinations);
                Ok(Ran::Whole)
            }
            &What::Signal { to, payload } => self.signal(round, step, (to, payload)),
            &What::Wait { from, count } => self.wait(round, step, (from, count)),
            What::Chunks => Ok(self.post_chunks(round, step)?),
            What::Pieces => Ok(self.compute(round, step)?),
            What::Nop => Ok(Ran::Whole),
        }
    }

    /// The peers for which a round waits: for their signals, their side of messages, or the use of
    /// their buffers.
    pub fn awaited(&self, round: &Round) -> Vec<Rank> {
        let mut ranks = Vec::new();
        for (id, step) in round.program.prepared.schedule.steps.iter().enumerate() {
            if round.progress.is_complete(id as StepId) {
                continue;
            }
            match &step.action {
                Action::WaitCount { peers, lane, .. } if round.parked.contains(&(id as StepId)) => {
                    let sequence = round.sequence().unwrap_or(0);
                    ranks.extend(
                        peers
                            .iter()
                            .filter(|&&p| self.links.arrived(p, sequence, *lane).is_none()),
                    );
                }
                Action::Recv { peer, .. } | Action::Send { peer, .. }
                    if round.is_posted(id as StepId) =>
                {
                    ranks.push(*peer)
                }
                action if round.parked.contains(&(id as StepId)) => {
                    let peers = unmapped(&self.links, round, action);
                    ranks.extend(peers.into_iter().filter(|&peer| peer != self.links.rank));
                }
                _ => {}
            }
        }
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }
}

/// The peers whose buffers a step reaches and cannot use now: this rank does not know yet where
/// they lie, or the peer has taken them back.
fn unmapped(links: &Links, round: &Round, action: &Action) -> Vec<Rank> {
    let is_unknown = |peer: Rank, range: &Range| {
        let known = &round.memory.peers[peer as usize];
        let is_mapped = match range.buffer {
            BufferId::INPUT => known.input.is_some(),
            _ => known.output.is_some(),
        };
        let is_there = is_mapped && !links.transport.has_withdrawn(peer);
        (!is_there && !round.program.is_window(range.buffer)).then_some(peer)
    };
    match action {
        Action::Get { peer, source, .. } => Vec::from_iter(is_unknown(*peer, source)),
        Action::Put {
            peer, destination, ..
        } => Vec::from_iter(is_unknown(*peer, destination)),
        Action::ReduceFrom {
            sources,
            destinations,
            ..
        } => {
            let operands = sources.iter().chain(destinations);
            let peers = operands.filter_map(|operand| match operand {
                Operand::Peer(peer, range) => is_unknown(*peer, range),
                _ => None,
            });
            peers.collect()
        }
        _ => Vec::new(),
    }
}
