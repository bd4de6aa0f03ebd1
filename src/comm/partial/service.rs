//! [`Service`]: what callers of a [`PartialAllreduce`](super::PartialAllreduce) and its thread
//! share, and which of them drives. The thread drives while the application computes, and sleeps
//! until a peer has something for this rank. While a caller waits, the caller drives and the thread
//! stays asleep, so that each signal wakes one thread.

use super::rounds::Rounds;
use crate::comm::attended::Attend;
use crate::comm::driving::Manner;
use crate::comm::raw::RawBuffer;
use crate::engine::Clock;
use crate::error::{Error, Result};
use crate::kernel;
use crate::memory::View;
use crate::partial::{Next, RoundReport};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest sleep of the thread while nothing is due; wake-ups cut it short.
const IDLE: Duration = Duration::from_secs(1);

/// Longest sleep of a caller that waits: how late it notices that a rank is gone.
const PATIENCE: Duration = Duration::from_millis(50);

/// How long a wait for another thread of this rank lasts before it looks again.
const BESIDE: Duration = Duration::from_millis(1);

/// See the module.
pub struct Service {
    clock: Clock,
    timeout: Duration,
    state: Mutex<State>,
    /// The thread sleeps on it while callers wait.
    free: Condvar,
    /// Callers that drive.
    waiters: AtomicU32,
    is_stopped: AtomicBool,
}

struct State {
    rounds: Rounds,
    failure: Option<Error>,
    is_parked: bool,
}

impl Service {
    pub fn new(rounds: Rounds) -> Service {
        let inner = &rounds.comm.inner;
        let (clock, timeout) = (inner.clock.clone(), inner.config.timeout);
        let state = State {
            rounds,
            failure: None,
            is_parked: false,
        };
        Service {
            clock,
            timeout,
            state: Mutex::new(state),
            free: Condvar::new(),
            waiters: AtomicU32::new(0),
            is_stopped: AtomicBool::new(false),
        }
    }

    /// Puts a gradient into its snapshot. With `is_followed` the caller waits for a result right
    /// after.
    pub fn submit(&self, gradient: &[View], is_followed: bool) -> Result<u64> {
        let mut state = self.lock();
        let (step, (round, is_first)) = loop {
            state.turn(&self.clock)?;
            let machine = &mut state.rounds.machine;
            if machine.is_finishing() {
                return Err(Error::invalid(
                    "a gradient was submitted while the partial allreduce finishes: submit again when finish has returned",
                ));
            }
            if let Some(target) = machine.begin_submit() {
                break (machine.submitted(), target);
            }
            state = self.wait_beside(state)?;
        };
        let snapshot = state.rounds.memory.snapshot(round).view();
        if is_first {
            // Nobody looks at it before it is told, and rounds go on meanwhile.
            drop(state);
            parts_of(gradient, snapshot).for_each(|(from, to)| kernel::copy(from, to));
            state = self.lock();
        } else {
            let memory = &state.rounds.memory;
            parts_of(gradient, snapshot).for_each(|(later, to)| memory.add(later, to));
        }
        let now = self.clock.now();
        state.rounds.machine.handle_submitted(now);
        state.turn(&self.clock)?;
        let is_left = state.rounds.is_busy() && !is_followed;
        let shared = state.rounds.shared();
        drop(state);
        if is_left {
            // Peers ring for what they do from now on; what they had done before needs a look.
            shared.ring();
        }
        Ok(step)
    }

    /// The next result, copied to `output`; `None` if none is due. With `can_wait`, waits for one
    /// that is due.
    pub fn next(&self, output: &[View], can_wait: bool) -> Result<Option<RoundReport>> {
        self.driving(|| self.next_driving(output, can_wait))
    }

    /// Waits until this rank may leave after a last round: the others may need its result from
    /// here.
    pub fn leave(&self, round: u64) -> Result<()> {
        self.driving(|| {
            loop {
                let mut state = self.lock();
                state.turn(&self.clock)?;
                if state.rounds.machine.is_everywhere(round) {
                    return Ok(());
                }
                self.wait(state)?;
            }
        })
    }

