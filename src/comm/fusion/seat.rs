//! [`Seat`]: who drives the [`Service`] of a [`Fusion`](super::Fusion).
//!
//! One thread at a time takes the service out of the seat: a caller that waits for the step, else
//! the fusion buffer's own thread. So a caller never waits for another thread to be woken, only for
//! one that is at work to let go: that one looks at `is_wanted`, and the caller rings for it.
//! Anyone who has nothing to do puts the service back and sleeps.

use super::StepReport;
use super::inbox::{Announced, Inbox};
use super::service::{Service, Turn};
use crate::comm::Communicator;
use crate::comm::raw::RawBuffer;
use crate::error::{Error, Result};
use crate::time::Time;
use crate::wait::Background;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

/// What callers and the thread share.
#[derive(Debug)]
pub struct Seat {
    state: Mutex<State>,
    /// The thread waits here for something to do.
    wake: Condvar,
    /// Callers wait here for the step, or for the service to be put back.
    done: Condvar,
    /// A caller waits, or the thread is to end: it lets go of the service.
    is_wanted: AtomicBool,
    /// To wake the thread where it waits for an operation.
    comm: Communicator,
}

#[derive(Debug)]
struct State {
    /// `None` while somebody drives it, and when it has ended.
    service: Option<Box<Service>>,
    inbox: Inbox,
    is_announced: Vec<bool>,
    announced_count: usize,
    /// Callers inside `wait`.
    waiters_count: usize,
    /// The thread sleeps, until this time if there is one.
    asleep_until: Option<Option<Time>>,
    is_stopped: bool,
    report: Option<StepReport>,
    failure: Option<Error>,
}

impl Seat {
    pub fn new(comm: Communicator, service: Service, tensors_count: usize) -> Seat {
        Seat {
            state: Mutex::new(State {
                service: Some(Box::new(service)),
                inbox: Inbox::with_capacity(tensors_count),
                is_announced: vec![false; tensors_count],
                announced_count: 0,
                waiters_count: 0,
                asleep_until: None,
                is_stopped: false,
                report: None,
                failure: None,
            }),
            wake: Condvar::new(),
            done: Condvar::new(),
            is_wanted: AtomicBool::new(false),
            comm,
        }
    }

    /// Hands a tensor to the service; false if it may not be announced now.
    pub fn announce(&self, tensor: usize, buffer: &RawBuffer, now: Time) -> Result<bool> {
        let mut state = self.lock();
        state.check()?;
        if state.inbox.ended_at.is_some() || state.is_announced[tensor] {
            return Ok(false);
        }
        let announced = Announced::new(buffer)?;
        state.is_announced[tensor] = true;
        state.announced_count += 1;
        state.inbox.tensors.push((tensor, announced, now));
        if !state.can_wait(now) {
            self.tell(&state);
        }
        Ok(true)
    }

    pub fn end(&self, now: Time) -> Result<()> {
        let mut state = self.lock();
        state.check()?;
        if state.inbox.ended_at.is_none() {
            state.inbox.ended_at = Some(now);
            self.tell(&state);
        }
        Ok(())
    }

    /// Ends the backward pass, drives until the step is over, and begins the next one.
    pub fn wait(&self, now: Time) -> Result<StepReport> {
        let mut state = self.lock();
        state.check()?;
        state.inbox.ended_at.get_or_insert(now);
        state.waiters_count += 1;
        // Relaxed: a hint; the lock hands the service over.
        self.is_wanted.store(true, Ordering::Relaxed);
        let result = loop {
            if let Some(report) = state.report.take() {
                state.begin_step();
                break Ok(report);
            }
            if let Err(error) = state.check() {
                break Err(error);
            }
            state = match state.service.take() {
                Some(service) => {
                    drop(state);
                    self.drive_as_caller(service)
                }
                None => {
                    self.comm.ring();
                    self.done.wait(state).expect("no holder panics")
                }
            };
        };
        state.waiters_count -= 1;
        match state.waiters_count {
            0 => self.is_wanted.store(false, Ordering::Relaxed),
            _ => self.done.notify_all(),
        }
        if state.failure.is_some() || state.has_news() {
            self.wake.notify_one();
        }
        result
    }

    pub fn stop(&self) {
        self.lock().is_stopped = true;
        self.is_wanted.store(true, Ordering::Relaxed);
        self.comm.ring();
        self.wake.notify_one();
    }

