//! An engine of tasks that end with events of one peer, with the interface that `comm/driving.rs`
//! uses. What it does with locks and wake-ups is what the real one does: everything under the lock
//! of [`crate::driving::Driving`].

use crate::error::{Error, Result};
use crate::memory::{View, time_out_one};
use crate::sync::{Arc, AtomicBool, AtomicU32, Ordering};
use crate::time::Time;
use crate::wait::{Bell, QueuePlace, Quota, WaitSource};

#[derive(Clone, Copy, PartialEq)]
pub struct TaskId(usize);

struct Task {
    /// The number of the event with which it ends.
    event: u32,
    result: Option<Result<()>>,
    place: Option<QueuePlace>,
}

impl Task {
    fn end(&mut self, result: Result<()>) {
        if let Some(place) = self.place.take() {
            place.end(result.clone(), None);
        }
        self.result = Some(result);
    }
}

pub struct Engine {
    tasks: Vec<Task>,
    bell: View,
    sleeping: View,
    quota: Quota,
    events: Arc<AtomicU32>,
    is_dead: Arc<AtomicBool>,
    handled: u32,
    failure: Option<Error>,
    looks: u32,
}

/// The other rank.
pub struct Peer {
    bell: View,
    sleeping: View,
    quota: Quota,
    events: Arc<AtomicU32>,
    is_dead: Arc<AtomicBool>,
}

impl Peer {
    /// An event, as a message or a signal is.
    pub fn deliver(&self) {
        self.events.fetch_add(1, Ordering::Release);
        let bell = Bell::new(self.bell, self.sleeping);
        bell.wake_when(|| self.quota.count(), || ());
    }

    /// Dies, which rings no bell: somebody's sleep ends and it looks. One sleeper, where in
    /// production each would in time: the first must tell the others.
    pub fn die(&self) {
        self.is_dead.store(true, Ordering::SeqCst);
        while !self.is_noticed() && !time_out_one(self.bell.word32(0)) {
            crate::sync::yield_now();
        }
    }

    fn is_noticed(&self) -> bool {
        !self.is_dead.load(Ordering::SeqCst)
    }
}

impl Engine {
    pub fn new() -> (Engine, Peer) {
        let (bell, sleeping) = (View::new(), View::new());
        let quota = Quota::new(View::new());
        let peer = Peer {
            bell,
            sleeping,
            quota,
            events: Arc::new(AtomicU32::new(0)),
            is_dead: Arc::new(AtomicBool::new(false)),
        };
        let engine = Engine {
            tasks: Vec::new(),
            bell,
            sleeping,
            quota,
            events: peer.events.clone(),
            is_dead: peer.is_dead.clone(),
            handled: 0,
            failure: None,
            looks: 0,
        };
        (engine, peer)
    }

    pub fn wait_source(&self) -> WaitSource {
        WaitSource::Futex {
            bell: self.bell,
            sleeping: self.sleeping,
        }
    }

    pub fn want_anything(&mut self) {
        self.quota.open();
    }

    /// A task needs all events before its own, as a round needs several signals.
    pub fn want_signals(&mut self, is_idle: bool) {
        let running = self.tasks.iter().filter(|t| t.result.is_none());
        let lacking = running.map(|task| task.event.saturating_sub(self.handled));
        match lacking.min() {
            _ if is_idle => unreachable!("no wait of the model is idle"),
            None => self.quota.set(u32::MAX / 4),
            Some(0) => {}
            Some(lacking) => self.quota.set(lacking),
        }
    }

    pub fn submit(&mut self, event: u32) -> TaskId {
        // A sleeping thread knew nothing of it.
        self.quota.open();
        self.tasks.push(Task {
            event,
            result: None,
            place: None,
        });
        TaskId(self.tasks.len() - 1)
    }

    pub fn note_sleep(&mut self) {}

    pub fn next_timeout(&self) -> Option<Time> {
        None
    }

    pub fn drive(&mut self, _now: Time) -> bool {
        let events = self.events.load(Ordering::Acquire);
        let mut moved = events != std::mem::replace(&mut self.handled, events);
        for task in self.tasks.iter_mut().filter(|t| t.result.is_none()) {
            if task.event <= events {
                task.end(Ok(()));
                moved = true;
            }
        }
        moved
    }

    /// Notices a death.
    pub fn drive_slow(&mut self, _now: Time) {
        // A thread that notices, notices once: what the peer waits for before it gives anybody up.
        if self.is_dead.swap(false, Ordering::SeqCst) {
            self.fail(Error::PeerFailed {
                rank: 1,
                cause: "it hung up".into(),
                during: String::new(),
            });
        }
    }

    pub fn drive_slow_if_due(&mut self, now: Time) {
        self.looks += 1;
        if self.looks.is_multiple_of(3) {
            self.drive_slow(now);
        }
    }

    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    fn fail(&mut self, error: Error) {
        if self.failure.is_none() {
            for task in self.tasks.iter_mut().filter(|t| t.result.is_none()) {
                task.end(Err(error.clone()));
            }
            self.failure = Some(error);
        }
    }

    pub fn cancel(&mut self, _task: TaskId) {
        self.fail(Error::Cancelled {
            by: 0,
            operation: "an operation".into(),
        });
    }

    pub fn result(&self, task: TaskId) -> Option<Result<()>> {
        self.tasks[task.0].result.clone()
    }

    pub fn notify(&mut self, task: TaskId, place: QueuePlace) {
        let task = &mut self.tasks[task.0];
        match &task.result {
            Some(result) => place.end(result.clone(), None),
            None => task.place = Some(place),
        }
    }

    pub fn is_idle(&self) -> bool {
        self.tasks.iter().all(|task| task.result.is_some())
    }

    /// The real one forgets the task; a result asked for twice is then an error.
    pub fn release(&mut self, task: TaskId) {
        self.tasks[task.0].result = Some(Err(Error::invalid("it was waited for already")));
    }

    pub fn deregister(&mut self, _key: u32) -> Result<()> {
        Ok(())
    }
}