    /// Runs what drives while it waits; the thread drives afterwards.
    fn driving<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        let result = wait();
        if self.waiters.fetch_sub(1, Ordering::Relaxed) == 1 {
            let state = self.lock();
            if state.is_parked {
                self.free.notify_one();
            }
        }
        result
    }

    fn next_driving(&self, output: &[View], can_wait: bool) -> Result<Option<RoundReport>> {
        loop {
            let mut state = self.lock();
            let turned = state.turn(&self.clock);
            match state.rounds.machine.take() {
                Next::Taken(report, place) => {
                    let result: RawBuffer = state.rounds.memory.result(place).clone();
                    drop(state);
                    parts_of(output, result.view()).for_each(|(to, from)| kernel::copy(from, to));
                    let mut state = self.lock();
                    state.rounds.machine.give_back(place);
                    // A round may have waited for the place. The next call returns a failure.
                    let _ = state.turn(&self.clock);
                    return Ok(Some(report));
                }
                // What had been reduced before a failure is handed over first.
                _ if turned.is_err() => return turned.map(|()| None),
                Next::Nothing => return Ok(None),
                Next::Wait if !can_wait => return Ok(None),
                Next::Wait => {}
            }
            self.wait(state)?;
        }
    }

    /// This rank has nothing more to submit. False: a result has to be taken first.
    pub fn finish(&self) -> Result<bool> {
        let mut state = self.lock();
        state.turn(&self.clock)?;
        let has_begun = match state.rounds.machine.handle_finish() {
            Ok(has_begun) => has_begun,
            Err(error) => {
                state.rounds.fail(&error);
                state.failure.get_or_insert(error.clone());
                return Err(error);
            }
        };
        state.turn(&self.clock)?;
        Ok(has_begun)
    }

    /// Rounds that have ended here less own steps.
    pub fn lag(&self) -> u64 {
        let mut state = self.lock();
        // A failure is kept for the calls that return it.
        let _ = state.turn(&self.clock);
        state.rounds.machine.lag()
    }

    /// The thread.
    pub fn run(&self) {
        let _guard = PanicGuard(self);
        while !self.is_stopped() {
            let mut state = self.lock();
            // Under the lock: `stop` has notified already, or will.
            if self.is_stopped() {
                return;
            }
            if self.is_wanted() || state.failure.is_some() {
                state.is_parked = true;
                let mut state = self.free.wait(state).expect("no holder panics");
                state.is_parked = false;
                continue;
            }
            // A failure is kept for the callers.
            if state.turn(&self.clock).is_err() {
                continue;
            }
            let (limit, ended) = (state.limit(&self.clock), state.rounds.ended_count());
            let manner = state.rounds.manner();
            let shared = state.rounds.shared();
            drop(state);
            shared.attend(
                (limit, manner),
                || self.is_stopped() || self.is_wanted(),
                |engine| has_news(engine, ended),
            );
        }
    }

    /// Ends the thread. In the middle of a round the others are told, so that none waits for this
    /// rank.
    pub fn stop(&self) {
        let state = self.lock();
        let machine = &state.rounds.machine;
        let is_needed =
            state.rounds.is_busy() || machine.begun() > machine.completed() || machine.is_waiting();
        if is_needed && state.failure.is_none() && !machine.options().survive {
            let round = machine.completed();
            let text = format!("a partial allreduce was dropped in round {round}");
            state.rounds.comm.abort(&text);
        }
        self.is_stopped.store(true, Ordering::Relaxed);
        self.free.notify_one();
        let shared = state.rounds.shared();
        drop(state);
        shared.ring();
    }

    /// Waits until something may have come; an error: for too long.
    fn wait(&self, mut state: MutexGuard<'_, State>) -> Result<()> {
        let timeout = self.timeout;
        let now = self.clock.now();
        // Operations under way have their own timeout, which names who is missing.
        if !state.rounds.is_busy()
            && now.since(state.rounds.moved_at()) > timeout
            && let Some(error) = state.rounds.give_up(now)
        {
            state.failure.get_or_insert(error.clone());
            return Err(error);
        }
        let (limit, ended) = (state.limit(&self.clock), state.rounds.ended_count());
        let manner = state.rounds.manner_waited_for();
        let shared = state.rounds.shared();
        drop(state);
        shared.attend(
            (limit.min(PATIENCE), manner),
            || self.is_stopped(),
            |engine| has_news(engine, ended),
        );
        Ok(())
    }

    /// Waits for another thread of this rank, which submits or takes a result.
    fn wait_beside<'a>(&'a self, state: MutexGuard<'a, State>) -> Result<MutexGuard<'a, State>> {
        let timeout = self.timeout;
        let now = self.clock.now();
        if now.since(state.rounds.moved_at()) > timeout {
            let machine = &state.rounds.machine;
            return Err(Error::invalid(format!(
                "step {} was submitted before the result of step {} was taken, and nobody has taken it for {timeout:?}: \
                 PartialOptions allows {} rounds in flight; call next, or allow more",
                machine.submitted(),
                machine
                    .submitted()
                    .saturating_sub(u64::from(machine.options().rounds_in_flight)),
                machine.options().rounds_in_flight
            )));
        }
        let ended = state.rounds.ended_count();
        let shared = state.rounds.shared();
        drop(state);
        shared.attend(
            (BESIDE, Manner::Brief),
            || false,
            |engine| has_news(engine, ended),
        );
        Ok(self.lock())
    }

    fn is_stopped(&self) -> bool {
        // Relaxed: `stop` rings after it has set it.
        self.is_stopped.load(Ordering::Relaxed)
    }

    fn is_wanted(&self) -> bool {
        // Relaxed: a hint of who drives; the lock orders what they do.
        self.waiters.load(Ordering::Relaxed) > 0
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }
}

impl State {
    fn turn(&mut self, clock: &Clock) -> Result<()> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let turned = self.rounds.turn(clock.now());
        if let Err(error) = &turned {
            self.failure = Some(error.clone());
        }
        turned
    }

    /// How long nothing is due.
    fn limit(&self, clock: &Clock) -> Duration {
        let now = clock.now();
        let deadline = self.rounds.machine.next_deadline();
        deadline.map_or(IDLE, |deadline| deadline.since(now).min(IDLE))
    }
}

/// Buffers that together are as long as a vector, each with its part of that.
fn parts_of(buffers: &[View], vector: View) -> impl Iterator<Item = (View, View)> {
    let mut end = 0;
    buffers.iter().map(move |&buffer| {
        let bytes = buffer.len_bytes();
        end += bytes;
        (buffer, vector.part(end - bytes, bytes))
    })
}

fn has_news(engine: &crate::engine::Engine, ended: u64) -> bool {
    engine.has_notices() || engine.ended_count() != ended || engine.failure().is_some()
}

impl Attend for Service {
    fn run(&self) {
        Service::run(self);
    }

    fn stop(&self) {
        Service::stop(self);
    }
}

/// Tells callers and peers of a panic, so that none waits for ever.
struct PanicGuard<'a>(&'a Service);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let state = self.0.state.lock();
            let state = state.unwrap_or_else(PoisonError::into_inner);
            let comm = &state.rounds.comm;
            comm.abort("the thread of a partial allreduce panicked");
        }
    }
}
