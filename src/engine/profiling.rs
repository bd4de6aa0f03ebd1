//! Profiles of an engine: where the time of operations goes, as the thread that drives sees it.
//!
//! The steps of rounds time themselves (`driver/profiled.rs`). What is left of a drive is polling
//! if something has moved in it, and otherwise part of a wait. [`Engine::drive`] asks for that
//! among its chores, so that without a profile it does not even look whether there is one.

use super::core::Engine;
use super::round::Round;
use crate::wait::{Activity, Clock, Spent};

impl Engine {
    /// Begins a profile by this clock, in place of one that has begun earlier.
    pub fn begin_profile(&mut self, clock: Clock) {
        self.driver.begin_profile(clock);
        self.has_chores = true;
    }

    /// Ends the profile, if one has begun.
    pub fn end_profile(&mut self) -> Option<Spent> {
        self.driver.end_profile()
    }

    /// The calling thread has slept, or has given its core away.
    #[inline]
    pub fn note_sleep(&mut self) {
        if self.driver.is_profiled() {
            self.note_wait(Activity::Sleeping);
        }
    }

    /// The calling thread has driven, or has slept.
    #[cold]
    pub(super) fn note_wait(&mut self, by: Activity) {
        let is_held = self.rounds.all().any(Round::has_runnable);
        self.driver.note_wait(by, is_held);
    }
}
