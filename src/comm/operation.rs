//! [`Operation`]: a started operation.

use super::shared::Shared;
use crate::engine::{Engine, TaskId};
use crate::error::Result;
use std::sync::Arc;
use std::time::Duration;

/// A started operation. Dropping it without waiting leaves it running.
#[must_use = "an operation that nobody waits for may not have ended when its result is read"]
pub struct Operation {
    shared: Arc<Shared>,
    task: TaskId,
    /// Once known, the engine has forgotten the task.
    result: Option<Result<()>>,
}

impl Operation {
    pub(super) fn new(shared: Arc<Shared>, task: TaskId) -> Operation {
        Operation {
            shared,
            task,
            result: None,
        }
    }

    /// Whether it has ended; makes progress once. An operation that failed gives its error here and in [`Operation::wait`].
    pub fn test(&mut self) -> Result<bool> {
        self.shared.process.check()?;
        if self.result.is_none() {
            self.result = self.shared.test(self.task);
        }
        self.result
            .clone()
            .map_or(Ok(false), |result| result.map(|()| true))
    }

    /// Waits for its end. If nothing moves for the communicator's timeout, neither on it nor on operations before it, it
    /// fails.
    pub fn wait(mut self) -> Result<()> {
        self.wait_at_most(None, || false)?;
        self.result
            .clone()
            .expect("a wait without a limit ends with a result")
    }

    /// Waits at most `limit`; `Ok(false)`: still running.
    pub fn wait_timeout(&mut self, limit: Duration) -> Result<bool> {
        self.wait_timeout_unless(limit, || false)
    }

    /// The same, and no longer than until `is_given_up`. Whoever makes that true rings this rank's bell then.
    pub(super) fn wait_timeout_unless(
        &mut self,
        limit: Duration,
        is_given_up: impl Fn() -> bool,
    ) -> Result<bool> {
        self.wait_at_most(Some(limit), is_given_up)?;
        self.result
            .clone()
            .map_or(Ok(false), |result| result.map(|()| true))
    }

    /// Takes the result if it has ended, for whoever has the engine and has driven it.
    pub(super) fn look(&mut self, engine: &mut Engine) {
        if self.result.is_none() {
            self.result = engine.result(self.task);
            if self.result.is_some() {
                engine.release(self.task);
            }
        }
    }

    /// Whether the last look saw its end.
    pub(super) fn is_over(&self) -> bool {
        self.result.is_some()
    }

    /// The result of an operation that has ended.
    pub(super) fn result(&self) -> Result<()> {
        self.result.clone().expect("it has ended")
    }

    /// Takes the result if there is one in time. An error is of the waiting, not of the operation.
    fn wait_at_most(
        &mut self,
        limit: Option<Duration>,
        is_given_up: impl Fn() -> bool,
    ) -> Result<()> {
        self.shared.process.check()?;
        if self.result.is_none() {
            self.result = self.shared.wait_unless(self.task, limit, is_given_up)?;
        }
        Ok(())
    }

    /// Cancels it, which fails the communicator on all ranks.
    pub fn cancel(self) -> Result<()> {
        self.shared.process.check()?;
        self.shared.cancel(self.task)
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if self.shared.process.is_forked() {
            self.shared.leave_to_parent();
        } else if self.result.is_none() {
            self.shared.engine().release(self.task);
        }
    }
}
