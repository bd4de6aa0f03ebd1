//! [`SparseResult`]: the result of a step.

use crate::comm::buffer::Buffer;
use crate::comm::raw::RawBuffer;
use crate::error::{Error, Result};
use crate::kernel::{self, reduce, scale};
use crate::memory::Access;
use crate::sparse::{Algorithm, Counters, Spare, Stream};
use crate::types::{Combine, DataType, Finish};
use std::fmt;
use std::ops::Range;
use std::time::Duration;

/// Where a rank's time went in a step. The time of the communication includes the wait for ranks
/// that begin later, such as ranks on the same core that still select. Its text is:
///
/// ```
/// use std::time::Duration;
/// let times = linerate::reports::StepTimes { select: Duration::from_micros(30), ..Default::default() };
/// assert_eq!(times.to_string(), "select 30µs, communicate 0ns, apply 0ns");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Time for selecting or, before a dense allreduce, for adding the gradient to the residual.
    pub select: Duration,
    /// Time from the first request to the last answer, including the additions in between.
    pub communicate: Duration,
    /// Time for changing the residuals and making the result.
    pub apply: Duration,
}

impl fmt::Display for StepTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "select {:?}, communicate {:?}, apply {:?}",
            self.select, self.communicate, self.apply
        )
    }
}

/// The result of a step: the sum that all ranks apply, with the same bits on every rank, and
/// figures of the step.
#[derive(Clone, Debug)]
pub struct SparseResult {
    /// The algorithm that ran. With [`per_tensor`](crate::SparseOptions::per_tensor) it is that of
    /// the last tensor.
    pub algorithm: Algorithm,
    /// Whether the step was skipped because a value was not finite. The result is then empty, and
    /// no gradient was added to the residuals.
    pub is_skipped: bool,
    /// Number of values that are not finite, in the gradients of all ranks and in sums.
    pub not_finite: u64,
    /// Number of entries that this rank selected.
    pub selected_local: u64,
    /// Number of entries of the result.
    pub selected_global: u64,
    /// Number of non-zeros of the sum of all ranks' selected entries; `None` if the algorithm does
    /// not count them.
    pub reduced: Option<u64>,
    /// Where this rank's time went.
    pub times: StepTimes,
    /// This rank's traffic.
    pub counters: Counters,
    pub(super) entries: RecycledEntries,
    pub(super) dense: Option<Buffer<f32>>,
    /// The index of each tensor's first coordinate among all coordinates, and last their number.
    pub(super) starts: Vec<u64>,
}

/// The entries of a result. When they are dropped, later steps use their memory again.
#[derive(Clone, Debug)]
pub(super) struct RecycledEntries {
    pub stream: Stream,
    spare: Spare,
}

impl RecycledEntries {
    pub fn new(spare: &Spare) -> RecycledEntries {
        RecycledEntries {
            stream: Stream::default(),
            spare: spare.clone(),
        }
    }
}

impl Drop for RecycledEntries {
    fn drop(&mut self) {
        self.spare.keep(std::mem::take(&mut self.stream));
    }
}

impl SparseResult {
    /// Indices and values of the result's entries, ascending by index. The index counts through all
    /// tensors, in the order of the declaration. Empty after a dense step, whose result is in
    /// [`SparseResult::dense`].
    pub fn entries(&self) -> (&[u64], &[f32]) {
        (&self.entries.stream.indices, &self.entries.stream.values)
    }

    /// As [`SparseResult::entries`], for one tensor, with indices relative to this tensor.
    ///
    /// # Panics
    /// If there is no such tensor.
    pub fn entries_of(&self, tensor: usize) -> (impl Iterator<Item = u64> + '_, &[f32]) {
        let start = self.starts[tensor];
        let range = self.positions(tensor);
        let indices = self.entries.stream.indices[range.clone()].iter();
        (
            indices.map(move |i| i - start),
            &self.entries.stream.values[range],
        )
    }

