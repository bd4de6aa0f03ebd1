//! Profiles of a communicator, for tools: where the time between a begin and an end went.

use super::Communicator;
use crate::error::Result;
use crate::wait::Spent;

/// Begins to measure what the thread that drives the communicator does. All time until
/// [`end_profile`] counts, also that between operations.
///
/// # Errors
/// [`Error::Forked`](crate::Error::Forked).
pub fn begin_profile(communicator: &Communicator) -> Result<()> {
    let driving = communicator.driving()?;
    driving.engine().begin_profile(driving.clock.clone());
    Ok(())
}

/// What the time since [`begin_profile`] went to; empty if that was not called.
///
/// # Errors
/// [`Error::Forked`](crate::Error::Forked).
pub fn end_profile(communicator: &Communicator) -> Result<Spent> {
    let spent = communicator.driving()?.engine().end_profile();
    Ok(spent.unwrap_or_default())
}
