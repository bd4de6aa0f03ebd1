//! [`Operation`]: a started operation.

use crate::error::Result;
use std::time::Duration;

/// A started operation. Dropping it without waiting leaves it running.
#[derive(Debug)]
#[must_use = "an operation that nobody waits for may not have ended when its result is read"]
pub struct Operation {}

impl Operation {
    /// Whether it has ended; drives progress once.
    pub fn test(&self) -> Result<bool> {
        Ok(true)
    }

    /// Waits for its end, at most the communicator's timeout without progress.
    pub fn wait(self) -> Result<()> {
        Ok(())
    }

    /// Waits at most `limit`; `Ok(false)`: still running.
    pub fn wait_timeout(&self, limit: Duration) -> Result<bool> {
        let _ = limit;
        Ok(true)
    }

    /// Cancels it, which fails the communicator on all ranks.
    pub fn cancel(self) -> Result<()> {
        Ok(())
    }
}
