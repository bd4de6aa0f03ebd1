//! [`Quota`]: a rank that sleeps until several peers have signalled is woken by the last signal
//! only. If ranks share cores, it costs too much to wake the rank for each signal.
//!
//! `tests/loom.rs` compiles this file, and finds a lost wake-up if its fence is missing.

use crate::kernel;
use crate::memory::View;
use crate::sync::{Ordering, fence};

/// A word that processes share. It holds how many signals the only sleeper of a rank still needs,
/// and 0 while the quota is open, so that every signal wakes the rank's sleepers.
///
/// A sleeper opens the quota, looks which signals have come, and then sets how many it still needs.
/// A waker stores its signal and, if the bell says that a thread sleeps, counts it here. A signal
/// that comes between the look and the setting wakes the sleeper, because the quota is open then.
#[derive(Clone, Copy, Debug)]
pub struct Quota(View);

impl Quota {
    /// The quota in this word, which the caller keeps mapped.
    pub fn new(word: View) -> Quota {
        Quota(word)
    }

    /// Counts one signal, which the caller has stored. Returns whether the caller has to wake the
    /// sleeper. It is the condition of `Bell::wake_when`.
    #[inline]
    pub fn count(&self) -> bool {
        let word = kernel::word32(&self.0, 0);
        // Wakers that count at the same time may count below 0. Each of those wakes the sleeper.
        let is_last = |before: u32| before as i32 <= 1;
        is_last(word.load(Ordering::Relaxed)) || is_last(word.fetch_sub(1, Ordering::Relaxed))
    }

    /// Whether every signal wakes the sleeper.
    #[inline]
    pub fn is_open(&self) -> bool {
        let word = kernel::word32(&self.0, 0);
        word.load(Ordering::Relaxed) == 0
    }

    /// Opens the quota, so that every signal wakes the sleeper. The caller looks afterwards which
    /// signals have come.
    #[inline]
    pub fn open(&self) {
        let word = kernel::word32(&self.0, 0);
        word.store(0, Ordering::Relaxed);
        // If the caller does not see a signal after this, its waker sees that the quota is open.
        fence(Ordering::SeqCst);
    }

    /// Sets how many signals the caller still needs, at least 1. The caller is the only sleeper of
    /// its rank; it has opened the quota and then looked.
    #[inline]
    pub fn set(&self, lacking: u32) {
        let word = kernel::word32(&self.0, 0);
        // A waker that still sees an open quota wakes the caller, which does no harm.
        word.store(lacking, Ordering::Relaxed);
    }
}
