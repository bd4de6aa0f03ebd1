//! Calls that end at once: where nothing else is under way, a blocking call runs its schedule straight
//! (`driver/straight.rs`), without a task, a place in any list or a look at the clock. If a peer is not there soon, the
//! round becomes that of an ordinary task and goes on from where it stands.

use super::Engine;
use super::prepared::Prepared;
use super::round::{Round, RoundCall, RoundId, RoundOf};
use super::tasks::Arguments;
use crate::error::Result;
use crate::limits::COUNT_MAX;
use crate::time::Time;
use crate::types::Collective;
use std::sync::Arc;

impl Engine {
    /// Runs a call to its end if each of its waits takes no more than `looks` looks at what peers have stored. `None`:
    /// not ended; the caller submits the same call next, before anything else is done with the engine.
    pub fn run_at_once(
        &mut self,
        prepared: &Arc<Prepared>,
        arguments: &Arguments,
        slots: &[u64],
        looks: u32,
    ) -> Option<Result<()>> {
        let is_alone = self.active.is_empty() && self.queue.is_empty() && self.failure.is_none();
        let has_all = self.driver.links.first_gone().is_none();
        let is_collective = arguments.collective != Collective::SendRecv;
        let can_run = prepared.is_straight && is_collective && arguments.count <= COUNT_MAX;
        if !can_run || !is_alone || !has_all {
            return None;
        }
        let fits = !prepared.uses_windows
            || self.segment_elements(prepared, arguments, slots).ok()? >= arguments.count;
        let sequence = self.next_sequence;
        if !fits || prepared.uses_signals && !self.is_retired_by_all(sequence) {
            return None;
        }
        let mut round = self.take_round(prepared);
        let of = RoundOf {
            id: RoundId::Collective(sequence),
            task: 0,
            generation: 0,
            part: (arguments.count, 0),
        };
        let call = RoundCall {
            prepared,
            arguments,
            slots,
            others: &[],
        };
        if let Err(error) = self.driver.begin(&mut round, of, &call) {
            return Some(Err(error));
        }
        self.next_sequence += 1;
        self.driver.looks = looks;
        let ran = self.driver.run_straight(prepared, &mut round);
        self.driver.looks = 1;
        match ran {
            Ok(true) => {
                self.note_started(sequence, &round);
                self.end_at_once(round, sequence);
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

    fn end_at_once(&mut self, mut round: Box<Round>, sequence: u64) {
        if let Some(lent) = round.scratch.take() {
            self.driver.pool.give(lent);
        }
        self.spare_rounds.push(round);
        let published = self.published;
        self.retire(sequence);
        if self.published != published {
            // Peers may have failed, or ask; where every call ends at once nobody else would hear them.
            self.poll_events();
        }
    }

    /// Makes a round that has begun the round of a task.
    pub(super) fn adopt_round(&mut self, index: usize, mut round: Box<Round>, now: Time) {
        let task = &mut self.tasks[index];
        (task.started, task.active_rounds) = (round.count, 1);
        self.generation = self.generation.wrapping_add(1);
        (round.task, round.generation) = (index, self.generation);
        if let Some(sequence) = round.sequence() {
            self.note_started(sequence, &round);
        }
        self.enlist(round, now);
    }
}
