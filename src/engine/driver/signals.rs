//! Signals and waits: flag lines, and what they say of each rank's memory.

use super::{Driver, Ran, Stepped};
use crate::engine::control::{Binding, Line, PAYLOAD_WORDS};
use crate::engine::links::Links;
use crate::engine::program::Signals;
use crate::engine::round::Round;
use crate::engine::signature::Signature;
use crate::engine::step_state::NONE;
use crate::error::{Error, Result};
use crate::memory::View;
use crate::schedule::{Action, Lane, StepId};
use crate::types::Rank;

impl Driver {
    /// Signals to those peers of a step that have not been signalled yet. A step that has to be
    /// tried again after a full queue counts them, so that none is signalled twice.
    #[inline(never)]
    pub(super) fn signal(
        &mut self,
        round: &mut Round,
        step: StepId,
        (to, payload): (Signals, u32),
    ) -> Stepped {
        let mut done = *round.progress.peers_done(step);
        if !self.send_lines(round, (to, payload), &mut done)? {
            *round.progress.peers_done(step) = done;
            return Ok(Ran::NotYet);
        }
        if to.have_binding && round.program.prepared.needs_registered {
            return Ok(arrive(round, self.binding_of(round).is_registered));
        }
        Ok(Ran::Whole)
    }

    /// Sends the lines of signals to the peers that follow the first `done`; true when all have
    /// been sent.
    #[inline(always)]
    fn send_lines(
        &mut self,
        round: &Round,
        (to, payload): (Signals, u32),
        done: &mut u16,
    ) -> Result<bool> {
        let peers = &round.program.peers_of(to)[*done as usize..];
        let payload = match payload {
            NONE if to.have_binding => self.binding_of(round).emit(),
            NONE => [0; PAYLOAD_WORDS],
            view => Links::payload_words(*round.memory.view(view)),
        };
        if to.have_binding && !self.export_to(round, peers)? {
            return Ok(false);
        }
        let sequence = sequence_of(round);
        let line = Line {
            stamp: Line::stamp_of(sequence, self.links.core),
            signature: round.program.signature,
            payload,
        };
        let before = *done;
        let told = (self.links).signal(peers, (sequence, to.lane), &line, done);
        self.moved |= *done > before;
        told
    }

    pub fn binding_of(&self, round: &Round) -> Binding {
        let (input, output) = (round.memory.buffers[0], round.memory.buffers[1]);
        let [(reached_input, at), (reached_output, _)] = reached(round);
        Binding {
            input_key: reached_input.key(),
            output_key: reached_output.key(),
            input_offset: reached_input.offset() + at,
            output_offset: reached_output.offset() + at,
            is_registered: !round.program.prepared.has_others
                && [input, output]
                    .iter()
                    .all(|view| view.is_empty() || view.key().is_some()),
        }
    }

    /// As [`Driver::export`], to several peers.
    #[inline(never)]
    fn export_to(&mut self, round: &Round, peers: &[Rank]) -> Result<bool> {
        for &peer in peers {
            if !self.export(round, peer)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes the registered buffers that a peer may reach known to it; false: no room now.
    pub(super) fn export(&mut self, round: &Round, peer: Rank) -> Result<bool> {
        for (view, _) in &reached(round) {
            if view.key().is_some() {
                match self.links.transport.export(peer, view.key()) {
                    Ok(()) => {}
                    Err(error) => return self.links.refused(peer, error).map(|()| false),
                }
            }
        }
        Ok(true)
    }

    /// Looks whether the signals of a wait have come. A peer's signal on lane 0 may also say
    /// whether its buffers are registered.
    #[inline(never)]
    pub(super) fn wait(
        &mut self,
        round: &mut Round,
        step: StepId,
        (from, count): (Signals, u32),
    ) -> Stepped {
        let mut done = *round.progress.peers_done(step);
        if !self.have_come(round, (from, count), &mut done)? {
            *round.progress.peers_done(step) = done;
            return Ok(Ran::NotYet);
        }
        if from.have_binding && round.program.prepared.needs_registered {
            let sequence = round.order;
            let is_registered = |peer: &Rank| self.links.binding(*peer, sequence).is_registered;
            let are_registered = round.program.peers_of(from).iter().all(is_registered);
            return Ok(arrive(round, are_registered));
        }
        Ok(Ran::Whole)
    }

    /// Whether as many signals have come as a wait needs. `done` counts the peers that need not be
    /// looked at again.
    #[inline(always)]
    fn have_come(
        &mut self,
        round: &Round,
        (from, count): (Signals, u32),
        done: &mut u16,
    ) -> Result<bool> {
        let peers = round.program.peers_of(from);
        let sequence = sequence_of(round);
        // Peers that were counted earlier stay counted only where all are needed.
        let needs_all = count as usize == peers.len();
        let mut looks = None;
        let mut arrived = *done;
        for (index, &peer) in peers.iter().enumerate().skip(*done as usize) {
            let mut found = (self.links).arrived_within(peer, sequence, from.lane, 1);
            if found.is_none() && needs_all {
                found = self.look_longer(&peers[index..], (sequence, from.lane), &mut looks);
            }
            match found {
                Some(signature) if signature == round.program.signature => arrived += 1,
                Some(signature) => return Err(self.mismatch(round, signature.0, peer)),
                None if needs_all => break,
                None => {}
            }
        }
        if needs_all {
            *done = arrived;
        }
        Ok(u32::from(arrived) >= count)
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

    /// Looks more than once for the signal of the first of these peers. `looks`: how often, once
    /// that is known.
    #[inline(never)]
    fn look_longer(
        &mut self,
        peers: &[Rank],
        (sequence, lane): (u64, Lane),
        looks: &mut Option<u32>,
    ) -> Option<Signature> {
        let looks = *looks.get_or_insert_with(|| self.looks_at(peers, sequence, lane));
        (self.links).arrived_within(peers[0], sequence, lane, looks)
    }

    /// How often to look for the signals of these peers: less often if one of them has not
    /// signalled and cannot, because this rank keeps the core that they share.
    fn looks_at(&self, peers: &[Rank], sequence: u64, lane: Lane) -> u32 {
        let links = &self.links;
        let holds_up = |&p: &Rank| links.is_beside(p) && links.arrived(p, sequence, lane).is_none();
        match self.looks.is_crowded() && peers.iter().any(holds_up) {
            true => self.looks.beside,
            false => self.looks.elsewhere,
        }
    }

    #[cold]
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

/// The number of a round that signals.
#[inline]
fn sequence_of(round: &Round) -> u64 {
    round.sequence().expect("only collectives have signals")
}

/// What peers reach as this rank's input and output, and where this round begins in it, in bytes:
/// the caller's buffers, or shared memory instead.
fn reached(round: &Round) -> [(View, u64); 2] {
    let memory = &round.memory;
    match memory.shared.is_empty() {
        true => [0, 1].map(|buffer| (memory.buffers[buffer], round.program.segment_at())),
        false => [(memory.shared, 0); 2],
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
