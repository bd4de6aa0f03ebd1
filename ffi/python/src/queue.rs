//! Completion queues.

use crate::errors::{OrRaise, exception_of, invalid};
use crate::waiting;
use pyo3::prelude::*;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError};

/// What is told of an operation: its number, its error or None, and the source of a receive.
type Told<'py> = (u64, Option<Bound<'py, PyAny>>, Option<u32>);

/// Many operations are waited for at once: those of the communicator that made the queue and of
/// all that were made from it or from which it was made.
#[pyclass(frozen, module = "linerate")]
pub struct CompletionQueue {
    queue: Mutex<Option<Arc<linerate::CompletionQueue>>>,
}

impl CompletionQueue {
    pub fn new(queue: linerate::CompletionQueue) -> CompletionQueue {
        CompletionQueue {
            queue: Mutex::new(Some(Arc::new(queue))),
        }
    }

    pub fn get(&self, py: Python<'_>) -> PyResult<Arc<linerate::CompletionQueue>> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        (queue.clone()).ok_or_else(|| invalid(py, "this queue was closed"))
    }
}

#[pymethods]
impl CompletionQueue {
    /// Waits until operations have ended, at most `timeout` seconds, and returns all that have: for
    /// each its number, its error or None, and the source of a receive or None. An empty list if
    /// none has. Ctrl-C ends the wait.
    #[pyo3(signature = (timeout=None))]
    fn wait<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Vec<Told<'py>>> {
        let (queue, limit) = (self.get(py)?, waiting::seconds(py, "timeout", timeout)?);
        let mut ended = Vec::new();
        waiting::wait(py, limit, |slice| {
            queue.wait_into(&mut ended, usize::MAX, slice)?;
            Ok(!ended.is_empty())
        })?;
        let told = ended.into_iter().map(|completion| {
            let error = completion
                .result
                .err()
                .map(|error| exception_of(py, &error));
            Ok((completion.user, error.transpose()?, completion.source))
        });
        told.collect()
    }

    /// A descriptor for select and poll that is readable exactly while completions wait to be
    /// taken. It is closed with the queue. From the first call on a thread moves the operations.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let queue = self.get(py)?;
        Ok(queue.descriptor().or_raise(py)?.as_raw_fd())
    }

    /// The number of operations of the queue that have not ended.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.get(py)?.running_count())
    }

    /// A queue is true, also with no operation in it.
    fn __bool__(&self) -> bool {
        true
    }

    /// Closes the queue. Operations in it go on, and nobody is told.
    fn close(&self, py: Python<'_>) {
        let queue = self
            .queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        py.detach(|| drop(queue));
    }
}
