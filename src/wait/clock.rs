//! The one reader of the clock.

use crate::time::Time;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Where the time comes from.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The monotonic clock, from this origin.
    Monotonic(Instant),
    /// Virtual nanoseconds, advanced by a simulation.
    Virtual(Arc<AtomicU64>),
}

impl Clock {
    /// The monotonic clock, from now on.
    pub fn monotonic() -> Clock {
        Clock::Monotonic(Instant::now())
    }

    /// The time now.
    pub fn now(&self) -> Time {
        match self {
            Clock::Monotonic(origin) => Time(origin.elapsed().as_nanos() as u64),
            // Relaxed: the simulation's own lock orders its events; the time is only a number.
            Clock::Virtual(nanoseconds) => Time(nanoseconds.load(Ordering::Relaxed)),
        }
    }

    /// The time on CLOCK_MONOTONIC this long from now, in nanoseconds: for system calls that sleep
    /// until a point of time.
    pub fn wake_up_ns(after: Duration) -> u64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let now_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        now_ns.saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Whether time is virtual, so that nobody may sleep.
    pub fn is_virtual(&self) -> bool {
        matches!(self, Clock::Virtual(_))
    }
}
