//! [`PartialDriving`]: what the callers of a [`PartialAllreduce`](super::PartialAllreduce) and its
//! thread share, and which of them drives.
//!
//! The thread drives while the application computes, and sleeps until a peer has something for this
//! rank. While a caller waits, the caller drives and the thread stays asleep, so that each signal
//! wakes one thread only.

use super::rounds::Rounds;
use crate::comm::driving::Manner;
use crate::comm::queue::{CompletionQueue, PlaceApart};
use crate::comm::raw::RawBuffer;
use crate::error::{Error, Result};
use crate::kernel;
use crate::memory::View;
use crate::partial::{Next, RoundReport};
use crate::wait::{Background, Clock, DriverLock};
use std::sync::MutexGuard;
use std::time::Duration;

/// Longest sleep of the thread while nothing is due. A wake-up ends it earlier.
const IDLE: Duration = Duration::from_secs(1);

/// Longest sleep of a caller that waits. It bounds how late the caller notices a death.
const PATIENCE: Duration = Duration::from_millis(50);

/// How long a caller that waits for another thread of this rank sleeps before it looks again.
const BESIDE: Duration = Duration::from_millis(1);

/// See the module.
pub struct PartialDriving {
    clock: Clock,
    timeout: Duration,
    lock: DriverLock<State>,
}

struct State {
    rounds: Rounds,
    failure: Option<Error>,
    /// The place in a queue that is told when a result can be taken, or of the failure.
    place: Option<PlaceApart>,
}

impl PartialDriving {
    pub fn new(rounds: Rounds) -> PartialDriving {
        let inner = &rounds.comm.inner;
        PartialDriving {
            clock: inner.clock.clone(),
            timeout: inner.config.timeout,
            lock: DriverLock::new(State {
                rounds,
                failure: None,
                place: None,
            }),
        }
    }

    /// Adds a gradient to the snapshot of its round, and returns the index of its step. With
    /// `is_followed` the caller waits for a result right afterwards.
    pub fn submit(&self, gradient: &[View], is_followed: bool) -> Result<u64> {
        let mut state = self.lock.lock();
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
            // Copied without the lock, so that rounds go on meanwhile. No other thread reads this
            // snapshot before `handle_submitted`.
            drop(state);
            parts_of(gradient, snapshot).for_each(|(from, to)| kernel::copy(from, to));
            state = self.lock.lock();
        } else {
            let memory = &state.rounds.memory;
            parts_of(gradient, snapshot).for_each(|(later, to)| memory.add(later, to));
        }
        let now = self.clock.now();
        state.rounds.machine.handle_submitted(now);
        state.turn(&self.clock)?;
        let is_left = state.rounds.is_busy() && !is_followed;
        let driving = state.rounds.driving.clone();
        drop(state);
        if is_left {
            // The thread has to look once for what peers have done already. They ring for all that
            // they do from now on.
            driving.ring();
        }
        Ok(step)
    }

    /// Has a queue told of the next result.
    pub fn notify(&self, queue: &CompletionQueue, user: u64) -> Result<()> {
        let mut state = self.lock.lock();
        // A failure is no error here: the queue is told of it.
        let turned = state.turn(&self.clock);
        if state.place.is_some() {
            return Err(Error::invalid(format!(
                "a partial allreduce is in one queue at a time: this one, with user {user}, is in one already"
            )));
        }
        if turned.is_ok() && !state.rounds.machine.is_result_due() {
            return Err(Error::invalid(
                "a queue is to be told of the next result, and none is due: submit first",
            ));
        }
        state.place = Some(queue.place_apart(user)?);
        state.tell_queue();
        Ok(())
    }

    /// Copies the next result to `output`, and returns its report. Returns `None` if none is due.
    /// With `can_wait` it waits for a result that is due, otherwise it returns `None` for that too.
    pub fn next(&self, output: &[View], can_wait: bool) -> Result<Option<RoundReport>> {
        self.lock.driving(|| self.next_driving(output, can_wait))
    }

    /// Waits until this rank may leave after this last round. Until all living ranks have its
    /// result, one of them may have to fetch it from here.
    pub fn leave(&self, round: u64) -> Result<()> {
        self.lock.driving(|| {
            loop {
                let mut state = self.lock.lock();
                state.turn(&self.clock)?;
                if state.rounds.machine.is_everywhere(round) {
                    return Ok(());
                }
                self.wait(state)?;
            }
        })
    }

    fn next_driving(&self, output: &[View], can_wait: bool) -> Result<Option<RoundReport>> {
        loop {
            let mut state = self.lock.lock();
            let turned = state.turn(&self.clock);
            match state.rounds.machine.take() {
                Next::Taken(report, place) => {
                    let result: RawBuffer = state.rounds.memory.result(place).clone();
                    drop(state);
                    parts_of(output, result.view()).for_each(|(to, from)| kernel::copy(from, to));
                    let mut state = self.lock.lock();
                    state.rounds.machine.give_back(place);
                    // A round may have waited for this place. If the turn fails, the next call
                    // returns the error.
                    let _ = state.turn(&self.clock);
                    return Ok(Some(report));
                }
                // Results from before a failure are handed over first, by the arm above.
                _ if turned.is_err() => return turned.map(|()| None),
                Next::Nothing => return Ok(None),
                Next::Wait if !can_wait => return Ok(None),
                Next::Wait => {}
            }
            self.wait(state)?;
        }
    }

    /// Says that this rank has nothing more to submit. Returns false if a result has to be taken
    /// first.
    pub fn finish(&self) -> Result<bool> {
        let mut state = self.lock.lock();
        state.turn(&self.clock)?;
        let has_begun = match state.rounds.machine.handle_finish() {
            Ok(has_begun) => has_begun,
            Err(error) => {
                state.rounds.fail(&error);
                state.fail(&error);
                return Err(error);
            }
        };
        state.turn(&self.clock)?;
        Ok(has_begun)
    }

    /// How many more rounds have ended here than this rank has submitted.
    pub fn lag(&self) -> u64 {
        let mut state = self.lock.lock();
        // A failure is kept for the calls that return it.
        let _ = state.turn(&self.clock);
        state.rounds.machine.lag()
    }

    /// Drives until something may have come, for a limited time. Returns an error if nothing has
    /// moved for the timeout.
    fn wait(&self, mut state: MutexGuard<'_, State>) -> Result<()> {
        let timeout = self.timeout;
        let now = self.clock.now();
        // Operations under way have their own timeout, whose error names the missing ranks.
        if !state.rounds.is_busy()
            && now.since(state.rounds.moved_at()) > timeout
            && let Some(error) = state.rounds.give_up(now)
        {
            state.fail(&error);
            return Err(error);
        }
        let (limit, ended) = (state.limit(&self.clock), state.rounds.ended_count());
        let manner = state.rounds.manner_waited_for();
        let driving = state.rounds.driving.clone();
        drop(state);
        driving.attend(
            (limit.min(PATIENCE), manner),
            || self.lock.is_stopped(),
            |engine| has_news(engine, ended),
        );
        Ok(())
    }

    /// Waits a short time for another thread of this rank, which is to submit or take a result.
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
        let driving = state.rounds.driving.clone();
        drop(state);
        driving.attend(
            (BESIDE, Manner::Brief),
            || false,
            |engine| has_news(engine, ended),
        );
        Ok(self.lock.lock())
    }
}

