//! [`Driving`]: the engine, and how the threads of a rank drive it and wait on it.
//!
//! Anyone who waits drives for all; the progress thread drives while nobody waits. A thread that
//! sleeps is woken by peers through the [`Alarm`], after what they did: whichever thread handles
//! that, every sleeper looks for the end of its own task under the engine's lock. What no peer
//! rings for, a failure found by looking or a cancel, the finder rings for; where peers ring for
//! nothing (descriptors), the thread that handles what has come does.
//!
//! `tests/shuttle.rs` compiles this file against shuttle's locks and a small engine.

use super::alarm::Alarm;
use super::family::Family;
use super::inside::Inside;
use super::ranges::Garbage;
use crate::engine::{Clock, Engine, Patience, SpinTime, TaskId, WaitStep};
use crate::error::{Error, Result};
use crate::sync::{
    Arc, AtomicBool, AtomicU32, Condvar, Mutex, MutexGuard, Ordering, PoisonError, TryLockError,
    yield_now,
};
use crate::time::Time;
use std::task::Waker;
use std::time::Duration;

/// Longest sleep of the progress thread when there is nothing to do; wake-ups cut it short.
const IDLE_SLEEP: Duration = Duration::from_millis(50);

/// How often a thread that attends to a communicator for good looks at control sockets: a look
/// costs a system call per peer, which 32 ranks on 2 cores pay with half a millisecond if each does
/// it whenever it goes to sleep.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How a thread waits that attends to a communicator for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// For something that soon comes.
    Brief,
    /// Asleep at once, where ranks share cores.
    Asleep,
    /// The same, and signals may wait until something else comes: nobody waits for what they bring.
    Idle,
}

/// The engine and what threads need to wait on it.
pub(crate) struct Driving {
    engine: Mutex<Inside>,
    pub clock: Clock,
    /// `None` in a simulation, where nobody sleeps.
    alarm: Option<Alarm>,
    pub spin: SpinTime,
    pub garbage: Arc<Garbage>,
    /// Threads inside `wait`; the progress thread leaves the driving to them.
    waiters: AtomicU32,
    /// Threads that sleep or are about to, counted with the engine locked; none that are idle, for
    /// which signals may wait.
    sleepers: AtomicU32,
    stop: AtomicBool,
    /// The progress thread rests because nothing is under way.
    is_resting: Mutex<bool>,
    rest: Condvar,
    /// What is to be woken when a task has ended.
    watchers: Mutex<Vec<(TaskId, Waker)>>,
    /// The communicators of this process that this one comes from or that come from it.
    family: Arc<Family>,
}

impl Driving {
    pub fn new(
        engine: Inside,
        clock: Clock,
        spin: SpinTime,
        garbage: Arc<Garbage>,
        family: Arc<Family>,
    ) -> Driving {
        let alarm = Alarm::new(engine.wait_source());
        Driving {
            engine: Mutex::new(engine),
            clock,
            alarm,
            spin,
            garbage,
            waiters: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            is_resting: Mutex::new(false),
            rest: Condvar::new(),
            watchers: Mutex::new(Vec::new()),
            family,
        }
    }

    /// The engine. A panic elsewhere has failed that caller's operation, not the engine's
    /// bookkeeping.
    pub fn engine(&self) -> MutexGuard<'_, Inside> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts what `submit` submits, and ends the rest of the progress thread.
    pub fn start(&self, submit: impl FnOnce(&mut Inside) -> Result<TaskId>) -> Result<TaskId> {
        let task = submit(&mut self.engine())?;
        self.end_rest();
        Ok(task)
    }

    fn end_rest(&self) {
        let is_resting = (self.is_resting.lock()).unwrap_or_else(PoisonError::into_inner);
        if *is_resting {
            self.rest.notify_one();
        }
    }

