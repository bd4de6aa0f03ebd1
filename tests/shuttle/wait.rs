//! `src/wait` with the locks and words of the models: its files as they are, but for the clock and
//! for what threads sleep on, which is a bell here.

use crate::memory::View;
use crate::sync::Ordering;
use crate::time::Time;
use std::time::Duration;

pub use crate::memory::{futex_wait, futex_wake_all};

#[path = "../../src/wait/bell.rs"]
mod bell;
#[path = "../../src/wait/completions.rs"]
mod completions;
#[path = "../../src/wait/driver_lock.rs"]
mod driver_lock;
#[path = "../../src/wait/patience.rs"]
mod patience;
#[path = "../../src/wait/quota.rs"]
mod quota;

pub use bell::Bell;
pub use completions::{Completions, QueuePlace};
pub use driver_lock::{Caller, DriverLock};
pub use patience::{Patience, SpinTime, Step};
pub use quota::Quota;

/// What a thread drives while callers use it too.
pub trait Background {
    fn run(&self);
    fn stop(&self);
}

/// Time that passes by being asked for: 100 us each time, so that patience ends soon.
#[derive(Debug)]
pub struct Clock(std::sync::atomic::AtomicU64);

impl Clock {
    pub fn new() -> Clock {
        Clock(std::sync::atomic::AtomicU64::new(0))
    }

    pub fn now(&self) -> Time {
        Time(self.0.fetch_add(100_000, Ordering::Relaxed))
    }

    pub fn is_virtual(&self) -> bool {
        false
    }
}

pub enum WaitSource {
    Futex { bell: View, sleeping: View },
    Virtual,
}

/// What threads sleep on, where peers ring.
#[derive(Debug)]
pub struct Alarm(Bell);

impl Alarm {
    pub fn new(source: WaitSource) -> Option<Alarm> {
        match source {
            WaitSource::Futex { bell, sleeping } => Some(Alarm(Bell::new(bell, sleeping))),
            WaitSource::Virtual => None,
        }
    }

    pub fn wake(&self) {
        self.0.wake();
    }

    /// Peers ring for all threads.
    pub fn wake_others(&self, _own: u32) {}
}

/// A communicator without relatives sleeps on one alarm.
pub fn sleep_on(alarms: &[&Alarm], time: Duration, has_news: impl FnOnce() -> bool) {
    let [alarm] = alarms else {
        unreachable!("no other communicator is there")
    };
    alarm.0.sleep(time, has_news);
}
