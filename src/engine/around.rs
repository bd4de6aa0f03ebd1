//! [`Around`]: whether long copies go around the caches, which some machines are faster with and
//! others slower.
//!
//! A store around the caches saves the read of its line, but a core may have only this many of them
//! under way. Where many cores share the memory the first counts, where few do the second: an
//! all-gather of 32 MiB took half the time on Zen 4, and copies of 64 MiB by two threads went at
//! 7.7 GB/s instead of 8.4 on Cascade Lake. So both ways are tried, again and again, on the copies
//! of the job itself, with all ranks at work.

use crate::wait::Clock;
use std::time::Duration;

/// Bytes of a slot at least: several pieces of a copy.
const SLOT_BYTES_MIN: usize = 32 << 20;
/// A trial is two slots, one of each way, and begins after this many. What the slower way loses is
/// then a fortieth of the difference.
const PERIOD_SLOTS: usize = 40;
/// The best of this many trials counts: a rank that shares its core, or meets a page for the first
/// time, is slower only.
const TRIALS: usize = 3;

/// See the module. Slots of as many bytes as the cache has are copied around it and through it; the
/// first half of each is not timed, because what the slot before left in the cache is written back
/// meanwhile.
#[derive(Debug)]
pub struct Around {
    clock: Clock,
    slot_bytes: usize,
    /// Bytes copied since the trial began.
    done: usize,
    /// Of the second half of the slot at hand.
    timed: Timed,
    /// Nanoseconds a byte around the caches, and through them, in the last trials.
    rates: [[f64; 2]; TRIALS],
    trials: usize,
    /// What is faster by these.
    streamed: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Timed {
    bytes: usize,
    time: Duration,
}

impl Around {
    /// For a last-level cache of this many bytes.
    pub fn new(cache_bytes: usize) -> Around {
        Around {
            clock: Clock::monotonic(),
            slot_bytes: cache_bytes.clamp(SLOT_BYTES_MIN, usize::MAX / (2 * PERIOD_SLOTS)),
            done: 0,
            timed: Timed::default(),
            rates: [[f64::MAX; 2]; TRIALS],
            trials: 0,
            streamed: true,
        }
    }

    /// Has `bytes` bytes copied, by `copy`, which is told whether to go around the caches.
    pub fn copy(&mut self, bytes: usize, copy: impl FnOnce(bool)) {
        let (slot, within) = (self.done / self.slot_bytes, self.done % self.slot_bytes);
        self.done += bytes;
        if slot > 1 {
            if self.done / self.slot_bytes >= PERIOD_SLOTS {
                self.done = 0;
            }
            return copy(self.streamed);
        }
        let start = self.clock.now();
        copy(slot == 0);
        if within + bytes > self.slot_bytes / 2 {
            self.timed.bytes += bytes;
            self.timed.time += self.clock.now().since(start);
        }
        if within + bytes >= self.slot_bytes {
            let Timed { bytes, time } = std::mem::take(&mut self.timed);
            self.rates[self.trials % TRIALS][slot] = time.as_nanos() as f64 / bytes as f64;
            if slot == 0 {
                // A copy that is longer than a slot is none of the next one.
                self.done = self.slot_bytes;
            } else {
                self.trials += 1;
                let best = |way: usize| self.rates.iter().fold(f64::MAX, |a, b| a.min(b[way]));
                self.streamed = best(0) <= best(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Copies `slots` slots in pieces; how many bytes went around the caches, as a share. A byte
    /// takes this many nanoseconds around them and through them.
    fn share_around(around: &mut Around, slots: usize, piece: usize, rates: [u64; 2]) -> f64 {
        let Clock::Virtual(now) = around.clock.clone() else {
            unreachable!()
        };
        let pieces = slots * around.slot_bytes / piece;
        let mut streamed_pieces = 0;
        for _ in 0..pieces {
            around.copy(piece, |streamed| {
                streamed_pieces += usize::from(streamed);
                let rate = rates[usize::from(!streamed)];
                now.fetch_add(rate * piece as u64, Ordering::Relaxed);
            });
        }
        streamed_pieces as f64 / pieces as f64
    }

    fn with_virtual_time() -> Around {
        let mut around = Around::new(1 << 20);
        around.clock = Clock::Virtual(Arc::new(AtomicU64::new(0)));
        around
    }

    #[test]
    fn the_faster_way_is_taken_and_found_again_when_it_changes() {
        for piece in [64 << 10, 1 << 20, 8 << 20] {
            let mut around = with_virtual_time();
            assert_eq!(share_around(&mut around, 2, piece, [5, 4]), 0.5);
            assert_eq!(share_around(&mut around, 2, piece, [5, 4]), 0.0);
            // What is slower now is seen when the last trials are all of now.
            share_around(&mut around, TRIALS * (PERIOD_SLOTS + 1), piece, [5, 6]);
            assert_eq!(share_around(&mut around, 2, piece, [5, 6]), 1.0);
            let share = share_around(&mut around, 10 * PERIOD_SLOTS, piece, [5, 6]);
            assert!(share > 1.0 - 1.2 / PERIOD_SLOTS as f64, "{share}");
        }
    }

    #[test]
    fn copies_longer_than_a_slot_are_timed_too() {
        let mut around = with_virtual_time();
        let piece = 2 * SLOT_BYTES_MIN + (1 << 20);
        share_around(&mut around, 5, piece, [3, 2]);
        assert_eq!(share_around(&mut around, 5, piece, [3, 2]), 0.0);
    }

    #[test]
    fn a_trial_that_was_disturbed_does_not_decide() {
        let mut around = with_virtual_time();
        let piece = 1 << 20;
        assert_eq!(
            share_around(&mut around, PERIOD_SLOTS, piece, [2, 3]),
            39.0 / 40.0
        );
        // Everything takes longer, the faster way most.
        share_around(&mut around, 2, piece, [9, 6]);
        assert_eq!(share_around(&mut around, 2, piece, [2, 3]), 1.0);
    }

    #[test]
    fn no_cache_is_too_small_or_too_large() {
        for cache_bytes in [0, usize::MAX] {
            let mut around = Around::new(cache_bytes);
            let mut copies = 0;
            for _ in 0..100 {
                around.copy(64 << 20, |_| copies += 1);
            }
            assert_eq!(copies, 100);
        }
    }
}
