//! Runs schedules on transports; here, its clock.

mod clock;

pub use clock::Clock;
