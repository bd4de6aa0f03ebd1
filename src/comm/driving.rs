//! [`Driving`]: the engine, how the threads of a rank drive it, and how they wait on it.
//!
//! A thread that waits drives the engine for all threads. The progress thread of the [`Family`]
//! drives while no thread waits.
//!
//! Peers wake sleeping threads through the [`Alarm`], after they have stored or sent something. One
//! of the threads handles what has come; every sleeper then takes the engine's lock and checks
//! whether its own task has ended. No peer rings for a cancel, or for a failure that a thread finds
//! by looking: the thread that cancels or finds it rings. If the alarm is a descriptor, it is
//! readable only until one thread has handled what has come, so that thread wakes the other
//! sleepers.
//!
//! Locks are taken in this order: the list of a family's members, then one engine.
//!
//! `tests/shuttle.rs` compiles this file against shuttle's locks and a small engine.

use super::family::{Family, Member};
use super::inside::Inside;
use super::ranges::Garbage;
use crate::engine::{Engine, TaskId};
use crate::error::{Error, Result};
use crate::sync::{
    Arc, AtomicU32, Mutex, MutexGuard, Ordering, PoisonError, TryLockError, yield_now,
};
use crate::time::Time;
use crate::wait::{Alarm, Clock, Patience, SpinTime, Step, sleep_on};
use std::task::Waker;
use std::time::Duration;

/// How often a wait with a [`Manner`] looks at control sockets. Each look costs system calls.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How a service waits on a communicator that nothing else drives, as a partial allreduce does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Spins and yields first, because something will come soon.
    Brief,
    /// Sleeps at once if ranks share cores.
    Asleep,
    /// Sleeps as `Asleep` does, and signals do not end the sleep: nothing waits for what they
    /// bring.
    Idle,
}