    /// The thread: drives while no caller waits, until stopped or failed.
    pub fn run(&self) {
        let guard = PanicGuard(self);
        let mut state = self.lock();
        while !state.is_stopped && state.failure.is_none() {
            let is_free = state.waiters_count == 0;
            let Some(mut service) = state.service.take_if(|_| is_free) else {
                state = self.sleep(state, None);
                continue;
            };
            drop(state);
            self.hand_over(service.inbox());
            let mut turn = service.turn(|| self.is_wanted.load(Ordering::Relaxed));
            let clock = service.clock().clone();
            state = self.put_back(service, &mut turn);
            if state.waiters_count > 0 {
                self.done.notify_all();
            }
            let is_idle = state.waiters_count == 0 && !state.has_news() && !state.is_stopped;
            if let (Ok(Turn::Idle(deadline)), true) = (&turn, is_idle) {
                let limit = deadline.map(|deadline| (deadline, clock.now()));
                state = self.sleep(state, limit);
            }
        }
        // A caller that has found the failure has put it back; one that has panicked has not.
        let service = state.service.take();
        (state.inbox.tensors.drain(..)).for_each(|(_, announced, _)| announced.end());
        drop(state);
        if let Some(mut service) = service {
            service.abandon();
        }
        drop(guard);
    }

    /// What was announced since the last time.
    fn hand_over(&self, taken: &mut Inbox) {
        let mut state = self.lock();
        std::mem::swap(&mut state.inbox.tensors, &mut taken.tensors);
        // Until a caller has taken the report of the last step, the end is still that step's.
        taken.ended_at = state.inbox.ended_at.filter(|_| state.report.is_none());
    }

    /// Turns until the step is over or nothing can be done.
    fn drive_as_caller(&self, mut service: Box<Service>) -> MutexGuard<'_, State> {
        let guard = PanicGuard(self);
        let mut turn = loop {
            self.hand_over(service.inbox());
            match service.turn(|| false) {
                Ok(Turn::Again) => {}
                other => break other,
            }
        };
        let clock = service.clock().clone();
        let mut state = self.put_back(service, &mut turn);
        drop(guard);
        // Others that wait go on waiting: this one leaves, or is told what they would be told.
        if let (Ok(Turn::Idle(deadline)), false) = (&turn, state.has_news()) {
            state = match deadline {
                Some(deadline) => {
                    let limit = deadline.since(clock.now());
                    let woken = self.done.wait_timeout(state, limit);
                    woken.expect("no holder panics").0
                }
                None => self.done.wait(state).expect("no holder panics"),
            };
        }
        state
    }

    /// Ends somebody's turns. A report moves from the last of them to where callers wait for it.
    fn put_back(&self, service: Box<Service>, turn: &mut Result<Turn>) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.service = Some(service);
        match turn {
            Ok(Turn::Published(report)) => state.report = Some(std::mem::take(report)),
            Ok(_) => {}
            Err(error) => {
                state.failure.get_or_insert(error.clone());
            }
        }
        state
    }

    /// The thread sleeps until it is told something, or until a deadline, given with the time now.
    fn sleep<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        deadline: Option<(Time, Time)>,
    ) -> MutexGuard<'a, State> {
        state.asleep_until = Some(deadline.map(|(deadline, _)| deadline));
        let mut state = match deadline {
            Some((deadline, now)) => {
                let woken = self.wake.wait_timeout(state, deadline.since(now));
                woken.expect("no holder panics").0
            }
            None => self.wake.wait(state).expect("no holder panics"),
        };
        state.asleep_until = None;
        state
    }

    /// Wakes anyone who is to drive, if it sleeps.
    fn tell(&self, state: &State) {
        if state.waiters_count > 0 {
            self.done.notify_all();
        } else if state.asleep_until.is_some() {
            self.wake.notify_one();
        }
    }

    fn fail(&self, error: Error) {
        self.lock().failure.get_or_insert(error);
        self.wake.notify_one();
        self.done.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }
}

impl State {
    fn check(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    fn begin_step(&mut self) {
        self.is_announced.fill(false);
        self.announced_count = 0;
        self.inbox.ended_at = None;
    }

    /// Whether the service has not been told of everything.
    fn has_news(&self) -> bool {
        let is_end_told = self.service.as_ref().is_none_or(|s| s.is_end_told());
        let is_end_new = self.inbox.ended_at.is_some() && !is_end_told;
        self.report.is_none() && (is_end_new || !self.inbox.tensors.is_empty())
    }

    /// Whether nobody need be woken for the last tensor of a step: the thread will be in time for
    /// what is due, and the caller is about to wait for the step, in which it drives. Waking the
    /// thread now would have both want the core.
    fn can_wait(&mut self, now: Time) -> bool {
        let (Some(service), Some(Some(until))) = (&mut self.service, self.asleep_until) else {
            return false;
        };
        if self.announced_count < self.is_announced.len() || self.report.is_some() {
            return false;
        }
        service.take(&mut self.inbox);
        !service.is_due(now) && service.next_deadline().is_none_or(|due| until <= due)
    }
}

impl Background for Seat {
    fn run(&self) {
        Seat::run(self);
    }

    fn stop(&self) {
        Seat::stop(self);
    }
}

/// Tells callers of a panic, so that none waits for ever.
struct PanicGuard<'a>(&'a Seat);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let text =
                "a thread that drove a fusion buffer panicked, and said why on standard error";
            self.0.fail(Error::internal(text));
        }
    }
}
