//! Fusion buffers: many small tensors, reduced in few large operations.

use crate::communicator::Communicator;
use crate::errors::{OrRaise, invalid};
use crate::memory::Keep;
use crate::queue::CompletionQueue;
use crate::vectors::Vector;
use crate::waiting;
use crate::words::tensors_of;
use linerate::transport::Time;
use linerate::{FusionOptions, ReduceOp, TensorSpec, reports};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use std::sync::{Arc, Mutex, PoisonError};

/// A fusion buffer. It reduces a declared set of tensors in every step, several together, while
/// others are still computed. A thread of its own agrees with the other ranks, packs and reduces.
///
/// Fusion(communicator, tensors) makes one for a list of tensors: (name, count) of f32, or (name,
/// count, type). Counts are elements. Collective: all ranks give equal arguments. It works on a
/// duplicate, so operations of the communicator may run at any time.
///
/// bytes_max: bytes of one flush, 1 to 2^40. A flush happens as soon as this much of one type is
/// ready on all ranks. A larger tensor goes alone and is reduced where it lies.
/// age_max: the seconds that a ready tensor waits for others, 0 to 3600.
/// tensors_max: the number of tensors of one flush, 1 or more; None: no limit.
/// buffers_count: the number of flushes under way at once, 1 to 8; each has a registered buffer of
/// at most bytes_max.
/// op: the operator, such as 'sum' or 'avg'.
/// plan: a list of flushes in place of rounds in which the ranks agree: for each a list of tensor
/// numbers. Flushes start in this order, each when its tensors are ready, and the first three
/// limits have no effect then. fusion_plan() makes one.
#[pyclass(frozen, module = "linerate")]
pub struct Fusion {
    // Dropped before the announced memory.
    inner: Mutex<Option<Arc<linerate::Fusion>>>,
    /// What keeps the memory that was announced in this step.
    announced: Arc<Mutex<Vec<Keep>>>,
    communicator: Py<Communicator>,
    tensors: Vec<TensorSpec>,
}

/// The options, of those that plans look at, too.
pub fn options_of(bytes_max: u64, tensors_max: Option<usize>) -> FusionOptions {
    FusionOptions {
        bytes_max,
        tensors_max: tensors_max.unwrap_or(usize::MAX),
        ..FusionOptions::default()
    }
}

impl Fusion {
    fn get(&self, py: Python<'_>) -> PyResult<Arc<linerate::Fusion>> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        (inner.clone()).ok_or_else(|| invalid(py, "this fusion buffer was closed"))
    }
}

#[pymethods]
impl Fusion {
    #[new]
    #[pyo3(signature = (
        communicator, tensors, *, bytes_max=67108864, age_max=0.005, tensors_max=None, buffers_count=3,
        op="sum", plan=None
    ))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        communicator: Py<Communicator>,
        tensors: &Bound<'_, PyAny>,
        bytes_max: u64,
        age_max: f64,
        tensors_max: Option<usize>,
        buffers_count: usize,
        op: &str,
        plan: Option<Vec<Vec<u32>>>,
    ) -> PyResult<Fusion> {
        let options = FusionOptions {
            age_max: waiting::seconds(py, "age_max", Some(age_max))?.unwrap_or_default(),
            buffers_count,
            op: op.parse::<ReduceOp>().or_raise(py)?,
            ..options_of(bytes_max, tensors_max)
        };
        let tensors = tensors_of(tensors)?;
        let (comm, declared) = (communicator.get().get(py)?, tensors.clone());
        let made = waiting::run(py, move || match plan {
            Some(plan) => linerate::Fusion::with_plan(&comm, options, declared, &plan),
            None => linerate::Fusion::new(&comm, options, declared),
        })?;
        Ok(Fusion {
            inner: Mutex::new(Some(Arc::new(made))),
            announced: Arc::default(),
            communicator,
            tensors,
        })
    }

    /// Says that a tensor is computed and lies in `memory`, as many elements as were declared, and
    /// returns at once. The memory belongs to the fusion buffer until wait() returns; then it holds
    /// the reduction. Each rank announces each tensor once in a step, in any order. Memory of
    /// Communicator.alloc() is the fastest.
    fn announce(&self, py: Python<'_>, tensor: usize, memory: &Bound<'_, PyAny>) -> PyResult<()> {
        let fusion = self.get(py)?;
        let Some(spec) = self.tensors.get(tensor) else {
            let declared = self.tensors.len();
            let text = format!("tensor {tensor} announced, {declared} are declared");
            return Err(invalid(py, text));
        };
        let communicator = self.communicator.get().get(py)?;
        let length = (spec.count, spec.dtype);
        let Vector { buffer, keep } = Vector::of(&communicator, ("memory", memory), true, length)?;
        py.detach(|| fusion.announce(tensor, &buffer))
            .or_raise(py)?;
        let mut announced = self
            .announced
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        announced.push(keep);
        Ok(())
    }

    /// Says that this rank announces no more tensors in this step, so that what is ready is
    /// reduced without waiting for more. wait() does it, too: call this if the thread does other
    /// work before.
    fn end_of_backward(&self, py: Python<'_>) -> PyResult<()> {
        let fusion = self.get(py)?;
        py.detach(|| fusion.end_of_backward()).or_raise(py)
    }

    /// Waits until every tensor of the step is reduced on this rank, begins the next step, and
    /// returns the report of this one. After an error, close it and make another one; the
    /// communicator is still good, unless a rank has died. Ctrl-C ends the wait; the step goes on,
    /// and its report is not given again.
    fn wait(&self, py: Python<'_>) -> PyResult<StepReport> {
        let (fusion, announced) = (self.get(py)?, self.announced.clone());
        let (done, keep) = waiting::run(py, move || {
            let done = fusion.wait();
            let mut announced = announced.lock().unwrap_or_else(PoisonError::into_inner);
            // After an error the memory is kept for as long as the fusion buffer.
            let keep = match done {
                Ok(_) => std::mem::take(&mut *announced),
                Err(_) => Vec::new(),
            };
            drop(announced);
            Ok((done, keep))
        })?;
        drop(keep);
        Ok(StepReport(done.or_raise(py)?))
    }

    /// Announces all tensors, in the order of the declaration, and waits: `memory` is a list with
    /// an array for each, which then holds the reduction.
    fn all_reduce(&self, py: Python<'_>, memory: &Bound<'_, PyList>) -> PyResult<StepReport> {
        let (given, declared) = (memory.len(), self.tensors.len());
        if given != declared {
            let text = format!("memory is a list of {given}, and {declared} are needed");
            return Err(invalid(py, text));
        }
        for (tensor, own) in memory.iter().enumerate() {
            self.announce(py, tensor, &own)?;
        }
        self.wait(py)
    }

    /// Has a queue told, once, with the number `user`, when every tensor of this step is reduced or
    /// the fusion buffer has failed; wait() then returns at once. Call end_of_backward(), too.
    fn notify(&self, py: Python<'_>, queue: &CompletionQueue, user: u64) -> PyResult<()> {
        let (fusion, queue) = (self.get(py)?, queue.get(py)?);
        py.detach(|| fusion.notify(&queue, user)).or_raise(py)
    }

    /// The time now, in seconds, on the clock of the reports, which starts at 0 when the fusion
    /// buffer is made.
    fn now(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(seconds(self.get(py)?.now()))
    }

    /// The tensors in the order of the declaration: (name, count, type).
    #[getter]
    fn tensors(&self) -> Vec<(String, u64, &'static str)> {
        let each = self.tensors.iter();
        each.map(|one| (one.name.clone(), one.count, one.dtype.name()))
            .collect()
    }

    /// The communicator that it was made from.
    #[getter]
    fn communicator<'py>(&self, py: Python<'py>) -> Bound<'py, Communicator> {
        self.communicator.bind(py).clone()
    }

    /// Ends it on this rank. A step that is under way fails on all ranks. Nothing happens if it was
    /// closed before.
    fn close(&self, py: Python<'_>) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = inner.take();
        drop(inner);
        py.detach(|| drop(taken));
    }

    fn __repr__(&self) -> String {
        format!("linerate.Fusion({} tensors)", self.tensors.len())
    }
}

