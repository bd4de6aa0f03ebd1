//! [`CompletionQueue`]: waits for many operations at once.

use super::communicator::Communicator;
use super::driving::Driving;
use super::family::Family;
use crate::error::{Error, Result};
use crate::sync::Arc;
use crate::wait::{Completion, Completions, QueuePlace};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

/// Collects operations that have ended, of any communicator of a family: those made from one
/// another by split, duplicate, sibling and rebuild. `Send + Sync`: several threads may wait, and
/// each completion goes to one of them.
///
/// [`Operation::notify`](crate::Operation::notify) puts an operation into a queue,
/// [`Fusion::notify`](crate::Fusion::notify) a step of a fusion buffer,
/// [`SparseAllreduce::notify`](crate::SparseAllreduce::notify) a step of a sparse allreduce, and
/// [`PartialAllreduce::notify`](crate::PartialAllreduce::notify) a result. Each gives one
/// [`Completion`], whether it succeeds or fails; nothing is lost and nothing comes twice. A thread
/// that waits drives the operations by itself, as [`Operation::wait`](crate::Operation::wait) does.
/// A queue that is dropped forgets what comes later; the operations go on. It is a handle of the
/// communicator that it was made from.
///
/// ```
/// use linerate::{Communicator, Config, ReduceOp};
/// use std::time::Duration;
/// let communicator = Communicator::join(0, 1, "a job with a queue", Config::default())?;
/// let queue = communicator.completion_queue()?;
/// let buffers = [communicator.alloc::<f32>(8)?, communicator.alloc::<f32>(8)?];
/// for (user, buffer) in (0..).zip(&buffers) {
///     communicator.start_all_reduce(buffer, ReduceOp::Sum)?.notify(&queue, user)?;
/// }
/// let mut ended = Vec::new();
/// while ended.len() < buffers.len() {
///     ended.extend(queue.wait(Duration::from_secs(1))?);
/// }
/// assert!(ended.iter().all(|completion| completion.result.is_ok()));
/// # Ok::<(), linerate::Error>(())
/// ```
pub struct CompletionQueue {
    communicator: Communicator,
    completions: Arc<Completions>,
    descriptor: OnceLock<Arc<OwnedFd>>,
}

impl Communicator {
    /// A queue for operations of this communicator and of all of its family. Not collective; any
    /// number may be made.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn completion_queue(&self) -> Result<CompletionQueue> {
        self.driving()?;
        Ok(CompletionQueue {
            communicator: self.clone(),
            completions: Arc::default(),
            descriptor: OnceLock::new(),
        })
    }
}

impl CompletionQueue {
    /// Waits until operations have ended, at most `limit`, and returns all that have, first the one
    /// that has ended first. The list is empty if none has. With `Duration::ZERO`, and always in a
    /// simulation, it drives once and looks.
    ///
    /// # Errors
    /// [`Error::Forked`]. Operations that fail are completions, not errors of the wait.
    pub fn wait(&self, limit: Duration) -> Result<Vec<Completion>> {
        let mut ended = Vec::new();
        self.wait_into(&mut ended, usize::MAX, limit)?;
        Ok(ended)
    }

    /// As [`CompletionQueue::wait`], but appends at most `max` completions to a list that the
    /// caller reuses, and returns how many.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn wait_into(
        &self,
        ended: &mut Vec<Completion>,
        max: usize,
        limit: Duration,
    ) -> Result<usize> {
        let driving = self.communicator.driving()?;
        let has_any = || self.completions.has_any();
        if max > 0 && !has_any() {
            driving.wait_for(limit, has_any);
        }
        Ok(self.completions.take(ended, max))
    }

    /// A place for an operation that `driving` drives, which is of this queue's family.
    pub(super) fn place(&self, driving: &Driving, user: u64) -> Result<QueuePlace> {
        let own = self.communicator.driving()?;
        if !Arc::ptr_eq(driving.family(), own.family()) {
            return Err(Error::invalid(
                "the queue is of another family: make it from a communicator that was made from this operation's, or the reverse",
            ));
        }
        Ok(self.completions.place(user))
    }

    /// A place for what a thread of its own drives, so that any queue may wait for it.
    pub(super) fn place_apart(&self, user: u64) -> Result<PlaceApart> {
        let family = self.communicator.driving()?.family().clone();
        Ok(PlaceApart {
            place: Some(self.completions.place(user)),
            family,
        })
    }

    /// Wakes the threads that wait if there is a completion: it may have come without an event that
    /// they sleep on.
    pub(super) fn wake(&self, driving: &Driving) {
        if self.completions.has_any() {
            driving.family().ring_callers();
        }
    }

    /// Operations in the queue that have not ended; 0 in a forked child, which has none.
    pub fn running_count(&self) -> usize {
        match self.communicator.driving() {
            Ok(_) => self.completions.running_count(),
            Err(_) => 0,
        }
    }

    /// An eventfd for poll, epoll and asyncio, which is readable exactly while completions wait to
    /// be taken. The caller only polls it. The first call begins the progress thread of the family,
    /// where there is none, so that operations end while nobody waits.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with [`Progress::Inline`](crate::Progress::Inline) and in a
    /// simulation; [`Error::Os`](crate::Error::Os) where no descriptor is left.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        self.communicator.driving()?;
        let progress = &self.communicator.inner.progress;
        progress.need_thread("a queue has no descriptor")?;
        let descriptor = self.completions.descriptor()?;
        Ok(self.descriptor.get_or_init(|| descriptor).as_fd())
    }
}

/// The place of a step that no thread of the queue's family drives. If it is dropped, the step ends
/// as cancelled.
#[derive(Debug)]
pub(super) struct PlaceApart {
    /// `None`: the step has ended.
    place: Option<QueuePlace>,
    family: Arc<Family>,
}

impl PlaceApart {
    /// The step has ended.
    pub(super) fn end(mut self, result: Result<()>) {
        if let Some(place) = self.place.take() {
            place.end(result, None);
        }
    }
}

impl Drop for PlaceApart {
    fn drop(&mut self) {
        self.place = None;
        // The threads that wait wake up and look at the queue.
        self.family.ring_callers();
    }
}

impl std::fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("communicator", &self.communicator)
            .field("completions", &self.completions)
            .finish_non_exhaustive()
    }
}
