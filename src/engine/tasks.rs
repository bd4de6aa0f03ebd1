//! Tasks: from a call to rounds, and back to a result.

use super::Engine;
use super::arguments::{Arguments, signature_of};
use super::prepared::Prepared;
use super::round::{RoundCall, RoundId};
use super::tag::ROUNDS_MAX;
use crate::error::{Error, Result};
use crate::limits::COUNT_MAX;
use crate::memory::{Kept, View};
use crate::schedule::Count;
use crate::time::Time;
use crate::types::Collective;
use std::borrow::Cow;
use std::sync::Arc;

/// A task, as its starter names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskId {
    index: usize,
    generation: u32,
}

/// A call, with its schedule chosen and its buffers resolved, and everything that must outlive it.
pub struct TaskCall {
    /// What it says.
    pub arguments: Arguments,
    /// The schedule.
    pub prepared: Arc<Prepared>,
    /// The schedule to stage the call with if some rank's memory is not registered. Needed where
    /// the first one reaches peers' buffers.
    pub fallback: Option<Arc<Prepared>>,
    /// Lengths and offsets of v-collectives and grouped transfers.
    pub slots: Cow<'static, [u64]>,
    /// The buffers of the transfers of a group.
    pub others: Vec<View>,
    /// Input and output, kept and borrowed until the task has ended.
    pub keep: [Option<Kept>; 2],
    /// The same of the transfers' buffers.
    pub keep_others: Vec<Kept>,
}

impl TaskCall {
    pub(super) fn for_round(&self) -> RoundCall<'_> {
        RoundCall {
            prepared: &self.prepared,
            arguments: &self.arguments,
            slots: &self.slots,
            others: &self.others,
        }
    }

    /// The task has ended as it should.
    fn end(self) {
        let all = self.keep.into_iter().flatten().chain(self.keep_others);
        all.for_each(Kept::end);
    }

    /// The task has failed, for this reason.
    pub(super) fn fail(&mut self, reason: &Error) {
        let all = self.keep.iter_mut().flatten().chain(&mut self.keep_others);
        all.for_each(|kept| kept.fail(reason));
    }
}

#[derive(Debug, PartialEq)]
enum State {
    Free,
    Running,
    Done(Result<()>),
}

/// A call under way.
pub struct Task {
    pub(super) generation: u32,
    state: State,
    pub(super) call: Option<TaskCall>,
    /// Elements of the count for which rounds have been started.
    pub(super) started: u64,
    /// Elements of a round that is staged through windows, 0 until that is known.
    pub(super) segment_elements: u64,
    pub(super) active_rounds: u32,
    pub(super) is_detached: bool,
    pub last_moved: Time,
}

impl Task {
    /// What it is, for texts.
    pub fn describe(&self) -> String {
        match &self.call {
            Some(call) => signature_of(&call.arguments, &call.prepared, &call.slots).describe(),
            None => "an ended operation".into(),
        }
    }

    pub fn is_running(&self) -> bool {
        self.state == State::Running
    }
}

impl Engine {
    /// Starts a task. It runs as far as it can at once. What is refused leaves its memory as it
    /// was.
    pub fn submit(&mut self, call: TaskCall, now: Time) -> Result<TaskId> {
        let has_begun = self.begun.is_some();
        let segment_elements = match self.admit(&call, now) {
            Ok(elements) => elements,
            Err(error) => {
                // Peers may reach the memory of a call that has begun.
                if !has_begun {
                    call.end();
                }
                return Err(error);
            }
        };
        let is_pairwise = call.arguments.collective == Collective::SendRecv;
        let index = self.free_tasks.pop().unwrap_or_else(|| {
            self.tasks.push(Task {
                generation: 0,
                state: State::Free,
                call: None,
                started: 0,
                segment_elements: 0,
                active_rounds: 0,
                is_detached: false,
                last_moved: now,
            });
            self.tasks.len() - 1
        });
        let task = &mut self.tasks[index];
        task.state = State::Running;
        task.call = Some(call);
        (task.started, task.segment_elements, task.active_rounds) = (0, segment_elements, 0);
        task.is_detached = false;
        task.last_moved = now;
        let id = TaskId {
            index,
            generation: task.generation,
        };
        if let Some(round) = self.begun.take() {
            self.adopt_round(index, round, now);
        } else if is_pairwise {
            self.start_round(index, RoundId::Pairwise, now);
        } else {
            self.queue.push_back(index);
            self.start_queued(now);
            self.has_chores |= !self.queue.is_empty();
        }
        // A round that had begun may be one that cannot end.
        self.fail_unreachable();
        Ok(id)
    }

