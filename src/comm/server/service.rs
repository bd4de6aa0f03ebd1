//! [`Service`]: the thread that drives a shard.

use super::report::ServerReport;
use super::shard::Shard;
use super::shared::Shared;
use crate::comm::driving::Manner;
use crate::error::{Error, Result};
use crate::wait::Background;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Longest sleep of the thread while nothing comes.
const IDLE: Duration = Duration::from_millis(50);
/// Longest sleep while only the ends of its own operations are waited for.
const ENDING: Duration = Duration::from_micros(100);

/// See the module.
pub struct Service {
    shared: Arc<Shared>,
    shard: Mutex<Shard>,
    is_stopped: AtomicBool,
    end: Mutex<Option<Result<ServerReport>>>,
    ended: Condvar,
}

impl Service {
    pub fn new(shared: Arc<Shared>, shard: Shard) -> Service {
        Service {
            shared,
            shard: Mutex::new(shard),
            is_stopped: AtomicBool::new(false),
            end: Mutex::new(None),
            ended: Condvar::new(),
        }
    }

    /// Waits until the shard has nothing more to do.
    ///
    /// # Errors
    /// That with which the shard has ended.
    pub fn wait_for_end(&self) -> Result<ServerReport> {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(end) = &*end {
                return end.clone();
            }
            end = self.ended.wait(end).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn serve(&self) -> Result<ServerReport> {
        let mut shard = self.shard.lock().unwrap_or_else(PoisonError::into_inner);
        let driving = self.shared.comm.driving()?;
        let is_stopped = || self.is_stopped.load(Ordering::Acquire);
        while !is_stopped() {
            driving.engine().check()?;
            if shard.turn()? {
                return Ok(shard.report());
            }
            let limit = if shard.is_ending() { ENDING } else { IDLE };
            let has_news = |engine: &crate::engine::Engine| {
                engine.failure().is_some() || shard.has_news(engine)
            };
            driving.attend((limit, Manner::Brief), is_stopped, has_news);
        }
        // Nobody waits for the report.
        Ok(shard.report())
    }
}

/// Tells those that wait if the thread panics.
struct Guard<'a>(&'a Service);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let mut end = (self.0.end.lock()).unwrap_or_else(PoisonError::into_inner);
        if end.is_none() {
            let comm = &self.0.shared.comm;
            let reason = "the thread of a shard panicked";
            comm.abort(reason);
            *end = Some(Err(Error::Aborted {
                by: comm.rank(),
                reason: reason.into(),
            }));
        }
        self.0.ended.notify_all();
    }
}

impl Background for Service {
    fn run(&self) {
        let _guard = Guard(self);
        let result = self.serve();
        if let Err(error) = &result {
            // A failure of the communicator is known to all ranks, and this changes nothing then.
            if let Ok(driving) = self.shared.comm.driving() {
                driving.engine().fail_with(error.clone());
                driving.ring();
            }
        }
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
    }

    fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        self.shared.comm.ring();
    }
}
