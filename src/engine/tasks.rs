//! Tasks: from a call to rounds, and back to a result.

use super::Engine;
use super::prepared::Prepared;
use super::round::{PeerBuffers, Round, RoundId, Segment};
use super::signature::Signature;
use super::tag::ROUNDS_MAX;
use crate::error::{Error, Result};
use crate::limits::{COUNT_MAX, OPERATION_SLOTS};
use crate::memory::View;
use crate::schedule::{Action, Count};
use crate::time::Time;
use crate::types::{Collective, DataType, Rank, ReduceOp};
use std::any::Any;
use std::sync::Arc;

/// A task, as its starter names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskId {
    index: usize,
    generation: u32,
}

/// A call, with its schedule chosen and its buffers resolved.
pub struct TaskCall {
    /// The collective, for signatures and texts.
    pub collective: Collective,
    /// The schedule.
    pub prepared: Arc<Prepared>,
    /// The schedule to stage the call with if some rank's memory is not registered. Needed where the first
    /// one reaches peers' buffers.
    pub fallback: Option<Arc<Prepared>>,
    /// Elements per rank.
    pub count: u64,
    /// Lengths and offsets of v-collectives and grouped transfers.
    pub slots: Vec<u64>,
    /// Element type.
    pub dtype: DataType,
    /// Operator.
    pub op: ReduceOp,
    /// Root.
    pub root: Rank,
    /// The whole input; empty if this rank has none.
    pub input: View,
    /// The whole output.
    pub output: View,
    /// The buffers of the transfers of a group.
    pub others: Vec<View>,
    /// Owners of the memory, kept until the task has ended.
    pub keep: Vec<Arc<dyn Any + Send + Sync>>,
}

#[derive(Debug, PartialEq)]
enum State {
    Free,
    Running,
    Done(Result<()>),
}

/// A call under way.
pub struct Task {
    generation: u32,
    state: State,
    call: Option<TaskCall>,
    /// Elements of the count for which rounds have been started.
    started: u64,
    has_started: bool,
    active_rounds: u32,
    /// Rounds of a persistent schedule that have completed, and activations that have not met a round.
    rounds_completed: u64,
    activations: u64,
    is_detached: bool,
    pub last_moved: Time,
}

impl Task {
    /// What it is, for texts.
    pub fn describe(&self) -> String {
        match &self.call {
            Some(call) => signature_of(call).describe(),
            None => "an ended operation".into(),
        }
    }

    pub fn is_running(&self) -> bool {
        self.state == State::Running
    }
}

impl Engine {
    /// Starts a task. It runs as far as it can at once.
    pub fn submit(&mut self, call: TaskCall, now: Time) -> Result<TaskId> {
        if let Some(first) = &self.failure {
            return Err(Error::CommunicatorFailed(Box::new(
                first.first_cause().clone(),
            )));
        }
        if let Some(gone) = self.driver.links.first_gone() {
            return Err(gone);
        }
        if call.count > COUNT_MAX {
            return Err(Error::invalid(format!(
                "{} elements: at most {COUNT_MAX}",
                call.count
            )));
        }
        if call.prepared.uses_windows() {
            self.segment_elements(&call)?;
        }
        let is_pairwise = call.collective == Collective::SendRecv;
        if is_pairwise && self.active.len() + 1 >= ROUNDS_MAX {
            return Err(Error::Exhausted {
                what: "a group of sends and receives".into(),
                limit: format!("{} operations are under way", self.active.len()),
                remedy: "wait for some of them first".into(),
            });
        }
        let index = self.free_tasks.pop().unwrap_or_else(|| {
            self.tasks.push(Task {
                generation: 0,
                state: State::Free,
                call: None,
                started: 0,
                has_started: false,
                active_rounds: 0,
                rounds_completed: 0,
                activations: 0,
                is_detached: false,
                last_moved: now,
            });
            self.tasks.len() - 1
        });
        let task = &mut self.tasks[index];
        task.state = State::Running;
        task.call = Some(call);
        (task.started, task.has_started, task.active_rounds) = (0, false, 0);
        (task.rounds_completed, task.activations, task.is_detached) = (0, 0, false);
        task.last_moved = now;
        let id = TaskId {
            index,
            generation: task.generation,
        };
        if is_pairwise {
            self.start_round(index, RoundId::Pairwise, now);
        } else {
            self.queue.push_back(index);
            self.start_queued(now);
        }
        Ok(id)
    }

