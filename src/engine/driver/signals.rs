//! Signals and waits: flag lines, and what they say of each rank's memory.

use super::{Driver, Ran};
use crate::engine::control::{Binding, Line, PAYLOAD_WORDS};
use crate::engine::links::Links;
use crate::engine::round::Round;
use crate::engine::signature::Signature;
use crate::engine::step_state::NONE;
use crate::error::{Error, Result};
use crate::schedule::{Action, Lane, StepId};
use crate::types::Rank;

impl Driver {
    /// Signals to those peers of a step that have not been signalled yet. The step counts them, so
    /// that none is signalled twice after a full queue.
    #[inline(never)]
    pub(super) fn signal(&mut self, round: &mut Round, step: StepId, payload: u32) -> Result<Ran> {
        let mut done = round.progress.run(step).done;
        let are_sent = self.send_lines(round, step, payload, &mut done);
        round.progress.run(step).done = done;
        if !are_sent? {
            return Ok(Ran::NotYet);
        }
        if self.announces(round, step) {
            return Ok(arrive(round, self.binding_of(round).is_registered));
        }
        Ok(Ran::Whole)
    }

    /// Whether a signal tells where this rank's buffers are.
    fn announces(&self, round: &Round, step: StepId) -> bool {
        round.program.prepared.reaches_buffers
            && matches!(round.program.action(step), Action::Signal { lane: 0, .. })
    }

    /// Sends the lines of a signal to the peers that follow the first `done`; true when all have
    /// been sent.
    fn send_lines(
        &mut self,
        round: &Round,
        step: StepId,
        payload: u32,
        done: &mut u64,
    ) -> Result<bool> {
        let Action::Signal { peers, lane, .. } = round.program.action(step) else {
            unreachable!("only signals signal");
        };
        let announces = self.announces(round, step);
        let payload = match payload {
            NONE if announces => self.binding_of(round).emit(),
            NONE => [0; PAYLOAD_WORDS],
            view => Links::payload_words(*round.memory.view(view)),
        };
        if announces {
            for &peer in &peers[*done as usize..] {
                if !self.export(round, peer)? {
                    return Ok(false);
                }
            }
        }
        let sequence = round.sequence().expect("pairwise rounds have no signals");
        let line = Line {
            stamp: Line::stamp_of(sequence, self.links.core),
            signature: round.program.signature,
            payload,
        };
        for &peer in &peers[*done as usize..] {
            if !self.links.signal(peer, sequence, *lane, &line)? {
                return Ok(false);
            }
            *done += 1;
            self.moved = true;
        }
        Ok(true)
    }

    pub fn binding_of(&self, round: &Round) -> Binding {
        let (input, output) = (round.memory.buffers[0], round.memory.buffers[1]);
        Binding {
            input_key: input.key(),
            output_key: output.key(),
            input_offset: input.offset(),
            output_offset: output.offset(),
            is_registered: !round.program.prepared.has_others
                && [input, output]
                    .iter()
                    .all(|view| view.is_empty() || view.key().is_some()),
        }
    }

    /// Makes this rank's registered buffers known to a peer; false: no room now.
    pub(super) fn export(&mut self, round: &Round, peer: Rank) -> Result<bool> {
        for view in &round.memory.buffers[..2] {
            if view.key().is_some() {
                match self.links.transport.export(peer, view.key()) {
                    Ok(()) => {}
                    Err(error) => return self.links.refused(peer, error).map(|()| false),
                }
            }
        }
        Ok(true)
    }

    /// Looks whether the signals of a wait have come; the first signal of a peer also brings its
    /// registration.
    #[inline(never)]
    pub(super) fn wait(&mut self, round: &mut Round, step: StepId) -> Result<Ran> {
        let mut done = round.progress.run(step).done;
        let is_over = self.is_signalled(round, step, &mut done);
        round.progress.run(step).done = done;
        if !is_over? {
            return Ok(Ran::NotYet);
        }
        if let Action::WaitCount { peers, lane: 0, .. } = round.program.action(step)
            && round.program.prepared.reaches_buffers
        {
            let sequence = round.order;
            let is_registered = |peer: &Rank| self.links.binding(*peer, sequence).is_registered;
            let are_registered = peers.iter().all(is_registered);
            return Ok(arrive(round, are_registered));
        }
        Ok(Ran::Whole)
    }

    /// Whether as many peers have signalled as a wait needs. `done` counts those that need not be
    /// looked at again.
    fn is_signalled(&mut self, round: &Round, step: StepId, done: &mut u64) -> Result<bool> {
        let Action::WaitCount { peers, lane, count } = round.program.action(step) else {
            unreachable!("only waits wait");
        };
        let sequence = round.sequence().expect("pairwise rounds have no signals");
        // Peers that were counted earlier stay counted only where all are needed.
        let needs_all = *count as usize == peers.len();
        let skip = if needs_all { *done as usize } else { 0 };
        let mut looks = None;
        let mut arrived = 0;
        for (index, &peer) in peers.iter().enumerate().skip(skip) {
            let mut found = self.links.arrived_within(peer, sequence, *lane, 1);
            if found.is_none() && needs_all {
                let looks =
                    *looks.get_or_insert_with(|| self.looks_at(&peers[index..], sequence, *lane));
                found = self.links.arrived_within(peer, sequence, *lane, looks);
            }
            match found {
                Some(signature) if signature == round.program.signature => arrived += 1,
                Some(signature) => return Err(self.mismatch(round, signature.0, peer)),
                None if needs_all => break,
                None => {}
            }
        }
        if needs_all {
            *done = (skip + arrived) as u64;
        }
        Ok(skip + arrived >= *count as usize)
    }

    /// How many signals have to come before a round that has just been run can go on; `None`:
    /// signals are not what it waits for.
    pub fn signals_wanted(&self, round: &Round) -> Option<u32> {
        let sequence = round.sequence()?;
        let lacks = |step: StepId| match round.program.action(step) {
            Action::WaitCount { peers, lane, count } => {
                let has_come = |peer: &&Rank| self.links.arrived(**peer, sequence, *lane).is_some();
                count.saturating_sub(peers.iter().filter(has_come).count() as u32)
            }
            _ => 0,
        };
        round.parked.iter().map(|&step| lacks(step)).min()
    }

    /// How often to look for the signals of these peers. Few times, if one of them has not
    /// signalled and cannot, because this rank keeps the core that they share.
    fn looks_at(&self, peers: &[Rank], sequence: u64, lane: Lane) -> u32 {
        let links = &self.links;
        let holds_up = |&p: &Rank| links.is_beside(p) && links.arrived(p, sequence, lane).is_none();
        match self.looks.is_crowded() && peers.iter().any(holds_up) {
            true => self.looks.beside,
            false => self.looks.elsewhere,
        }
    }

    pub(super) fn mismatch(&self, round: &Round, theirs: u64, peer: Rank) -> Error {
        let detail =
            round
                .program
                .signature
                .describe_difference(self.links.rank, Signature(theirs), peer);
        Error::Mismatch {
            sequence: round.sequence().unwrap_or(0),
            detail,
        }
    }
}

/// A step on lane 0 has completed. If memory that peers would reach is not registered, each rank of
/// the operation learns it from such a step: the owner of the memory by sending the signal, the
/// others by waiting for it.
fn arrive(round: &mut Round, is_registered: bool) -> Ran {
    round.arrivals += 1;
    round.is_redirected |= !is_registered;
    match round.is_redirected {
        true => Ran::Redirected,
        false => Ran::Whole,
    }
}
