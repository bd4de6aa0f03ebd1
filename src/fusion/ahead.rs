//! [`Ahead`]: tensors that are packed before it is known which flush they go with.
//!
//! The next flush begins with the ready tensors in the kept order, so their places in the fusion
//! buffer are known as soon as all before them are ready. What was packed ahead is a guess: a flush
//! that turns out otherwise is packed again from where it differs.

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
    /// Adds the next tensor that can be packed to `ahead`, behind those that are there, and returns
    /// it.
    ///
    /// Without a plan there is none while a flush that all ranks know of waits to be started. A
    /// tensor that may yet go alone is never packed, because it is reduced where it lies.
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
        // A tensor that is alone in its flush is reduced where it lies.
        tensors.iter().filter(is_filled).nth(1)?;
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

#[cfg(test)]
mod tests {
    use super::super::{Action, FusionOptions, TensorSet, TensorSpec};
    use super::*;
    use crate::time::Time;
    use crate::types::DataType;
    use std::sync::Arc;

    /// Tensors with these counts of elements: of f64 if `doubles` has their index, else of f32.
    fn set(counts: &[u64], doubles: &[usize]) -> Arc<TensorSet> {
        let spec = |(index, &count): (usize, &u64)| TensorSpec {
            name: format!("layer{index}"),
            count,
            dtype: match doubles.contains(&index) {
                true => DataType::F64,
                false => DataType::F32,
            },
        };
        Arc::new(TensorSet::new(counts.iter().enumerate().map(spec).collect()).unwrap())
    }

    fn pack(machine: &Machine, ahead: &mut Ahead) -> Vec<u32> {
        std::iter::from_fn(|| machine.pack_ahead(ahead)).collect()
    }

    fn announce(machine: &mut Machine, tensors: &[usize]) {
        for &tensor in tensors {
            machine.handle_ready(tensor, Time(0)).unwrap();
        }
    }

    /// The flushes of a round of this rank and a peer that has only these tensors. All are handed
    /// out.
    fn flush(machine: &mut Machine, peer: u64) -> Vec<Flush> {
        let now = Time(1 << 40);
        assert_eq!(machine.poll_action(now), Some(Action::StartRound));
        let words: Vec<_> = machine
            .round_words()
            .iter()
            .map(|word| word & peer)
            .collect();
        machine.handle_round(&words, now).unwrap();
        let next = || match machine.poll_action(now) {
            Some(Action::StartFlush(flush)) => Some(flush),
            _ => None,
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn ready_tensors_are_packed_in_order_up_to_the_first_that_is_not() {
        let mut machine = Machine::new(set(&[5, 0, 7, 9], &[]), FusionOptions::default()).unwrap();
        let mut ahead = Ahead::with_capacity(4);
        announce(&mut machine, &[0]);
        assert_eq!(
            pack(&machine, &mut ahead),
            [0; 0],
            "it may go alone, where it lies"
        );
        announce(&mut machine, &[3]);
        assert_eq!(pack(&machine, &mut ahead), [0], "2 is between them");
        announce(&mut machine, &[2]);
        assert_eq!(pack(&machine, &mut ahead), [2, 3]);
        assert_eq!((ahead.tensors(), ahead.bytes()), (&[0, 2, 3][..], 84));
        let flushes = flush(&mut machine, !0);
        assert_eq!(flushes.len(), 1);
        assert_eq!(machine.packed_ahead(flushes[0], &ahead), 3);
        ahead.clear();
        assert_eq!(pack(&machine, &mut ahead), [0; 0], "all are flushed");
    }

    #[test]
    fn a_flush_that_turns_out_otherwise_keeps_only_its_beginning() {
        let all = set(&[1; 4], &[]);
        for (peer, kept) in [(0b1011, 2), (0b1110, 0), (0b0111, 3)] {
            let mut machine = Machine::new(all.clone(), FusionOptions::default()).unwrap();
            announce(&mut machine, &[0, 1, 2, 3]);
            let mut ahead = Ahead::with_capacity(4);
            assert_eq!(pack(&machine, &mut ahead), [0, 1, 2, 3]);
            let flushes = flush(&mut machine, peer);
            assert_eq!(machine.packed_ahead(flushes[0], &ahead), kept, "{peer:b}");
        }
    }

    #[test]
    fn a_pack_has_one_type_and_keeps_the_limits_of_a_flush() {
        let counts = [10, 10, 30, 4, 12];
        let with = |bytes_max, tensors_max| FusionOptions {
            bytes_max,
            tensors_max,
            ..FusionOptions::default()
        };
        let cases = [
            (with(100, usize::MAX), vec![0, 3]),
            (with(56, usize::MAX), vec![0, 3]),
            (with(55, usize::MAX), vec![0]),
            (with(1000, 2), vec![0, 2]),
            (with(1000, 1), vec![]),
        ];
        for (options, expected) in cases {
            let text = format!("{options:?}");
            let mut machine = Machine::new(set(&counts, &[1]), options).unwrap();
            announce(&mut machine, &[0, 1, 2, 3, 4]);
            let mut ahead = Ahead::default();
            assert_eq!(
                pack(&machine, &mut ahead)[..expected.len()],
                expected,
                "{text}"
            );
            assert!(ahead.bytes() <= machine.options().bytes_max, "{text}");
            assert!(
                ahead.tensors().len() <= machine.options().tensors_max,
                "{text}"
            );
        }
    }

    #[test]
    fn a_plan_is_packed_as_it_says_and_a_tensor_alone_is_not() {
        let plan = [vec![2, 1, 0], vec![3]];
        let set = set(&[1, 0, 1, 1], &[]);
        let mut machine = Machine::with_plan(set, FusionOptions::default(), &plan).unwrap();
        let mut ahead = Ahead::default();
        announce(&mut machine, &[0]);
        assert_eq!(pack(&machine, &mut ahead), [0; 0]);
        announce(&mut machine, &[2]);
        assert_eq!(pack(&machine, &mut ahead), [2, 0]);
        announce(&mut machine, &[1, 3]);
        let Some(Action::StartFlush(flush)) = machine.poll_action(Time(0)) else {
            panic!("all of its tensors are ready");
        };
        assert_eq!(machine.packed_ahead(flush, &ahead), 2);
        ahead.clear();
        assert_eq!(pack(&machine, &mut ahead), [0; 0]);
    }
}