fn seconds(time: Time) -> f64 {
    time.since(Time(0)).as_secs_f64()
}

/// What a fusion buffer did in a step. Times are seconds since it was made, by this rank's clock.
#[pyclass(frozen, module = "linerate")]
pub struct StepReport(reports::StepReport);

#[pymethods]
impl StepReport {
    /// The number of the step, from 0 on.
    #[getter]
    fn step(&self) -> u64 {
        self.0.step_index
    }

    /// The flushes in the order of their start, equal on all ranks but for times.
    #[getter]
    fn flushes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.flushes.iter().cloned().map(FlushReport))
    }

    /// The number of rounds in which the ranks agreed; 0 with a plan.
    #[getter]
    fn rounds_count(&self) -> u64 {
        self.0.rounds_count
    }

    /// The number of bytes that were reduced.
    #[getter]
    fn bytes(&self) -> u64 {
        self.0.flushes.iter().map(|flush| flush.bytes).sum()
    }

    /// When the first tensor was announced.
    #[getter]
    fn begin(&self) -> f64 {
        seconds(self.0.begin)
    }

    /// When the backward pass ended.
    #[getter]
    fn backward_end(&self) -> f64 {
        seconds(self.0.backward_end)
    }

    /// When all tensors were reduced.
    #[getter]
    fn done(&self) -> f64 {
        seconds(self.0.done)
    }

    /// The time from the end of the backward pass until all was reduced.
    #[getter]
    fn exposed(&self) -> f64 {
        self.0.exposed().as_secs_f64()
    }

    /// How long at least one flush was under way.
    #[getter]
    fn communication(&self) -> f64 {
        self.0.communication().as_secs_f64()
    }

    /// The share of that time that the backward pass has hidden, 0 to 1.
    #[getter]
    fn overlap(&self) -> f64 {
        self.0.overlap()
    }

    fn __repr__(&self) -> String {
        format!("linerate.StepReport({})", self.0)
    }
}

/// One flush of a step: several tensors that were reduced together. Times are as in StepReport.
#[pyclass(frozen, module = "linerate")]
pub struct FlushReport(reports::FlushReport);

#[pymethods]
impl FlushReport {
    /// The type of its elements, such as 'f32'.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.0.dtype.name()
    }

    /// The number of bytes of all its tensors.
    #[getter]
    fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// The numbers of its tensors, in the order in which they were packed.
    #[getter]
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.tensors)
    }

    /// When the last of them was announced.
    #[getter]
    fn ready(&self) -> f64 {
        seconds(self.0.ready)
    }

    /// When its allreduce was started.
    #[getter]
    fn start(&self) -> f64 {
        seconds(self.0.start)
    }

    /// When its allreduce had ended.
    #[getter]
    fn end(&self) -> f64 {
        seconds(self.0.end)
    }

    fn __repr__(&self) -> String {
        format!("linerate.FlushReport({})", self.0)
    }
}
