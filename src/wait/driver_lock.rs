//! [`DriverLock`]: decides whether a caller or a background thread drives.
//!
//! A caller that waits drives by itself, so that no other thread has to be woken for it. The
//! background thread drives while no caller does, and rests while a caller drives or there is
//! nothing to drive.
//!
//! `tests/shuttle.rs` compiles this file with the locks of shuttle.

use crate::sync::{
    AtomicBool, AtomicU32, Condvar, Mutex, MutexGuard, Ordering, PoisonError, TryLockError,
};

/// Holds what callers and a background thread drive in turn, behind one lock.
#[derive(Debug)]
pub struct DriverLock<T> {
    driven: Mutex<T>,
    /// Number of callers that wait. Each of them drives.
    callers: AtomicU32,
    is_stopped: AtomicBool,
    /// Whether the thread rests.
    is_resting: Mutex<bool>,
    rest: Condvar,
}

/// A caller that drives until this is dropped. The drop does not wake a thread that rests because
/// of the caller; [`DriverLock::end_rest`] wakes it.
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

    /// Takes what is driven, also after another thread has panicked with the lock. The guard of
    /// that thread tells the callers of the panic.
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

    /// Counts the caller as one that drives, until the result is dropped. Until then the thread
    /// does not drive.
    pub fn enter(&self) -> Caller<'_> {
        self.callers.fetch_add(1, Ordering::Relaxed);
        Caller(&self.callers)
    }

    /// Calls `wait`, in which the caller drives. Afterwards the thread drives again.
    pub fn driving<R>(&self, wait: impl FnOnce() -> R) -> R {
        let caller = self.enter();
        let result = wait();
        drop(caller);
        if !self.has_callers() {
            self.end_rest();
        }
        result
    }

    /// Whether a caller drives. This is a hint only: the lock orders what the threads do.
    pub fn has_callers(&self) -> bool {
        self.callers.load(Ordering::Relaxed) > 0
    }

    /// Tells the thread to end, and ends its rest. If the thread may sleep on something else, the
    /// caller wakes it there afterwards.
    pub fn stop(&self) {
        // Relaxed: the lock of the rest orders it, or else the means by which the caller wakes the
        // thread.
        self.is_stopped.store(true, Ordering::Relaxed);
        self.end_rest();
    }

    /// Whether the thread was told to end.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Called by the thread: rests until it is stopped or `may_rest` returns false. Returns whether
    /// it has rested. Another thread that makes `may_rest` false calls [`DriverLock::end_rest`]
    /// afterwards, without holding the lock.
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

    /// Wakes a thread that rests, so that it calls `may_rest` again.
    pub fn end_rest(&self) {
        let is_resting = (self.is_resting.lock()).unwrap_or_else(PoisonError::into_inner);
        if *is_resting {
            self.rest.notify_one();
        }
    }
}
