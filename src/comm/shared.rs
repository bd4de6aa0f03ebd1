//! What all clones of a communicator and its operations share: the engine, and how threads wait on it.

use super::bind::Bound;
use super::buffer::Garbage;
use super::call::Call;
use super::plans::Plans;
use super::repeats::Repeats;
use crate::engine::{Clock, Engine, Patience, SpinTime, TaskId, WaitStep};
use crate::error::{Error, Result};
use crate::memory::{ProcessMark, View, futex_wait, futex_wake_all};
use crate::time::Time;
use crate::transport::WaitSource;
use std::borrow::Cow;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest sleep of the progress thread when there is nothing to do; wake-ups cut it short.
const IDLE_SLEEP: Duration = Duration::from_millis(50);

/// What one thread at a time may use.
pub(super) struct Inside {
    engine: Engine,
    repeats: Repeats,
}

impl Deref for Inside {
    type Target = Engine;
    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl DerefMut for Inside {
    fn deref_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }
}

/// The engine and what threads need to wait on it.
pub(super) struct Shared {
    engine: Mutex<Inside>,
    pub clock: Clock,
    /// The process that may use it.
    pub process: ProcessMark,
    wait_source: WaitSource,
    spin: SpinTime,
    plans: Mutex<Plans>,
    pub garbage: Arc<Garbage>,
    /// Threads inside `wait`; the progress thread leaves the driving to them.
    waiters: AtomicU32,
    stop: AtomicBool,
}

impl Shared {
    /// `places`: ranks of this host, and the cores that they share (0: unknown).
    pub fn new(
        engine: Engine,
        clock: Clock,
        process: ProcessMark,
        plans: Plans,
        (local_ranks, cores): (usize, usize),
    ) -> Arc<Shared> {
        let own_cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let cores = if cores > 0 { cores } else { own_cores() };
        Arc::new(Shared {
            wait_source: engine.wait_source(),
            engine: Mutex::new(Inside {
                engine,
                repeats: Repeats::default(),
            }),
            clock,
            spin: SpinTime::new(local_ranks, cores),
            plans: Mutex::new(plans),
            process,
            garbage: Arc::new(Garbage::new(process)),
            waiters: AtomicU32::new(0),
            stop: AtomicBool::new(false),
        })
    }

    /// In a forked child: keeps it to the end of the process. Dropping it would say goodbye to peers in the parent's name,
    /// and a thread that exists in the parent only may have left it half changed.
    pub fn leave_to_parent(self: &Arc<Shared>) {
        std::mem::forget(self.clone());
    }

    /// The engine. A panic elsewhere has failed that caller's operation, not the engine's bookkeeping.
    pub fn engine(&self) -> MutexGuard<'_, Inside> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The plans of calls. Whoever holds it takes the engine no more.
    pub fn plans(&self) -> MutexGuard<'_, Plans> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a call on this memory to its end.
    pub fn run(
        &self,
        call: &Call,
        memory: [Option<View>; 2],
        bind: impl FnOnce(&mut Plans) -> Result<Bound<'_>>,
    ) -> Result<()> {
        self.process.check()?;
        let mut inside = self.engine();
        let Inside { engine, repeats } = &mut *inside;
        let known = repeats.find(call, memory);
        let is_known = known.is_some();
        if let Some(at_once) = known
            && let Some(result) = engine.run_at_once(at_once, self.spin.looks_at_once())
        {
            return result;
        }
        let mut plans = self.plans();
        let bound = bind(&mut plans)?;
        if let (false, Cow::Borrowed(slots)) = (is_known, &bound.slots)
            && let Some(at_once) = engine.at_once(&bound.plan.prepared, bound.arguments, slots)
        {
            repeats.remember(call, memory, at_once);
        }
        let task = engine.submit(bound.keep(call), self.clock.now())?;
        drop((plans, inside));
        self.wait(task, None)?
            .expect("a wait without a limit ends with a result")
    }

    /// Ends registrations whose memory nobody uses any more.
    pub fn collect_garbage(&self, engine: &mut Engine) {
        for key in self.garbage.take() {
            // Each key was registered once and is given back once; the transport may be gone already.
            let _ = engine.deregister(key);
        }
    }

    /// Drives once and looks.
    pub fn test(&self, task: TaskId) -> Option<Result<()>> {
        let mut engine = self.engine();
        let now = self.clock.now();
        self.drive(&mut engine, now);
        if engine.result(task).is_none() {
            self.watch(&mut engine, |e| e.drive_slow_if_due(now));
        }
        take_result(&mut engine, task)
    }

