//! [`Bell`]: on it a thread sleeps until a peer, or another thread of its rank, wakes it.
//!
//! `tests/loom.rs` compiles this file, and finds a lost wake-up if one of the fences is missing.

use super::{futex_wait, futex_wake_all};
use crate::kernel;
use crate::memory::View;
use crate::sync::{Ordering, fence};
use std::time::Duration;

/// Two words that processes share: one to sleep on, and the number of threads that sleep.
///
/// A waker stores what the sleeper waits for, makes a fence, and looks at the number. A sleeper
/// counts itself, makes a fence, and looks for what it waits for. At least one of the two sees the
/// other's store, so no wake-up is lost, and a waker makes no system call while no thread sleeps.
/// The fences order everything, so the accesses to the words are relaxed.
#[derive(Clone, Copy, Debug)]
pub struct Bell {
    /// Changes with every wake-up.
    count: View,
    /// Threads that sleep or are about to.
    sleeping: View,
}

impl Bell {
    /// Makes a bell of these two words. The caller keeps them mapped.
    pub fn new(count: View, sleeping: View) -> Bell {
        Bell { count, sleeping }
    }

    /// Wakes every thread that sleeps. The caller has stored what they wait for.
    #[inline]
    pub fn wake(&self) {
        self.wake_when(|| true, || {});
    }

    /// Wakes every thread that sleeps, if `is_wanted` returns true. `is_wanted` is called only if a
    /// thread sleeps. `also` may make a system call; it is called right before the wake-up.
    #[inline]
    pub fn wake_when(&self, is_wanted: impl FnOnce() -> bool, also: impl FnOnce()) {
        fence(Ordering::SeqCst);
        self.wake_after_fence(is_wanted, also);
    }

    /// As [`Bell::wake_when`], for a caller that has made a sequentially consistent fence since it
    /// stored: one fence serves many bells.
    #[inline]
    pub fn wake_after_fence(&self, is_wanted: impl FnOnce() -> bool, also: impl FnOnce()) {
        let sleeping = kernel::word32(&self.sleeping, 0);
        if sleeping.load(Ordering::Relaxed) != 0 && is_wanted() {
            also();
            let count = kernel::word32(&self.count, 0);
            count.fetch_add(1, Ordering::Relaxed);
            futex_wake_all(count);
        }
    }

    /// Counts the caller as a sleeper, and returns the value of [`Bell::count`]. The caller then
    /// looks for what it waits for. If a waker stores it after that look, the waker also changes
    /// the count, so the caller sleeps only while the count has the returned value.
    pub fn enter(&self) -> u32 {
        let before = kernel::word32(&self.count, 0).load(Ordering::Relaxed);
        kernel::word32(&self.sleeping, 0).fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        before
    }

    /// Ends the sleep of the caller: it is not counted as a sleeper any more.
    pub fn leave(&self) {
        kernel::word32(&self.sleeping, 0).fetch_sub(1, Ordering::Relaxed);
    }

    /// Sleeps until the bell is rung, for `time` at most. It does not sleep if `has_news` returns
    /// true, which is called after the thread has been counted as a sleeper.
    pub fn sleep(&self, time: Duration, has_news: impl FnOnce() -> bool) {
        let before = self.enter();
        if !has_news() {
            futex_wait(kernel::word32(&self.count, 0), before, time);
        }
        self.leave();
    }

    /// The word that changes with every wake-up.
    pub fn count(&self) -> View {
        self.count
    }
}
