//! [`Family`]: the communicators of a process that are driven together, and the one thread that
//! drives all of them while no caller waits.
//!
//! A thread that waits on one member also drives the others. Otherwise two ranks could wait for
//! each other: rank 0 starts an operation on A and waits on B, while rank 1 waits on A first.
//!
//! `tests/shuttle.rs` compiles this file against shuttle's locks.

use crate::sync::{Arc, AtomicU32, Ordering, Weak, yield_now};
use crate::wait::{Alarm, Background, Clock, DriverLock, Patience, SpinTime, Step};
use std::time::Duration;

/// Longest sleep of the progress thread while something is under way; wake-ups cut it short.
const PROGRESS_SLEEP: Duration = Duration::from_millis(50);

/// What a family drives.
pub(crate) trait Member: Send + Sync {
    /// Drives once, unless another thread does now; whether anything moved.
    fn try_drive(&self) -> bool;
    /// Drives once for a thread that is about to sleep; whether anything moved.
    fn drive(&self) -> bool;
    /// Wakes the futures whose operation has ended.
    fn wake_watchers(&self);
    /// Whether nothing is under way.
    fn is_idle(&self) -> bool;
    /// What its threads sleep on; `None` in a simulation.
    fn alarm(&self) -> Option<&Alarm>;
    /// Sleeps until something may have arrived for a member of the family, unless `is_over`.
    fn sleep(&self, time: Duration, is_over: &dyn Fn() -> bool);
}

/// The communicators of one process that come from one another (split, sibling, rebuild). A
/// communicator that has a thread of its own to drive it is no member.
#[derive(Debug)]
pub(crate) struct Family {
    clock: Clock,
    /// Number of living members. A wait reads only this as long as there is just one.
    members_count: AtomicU32,
    /// Its callers are the threads that wait on any member.
    members: DriverLock<Vec<Weak<dyn Member>>>,
}

impl Family {
    /// Without members.
    pub fn new(clock: Clock) -> Family {
        Family {
            clock,
            members_count: AtomicU32::new(0),
            members: DriverLock::new(Vec::new()),
        }
    }

    /// Takes a member in.
    pub fn join(&self, member: &Arc<impl Member + 'static>) {
        let member: Weak<dyn Member> = Arc::downgrade(member) as _;
        self.change(|members| members.push(member));
    }

    /// Removes a member. Does nothing if it is none.
    pub fn leave(&self, member: &dyn Member) {
        self.change(|members| members.retain(|known| !std::ptr::addr_eq(known.as_ptr(), member)));
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Weak<dyn Member>>)) {
        let mut members = self.members.lock();
        members.retain(|known| known.strong_count() > 0);
        change(&mut members);
        // Relaxed: it only hints whether to look at the list, whose lock orders everything.
        self.members_count
            .store(members.len() as u32, Ordering::Relaxed);
    }

    /// Whether there is more than one member.
    #[inline]
    pub fn has_others(&self) -> bool {
        self.members_count.load(Ordering::Relaxed) > 1
    }

    /// Drives every member but `own` that no other thread drives now; whether anything moved.
    pub fn drive(&self, own: Option<&dyn Member>) -> bool {
        // The thread that has the list drives all of them.
        let Some(members) = self.members.try_lock() else {
            return false;
        };
        let others = members.iter().filter_map(Weak::upgrade);
        let others = others.filter(|other| is_other(other, own));
        let mut moved = false;
        others.for_each(|other| moved |= other.try_drive());
        moved
    }

    /// Every member but `own`.
    pub fn others(&self, own: Option<&dyn Member>) -> Vec<Arc<dyn Member>> {
        let members = self.members.lock();
        let others = members.iter().filter_map(Weak::upgrade);
        others.filter(|other| is_other(other, own)).collect()
    }

    /// Whether nothing is under way. The progress thread asks this before it rests, and never waits
    /// for the list: a thread that has the list may start an operation, and then waits until it can
    /// end this rest.
    fn is_idle(&self) -> bool {
        let Some(members) = self.members.try_lock() else {
            return false;
        };
        let alive: Vec<_> = members.iter().filter_map(Weak::upgrade).collect();
        drop(members);
        alive.iter().all(|member| member.is_idle())
    }

    /// Until the result is dropped, the caller waits and drives, and the progress thread does not
    /// drive.
    pub fn enter(&self) -> crate::wait::Caller<'_> {
        self.members.enter()
    }

    /// Ends the rest of the progress thread, if there is one, because something is under way.
    pub fn end_rest(&self) {
        self.members.end_rest();
    }

    /// Wakes the threads that wait, if there are any.
    pub fn ring_callers(&self) {
        if self.members.has_callers() {
            self.ring();
        }
    }

    /// Wakes every thread that sleeps on a member.
    pub fn ring(&self) {
        for member in self.others(None) {
            if let Some(alarm) = member.alarm() {
                alarm.wake();
            }
        }
    }
}

fn is_other(member: &Arc<dyn Member>, own: Option<&dyn Member>) -> bool {
    own.is_none_or(|own| !std::ptr::addr_eq(Arc::as_ptr(member), own))
}

/// The progress thread: it drives while no caller waits, and rests while nothing is under way, so
/// that signals of peers do not wake it for nothing.
impl Background for Family {
    fn run(&self) {
        let mut patience = Patience::new(&SpinTime::new(usize::MAX, 1));
        while !self.members.is_stopped() {
            let moved = !self.members.has_callers() && self.drive(None);
            let members = self.others(None);
            members.iter().for_each(|member| member.wake_watchers());
            if moved {
                patience.reset();
                continue;
            }
            match patience.next(self.clock.now()) {
                Step::Spin | Step::Yield => {
                    drop(members);
                    yield_now();
                }
                Step::Sleep(_) => {
                    drop(members);
                    if self.members.rest_while(|| self.is_idle()) {
                        patience.reset();
                    } else if let Some(first) = self.others(None).first() {
                        first.sleep(PROGRESS_SLEEP, &|| self.members.is_stopped());
                    }
                }
            }
        }
    }

    fn stop(&self) {
        self.members.stop();
        self.ring();
    }
}
