//! [`Clock`]: the one place of the library that reads a clock.

use crate::time::Time;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Where the time comes from. Clones show the same time.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The machine's monotonic clock; the origin is the instant held here.
    Monotonic(Instant),
    /// Nanoseconds that somebody else sets: simulation and tests.
    Virtual(Arc<AtomicU64>),
}

impl Clock {
    /// A monotonic clock that starts at zero now.
    pub fn monotonic() -> Clock {
        Clock::Monotonic(Instant::now())
    }

    /// The time now.
    pub fn now(&self) -> Time {
        match self {
            Clock::Monotonic(origin) => Time(origin.elapsed().as_nanos() as u64),
            // Relaxed: a time publishes nothing else.
            Clock::Virtual(now) => Time(now.load(Ordering::Relaxed)),
        }
    }
}
