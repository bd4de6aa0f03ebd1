//! Sparse allreduces: only the largest entries of gradients travel.
//!
//! `options.rs` reads the options, `step.rs` has steps under way, `report.rs` tells of them.

mod options;
mod report;
mod step;

use crate::buffer::Buffer;
use crate::communicator::Communicator;
use crate::errors::{OrRaise, invalid};
use crate::memory::Keep;
use crate::vectors::Vector;
use crate::waiting;
use crate::words::tensors_of;
use linerate::{DataType, Error};
use options::Chosen;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use report::{SparseReport, Traffic};
pub use step::SparseStep;
use step::{Outcome, Pending, Steps, Told};

/// An allreduce of the largest entries of gradients. Every rank keeps residuals: what was not sent
/// yet. A step adds the gradients to the residuals, selects about k entries of largest magnitude,
/// and sums what all ranks selected. Entries that are in no sum stay in the residuals.
///
/// SparseAllreduce(communicator, tensors) makes one for one tensor, if `tensors` is a number of
/// elements, or for a list of tensors: (name, count). All are f32, and the names differ.
/// Collective: all ranks give equal arguments. Its steps are operations of the communicator: all
/// ranks run them in one order with the others, and start no other operation on it until a step
/// has ended, but on a duplicate.
///
/// algorithm: 'oktopk', 'topka', 'topka2', 'topkdsa', 'topkdsa-small', 'topkdsa-big',
/// 'topkdsa-doubling', 'gtopk', 'gaussiank', 'dense' or 'auto' (by the cost model and the steps
/// before).
/// density or k: the share of all elements that a step selects, above 0 and at most 1, or how many;
/// 1 % if none is given.
/// per_tensor: the density or k is of each tensor, and not of all together.
/// mode: 'exact' selects exactly k entries in every step, 'threshold' finds thresholds once in
/// reuse_steps steps, 'paper' works as the published code.
/// reuse_steps, repartition_steps: steps between two exact thresholds and between two cuts of the
/// regions, 1 or more.
/// regions: 'balanced', 'averaged' or 'equal'.
/// balance: when the selected entries are spread evenly: 'auto', 'paper', 'cost', 'always' or
/// 'never'.
/// switch: from which fill-in on 'topkdsa' sends values without indices: 'oktopk' (a third) or
/// 'sparcml' (half).
/// values, indices: what is on the wire: 'f32', 'bf16' or 'i8'; 'auto', 'u32' or 'u64'.
/// non_finite: a value that is not finite is an 'error' on all ranks, has all ranks 'skip' the
/// step, or is left out ('count').
/// warm_up_steps: the number of first steps that are dense.
/// is_average: the result is divided by the number of ranks.
#[pyclass(frozen, module = "linerate")]
pub struct SparseAllreduce {
    steps: Mutex<Option<Steps>>,
    communicator: Py<Communicator>,
    names: Vec<(String, u64)>,
    k: u64,
}

