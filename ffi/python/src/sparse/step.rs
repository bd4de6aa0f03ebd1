//! The steps of a sparse allreduce: one under way at a time, and the latest result.

use super::{SparseAllreduce, SparseReport};
use crate::communicator::Communicator;
use crate::errors::{OrRaise, exception_of};
use crate::memory::Keep;
use crate::queue::CompletionQueue;
use crate::waiting;
use linerate::{Buffer, Error, SparseResult};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// How a step ended. Its handle and the steps share it.
pub type Outcome = OnceLock<linerate::Result<SparseReport>>;

/// How often a wait looks for a step that another queue is told of.
const BESIDE: Duration = Duration::from_millis(1);

/// Which queue is told of the end of a step.
#[derive(Clone, Copy, PartialEq)]
pub enum Told {
    Nobody,
    Own,
    Caller,
}

/// A step under way.
pub struct Pending {
    /// Written when it has ended; empty: none is.
    pub outputs: Vec<Buffer<f32>>,
    pub told: Told,
    pub keep: Vec<Keep>,
    pub outcome: Arc<Outcome>,
}

/// A sparse allreduce, its step under way, and its latest result.
pub struct Steps {
    // Dropped before the memory of the step.
    pub sparse: linerate::SparseAllreduce,
    /// Threads that wait here move the step.
    queue: Arc<linerate::CompletionQueue>,
    pending: Option<Pending>,
    latest: Option<SparseResult>,
}

/// Sparse allreduces that nobody holds any more while a step is under way. The memory of the step
/// is kept until it has ended.
static LEFT: Mutex<Vec<Steps>> = Mutex::new(Vec::new());

/// Lets go of the memory of steps that nobody holds and that have ended.
pub fn sweep() {
    let Ok(mut left) = LEFT.try_lock() else {
        return;
    };
    let is_over = |steps: &mut Steps| !matches!(steps.sparse.test(), Ok(None));
    let ended: Vec<Steps> = left.extract_if(.., is_over).collect();
    drop(left);
    drop(ended);
}

impl Steps {
    pub fn new(sparse: linerate::SparseAllreduce, queue: linerate::CompletionQueue) -> Steps {
        Steps {
            sparse,
            queue: Arc::new(queue),
            pending: None,
            latest: None,
        }
    }

    pub fn start(&mut self, gradients: &[Buffer<f32>], pending: Pending) -> linerate::Result<()> {
        self.sparse.start(gradients)?;
        self.pending = Some(pending);
        Ok(())
    }

    /// Runs a dense step with the residuals alone.
    pub fn flush(&mut self, outputs: &[Buffer<f32>]) -> linerate::Result<SparseReport> {
        let result = self.sparse.flush_residual()?;
        let report = SparseReport::of(&self.sparse, &result);
        store(self.latest.insert(result), outputs)?;
        Ok(report)
    }

    pub fn result(&self) -> linerate::Result<&SparseResult> {
        let latest = self.latest.as_ref();
        latest.ok_or_else(|| Error::invalid("a sparse allreduce has no result before a step"))
    }

    /// Moves the step under way, and returns what kept its memory if it has ended.
    pub fn advance(&mut self) -> Option<Vec<Keep>> {
        self.pending.as_ref()?;
        let ended = match self.sparse.test() {
            Ok(None) => return None,
            Ok(Some(result)) => Ok(result),
            Err(error) => Err(error),
        };
        let pending = self.pending.take()?;
        let told = ended.and_then(|result| {
            let report = SparseReport::of(&self.sparse, &result);
            let result = self.latest.insert(result);
            store(result, &pending.outputs)?;
            Ok(report)
        });
        let _ = pending.outcome.set(told);
        Some(pending.keep)
    }

    /// The queue that is told of the end of the step under way, if that is ours.
    fn own_queue(&mut self) -> linerate::Result<Option<Arc<linerate::CompletionQueue>>> {
        let Some(pending) = &mut self.pending else {
            return Ok(None);
        };
        if pending.told == Told::Nobody {
            self.sparse.notify(&self.queue, OWN)?;
            pending.told = Told::Own;
        }
        Ok((pending.told == Told::Own).then(|| self.queue.clone()))
    }

    /// Nobody holds it any more.
    pub fn leave(self) {
        sweep();
        if self.pending.is_some() {
            let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
            left.push(self);
        }
    }
}