impl State {
    fn turn(&mut self, clock: &Clock) -> Result<()> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let turned = self.rounds.turn(clock.now());
        if let Err(error) = &turned {
            self.fail(error);
        }
        self.tell_queue();
        turned
    }

    /// Keeps the first failure, and tells the queue of it.
    fn fail(&mut self, error: &Error) {
        self.failure.get_or_insert_with(|| error.clone());
        self.tell_queue();
    }

    /// Tells the queue that was named, if a result can be taken or the rounds have failed.
    fn tell_queue(&mut self) {
        let is_over = self.rounds.machine.has_result() || self.failure.is_some();
        if let Some(place) = self.place.take_if(|_| is_over) {
            place.end(match &self.failure {
                Some(error) if !self.rounds.machine.has_result() => Err(error.clone()),
                _ => Ok(()),
            });
        }
    }

    /// How long the thread may sleep: until the next deadline, and at most [`IDLE`].
    fn limit(&self, clock: &Clock) -> Duration {
        let now = clock.now();
        let deadline = self.rounds.machine.next_deadline();
        deadline.map_or(IDLE, |deadline| deadline.since(now).min(IDLE))
    }
}

/// Pairs each buffer with its part of the vector. The buffers together are as long as the vector.
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

impl Background for PartialDriving {
    fn run(&self) {
        let _guard = PanicGuard(self);
        // After a failure the thread rests. The failure is kept for the callers.
        let may_rest = || self.lock.has_callers() || self.lock.lock().failure.is_some();
        while !self.lock.is_stopped() {
            if self.lock.rest_while(may_rest) {
                continue;
            }
            let mut state = self.lock.lock();
            if state.turn(&self.clock).is_err() {
                continue;
            }
            let (limit, ended) = (state.limit(&self.clock), state.rounds.ended_count());
            let manner = state.rounds.manner();
            let driving = state.rounds.driving.clone();
            drop(state);
            driving.attend(
                (limit, manner),
                || self.lock.is_stopped() || self.lock.has_callers(),
                |engine| has_news(engine, ended),
            );
        }
    }

    /// If a round needs this rank, the partial allreduce is aborted on all ranks, so that no peer
    /// waits for this one. With `survive` the others notice that this rank leaves, and go on.
    fn stop(&self) {
        let state = self.lock.lock();
        let machine = &state.rounds.machine;
        let is_needed =
            state.rounds.is_busy() || machine.begun() > machine.completed() || machine.is_waiting();
        if is_needed && state.failure.is_none() && !machine.options().survive {
            let round = machine.completed();
            let text = format!("a partial allreduce was dropped in round {round}");
            state.rounds.comm.abort(&text);
        }
        let driving = state.rounds.driving.clone();
        drop(state);
        self.lock.stop();
        driving.ring();
    }
}

/// Tells callers and peers if the thread panics, so that none waits for ever.
struct PanicGuard<'a>(&'a PartialDriving);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut state = self.0.lock.lock();
            let comm = &state.rounds.comm;
            comm.abort("the thread of a partial allreduce panicked");
            // The drop of the place ends it as cancelled, because this thread turns no more.
            state.place = None;
        }
    }
}
