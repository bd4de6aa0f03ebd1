//! [`DriverLock`]: who drives, where callers and a thread of its own may.
//!
//! A caller that waits drives by itself, so that no other thread has to be woken for it; the thread
//! drives while no caller does, and rests while there is nothing to drive.
//!
//! `tests/shuttle.rs` compiles this file against shuttle's locks.

use crate::sync::{
    AtomicBool, AtomicU32, Condvar, Mutex, MutexGuard, Ordering, PoisonError, TryLockError,
};

/// What callers and a thread drive in turn, behind one lock.
#[derive(Debug)]
pub struct DriverLock<T> {
    driven: Mutex<T>,
    /// Callers that wait, each of which drives.
    callers: AtomicU32,
    is_stopped: AtomicBool,
    /// The thread rests.
    is_resting: Mutex<bool>,
    rest: Condvar,
}

/// A caller that drives, until this is dropped. A thread that rests because of it is not woken by
/// that: [`DriverLock::end_rest`] does.
#[derive(Debug)]
pub struct Caller<'a>(&'a AtomicU32);

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<T> DriverLock<T> {
    pub fn new(driven: T) -> DriverLock<T> {
        DriverLock {
            driven: Mutex::new(driven),
            callers: AtomicU32::new(0),
            is_stopped: AtomicBool::new(false),
            is_resting: Mutex::new(false),
            rest: Condvar::new(),
        }
    }

    /// Takes what is driven. After a panic of another thread too: what that panic has broken is
    /// told by its own guard.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.driven.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what is driven, unless another thread has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.driven.try_lock() {
            Ok(driven) => Some(driven),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// From now on the caller drives, and the thread does not, until the result is dropped.
    pub fn enter(&self) -> Caller<'_> {
        self.callers.fetch_add(1, Ordering::Relaxed);
        Caller(&self.callers)
    }

    /// Whether a caller drives. A hint; the lock orders what threads do.
    pub fn has_callers(&self) -> bool {
        self.callers.load(Ordering::Relaxed) > 0
    }

    /// Tells the thread to end. The caller wakes it where it sleeps on something else.
    pub fn stop(&self) {
        // Relaxed: the lock of the rest orders it, or what the caller wakes the thread by.
        self.is_stopped.store(true, Ordering::Relaxed);
        self.end_rest();
    }

    /// Whether the thread was told to end.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// The thread rests until it is stopped or `may_rest` is false; whether it has. A thread that
    /// makes `may_rest` false calls [`DriverLock::end_rest`] afterwards, without the lock.
    pub fn rest_while(&self, may_rest: impl Fn() -> bool) -> bool {
        let mut is_resting = (self.is_resting.lock()).unwrap_or_else(PoisonError::into_inner);
        let may_rest = || !self.is_stopped() && may_rest();
        let has_rested = may_rest();
        while may_rest() {
            *is_resting = true;
            is_resting = (self.rest.wait(is_resting)).unwrap_or_else(PoisonError::into_inner);
            *is_resting = false;
        }
        has_rested
    }

    /// Lets a thread that rests look again.
    pub fn end_rest(&self) {
        let is_resting = (self.is_resting.lock()).unwrap_or_else(PoisonError::into_inner);
        if *is_resting {
            self.rest.notify_one();
        }
    }
}
