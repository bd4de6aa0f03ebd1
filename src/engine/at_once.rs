//! Calls that end at once: where nothing else is under way, a blocking call that the rank repeats
//! runs its round without a task, a place in any list or a look at the clock. If a peer does not
//! signal soon, the round becomes that of an ordinary task and goes on from where it is.

use super::arguments::{Arguments, RoundCall, signature_of};
use super::core::Engine;
use super::prepared::Prepared;
use super::round::{Round, RoundId, RoundOf};
use super::signature::Signature;
use crate::error::Result;
use crate::limits::COUNT_MAX;
use crate::time::Time;
use crate::types::Collective;
use crate::wait::Looks;
use std::sync::Arc;

/// Calls that end at once between two polls of the transport: few enough to hear in time of a peer
/// that fails or asks.
const CALLS_PER_POLL: u64 = 8;

/// A call that may be repeated, and what is worked out about it only once.
pub struct AtOnce {
    /// Its arguments.
    pub arguments: Arguments,
    slots: &'static [u64],
    planned: Arc<Prepared>,
    /// Where `planned` needs registered memory: the signature by which `staged.rs` knows the calls
    /// that are to be staged, and the schedule that stages them, if it can run at once.
    fallback: Option<(Signature, Option<Arc<Prepared>>)>,
    /// By this number a round knows that it has taken up this call, without comparing arguments.
    number: u64,
}

impl Engine {
    /// Prepares a call to be run at once; `None` if that is impossible: its schedule has messages,
    /// or it is staged in several segments.
    pub fn at_once(
        &mut self,
        prepared: &Arc<Prepared>,
        fallback: Option<&Arc<Prepared>>,
        arguments: Arguments,
        slots: &'static [u64],
    ) -> Option<AtOnce> {
        let can_run = |prepared: &Arc<Prepared>| {
            let segment = || self.segment_elements(prepared, &arguments, slots);
            !prepared.has_messages
                && (!prepared.is_cut() || segment().is_ok_and(|e| e >= arguments.count))
        };
        let is_collective = arguments.collective != Collective::SendRecv;
        let is_possible = is_collective && arguments.count <= COUNT_MAX && can_run(prepared);
        if !is_possible {
            return None;
        }
        let fallback = fallback.map(|fallback| {
            let signature = signature_of(&arguments, prepared, slots);
            (signature, can_run(fallback).then(|| fallback.clone()))
        });
        self.numbers.calls += 1;
        Some(AtOnce {
            arguments,
            slots,
            planned: prepared.clone(),
            fallback,
            number: self.numbers.calls,
        })
    }

    /// Runs a call to its end if each of its waits takes no more than `looks` at what peers have
    /// stored. `None`: the call has not ended. The caller then runs it again or submits it, before
    /// it does anything else with the engine.
    pub fn run_at_once(&mut self, call: &AtOnce, looks: Looks) -> Option<Result<()>> {
        let mut round = match self.begun.take() {
            Some(round) => round,
            None => match self.begin_at_once(call)? {
                Ok(round) => round,
                Err(error) => return Some(Err(error)),
            },
        };
        if looks.is_crowded() {
            self.driver.links.core = rustix::thread::sched_getcpu() as u16 + 1;
        }
        self.driver.looks = looks;
        let ran = self.driver.run(&mut round);
        self.driver.looks = Looks::ONCE;
        match ran {
            Ok(()) if round.is_finished() && !round.is_redirected => {
                self.end_at_once(round);
                Some(Ok(()))
            }
            Ok(()) => {
                self.begun = Some(round);
                None
            }
            Err(error) => {
                self.fail(error, true);
                // The cause may be one that a peer has told of earlier.
                let first = self.failing.cause.clone().expect("it has failed");
                Some(Err(first))
            }
        }
    }

    /// Whether a call has begun that may end if [`Engine::run_at_once`] runs it again.
    pub fn waits_at_once(&self) -> bool {
        let begun = self.begun.as_ref();
        begun.is_some_and(|round| !round.is_redirected)
    }

    /// Begins the next round of a call; `None` if it cannot run now.
    fn begin_at_once(&mut self, call: &AtOnce) -> Option<Result<Box<Round>>> {
        let is_alone =
            self.rounds.is_empty() && self.tasks.queue.is_empty() && self.failing.cause.is_none();
        let is_whole = self.leaving.first.is_none() && self.driver.links.first_failed().is_none();
        let sequence = self.numbers.next;
        let (prepared, staged) = match &call.fallback {
            Some((signature, fallback)) if self.staged.holds(*signature) => {
                (fallback.as_ref()?, Some(*signature))
            }
            _ => (&call.planned, None),
        };
        if !is_alone || !is_whole || (prepared.uses_signals && !self.is_retired_by_all(sequence)) {
            return None;
        }
        let mut round = self.rounds.take_spare(prepared);
        let of = RoundOf {
            id: RoundId::Collective(sequence),
            task: 0,
            generation: 0,
            part: (call.arguments.count, 0),
        };
        let round_call = RoundCall {
            prepared,
            arguments: &call.arguments,
            slots: call.slots,
            others: &[],
        };
        let is_known = round.program.call_number == call.number
            && Arc::ptr_eq(&round.program.prepared, prepared);
        let begun = match is_known {
            true => (self.driver).begin_known(&mut round, of, &round_call, false),
            false => self.driver.begin(&mut round, of, &round_call),
        };
        if let Err(error) = begun {
            return Some(Err(error));
        }
        round.program.call_number = call.number;
        if let Some(signature) = staged {
            self.staged.count(signature);
        }
        self.numbers.next += 1;
        Some(Ok(round))
    }

    fn end_at_once(&mut self, round: Box<Round>) {
        let sequence = self.numbers.next - 1;
        self.numbers.note(sequence, round.program.signature);
        let uses_signals = round.program.prepared.uses_signals;
        self.put_away(round);
        self.retire(sequence, uses_signals);
        if sequence.is_multiple_of(CALLS_PER_POLL) {
            self.poll_events();
        }
    }

    /// Makes a round that has begun the round of a task.
    pub(super) fn adopt_round(&mut self, index: usize, mut round: Box<Round>, now: Time) {
        let task = &mut self.tasks[index];
        (task.started, task.active_rounds) = (round.program.count, 1);
        if let Some(call) = &mut task.call
            && !Arc::ptr_eq(&call.prepared, &round.program.prepared)
        {
            (call.prepared, call.fallback) = (round.program.prepared.clone(), None);
        }
        (round.task, round.generation) = (index, self.rounds.next_generation());
        if let Some(sequence) = round.sequence() {
            self.note_started(sequence, &round);
        }
        self.enlist(round, now);
    }
}
