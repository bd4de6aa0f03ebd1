//! [`Streaming`]: whether long copies use streaming (non-temporal) stores, which make them faster
//! on some machines and slower on others.
//!
//! A streaming store saves the read of its line, but a core may have only a few of them under way.
//! No rule by size holds on all machines: with streaming copies, collectives of 16 MiB took 0.76 to
//! 0.87 of the time on a Xeon with 260 MiB of cache, and 1.1 to 1.4 of it on Cascade Lake. So the
//! first long copies of the job itself are made both ways, while all ranks work, and the faster way
//! is kept until the job ends. To try again and again gains nothing that can be measured.

use crate::wait::Clock;
use std::time::Duration;

/// The smallest slot, in bytes: several pieces of a copy.
const SLOT_BYTES_MIN: usize = 32 << 20;
/// The best of this many trials counts: a core that is shared, or a page that is used for the first
/// time, makes a trial slower, never faster.
const TRIALS: usize = 3;

/// See the module. A trial is a slot of streaming copies and a slot of cached ones, each of as many
/// bytes as the cache has. The first half of a slot is not timed, because what the slot before it
/// left in the cache is written back during it.
#[derive(Debug)]
pub struct Streaming {
    clock: Clock,
    slot_bytes: usize,
    /// Slots that have ended. The even ones are streaming.
    slots: usize,
    /// Bytes of the present slot that have been copied.
    done_bytes: usize,
    /// What was copied in its second half, and in which time.
    timed: Timed,
    /// Nanoseconds per byte of the fastest slot: streaming, then cached.
    best: [f64; 2],
}

#[derive(Clone, Copy, Debug, Default)]
struct Timed {
    bytes: usize,
    time: Duration,
}

impl Streaming {
    /// For a last-level cache of this many bytes.
    pub fn new(cache_bytes: usize) -> Streaming {
        Streaming {
            clock: Clock::monotonic(),
            slot_bytes: cache_bytes.max(SLOT_BYTES_MIN),
            slots: 0,
            done_bytes: 0,
            timed: Timed::default(),
            best: [f64::MAX; 2],
        }
    }

    /// Calls `copy`, which copies `bytes` bytes and is told whether to use streaming stores.
    pub fn copy(&mut self, bytes: usize, copy: impl FnOnce(bool)) {
        if self.slots == 2 * TRIALS {
            return copy(self.best[0] <= self.best[1]);
        }
        let way = self.slots % 2;
        let start = self.clock.now();
        copy(way == 0);
        self.done_bytes = self.done_bytes.saturating_add(bytes);
        if self.done_bytes > self.slot_bytes / 2 {
            self.timed.bytes += bytes;
            self.timed.time += self.clock.now().since(start);
        }
        if self.done_bytes >= self.slot_bytes {
            let Timed { bytes, time } = std::mem::take(&mut self.timed);
            let rate = time.as_nanos() as f64 / bytes as f64;
            self.best[way] = self.best[way].min(rate);
            self.slots += 1;
            self.done_bytes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    const SLOTS: usize = 2 * TRIALS;

    /// Copies `slots` slots in pieces; returns the share of pieces that were streamed. `rates`: the
    /// nanoseconds that a streamed byte and a cached one take.
    fn share_streamed(
        streaming: &mut Streaming,
        slots: usize,
        piece: usize,
        rates: [u64; 2],
    ) -> f64 {
        let Clock::Virtual(now) = streaming.clock.clone() else {
            unreachable!()
        };
        let pieces = slots * streaming.slot_bytes.div_ceil(piece);
        let mut streamed_pieces = 0;
        for _ in 0..pieces {
            streaming.copy(piece, |streamed| {
                streamed_pieces += usize::from(streamed);
                let rate = rates[usize::from(!streamed)];
                now.fetch_add(rate * piece as u64, Ordering::Relaxed);
            });
        }
        streamed_pieces as f64 / pieces as f64
    }

    fn with_virtual_time() -> Streaming {
        let mut streaming = Streaming::new(1 << 20);
        streaming.clock = Clock::Virtual(Arc::new(AtomicU64::new(0)));
        streaming
    }

    #[test]
    fn the_faster_way_is_taken_and_kept() {
        for piece in [64 << 10, 1 << 20, 8 << 20] {
            for (rates, share) in [([5, 4], 0.0), ([5, 6], 1.0)] {
                let mut streaming = with_virtual_time();
                assert_eq!(share_streamed(&mut streaming, SLOTS, piece, rates), 0.5);
                assert_eq!(share_streamed(&mut streaming, 20, piece, rates), share);
                // Later copies are not timed.
                let [a, b] = rates;
                assert_eq!(share_streamed(&mut streaming, 100, piece, [b, a]), share);
            }
        }
    }

    #[test]
    fn copies_longer_than_a_slot_are_timed_too() {
        let mut streaming = with_virtual_time();
        let piece = 2 * SLOT_BYTES_MIN + (1 << 20);
        share_streamed(&mut streaming, SLOTS, piece, [3, 2]);
        assert_eq!(share_streamed(&mut streaming, 5, piece, [3, 2]), 0.0);
    }

    #[test]
    fn a_trial_that_was_disturbed_does_not_decide() {
        let mut streaming = with_virtual_time();
        let piece = 1 << 20;
        // Both ways take longer in the first trial, and the faster way suffers more.
        share_streamed(&mut streaming, 2, piece, [9, 6]);
        share_streamed(&mut streaming, SLOTS - 2, piece, [2, 3]);
        assert_eq!(share_streamed(&mut streaming, 20, piece, [2, 3]), 1.0);
    }

    #[test]
    fn no_cache_is_too_small_or_too_large() {
        for cache_bytes in [0, usize::MAX] {
            let mut streaming = Streaming::new(cache_bytes);
            let mut copies = 0;
            for _ in 0..100 {
                streaming.copy(64 << 20, |_| copies += 1);
            }
            assert_eq!(copies, 100);
        }
    }
}
