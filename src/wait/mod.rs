//! How a thread waits, and which thread drives what it waits for.
//!
//! * [`Patience`] says what a wait does next: spin, yield or sleep. [`SpinTime`] learns how long
//!   spinning is worth it.
//! * [`Alarm`] is what the threads of a rank sleep on, and [`sleep_on`] is the one way to sleep: on
//!   [`Bell`]s, which are words that peers change, or on descriptors. A [`Quota`] holds a wake-up
//!   back until enough signals have come.
//! * [`DriverLock`] holds what callers and a background thread drive in turn: a caller that waits
//!   drives by itself, and the thread drives while no caller does. [`BackgroundThread`] starts and
//!   ends such a thread.
//! * [`Watch`] tells which of many descriptors have something.
//! * [`Completions`] collects operations that have ended, for a thread that waits for any of many.
//! * [`Profile`] says what a thread that drives does with its time.
//! * [`Clock`] is the only reader of the system's clock.
//!
//! Not here: what is driven. `comm/driving.rs` drives an engine, `comm/fusion` its service, and
//! `comm/partial` its rounds.
//!
//! Read first: `patience.rs`, then `driver_lock.rs`.

mod alarm;
mod background;
mod bell;
mod clock;
mod completions;
#[cfg(test)]
mod completions_tests;
mod driver_lock;
mod futex;
mod patience;
mod profile;
mod quota;
mod watch;

pub use alarm::{Alarm, WaitSource, sleep_on};
pub use background::{Background, BackgroundThread};
pub use bell::Bell;
pub use clock::Clock;
pub use completions::{Completion, Completions, QueuePlace};
pub use driver_lock::{Caller, DriverLock};
pub use futex::{FUTEX_WORDS_MAX, futex_wait, futex_wait_any, futex_wake_all};
pub use patience::{Looks, Patience, SpinTime, Step};
pub use profile::{Activity, Profile, Spent, Traffic};
pub use quota::Quota;
pub use watch::Watch;