    /// The result, once there is one.
    #[inline]
    pub fn result(&self, id: TaskId) -> Option<Result<()>> {
        match self.tasks.get(id.index) {
            Some(task) if task.generation == id.generation => match &task.state {
                State::Done(result) => Some(result.clone()),
                _ => None,
            },
            _ => Some(Err(Error::invalid("the operation was waited for already"))),
        }
    }

    /// Nobody will ask for the result any more; a running task goes on.
    pub fn release(&mut self, id: TaskId) {
        let Some(task) = self
            .tasks
            .get_mut(id.index)
            .filter(|t| t.generation == id.generation)
        else {
            return;
        };
        match task.state {
            State::Running => task.is_detached = true,
            State::Done(_) => self.free_task(id.index),
            State::Free => {}
        }
    }

    /// The caller has arrived at a persistent schedule.
    pub fn activate(&mut self, id: TaskId, now: Time) -> Result<()> {
        if self.result(id).is_some() {
            return Err(Error::invalid("the persistent operation has ended"));
        }
        self.tasks[id.index].activations += 1;
        for place in self.active.clone() {
            if let Some(round) = self.rounds[place as usize].as_mut()
                && round.task == id.index
            {
                self.tasks[id.index].activations -= 1;
                let prepared = round.prepared.clone();
                round.progress.activate(&prepared);
            }
        }
        self.run_rounds(now);
        Ok(())
    }

    /// Rounds of a persistent task that have completed.
    pub fn rounds_completed(&self, id: TaskId) -> u64 {
        self.tasks[id.index].rounds_completed
    }

    /// Fails the communicator everywhere because this task is not wanted any more.
    pub fn cancel(&mut self, id: TaskId) -> Result<()> {
        if self.result(id).is_none() {
            let operation = self.tasks[id.index].describe();
            self.fail(
                Error::Cancelled {
                    by: self.rank(),
                    operation,
                },
                true,
            );
        }
        Ok(())
    }

    /// Ends every task with this error.
    pub(super) fn fail_tasks(&mut self, error: &Error) {
        for index in 0..self.tasks.len() {
            if self.tasks[index].is_running() {
                self.end_task(index, Err(error.clone()));
            }
        }
        self.queue.clear();
    }

    fn end_task(&mut self, index: usize, result: Result<()>) {
        let task = &mut self.tasks[index];
        task.state = State::Done(result);
        if self.failure.is_none() {
            // After a failure peers may still reach the memory: it is kept until the communicator ends.
            task.call = None;
        }
        if task.is_detached {
            self.free_task(index);
        }
    }

    fn free_task(&mut self, index: usize) {
        let task = &mut self.tasks[index];
        task.state = State::Free;
        task.generation = task.generation.wrapping_add(1);
        if self.failure.is_none() {
            self.free_tasks.push(index);
        }
    }

