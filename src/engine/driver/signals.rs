//! Signals and waits: flag lines, and whose memory is registered.

use super::Driver;
use crate::engine::control::{Binding, Line, PAYLOAD_WORDS};
use crate::engine::links::Links;
use crate::engine::prepared::Prepared;
use crate::engine::round::Round;
use crate::engine::signature::Signature;
use crate::error::{Error, Result};
use crate::schedule::{Action, Lane, Range, StepId};

use crate::types::Rank;

impl Driver {
    /// Signals to the peers that follow the first `done`, which counts them so that a full queue
    /// repeats none; true when all have been signalled.
    #[inline]
    pub(super) fn signal(
        &mut self,
        round: &mut Round,
        peers: &[Rank],
        lane: Lane,
        payload: Option<&Range>,
        done: &mut u64,
    ) -> Result<bool> {
        let announces = lane == 0 && round.prepared.reaches_buffers;
        let words = match payload {
            Some(range) => {
                let len = range.resolve(&round.counts()).1;
                Links::payload_words(round.locate(range, 0, len).0)
            }
            None if announces => self.binding_of(round).emit(),
            None => [0; PAYLOAD_WORDS],
        };
        if announces {
            for &peer in &peers[*done as usize..] {
                if !self.export(round, peer)? {
                    return Ok(false);
                }
            }
        }
        let are_sent = self.send_lines(round, peers, lane, words, done)?;
        if are_sent && announces {
            self.arrive(round, self.binding_of(round).is_registered);
        }
        Ok(are_sent)
    }

    /// Sends a line with these words to the peers that follow the first `done`; true when all have
    /// been sent.
    #[inline]
    pub(super) fn send_lines(
        &mut self,
        round: &Round,
        peers: &[Rank],
        lane: Lane,
        payload: [u64; PAYLOAD_WORDS],
        done: &mut u64,
    ) -> Result<bool> {
        let sequence = round.sequence().expect("pairwise rounds have no signals");
        let line = Line {
            stamp: Line::stamp_of(sequence, self.links.core),
            signature: round.signature,
            payload,
        };
        for &peer in &peers[*done as usize..] {
            if !self.links.signal(peer, sequence, lane, &line)? {
                return Ok(false);
            }
            *done += 1;
            self.moved = true;
        }
        Ok(true)
    }

    pub fn binding_of(&self, round: &Round) -> Binding {
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
                    Err(error) => return self.links.refused(peer, error).map(|()| false),
                }
            }
        }
        Ok(true)
    }

    pub(super) fn check_waits(&mut self, prepared: &Prepared, round: &mut Round) -> Result<()> {
        let mut index = 0;
        while index < round.waiting.len() {
            let step = round.waiting[index];
            if self.is_wait_over(prepared, round, step)? {
                round.waiting.swap_remove(index);
                self.finish(prepared, round, step);
            } else {
                index += 1;
            }
        }
        Ok(())
    }

    pub(super) fn is_wait_over(
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
        let mut done = round.progress.run(step).done;
        let is_over = self.is_signalled(round, peers, *lane, *count, &mut done);
        round.progress.run(step).done = done;
        is_over
    }

    /// Whether `count` of these peers have signalled; the first signal of the round also brings
    /// everyone's registration. `done` counts those that need not be looked at again.
    #[inline]
    pub(super) fn is_signalled(
        &mut self,
        round: &mut Round,
        peers: &[Rank],
        lane: Lane,
        count: u32,
        done: &mut u64,
    ) -> Result<bool> {
        let sequence = round.sequence().expect("pairwise rounds have no signals");
        // Only where all are needed do those counted before stay counted.
        let needs_all = count as usize == peers.len();
        let skip = if needs_all { *done as usize } else { 0 };
        let looks = match needs_all {
            true if self.waits_for_core(&peers[skip..], sequence, lane) => self.looks.beside,
            true => self.looks.elsewhere,
            false => 1,
        };
        let mut arrived = 0;
        for &peer in &peers[skip..] {
            match self.links.arrived_within(peer, sequence, lane, looks) {
                Some(signature) if signature == round.signature => arrived += 1,
                Some(signature) => return Err(self.mismatch(round, signature.0, peer)),
                None if needs_all => break,
                None => {}
            }
        }
        if needs_all {
            *done = (skip + arrived) as u64;
        }
        let is_signalled = skip + arrived >= count as usize;
        if is_signalled && round.prepared.reaches_buffers && lane == 0 {
            let is_registered = |peer: &Rank| self.links.binding(*peer, sequence).is_registered;
            self.arrive(round, peers.iter().all(is_registered));
        }
        Ok(is_signalled)
    }

    /// How many signals have to come before a round that has just been run can go on; `None`:
    /// signals are not what it waits for.
    pub fn signals_wanted(&self, round: &Round) -> Option<u32> {
        let sequence = round.sequence()?;
        let lacks = |step: StepId| match &round.prepared.schedule.steps[step as usize].action {
            Action::WaitCount { peers, lane, count } => {
                let has_come = |peer: &&Rank| self.links.arrived(**peer, sequence, *lane).is_some();
                count.saturating_sub(peers.iter().filter(has_come).count() as u32)
            }
            _ => 0,
        };
        match round.straight {
            Some(run) => Some(lacks(run.step)),
            None => round.waiting.iter().map(|&step| lacks(step)).min(),
        }
    }

    /// Whether one of these peers has not come and cannot, because this rank has its core.
    fn waits_for_core(&self, peers: &[Rank], sequence: u64, lane: Lane) -> bool {
        let links = &self.links;
        self.looks.is_crowded()
            && (peers.iter())
                .any(|&p| links.is_beside(p) && links.arrived(p, sequence, lane).is_none())
    }

    /// A step on lane 0 has completed. If memory that peers would reach is not registered, everyone
    /// who takes part learns it there: its owner by sending the signal, the others by waiting for
    /// it.
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
