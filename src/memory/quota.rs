//! [`Quota`]: what a rank sleeps for comes in several parts, each from another peer, and only the
//! last one wakes it. Where ranks share cores, being woken for each costs more than what it brings.
//!
//! `tests/loom.rs` compiles this file and finds a lost wake-up as soon as its fence is missing.

use super::View;
use crate::sync::{Ordering, fence};

/// A word that processes share: how many things a lone sleeper has not seen and needs; 0 while it
/// is open.
///
/// Anyone who sleeps opens it, looks, and then says how many it lacks; anyone who wakes counts
/// after it has stored, while the bell says that somebody sleeps. What comes between the look and
/// the saying wakes by itself, because the quota is open.
#[derive(Clone, Copy, Debug)]
pub struct Quota(View);

impl Quota {
    /// The quota in this word, which is 0 while it is open. Its maker keeps it mapped.
    pub fn new(word: View) -> Quota {
        Quota(word)
    }

    /// Counts one thing, which the caller has stored; whether anyone who sleeps is to be woken. For
    /// `Bell::wake_when`.
    #[inline]
    pub fn count(&self) -> bool {
        // SAFETY: who made the quota keeps its word mapped; it is only accessed as an atomic.
        let word = unsafe { self.0.word32(0) };
        // Wakers that come together may count below 0, and each of those wakes.
        let is_last = |before: u32| before as i32 <= 1;
        is_last(word.load(Ordering::Relaxed)) || is_last(word.fetch_sub(1, Ordering::Relaxed))
    }

    /// Whether anything wakes anyone who sleeps.
    #[inline]
    pub fn is_open(&self) -> bool {
        // SAFETY: as in `count`.
        let word = unsafe { self.0.word32(0) };
        word.load(Ordering::Relaxed) == 0
    }

    /// From now on anything wakes anyone who sleeps. The caller looks afterwards for what has come.
    #[inline]
    pub fn open(&self) {
        // SAFETY: as in `count`.
        let word = unsafe { self.0.word32(0) };
        word.store(0, Ordering::Relaxed);
        // What is not seen after this is stored by somebody who sees this.
        fence(Ordering::SeqCst);
    }

    /// The caller, which opened it and then looked, sleeps alone and lacks this many, at least 1.
    #[inline]
    pub fn set(&self, lacking: u32) {
        // SAFETY: as in `count`.
        let word = unsafe { self.0.word32(0) };
        // Anyone who does not see it yet wakes.
        word.store(lacking, Ordering::Relaxed);
    }
}
