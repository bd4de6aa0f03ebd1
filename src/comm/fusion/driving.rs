//! [`FusionDriving`]: who drives the [`Service`] of a [`Fusion`](super::Fusion), and what callers
//! tell it.
//!
//! A caller that waits for the step drives, else the fusion buffer's own thread. So a caller waits
//! for the thread only where that is in the middle of a turn: the thread sees that a caller is
//! there, and the caller rings for it. Announcing takes another lock than driving, so it never
//! waits for a turn.
//!
//! Locks, in this order: the service, then the board. A thread that has the board only tries the
//! service.

use super::StepReport;
use super::inbox::{Announced, Inbox};
use super::service::{Service, Turn};
use crate::comm::Communicator;
use crate::comm::raw::RawBuffer;
use crate::error::{Error, Result};
use crate::time::Time;
use crate::wait::{Background, DriverLock};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What callers and the thread share.
#[derive(Debug)]
pub struct FusionDriving {
    lock: DriverLock<Service>,
    board: Mutex<Board>,
    /// The thread, or a caller that drives, waits here for something to do.
    news: Condvar,
    /// To wake the thread where it waits for an operation.
    comm: Communicator,
}

/// What the service is told, and what it says.
#[derive(Debug)]
struct Board {
    inbox: Inbox,
    is_announced: Vec<bool>,
    announced_count: usize,
    /// The service knows that the backward pass of this step has ended.
    is_end_told: bool,
    /// The thread sleeps, until this time if there is one.
    asleep_until: Option<Option<Time>>,
    report: Option<StepReport>,
    failure: Option<Error>,
    /// A thread that drove has panicked: what the service has under way is not known.
    has_panicked: bool,
}

impl FusionDriving {
    pub fn new(comm: Communicator, service: Service, tensors_count: usize) -> FusionDriving {
        FusionDriving {
            lock: DriverLock::new(service),
            board: Mutex::new(Board {
                inbox: Inbox::with_capacity(tensors_count),
                is_announced: vec![false; tensors_count],
                announced_count: 0,
                is_end_told: false,
                asleep_until: None,
                report: None,
                failure: None,
                has_panicked: false,
            }),
            news: Condvar::new(),
            comm,
        }
    }

    /// Hands a tensor to the service; false if it may not be announced now.
    pub fn announce(&self, tensor: usize, buffer: &RawBuffer, now: Time) -> Result<bool> {
        let mut board = self.board();
        board.check()?;
        if board.inbox.ended_at.is_some() || board.is_announced[tensor] {
            return Ok(false);
        }
        let announced = Announced::new(buffer)?;
        board.is_announced[tensor] = true;
        board.announced_count += 1;
        board.inbox.tensors.push((tensor, announced, now));
        if !self.can_wait(&mut board, now) {
            self.tell();
        }
        Ok(true)
    }

    /// The backward pass has ended.
    pub fn end(&self, now: Time) -> Result<()> {
        let mut board = self.board();
        board.check()?;
        if board.inbox.ended_at.is_none() {
            board.inbox.ended_at = Some(now);
            self.tell();
        }
        Ok(())
    }

    /// Ends the backward pass, drives until the step is over, and begins the next one.
    pub fn wait(&self, now: Time) -> Result<StepReport> {
        {
            let mut board = self.board();
            board.check()?;
            board.inbox.ended_at.get_or_insert(now);
        }
        let caller = self.lock.enter();
        let result = self.drive_as_caller();
        drop(caller);
        // After the drop: a thread that announces later finds no caller, and ends the rest itself.
        let board = self.board();
        if board.failure.is_some() || board.has_news() {
            self.lock.end_rest();
        }
        result
    }

    fn drive_as_caller(&self) -> Result<StepReport> {
        let mut service = self.lock.try_lock().unwrap_or_else(|| {
            self.comm.ring();
            self.lock.lock()
        });
        let _guard = PanicGuard(self);
        loop {
            let mut board = self.board();
            if let Some(report) = board.report.take() {
                board.begin_step();
                return Ok(report);
            }
            board.check()?;
            board.hand_over(service.inbox());
            drop(board);
            let turn = service.turn(|| false);
            let mut board = self.board();
            if let Some(deadline) = board.publish(turn)
                && !board.has_news()
            {
                drop(self.sleep(board, limit_of(deadline, &service)));
            }
        }
    }

