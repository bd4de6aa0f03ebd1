//! The dense step of a unit: an ordinary allreduce of residual and gradient together. It runs in
//! the warm-up, when residuals are flushed, and if the algorithm is [`Algorithm::Dense`].
//!
//! [`Algorithm::Dense`]: crate::sparse::Algorithm::Dense

use super::state::{Outcome, Pending, Steps, Task};
use crate::comm::call::Call;
use crate::error::Result;
use crate::kernel::select::{Picks, Source, collect};
use crate::kernel::{self, reduce};
use crate::memory::View;
use crate::sparse::{Arrived, NonFinite, Request};
use crate::types::{Combine, DataType, Finish, ReduceOp};
use std::ops::Range;
use std::time::Duration;

/// The number of values that are not finite.
fn wild_of(view: View) -> u64 {
    let sources = [Source::of(view)];
    collect(
        &sources,
        f32::MAX.to_bits(),
        usize::MAX,
        &mut Picks::default(),
    )
    .not_finite
}

impl Steps {
    /// Where a unit lies in the dense buffer, in bytes.
    pub(super) fn place_of(&self, unit: usize) -> Range<usize> {
        let tensors = &self.units[unit].tensors;
        4 * self.starts[tensors.start] as usize..4 * self.starts[tensors.end] as usize
    }

    /// Writes the sums of residual and gradient to the dense buffer, and tells the other ranks how
    /// many of them are not finite.
    pub(super) fn begin_dense(&mut self, pending: &mut Pending) -> Result<()> {
        if self.dense.is_none() {
            let bytes = 4 * self.starts[self.starts.len() - 1] as usize;
            self.dense = Some(self.comm.alloc_raw(bytes)?);
        }
        let begun = self.comm.inner.clock.now();
        let place = self.place_of(pending.unit);
        let dense = self.dense.as_ref().expect("just made");
        for tensor in self.units[pending.unit].tensors.clone() {
            let residual = self.residuals.of(tensor).view();
            let at = 4 * self.starts[tensor] as usize;
            let part = dense.view().part(at, residual.len_bytes());
            match &pending.gradients {
                None => kernel::copy(residual, part),
                Some(gradients) => {
                    let sources = [residual, gradients[tensor].view()];
                    reduce(DataType::F32, Combine::Sum, Finish::None, &sources, &[part]);
                }
            }
        }
        let words = vec![wild_of(dense.view().part(place.start, place.len()))];
        pending.task = Task::Census;
        let now = self.comm.inner.clock.now();
        pending.spend(now.since(begun), Duration::ZERO);
        if self.comm.ranks() == 1 {
            pending.arrived = Arrived::Words(words);
            return Ok(());
        }
        let is_wide = true;
        pending.operation = self.carrier.start(Request::Sum { words, is_wide })?;
        Ok(())
    }

    /// Starts the allreduce, unless values are not finite and the policy is another than `Count`.
    pub(super) fn reduce_dense(&mut self, pending: &mut Pending, not_finite: u64) -> Result<()> {
        pending.result.not_finite += not_finite;
        if not_finite > 0 && self.options.non_finite != NonFinite::Count {
            return self.end_void(pending, not_finite);
        }
        let place = self.place_of(pending.unit);
        let dense = self.dense.as_ref().expect("a dense step has its buffer");
        if not_finite > 0 {
            self.each_wild(pending.unit, |residual, part, at| {
                // At such coordinates the residual is reduced alone, without this gradient.
                kernel::store(part, at, kernel::load::<f32>(residual, at));
            });
        }
        let part = dense.part(place.start, place.len());
        let op = match self.options.is_average {
            true => ReduceOp::Avg,
            false => ReduceOp::Sum,
        };
        let count = place.len() as u64 / 4;
        let call = Call::all_reduce(DataType::F32, op, count, &part, &part);
        pending.task = Task::Dense;
        pending.since = self.comm.inner.clock.now();
        pending.operation = Some(self.comm.start(&call)?);
        Ok(())
    }

    pub(super) fn end_dense(&mut self, pending: &mut Pending) -> Result<()> {
        pending.arrived = Arrived::Nothing;
        let now = self.comm.inner.clock.now();
        pending.spend(Duration::ZERO, now.since(pending.since));
        let place = self.place_of(pending.unit);
        let dense = self.dense.as_ref().expect("a dense step has its buffer");
        let born = wild_of(dense.view().part(place.start, place.len()));
        let result = &mut pending.result;
        let ranks = self.comm.ranks().into();
        result.counters.add_dense(place.len() as u64, ranks);
        result.not_finite += born;
        if born > 0 && self.options.non_finite != NonFinite::Count {
            return self.end_void(pending, born);
        }
        pending.outcomes.push(Outcome::Dense { born });
        pending.unit += 1;
        Ok(())
    }

    /// Calls `change` for each coordinate of a unit that is not finite in the dense buffer, with
    /// the tensor's residual, its part of the dense buffer, and the coordinate's index in both.
    pub(super) fn each_wild(&self, unit: usize, mut change: impl FnMut(View, View, usize)) {
        let dense = self.dense.as_ref().expect("a dense step has its buffer");
        for tensor in self.units[unit].tensors.clone() {
            let residual = self.residuals.of(tensor).view();
            let at = 4 * self.starts[tensor] as usize;
            let part = dense.view().part(at, residual.len_bytes());
            for index in 0..part.len_bytes() / 4 {
                if !kernel::load::<f32>(part, index).is_finite() {
                    change(residual, part, index);
                }
            }
        }
    }
}
