//! Runs the steps of rounds: the only place where schedule, transport and kernel meet.
//!
//! Here is what runs when; `driver/signals.rs`, `driver/messages.rs` and `driver/compute.rs` are the three kinds of steps.

mod compute;
mod messages;
mod signals;

use super::Host;
use super::crew::Crew;
use super::links::Links;
use super::pool::Pool;
use super::prepared::Prepared;
use super::round::Round;
use super::tasks::TaskCall;
use crate::error::Result;
use crate::memory::View;
use crate::schedule::{Action, StepId};
use crate::types::Rank;
use messages::Message;

/// Runs steps on links.
pub struct Driver {
    pub links: Links,
    pub pool: Pool,
    pub chunk_bytes: usize,
    /// Per peer, the first message of pairwise rounds that has not been handed over as a whole: only that one may
    /// send, so that later ones never take the places that it needs.
    pair_heads: Vec<u64>,
    /// Something moved since this was last cleared.
    pub moved: bool,
    crew: Crew,
    /// Operations that touch as many bytes write around the caches.
    cache_bytes: usize,
    sources: Vec<View>,
    destinations: Vec<View>,
}

impl Driver {
    pub fn new(links: Links, pool: Pool, chunk_bytes: usize, host: Host) -> Driver {
        Driver {
            pair_heads: vec![0; links.ranks as usize],
            links,
            pool,
            chunk_bytes,
            moved: false,
            crew: Crew::new(host.threads_max),
            cache_bytes: host.cache_bytes,
            sources: Vec::new(),
            destinations: Vec::new(),
        }
    }

    /// Gives a round its memory: the caller's, a window slot, scratch.
    pub fn equip(&mut self, round: &mut Round, call: &TaskCall) -> Result<()> {
        let element = round.dtype.size_bytes();
        let scratch = round.prepared.memory_bytes(&round.counts(), element).1;
        round.scratch = match scratch {
            0 => None,
            bytes => Some(
                self.pool
                    .lend(bytes as usize, self.links.transport.as_mut())?,
            ),
        };
        let slot = |sequence| self.links.window_slot(self.links.rank, sequence);
        let window = round.sequence().map_or(View::empty(), slot);
        round.bind(call.input, call.output, &call.others, window);
        Ok(())
    }

    /// Runs everything in the round that can run now. `is_oldest`: no earlier collective is under way.
    pub fn run(&mut self, place: u32, round: &mut Round, is_oldest: bool) -> Result<()> {
        let prepared = round.prepared.clone();
        for step in std::mem::take(&mut round.stalled) {
            round.progress.enqueue(step);
        }
        self.check_waits(&prepared, round)?;
        // A round that is to be repeated touches nothing more: its input must be what it was.
        while !round.is_redirected
            && let Some(step) = round.progress.pop_ready()
        {
            self.execute(place, &prepared, round, step, is_oldest)?;
        }
        Ok(())
    }

    fn execute(
        &mut self,
        place: u32,
        prepared: &Prepared,
        round: &mut Round,
        step: StepId,
        is_oldest: bool,
    ) -> Result<()> {
        let action = &prepared.schedule.steps[step as usize].action;
        if !round.progress.run(step).is_started {
            let len = action
                .extent()
                .map_or(0, |range| range.resolve(&round.counts()).1);
            let run = round.progress.run(step);
            run.is_started = true;
            run.len = len;
        }
        match action {
            Action::Nop => self.finish(prepared, round, step),
            Action::Signal {
                peers,
                lane,
                payload,
            } => self.signal(prepared, round, step, peers, *lane, payload.as_ref())?,
            Action::WaitCount { .. } => {
                if self.is_signalled(prepared, round, step)? {
                    self.finish(prepared, round, step);
                } else {
                    round.waiting.push(step);
                }
            }
            Action::Send {
                peer,
                message,
                source,
            } => {
                let message = Message {
                    peer: *peer,
                    number: *message,
                    range: source,
                    is_send: true,
                    fills: None,
                };
                self.pump(place, prepared, round, step, &message, is_oldest)?;
            }
            Action::Recv {
                peer,
                message,
                destination,
                fills,
            } => {
                let message = Message {
                    peer: *peer,
                    number: *message,
                    range: destination,
                    is_send: false,
                    fills: *fills,
                };
                self.pump(place, prepared, round, step, &message, is_oldest)?;
            }
            _ => self.compute(prepared, round, step)?,
        }
        Ok(())
    }

    fn finish(&mut self, prepared: &Prepared, round: &mut Round, step: StepId) {
        self.moved = true;
        round.progress.process(prepared, step);
    }

    /// The peers that a round waits for, for the text of an error: those of waits and of receives.
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
                    if round.progress.is_posted(id as StepId) =>
                {
                    ranks.push(*peer)
                }
                _ => {}
            }
        }
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }
}
