//! [`Alone`]: what the last flush of a step costs by itself, to set beside what a step exposes.
//!
//! It is a blocking call of the same bytes with nothing to hide behind. It also packs and unpacks,
//! if the flush had several gradients. The gradients are as cold as in a step: all others are
//! filled after them. The ranks begin after a barrier and as long a computation as the last one of
//! the trace.

use super::rank::Runner;
use linerate::reports::FlushReport;
use linerate::transport::Time;
use linerate::{Buffer, ReduceOp, Result};
use std::time::Duration;

/// When the last flush began and ended by itself, since the start of its computation, and what was
/// wrong.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone {
    pub start: Time,
    pub end: Time,
    pub wrong: u64,
}

impl Runner<'_> {
    /// Runs this flush by itself.
    pub fn run_alone(&mut self, flush: &FlushReport, step: u32) -> Result<Alone> {
        let is_in = |tensor: usize| flush.tensors.contains(&(tensor as u32));
        for wanted in [true, false] {
            for tensor in (0..self.tensors.len()).filter(|&tensor| is_in(tensor) == wanted) {
                self.values.fill(&self.tensors[tensor], tensor, step)?;
            }
        }
        let target = match flush.tensors[..] {
            [only] => self.tensors[only as usize].clone(),
            _ => self.packed(flush.bytes as usize / size_of::<f32>())?,
        };
        self.comm.barrier()?;
        let origin = self.fusion.now();
        let last_us = self.trace.gradients.last().map_or(0.0, |last| last.wait_us);
        let last = Duration::from_secs_f64(last_us / 1e6);
        self.compute(last, origin.after(last));
        let start = self.fusion.now();
        self.for_each_part(flush, &target, copy)?;
        self.comm.all_reduce(&target, ReduceOp::Sum)?;
        self.for_each_part(flush, &target, |tensor, part| copy(part, tensor))?;
        let end = self.fusion.now();
        let tensors = flush.tensors.iter().map(|&tensor| tensor as usize);
        let wrong = |tensor| (self.values).count_wrong(&self.tensors[tensor], tensor, step);
        Ok(Alone {
            start: Time(start.since(origin).as_nanos() as u64),
            end: Time(end.since(origin).as_nanos() as u64),
            wrong: tensors.map(wrong).sum::<Result<_>>()?,
        })
    }

    /// Memory to pack into, kept from step to step.
    fn packed(&mut self, count: usize) -> Result<Buffer<f32>> {
        match &self.packed {
            Some(packed) if packed.len() >= count => Ok(packed.range(..count)),
            _ => {
                let packed = self.comm.alloc(count)?;
                self.packed = Some(packed.clone());
                Ok(packed)
            }
        }
    }

    /// Calls `copy` with every gradient of a flush and its place in `target`. A single gradient is
    /// reduced where it lies.
    fn for_each_part(
        &self,
        flush: &FlushReport,
        target: &Buffer<f32>,
        copy: impl Fn(&Buffer<f32>, &Buffer<f32>) -> Result<()>,
    ) -> Result<()> {
        if flush.tensors.len() == 1 {
            return Ok(());
        }
        let mut start = 0;
        for &tensor in &flush.tensors {
            let tensor = &self.tensors[tensor as usize];
            copy(tensor, &target.range(start..start + tensor.len()))?;
            start += tensor.len();
        }
        Ok(())
    }
}

fn copy(from: &Buffer<f32>, to: &Buffer<f32>) -> Result<()> {
    to.as_mut_slice()?.copy_from_slice(&from.as_slice()?);
    Ok(())
}
