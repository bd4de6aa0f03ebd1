//! [`Driving`]: the engine, how the threads of a rank drive it, and how they wait on it; and
//! [`Family`]: which other engines a wait drives.
//!
//! A thread that waits drives for all; the progress thread drives while none waits.
//! A thread that sleeps is woken by peers through the [`Alarm`], after what they did: whichever
//! thread handles that, every sleeper looks for the end of its own task under the engine's lock.
//! What no peer rings for, a failure found by looking or a cancel, the finder rings for; where
//! peers ring for nothing (descriptors), the thread that handles what has come does.
//!
//! Locks, in this order: a family's list of members, then one engine.
//!
//! `tests/shuttle.rs` compiles this file against shuttle's locks and a small engine.

use super::inside::Inside;
use super::ranges::Garbage;
use crate::engine::{Engine, TaskId};
use crate::error::{Error, Result};
use crate::sync::{
    Arc, AtomicU32, Mutex, MutexGuard, Ordering, PoisonError, TryLockError, Weak, yield_now,
};
use crate::time::Time;
use crate::wait::{Alarm, Background, Clock, DriverLock, Patience, SpinTime, Step, sleep_on};
use std::task::Waker;
use std::time::Duration;

/// Longest sleep of the progress thread while something is under way; wake-ups cut it short.
const PROGRESS_SLEEP: Duration = Duration::from_millis(50);

/// How often a thread that attends to a communicator for good looks at control sockets, which costs
/// system calls.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How a thread waits that attends to a communicator for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// For something that soon comes.
    Brief,
    /// Asleep at once, where ranks share cores.
    Asleep,
    /// Asleep, and signals may wait until something else comes: nobody waits for what they bring.
    Idle,
}

/// The engine and what threads need to wait on it.
pub(crate) struct Driving {
    lock: DriverLock<Inside>,
    pub clock: Clock,
    /// `None` in a simulation, where nobody sleeps.
    alarm: Option<Alarm>,
    pub spin: SpinTime,
    pub garbage: Arc<Garbage>,
    /// Threads that sleep or are about to, counted with the engine locked; none that are idle, for
    /// which signals may wait.
    sleepers: AtomicU32,
    /// What is to be woken when a task has ended.
    watchers: Mutex<Vec<(TaskId, Waker)>>,
    family: Arc<Family>,
}

/// The communicators of one process that come from one another by split, duplicate and rebuild. A
/// thread that waits on one of them also drives the others.
///
/// Why: rank 0 starts an operation on A and waits on B, rank 1 waits on A first. Unless rank 0's
/// wait on B also moves A, neither ends. A communicator that a thread of its own attends to for
/// good is no member.
#[derive(Default)]
pub(crate) struct Family {
    /// Members alive. All that a wait looks at as long as there is one.
    members_count: AtomicU32,
    members: Mutex<Vec<Weak<Driving>>>,
}

impl Family {
    /// Takes a member in.
    pub fn join(&self, member: &Arc<Driving>) {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.retain(|known| known.strong_count() > 0);
        members.push(Arc::downgrade(member));
        self.members_count
            .store(members.len() as u32, Ordering::Relaxed);
    }

    /// A member leaves; nothing happens if it is none.
    pub fn leave(&self, member: &Arc<Driving>) {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.retain(|known| !std::ptr::eq(known.as_ptr(), Arc::as_ptr(member)));
        // Relaxed: a hint of whether to look at the list, whose lock orders everything.
        self.members_count
            .store(members.len() as u32, Ordering::Relaxed);
    }

    /// Whether a member has others to care for.
    #[inline]
    fn has_others(&self) -> bool {
        self.members_count.load(Ordering::Relaxed) > 1
    }

