//! [`Service`]: who drives a shard: a thread, or a worker of this rank that waits.

use super::door::Door;
use super::report::ServerReport;
use super::shard::Shard;
use super::shared::Shared;
use crate::comm::driving::Manner;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::wait::{Background, DriverLock};
use std::sync::Arc;
use std::time::Duration;

/// Longest sleep while nothing comes.
const IDLE: Duration = Duration::from_millis(50);
/// Longest sleep while a process is let in.
const LETTING_IN: Duration = Duration::from_millis(2);
/// Longest sleep while only the ends of its own operations are waited for.
const ENDING: Duration = Duration::from_micros(100);

/// See the module.
pub struct Service {
    shared: Arc<Shared>,
    lock: DriverLock<State>,
}

struct State {
    shard: Shard,
    /// Where processes come that take the places of workers.
    door: Option<Door>,
    end: Option<Result<()>>,
}

impl State {
    /// True: the shard has nothing more to do, and the door is closed.
    fn turn(&mut self) -> Result<bool> {
        let is_over = self.shard.turn()?;
        if is_over {
            self.door = None;
        }
        if let Some(door) = &mut self.door {
            door.turn(&mut self.shard)?;
        }
        Ok(is_over)
    }
}

impl Service {
    pub fn new(shared: Arc<Shared>, shard: Shard, door: Option<Door>) -> Service {
        let state = State {
            shard,
            door,
            end: None,
        };
        Service {
            shared,
            lock: DriverLock::new(state),
        }
    }

    /// Calls `wait`, in which the caller drives the shard ([`Service::turn`]). Afterwards the
    /// thread does again.
    pub fn driving<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.lock.driving(wait)
    }

    /// Does what the shard can do now; gives how long it may be left alone. `None`: it has nothing
    /// more to do.
    pub fn turn(&self) -> Result<Option<Duration>> {
        let mut state = self.lock.lock();
        let state = &mut *state;
        if state.end.is_none() {
            let turned = self.check().and_then(|()| state.turn());
            state.end = match turned {
                Ok(false) => None,
                Ok(true) => Some(Ok(())),
                Err(error) => Some(Err(self.fail(error))),
            };
        }
        match &state.end {
            Some(end) => end.clone().map(|()| None),
            None if state.shard.is_ending() => Ok(Some(ENDING)),
            None if state.door.as_ref().is_some_and(Door::is_busy) => Ok(Some(LETTING_IN)),
            None => Ok(Some(IDLE)),
        }
    }

    /// Whether a turn may go on.
    pub fn has_news(&self, engine: &Engine) -> bool {
        // Who has the lock turns now.
        let state = self.lock.try_lock();
        state.is_some_and(|state| state.end.is_none() && state.shard.has_news(engine))
    }

    /// What the shard has done so far.
    pub fn report(&self) -> ServerReport {
        self.lock.lock().shard.report()
    }

    /// Waits until the shard has nothing more to do.
    ///
    /// # Errors
    /// That with which the shard has ended.
    pub fn wait_for_end(&self) -> Result<ServerReport> {
        self.driving(|| {
            loop {
                match self.turn()? {
                    None => return Ok(self.report()),
                    Some(limit) => self.attend(limit, || false)?,
                }
            }
        })
    }

    fn attend(&self, limit: Duration, is_given_up: impl Fn() -> bool) -> Result<()> {
        let has_news = |engine: &Engine| engine.failure().is_some() || self.has_news(engine);
        let driving = self.shared.comm.driving()?;
        driving.attend((limit, Manner::Brief), is_given_up, has_news);
        Ok(())
    }

    fn check(&self) -> Result<()> {
        self.shared.comm.driving()?.engine().check()
    }

    /// Tells all ranks why the shard has ended. If the communicator has failed already, they know.
    fn fail(&self, error: Error) -> Error {
        if let Ok(driving) = self.shared.comm.driving() {
            driving.engine().fail_with(error.clone());
            driving.ring();
        }
        error
    }
}

/// Tells the others if the thread panics.
struct Guard<'a>(&'a Service);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.shared.comm.abort("the thread of a shard panicked");
        }
    }
}

impl Background for Service {
    fn run(&self) {
        let _guard = Guard(self);
        let may_rest = || self.lock.has_callers() || self.lock.lock().end.is_some();
        while !self.lock.is_stopped() {
            if self.lock.rest_while(may_rest) {
                continue;
            }
            let Ok(Some(limit)) = self.turn() else {
                continue;
            };
            let is_given_up = || self.lock.is_stopped() || self.lock.has_callers();
            if self.attend(limit, is_given_up).is_err() {
                return;
            }
        }
    }

    fn stop(&self) {
        self.lock.stop();
        self.shared.comm.ring();
    }
}
