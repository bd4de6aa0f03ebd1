//! Operations under way.

use crate::errors::{OrRaise, exception_of, invalid};
use crate::memory::Keep;
use crate::queue::CompletionQueue;
use crate::waiting;
use linerate::Error;
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// An operation with what keeps its memory.
pub struct Held {
    operation: linerate::Operation,
    keep: Vec<Keep>,
}

enum State {
    Running(Held),
    Ended(linerate::Result<()>),
}

/// Operations that nobody holds any more before they have ended. Their memory is kept until then.
static LEFT: Mutex<Vec<Held>> = Mutex::new(Vec::new());

/// Lets go of the memory of operations that nobody holds and that have ended.
pub fn sweep() {
    let ended: Vec<Held> = {
        let Ok(mut left) = LEFT.try_lock() else {
            return;
        };
        let is_over = |held: &mut Held| !matches!(held.operation.test(), Ok(false));
        left.extract_if(.., is_over).collect()
    };
    drop(ended);
}

/// A collective, send or receive that was started. It goes on by itself if nobody holds it.
#[pyclass(frozen, module = "linerate")]
pub struct Operation {
    state: Mutex<State>,
    source: Mutex<Option<u32>>,
    communicator: Py<crate::communicator::Communicator>,
}

impl Operation {
    pub fn new(
        operation: linerate::Operation,
        keep: Vec<Keep>,
        communicator: Py<crate::communicator::Communicator>,
    ) -> Operation {
        Operation {
            state: Mutex::new(State::Running(Held { operation, keep })),
            source: Mutex::default(),
            communicator,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `then` with the operation; if that says that it has ended, its memory is let go.
    /// `None`: it had ended before.
    fn look(
        &self,
        then: impl FnOnce(&mut linerate::Operation) -> linerate::Result<bool>,
    ) -> linerate::Result<bool> {
        let mut state = self.lock();
        let held = match &mut *state {
            State::Running(held) => held,
            State::Ended(result) => return result.clone().map(|()| true),
        };
        let result = then(&mut held.operation);
        if !matches!(result, Ok(false)) {
            *self.source.lock().unwrap_or_else(PoisonError::into_inner) = held.operation.source();
            let ended = State::Ended(result.clone().map(|_| ()));
            let before = std::mem::replace(&mut *state, ended);
            drop(state);
            // Python may be called by what keeps the memory: not under the lock.
            drop(before);
        }
        result
    }

    /// Waits for its end; false: `limit` has passed before.
    pub fn wait_for(&self, py: Python<'_>, limit: Option<Duration>) -> PyResult<bool> {
        waiting::wait(py, limit, |slice| self.look(|it| it.wait_timeout(slice)))
    }
}

#[pymethods]
impl Operation {
    /// Makes progress once, and says whether it has ended. Raises its error.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(|| self.look(linerate::Operation::test))
            .or_raise(py)
    }

    /// Waits for its end, at most `timeout` seconds: False if it has not ended by then. Raises its
    /// error. Ctrl-C ends the wait, not the operation.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let limit = waiting::seconds(py, "timeout", timeout)?;
        self.wait_for(py, limit)
    }

    /// The error of an operation that has failed; None if it has not, or has not ended.
    fn exception<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let error = match &*self.lock() {
            State::Ended(Err(error)) => Some(error.clone()),
            _ => None,
        };
        error.map(|error| exception_of(py, &error)).transpose()
    }

    /// Cancels it, and fails the communicator on all ranks. Nothing happens if it has ended.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        let cancelled = State::Ended(Err(Error::invalid("this operation was cancelled here")));
        let before = std::mem::replace(&mut *self.lock(), cancelled);
        let State::Running(held) = before else {
            *self.lock() = before;
            return Ok(());
        };
        let Held { operation, keep } = held;
        let result = py.detach(|| operation.cancel()).or_raise(py);
        drop(keep);
        result
    }

    /// Cancels a receive that has met no message yet; False: it has met one, or is something else.
    fn cancel_receive(&self, py: Python<'_>) -> PyResult<bool> {
        let mut state = self.lock();
        match &mut *state {
            State::Running(held) => held.operation.cancel_receive().or_raise(py),
            State::Ended(_) => Ok(false),
        }
    }

    /// The rank whose message a receive has met; None: none yet, or it is something else.
    #[getter]
    fn source(&self) -> Option<u32> {
        if let State::Running(held) = &*self.lock() {
            return held.operation.source();
        }
        *self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The communicator that it belongs to.
    #[getter]
    fn communicator<'py>(&self, py: Python<'py>) -> Bound<'py, crate::communicator::Communicator> {
        self.communicator.bind(py).clone()
    }

    /// Has a queue told, once, with the number `user` (0 to 2^64 - 1), when it has ended.
    fn notify(&self, py: Python<'_>, queue: &CompletionQueue, user: u64) -> PyResult<()> {
        let queue = queue.get(py)?;
        match &mut *self.lock() {
            State::Running(held) => held.operation.notify(&queue, user).or_raise(py),
            State::Ended(_) => Err(invalid(
                py,
                "this operation has ended and was waited for: a queue tells nothing of it any more",
            )),
        }
    }

    fn __await__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        waiting::in_asyncio(slf.into_any())
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let ended = State::Ended(Ok(()));
        if let State::Running(mut held) = std::mem::replace(state, ended)
            && matches!(held.operation.test(), Ok(false))
        {
            let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
            left.push(held);
        }
    }
}