    /// The non-zero values of one tensor, each with its index: ascending, and relative to the
    /// tensor. It gives them after a sparse step and after a dense one.
    ///
    /// ```
    /// use linerate::{Communicator, Config, DataType, SparseAllreduce, SparseOptions, TensorSpec};
    /// use linerate::options::{Algorithm, Amount};
    /// let comm = Communicator::join(0, 1, "a job of both forms", Config::default())?;
    /// for algorithm in [Algorithm::OkTopk, Algorithm::Dense] {
    ///     let tensor = TensorSpec { name: "weights".into(), count: 4, dtype: DataType::F32 };
    ///     let options = SparseOptions { algorithm, amount: Amount::Count(2), ..SparseOptions::default() };
    ///     let mut sparse = SparseAllreduce::new(&comm, vec![tensor], options)?;
    ///     let gradient = comm.alloc::<f32>(4)?;
    ///     gradient.write(0, &[0.0, -3.0, 0.0, 2.0])?;
    ///     let result = sparse.run(&[gradient])?;
    ///     let mut weights = [1.0f32; 4];
    ///     for (index, value) in result.nonzeros_of(0)? {
    ///         weights[index as usize] -= 0.5 * value;
    ///     }
    ///     assert_eq!(weights, [1.0, 2.5, 1.0, 0.0]);
    /// }
    /// # Ok::<(), linerate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InUse`]: the result is of a dense step, and a later step uses its memory now.
    ///
    /// # Panics
    /// If there is no such tensor.
    pub fn nonzeros_of(&self, tensor: usize) -> Result<impl Iterator<Item = (u64, f32)> + '_> {
        let range = self.starts[tensor] as usize..self.starts[tensor + 1] as usize;
        let dense = match &self.dense {
            Some(dense) => dense.range(range).to_vec()?,
            None => Vec::new(),
        };
        let dense = (0..).zip(dense);
        // For one tensor, either all dense values are zero or there are no entries.
        let (indices, values) = self.entries_of(tensor);
        let sparse = indices.zip(values.iter().copied());
        Ok(dense.filter(|(_, value)| *value != 0.0).chain(sparse))
    }

    /// All values of a dense step, over all tensors in the order of the declaration; `None` after a
    /// sparse step. The values are valid until the next step. With
    /// [`per_tensor`](crate::SparseOptions::per_tensor), a step may be dense for some tensors and
    /// sparse for others: here the sparse ones are zero, and [`SparseResult::entries`] has them.
    pub fn dense(&self) -> Option<&Buffer<f32>> {
        self.dense.as_ref()
    }

    fn positions(&self, tensor: usize) -> Range<usize> {
        let place = |index: u64| self.entries.stream.indices.partition_point(|i| *i < index);
        place(self.starts[tensor])..place(self.starts[tensor + 1])
    }

    /// Adds `factor` times the result to `outputs`, which has one vector for each tensor. With the
    /// negative learning rate as `factor` this is a step of gradient descent.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: the number of buffers or the length of one is wrong.
    /// [`Error::InUse`]: something uses an output, or a later step uses the memory of a dense
    /// result. After an error nothing has been added.
    pub fn add_to(&self, outputs: &[Buffer<f32>], factor: f32) -> Result<()> {
        check_lengths("output", outputs, &self.starts)?;
        let of_outputs = outputs.iter().map(|output| (output, Access::Exclusive));
        let of_dense = self.dense.iter().map(|dense| (dense, Access::Shared));
        let held = of_outputs.chain(of_dense).map(|(buffer, access)| {
            (buffer.raw()).borrow_all(access, "the result of a sparse allreduce")
        });
        let _held: Vec<_> = held.collect::<Result<_>>()?;
        for (tensor, output) in outputs.iter().enumerate() {
            let view = output.raw().view();
            if let Some(dense) = self.dense.as_ref().map(Buffer::raw) {
                let start = 4 * self.starts[tensor] as usize;
                let part = dense.view().part(start, view.len_bytes());
                if factor != 1.0 {
                    let scaled =
                        RawBuffer::plain(view.len_bytes().max(1))?.part(0, view.len_bytes());
                    scale(DataType::F32, factor.into(), part, scaled.view());
                    reduce(
                        DataType::F32,
                        Combine::Sum,
                        Finish::None,
                        &[view, scaled.view()],
                        &[view],
                    );
                } else {
                    reduce(
                        DataType::F32,
                        Combine::Sum,
                        Finish::None,
                        &[view, part],
                        &[view],
                    );
                }
            }
            let (indices, values) = self.entries_of(tensor);
            for (index, value) in indices.zip(values) {
                let index = index as usize;
                kernel::store(
                    view,
                    index,
                    kernel::load::<f32>(view, index) + factor * value,
                );
            }
        }
        Ok(())
    }
}

/// Checks that there is one buffer for each tensor, with as many elements.
pub(super) fn check_lengths(what: &str, buffers: &[Buffer<f32>], starts: &[u64]) -> Result<()> {
    let tensors = starts.len() - 1;
    if buffers.len() != tensors {
        return Err(Error::invalid(format!(
            "{} {what}s for {tensors} tensors: one for each",
            buffers.len()
        )));
    }
    for (tensor, buffer) in buffers.iter().enumerate() {
        let count = starts[tensor + 1] - starts[tensor];
        if buffer.len() as u64 != count {
            return Err(Error::invalid(format!(
                "the {what} of tensor {tensor} has {} elements, {count} are needed",
                buffer.len()
            )));
        }
    }
    Ok(())
}