/// The number of a step in our own queue, which has one at a time.
const OWN: u64 = 0;

/// Sets outputs to a result.
fn store(result: &SparseResult, outputs: &[Buffer<f32>]) -> linerate::Result<()> {
    if outputs.is_empty() {
        return Ok(());
    }
    for output in outputs {
        output.as_mut_slice()?.fill(0.0);
    }
    result.add_to(outputs, 1.0)
}

/// A step of a sparse allreduce that was started. It is awaited and waited for as an Operation is;
/// its outputs are written when a call here sees that it has ended.
#[pyclass(frozen, module = "linerate")]
pub struct SparseStep {
    sparse: Py<SparseAllreduce>,
    outcome: Arc<Outcome>,
}

impl SparseStep {
    pub fn new(sparse: Py<SparseAllreduce>, outcome: Arc<Outcome>) -> SparseStep {
        SparseStep { sparse, outcome }
    }

    pub fn report_of(&self) -> Option<SparseReport> {
        self.outcome.get()?.as_ref().ok().cloned()
    }

    /// Whether it has ended; its error.
    fn test(&self) -> linerate::Result<bool> {
        if self.outcome.get().is_none() {
            // Python may be called by what keeps the memory: not under the lock.
            let keep = self.sparse.get().lock().as_mut().map(Steps::advance);
            drop(keep);
        }
        match self.outcome.get() {
            Some(Ok(_)) => Ok(true),
            Some(Err(error)) => Err(error.clone()),
            None if self.sparse.get().lock().is_none() => {
                Err(Error::invalid("this sparse allreduce was closed"))
            }
            None => Ok(false),
        }
    }

    /// Waits a while for its end.
    fn wait_slice(&self, slice: Duration) -> linerate::Result<bool> {
        if self.test()? || slice.is_zero() {
            return self.test();
        }
        let queue = match &mut *self.sparse.get().lock() {
            Some(steps) => steps.own_queue()?,
            None => None,
        };
        match queue {
            Some(queue) => {
                queue.wait_into(&mut Vec::new(), usize::MAX, slice)?;
            }
            None => std::thread::sleep(slice.min(BESIDE)),
        }
        self.test()
    }

    /// Waits for its end; false: `limit` has passed before.
    pub fn wait_for(&self, py: Python<'_>, limit: Option<Duration>) -> PyResult<bool> {
        waiting::wait(py, limit, |slice| self.wait_slice(slice))
    }
}

#[pymethods]
impl SparseStep {
    /// Makes progress once, and says whether it has ended. Raises its error.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(|| self.test()).or_raise(py)
    }

    /// Waits for its end, at most `timeout` seconds: False if it has not ended by then. Raises its
    /// error. Ctrl-C ends the wait, not the step.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let limit = waiting::seconds(py, "timeout", timeout)?;
        self.wait_for(py, limit)
    }

    /// The error of a step that has failed; None if it has not, or has not ended.
    fn exception<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.outcome.get() {
            Some(Err(error)) => Ok(Some(exception_of(py, error)?)),
            _ => Ok(None),
        }
    }

    /// What it did; None if it has failed, or has not ended.
    #[getter]
    fn report(&self) -> Option<SparseReport> {
        self.report_of()
    }

    /// The communicator that it belongs to.
    #[getter]
    fn communicator<'py>(&self, py: Python<'py>) -> Bound<'py, Communicator> {
        self.sparse.get().communicator.bind(py).clone()
    }

    /// Has a queue told, once, with the number `user`, when it has ended; wait() or done() then
    /// writes the outputs. The queue is of the communicator or of one made from it. Threads that
    /// wait for the queue move the step.
    fn notify(&self, py: Python<'_>, queue: &CompletionQueue, user: u64) -> PyResult<()> {
        let queue = queue.get(py)?;
        self.sparse.get().with(py, |steps| {
            steps.sparse.notify(&queue, user)?;
            if let Some(pending) = &mut steps.pending {
                pending.told = Told::Caller;
            }
            Ok(())
        })
    }

    fn __await__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        waiting::in_asyncio(slf.into_any())
    }

    fn __repr__(&self) -> String {
        let state = match self.outcome.get() {
            None => "under way",
            Some(Ok(_)) => "ended",
            Some(Err(_)) => "failed",
        };
        format!("linerate.SparseStep({state})")
    }
}
