//! [`Step`]: what one rank knows of the step under way.

use super::bits::{Bits, is_set};
use super::{FlushList, FusionOptions, TensorSet};
use crate::time::Time;
use crate::types::DataType;

/// State of the step under way. All its memory is taken when it is made.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub ready: Bits,
    pub ready_at: Vec<Time>,
    pub flushed: Bits,
    /// Tensors in the order of their announcement.
    pub arrivals: Vec<u32>,
    pub flushes: FlushList,
    pub next_flush: usize,
    pub is_ended: bool,
    /// Set by a round that flushed nothing: no new one before this time, unless a tensor arrives.
    pub retry_at: Option<Time>,
    pub rounds_count: u64,
    /// The oldest tensor that still waits is not before this position of `arrivals`.
    oldest: usize,
    /// Ready tensors with bytes that are not flushed, per type code.
    pending: [Pending; DataType::ALL.len()],
}

#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    bytes: u64,
    tensors_count: usize,
}

impl Step {
    pub fn new(tensors_count: usize) -> Step {
        Step {
            ready: Bits::new(tensors_count),
            ready_at: vec![Time(0); tensors_count],
            flushed: Bits::new(tensors_count),
            arrivals: Vec::with_capacity(tensors_count),
            flushes: FlushList::with_capacity(tensors_count),
            next_flush: 0,
            is_ended: false,
            retry_at: None,
            rounds_count: 0,
            oldest: 0,
            pending: Default::default(),
        }
    }

    /// Forgets everything and keeps the memory.
    pub fn clear(&mut self) {
        self.ready.clear();
        self.flushed.clear();
        self.arrivals.clear();
        self.flushes.clear();
        self.next_flush = 0;
        self.is_ended = false;
        self.retry_at = None;
        self.rounds_count = 0;
        self.oldest = 0;
        self.pending = Default::default();
    }

    pub fn add_ready(&mut self, set: &TensorSet, tensor: usize, now: Time) {
        self.ready.insert(tensor);
        self.ready_at[tensor] = now;
        self.arrivals.push(tensor as u32);
        self.retry_at = None;
        if set.bytes(tensor) > 0 {
            let pending = &mut self.pending[set.spec(tensor).dtype as usize];
            pending.bytes += set.bytes(tensor);
            pending.tensors_count += 1;
        } else {
            // It waits for nothing and must not start a round.
            self.skip_settled(set);
        }
    }

    /// Marks the tensors of the flushes from `first_new` on, and the empty tensors that are ready
    /// on all ranks.
    pub fn mark_flushed(&mut self, set: &TensorSet, first_new: usize, ready_on_all: &[u64]) {
        for index in first_new..self.flushes.len() {
            let flush = self.flushes.get(index);
            let tensors = self.flushes.tensors_of(flush);
            for &tensor in tensors {
                self.flushed.insert(tensor as usize);
            }
            let pending = &mut self.pending[flush.dtype as usize];
            pending.bytes -= flush.bytes;
            pending.tensors_count -= tensors.len();
        }
        for tensor in (0..set.len()).filter(|&t| set.bytes(t) == 0) {
            if is_set(ready_on_all, tensor) {
                self.flushed.insert(tensor);
            }
        }
        self.skip_settled(set);
    }

    /// Enough bytes or tensors of one type are ready here, or nothing more comes.
    pub fn has_reason(&self, options: &FusionOptions) -> bool {
        let is_full = |pending: &Pending| {
            pending.bytes >= options.bytes_max || pending.tensors_count >= options.tensors_max
        };
        self.is_ended || self.pending.iter().any(is_full)
    }

    /// Tensors of this type that are ready and not flushed.
    pub fn waiting_count(&self, dtype: DataType) -> usize {
        self.pending[dtype as usize].tensors_count
    }

    /// When the oldest ready tensor that is not flushed became ready.
    pub fn oldest_ready_at(&self) -> Option<Time> {
        let oldest = *self.arrivals.get(self.oldest)?;
        Some(self.ready_at[oldest as usize])
    }

    fn skip_settled(&mut self, set: &TensorSet) {
        let is_settled = |&t: &u32| self.flushed.contains(t as usize) || set.bytes(t as usize) == 0;
        while self.arrivals.get(self.oldest).is_some_and(is_settled) {
            self.oldest += 1;
        }
    }
}