    /// The result of a task; while there is none, `waker` is woken when there is, if a progress
    /// thread runs.
    pub fn watch(&self, task: TaskId, waker: &Waker) -> Option<Result<()>> {
        let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|(watched, _)| *watched != task);
        let result = take_result(&mut self.engine(), task);
        if result.is_none() {
            watchers.push((task, waker.clone()));
            drop(watchers);
            self.end_rest();
        }
        result
    }

    /// Wakes those whose task has ended.
    fn wake_watchers(&self) {
        let mut ended = Vec::new();
        {
            let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
            if watchers.is_empty() {
                return;
            }
            let engine = self.engine();
            let mut index = 0;
            while let Some((task, _)) = watchers.get(index) {
                match engine.result(*task) {
                    Some(_) => ended.push(watchers.swap_remove(index).1),
                    None => index += 1,
                }
            }
        }
        // Without a lock: it runs code of the caller.
        ended.into_iter().for_each(Waker::wake);
    }

    /// Ends registrations whose memory nobody uses any more.
    pub fn collect_garbage(&self, engine: &mut Engine) {
        for key in self.garbage.take() {
            // Each key was registered once and is given back once; the transport may be gone
            // already.
            let _ = engine.deregister(key);
        }
    }

    /// Drives once, and lets `then` look at the engine before anybody else does.
    pub fn drive_then<T>(&self, then: impl FnOnce(&mut Engine) -> T) -> T {
        let mut engine = self.engine();
        let now = self.clock.now();
        let moved = engine.drive(now);
        let result = then(&mut engine);
        drop(engine);
        self.tell_sleepers(moved, false);
        result
    }

    /// Drives once and looks.
    pub fn test(&self, task: TaskId) -> Option<Result<()>> {
        let mut engine = self.engine();
        let now = self.clock.now();
        let moved = engine.drive(now);
        let mut has_failed = false;
        if engine.result(task).is_none() {
            has_failed = look_if_due(&mut engine, now);
        }
        let result = take_result(&mut engine, task);
        drop(engine);
        self.tell_sleepers(moved, has_failed);
        if result.is_none() && self.family.has_others() {
            self.family.drive(Some(self));
        }
        result
    }

    /// Waits for a task, at most `limit`; `None`: it still runs. The outer error: nobody can wait
    /// here.
    pub fn wait(&self, task: TaskId, limit: Option<Duration>) -> Result<Option<Result<()>>> {
        self.wait_unless(task, limit, || false)
    }

    /// The same; `None` too as soon as `is_given_up`. Anyone who makes that true rings the bell
    /// then.
    pub fn wait_unless(
        &self,
        task: TaskId,
        limit: Option<Duration>,
        is_given_up: impl Fn() -> bool,
    ) -> Result<Option<Result<()>>> {
        {
            // Most small operations need only a few polls: no clock, no counters.
            let mut engine = self.engine();
            let now = self.clock.now();
            let mut moved = false;
            for _ in 0..self.spin.polls_per_look() {
                if let Some(result) = take_result(&mut engine, task) {
                    drop(engine);
                    self.tell_sleepers(moved, false);
                    return Ok(Some(result));
                }
                moved |= engine.drive(now);
            }
            drop(engine);
            self.tell_sleepers(moved, false);
        }
        if self.clock.is_virtual() {
            return Err(Error::invalid(
                "a simulated operation cannot be waited for by one rank: step the simulation (Simulation::run) and test",
            ));
        }
        self.waiters.fetch_add(1, Ordering::Relaxed);
        let result = self.wait_long(task, limit, is_given_up);
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        Ok(result)
    }

    fn wait_long(
        &self,
        task: TaskId,
        limit: Option<Duration>,
        is_given_up: impl Fn() -> bool,
    ) -> Option<Result<()>> {
        let take = |engine: &mut Engine| take_result(engine, task);
        let has_come = |engine: &Engine| engine.result(task).is_some();
        self.wait_until((limit, None), is_given_up, take, has_come)
    }

    /// Drives, at most for `limit`, until the engine has news, or `is_given_up`, as the one thread
    /// that drives it while nobody else does. Anyone who makes that true rings the bell then.
    pub fn attend(
        &self,
        (limit, manner): (Duration, Manner),
        is_given_up: impl Fn() -> bool,
        has_news: impl Fn(&Engine) -> bool,
    ) {
        let take = |engine: &mut Engine| has_news(engine).then_some(());
        self.wait_until((Some(limit), Some(manner)), is_given_up, take, &has_news);
    }

    /// Waits for what `take` gives; `has_come` says whether it would, where nothing can be taken.
    /// With a manner, looks at control sockets only every [`LOOK_EVERY`].
    fn wait_until<T>(
        &self,
        (limit, manner): (Option<Duration>, Option<Manner>),
        is_given_up: impl Fn() -> bool,
        take: impl Fn(&mut Engine) -> Option<T>,
        has_come: impl Fn(&Engine) -> bool,
    ) -> Option<T> {
        let (mut patience, is_rare, is_idle) = match manner {
            None => (Patience::new(&self.spin), false, false),
            Some(Manner::Brief) => (Patience::new(&self.spin), true, false),
            Some(manner) => {
                let is_idle = manner == Manner::Idle;
                (Patience::sleeping(&self.spin), true, is_idle)
            }
        };
        let start = self.clock.now();
        let deadline = limit.map_or(Time::MAX, |limit| start.after(limit));
        let mut looked_at = start;
        loop {
            let now = self.clock.now();
            let mut engine = self.engine();
            let mut moved = false;
            for _ in 0..patience.polls_per_look(&self.spin) {
                moved |= engine.drive(now);
                if let Some(result) = take(&mut engine) {
                    drop(engine);
                    self.tell_sleepers(moved, false);
                    self.spin.learn(patience.last());
                    return Some(result);
                }
            }
            let is_due = !is_rare || now.since(looked_at) >= LOOK_EVERY;
            let has_failed = is_due && look_if_due(&mut engine, now);
            if is_due {
                looked_at = now;
            }
            drop(engine);
            self.tell_sleepers(moved, has_failed);
            if now >= deadline || is_given_up() {
                return None;
            }
            if self.family.has_others() {
                moved |= self.family.drive(Some(self));
            }
            if moved || has_failed {
                patience.reset();
                continue;
            }
            match patience.next(now) {
                WaitStep::Spin => std::hint::spin_loop(),
                WaitStep::Yield => yield_now(),
                WaitStep::Sleep(time) => {
                    let time = time.min(deadline.since(now));
                    self.sleep(time, (!is_rare, is_idle), |engine| {
                        is_given_up() || has_come(engine)
                    });
                }
            }
        }
    }

    /// Sleeps until something may have arrived, unless `is_over`; looks at control sockets before,
    /// if `has_look`. With `is_idle`, signals may wait.
    fn sleep(
        &self,
        time: Duration,
        (has_look, is_idle): (bool, bool),
        is_over: impl Fn(&Engine) -> bool,
    ) {
        let Some(alarm) = &self.alarm else {
            return;
        };
        let due = self.engine().next_timeout();
        let time = due.map_or(time, |due| time.min(due.since(self.clock.now())));
        let has_news = || {
            let now = self.clock.now();
            let mut engine = self.engine();
            // Relaxed: the lock orders it.
            let is_alone = match is_idle {
                true => self.sleepers.load(Ordering::Relaxed) == 0,
                false => self.sleepers.fetch_add(1, Ordering::Relaxed) == 0,
            };
            if is_alone || !is_idle {
                engine.want_anything();
            }
            let moved = engine.drive(now);
            let has_failed = has_look && look(&mut engine, now);
            self.collect_garbage(&mut engine);
            let has_news = moved || is_over(&engine);
            if is_alone && !has_news && !has_failed && !self.family.has_others() {
                engine.want_signals(is_idle);
            }
            drop(engine);
            match has_failed {
                true => self.ring(),
                false if moved => alarm.wake_others(1),
                false => {}
            }
            has_news
        };
        match self.family.has_others() {
            true => self.family.sleep(self, time, has_news),
            false => alarm.sleep(time, has_news),
        }
        if !is_idle {
            // Relaxed: anyone who still counts this thread is woken by more than it needs.
            self.sleepers.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The family.
    pub fn family(&self) -> &Arc<Family> {
        &self.family
    }

    /// What wakes when something arrives.
    pub fn alarm(&self) -> Option<&Alarm> {
        self.alarm.as_ref()
    }

    /// Drives once for a wait on another communicator, unless somebody else drives; whether
    /// anything moved.
    pub fn drive_if_free(&self) -> bool {
        match self.engine.try_lock() {
            Ok(engine) => self.drive_for_other(engine),
            Err(TryLockError::Poisoned(error)) => self.drive_for_other(error.into_inner()),
            Err(TryLockError::WouldBlock) => false,
        }
    }

    /// Drives once for a wait on another communicator that is about to sleep; whether anything
    /// moved.
    pub fn drive_once(&self) -> bool {
        self.drive_for_other(self.engine())
    }

    fn drive_for_other(&self, mut engine: MutexGuard<'_, Inside>) -> bool {
        let now = self.clock.now();
        let moved = engine.drive(now);
        let has_failed = look_if_due(&mut engine, now);
        self.collect_garbage(&mut engine);
        drop(engine);
        self.tell_sleepers(moved, has_failed);
        moved
    }

    /// Wakes every thread of this rank that sleeps.
    pub fn ring(&self) {
        if let Some(alarm) = &self.alarm {
            alarm.wake();
        }
    }

    /// The caller, which does not sleep, has driven.
    #[inline]
    fn tell_sleepers(&self, moved: bool, has_failed: bool) {
        match (&self.alarm, has_failed) {
            (Some(alarm), true) => alarm.wake(),
            (Some(alarm), false) if moved => alarm.wake_others(0),
            _ => {}
        }
    }

    /// Cancels a task, which fails all others too.
    pub fn cancel(&self, task: TaskId) -> Result<()> {
        let result = self.engine().cancel(task);
        self.ring();
        result
    }

    /// The progress thread: drives whenever no caller waits, and rests while nothing is under way.
    pub fn run_progress_thread(&self) {
        let mut patience = Patience::new(&SpinTime::new(usize::MAX, 1));
        while !self.stop.load(Ordering::Relaxed) {
            let now = self.clock.now();
            let mut moved = false;
            if self.waiters.load(Ordering::Relaxed) == 0 {
                let mut engine = self.engine();
                moved = engine.drive(now);
                // One operation may move all the time while another waits for a peer that is gone.
                let has_failed = moved && look_if_due(&mut engine, now);
                drop(engine);
                self.tell_sleepers(moved, has_failed);
            }
            self.wake_watchers();
            if moved {
                patience.reset();
                continue;
            }
            match patience.next(self.clock.now()) {
                WaitStep::Spin | WaitStep::Yield => yield_now(),
                WaitStep::Sleep(_) if self.rest_if_idle() => patience.reset(),
                WaitStep::Sleep(_) => {
                    self.sleep(IDLE_SLEEP, (true, false), |_| {
                        self.stop.load(Ordering::Relaxed)
                    });
                }
            }
        }
    }

    /// Waits until an operation is started or the thread is told to end, if none is under way;
    /// whether it was so. Peers that signal wake no thread that rests.
    fn rest_if_idle(&self) -> bool {
        let mut is_resting = (self.is_resting.lock()).unwrap_or_else(PoisonError::into_inner);
        let is_idle = || !self.stop.load(Ordering::Relaxed) && self.engine().is_idle();
        let has_rested = is_idle();
        while is_idle() {
            *is_resting = true;
            is_resting = (self.rest.wait(is_resting)).unwrap_or_else(PoisonError::into_inner);
            *is_resting = false;
        }
        has_rested
    }

    /// Ends the progress thread.
    pub fn stop_progress_thread(&self) {
        // The lock and the alarm order it: the thread sees it before it rests or sleeps, or is
        // woken.
        self.stop.store(true, Ordering::Relaxed);
        self.end_rest();
        self.ring();
    }
}

/// The slow part of driving; whether it failed the communicator, which ends every wait.
fn look(engine: &mut Engine, now: Time) -> bool {
    let had_failed = engine.failure().is_some();
    engine.drive_slow(now);
    engine.failure().is_some() != had_failed
}

/// The same, if it is due.
fn look_if_due(engine: &mut Engine, now: Time) -> bool {
    let had_failed = engine.failure().is_some();
    engine.drive_slow_if_due(now);
    engine.failure().is_some() != had_failed
}

fn take_result(engine: &mut Engine, task: TaskId) -> Option<Result<()>> {
    let result = engine.result(task);
    if result.is_some() {
        engine.release(task);
    }
    result
}
