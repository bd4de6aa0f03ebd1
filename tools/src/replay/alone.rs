//! [`Alone`]: what the last flush of a step costs by itself, to set beside what a step exposes.
//!
//! A blocking call of the same bytes with nothing to hide behind: pack, allreduce, unpack, where the flush had several
//! gradients. The gradients are as cold as in a step: all others are filled after them. The ranks begin after a barrier and
//! as long a computation as the last one of the trace.

use super::rank::Runner;
use linerate::time::Time;
use linerate::{Buffer, Call, DataType, FlushReport, ReduceOp, Result};
use std::time::Duration;

/// When the last flush began and ended by itself, since the start of its computation, and what was wrong.
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
                self.values.fill(&self.tensors[tensor], tensor, step);
            }
        }
        let target = match flush.tensors[..] {
            [only] => self.tensors[only as usize].clone(),
            _ => self.packed(flush.bytes as usize)?,
        };
        let count = flush.bytes / DataType::F32.size_bytes() as u64;
        let call = Call::all_reduce(DataType::F32, ReduceOp::Sum, count, &target, &target);
        self.comm.barrier()?;
        let origin = self.fusion.now();
        let last_us = self.trace.gradients.last().map_or(0.0, |last| last.wait_us);
        self.compute_until(origin.after(Duration::from_secs_f64(last_us / 1e6)));
        let start = self.fusion.now();
        self.for_each_part(flush, &target, |tensor, part| part.copy_from(tensor));
        self.comm.run(&call)?;
        self.for_each_part(flush, &target, |tensor, part| tensor.copy_from(part));
        let end = self.fusion.now();
        let tensors = flush.tensors.iter().map(|&tensor| tensor as usize);
        let wrong = |tensor| (self.values).count_wrong(&self.tensors[tensor], tensor, step);
        Ok(Alone {
            start: Time(start.since(origin).as_nanos() as u64),
            end: Time(end.since(origin).as_nanos() as u64),
            wrong: tensors.map(wrong).sum(),
        })
    }

    /// Memory to pack into, kept from step to step.
    fn packed(&mut self, bytes: usize) -> Result<Buffer> {
        match &self.packed {
            Some(packed) if packed.len_bytes() >= bytes => Ok(packed.part(0, bytes)),
            _ => {
                let packed = self.comm.alloc(bytes)?;
                self.packed = Some(packed.clone());
                Ok(packed)
            }
        }
    }

    /// Every gradient of a flush with its place; none if it is reduced where it lies (a copy onto itself does nothing).
    fn for_each_part(
        &self,
        flush: &FlushReport,
        target: &Buffer,
        copy: impl Fn(linerate::memory::View, linerate::memory::View),
    ) {
        let mut start = 0;
        for &tensor in &flush.tensors {
            let tensor = self.tensors[tensor as usize].view();
            copy(tensor, target.view().part(start, tensor.len_bytes()));
            start += tensor.len_bytes();
        }
    }
}