    /// Waits for a task, at most `limit`; `None`: it still runs. The outer error: nobody can wait here.
    pub fn wait(&self, task: TaskId, limit: Option<Duration>) -> Result<Option<Result<()>>> {
        {
            // Most small operations need only a few polls: no clock, no counters.
            let mut engine = self.engine();
            let now = self.clock.now();
            for _ in 0..self.spin.polls_per_look() {
                if let Some(result) = take_result(&mut engine, task) {
                    return Ok(Some(result));
                }
                self.drive(&mut engine, now);
            }
        }
        if self.clock.is_virtual() {
            return Err(Error::invalid(
                "a simulated operation cannot be waited for by one rank: step the simulation (Simulation::run) and test",
            ));
        }
        self.waiters.fetch_add(1, Ordering::Relaxed);
        let result = self.wait_long(task, limit);
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        Ok(result)
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
                moved |= self.drive(&mut engine, now);
                if let Some(result) = take_result(&mut engine, task) {
                    self.spin.learn(patience.last());
                    return Some(result);
                }
            }
            self.watch(&mut engine, |e| e.drive_slow_if_due(now));
            drop(engine);
            if now >= deadline {
                return None;
            }
            if moved {
                patience.reset();
                continue;
            }
            match patience.next(now) {
                WaitStep::Spin => std::hint::spin_loop(),
                WaitStep::Yield => std::thread::yield_now(),
                WaitStep::Sleep(time) => self.sleep(Some(task), time.min(deadline.since(now))),
            }
        }
    }

    /// Drives once.
    fn drive(&self, engine: &mut Engine, now: Time) -> bool {
        self.watch(engine, |engine| engine.drive(now))
    }

    /// Lets the engine run. Threads that sleep are woken if that has ended operations: one of them may be theirs.
    fn watch<R>(&self, engine: &mut Engine, run: impl FnOnce(&mut Engine) -> R) -> R {
        let ended = engine.ended();
        let result = run(engine);
        if engine.ended() != ended {
            self.wake_sleepers();
        }
        result
    }

    /// Wakes the threads of this process that sleep. Whoever is about to holds or will take the engine's lock after it has
    /// counted itself, and looks at its operation then.
    fn wake_sleepers(&self) {
        if let WaitSource::Futex { bell, sleeping } = self.wait_source
            && sleeping.word32(0).load(Ordering::Relaxed) != 0
        {
            bell.word32(0).fetch_add(1, Ordering::Release);
            futex_wake_all(bell.word32(0));
        }
    }

    /// Sleeps until something may have arrived, or another thread may have ended the task.
    fn sleep(&self, task: Option<TaskId>, time: Duration) {
        let WaitSource::Futex { bell, sleeping } = self.wait_source else {
            return;
        };
        // The waker stores what this rank waits for, fences, and looks at `sleeping`; here it is the other way round,
        // so one of the two sees the other.
        let rung = bell.word32(0).load(Ordering::Acquire);
        sleeping.word32(0).fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let now = self.clock.now();
        let mut engine = self.engine();
        let moved = self.drive(&mut engine, now);
        self.watch(&mut engine, |e| e.drive_slow(now));
        self.collect_garbage(&mut engine);
        let has_ended = task.is_some_and(|task| engine.result(task).is_some());
        drop(engine);
        if !moved && !has_ended {
            futex_wait(bell.word32(0), rung, time);
        }
        sleeping.word32(0).fetch_sub(1, Ordering::SeqCst);
    }

    /// The progress thread: drives whenever no caller waits.
    pub fn run_progress_thread(&self) {
        let mut patience = Patience::new(&SpinTime::new(usize::MAX, 1));
        while !self.stop.load(Ordering::Acquire) {
            let now = self.clock.now();
            let mut moved = false;
            if self.waiters.load(Ordering::Relaxed) == 0 {
                let mut engine = self.engine();
                moved = self.drive(&mut engine, now);
                // One operation may move all the time while another waits for a peer that is gone.
                if moved {
                    self.watch(&mut engine, |e| e.drive_slow_if_due(now));
                }
            }
            if moved {
                patience.reset();
                continue;
            }
            match patience.next(self.clock.now()) {
                WaitStep::Spin | WaitStep::Yield => std::thread::yield_now(),
                WaitStep::Sleep(_) => self.sleep(None, IDLE_SLEEP),
            }
        }
    }

    /// Ends the progress thread.
    pub fn stop_progress_thread(&self) {
        // Pairs with the acquire load in `run_progress_thread`.
        self.stop.store(true, Ordering::Release);
        if let WaitSource::Futex { bell, .. } = self.wait_source {
            bell.word32(0).fetch_add(1, Ordering::Release);
            futex_wake_all(bell.word32(0));
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
