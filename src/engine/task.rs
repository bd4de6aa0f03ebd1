//! [`Task`]: a call under way, and [`Tasks`]: all of them.

use super::arguments::{Arguments, RoundCall, signature_of};
use super::prepared::Prepared;
use super::remote::RemoteText;
use super::tagged::Transfer;
use crate::error::{Error, Result};
use crate::memory::{Kept, View};
use crate::time::Time;
use crate::types::{Collective, DataType, Rank, ReduceOp};
use crate::wait::QueuePlace;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::{Index, IndexMut};
use std::sync::Arc;
use std::time::Duration;

/// Names a task for its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskId {
    pub(super) index: usize,
    generation: u32,
}

impl TaskId {
    /// No task.
    pub const NONE: TaskId = TaskId {
        index: usize::MAX,
        generation: 0,
    };
}

/// A call, with its schedule chosen and its buffers resolved, and all that must live until the task
/// has ended.
pub struct TaskCall {
    /// The arguments.
    pub arguments: Arguments,
    /// The schedule.
    pub prepared: Arc<Prepared>,
    /// The schedule to stage the call with if some rank's memory is not registered. Needed where
    /// the first one reaches peers' buffers.
    pub fallback: Option<Arc<Prepared>>,
    /// Lengths and offsets of v-collectives and grouped transfers.
    pub slots: Cow<'static, [u64]>,
    /// The buffers of a group's transfers.
    pub others: Vec<View>,
    /// How long it may make no progress; `None`: as long as the engine's settings say.
    pub timeout: Option<Duration>,
    /// Input and output, kept and borrowed until the task has ended.
    pub keep: [Option<Kept>; 2],
    /// The buffers of a group's transfers, kept and borrowed until the task has ended.
    pub keep_others: Vec<Kept>,
    /// What is done when it has ended well, before anybody is told.
    pub at_end: Option<Box<dyn FnOnce() + Send>>,
}

impl TaskCall {
    /// The call of one send, receive or operation on memory of a peer, which is no collective.
    pub(super) fn of_one(
        prepared: Arc<Prepared>,
        (slots, others): (Cow<'static, [u64]>, Vec<View>),
        keep: Vec<Kept>,
        timeout: Option<Duration>,
    ) -> TaskCall {
        TaskCall {
            arguments: Arguments {
                collective: Collective::SendRecv,
                count: 0,
                dtype: DataType::U8,
                op: ReduceOp::Sum,
                root: 0,
                input: View::empty(),
                output: View::empty(),
            },
            prepared,
            fallback: None,
            slots,
            others,
            timeout,
            keep: [None, None],
            keep_others: keep,
            at_end: None,
        }
    }

    pub(super) fn for_round(&self) -> RoundCall<'_> {
        RoundCall {
            prepared: &self.prepared,
            arguments: &self.arguments,
            slots: &self.slots,
            others: &self.others,
        }
    }

    /// The task has ended. `is_done`: it has ended without an error.
    pub(super) fn end(self, is_done: bool) {
        if let (true, Some(at_end)) = (is_done, self.at_end) {
            at_end();
        }
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
    /// A send or receive with a tag.
    pub(super) transfer: Option<Transfer>,
    /// An operation on memory of peers.
    pub(super) remote: Option<RemoteText>,
    /// The place of a completion queue that is told when it ends.
    place: Option<QueuePlace>,
}

impl Task {
    /// What it is, for texts.
    pub fn describe(&self) -> String {
        if let Some(remote) = &self.remote {
            return remote.describe();
        }
        match (&self.call, &self.transfer) {
            (Some(call), Some(transfer)) => transfer.describe(call.others[0].len_bytes()),
            (Some(call), None) => {
                signature_of(&call.arguments, &call.prepared, &call.slots).describe()
            }
            (None, _) => "an ended operation".into(),
        }
    }

    pub fn is_running(&self) -> bool {
        self.state == State::Running
    }