    /// Elements of one segment of a call that is staged through windows.
    fn segment_elements(&self, call: &TaskCall) -> Result<u64> {
        let element = call.dtype.size_bytes();
        let limit = self.config.window_bytes as u64;
        let fits = |count: u64| {
            call.prepared
                .memory_bytes(
                    &Count {
                        count,
                        slots: &call.slots,
                    },
                    element,
                )
                .0
                <= limit
        };
        if fits(call.count) {
            return Ok(call.count.max(1));
        }
        let (mut low, mut high) = (0, call.count);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle) {
                low = middle
            } else {
                high = middle
            }
        }
        if low == 0 {
            return Err(Error::invalid(format!(
                "{} by {} needs more than a window of {limit} bytes for one element on {} ranks: raise LINERATE_WINDOW_BYTES",
                call.collective,
                call.prepared.schedule.name,
                self.ranks()
            )));
        }
        Ok(low)
    }

    /// Starts rounds of waiting collectives, oldest first, as far as slots are free.
    pub(super) fn start_queued(&mut self, now: Time) {
        while self.failure.is_none() && self.undecided.is_none() {
            let Some(&index) = self.queue.front() else {
                return;
            };
            let sequence = self.next_sequence;
            if sequence >= self.retired + OPERATION_SLOTS {
                return;
            }
            let call = self.tasks[index]
                .call
                .as_ref()
                .expect("queued tasks have calls");
            if call.prepared.uses_signals && !self.is_retired_by_all(sequence) {
                return;
            }
            self.next_sequence += 1;
            self.start_round(index, RoundId::Collective(sequence), now);
        }
    }

    /// Whether every peer has retired the operation that used the slot of this one.
    fn is_retired_by_all(&mut self, sequence: u64) -> bool {
        if self.retired_by_all.saturating_add(OPERATION_SLOTS) > sequence {
            return true;
        }
        let links = &self.driver.links;
        let least = links.others().map(|p| links.retired_by(p)).min();
        let least = least.unwrap_or(u64::MAX);
        if least > self.retired_by_all {
            self.refresh_later(self.active.len(), self.now);
        }
        self.retired_by_all = least;
        least.saturating_add(OPERATION_SLOTS) > sequence
    }

    fn start_round(&mut self, index: usize, id: RoundId, now: Time) {
        if let Err(error) = self.try_start_round(index, id, now) {
            self.fail(error, true);
        }
    }

    fn try_start_round(&mut self, index: usize, id: RoundId, now: Time) -> Result<()> {
        let call = self.tasks[index]
            .call
            .as_ref()
            .expect("running tasks have calls");
        let (count, offset) = match call.prepared.uses_windows() {
            true => {
                let segment = self.segment_elements(call)?;
                let offset = self.tasks[index].started;
                (segment.min(call.count - offset), offset)
            }
            false => (call.count, 0),
        };
        let task = &mut self.tasks[index];
        let call = task.call.as_ref().expect("running tasks have calls");
        let is_persistent = call.prepared.schedule.persistent;
        task.started = offset + count;
        task.has_started = true;
        task.active_rounds += 1;
        let is_last = task.started >= call.count;
        if id != RoundId::Pairwise && is_last {
            self.queue.pop_front();
        }
        let mut round = self
            .spare_rounds
            .pop()
            .unwrap_or_else(|| Box::new(Round::new(call.prepared.clone())));
        let call = self.tasks[index]
            .call
            .as_ref()
            .expect("running tasks have calls");
        self.generation = self.generation.wrapping_add(1);
        round.id = id;
        round.task = index;
        round.generation = self.generation;
        round.prepared = call.prepared.clone();
        round.signature = signature_of(call);
        (round.count, round.dtype, round.op) = (count, call.dtype, call.op);
        round.slots.clone_from(&call.slots);
        round.segment = Segment {
            part_elements: call.count,
            offset,
        };
        round.peers.clear();
        round
            .peers
            .resize(self.driver.links.ranks as usize, PeerBuffers::default());
        round.waiting.clear();
        round.stalled.clear();
        (round.is_redirected, round.arrivals) = (false, 0);
        let scratch = round
            .prepared
            .memory_bytes(&round.counts(), round.dtype.size_bytes())
            .1;
        round.scratch = match scratch {
            0 => None,
            bytes => Some(
                self.driver
                    .pool
                    .lend(bytes as usize, self.driver.links.transport.as_mut())?,
            ),
        };
        let window = match id {
            RoundId::Collective(sequence) => self
                .driver
                .links
                .window_slot(self.driver.links.rank, sequence),
            RoundId::Pairwise => View::empty(),
        };
        let (input, output, others) = (call.input, call.output, call.others.clone());
        round.bind(input, output, &others, window);
        let prepared = round.prepared.clone();
        round.progress.arm(&prepared);
        if let RoundId::Collective(sequence) = id {
            self.history[(sequence % self.history.len() as u64) as usize] =
                (sequence, round.signature);
            self.active_collectives += 1;
            if prepared.reaches_buffers && self.driver.links.ranks > 1 {
                self.undecided = Some(sequence);
            }
        } else {
            self.number_messages(&mut round);
        }
        if is_persistent && self.tasks[index].activations > 0 {
            self.tasks[index].activations -= 1;
            round.progress.activate(&prepared);
        }
        let place = self.free_places.pop().unwrap_or_else(|| {
            self.rounds.push(None);
            self.rounds.len() as u32 - 1
        });
        self.active.push(place);
        self.run_round(place, round, now);
        Ok(())
    }

    /// Gives the messages of a pairwise round their numbers among those of each pair.
    fn number_messages(&mut self, round: &mut Round) {
        round.message_bases.clone_from(&self.pair_counts);
        for step in &round.prepared.schedule.steps {
            match &step.action {
                Action::Send { peer, .. } => self.pair_counts[*peer as usize].0 += 1,
                Action::Recv { peer, .. } => self.pair_counts[*peer as usize].1 += 1,
                _ => {}
            }
        }
    }

    /// Runs every round as far as it goes.
    pub(super) fn run_rounds(&mut self, now: Time) {
        let mut index = 0;
        while index < self.active.len() && self.failure.is_none() {
            let place = self.active[index];
            match self.rounds[place as usize].take() {
                Some(round) => {
                    if !self.run_round(place, round, now) {
                        index += 1;
                    }
                }
                None => index += 1,
            }
        }
        if !self.publish_to.is_empty() {
            self.publish();
        }
    }

    /// Runs a round; true if it has ended and left the list of active ones.
    fn run_round(&mut self, place: u32, mut round: Box<Round>, now: Time) -> bool {
        let moved_before = std::mem::replace(&mut self.driver.moved, false);
        let is_oldest = round.sequence() == Some(self.retired);
        let ran = self.driver.run(place, &mut round, is_oldest);
        if self.driver.moved {
            self.tasks[round.task].last_moved = now;
        }
        self.driver.moved |= moved_before;
        if self.undecided.is_some() && self.undecided == round.sequence() && round.is_decided() {
            self.undecided = None;
        }
        let has_ended =
            round.is_redirected || (round.progress.is_finished() && round.outstanding == 0);
        match ran {
            Ok(()) if has_ended => {
                let at = self.active.iter().position(|&p| p == place);
                let at = at.expect("a round that runs is active");
                self.active.remove(at);
                self.refresh_later(at, now);
                self.free_places.push(place);
                self.end_round(round);
                true
            }
            Ok(()) => {
                self.rounds[place as usize] = Some(round);
                false
            }
            Err(error) => {
                self.rounds[place as usize] = Some(round);
                self.fail(error, true);
                false
            }
        }
    }

    fn end_round(&mut self, mut round: Box<Round>) {
        if let Some(lent) = round.scratch.take() {
            self.driver.pool.give(lent);
        }
        let (index, is_redirected) = (round.task, round.is_redirected);
        if let Some(sequence) = round.sequence() {
            self.active_collectives -= 1;
            self.retire(sequence);
            if self.undecided == Some(sequence) {
                self.undecided = None;
            }
        }
        self.spare_rounds.push(round);
        let task = &mut self.tasks[index];
        task.active_rounds -= 1;
        task.rounds_completed += 1;
        let call = task.call.as_mut().expect("running tasks have calls");
        if is_redirected {
            match call.fallback.take() {
                Some(fallback) => {
                    call.prepared = fallback;
                    task.started = 0;
                    self.queue.push_front(index);
                }
                None => {
                    let error = Error::invalid(format!(
                        "{} by {} needs registered memory on every rank (Communicator::alloc)",
                        call.collective, call.prepared.schedule.name
                    ));
                    self.fail(error, true);
                }
            }
        } else if call.prepared.schedule.persistent {
            task.started = 0;
            self.queue.push_back(index);
        } else if task.active_rounds == 0 && task.started >= call.count {
            self.end_task(index, Ok(()));
        }
    }

    /// A collective round has ended here: its flag lines and windows may be used again once all ranks say so.
    fn retire(&mut self, sequence: u64) {
        self.is_retired[(sequence % OPERATION_SLOTS) as usize] = true;
        while std::mem::take(&mut self.is_retired[(self.retired % OPERATION_SLOTS) as usize]) {
            self.retired += 1;
        }
        // A quarter of the slots at a time: a peer is never held up while it is less than the rest ahead,
        // and the stores to all peers cost a quarter per operation.
        if self.retired - self.published >= OPERATION_SLOTS / 4 {
            self.published = self.retired;
            self.publish_to.clear();
            self.publish_to.extend(self.driver.links.others());
            self.publish();
        }
    }

    fn publish(&mut self) {
        while let Some(&peer) = self.publish_to.last() {
            match self.driver.links.publish_retired(peer, self.published) {
                Ok(false) => return,
                // A peer that is gone needs no count; operations that need it fail by themselves.
                Ok(true) | Err(_) => self.publish_to.pop(),
            };
        }
    }
}

fn signature_of(call: &TaskCall) -> Signature {
    Signature::new(
        call.collective,
        call.dtype,
        call.op,
        call.root,
        call.prepared.algorithm,
        call.count,
    )
}
