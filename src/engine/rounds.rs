//! How rounds of tasks are started in order, run, ended and retired.

use super::arguments::signature_of;
use super::core::Engine;
use super::links::Links;
use super::round::{Round, RoundId, RoundOf};
use super::suspect::name_ranks;
use crate::error::{Error, Result};
use crate::limits::OPERATION_SLOTS;
use crate::schedule::Action;
use crate::time::Time;
use crate::types::Rank;

/// Of operations without signals, one in this many makes this rank look for messages that no
/// receive takes. A look goes over all peers.
const STRAYS_EVERY: u64 = 16;

impl Engine {
    /// Starts rounds of waiting collectives, oldest first, as far as slots are free.
    pub(super) fn start_queued(&mut self, now: Time) {
        while self.failing.cause.is_none() && self.undecided.is_none() {
            let Some(&index) = self.tasks.queue.front() else {
                return;
            };
            let sequence = self.numbers.next;
            if self
                .leaving
                .first
                .is_some_and(|left| sequence >= left.sequence)
            {
                return self.fail_unreachable();
            }
            if sequence >= self.driver.retired + OPERATION_SLOTS {
                return;
            }
            self.stage_if_known(index);
            let call = self.tasks[index].call.as_ref();
            let call = call.expect("queued tasks have calls");
            if call.prepared.uses_signals && !self.is_retired_by_all(sequence) {
                return;
            }
            self.numbers.next += 1;
            self.start_round(index, RoundId::Collective(sequence), now);
        }
    }

    /// Stages a call at once if it is known that it would be repeated by staging.
    fn stage_if_known(&mut self, index: usize) {
        let task = &mut self.tasks[index];
        let call = task.call.as_mut().expect("queued tasks have calls");
        if call.fallback.is_none() {
            return;
        }
        let signature = signature_of(&call.arguments, &call.prepared, &call.slots);
        if self.staged.holds(signature)
            && let Some(fallback) = call.fallback.take()
        {
            self.staged.count(signature);
            call.prepared = fallback;
            task.segment_elements = 0;
        }
    }

    /// Whether every peer that signals has retired the operation that used the slot of this one.
    pub(super) fn is_retired_by_all(&mut self, sequence: u64) -> bool {
        if self.numbers.is_slot_free(sequence) {
            return true;
        }
        let links = &self.driver.links;
        let least = (links.mappable.iter()).map(|&p| links.retired_by(p)).min();
        let least = least.unwrap_or(u64::MAX);
        if least > self.numbers.retired_by_all {
            self.refresh_later(self.rounds.len(), self.now);
        }
        self.numbers.retired_by_all = least;
        self.numbers.is_slot_free(sequence)
    }

    pub(super) fn start_round(&mut self, index: usize, id: RoundId, now: Time) {
        if let Err(error) = self.try_start_round(index, id, now) {
            self.fail(error, true);
        }
    }

    fn try_start_round(&mut self, index: usize, id: RoundId, now: Time) -> Result<()> {
        let part = self.next_segment(index)?;
        let task = &mut self.tasks[index];
        task.started = part.0 + part.1;
        task.active_rounds += 1;
        let count = task.call.as_ref().map_or(0, |call| call.arguments.count);
        if matches!(id, RoundId::Collective(_)) && task.started >= count {
            self.tasks.queue.pop_front();
        }
        let call = self.tasks[index].call.as_ref();
        let call = call.expect("running tasks have calls");
        let mut round = self.rounds.take_spare(&call.prepared);
        let generation = self.rounds.next_generation();
        let of = RoundOf {
            id,
            task: index,
            generation,
            part,
        };
        self.driver.begin(&mut round, of, &call.for_round())?;
        match id {
            RoundId::Collective(sequence) => self.note_started(sequence, &round),
            RoundId::Pairwise => self.number_messages(&mut round),
            RoundId::Tagged(_) => {}
        }
        self.enlist(round, now);
        Ok(())
    }

    /// Takes back the scratch memory of a round that has ended, and keeps the round as a spare one.
    #[inline]
    pub(super) fn put_away(&mut self, mut round: Box<Round>) {
        if let Some(lent) = round.memory.scratch.take() {
            self.driver.pool.give(lent);
        }
        self.rounds.put_spare(round);
    }

    /// Notes that a collective round has begun.
    pub(super) fn note_started(&mut self, sequence: u64, round: &Round) {
        self.numbers.note(sequence, round.program.signature);
        if !round.is_decided() && self.driver.links.ranks > 1 {
            self.undecided = Some(sequence);
        }
    }

    /// Puts a round that has begun among the active ones and runs it.
    pub(super) fn enlist(&mut self, round: Box<Round>, now: Time) {
        if self.wants_signals {
            // A thread that sleeps has not counted the signals of this round.
            self.want_anything();
        }
        let (index, place) = self.rounds.add(round);
        self.run_round(index, place, now);
    }

    /// The part of its call that the next round of a task is for: how many elements, and from which
    /// on.
    fn next_segment(&mut self, index: usize) -> Result<(u64, u64)> {
        let task = &self.tasks[index];
        let call = task.call.as_ref().expect("running tasks have calls");
        if !call.prepared.is_cut() {
            return Ok((call.arguments.count, 0));
        }
        if task.segment_elements == 0 {
            self.tasks[index].segment_elements =
                self.segment_elements(&call.prepared, &call.arguments, &call.slots)?;
        }
        let task = &self.tasks[index];
        let left = task
            .call
            .as_ref()
            .map_or(0, |call| call.arguments.count - task.started);
        Ok((task.segment_elements.min(left), task.started))
    }

