//! The one reader of the clock.

use crate::time::Time;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

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

    /// Whether time is virtual, so that nobody may sleep.
    pub fn is_virtual(&self) -> bool {
        matches!(self, Clock::Virtual(_))
    }
}
