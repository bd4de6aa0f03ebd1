//! Runs the steps of rounds: the only place where schedule, transport and kernel meet.
//!
//! Here is what runs when; `driver/signals.rs`, `driver/messages.rs` and `driver/compute.rs` are
//! the three kinds of steps.

mod compute;
mod messages;
mod script;
mod signals;
mod straight;

use super::Host;
use super::around::Around;
use super::bound::{Bound, BoundStep};
use super::crew::Crew;
use super::gate::NONE;
use super::links::Links;
use super::plan::StepKind;
use super::pool::Pool;
use super::prepared::Prepared;
use super::round::{Round, RoundCall, RoundId, RoundOf};
use super::wait::Looks;
use crate::error::{Error, Result};
use crate::memory::View;
use crate::schedule::{Action, BufferId, Operand, Range, StepId};
use crate::types::Rank;
use messages::Bounced;
pub use script::Script;

/// Runs steps on links. What every step touches comes first, together.
#[repr(C)]
pub struct Driver {
    /// Something moved since this was last cleared.
    pub moved: bool,
    /// Some round may have something to do. Set where that begins: to ask after each event took 13
    /// instructions.
    pub has_work: bool,
    /// Collective rounds retired here without gaps.
    pub retired: u64,
    /// The longest message whose source need not be registered.
    inline_bytes: usize,
    /// Copies that are being sent.
    bounced: Vec<Bounced>,
    pub links: Links,
    /// How often a wait looks for a signal that is not there before it is left for later.
    pub looks: Looks,
    pub chunk_bytes: usize,
    pub pool: Pool,
    /// Per peer, the first message of pairwise rounds that has not been handed over as a whole:
    /// only that one may send, so that later ones never take the places that it needs.
    pair_heads: Vec<u64>,
    crew: Crew,
    around: Around,
    /// Operations that touch as many bytes write around the caches.
    cache_bytes: usize,
    sources: Vec<View>,
    destinations: Vec<View>,
}

impl Driver {
    pub fn new(links: Links, pool: Pool, chunk_bytes: usize, host: Host) -> Driver {
        Driver {
            pair_heads: vec![0; links.ranks as usize],
            inline_bytes: links.transport.capabilities().inline_bytes,
            links,
            pool,
            bounced: Vec::new(),
            chunk_bytes,
            looks: Looks::ONCE,
            moved: false,
            has_work: false,
            retired: 0,
            crew: Crew::new(host.threads_max),
            around: Around::new(host.cache_bytes),
            cache_bytes: host.cache_bytes,
            sources: Vec::new(),
            destinations: Vec::new(),
        }
    }

    /// Begins a round, with its memory: the caller's, a window slot, scratch.
    pub fn begin(&mut self, round: &mut Round, of: RoundOf, call: &RoundCall<'_>) -> Result<()> {
        round.begin(of, call, self.links.ranks, self.chunk_bytes);
        round.scratch = None;
        if call.prepared.uses_scratch {
            let transport = self.links.transport.as_mut();
            round.scratch = Some(self.pool.lend(round.scratch_bytes, transport)?);
        }
        let mut window = View::empty();
        if let (true, RoundId::Collective(sequence)) = (call.prepared.uses_windows, of.id) {
            window = self.links.window_slot(self.links.rank, sequence);
        }
        round.equip(call, window, self.links.ranks);
        Ok(())
    }

    /// Runs everything in the round that can run now.
    #[inline]
    pub fn run(&mut self, round: &mut Round) -> Result<()> {
        if round.straight.is_some() || !round.waiting.is_empty() {
            let prepared = round.prepared.clone();
            if round.straight.is_some() {
                if self.run_straight(&prepared, round)? || round.is_redirected {
                    return Ok(());
                }
                let run = round.straight.take().unwrap_or_default();
                round.progress.resume(&prepared, run);
            }
            self.check_waits(&prepared, round)?;
        }
        for at in 0..round.stalled.len() {
            round.progress.enqueue(round.stalled[at]);
        }
        round.stalled.clear();
        self.run_ready(round, NONE).map_err(|error| *error)
    }

