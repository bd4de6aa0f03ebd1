//! [`Completions`]: operations that have ended, for a thread that waits for any of many.

use crate::error::{Error, Result};
use crate::sync::{Arc, AtomicU32, Mutex, MutexGuard, Ordering, PoisonError};
use crate::types::Rank;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// An operation that has ended, under the number that its starter gave it.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// The number that came with the operation.
    pub user: u64,
    /// What waiting for it would have returned.
    pub result: Result<()>,
    /// For a receive with a tag: the rank that sent its message.
    pub source: Option<Rank>,
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

/// The place of one operation that has not ended. Dropping it ends the operation with an error, so
/// that no completion is ever missing.
#[derive(Debug)]
pub struct QueuePlace {
    completions: Arc<Completions>,
    user: u64,
    has_ended: bool,
    /// For a part of an operation: what the parts share.
    together: Option<Arc<Together>>,
}

/// Parts of an operation that end as one.
#[derive(Debug)]
struct Together {
    state: Mutex<(usize, Option<Error>)>,
}

impl Together {
    /// Ends a part. Returns the result of the operation if it was the last part.
    fn end(&self, result: Result<()>) -> Option<Result<()>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, failure) = &mut *state;
        *left -= 1;
        *failure = failure.take().or(result.err());
        (*left == 0).then(|| failure.take().map_or(Ok(()), Err))
    }
}

impl Completions {
    /// A place for an operation, with room for its completion.
    pub fn place(self: &Arc<Self>, user: u64) -> QueuePlace {
        let mut state = self.lock();
        state.running_count += 1;
        let room = state.running_count;
        state.ended.reserve(room);
        drop(state);
        QueuePlace {
            completions: self.clone(),
            user,
            has_ended: false,
            together: None,
        }
    }

    /// Whether there is something to take.
    #[inline]
    pub fn has_any(&self) -> bool {
        // Acquire pairs with the release in `end`. The completions themselves are behind the lock.
        self.ended_count.load(Ordering::Acquire) > 0
    }

    /// Moves at most `max` completions to `into`, in the order in which the operations ended, and
    /// returns how many.
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

impl QueuePlace {
    /// The operation has ended.
    pub fn end(mut self, result: Result<()>, source: Option<Rank>) {
        self.tell(result, source);
    }

    /// Places for the parts of the operation, which ends when all parts have ended. `failure` is
    /// the error of a part that has failed already.
    pub fn split(mut self, parts: usize, failure: Option<Error>) -> Vec<QueuePlace> {
        self.has_ended = true;
        let together = Arc::new(Together {
            state: Mutex::new((parts, failure)),
        });
        let part = |_| QueuePlace {
            completions: self.completions.clone(),
            user: self.user,
            has_ended: false,
            together: Some(together.clone()),
        };
        (0..parts).map(part).collect()
    }

    fn tell(&mut self, mut result: Result<()>, source: Option<Rank>) {
        if !std::mem::replace(&mut self.has_ended, true) {
            if let Some(together) = &self.together {
                match together.end(result) {
                    Some(of_all) => result = of_all,
                    None => return,
                }
            }
            let user = self.user;
            self.completions.end(Completion {
                user,
                result,
                source,
            });
        }
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        if !self.has_ended {
            let error = Error::invalid(
                "the communicator was dropped before its operation had ended: keep it until its completion has come",
            );
            self.tell(Err(error), None);
        }
    }
}