    /// Gives the messages of a pairwise round their numbers among those of each pair.
    fn number_messages(&mut self, round: &mut Round) {
        round.message_bases.clone_from(&self.pair_counts);
        for step in &round.program.prepared.schedule.steps {
            match &step.action {
                Action::Send { peer, .. } => self.pair_counts[*peer as usize].0 += 1,
                Action::Recv { peer, .. } => self.pair_counts[*peer as usize].1 += 1,
                _ => {}
            }
        }
    }

    /// Runs every round as far as it goes.
    pub(super) fn run_rounds(&mut self, now: Time) {
        self.driver.has_work = false;
        let mut index = 0;
        while let Some(place) = self.rounds.place(index) {
            let has_left = self.failing.cause.is_none() && self.run_round(index, place, now);
            index += usize::from(!has_left);
        }
    }

    /// Runs the active round at this index, which is at this place, if it has work; true if it has
    /// ended and left the list.
    #[inline(never)]
    fn run_round(&mut self, index: usize, place: u32, now: Time) -> bool {
        let Some(round) = self.rounds.at_mut(place) else {
            return false;
        };
        if !round.has_work() {
            return false;
        }
        let moved_before = std::mem::replace(&mut self.driver.moved, false);
        let ran = match round.has_ended() {
            // A message has ended it.
            true => Ok(()),
            false => self.driver.run(round),
        };
        if self.driver.moved {
            round.last_moved = now;
        }
        self.driver.moved |= moved_before;
        if self.undecided.is_some() && self.undecided == round.sequence() && round.is_decided() {
            self.undecided = None;
        }
        match ran {
            Ok(()) if round.has_ended() => {
                let round = self.rounds.remove(index);
                self.refresh_later(index, now);
                self.end_round(round);
                true
            }
            Ok(()) => {
                self.driver.has_work |= round.has_work();
                false
            }
            Err(error) => {
                self.fail_round(place, error);
                false
            }
        }
    }

    fn end_round(&mut self, mut round: Box<Round>) {
        let (index, is_redirected) = (round.task, round.is_redirected);
        let lost = round.lost.take().map(|rank| Error::Left {
            rank,
            operation: round.program.signature.describe(),
        });
        self.tasks[index].last_moved = self.now;
        if is_redirected {
            self.staged.note(round.program.signature);
        }
        let fallback = (self.tasks[index].call.as_ref()).and_then(|call| call.fallback.as_ref());
        let unregistered = match is_redirected && fallback.is_none() {
            true => self.unregistered(&round),
            false => Vec::new(),
        };
        if let Some(sequence) = round.sequence() {
            self.retire(sequence, round.program.prepared.uses_signals);
            if self.undecided == Some(sequence) {
                self.undecided = None;
            }
        }
        self.put_away(round);
        let task = &mut self.tasks[index];
        task.active_rounds -= 1;
        let call = task.call.as_mut().expect("running tasks have calls");
        if is_redirected {
            match call.fallback.take() {
                Some(fallback) => {
                    call.prepared = fallback;
                    (task.started, task.segment_elements) = (0, 0);
                    self.tasks.queue.push_front(index);
                    self.has_chores = true;
                }
                None => {
                    let error = Error::invalid(format!(
                        "{} by {} needs registered memory on every rank, and that of {} is not: take it from \
                         Communicator::alloc there, or name no algorithm",
                        call.arguments.collective,
                        call.prepared.schedule.name,
                        name_ranks(&unregistered)
                    ));
                    self.fail(error, true);
                }
            }
        } else if task.active_rounds == 0 && task.started >= call.arguments.count {
            self.end_task(index, lost.map_or(Ok(()), Err));
        }
    }

    /// The ranks whose memory is not registered, of those whose first signal has arrived here.
    fn unregistered(&self, round: &Round) -> Vec<Rank> {
        let (links, sequence) = (&self.driver.links, round.sequence().unwrap_or(0));
        let is_unregistered = |rank: &Rank| match *rank == links.rank {
            true => !self.driver.binding_of(round).is_registered,
            false => {
                links.arrived(*rank, sequence, 0).is_some()
                    && !links.binding(*rank, sequence).is_registered
            }
        };
        (0..links.ranks).filter(is_unregistered).collect()
    }

    /// A collective round has ended here: its flag lines and windows may be used again once all
    /// ranks say so.
    pub(super) fn retire(&mut self, sequence: u64, uses_signals: bool) {
        self.driver.retired = self.numbers.retire(sequence, uses_signals);
        if self.numbers.is_publishing_due() {
            self.publishing.to.clear();
            (self.publishing.to).extend_from_slice(&self.driver.links.mappable);
            self.publish();
            self.has_chores |= !self.publishing.to.is_empty();
        }
        // Operations that use signals are looked at when their counts are published.
        if !uses_signals && sequence.is_multiple_of(STRAYS_EVERY) {
            self.failing.looks_for_strays = true;
            self.has_chores = true;
        }
    }

    pub(super) fn publish(&mut self) {
        while let Some(&peer) = self.publishing.to.last() {
            match self
                .driver
                .links
                .publish_retired(peer, self.numbers.published)
            {
                Ok(false) => return,
                // A peer that is gone needs no count; operations that need it fail by themselves.
                Ok(true) | Err(_) => self.publishing.to.pop(),
            };
        }
        self.publishing.is_quiet = true;
    }

    /// Wakes peers that may sleep until this rank has retired more operations, and have had no
    /// signal since that count was stored. A peer that has announced for how many signals it sleeps
    /// does not wait for a count and sleeps on.
    pub(super) fn wake_published(&mut self) {
        self.publishing.is_quiet = false;
        let Links {
            mappable,
            transport,
            ..
        } = &mut self.driver.links;
        mappable.iter().for_each(|&p| transport.notify_of_count(p));
    }
}
