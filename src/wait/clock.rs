//! [`Clock`]: the time. Only this file reads the system's clock.

use crate::time::Time;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A source of the time.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The system's monotonic clock; time 0 is this instant.
    Monotonic(Instant),
    /// Virtual nanoseconds. A simulation advances them.
    Virtual(Arc<AtomicU64>),
}

impl Clock {
    /// The system's monotonic clock; time 0 is now.
    pub fn monotonic() -> Clock {
        Clock::Monotonic(Instant::now())
    }

    /// The time now.
    pub fn now(&self) -> Time {
        match self {
            Clock::Monotonic(origin) => Time(origin.elapsed().as_nanos() as u64),
            // Relaxed: it publishes nothing else. The simulation's own lock orders its events.
            Clock::Virtual(nanoseconds) => Time(nanoseconds.load(Ordering::Relaxed)),
        }
    }

    /// The time on CLOCK_MONOTONIC `after` from now, in nanoseconds, for system calls that sleep
    /// until a point in time.
    pub fn wake_up_ns(after: Duration) -> u64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let now_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        now_ns.saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Whether the time is virtual, so that no thread may sleep.
    pub fn is_virtual(&self) -> bool {
        matches!(self, Clock::Virtual(_))
    }
}
