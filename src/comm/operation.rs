//! [`Operation`]: a started operation.

use super::call::Call;
use super::communicator::Communicator;
use super::driving::Driving;
use super::queue::CompletionQueue;
use super::say::say;
use crate::engine::{Engine, Source, TaskId};
use crate::error::{Error, Result};
use crate::types::Rank;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// A started operation. It borrows its buffers until it has ended. If it is dropped before that, it
/// goes on until the last handle of its communicator is dropped. An operation is itself such a
/// handle.
///
/// It is also a future, for any executor. The first poll starts the progress thread of the
/// communicator, if none runs. With [`Progress::Inline`](crate::Progress::Inline) the future
/// returns an error.
///
/// ```
/// use linerate::{Communicator, Config, ReduceOp};
/// # fn block_on<T>(future: impl Future<Output = T>) -> T {
/// #     struct Unpark(std::thread::Thread);
/// #     impl std::task::Wake for Unpark {
/// #         fn wake(self: std::sync::Arc<Self>) { self.0.unpark() }
/// #     }
/// #     let waker = std::task::Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
/// #     let mut future = std::pin::pin!(future);
/// #     loop {
/// #         match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
/// #             std::task::Poll::Ready(result) => return result,
/// #             std::task::Poll::Pending => std::thread::park(),
/// #         }
/// #     }
/// # }
/// let communicator = Communicator::join(0, 1, "a job with futures", Config::default())?;
/// let gradients = communicator.alloc::<f32>(1 << 20)?;
/// block_on(async {
///     communicator.start_all_reduce(&gradients, ReduceOp::Sum)?.await
/// })?;
/// # Ok::<(), linerate::Error>(())
/// ```
#[must_use = "an operation that nobody waits for may not have ended when its result is read"]
pub struct Operation {
    communicator: Communicator,
    /// The task that it waits for now.
    task: TaskId,
    /// Its other tasks, if it has several.
    rest: Option<Box<Rest>>,
    /// Once it is known, the engine has forgotten the task.
    result: Option<Result<()>>,
    is_in_queue: bool,
    /// Of a receive with a tag: who has sent its message.
    source: Option<Source>,
}

/// The other tasks of an operation that has several.
struct Rest {
    /// In reverse order: the next one is the last.
    tasks: Vec<TaskId>,
    /// The error of the first task that failed.
    failure: Option<Error>,
}

impl Communicator {
    /// Starts an operation and returns at once. All ranks start collectives in the same order, and
    /// each pair of ranks starts groups of sends and receives in matching order. Any number may be
    /// under way.
    ///
    /// Errors: arguments that do not fit (nothing has been started then), or a communicator that
    /// has failed.
    pub(super) fn start(&self, call: &Call<'_>) -> Result<Operation> {
        let task = self.start_call(call)?;
        Ok(Operation::new(self, task, None))
    }

    /// Starts an operation for a user, who may compute while it runs. It advances as
    /// [`Config::progress`](crate::Config::progress) says.
    pub(super) fn start_and_overlap(&self, call: &Call<'_>) -> Result<Operation> {
        self.settle()?;
        self.start(call)
    }

    /// Decides, before the first operation that a user starts, whether a thread moves operations.
    pub(super) fn settle(&self) -> Result<()> {
        self.driving()?;
        if !self.inner.progress.settle()? && self.inner.config.debug {
            say(&format!(
                "rank {}: operations advance inside calls only, because the host has no more cores than ranks or \
                 LINERATE_PROGRESS is inline (thread overlaps all the same)",
                self.rank()
            ));
        }
        Ok(())
    }
}

impl Operation {
    /// The operation of a task that has been submitted.
    pub(super) fn new(comm: &Communicator, task: TaskId, source: Option<Source>) -> Operation {
        Operation {
            communicator: comm.clone(),
            task,
            rest: None,
            result: None,
            is_in_queue: false,
            source,
        }
    }

