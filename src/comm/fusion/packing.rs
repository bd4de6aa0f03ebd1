//! [`Packing`]: the fusion buffers, and the copies into and out of them.

use super::inbox::Announced;
use crate::comm::Communicator;
use crate::comm::driving::Driving;
use crate::comm::raw::RawBuffer;
use crate::error::Result;
use crate::fusion::{Ahead, Flush, Machine};
use crate::kernel;
use std::sync::Arc;

/// Longest copy that is made without the engine. A shorter copy gains nothing from the engine's
/// threads and streaming stores, and without the engine's lock the operations under way go on.
const PLAIN_BYTES_MAX: usize = 256 << 10;

/// The fusion buffers that no flush uses, and the one that is filled ahead.
pub struct Packing {
    free: Vec<RawBuffer>,
    /// The fusion buffer that holds the tensors of `ahead`.
    open: Option<RawBuffer>,
    ahead: Ahead,
    /// Its engine copies large tensors.
    driving: Arc<Driving>,
}

impl Packing {
    /// `buffers_count` buffers of `bytes` bytes, for flushes of at most `tensors_count` tensors.
    pub fn new(
        comm: &Communicator,
        buffers_count: usize,
        bytes: usize,
        tensors_count: usize,
    ) -> Result<Packing> {
        Ok(Packing {
            free: (0..buffers_count)
                .map(|_| comm.alloc_raw(bytes))
                .collect::<Result<_>>()?,
            open: None,
            ahead: Ahead::with_capacity(tensors_count),
            driving: comm.driving()?.clone(),
        })
    }

    /// Packs one tensor that will probably be part of the next flush. Returns false if there is no
    /// such tensor or no free fusion buffer.
    pub fn pack_ahead(&mut self, machine: &Machine, tensors: &[Option<Announced>]) -> bool {
        if self.open.is_none() && self.free.is_empty() {
            return false;
        }
        let start = self.ahead.bytes();
        let Some(tensor) = machine.pack_ahead(&mut self.ahead) else {
            return false;
        };
        if self.open.is_none() {
            self.open = self.free.pop();
        }
        let packed = self.open.as_ref().expect("it was opened");
        let tensor = announced(tensors, tensor);
        let part = packed.part(start as usize, tensor.len_bytes());
        self.copy(tensor, &part, self.ahead.bytes());
        true
    }

    /// Packs all tensors of a flush into a fusion buffer, which it returns. The caller has fewer
    /// flushes under way than there are fusion buffers, so one is free.
    pub fn pack(
        &mut self,
        machine: &Machine,
        flush: Flush,
        tensors: &[Option<Announced>],
    ) -> RawBuffer {
        let packed_count = machine.packed_ahead(flush, &self.ahead);
        let buffer = match packed_count {
            0 => {
                self.forget_if_flushed(machine);
                self.free.pop().or_else(|| self.reopen())
            }
            _ => self.reopen(),
        };
        let buffer = buffer.expect("a free fusion buffer");
        let parts = parts_of(machine, flush, tensors, &buffer);
        for (tensor, part) in parts.skip(packed_count) {
            self.copy(tensor, &part, flush.bytes);
        }
        buffer
    }

    /// Notes that a flush of one tensor is reduced in the tensor's own memory, without a fusion
    /// buffer.
    pub fn pass_over(&mut self, machine: &Machine) {
        self.forget_if_flushed(machine);
    }

    /// Copies a flush back to its tensors. Its fusion buffer is free afterwards.
    pub fn unpack(
        &mut self,
        machine: &Machine,
        flush: Flush,
        tensors: &[Option<Announced>],
        buffer: RawBuffer,
    ) {
        for (tensor, part) in parts_of(machine, flush, tensors, &buffer) {
            self.copy(&part, tensor, flush.bytes);
        }
        self.free.push(buffer);
    }

    /// Begins the next step.
    pub fn begin_step(&mut self) {
        let open = self.reopen();
        self.free.extend(open);
    }

    /// Takes the fusion buffer that was filled ahead, and forgets what lies in it.
    fn reopen(&mut self) -> Option<RawBuffer> {
        self.ahead.clear();
        self.open.take()
    }

    /// Forgets what was packed ahead if one of its tensors has been flushed in another way: the
    /// buffer can then not become the next flush.
    fn forget_if_flushed(&mut self, machine: &Machine) {
        let mut tensors = self.ahead.tensors().iter();
        if tensors.any(|&tensor| machine.is_flushed(tensor as usize)) {
            let open = self.reopen();
            self.free.extend(open);
        }
    }

    fn copy(&self, from: &RawBuffer, to: &RawBuffer, bytes_together: u64) {
        let (from, to) = (from.view(), to.view());
        if from.len_bytes() <= PLAIN_BYTES_MAX {
            return kernel::copy(from, to);
        }
        let mut engine = self.driving.engine();
        engine.copy(from, to, bytes_together as usize);
    }
}

fn announced(tensors: &[Option<Announced>], tensor: u32) -> &RawBuffer {
    let tensor = tensors[tensor as usize].as_ref();
    &tensor.expect("a flush has only announced tensors").raw
}

/// The tensors of a flush that have elements, each with its place in the fusion buffer.
fn parts_of<'a>(
    machine: &'a Machine,
    flush: Flush,
    tensors: &'a [Option<Announced>],
    packed: &'a RawBuffer,
) -> impl Iterator<Item = (&'a RawBuffer, RawBuffer)> {
    let indices = machine.tensors_of(flush).iter();
    let with_bytes = indices
        .map(|&tensor| announced(tensors, tensor))
        .filter(|tensor| tensor.len_bytes() > 0);
    let mut end = 0;
    with_bytes.map(move |tensor| {
        end += tensor.len_bytes();
        (
            tensor,
            packed.part(end - tensor.len_bytes(), tensor.len_bytes()),
        )
    })
}
