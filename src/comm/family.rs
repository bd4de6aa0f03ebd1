//! [`Family`]: the communicators of one process that come from one another by split, duplicate and
//! rebuild. A thread that waits on one of them also drives the others.
//!
//! Why: rank 0 starts an operation on A and waits on B, rank 1 waits on A first. Unless rank 0's
//! wait on B also moves A, neither ends. A communicator that a thread of its own attends to for
//! good is no member.
//!
//! Locks, in this order: the list of members, then one engine. Nobody takes the list while holding
//! an engine, and leaving takes no lock, since the last handle of a member may be dropped while the
//! list is held.

use super::alarm::{Alarm, Doorbell};
use super::driving::Driving;
use super::ranges::Ranges;
use super::shared::Shared;
use crate::engine::Clock;
use crate::kernel;
use crate::memory::{Bell, FUTEX_WORDS_MAX, View, futex_wait, futex_wait_any};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// How long a sleep lasts that cannot hear the bells of all members.
const DEAF_SLEEP: Duration = Duration::from_millis(1);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Family {
    /// Members alive. All that a wait looks at as long as there is one.
    members_count: AtomicU32,
    members: Mutex<Vec<Weak<Shared>>>,
    /// Registered buffers of any of them.
    pub(super) ranges: Arc<Ranges>,
}

impl Family {
    /// For a communicator that has a thread of its own and is no member: it knows the same
    /// registered buffers, and waits on it and on members do not move each other.
    pub fn apart(&self) -> Arc<Family> {
        Arc::new(Family {
            ranges: self.ranges.clone(),
            ..Family::default()
        })
    }

    /// Takes a member in; it leaves when it is dropped.
    pub fn join(&self, member: &Arc<Shared>) {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.retain(|known| known.strong_count() > 0);
        members.push(Arc::downgrade(member));
        // Relaxed: a hint of whether to look at the list, whose lock orders everything.
        self.members_count.fetch_add(1, Ordering::Relaxed);
    }

    /// A member is being dropped.
    pub fn leave(&self) {
        self.members_count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a member has others to care for.
    #[inline]
    pub fn has_others(&self) -> bool {
        self.members_count.load(Ordering::Relaxed) > 1
    }

    /// Drives every member but `own` that nobody drives now; whether anything moved.
    pub fn drive(&self, own: Option<&Driving>) -> bool {
        // Anyone who has the list drives all of them.
        let Ok(members) = self.members.try_lock() else {
            return false;
        };
        let mut moved = false;
        for member in members.iter().filter_map(Weak::upgrade) {
            if own.is_none_or(|own| !std::ptr::eq(own, &**member)) {
                moved |= member.drive_if_free();
            }
        }
        moved
    }

    /// Sleeps until something may have arrived for any member, at most `time`. `look` drives `own`
    /// and says whether the caller has a reason not to sleep.
    pub fn sleep(&self, own: &Driving, time: Duration, look: impl FnOnce() -> bool) {
        // Held until the end, so that no bell is unmapped meanwhile.
        let others: Vec<Arc<Shared>> = {
            let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
            let others = members.iter().filter_map(Weak::upgrade);
            others.filter(|m| !std::ptr::eq(own, &***m)).collect()
        };
        let drivings = std::iter::once(own).chain(others.iter().map(|m| &***m));
        let (mut bells, mut doorbells) = (Vec::new(), Vec::new());
        for alarm in drivings.filter_map(Driving::alarm) {
            match alarm {
                Alarm::Bell(bell) => bells.push(*bell),
                Alarm::Descriptor(doorbell) => doorbells.push(doorbell),
            }
        }
        let look = || {
            let moved = look();
            others
                .iter()
                .fold(moved, |moved, member| member.drive_once() | moved)
        };
        if !doorbells.is_empty() {
            // No sleep hears both kinds.
            let time = if bells.is_empty() {
                time
            } else {
                time.min(DEAF_SLEEP)
            };
            return Doorbell::sleep_on(&doorbells, time, look);
        }
        let wait = |before: &[u32]| {
            let counts: Vec<View> = bells.iter().map(Bell::count).collect();
            let words = counts.iter().zip(before);
            let words: Vec<_> = words
                .map(|(count, &b)| (kernel::word32(count, 0), b))
                .collect();
            let is_heard =
                words.len() <= FUTEX_WORDS_MAX && futex_wait_any(&words, Clock::wake_up_ns(time));
            if let (false, Some(&(word, before))) = (is_heard, words.first()) {
                futex_wait(word, before, time.min(DEAF_SLEEP));
            }
        };
        Bell::sleep_on(&bells, &mut vec![0; bells.len()], look, wait);
    }
}