    /// What was announced last may stay until a caller waits: the thread is in time for what is
    /// due, and the caller is about to wait for the step, in which it drives. Waking the thread now
    /// would have both want the core.
    fn can_wait(&self, board: &mut Board, now: Time) -> bool {
        let Some(Some(until)) = board.asleep_until else {
            return false;
        };
        if board.announced_count < board.is_announced.len() || board.report.is_some() {
            return false;
        }
        let Some(mut service) = self.lock.try_lock() else {
            return false;
        };
        service.take(&mut board.inbox);
        !service.is_due(now) && service.next_deadline().is_none_or(|due| until <= due)
    }

    /// Wakes the thread that is to drive, if it sleeps. The caller has the board.
    fn tell(&self) {
        self.news.notify_all();
        if !self.lock.has_callers() {
            self.lock.end_rest();
        }
    }

    /// Sleeps until something is announced, at most `limit`.
    fn sleep<'a>(
        &self,
        board: MutexGuard<'a, Board>,
        limit: Option<Duration>,
    ) -> MutexGuard<'a, Board> {
        match limit {
            Some(limit) => {
                let woken = self.news.wait_timeout(board, limit);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
            None => (self.news.wait(board)).unwrap_or_else(PoisonError::into_inner),
        }
    }

    fn fail(&self, error: Error) {
        let mut board = self.board();
        board.failure.get_or_insert(error);
        board.has_panicked = true;
        self.news.notify_all();
        self.lock.end_rest();
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread drives while no caller waits, until it is stopped or the service has failed.
impl Background for FusionDriving {
    fn run(&self) {
        let guard = PanicGuard(self);
        while !self.lock.is_stopped() && self.board().failure.is_none() {
            self.lock.rest_while(|| self.lock.has_callers());
            let mut service = self.lock.lock();
            self.board().hand_over(service.inbox());
            let is_wanted = || self.lock.has_callers() || self.lock.is_stopped();
            let turn = service.turn(is_wanted);
            let mut board = self.board();
            let Some(deadline) = board.publish(turn) else {
                continue;
            };
            if is_wanted() || board.has_news() {
                continue;
            }
            let limit = limit_of(deadline, &service);
            drop(service);
            board.asleep_until = Some(deadline);
            let mut board = self.sleep(board, limit);
            board.asleep_until = None;
        }
        let mut service = self.lock.lock();
        let mut board = self.board();
        (board.inbox.tensors.drain(..)).for_each(|(_, announced, _)| announced.end());
        let has_panicked = board.has_panicked;
        drop(board);
        if !has_panicked {
            service.abandon();
        }
        drop(guard);
    }

    fn stop(&self) {
        self.lock.stop();
        self.comm.ring();
        // With the board: the thread has not yet looked, or sleeps.
        let _board = self.board();
        self.news.notify_all();
    }
}

impl Board {
    fn check(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    fn begin_step(&mut self) {
        self.is_announced.fill(false);
        self.announced_count = 0;
        self.inbox.ended_at = None;
        self.is_end_told = false;
    }

    /// Whether the service has not been told of everything.
    fn has_news(&self) -> bool {
        let is_end_new = self.inbox.ended_at.is_some() && !self.is_end_told;
        self.report.is_none() && (is_end_new || !self.inbox.tensors.is_empty())
    }

    /// Gives the service what was announced since the last time.
    fn hand_over(&mut self, taken: &mut Inbox) {
        std::mem::swap(&mut self.inbox.tensors, &mut taken.tensors);
        // Until a caller has taken the report of the last step, the end is still that step's.
        taken.ended_at = self.inbox.ended_at.filter(|_| self.report.is_none());
        self.is_end_told |= taken.ended_at.is_some();
    }

    /// Keeps what a turn has brought. If nothing is left to do: until when, if there is a time.
    fn publish(&mut self, turn: Result<Turn>) -> Option<Option<Time>> {
        match turn {
            Ok(Turn::Again) => return None,
            Ok(Turn::Idle(deadline)) => return Some(deadline),
            Ok(Turn::Published(report)) => self.report = Some(report),
            Err(error) => {
                self.failure.get_or_insert(error);
            }
        }
        None
    }
}

/// How long it is until a deadline.
fn limit_of(deadline: Option<Time>, service: &Service) -> Option<Duration> {
    deadline.map(|deadline| deadline.since(service.clock().now()))
}

/// Tells callers of a panic, so that none waits for ever.
struct PanicGuard<'a>(&'a FusionDriving);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let text =
                "a thread that drove a fusion buffer panicked, and said why on standard error";
            self.0.fail(Error::internal(text));
        }
    }
}