    /// Drives every member but `own` that no other thread drives now; whether anything moved.
    pub fn drive(&self, own: Option<&Driving>) -> bool {
        // The thread that has the list drives all of them.
        let members = match self.members.try_lock() {
            Ok(members) => members,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let others = members.iter().filter_map(Weak::upgrade);
        let others = others.filter(|other| own.is_none_or(|own| !std::ptr::eq(own, &**other)));
        others.fold(false, |moved, other| {
            let engine = other.lock.try_lock();
            engine.is_some_and(|engine| other.drive_for_other(engine)) || moved
        })
    }

    /// Every member but `own`.
    fn others(&self, own: &Driving) -> Vec<Arc<Driving>> {
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        let others = members.iter().filter_map(Weak::upgrade);
        others
            .filter(|other| !std::ptr::eq(own, &**other))
            .collect()
    }
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
            lock: DriverLock::new(engine),
            clock,
            alarm,
            spin,
            garbage,
            sleepers: AtomicU32::new(0),
            watchers: Mutex::new(Vec::new()),
            family,
        }
    }

    /// The engine. A panic elsewhere has failed that caller's operation, not the engine's
    /// bookkeeping.
    #[inline]
    pub fn engine(&self) -> MutexGuard<'_, Inside> {
        self.lock.lock()
    }

    /// Starts what `submit` submits, and ends the rest of the progress thread.
    pub fn start(&self, submit: impl FnOnce(&mut Inside) -> Result<TaskId>) -> Result<TaskId> {
        let task = submit(&mut self.engine())?;
        self.lock.end_rest();
        Ok(task)
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
            self.lock.end_rest();
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

    /// Drives once, and lets `then` look at the engine before another thread does.
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

    /// As [`Driving::wait`], and `None` as soon as `is_given_up`. A thread that makes that true
    /// rings afterwards.
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
        let _caller = self.lock.enter();
        Ok(self.wait_long(task, limit, is_given_up))
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
    /// that drives it while no other does. A thread that makes that true rings afterwards.
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
        let mut patience = match manner {
            None | Some(Manner::Brief) => Patience::new(&self.spin),
            Some(Manner::Asleep | Manner::Idle) => Patience::sleeping(&self.spin),
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
                    self.sleep(time, manner, |engine| is_given_up() || has_come(engine));
                }
            }
        }
    }

    /// Sleeps until something may have arrived here or for another member of the family, unless
    /// `is_over`. Without a manner it looks at control sockets before; with [`Manner::Idle`],
    /// signals may wait.
    fn sleep(&self, time: Duration, manner: Option<Manner>, is_over: impl Fn(&Engine) -> bool) {
        let Some(alarm) = &self.alarm else {
            return;
        };
        let is_idle = manner == Some(Manner::Idle);
        let due = self.engine().next_timeout();
        let time = due.map_or(time, |due| time.min(due.since(self.clock.now())));
        // Held until the end, so that no bell is unmapped meanwhile.
        let others = match self.family.has_others() {
            true => self.family.others(self),
            false => Vec::new(),
        };
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
            others.iter().fold(has_news, |has_news, other| {
                other.drive_for_other(other.engine()) | has_news
            })
        };
        match &others[..] {
            [] => sleep_on(&[alarm], time, has_news),
            others => {
                let alarms = others.iter().filter_map(|other| other.alarm.as_ref());
                let alarms: Vec<&Alarm> = std::iter::once(alarm).chain(alarms).collect();
                sleep_on(&alarms, time, has_news);
            }
        }
        if !is_idle {
            // Relaxed: a rank that still counts this thread is woken by more than it needs.
            self.sleepers.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The family.
    pub fn family(&self) -> &Arc<Family> {
        &self.family
    }

    /// Drives once for a wait on another communicator; whether anything moved.
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
}

/// The progress thread: it drives while no caller waits, and rests while nothing is under way, so
/// that peers that signal wake it for nothing.
impl Background for Driving {
    fn run(&self) {
        let mut patience = Patience::new(&SpinTime::new(usize::MAX, 1));
        while !self.lock.is_stopped() {
            let now = self.clock.now();
            let mut moved = false;
            if !self.lock.has_callers() {
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
                Step::Spin | Step::Yield => yield_now(),
                Step::Sleep(_) if self.lock.rest_while(|| self.engine().is_idle()) => {
                    patience.reset();
                }
                Step::Sleep(_) => {
                    self.sleep(PROGRESS_SLEEP, None, |_| self.lock.is_stopped());
                }
            }
        }
    }

    fn stop(&self) {
        self.lock.stop();
        self.ring();
    }
}

/// The slow part of driving; whether it failed the communicator, which ends every wait.
fn look(engine: &mut Engine, now: Time) -> bool {
    let had_failed = engine.failure().is_some();
    engine.drive_slow(now);
    engine.failure().is_some() != had_failed
}

/// The slow part of driving, if it is due; whether it failed the communicator.
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
