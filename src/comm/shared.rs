//! What all clones of a communicator and its operations share: the engine, and how threads wait on it.

use super::buffer::Garbage;
use super::family::Family;
use super::plans::Plans;
use crate::engine::{Clock, Engine, Patience, SpinTime, TaskId, WaitStep};
use crate::error::{Error, Result};
use crate::memory::futex_wait;
use crate::time::Time;
use crate::transport::WaitSource;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// Longest sleep of the progress thread when there is nothing to do; wake-ups cut it short.
const IDLE_SLEEP: Duration = Duration::from_millis(50);

/// The engine and what threads need to wait on it.
pub(super) struct Shared {
    engine: Mutex<Engine>,
    pub clock: Clock,
    wait_source: WaitSource,
    spin: SpinTime,
    pub plans: Mutex<Plans>,
    pub garbage: Garbage,
    /// Threads inside `wait`; the progress thread leaves the driving to them.
    waiters: AtomicU32,
    stop: AtomicBool,
    family: Arc<Family>,
    is_member: AtomicBool,
}

impl Shared {
    pub fn new(
        engine: Engine,
        clock: Clock,
        plans: Plans,
        local_ranks: usize,
        family: Arc<Family>,
    ) -> Shared {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Shared {
            wait_source: engine.wait_source(),
            engine: Mutex::new(engine),
            clock,
            spin: SpinTime::new(local_ranks, cores),
            plans: Mutex::new(plans),
            garbage: Garbage::default(),
            waiters: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            family,
            is_member: AtomicBool::new(false),
        }
    }

    /// The communicators of this process that it comes from or that come from it.
    pub fn family(&self) -> &Arc<Family> {
        &self.family
    }

    /// From now on waits on the family's other members drive this one, and the reverse.
    pub fn join_family(self: &Arc<Shared>) {
        self.is_member.store(true, Ordering::Relaxed);
        self.family.join(self);
    }

    /// What a thread that waits sleeps on.
    pub fn wait_source(&self) -> WaitSource {
        self.wait_source
    }

    /// Drives once for a wait on another communicator, unless somebody else drives; whether anything moved.
    pub fn drive_if_free(&self) -> bool {
        match self.engine.try_lock() {
            Ok(mut engine) => self.drive_all(&mut engine),
            Err(TryLockError::Poisoned(error)) => self.drive_all(&mut error.into_inner()),
            Err(TryLockError::WouldBlock) => false,
        }
    }

    /// Drives once for a wait on another communicator that is about to sleep; whether anything moved.
    pub fn drive_once(&self) -> bool {
        self.drive_all(&mut self.engine())
    }

    fn drive_all(&self, engine: &mut Engine) -> bool {
        let now = self.clock.now();
        let moved = engine.drive(now);
        engine.drive_slow_if_due(now);
        self.collect_garbage(engine);
        moved
    }

    /// Wakes the threads of this process that sleep on this communicator.
    pub fn ring(&self) {
        if let WaitSource::Futex { bell, .. } = self.wait_source {
            bell.word32(0).fetch_add(1, Ordering::Release);
            crate::memory::futex_wake_all(bell.word32(0));
        }
    }