    /// Runs a step that may start, those that its end lets start, and all others that may start
    /// now. A function of its own: inlined where events are handled, it kept on the stack what fits
    /// the registers. Errors are boxed, so that the result fits one.
    #[inline(never)]
    pub fn run_ready(
        &mut self,
        round: &mut Round,
        first: StepId,
    ) -> std::result::Result<(), Box<Error>> {
        // A round that is to be repeated touches nothing more: its input must be what it was.
        if round.is_redirected {
            return Ok(());
        }
        let mut step = match first {
            NONE => round.progress.next_ready(),
            first => first,
        };
        while step != NONE {
            let mut next = NONE;
            let ended = match round.bound.steps.get(step as usize) {
                Some(BoundStep {
                    bound: Bound::Send(message),
                    followers,
                }) => {
                    let peer = message.peer;
                    match self.send(round, (step, 0), message) {
                        Ok(is_sent) => {
                            self.note_sent(round, peer);
                            self.moved = true;
                            is_sent.then_some(followers)
                        }
                        Err(error) => {
                            self.refuse(round, step, peer, error)?;
                            None
                        }
                    }
                }
                Some(BoundStep {
                    bound: Bound::Receive(message),
                    ..
                }) => {
                    let peer = message.peer;
                    match self.receive(round, (step, 0), message) {
                        Ok(()) => self.moved = true,
                        Err(error) => self.refuse(round, step, peer, error)?,
                    }
                    None
                }
                Some(BoundStep {
                    bound: Bound::Compute(compute),
                    followers,
                }) => {
                    let (sources, destinations) = round.bound.operands(compute);
                    compute.work.run(sources, destinations);
                    Some(followers)
                }
                Some(BoundStep {
                    bound: Bound::Other,
                    ..
                })
                | None => {
                    self.run_other(round, step)?;
                    self.has_work |= round.is_stopped();
                    if round.is_redirected {
                        return Ok(());
                    }
                    None
                }
            };
            if let Some(followers) = ended {
                self.moved = true;
                next = (round.progress).process_before(&round.prepared, step, *followers);
            }
            // At the end, so that anyone who has posted a message gets here without a look at what
            // follows.
            step = match next {
                NONE => round.progress.next_ready(),
                next => next,
            };
        }
        if round.progress.is_finished() {
            self.has_work = true;
        }
        Ok(())
    }

    /// Runs a step that is not bound, as far as it goes.
    #[inline(never)]
    fn run_other(&mut self, round: &mut Round, step: StepId) -> Result<()> {
        let plan = round.prepared.plan.steps[step as usize];
        if plan.kind != StepKind::Other {
            return self.pump(round, step, &plan);
        }
        let prepared = round.prepared.clone();
        self.execute(&prepared, round, step)
    }

    fn execute(&mut self, prepared: &Prepared, round: &mut Round, step: StepId) -> Result<()> {
        match &prepared.schedule.steps[step as usize].action {
            Action::Nop => self.finish(prepared, round, step),
            Action::Signal {
                peers,
                lane,
                payload,
            } => {
                let mut done = round.progress.run(step).done;
                let signalled = self.signal(round, peers, *lane, payload.as_ref(), &mut done);
                round.progress.run(step).done = done;
                match signalled? {
                    true => self.finish(prepared, round, step),
                    false => round.stalled.push(step),
                }
            }
            Action::WaitCount { .. } => {
                if self.is_wait_over(prepared, round, step)? {
                    self.finish(prepared, round, step);
                } else {
                    round.waiting.push(step);
                }
            }
            _ => self.compute(prepared, round, step)?,
        }
        Ok(())
    }

    fn finish(&mut self, prepared: &Prepared, round: &mut Round, step: StepId) {
        self.moved = true;
        round.progress.process(prepared, step);
    }

    /// The peers that a round waits for, those of waits, of messages, and of buffers that are not
    /// mapped.
    pub fn awaited(&self, round: &Round) -> Vec<Rank> {
        let mut ranks = Vec::new();
        for (id, step) in round.prepared.schedule.steps.iter().enumerate() {
            if round.progress.is_complete(id as StepId) {
                continue;
            }
            match &step.action {
                Action::WaitCount { peers, lane, .. }
                    if round.waiting.contains(&(id as StepId)) =>
                {
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
                action if round.stalled.contains(&(id as StepId)) => {
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

/// The peers whose buffers a step reaches and of which it does not know yet where they are, or
/// which have taken them back.
fn unmapped(links: &Links, round: &Round, action: &Action) -> Vec<Rank> {
    let is_unknown = |peer: Rank, range: &Range| {
        let known = &round.peers[peer as usize];
        let is_mapped = match range.buffer {
            BufferId::INPUT => known.input.is_some(),
            _ => known.output.is_some(),
        };
        let is_there = is_mapped && !links.transport.has_withdrawn(peer);
        (!is_there && !round.is_window(range.buffer)).then_some(peer)
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
