//! [`SparseResult`]: what a step gives.

use crate::comm::Buffer;
use crate::error::{Error, Result};
use crate::kernel::{reduce, scale};
use crate::sparse::{Algorithm, Counters, Spare, Stream};
use crate::types::{Combine, DataType, Finish};
use std::ops::Range;
use std::time::Duration;

/// Where a rank's time went in a step. Ranks that share a core wait for each other's selections in their communication; the
/// rank that began it last waits for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Selecting; before a dense allreduce, adding the gradient to the residual.
    pub select: Duration,
    /// From the first request to the last answer, with the sums in between.
    pub communicate: Duration,
    /// Changing the residuals and making the result.
    pub apply: Duration,
}

/// The sum that all ranks apply, the same bits on every rank, and how it came about.
#[derive(Clone, Debug)]
pub struct SparseResult {
    /// Which algorithm ran; the last tensor's if each has its own.
    pub algorithm: Algorithm,
    /// Nothing was applied and no gradient absorbed, because something was not finite.
    pub is_skipped: bool,
    /// Values that are not finite, on all ranks and in sums.
    pub not_finite: u64,
    /// Entries that this rank selected.
    pub selected_local: u64,
    /// Entries of the result.
    pub selected_global: u64,
    /// Non-zeros of the sum of all picks, where the algorithm gets to know that.
    pub reduced: Option<u64>,
    /// Where this rank's time went.
    pub times: StepTimes,
    /// This rank's traffic.
    pub counters: Counters,
    pub(super) entries: Lent,
    pub(super) dense: Option<Buffer>,
    /// Where each tensor begins among all coordinates, and the end.
    pub(super) starts: Vec<u64>,
}

/// Entries whose memory goes to later steps when the result is dropped.
#[derive(Clone, Debug)]
pub(super) struct Lent {
    pub stream: Stream,
    spare: Spare,
}

impl Lent {
    pub fn new(spare: &Spare) -> Lent {
        Lent {
            stream: Stream::default(),
            spare: spare.clone(),
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.spare.keep(std::mem::take(&mut self.stream));
    }
}

impl SparseResult {
    /// Indices and values over all tensors, one after another in the order of the declaration. Empty after a dense step, whose
    /// result is [`SparseResult::dense`].
    pub fn entries(&self) -> (&[u64], &[f32]) {
        (&self.entries.stream.indices, &self.entries.stream.values)
    }

    /// One tensor's indices, relative to it, and values.
    pub fn entries_of(&self, tensor: usize) -> (impl Iterator<Item = u64> + '_, &[f32]) {
        let start = self.starts[tensor];
        let range = self.positions(tensor);
        let indices = self.entries.stream.indices[range.clone()].iter();
        (
            indices.map(move |i| i - start),
            &self.entries.stream.values[range],
        )
    }

    /// All values of a dense step, over all tensors. Valid until the next step. Where tensors are operations of their own, those that were
    /// sparse have zeros here, and their entries apart.
    pub fn dense(&self) -> Option<&Buffer> {
        self.dense.as_ref()
    }

    fn positions(&self, tensor: usize) -> Range<usize> {
        let place = |index: u64| self.entries.stream.indices.partition_point(|i| *i < index);
        place(self.starts[tensor])..place(self.starts[tensor + 1])
    }

    /// Adds `factor` times the result to vectors, one for each tensor: -rate makes it a step of gradient descent.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: another number of buffers, or one of another length; nothing has been added then.
    pub fn add_to(&self, outputs: &[Buffer], factor: f32) -> Result<()> {
        check_lengths("output", outputs, &self.starts)?;
        for (tensor, output) in outputs.iter().enumerate() {
            let view = output.view();
            if let Some(dense) = &self.dense {
                let start = 4 * self.starts[tensor] as usize;
                let part = dense.view().part(start, view.len_bytes());
                if factor != 1.0 {
                    let scaled = Buffer::plain(view.len_bytes().max(1))?.part(0, view.len_bytes());
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
                view.store(index, view.load::<f32>(index) + factor * value);
            }
        }
        Ok(())
    }
}

/// Buffers are as many and as long as the tensors.
pub(super) fn check_lengths(what: &str, buffers: &[Buffer], starts: &[u64]) -> Result<()> {
    let tensors = starts.len() - 1;
    if buffers.len() != tensors {
        return Err(Error::invalid(format!(
            "{} {what}s for {tensors} tensors: one for each",
            buffers.len()
        )));
    }
    for (tensor, buffer) in buffers.iter().enumerate() {
        let bytes = 4 * (starts[tensor + 1] - starts[tensor]);
        if buffer.len_bytes() as u64 != bytes {
            return Err(Error::invalid(format!(
                "the {what} of tensor {tensor} has {} bytes, its {} elements of f32 have {bytes}",
                buffer.len_bytes(),
                bytes / 4
            )));
        }
    }
    Ok(())
}
