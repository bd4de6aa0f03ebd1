//! Tasks: from a call to rounds, and back to a result.

use super::arguments::{Arguments, signature_of};
use super::core::Engine;
use super::prepared::Prepared;
use super::round::RoundId;
use super::tag::ROUNDS_MAX;
use super::task::{TaskCall, TaskId};
use crate::error::{Error, Result};
use crate::limits::{COUNT_MAX, shared_bytes};
use crate::schedule::Count;
use crate::time::Time;
use crate::types::Collective;
use crate::wait::QueuePlace;

impl Engine {
    /// Starts a task, which runs as far as it can at once. A call that is refused leaves its memory
    /// as it was.
    pub fn submit(&mut self, call: TaskCall, now: Time) -> Result<TaskId> {
        let has_begun = self.begun.is_some();
        let segment_elements = match self.admit(&call, now) {
            Ok(elements) => elements,
            Err(error) => {
                // Peers may reach the memory of a call that has begun, so it is not given back.
                if !has_begun {
                    call.end(false);
                }
                return Err(error);
            }
        };
        let is_pairwise = call.arguments.collective == Collective::SendRecv;
        let id = self.tasks.add(call, segment_elements, now);
        let index = id.index;
        if let Some(round) = self.begun.take() {
            self.adopt_round(index, round, now);
        } else if is_pairwise {
            self.start_round(index, RoundId::Pairwise, now);
        } else {
            self.tasks.queue.push_back(index);
            self.start_queued(now);
            self.has_chores |= !self.tasks.queue.is_empty();
        }
        // A round that had begun may need a rank that has left.
        self.fail_unreachable();
        self.driver.links.transport.hand_over();
        Ok(id)
    }

    /// The error that every call gets once the communicator has failed.
    pub fn check(&mut self) -> Result<()> {
        self.tell_failure();
        match &self.failing.cause {
            Some(first) => Err(Error::CommunicatorFailed(Box::new(
                first.first_cause().clone(),
            ))),
            None => Ok(()),
        }
    }

    /// Fails if a task may not start. Returns the elements of each of its rounds if they are staged
    /// through windows or shared scratch memory, else 0.
    pub(super) fn admit(&mut self, call: &TaskCall, now: Time) -> Result<u64> {
        self.check()?;
        let is_pairwise = call.arguments.collective == Collective::SendRecv;
        let is_alone = self.failing.is_lenient && is_pairwise;
        if let Some(gone) = self.driver.links.first_failed().filter(|_| !is_alone) {
            // The other ranks wait for this one now, and must hear of the peer that has failed.
            // Operations that can end well do so first.
            while self.failing.cause.is_none() && self.drive(now) {}
            self.fail(gone.clone(), true);
            return Err(self.failing.cause.clone().unwrap_or(gone));
        }
        let count = call.arguments.count;
        if count > COUNT_MAX {
            return Err(Error::invalid(format!(
                "{count} elements: at most {COUNT_MAX}"
            )));
        }
        let segment_elements = match call.prepared.is_cut() {
            true => self.segment_elements(&call.prepared, &call.arguments, &call.slots)?,
            false => 0,
        };
        if !is_pairwise && self.begun.is_none() && self.leaving.first.is_some() {
            let signature = signature_of(&call.arguments, &call.prepared, &call.slots);
            let checked = self.check_left(self.numbers.next, &signature.describe());
            if let Err(error) = checked {
                // The rank may have told of a failure before it left: that cause comes first.
                while self.failing.cause.is_none() && self.drive(now) {}
                self.check()?;
                self.tell_left();
                return Err(error);
            }
        }
        let under_way = self.rounds.len() + self.tagged.waiting_count();
        if is_pairwise && under_way + 1 >= ROUNDS_MAX {
            return Err(Error::Exhausted {
                what: "a group of sends and receives".into(),
                limit: format!("{under_way} operations are under way"),
                remedy: "wait for some of them first".into(),
            });
        }
        Ok(segment_elements)
    }

    /// The result, once there is one.
    #[inline]
    pub fn result(&self, id: TaskId) -> Option<Result<()>> {
        self.tasks.result(id)
    }

    /// Tells a place of a queue when a task ends, at once if it has ended. A task has one place.
    pub fn notify(&mut self, id: TaskId, place: QueuePlace) {
        self.tasks.notify(id, place);
    }

    /// Whether no task is under way.
    pub fn is_idle(&self) -> bool {
        self.rounds.is_empty()
            && self.tasks.queue.is_empty()
            && self.tagged.is_idle()
            && self.remotes.is_idle()
    }

    /// Tasks that have ended so far, for a caller that waits for any of several.
    pub fn ended_count(&self) -> u64 {
        self.tasks.ended_count
    }

    /// Nobody will ask for the result any more; a running task goes on.
    pub fn release(&mut self, id: TaskId) {
        self.tasks.release(id, self.failing.cause.is_none());
    }

    /// Fails the communicator everywhere because this task is not wanted any more.
    pub fn cancel(&mut self, id: TaskId) {
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
    }

    pub(super) fn end_task(&mut self, index: usize, result: Result<()>) {
        self.tasks.end(index, result, self.failing.cause.as_ref());
    }

    /// Elements of one segment of a call that is staged through windows or shared scratch memory.
    pub(super) fn segment_elements(
        &self,
        prepared: &Prepared,
        arguments: &Arguments,
        slots: &[u64],
    ) -> Result<u64> {
        let element = arguments.dtype.size_bytes();
        let limit = self.config.window_bytes as u64;
        let most_shared = shared_bytes(self.ranks());
        let fits = |count: u64| {
            let [window, shared] = prepared.staging_bytes(&Count { count, slots }, element);
            window <= limit && shared <= most_shared
        };
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