    /// Asks the plans something.
    pub fn plans_of<T>(&self, ask: impl FnOnce(&Plans) -> T) -> T {
        ask(&self.plans.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The engine. A panic elsewhere has failed that caller's operation, not the engine's bookkeeping.
    pub fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends registrations whose memory nobody uses any more.
    pub fn collect_garbage(&self, engine: &mut Engine) {
        let keys =
            std::mem::take(&mut *self.garbage.lock().unwrap_or_else(PoisonError::into_inner));
        for key in keys {
            // Each key was registered once and is given back once; the transport may be gone already.
            let _ = engine.deregister(key);
        }
    }

    /// Drives once and looks.
    pub fn test(&self, task: TaskId) -> Option<Result<()>> {
        let mut engine = self.engine();
        let now = self.clock.now();
        engine.drive(now);
        if engine.result(task).is_none() {
            engine.drive_slow_if_due(now);
        }
        let result = take_result(&mut engine, task);
        drop(engine);
        if result.is_none() && self.family.has_others() {
            self.family.drive(Some(self));
        }
        result
    }

    /// Waits for a task, at most `limit`; `None`: it still runs.
    pub fn wait(&self, task: TaskId, limit: Option<Duration>) -> Option<Result<()>> {
        {
            // Most small operations need only a few polls: no clock, no counters.
            let mut engine = self.engine();
            let now = self.clock.now();
            for _ in 0..self.spin.polls_per_look() {
                if let Some(result) = take_result(&mut engine, task) {
                    return Some(result);
                }
                engine.drive(now);
            }
        }
        if self.clock.is_virtual() {
            return Some(Err(Error::invalid(
                "a simulated operation cannot be waited for by one rank: step the simulation (Simulation::run) and test",
            )));
        }
        self.waiters.fetch_add(1, Ordering::Relaxed);
        let result = self.wait_long(task, limit);
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        result
    }

    fn wait_long(&self, task: TaskId, limit: Option<Duration>) -> Option<Result<()>> {
        let mut patience = Patience::new(&self.spin);
        let start = self.clock.now();
        let deadline = limit.map_or(Time::MAX, |limit| start.after(limit));
        loop {
            let now = self.clock.now();
            let mut engine = self.engine();
            let mut moved = false;
            for _ in 0..self.spin.polls_per_look() {
                moved |= engine.drive(now);
                if let Some(result) = take_result(&mut engine, task) {
                    self.spin.learn(patience.last());
                    return Some(result);
                }
            }
            engine.drive_slow_if_due(now);
            drop(engine);
            if now >= deadline {
                return None;
            }
            if self.family.has_others() {
                moved |= self.family.drive(Some(self));
            }
            if moved {
                patience.reset();
                continue;
            }
            match patience.next(now) {
                WaitStep::Spin => std::hint::spin_loop(),
                WaitStep::Yield => std::thread::yield_now(),
                WaitStep::Sleep(time) => self.sleep(time.min(deadline.since(now)), Some(task)),
            }
        }
    }

    /// Sleeps until something may have arrived, unless the task that is waited for has ended.
    fn sleep(&self, time: Duration, task: Option<TaskId>) {
        let WaitSource::Futex { bell, sleeping } = self.wait_source else {
            return;
        };
        if self.family.has_others() {
            return self.family.sleep(self, time, || self.look(task));
        }
        // The waker stores what this rank waits for, fences, and looks at `sleeping`; here it is the other way round,
        // so one of the two sees the other.
        let rung = bell.word32(0).load(Ordering::Acquire);
        sleeping.word32(0).fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if !self.look(task) {
            futex_wait(bell.word32(0), rung, time);
        }
        sleeping.word32(0).fetch_sub(1, Ordering::SeqCst);
    }

    /// The last look before a sleep: whether there is a reason not to sleep. Another thread may have driven this
    /// communicator, and ended the task.
    fn look(&self, task: Option<TaskId>) -> bool {
        let now = self.clock.now();
        let mut engine = self.engine();
        let moved = engine.drive(now);
        engine.drive_slow(now);
        self.collect_garbage(&mut engine);
        moved || task.is_some_and(|task| engine.result(task).is_some())
    }

    /// The progress thread: drives whenever no caller waits.
    pub fn run_progress_thread(&self) {
        let mut patience = Patience::new(&SpinTime::new(usize::MAX, 1));
        while !self.stop.load(Ordering::Acquire) {
            let now = self.clock.now();
            let mut moved = false;
            if self.waiters.load(Ordering::Relaxed) == 0 {
                let mut engine = self.engine();
                moved = engine.drive(now);
                // One operation may move all the time while another waits for a peer that is gone.
                if moved {
                    engine.drive_slow_if_due(now);
                }
            }
            if moved {
                patience.reset();
                continue;
            }
            match patience.next(self.clock.now()) {
                WaitStep::Spin | WaitStep::Yield => std::thread::yield_now(),
                WaitStep::Sleep(_) => self.sleep(IDLE_SLEEP, None),
            }
        }
    }

    /// Ends the progress thread.
    pub fn stop_progress_thread(&self) {
        // Pairs with the acquire load in `run_progress_thread`.
        self.stop.store(true, Ordering::Release);
        self.ring();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.is_member.load(Ordering::Relaxed) {
            self.family.leave();
        }
    }
}

fn take_result(engine: &mut Engine, task: TaskId) -> Option<Result<()>> {
    let result = engine.result(task);
    if result.is_some() {
        engine.release(task);
    }
    result
}