impl SparseAllreduce {
    fn lock(&self) -> MutexGuard<'_, Option<Steps>> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `then` with the steps, without the interpreter.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        then: impl FnOnce(&mut Steps) -> linerate::Result<T> + Send,
    ) -> PyResult<T> {
        let call = || match &mut *self.lock() {
            Some(steps) => then(steps),
            None => Err(Error::invalid("this sparse allreduce was closed")),
        };
        py.detach(call).or_raise(py)
    }

    fn vectors(
        &self,
        name: &str,
        argument: &Bound<'_, PyAny>,
        is_written: bool,
    ) -> PyResult<(Vec<linerate::Buffer<f32>>, Vec<Keep>)> {
        let py = argument.py();
        let communicator = self.communicator.get().get(py)?;
        let lengths = self.names.iter().map(|(_, count)| (*count, DataType::F32));
        let lengths: Vec<_> = lengths.collect();
        let vectors = Vector::all_of(&communicator, (name, argument), is_written, &lengths)?;
        let (mut buffers, mut keep) = (Vec::new(), Vec::new());
        for vector in vectors {
            buffers.push(vector.buffer.cast::<f32>().or_raise(py)?);
            keep.push(vector.keep);
        }
        Ok((buffers, keep))
    }

    fn check_tensor(&self, py: Python<'_>, tensor: usize) -> PyResult<&str> {
        let found = self.names.get(tensor).map(|(name, _)| name.as_str());
        let declared = self.names.len();
        found.ok_or_else(|| invalid(py, format!("tensor {tensor}: {declared} are declared")))
    }

    /// The residual of a tensor, as the library has it.
    fn residual_of(&self, py: Python<'_>, tensor: usize) -> PyResult<linerate::Buffer<f32>> {
        let name = self.check_tensor(py, tensor)?;
        let found = |steps: &mut Steps| Ok(steps.sparse.residual(name).cloned());
        self.with(py, found)?
            .ok_or_else(|| invalid(py, format!("there is no residual of '{name}'")))
    }

    /// Starts a step.
    fn start(
        slf: &Bound<'_, Self>,
        gradients: &Bound<'_, PyAny>,
        outputs: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<SparseStep> {
        let (py, own) = (slf.py(), slf.get());
        let (read, mut keep) = own.vectors("gradients", gradients, false)?;
        let outputs = match outputs {
            Some(outputs) => {
                let (outputs, kept) = own.vectors("outputs", outputs, true)?;
                keep.extend(kept);
                outputs
            }
            None => Vec::new(),
        };
        let outcome = Arc::new(Outcome::default());
        let pending = Pending {
            outputs,
            told: Told::Nobody,
            keep,
            outcome: outcome.clone(),
        };
        // A wait for the step before may have been given up.
        drop(own.with(py, |steps| Ok(steps.advance()))?);
        own.with(py, move |steps| steps.start(&read, pending))?;
        Ok(SparseStep::new(slf.clone().unbind(), outcome))
    }

    /// Waits for a step, unless it is only to be started.
    fn finish<'py>(
        py: Python<'py>,
        step: SparseStep,
        async_op: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        if async_op {
            return Ok(Bound::new(py, step)?.into_any());
        }
        step.wait_for(py, None)?;
        let report = step.report_of();
        Ok(Bound::new(py, report.expect("the step has ended well"))?.into_any())
    }
}

/// Indices and values as registered memory is shown to Python.
fn shown(py: Python<'_>, (indices, values): (Vec<u64>, Vec<f32>)) -> PyResult<(Buffer, Buffer)> {
    let indices = linerate::Buffer::from_vec(indices).cast::<u8>();
    let values = linerate::Buffer::from_vec(values).cast::<u8>();
    let buffer = |memory: linerate::Result<linerate::Buffer<u8>>, dtype| {
        memory
            .and_then(|memory| Buffer::new(memory, dtype))
            .or_raise(py)
    };
    Ok((
        buffer(indices, DataType::U64)?,
        buffer(values, DataType::F32)?,
    ))
}