/// The engine and what threads need to wait on it.
pub(crate) struct Driving {
    inside: Mutex<Inside>,
    pub clock: Clock,
    /// `None` in a simulation, where no thread sleeps.
    alarm: Option<Alarm>,
    pub spin: SpinTime,
    pub garbage: Arc<Garbage>,
    /// Threads that sleep or are about to sleep. A thread counts itself while it holds the engine's
    /// lock. A thread that waits as [`Manner::Idle`] does not count, since signals need not wake
    /// it.
    sleepers: AtomicU32,
    /// The tasks that futures wait for, and the wakers to call when they have ended.
    watchers: Mutex<Vec<(TaskId, Waker)>>,
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
            inside: Mutex::new(engine),
            clock,
            alarm,
            spin,
            garbage,
            sleepers: AtomicU32::new(0),
            watchers: Mutex::new(Vec::new()),
            family,
        }
    }

    /// Locks the engine. The lock survives a panic of another thread: that panic has failed the
    /// operation of its caller, but left the engine consistent.
    #[inline]
    pub fn engine(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `submit`, which submits a task, and then wakes the progress thread if it rests.
    pub fn start(&self, submit: impl FnOnce(&mut Inside) -> Result<TaskId>) -> Result<TaskId> {
        let task = submit(&mut self.engine())?;
        self.family.end_rest();
        Ok(task)
    }

    /// The result of a task, if it has ended. If not, the progress thread, where there is one,
    /// wakes `waker` when it ends.
    pub fn watch(&self, task: TaskId, waker: &Waker) -> Option<Result<()>> {
        let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|(watched, _)| *watched != task);
        let result = take_result(&mut self.engine(), task);
        if result.is_none() {
            watchers.push((task, waker.clone()));
            drop(watchers);
            self.family.end_rest();
        }
        result
    }

    /// Deregisters the regions whose memory nothing uses any more.
    pub fn collect_garbage(&self, engine: &mut Engine) {
        for key in self.garbage.take() {
            // Ignores errors: each key is deregistered only once, and the transport may be gone
            // already.
            let _ = engine.deregister(key);
        }
    }

    /// Drives once, and calls `then` with the engine before another thread can take the lock.
    pub fn drive_then<T>(&self, then: impl FnOnce(&mut Engine) -> T) -> T {
        let mut engine = self.engine();
        let now = self.clock.now();
        let moved = engine.drive(now);
        let result = then(&mut engine);
        drop(engine);
        self.tell_sleepers(moved, false);
        result
    }

    /// Drives once; returns the result of the task if it has ended.
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

    /// Waits for a task, at most for `limit`. `None`: the task has not ended. The outer error: a
    /// simulated rank cannot wait.
    pub fn wait(&self, task: TaskId, limit: Option<Duration>) -> Result<Option<Result<()>>> {
        self.wait_unless(task, limit, || false)
    }

    /// As [`Driving::wait`], but also returns `None` as soon as `is_given_up`. A thread that makes
    /// `is_given_up` true calls [`Driving::ring`] afterwards.
    pub fn wait_unless(
        &self,
        task: TaskId,
        limit: Option<Duration>,
        is_given_up: impl Fn() -> bool,
    ) -> Result<Option<Result<()>>> {
        {
            // Most small operations end within a few polls, so this reads the clock only once and
            // does not yet register as a caller.
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
        let _caller = self.family.enter();
        Ok(self.wait_long(task, limit, is_given_up))
    }

    /// Drives, at most for `limit`, until `has_come`, which the end of an operation of the family
    /// makes true. With a limit of zero, and in a simulation, it drives once.
    pub fn wait_for(&self, limit: Duration, has_come: impl Fn() -> bool) {
        if limit.is_zero() || self.clock.is_virtual() {
            self.drive_then(|_| ());
            if !has_come() && self.family.has_others() {
                self.family.drive(Some(self));
            }
            return;
        }
        let _caller = self.family.enter();
        let limits = (Some(limit), None);
        self.wait_until(
            limits,
            || false,
            |_| has_come().then_some(()),
            |_| has_come(),
        );
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

    /// Drives until `has_news` or `is_given_up`, at most for `limit`. For a service whose
    /// communicator nothing else drives. A thread that makes `is_given_up` true calls
    /// [`Driving::ring`] afterwards.
    pub fn attend(
        &self,
        (limit, manner): (Duration, Manner),
        is_given_up: impl Fn() -> bool,
        has_news: impl Fn(&Engine) -> bool,
    ) {
        let take = |engine: &mut Engine| has_news(engine).then_some(());
        self.wait_until((Some(limit), Some(manner)), is_given_up, take, &has_news);
    }

    /// Waits until `take` returns something. `has_come` says whether `take` would, without taking
    /// it. With a manner, this looks at control sockets only every [`LOOK_EVERY`].
    fn wait_until<T>(
        &self,
        (limit, manner): (Option<Duration>, Option<Manner>),
        is_given_up: impl Fn() -> bool,
        take: impl Fn(&mut Engine) -> Option<T>,
        has_come: impl Fn(&Engine) -> bool,
    ) -> Option<T> {
        let mut patience = match manner {
            None | Some(Manner::Brief) => Patience::new(&self.spin),
            Some(Manner::Asleep | Manner::Idle) => Patience::sleeping(&self.spin),
        };
        let start = self.clock.now();
        let deadline = limit.map_or(Time::MAX, |limit| start.after(limit));
        let mut looked_at = start;
        let mut has_slept = false;
        loop {
            let now = self.clock.now();
            let mut engine = self.engine();
            if std::mem::take(&mut has_slept) {
                engine.note_sleep();
            }
            let mut moved = false;
            for _ in 0..patience.polls_per_look(&self.spin) {
                moved |= engine.drive(now);
                if let Some(result) = take(&mut engine) {
                    drop(engine);
                    self.tell_sleepers(moved, false);
                    self.spin.learn(patience.last());
                    return Some(result);
                }
                if engine.is_idle() {
                    break;
                }
            }
            let is_due = manner.is_none() || now.since(looked_at) >= LOOK_EVERY;
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
                Step::Spin => std::hint::spin_loop(),
                Step::Yield => yield_now(),
                Step::Sleep(time) => {
                    let time = time.min(deadline.since(now));
                    self.sleep_unless(time, manner, |engine| is_given_up() || has_come(engine));
                }
            }
            has_slept = patience.last() != Step::Spin;
        }
    }

    /// Sleeps until something may have arrived here or for another member of the family, at most
    /// for `time`; does not sleep if `is_over`. Without a manner it looks at the control sockets
    /// first. With [`Manner::Idle`], signals do not end the sleep.
    fn sleep_unless(
        &self,
        time: Duration,
        manner: Option<Manner>,
        is_over: impl Fn(&Engine) -> bool,
    ) {
        let Some(alarm) = &self.alarm else {
            return;
        };
        let is_idle = manner == Some(Manner::Idle);
        let due = self.engine().next_timeout();
        let time = due.map_or(time, |due| time.min(due.since(self.clock.now())));
        // These shares live until the sleep has ended, so that no bell is unmapped meanwhile.
        let others = match self.family.has_others() {
            true => self.family.others(Some(self)),
            false => Vec::new(),
        };
        let has_news = || {
            let now = self.clock.now();
            let mut engine = self.engine();
            // Relaxed: the engine's lock orders the counter.
            let is_alone = match is_idle {
                true => self.sleepers.load(Ordering::Relaxed) == 0,
                false => self.sleepers.fetch_add(1, Ordering::Relaxed) == 0,
            };
            if is_alone || !is_idle {
                engine.want_anything();
            }
            let moved = engine.drive(now);
            let has_failed = manner.is_none() && look(&mut engine, now);
            self.collect_garbage(&mut engine);
            let has_news = moved || is_over(&engine);
            if is_alone && !has_news && !has_failed && others.is_empty() {
                engine.want_signals(is_idle);
            }
            drop(engine);
            match has_failed {
                true => self.ring(),
                false if moved => alarm.wake_others(1),
                false => {}
            }
            others
                .iter()
                .fold(has_news, |has_news, other| other.drive() | has_news)
        };
        match &others[..] {
            [] => sleep_on(&[alarm], time, has_news),
            others => {
                let alarms = others.iter().filter_map(|other| other.alarm());
                let alarms: Vec<&Alarm> = std::iter::once(alarm).chain(alarms).collect();
                sleep_on(&alarms, time, has_news);
            }
        }
        if !is_idle {
            // Relaxed: another thread that still counts this one is woken by more signals than it
            // needs.
            self.sleepers.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub fn family(&self) -> &Arc<Family> {
        &self.family
    }

    /// Drives once for a thread that waits on another communicator. Returns whether anything moved.
    fn drive_for_other(&self, mut engine: MutexGuard<'_, Inside>) -> bool {
        let now = self.clock.now();
        let moved = engine.drive(now);
        let has_failed = look_if_due(&mut engine, now);
        self.collect_garbage(&mut engine);
        drop(engine);
        self.tell_sleepers(moved, has_failed);
        moved
    }

    /// Wakes every sleeping thread of this rank.
    pub fn ring(&self) {
        if let Some(alarm) = &self.alarm {
            alarm.wake();
        }
    }

    /// The caller, which is not counted as a sleeper, has driven. Wakes all sleepers if the
    /// communicator has failed; if something has `moved`, those that the arrival itself may not
    /// have woken.
    #[inline]
    fn tell_sleepers(&self, moved: bool, has_failed: bool) {
        match (&self.alarm, has_failed) {
            (Some(alarm), true) => alarm.wake(),
            (Some(alarm), false) if moved => alarm.wake_others(0),
            _ => {}
        }
    }

    /// Cancels a task, which fails the communicator on all ranks.
    pub fn cancel(&self, task: TaskId) {
        self.engine().cancel(task);
        self.ring();
    }
}

impl Member for Driving {
    fn try_drive(&self) -> bool {
        match self.inside.try_lock() {
            Ok(engine) => self.drive_for_other(engine),
            Err(TryLockError::Poisoned(error)) => self.drive_for_other(error.into_inner()),
            Err(TryLockError::WouldBlock) => false,
        }
    }

    fn drive(&self) -> bool {
        self.drive_for_other(self.engine())
    }

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
        // No lock is held here, because a waker runs code of the caller.
        ended.into_iter().for_each(Waker::wake);
    }

    fn is_idle(&self) -> bool {
        self.engine().is_idle()
    }

    fn alarm(&self) -> Option<&Alarm> {
        self.alarm.as_ref()
    }

    fn sleep(&self, time: Duration, is_over: &dyn Fn() -> bool) {
        self.sleep_unless(time, None, |_| is_over());
    }
}

/// The slow part of driving. Returns whether it found that the communicator has failed, which ends
/// every wait.
fn look(engine: &mut Engine, now: Time) -> bool {
    let had_failed = engine.failure().is_some();
    engine.drive_slow(now);
    engine.failure().is_some() != had_failed
}

/// [`look`], if it is due.
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
