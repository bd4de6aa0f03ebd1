//! [`Quota`]: a rank that sleeps for several signals of different peers is woken by the last one
//! only. Where ranks share cores, a wake-up for each costs more than the signal brings.
//!
//! `tests/loom.rs` compiles this file and finds a lost wake-up as soon as its fence is missing.

use crate::kernel;
use crate::memory::View;
use crate::sync::{Ordering, fence};

/// A word that processes share: how many signals a sleeper still needs, if it is the only one of
/// its rank; 0 while the quota is open.
///
/// A sleeper opens the quota, looks, and then sets how many signals it lacks. A waker counts after
/// it has stored its signal, while the bell says that a thread sleeps. A signal that comes between
/// the look and the setting wakes the sleeper, because the quota is open then.
#[derive(Clone, Copy, Debug)]
pub struct Quota(View);

impl Quota {
    /// The quota in this word, which is 0 while it is open. Its maker keeps it mapped.
    pub fn new(word: View) -> Quota {
        Quota(word)
    }

    /// Counts one signal, which the caller has stored; whether the sleeper is to be woken. For
    /// `Bell::wake_when`.
    #[inline]
    pub fn count(&self) -> bool {
        let word = kernel::word32(&self.0, 0);
        // Wakers that come together may count below 0, and each of those wakes.
        let is_last = |before: u32| before as i32 <= 1;
        is_last(word.load(Ordering::Relaxed)) || is_last(word.fetch_sub(1, Ordering::Relaxed))
    }

    /// Whether everything wakes the sleeper.
    #[inline]
    pub fn is_open(&self) -> bool {
        let word = kernel::word32(&self.0, 0);
        word.load(Ordering::Relaxed) == 0
    }

    /// From now on everything wakes the sleeper. The caller looks afterwards for what has come.
    #[inline]
    pub fn open(&self) {
        let word = kernel::word32(&self.0, 0);
        word.store(0, Ordering::Relaxed);
        // A waker whose signal is not seen after this sees that the quota is open.
        fence(Ordering::SeqCst);
    }

    /// The caller, which opened it and then looked, sleeps alone and lacks this many, at least 1.
    #[inline]
    pub fn set(&self, lacking: u32) {
        let word = kernel::word32(&self.0, 0);
        // A waker that does not see it yet wakes the caller.
        word.store(lacking, Ordering::Relaxed);
    }
}
