//! [`Ahead`]: tensors that are packed before it is known which flush they go with.
//!
//! The next flush begins with the ready tensors in the kept order, so their places in the fusion buffer are known as
//! soon as all before them are ready. What was packed ahead is a guess: a flush that turns out otherwise is packed again
//! from where it differs.

use super::{Flush, FlushList, Machine};

/// What lies in the fusion buffer that is filled ahead.
#[derive(Clone, Debug, Default)]
pub struct Ahead {
    tensors: Vec<u32>,
    bytes: u64,
    /// Where to look for the next one: in the kept order, or in the next flush of the plan.
    position: usize,
}

impl Ahead {
    /// Nothing, with room for `tensors_count` tensors.
    pub fn with_capacity(tensors_count: usize) -> Ahead {
        Ahead {
            tensors: Vec::with_capacity(tensors_count),
            ..Ahead::default()
        }
    }

    /// Whether nothing is packed.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The packed tensors, in order, without gaps between them.
    pub fn tensors(&self) -> &[u32] {
        &self.tensors
    }

    /// Their bytes together.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.tensors.clear();
        (self.bytes, self.position) = (0, 0);
    }
}

impl Machine {
    /// The next tensor that can be packed behind those of `ahead`, to which it is added, if there is one.
    ///
    /// Nothing while a flush that all ranks know of waits to be started, and no tensor that may yet go alone: that one is
    /// reduced where it lies.
    pub fn pack_ahead(&self, ahead: &mut Ahead) -> Option<u32> {
        let tensor = match self.plan() {
            Some(plan) => self.next_of_plan(plan, ahead),
            None => self.next_of_order(ahead),
        }?;
        ahead.tensors.push(tensor);
        ahead.bytes += self.set().bytes(tensor as usize);
        Some(tensor)
    }

    /// How many of the tensors of a flush with bytes are packed ahead at their places.
    pub fn packed_ahead(&self, flush: Flush, ahead: &Ahead) -> usize {
        let tensors = self.tensors_of(flush).iter();
        let with_bytes = tensors.filter(|&&t| self.set().bytes(t as usize) > 0);
        let pairs = with_bytes.zip(&ahead.tensors);
        pairs.take_while(|(a, b)| a == b).count()
    }

    fn next_of_order(&self, ahead: &mut Ahead) -> Option<u32> {
        let (set, options) = (self.set(), self.options());
        if self.has_flush() || ahead.tensors.len() >= options.tensors_max {
            return None;
        }
        let first = ahead.tensors.first();
        let dtype = first.map(|&tensor| set.spec(tensor as usize).dtype);
        while let Some(&next) = self.order().get(ahead.position) {
            let tensor = next as usize;
            let bytes = set.bytes(tensor);
            let is_other = dtype.is_some_and(|dtype| dtype != set.spec(tensor).dtype);
            let is_packed = bytes > 0 && bytes < options.bytes_max && !self.is_flushed(tensor);
            if is_packed && !is_other {
                let is_next = self.is_ready(tensor)
                    && ahead.bytes + bytes <= options.bytes_max
                    && options.tensors_max > 1
                    && self.waiting_count(set.spec(tensor).dtype) > 1;
                ahead.position += usize::from(is_next);
                return is_next.then_some(next);
            }
            ahead.position += 1;
        }
        None
    }

    fn next_of_plan(&self, plan: &FlushList, ahead: &mut Ahead) -> Option<u32> {
        let set = self.set();
        let tensors = plan.tensors_of(self.next_of(plan)?);
        let is_filled = |&&tensor: &&u32| set.bytes(tensor as usize) > 0;
        if tensors.iter().filter(is_filled).nth(1).is_none() {
            return None;
        }
        while let Some(&next) = tensors.get(ahead.position) {
            if set.bytes(next as usize) > 0 {
                let is_next = self.is_ready(next as usize);
                ahead.position += usize::from(is_next);
                return is_next.then_some(next);
            }
            ahead.position += 1;
        }
        None
    }
}