    /// One operation of all these tasks. It has ended if there are none.
    pub(super) fn of_all(comm: &Communicator, mut tasks: Vec<TaskId>) -> Operation {
        tasks.reverse();
        let first = tasks.pop();
        let mut operation = Operation::new(comm, first.unwrap_or(TaskId::NONE), None);
        operation.result = first.is_none().then_some(Ok(()));
        operation.rest = (!tasks.is_empty()).then(|| {
            Box::new(Rest {
                tasks,
                failure: None,
            })
        });
        operation
    }

    /// Notes the end of the task that it waits for. Returns true if it now waits for another task.
    fn note(&mut self, ended: Option<Result<()>>) -> bool {
        let Some(result) = ended else {
            return false;
        };
        let Some(rest) = &mut self.rest else {
            self.result = Some(result);
            return false;
        };
        match rest.tasks.pop() {
            Some(next) => {
                self.task = next;
                rest.failure = rest.failure.take().or(result.err());
                true
            }
            None => {
                self.result = Some(rest.failure.take().map_or(result, Err));
                false
            }
        }
    }

    /// The tasks that have not ended, as far as is known.
    fn tasks(&self) -> impl Iterator<Item = &TaskId> {
        let rest = self.rest.iter().flat_map(|rest| &rest.tasks);
        std::iter::once(&self.task).chain(rest)
    }

    fn driving(&self) -> Result<&Arc<Driving>> {
        self.communicator.driving()
    }

    /// The result, if there is one; otherwise the progress thread wakes the waker of `context` when
    /// there is one. An error if no progress thread can run.
    fn watch(&self, context: &Context<'_>) -> Result<Option<Result<()>>> {
        let driving = self.driving()?;
        let progress = &self.communicator.inner.progress;
        progress.need_thread("an operation cannot be awaited")?;
        Ok(driving.watch(self.task, context.waker()))
    }

    /// Puts the operation into a queue, once: when it has ended, the queue has a completion with
    /// the number `user`. After this call the operation may be dropped, or waited for as well.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: the queue is of another family, or the operation is in a queue
    /// already; [`Error::Forked`].
    pub fn notify(&mut self, queue: &CompletionQueue, user: u64) -> Result<()> {
        let driving = self.driving()?;
        if self.is_in_queue {
            return Err(Error::invalid(format!(
                "an operation is in one queue, once: this one, with user {user}, is in one already"
            )));
        }
        let place = queue.place(driving, user)?;
        match &self.result {
            Some(result) => place.end(result.clone(), self.source()),
            None => match &self.rest {
                None => driving.engine().notify(self.task, place),
                Some(rest) => {
                    let places = place.split(1 + rest.tasks.len(), rest.failure.clone());
                    let mut engine = driving.engine();
                    let tasks = self.tasks().zip(places);
                    tasks.for_each(|(task, place)| engine.notify(*task, place));
                }
            },
        }
        queue.wake(driving);
        self.is_in_queue = true;
        Ok(())
    }

    /// Makes progress once; returns whether the operation has ended. If it has failed, this returns
    /// its error, and so does [`Operation::wait`].
    pub fn test(&mut self) -> Result<bool> {
        while self.result.is_none() {
            let ended = self.driving()?.test(self.task);
            if !self.note(ended) {
                break;
            }
        }
        self.driving()?;
        self.result
            .clone()
            .map_or(Ok(false), |result| result.map(|()| true))
    }

    /// Waits for its end. It fails if nothing moves for the communicator's timeout, neither in it
    /// nor in operations started before it.
    pub fn wait(mut self) -> Result<()> {
        self.wait_at_most(None, || false)?;
        self.result
            .clone()
            .expect("a wait without a limit ends with a result")
    }

    /// Waits at most for `limit`. `Ok(false)`: it has not ended.
    pub fn wait_timeout(&mut self, limit: Duration) -> Result<bool> {
        self.wait_timeout_unless(limit, || false)
    }

