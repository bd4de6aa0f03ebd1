//! [`Bell`]: how a rank sleeps until a peer, or another of its threads, has something for it.
//!
//! `tests/loom.rs` compiles this file and finds a lost wake-up as soon as one of the fences is
//! missing.

use super::{View, futex_wait, futex_wake_all};
use crate::sync::{Ordering, fence};
use std::time::Duration;

/// Two words that processes share: one to sleep on, and the number of those who sleep.
///
/// Anyone who wakes stores what the sleeper waits for, fences and looks at the number; anyone who
/// sleeps counts itself, fences and looks for what it waits for. At least one of the two sees the
/// other's store, so no wake-up is lost, and a waker makes no system call while nobody sleeps. The
/// fences order everything; the words themselves are relaxed.
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

    /// Wakes anyone who sleeps. The caller has stored what they wait for.
    #[inline]
    pub fn wake(&self) {
        self.wake_after(|| {});
    }

    /// The same; `also`, a system call, is done first if anybody sleeps.
    #[inline]
    pub fn wake_after(&self, also: impl FnOnce()) {
        self.wake_when(|| true, also);
    }

    /// The same, if `is_wanted` too, which is asked only if anybody sleeps.
    #[inline]
    pub fn wake_when(&self, is_wanted: impl FnOnce() -> bool, also: impl FnOnce()) {
        fence(Ordering::SeqCst);
        // SAFETY: who made the bell keeps its words mapped; they are only accessed as atomics.
        let sleeping = unsafe { self.sleeping.word32(0) };
        if sleeping.load(Ordering::Relaxed) != 0 && is_wanted() {
            also();
            // SAFETY: as above.
            let count = unsafe { self.count.word32(0) };
            count.fetch_add(1, Ordering::Relaxed);
            futex_wake_all(count);
        }
    }

    /// Sleeps until the bell is rung, at most `time`, unless `has_news`: it is asked after this
    /// thread was counted, so whatever it does not see rings the bell.
    pub fn sleep(&self, time: Duration, has_news: impl FnOnce() -> bool) {
        // SAFETY: as in `wake_when`.
        let count = unsafe { self.count.word32(0) };
        let wait = |before: &[u32]| futex_wait(count, before[0], time);
        Bell::sleep_on(&[*self], &mut [0], has_news, wait);
    }

    /// The same on several bells; `wait` sleeps while each still has the count that it is given, as
    /// long as it likes.
    pub fn sleep_on(
        bells: &[Bell],
        before: &mut [u32],
        has_news: impl FnOnce() -> bool,
        wait: impl FnOnce(&[u32]),
    ) {
        for (bell, before) in bells.iter().zip(&mut *before) {
            // SAFETY: as in `wake_when`.
            let (count, sleeping) = unsafe { (bell.count.word32(0), bell.sleeping.word32(0)) };
            *before = count.load(Ordering::Relaxed);
            sleeping.fetch_add(1, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        if !has_news() {
            wait(before);
        }
        for bell in bells {
            // SAFETY: as in `wake_when`.
            let sleeping = unsafe { bell.sleeping.word32(0) };
            sleeping.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The word that changes with every wake-up.
    pub fn count(&self) -> View {
        self.count
    }
}
