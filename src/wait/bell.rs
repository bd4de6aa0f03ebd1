//! [`Bell`]: how a rank sleeps until a peer, or another of its threads, has something for it.
//!
//! `tests/loom.rs` compiles this file and finds a lost wake-up as soon as one of the fences is
//! missing.

use super::{futex_wait, futex_wake_all};
use crate::kernel;
use crate::memory::View;
use crate::sync::{Ordering, fence};
use std::time::Duration;

/// Two words that processes share: one to sleep on, and the number of threads that sleep.
///
/// A waker stores what the sleeper waits for, fences and looks at the number; a sleeper counts
/// itself, fences and looks for what it waits for. At least one of the two sees the other's store,
/// so no wake-up is lost, and a waker makes no system call while nobody sleeps. The fences order
/// everything; the words themselves are relaxed.
#[derive(Clone, Copy, Debug)]
pub struct Bell {
    /// Changes with every wake-up.
    count: View,
    /// Threads that sleep or are about to.
    sleeping: View,
}

impl Bell {
    /// The bell made of these two words, which its maker keeps mapped.
    pub fn new(count: View, sleeping: View) -> Bell {
        Bell { count, sleeping }
    }

    /// Wakes every thread that sleeps. The caller has stored what they wait for.
    #[inline]
    pub fn wake(&self) {
        self.wake_when(|| true, || {});
    }

    /// Wakes every thread that sleeps, if `is_wanted`, which is asked only while one does; `also`,
    /// a system call, is done before that.
    #[inline]
    pub fn wake_when(&self, is_wanted: impl FnOnce() -> bool, also: impl FnOnce()) {
        fence(Ordering::SeqCst);
        let sleeping = kernel::word32(&self.sleeping, 0);
        if sleeping.load(Ordering::Relaxed) != 0 && is_wanted() {
            also();
            let count = kernel::word32(&self.count, 0);
            count.fetch_add(1, Ordering::Relaxed);
            futex_wake_all(count);
        }
    }

    /// Counts the caller as a sleeper. What it does not see after this wakes it: by another value
    /// of [`Bell::count`] than the one returned.
    pub fn enter(&self) -> u32 {
        let before = kernel::word32(&self.count, 0).load(Ordering::Relaxed);
        kernel::word32(&self.sleeping, 0).fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        before
    }

    /// The caller sleeps no more.
    pub fn leave(&self) {
        kernel::word32(&self.sleeping, 0).fetch_sub(1, Ordering::Relaxed);
    }

    /// Sleeps until the bell is rung, at most `time`, unless `has_news`, which is asked once the
    /// thread is counted.
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