    /// As [`Self::wait_timeout`], but also stops when `is_given_up`. A thread that makes it true
    /// calls [`Driving::ring`] afterwards.
    pub(super) fn wait_timeout_unless(
        &mut self,
        limit: Duration,
        is_given_up: impl Fn() -> bool,
    ) -> Result<bool> {
        self.wait_at_most(Some(limit), is_given_up)?;
        self.result
            .clone()
            .map_or(Ok(false), |result| result.map(|()| true))
    }

    /// Takes the result if the operation has ended. The caller holds the engine and has driven it.
    pub(super) fn look(&mut self, engine: &mut Engine) {
        while self.result.is_none() {
            let ended = engine.result(self.task);
            if ended.is_some() {
                engine.release(self.task);
            }
            if !self.note(ended) {
                break;
            }
        }
    }

    /// Whether a test, a wait or [`Operation::look`] has found its end.
    pub(super) fn is_over(&self) -> bool {
        self.result.is_some()
    }

    /// Whether a [`look`](Operation::look) may note something.
    pub(super) fn has_ended(&self, engine: &Engine) -> bool {
        self.is_over() || engine.result(self.task).is_some()
    }

    /// The result of an operation that has ended.
    pub(super) fn result(&self) -> Result<()> {
        self.result.clone().expect("it has ended")
    }

    /// Takes the result if the operation ends in time. An error is of the wait, not of the
    /// operation.
    fn wait_at_most(
        &mut self,
        limit: Option<Duration>,
        is_given_up: impl Fn() -> bool,
    ) -> Result<()> {
        self.driving()?;
        let clock = self.communicator.inner.clock.clone();
        let deadline = limit.map(|limit| clock.now().after(limit));
        while self.result.is_none() {
            let left = deadline.map(|deadline| deadline.since(clock.now()));
            let ended = self.driving()?.wait_unless(self.task, left, &is_given_up)?;
            if !self.note(ended) {
                break;
            }
        }
        Ok(())
    }

    /// The rank whose message a receive with a tag has met ([`Communicator::tagged`]); `None`: it
    /// has not met one yet, or this is another operation.
    pub fn source(&self) -> Option<Rank> {
        self.source.as_ref().and_then(Source::rank)
    }

    /// Cancels a receive with a tag that has met no message yet, and nothing else: it fails with
    /// [`Error::ReceiveCancelled`], and the next receive gets the message that it would have got.
    /// Returns false if there is nothing to cancel: the receive has met a message and goes on, has
    /// ended, or this is another operation.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn cancel_receive(&mut self) -> Result<bool> {
        let driving = self.driving()?.clone();
        if self.result.is_some() {
            return Ok(false);
        }
        let mut engine = driving.engine();
        let is_cancelled = engine.cancel_receive(self.task);
        self.look(&mut engine);
        drop(engine);
        if is_cancelled {
            // It may be in a queue for which another thread waits.
            driving.ring();
            driving.family().ring_callers();
        }
        Ok(is_cancelled)
    }

    /// Cancels the operation, which fails the communicator on all ranks.
    pub fn cancel(self) -> Result<()> {
        self.driving()?.cancel(self.task);
        Ok(())
    }
}

impl Future for Operation {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        while self.result.is_none() {
            let watched = self.watch(context);
            match watched {
                Ok(ended) => {
                    if !self.note(ended) {
                        break;
                    }
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        self.result.clone().map_or(Poll::Pending, Poll::Ready)
    }
}

impl std::fmt::Debug for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operation")
            .field("communicator", &self.communicator)
            .field("result", &self.result)
            .finish_non_exhaustive()
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        // In a forked child this leaves the parent's task alone.
        if let (None, Ok(driving)) = (&self.result, self.driving()) {
            let mut engine = driving.engine();
            self.tasks().for_each(|task| engine.release(*task));
        }
    }
}
