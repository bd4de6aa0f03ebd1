//! [`BusyClock`]: the clock of a thread that waits for other ranks, and what the thread does
//! between two looks.

use crate::time::Time;
use crate::wait::Clock;
use std::time::Duration;

/// Longest sleep of a thread that has something to do in between: what it does moves operations
/// that other ranks wait for.
const NAP: Duration = Duration::from_millis(1);

/// See the module.
#[derive(Clone, Copy)]
pub struct BusyClock<'a> {
    clock: &'a Clock,
    meanwhile: Option<&'a dyn Fn()>,
}

impl<'a> BusyClock<'a> {
    /// Of a thread that only waits.
    pub fn idle(clock: &'a Clock) -> BusyClock<'a> {
        BusyClock {
            clock,
            meanwhile: None,
        }
    }

    /// Of a thread that calls `meanwhile` every millisecond or so.
    pub fn new(clock: &'a Clock, meanwhile: &'a dyn Fn()) -> BusyClock<'a> {
        BusyClock {
            clock,
            meanwhile: Some(meanwhile),
        }
    }

    /// The time now.
    pub fn now(self) -> Time {
        self.clock.now()
    }

    /// How long a thread that wants to wait for `time` may be away at once, which is at most
    /// `most` for one that has something to do.
    pub(super) fn away(self, time: Duration, most: Duration) -> Duration {
        match self.meanwhile {
            None => time,
            Some(_) => time.min(most),
        }
    }

    /// The longest sleep of a thread that wants to wait for `time`.
    pub(super) fn nap(self, time: Duration) -> Duration {
        self.away(time, NAP)
    }

    /// What the thread does between two looks.
    pub(super) fn work(self) {
        if let Some(meanwhile) = self.meanwhile {
            meanwhile();
        }
    }

    /// Sleeps for `time`.
    pub(super) fn sleep(self, time: Duration) {
        let until = self.now().after(time);
        loop {
            let left = until.since(self.now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(self.nap(left));
            self.work();
        }
    }
}