    /// The rank whose message it has met, if it is a receive with a tag.
    fn source(&self) -> Option<Rank> {
        let transfer = self.transfer.as_ref();
        transfer.and_then(|transfer| transfer.source.as_ref()?.rank())
    }
}

/// The tasks of an engine.
#[derive(Default)]
pub struct Tasks {
    all: Vec<Task>,
    free: Vec<usize>,
    /// Collective tasks of which rounds are still to be started, oldest first.
    pub queue: VecDeque<usize>,
    /// Tasks that have ended so far.
    pub ended_count: u64,
}

impl Index<usize> for Tasks {
    type Output = Task;

    fn index(&self, index: usize) -> &Task {
        &self.all[index]
    }
}

impl IndexMut<usize> for Tasks {
    fn index_mut(&mut self, index: usize) -> &mut Task {
        &mut self.all[index]
    }
}

impl Tasks {
    /// Adds the task of a call.
    pub fn add(&mut self, call: TaskCall, segment_elements: u64, now: Time) -> TaskId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.all.push(Task {
                generation: 0,
                state: State::Free,
                call: None,
                started: 0,
                segment_elements: 0,
                active_rounds: 0,
                is_detached: false,
                last_moved: now,
                transfer: None,
                remote: None,
                place: None,
            });
            self.all.len() - 1
        });
        let task = &mut self.all[index];
        task.state = State::Running;
        task.call = Some(call);
        (task.started, task.segment_elements, task.active_rounds) = (0, segment_elements, 0);
        (task.is_detached, task.transfer, task.remote) = (false, None, None);
        task.last_moved = now;
        TaskId {
            index,
            generation: task.generation,
        }
    }

    /// The result, once there is one.
    #[inline]
    pub fn result(&self, id: TaskId) -> Option<Result<()>> {
        match self.all.get(id.index) {
            Some(task) if task.generation == id.generation => match &task.state {
                State::Done(result) => Some(result.clone()),
                _ => None,
            },
            _ => Some(Err(Error::invalid("the operation was waited for already"))),
        }
    }

    /// Nobody will ask for the result any more; a running task goes on. `may_reuse`: its place may
    /// get another task; not after a failure, when the place keeps the memory of its call.
    pub fn release(&mut self, id: TaskId, may_reuse: bool) {
        let task = self.all.get_mut(id.index);
        let Some(task) = task.filter(|t| t.generation == id.generation) else {
            return;
        };
        match task.state {
            State::Running => task.is_detached = true,
            State::Done(_) => self.free(id.index, may_reuse),
            State::Free => {}
        }
    }

    /// Tells a place of a queue when a task ends, at once if it has ended. A task has one place.
    pub fn notify(&mut self, id: TaskId, place: QueuePlace) {
        match self.result(id) {
            Some(result) => place.end(result, self.all[id.index].source()),
            None => self.all[id.index].place = Some(place),
        }
    }

    /// Ends a task. `failure`: that of the communicator, if it has failed.
    pub fn end(&mut self, index: usize, result: Result<()>, failure: Option<&Error>) {
        self.ended_count += 1;
        let task = &mut self.all[index];
        task.state = State::Done(result);
        match (failure, &mut task.call) {
            (None, call) => {
                let is_done = task.state == State::Done(Ok(()));
                if let Some(call) = call.take() {
                    call.end(is_done);
                }
            }
            // Peers may still reach the memory: it is kept until the communicator ends.
            (Some(reason), Some(call)) => call.fail(reason),
            (Some(_), None) => {}
        }
        // This comes last, because a caller that sees the completion may use the memory again.
        if let (Some(place), State::Done(result)) = (task.place.take(), &task.state) {
            place.end(result.clone(), task.source());
        }
        if task.is_detached {
            self.free(index, failure.is_none());
        }
    }

    /// Ends every running task with this error, which is that of the communicator.
    pub fn fail(&mut self, error: &Error) {
        for index in 0..self.all.len() {
            if self.all[index].is_running() {
                self.end(index, Err(error.clone()), Some(error));
            }
        }
        self.queue.clear();
    }

    fn free(&mut self, index: usize, may_reuse: bool) {
        let task = &mut self.all[index];
        task.state = State::Free;
        task.generation = task.generation.wrapping_add(1);
        if may_reuse {
            self.free.push(index);
        }
    }
}
