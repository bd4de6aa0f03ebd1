//! What threads sleep on, where peers ring: the [`Bell`] itself.

use crate::memory::Bell;
use crate::transport::WaitSource;
use std::time::Duration;

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

    /// Peers ring for everybody.
    pub fn wake_others(&self, _own: u32) {}

    pub fn sleep(&self, time: Duration, has_news: impl FnOnce() -> bool) {
        self.0.sleep(time, has_news);
    }
}
