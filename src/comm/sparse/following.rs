//! [`Following`]: how a step that a queue is told of goes on while its caller does something else.
//!
//! A step consists of several operations, one after another. The thread that drives the family
//! starts each next one: a thread that waits for the queue, or the progress thread.

use super::state::Steps;
use crate::comm::driving::Driving;
use crate::comm::family::Member;
use crate::comm::queue::CompletionQueue;
use crate::error::{Error, Result};
use crate::memory::ProcessMark;
use crate::wait::Alarm;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// The owner's share of the steps. When it is dropped, it takes the steps from the threads of the
/// family, so that these never drop the last handle of a communicator while they drive.
pub(super) struct Following {
    shared: Arc<Shared>,
    /// Whether the threads of the family know the steps.
    is_member: bool,
}

/// What the threads of the family share with the owner of the steps.
struct Shared {
    process: ProcessMark,
    driving: Arc<Driving>,
    /// `None`: their owner has dropped them.
    steps: Mutex<Option<Steps>>,
}

impl Following {
    pub fn new(steps: Steps) -> Result<Following> {
        let driving = steps.comm.driving()?.clone();
        let shared = Arc::new(Shared {
            process: steps.pending.process(),
            driving,
            steps: Mutex::new(Some(steps)),
        });
        Ok(Following {
            shared,
            is_member: false,
        })
    }

    /// Calls `then` with the steps. In a forked child, a lock that another thread of the parent has
    /// held is never released: [`Error::Forked`].
    pub fn with<T>(&self, then: impl FnOnce(&mut Steps) -> T) -> Result<T> {
        let steps = &self.shared.steps;
        let steps = match self.shared.process.is_forked() {
            false => Some(steps.lock().unwrap_or_else(PoisonError::into_inner)),
            true => self.shared.try_lock(),
        };
        let mut steps = steps.ok_or(Error::Forked)?;
        Ok(then(steps.as_mut().expect("only a drop takes them")))
    }

    /// Has a queue told of the end of the step under way.
    pub fn notify(&mut self, queue: &CompletionQueue, user: u64) -> Result<()> {
        let driving = &self.shared.driving;
        self.with(|steps| {
            let Some(pending) = steps.pending.get_mut()? else {
                return Err(Error::invalid(
                    "a queue is to be told of a step of a sparse allreduce, and none is under way: start one first",
                ));
            };
            if pending.place.is_some() {
                return Err(Error::invalid(format!(
                    "a step of a sparse allreduce is in one queue, once: this one, with user {user}, is in one already"
                )));
            }
            pending.place = Some(queue.place(driving, user)?);
            Ok(())
        })??;
        let family = driving.family();
        family.join(&self.shared);
        // Threads that wait already do not know this member yet.
        family.end_rest();
        family.ring_callers();
        self.is_member = true;
        Ok(())
    }

    /// Takes the steps from the threads of the family, if these know them.
    pub fn leave(&mut self) {
        if std::mem::replace(&mut self.is_member, false) {
            self.shared.driving.family().leave(&*self.shared);
        }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        if self.shared.process.is_forked() {
            return;
        }
        self.leave();
        let steps = &self.shared.steps;
        let steps = steps.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Dropped without the lock, because this may end the communicator.
        drop(steps);
    }
}

impl Shared {
    fn try_lock(&self) -> Option<MutexGuard<'_, Option<Steps>>> {
        match self.steps.try_lock() {
            Ok(steps) => Some(steps),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Member for Shared {
    fn try_drive(&self) -> bool {
        let Some(mut locked) = self.try_lock() else {
            return false;
        };
        let Some(steps) = locked.as_mut() else {
            return false;
        };
        let has_moved = steps.go_on_for_queue();
        let has_ended = steps.ended.is_some();
        drop(locked);
        if has_moved && has_ended {
            // Threads that wait for the queue sleep on this communicator, too.
            self.driving.ring();
        }
        has_moved
    }

    fn drive(&self) -> bool {
        self.try_drive()
    }

    fn wake_watchers(&self) {}

    fn is_idle(&self) -> bool {
        // A step that another thread moves now is not idle.
        let is_followed = |steps: &Option<Steps>| steps.as_ref().is_some_and(Steps::is_followed);
        self.try_lock().is_some_and(|steps| !is_followed(&steps))
    }

    fn alarm(&self) -> Option<&Alarm> {
        None
    }

    fn sleep(&self, time: Duration, is_over: &dyn Fn() -> bool) {
        self.driving.sleep(time, is_over);
    }
}
