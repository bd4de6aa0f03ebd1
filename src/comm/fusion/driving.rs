//! [`FusionDriving`]: which thread drives the [`Service`] of a [`Fusion`](super::Fusion), and the
//! [`Board`] through which callers and the service tell each other news.
//!
//! A caller that waits for the step drives; while none waits, the fusion buffer's own thread
//! drives. If the thread is in the middle of a turn when a caller comes, the caller rings, and the
//! thread ends its turn. Announcing takes the lock of the board only, so it never waits for a turn.
//!
//! A thread that needs both locks takes the driver lock first, then the board. A thread that
//! already has the board only tries the driver lock.

use super::StepReport;
use super::inbox::{Announced, Inbox};
use super::service::{Service, Turn};
use crate::comm::Communicator;
use crate::comm::queue::{CompletionQueue, PlaceApart};
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
    /// Rung to wake the thread while it waits for an operation.
    comm: Communicator,
}

/// What callers tell the service, and what the service tells callers.
#[derive(Debug)]
struct Board {
    inbox: Inbox,
    is_announced: Vec<bool>,
    announced_count: usize,
    /// Whether the service knows that the backward pass of this step has ended.
    is_end_told: bool,
    /// `Some`: the thread sleeps, until this time if there is one. `None`: it is awake.
    asleep_until: Option<Option<Time>>,
    report: Option<StepReport>,
    failure: Option<Error>,
    /// The place in a queue that is told when there is a report or a failure.
    place: Option<PlaceApart>,
    /// Whether a thread that drove has panicked. What the service has under way is then unknown.
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
                place: None,
                has_panicked: false,
            }),
            news: Condvar::new(),
            comm,
        }
    }

    /// Puts a tensor into the inbox of the service. Returns false if it may not be announced now.
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

    /// Ends the backward pass.
    pub fn end(&self, now: Time) -> Result<()> {
        let mut board = self.board();
        board.check()?;
        if board.inbox.ended_at.is_none() {
            board.inbox.ended_at = Some(now);
            self.tell();
        }
        Ok(())
    }

    /// Has a queue told of the end of the step. Returns false if one is to be told already.
    pub fn notify(&self, queue: &CompletionQueue, user: u64) -> Result<bool> {
        let mut board = self.board();
        if board.place.is_some() {
            return Ok(false);
        }
        board.place = Some(queue.place_apart(user)?);
        board.tell_queue();
        Ok(true)
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
        // The board is read after the drop: a caller that announces later sees that no caller
        // drives, and wakes the thread itself.
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

    /// Whether the tensor that was just announced may stay in the inbox until a caller waits for
    /// the step. That is so if it was the step's last tensor and the thread wakes in time for the
    /// next deadline: the caller will soon wait for the step, and drives then. If the thread woke
    /// now, it would compete with that caller for the core.
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

    /// Wakes the thread that drives, if it sleeps. The caller has the board.
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
        board.tell_queue();
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
        // While this thread has the board, the driving thread has either not yet looked for a stop
        // or sleeps on `news`, so it cannot miss the stop.
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

    /// Tells the queue that was named, if the step is over.
    fn tell_queue(&mut self) {
        if self.report.is_some() || self.failure.is_some() {
            let result = self.check();
            if let Some(place) = self.place.take() {
                place.end(result);
            }
        }
    }

    /// Whether there is something that the service has not been told.
    fn has_news(&self) -> bool {
        let is_end_new = self.inbox.ended_at.is_some() && !self.is_end_told;
        self.report.is_none() && (is_end_new || !self.inbox.tensors.is_empty())
    }

    /// Gives the service what was announced since the last call.
    fn hand_over(&mut self, taken: &mut Inbox) {
        std::mem::swap(&mut self.inbox.tensors, &mut taken.tensors);
        // Until a caller has taken the report of the last step, `ended_at` is the end of that step.
        taken.ended_at = self.inbox.ended_at.filter(|_| self.report.is_none());
        self.is_end_told |= taken.ended_at.is_some();
    }

    /// Keeps the report or the error that a turn has returned. Returns `Some` if nothing is left to
    /// do, with the next deadline if there is one.
    fn publish(&mut self, turn: Result<Turn>) -> Option<Option<Time>> {
        match turn {
            Ok(Turn::Again) => return None,
            Ok(Turn::Idle(deadline)) => return Some(deadline),
            Ok(Turn::Published(report)) => self.report = Some(report),
            Err(error) => {
                self.failure.get_or_insert(error);
            }
        }
        self.tell_queue();
        None
    }
}

/// The time from now until a deadline.
fn limit_of(deadline: Option<Time>, service: &Service) -> Option<Duration> {
    deadline.map(|deadline| deadline.since(service.clock().now()))
}

/// Tells the callers if the thread that holds it panics, so that none waits for ever.
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
