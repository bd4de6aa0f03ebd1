//! Points in time, as data. Only `wait/clock.rs` reads a clock; everything else is told the time.

use std::time::Duration;

/// Nanoseconds since an origin that is fixed per clock (boot for the monotonic clock, 0 in
/// simulation).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The latest representable time: "never".
    pub const MAX: Time = Time(u64::MAX);

    /// This time plus a duration, at most [`Time::MAX`].
    pub fn after(self, duration: Duration) -> Time {
        Time(
            self.0
                .saturating_add(duration.as_nanos().min(u64::MAX as u128) as u64),
        )
    }

    /// How long after `earlier` this is; zero if it is not.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
