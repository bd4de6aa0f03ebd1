//! Signals and waits: flag lines, and whose memory is registered.

use super::Driver;
use crate::engine::control::{Binding, Line};
use crate::engine::links::Links;
use crate::engine::prepared::Prepared;
use crate::engine::round::Round;
use crate::engine::signature::Signature;
use crate::error::{Error, Result};
use crate::schedule::{Action, Lane, Range, StepId};
use crate::transport::PostError;
use crate::types::Rank;

impl Driver {
    pub(super) fn signal(
        &mut self,
        prepared: &Prepared,
        round: &mut Round,
        step: StepId,
        peers: &[Rank],
        lane: Lane,
        payload: Option<&Range>,
    ) -> Result<()> {
        let sequence = round.sequence().expect("pairwise rounds have no signals");
        let binding = self.binding_of(round);
        let words = match payload {
            Some(range) => {
                let len = range.resolve(&round.counts()).1;
                Links::payload_words(round.locate(range, 0, len).0)
            }
            None => binding.emit(),
        };
        let line = Line {
            stamp: sequence + 1,
            signature: round.signature,
            payload: words,
        };
        // `done` counts the peers that have been signalled, so that a full queue repeats none.
        for &peer in &peers[round.progress.run(step).done as usize..] {
            let is_sent = (lane != 0 || !prepared.reaches_buffers || self.export(round, peer)?)
                && self.links.signal(peer, sequence, lane, &line)?;
            if !is_sent {
                round.stalled.push(step);
                return Ok(());
            }
            round.progress.run(step).done += 1;
            self.moved = true;
        }
        if lane == 0 && prepared.reaches_buffers {
            self.arrive(round, binding.is_registered);
        }
        self.finish(prepared, round, step);
        Ok(())
    }

    pub(super) fn binding_of(&self, round: &Round) -> Binding {
        let (input, output) = (round.buffers[0], round.buffers[1]);
        Binding {
            input_key: input.key(),
            output_key: output.key(),
            input_offset: input.offset(),
            output_offset: output.offset(),
            is_registered: [input, output]
                .iter()
                .all(|view| view.is_empty() || view.key().is_some()),
        }
    }

    /// Makes this rank's registered buffers known to a peer; false: no room now.
    pub(super) fn export(&mut self, round: &Round, peer: Rank) -> Result<bool> {
        for view in &round.buffers[..2] {
            if view.key().is_some() {
                match self.links.transport.export(peer, view.key()) {
                    Ok(()) => {}
                    Err(PostError::WouldBlock) => return Ok(false),
                    Err(error) => return Err(self.links.post_error(peer, error)),
                }
            }
        }
        Ok(true)
    }

    pub(super) fn check_waits(&mut self, prepared: &Prepared, round: &mut Round) -> Result<()> {
        let mut index = 0;
        while index < round.waiting.len() {
            let step = round.waiting[index];
            if self.is_signalled(prepared, round, step)? {
                round.waiting.swap_remove(index);
                self.finish(prepared, round, step);
            } else {
                index += 1;
            }
        }
        Ok(())
    }

    /// Whether enough signals of a wait have come; the first of the round also brings everyone's registration.
    pub(super) fn is_signalled(
        &mut self,
        prepared: &Prepared,
        round: &mut Round,
        step: StepId,
    ) -> Result<bool> {
        let Action::WaitCount { peers, lane, count } =
            &prepared.schedule.steps[step as usize].action
        else {
            unreachable!("only waits wait");
        };
        let sequence = round.sequence().expect("pairwise rounds have no signals");
        let mut arrived = 0;
        // Where all are needed, those counted before need not be looked at again.
        let skip = if *count as usize == peers.len() {
            round.progress.run(step).done as usize
        } else {
            0
        };
        for &peer in &peers[skip..] {
            match self.links.arrived(peer, sequence, *lane) {
                Some(signature) if signature == round.signature => arrived += 1,
                Some(signature) => return Err(self.mismatch(round, signature.0, peer)),
                None if skip + arrived < *count as usize && *count as usize == peers.len() => break,
                None => {}
            }
        }
        if *count as usize == peers.len() {
            round.progress.run(step).done = (skip + arrived) as u64;
        }
        let is_signalled = skip + arrived >= *count as usize;
        if is_signalled && prepared.reaches_buffers && *lane == 0 {
            let is_registered = |peer: &Rank| self.links.binding(*peer, sequence).is_registered;
            self.arrive(round, peers.iter().all(is_registered));
        }
        Ok(is_signalled)
    }

    /// A step on lane 0 has completed. If memory that peers would reach is not registered, everyone who takes part
    /// learns it there: its owner by sending the signal, the others by waiting for it.
    pub(super) fn arrive(&self, round: &mut Round, is_registered: bool) {
        round.arrivals += 1;
        round.is_redirected |= !is_registered;
    }

    pub(super) fn mismatch(&self, round: &Round, theirs: u64, peer: Rank) -> Error {
        let detail = round
            .signature
            .describe_difference(self.links.rank, Signature(theirs), peer);
        Error::Mismatch {
            sequence: round.sequence().unwrap_or(0),
            detail,
        }
    }
}
