//! [`Completions`]: operations that have ended, for a thread that waits for any of many.

use crate::error::{Error, Result};
use crate::sync::{Arc, AtomicU32, Mutex, MutexGuard, Ordering, PoisonError};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// An operation that has ended, as its starter has named it.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// The number that came with the operation.
    pub user: u64,
    /// What waiting for it would have returned.
    pub result: Result<()>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Completions {
    /// How many have ended and were not taken: the length of `ended`, to look at without the lock.
    ended_count: AtomicU32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    ended: VecDeque<Completion>,
    /// Operations that have not ended.
    running_count: usize,
    /// Readable while `ended` has entries.
    descriptor: Option<Arc<OwnedFd>>,
}

/// The place of one operation that has not ended. Dropped, it ends the operation as cancelled, so
/// that no completion is ever missing.
#[derive(Debug)]
pub struct Place {
    completions: Arc<Completions>,
    user: u64,
    has_ended: bool,
}

impl Completions {
    /// A place for an operation, with room for its completion.
    pub fn place(self: &Arc<Self>, user: u64) -> Place {
        let mut state = self.lock();
        state.running_count += 1;
        let room = state.running_count;
        state.ended.reserve(room);
        drop(state);
        Place {
            completions: self.clone(),
            user,
            has_ended: false,
        }
    }

    /// Whether there is something to take.
    #[inline]
    pub fn has_any(&self) -> bool {
        // Acquire: with the release in `end`. What is taken is behind the lock.
        self.ended_count.load(Ordering::Acquire) > 0
    }

    /// Moves at most `max` completions to `into`, first the operation that has ended first; returns
    /// how many.
    pub fn take(&self, into: &mut Vec<Completion>, max: usize) -> usize {
        let mut state = self.lock();
        let count = state.ended.len().min(max);
        into.extend(state.ended.drain(..count));
        if count > 0 {
            self.ended_count
                .store(state.ended.len() as u32, Ordering::Release);
            if let (Some(descriptor), true) = (&state.descriptor, state.ended.is_empty()) {
                // Resets the counter, so that it is not readable.
                let _ = rustix::io::read(&**descriptor, &mut [0; 8]);
            }
        }
        count
    }

    /// Operations that have not ended.
    pub fn running_count(&self) -> usize {
        self.lock().running_count
    }

    /// A descriptor that is readable while there is something to take.
    pub fn descriptor(&self) -> Result<Arc<OwnedFd>> {
        let mut state = self.lock();
        if let Some(descriptor) = &state.descriptor {
            return Ok(descriptor.clone());
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let is_readable = u32::from(!state.ended.is_empty());
        let descriptor = eventfd(is_readable, flags)
            .map_err(|cause| Error::os("making the descriptor of a queue", cause))?;
        let descriptor = Arc::new(descriptor);
        state.descriptor = Some(descriptor.clone());
        Ok(descriptor)
    }

    fn end(&self, completion: Completion) {
        let mut state = self.lock();
        state.running_count -= 1;
        state.ended.push_back(completion);
        self.ended_count
            .store(state.ended.len() as u32, Ordering::Release);
        if let (Some(descriptor), 1) = (&state.descriptor, state.ended.len()) {
            // Only a full counter refuses, and that is readable too.
            let _ = rustix::io::write(&**descriptor, &1u64.to_ne_bytes());
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// The operation has ended.
    pub fn end(mut self, result: Result<()>) {
        self.tell(result);
    }

    fn tell(&mut self, result: Result<()>) {
        if !std::mem::replace(&mut self.has_ended, true) {
            let user = self.user;
            self.completions.end(Completion { user, result });
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.has_ended {
            self.tell(Err(Error::invalid(
                "the communicator was dropped before its operation had ended: keep it until its completion has come",
            )));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn is_readable(completions: &Completions) -> bool {
        let descriptor = completions.descriptor().unwrap();
        let mut set = [PollFd::new(&*descriptor, PollFlags::IN)];
        poll(&mut set, Some(&Timespec::default())).unwrap() == 1
    }

    fn take(completions: &Completions, max: usize) -> Vec<u64> {
        let mut into = Vec::new();
        assert_eq!(completions.take(&mut into, max), into.len());
        into.iter().map(|completion| completion.user).collect()
    }

    #[test]
    fn completions_come_in_the_order_of_the_ends_and_the_descriptor_follows() {
        let completions = Arc::new(Completions::default());
        let [first, second, third] = [7, 8, 9].map(|user| completions.place(user));
        assert_eq!(completions.running_count(), 3);
        second.end(Ok(()));
        assert!(completions.has_any() && is_readable(&completions));
        first.end(Err(Error::invalid("a reason")));
        assert_eq!(take(&completions, 1), [8]);
        assert!(is_readable(&completions));
        assert_eq!(take(&completions, 9), [7]);
        assert!(!completions.has_any() && !is_readable(&completions));
        third.end(Ok(()));
        assert!(is_readable(&completions));
        assert_eq!(take(&completions, 0), []);
        assert_eq!(take(&completions, 9), [9]);
        assert_eq!(completions.running_count(), 0);
        assert!(!is_readable(&completions));
    }

    #[test]
    fn a_place_that_is_dropped_is_a_completion_with_an_error() {
        let completions = Arc::new(Completions::default());
        drop(completions.place(5));
        let mut into = Vec::new();
        completions.take(&mut into, 9);
        assert_eq!(into[0].user, 5);
        let text = into[0].result.clone().unwrap_err().to_string();
        assert!(text.contains("dropped before its operation"), "{text}");
    }
}