#[pymethods]
impl SparseAllreduce {
    #[new]
    #[pyo3(signature = (
        communicator, tensors, *, algorithm="oktopk", density=None, k=None, per_tensor=false,
        mode="exact", reuse_steps=32, repartition_steps=64, regions="balanced", balance="auto",
        switch="oktopk", values="f32", indices="auto", non_finite="error", warm_up_steps=0,
        is_average=false
    ))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        communicator: Py<Communicator>,
        tensors: &Bound<'_, PyAny>,
        algorithm: &str,
        density: Option<f64>,
        k: Option<u64>,
        per_tensor: bool,
        mode: &str,
        reuse_steps: u64,
        repartition_steps: u64,
        regions: &str,
        balance: &str,
        switch: &str,
        values: &str,
        indices: &str,
        non_finite: &str,
        warm_up_steps: u64,
        is_average: bool,
    ) -> PyResult<SparseAllreduce> {
        step::sweep();
        let chosen = Chosen {
            algorithm,
            density,
            k,
            per_tensor,
            mode,
            reuse_steps,
            repartition_steps,
            regions,
            balance,
            switch,
            values,
            indices,
            non_finite,
            warm_up_steps,
            is_average,
        };
        let options = chosen.options(py)?;
        let tensors = tensors_of(tensors)?;
        let names = tensors.iter().map(|one| (one.name.clone(), one.count));
        let names = names.collect();
        let comm = communicator.get().get(py)?;
        let (sparse, queue) = waiting::run(py, move || {
            let sparse = linerate::SparseAllreduce::new(&comm, tensors, options)?;
            Ok((sparse, comm.completion_queue()?))
        })?;
        Ok(SparseAllreduce {
            k: sparse.k(),
            steps: Mutex::new(Some(Steps::new(sparse, queue))),
            communicator,
            names,
        })
    }

    /// The sum of the selected entries of all ranks' gradients: dense f32, in `outputs`, or in
    /// place. Both are an array, or a list with one array for each tensor. Elements that are in no
    /// sum are 0 in the output, and are in the residuals. Returns the report of the step; with
    /// async_op a SparseStep, and the outputs are written when it has ended and was waited for or
    /// asked. After a step that was skipped the outputs are 0. Ctrl-C ends the wait, not the step.
    #[pyo3(signature = (gradients, outputs=None, *, async_op=false))]
    fn all_reduce<'py>(
        slf: Bound<'py, Self>,
        gradients: &Bound<'py, PyAny>,
        outputs: Option<&Bound<'py, PyAny>>,
        async_op: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let step = SparseAllreduce::start(&slf, gradients, Some(outputs.unwrap_or(gradients)))?;
        SparseAllreduce::finish(slf.py(), step, async_op)
    }

    /// As all_reduce(), and only reads the gradients: add_to() and entries() have the result.
    #[pyo3(signature = (gradients, *, async_op=false))]
    fn run<'py>(
        slf: Bound<'py, Self>,
        gradients: &Bound<'py, PyAny>,
        async_op: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let step = SparseAllreduce::start(&slf, gradients, None)?;
        SparseAllreduce::finish(slf.py(), step, async_op)
    }

    /// Runs one dense step with the residuals alone; they are 0 afterwards. The sum goes to
    /// `outputs`, if they are given, and add_to() has it. Collective: before the ranks change, and
    /// at the end of a training.
    #[pyo3(signature = (outputs=None))]
    fn flush_residual(
        slf: Bound<'_, Self>,
        outputs: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<SparseReport> {
        let (py, own) = (slf.py(), slf.get());
        let vectors = outputs.map(|outputs| own.vectors("outputs", outputs, true));
        let (outputs, keep) = vectors.transpose()?.unwrap_or_default();
        let owner = slf.clone().unbind();
        let flushed = waiting::run(py, move || {
            let own = owner.get();
            let flushed = match &mut *own.lock() {
                Some(steps) => steps.flush(&outputs),
                None => Err(Error::invalid("this sparse allreduce was closed")),
            };
            Ok((flushed, keep, owner))
        })?;
        flushed.0.or_raise(py)
    }

    /// Adds `factor` times the latest result to `outputs`: an array, or a list with one for each
    /// tensor. With the negative learning rate this is a step of gradient descent.
    #[pyo3(signature = (outputs, factor=1.0))]
    fn add_to(&self, py: Python<'_>, outputs: &Bound<'_, PyAny>, factor: f32) -> PyResult<()> {
        let (outputs, _keep) = self.vectors("outputs", outputs, true)?;
        self.with(py, move |steps| steps.result()?.add_to(&outputs, factor))
    }

    /// The non-zero values of a tensor in the latest result: indices of u64, ascending and relative
    /// to the tensor, and values of f32. numpy.asarray() shows both.
    #[pyo3(signature = (tensor=0))]
    fn entries(&self, py: Python<'_>, tensor: usize) -> PyResult<(Buffer, Buffer)> {
        self.check_tensor(py, tensor)?;
        let entries = self.with(py, |steps| Ok(steps.result()?.nonzeros_of(tensor)?.unzip()))?;
        shown(py, entries)
    }

    /// The entries of a tensor that this rank selected in the latest step, as entries(): each has
    /// the sum of residual and gradient.
    #[pyo3(signature = (tensor=0))]
    fn picks(&self, py: Python<'_>, tensor: usize) -> PyResult<(Buffer, Buffer)> {
        self.check_tensor(py, tensor)?;
        let picks = self.with(py, |steps| Ok(steps.sparse.picks_of(tensor).unzip()))?;
        shown(py, picks)
    }

    /// The memory of a tensor's residual, `count` elements of f32: numpy.asarray() and
    /// torch.from_dlpack() see it. It may be read and changed between steps.
    #[pyo3(signature = (tensor=0))]
    fn residual(&self, py: Python<'_>, tensor: usize) -> PyResult<Buffer> {
        let memory = self.residual_of(py, tensor)?.cast::<u8>().or_raise(py)?;
        Buffer::new(memory, DataType::F32).or_raise(py)
    }

    /// Copies the residual of a tensor to `output`, `count` elements of f32. An error while a step
    /// is under way.
    #[pyo3(signature = (output, tensor=0))]
    fn read_residual(
        &self,
        py: Python<'_>,
        output: &Bound<'_, PyAny>,
        tensor: usize,
    ) -> PyResult<()> {
        self.copy_residual(py, ("output", output), tensor, true)
    }

    /// Sets the residual of a tensor to the elements of `input`, `count` of f32. An error while a
    /// step is under way.
    #[pyo3(signature = (input, tensor=0))]
    fn write_residual(
        &self,
        py: Python<'_>,
        input: &Bound<'_, PyAny>,
        tensor: usize,
    ) -> PyResult<()> {
        self.copy_residual(py, ("input", input), tensor, false)
    }

    /// Sets all residuals of this rank to 0, and forgets its thresholds. All ranks call it between
    /// the same two steps.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |steps| steps.sparse.reset())
    }

    /// Multiplies all residuals of this rank by `factor`: for a trainer that changes the scale of
    /// its gradients.
    fn scale_residuals(&self, py: Python<'_>, factor: f32) -> PyResult<()> {
        self.with(py, |steps| steps.sparse.scale_residuals(factor))
    }

    /// The residuals of this rank as bytes, for load(), with the names and lengths of the tensors,
    /// k, and the numbers of ranks and steps. Thresholds are not saved.
    fn save<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let saved = self.with(py, |steps| steps.sparse.save())?;
        Ok(PyBytes::new(py, &saved))
    }

    /// Loads what save() returned on this rank, for the same tensors and k. All ranks load before
    /// the same step. With is_resized the number of ranks may have changed since; a rank that is
    /// new then calls reset() instead. linerate.Malformed: the bytes do not fit, and nothing has
    /// changed.
    #[pyo3(signature = (saved, is_resized=false))]
    fn load(&self, py: Python<'_>, saved: &[u8], is_resized: bool) -> PyResult<()> {
        self.with(py, |steps| match is_resized {
            false => steps.sparse.load(saved),
            true => steps.sparse.load_after_resize(saved),
        })
    }

    /// The number of entries that a step is to select, over all tensors.
    #[getter]
    fn k(&self) -> u64 {
        self.k
    }

    /// The number of steps so far, without those that were skipped.
    #[getter]
    fn steps(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |steps| Ok(steps.sparse.steps()))
    }

    /// The tensors in the order of the declaration: (name, count).
    #[getter]
    fn tensors(&self) -> Vec<(String, u64)> {
        self.names.clone()
    }

    /// The communicator that it was made from.
    #[getter]
    fn communicator<'py>(&self, py: Python<'py>) -> Bound<'py, Communicator> {
        self.communicator.bind(py).clone()
    }

    /// Ends it on this rank: its residuals are gone. A step under way goes on by itself. Nothing
    /// happens if it was closed before.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            let steps = self.lock().take();
            steps.map(Steps::leave)
        });
    }

    fn __repr__(&self) -> String {
        let count: u64 = self.names.iter().map(|(_, count)| count).sum();
        let (tensors, k) = (self.names.len(), self.k);
        format!("linerate.SparseAllreduce({tensors} tensors of {count} elements, k {k})")
    }
}

impl SparseAllreduce {
    /// Copies a residual to memory of the caller, or back.
    fn copy_residual(
        &self,
        py: Python<'_>,
        (name, argument): (&str, &Bound<'_, PyAny>),
        tensor: usize,
        is_read: bool,
    ) -> PyResult<()> {
        let residual = self.residual_of(py, tensor)?;
        let communicator = self.communicator.get().get(py)?;
        let length = (residual.len() as u64, DataType::F32);
        let vector = Vector::of(&communicator, (name, argument), is_read, length)?;
        let own = vector.buffer.cast::<f32>().or_raise(py)?;
        let copied = py.detach(|| match is_read {
            true => residual.read(0, &mut own.as_mut_slice()?),
            false => residual.write(0, &own.as_slice()?),
        });
        copied.or_raise(py)
    }
}

impl Drop for SparseAllreduce {
    fn drop(&mut self) {
        let steps = self.steps.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(steps) = steps.take() {
            steps.leave();
        }
    }
}