    /// An error of every call, if the communicator has failed.
    pub fn check(&mut self) -> Result<()> {
        self.tell_failure();
        match &self.failure {
            Some(first) => Err(Error::CommunicatorFailed(Box::new(
                first.first_cause().clone(),
            ))),
            None => Ok(()),
        }
    }

    /// Whether a task may start, and the elements of its rounds that are staged through windows.
    fn admit(&mut self, call: &TaskCall, now: Time) -> Result<u64> {
        self.check()?;
        if let Some(gone) = self.driver.links.first_failed() {
            // The others wait for this rank now, and must hear of the one that has failed. What can
            // end well does first.
            while self.failure.is_none() && self.drive(now) {}
            self.fail(gone.clone(), true);
            return Err(self.failure.clone().unwrap_or(gone));
        }
        let count = call.arguments.count;
        if count > COUNT_MAX {
            return Err(Error::invalid(format!(
                "{count} elements: at most {COUNT_MAX}"
            )));
        }
        let segment_elements = match call.prepared.uses_windows {
            true => self.segment_elements(&call.prepared, &call.arguments, &call.slots)?,
            false => 0,
        };
        let is_pairwise = call.arguments.collective == Collective::SendRecv;
        if !is_pairwise && self.begun.is_none() && self.left.is_some() {
            let signature = signature_of(&call.arguments, &call.prepared, &call.slots);
            let checked = self.check_left(self.next_sequence, &signature.describe());
            if let Err(error) = checked {
                // It may have said before that the communicator has failed.
                while self.failure.is_none() && self.drive(now) {}
                self.check()?;
                self.tell_left();
                return Err(error);
            }
        }
        if is_pairwise && self.active.len() + 1 >= ROUNDS_MAX {
            return Err(Error::Exhausted {
                what: "a group of sends and receives".into(),
                limit: format!("{} operations are under way", self.active.len()),
                remedy: "wait for some of them first".into(),
            });
        }
        Ok(segment_elements)
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

    /// Whether no task is under way.
    pub fn is_idle(&self) -> bool {
        self.active.is_empty() && self.queue.is_empty()
    }

    /// Tasks that have ended so far, for anyone who waits for any of several.
    pub fn ended_count(&self) -> u64 {
        self.ended_count
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

    pub(super) fn end_task(&mut self, index: usize, result: Result<()>) {
        let task = &mut self.tasks[index];
        task.state = State::Done(result);
        self.ended_count += 1;
        match (&self.failure, &mut task.call) {
            (None, call) => call.take().map_or((), TaskCall::end),
            // Peers may still reach the memory: it is kept until the communicator ends.
            (Some(reason), Some(call)) => call.fail(reason),
            (Some(_), None) => {}
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
    pub(super) fn segment_elements(
        &self,
        prepared: &Prepared,
        arguments: &Arguments,
        slots: &[u64],
    ) -> Result<u64> {
        let element = arguments.dtype.size_bytes();
        let limit = self.config.window_bytes as u64;
        let fits = |count: u64| prepared.window_bytes(&Count { count, slots }, element) <= limit;
        if fits(arguments.count) {
            return Ok(arguments.count.max(1));
        }
        let (mut low, mut high) = (0, arguments.count);
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
                arguments.collective,
                prepared.schedule.name,
                self.ranks()
            )));
        }
        Ok(low)
    }
}
