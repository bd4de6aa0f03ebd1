//! Calls that end at once: where nothing else is under way, a blocking call that has come before
//! runs its schedule straight (`driver/straight.rs`), without a task, a place in any list or a look
//! at the clock. If a peer is not there soon, the round becomes that of an ordinary task and goes
//! on from where it stands.

use super::arguments::{Arguments, signature_of};
use super::driver::Script;
use super::prepared::Prepared;
use super::round::{Round, RoundCall, RoundId, RoundOf};
use super::rounds::take_round;
use super::signature::Signature;
use super::wait::Looks;
use super::{Engine, HISTORY};
use crate::error::Result;
use crate::limits::COUNT_MAX;
use crate::time::Time;
use crate::types::Collective;
use std::sync::Arc;

/// Calls that end at once between two looks for messages: peers that fail or ask are heard in time
/// all the same.
const CALLS_PER_POLL: u64 = 8;

/// A call that may come again, and what is found out about it only once.
pub struct AtOnce {
    /// What it says.
    pub arguments: Arguments,
    slots: &'static [u64],
    planned: Way,
    /// Where what is planned needs registered memory.
    fallback: Option<Fallback>,
    /// The round that runs goes by the fallback.
    is_staged: bool,
}

/// A schedule, and how a call runs it.
struct Way {
    prepared: Arc<Prepared>,
    /// Bound to the call's memory, unless the last one has become a task's.
    round: Option<Box<Round>>,
    /// What the rounds do; the inner `None`: that cannot be said beforehand.
    script: Option<Option<Script>>,
}

/// What runs while the call is known to be on memory that is not registered (`staged.rs`).
struct Fallback {
    /// What is known of it goes by what is planned.
    signature: Signature,
    /// `None`: it cannot run at once.
    way: Option<Way>,
}

impl AtOnce {
    #[inline]
    fn way(&mut self) -> &mut Way {
        match &mut self.fallback {
            Some(Fallback { way: Some(way), .. }) if self.is_staged => way,
            _ => &mut self.planned,
        }
    }
}

impl Way {
    fn new(prepared: &Arc<Prepared>) -> Way {
        Way {
            prepared: prepared.clone(),
            round: None,
            script: None,
        }
    }
}

impl Engine {
    /// Prepares a call to be run at once; `None` if that is impossible: its schedule has messages,
    /// or it is staged in several segments.
    pub fn at_once(
        &self,
        prepared: &Arc<Prepared>,
        fallback: Option<&Arc<Prepared>>,
        arguments: Arguments,
        slots: &'static [u64],
    ) -> Option<AtOnce> {
        let is_collective = arguments.collective != Collective::SendRecv;
        let can_run = |prepared: &Arc<Prepared>| {
            let segment = || self.segment_elements(prepared, &arguments, slots);
            prepared.is_straight
                && (!prepared.uses_windows || segment().is_ok_and(|e| e >= arguments.count))
        };
        let is_possible = is_collective && arguments.count <= COUNT_MAX && can_run(prepared);
        is_possible.then(|| AtOnce {
            arguments,
            slots,
            planned: Way::new(prepared),
            fallback: fallback.map(|fallback| Fallback {
                signature: signature_of(&arguments, prepared, slots),
                way: can_run(fallback).then(|| Way::new(fallback)),
            }),
            is_staged: false,
        })
    }

    /// Runs a call to its end if each of its waits takes no more than `looks` at what peers have
    /// stored. `None`: not ended; the caller submits the same call next, before anything else is
    /// done with the engine.
    pub fn run_at_once(&mut self, call: &mut AtOnce, looks: Looks) -> Option<Result<()>> {
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
        let way = call.way();
        let ran = match &way.script {
            Some(Some(script)) => self.driver.run_script(script, &mut round),
            _ => self.driver.run_straight(&way.prepared, &mut round),
        };
        self.driver.looks = Looks::ONCE;
        match ran {
            Ok(true) => {
                self.end_at_once(call, round);
                Some(Ok(()))
            }
            Ok(false) => {
                self.begun = Some(round);
                None
            }
            Err(error) => {
                self.fail(error, true);
                // Which may be what a peer had said before.
                let first = self.failure.clone().expect("it has failed");
                Some(Err(first))
            }
        }
    }

    /// Whether a call has begun that may end if it is asked for again.
    pub fn waits_at_once(&self) -> bool {
        self.begun
            .as_ref()
            .is_some_and(|round| !round.is_redirected)
    }

    /// The next round of a call; `None` if it cannot run now.
    fn begin_at_once(&mut self, call: &mut AtOnce) -> Option<Result<Box<Round>>> {
        let is_alone = self.active.is_empty() && self.queue.is_empty() && self.failure.is_none();
        let sequence = self.next_sequence;
        call.is_staged = match &call.fallback {
            Some(fallback) if self.staged.holds(fallback.signature) => {
                fallback.way.as_ref()?;
                true
            }
            _ => false,
        };
        let has_slot = !call.way().prepared.uses_signals || self.is_retired_by_all(sequence);
        let is_whole = self.left.is_none() && self.driver.links.first_failed().is_none();
        if !is_alone || !has_slot || !is_whole {
            return None;
        }
        let round = match call.way().round.take() {
            Some(mut round) => {
                round.again(sequence, self.driver.links.ranks);
                round
            }
            None => match self.bind_at_once(call, sequence) {
                Ok(round) => {
                    // Once: the memory of the call stays what it is.
                    let ranks = self.driver.links.ranks;
                    (call.way().script).get_or_insert_with(|| Script::new(&round, ranks));
                    round
                }
                Err(error) => return Some(Err(error)),
            },
        };
        if let (true, Some(fallback)) = (call.is_staged, &call.fallback) {
            self.staged.count(fallback.signature);
        }
        self.next_sequence += 1;
        Some(Ok(round))
    }

    fn end_at_once(&mut self, call: &mut AtOnce, round: Box<Round>) {
        let sequence = self.next_sequence - 1;
        self.history[(sequence % HISTORY as u64) as usize] = (sequence, round.signature);
        let way = call.way();
        if way.prepared.uses_engine_memory() {
            self.put_away(round);
        } else {
            way.round = Some(round);
        }
        self.retire(sequence);
        if sequence.is_multiple_of(CALLS_PER_POLL) {
            self.poll_events();
        }
    }

    fn bind_at_once(&mut self, call: &mut AtOnce, sequence: u64) -> Result<Box<Round>> {
        let prepared = &call.way().prepared.clone();
        let mut round = take_round(&mut self.spare_rounds, prepared);
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
        self.driver.begin(&mut round, of, &round_call)?;
        Ok(round)
    }

    /// Makes a round that has begun the round of a task.
    pub(super) fn adopt_round(&mut self, index: usize, mut round: Box<Round>, now: Time) {
        let task = &mut self.tasks[index];
        (task.started, task.active_rounds) = (round.count, 1);
        if let Some(call) = &mut task.call
            && !Arc::ptr_eq(&call.prepared, &round.prepared)
        {
            (call.prepared, call.fallback) = (round.prepared.clone(), None);
        }
        self.generation = self.generation.wrapping_add(1);
        (round.task, round.generation) = (index, self.generation);
        if let Some(sequence) = round.sequence() {
            self.note_started(sequence, &round);
        }
        self.enlist(round, now);
    }
}
