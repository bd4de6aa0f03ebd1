//! [`Signature`]: what a rank believes an operation to be, in 64 bits.
//!
//! It travels with every signal and with every message, and it can be read back, so the first
//! contact between two ranks that disagree is enough to name both sides.

use crate::types::{Collective, DataType, Rank, ReduceOp};

/// The arguments of an operation that all ranks must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature(pub u64);

const COUNT_BITS: u32 = 33;
const ROOT_BITS: u32 = 14;
/// The longest list of algorithms has nine.
const ALGORITHM_BITS: u32 = 4;
const OP_BITS: u32 = 4;
const DTYPE_BITS: u32 = 5;
const COLLECTIVE_BITS: u32 = 4;

const OP_AT: u32 = COLLECTIVE_BITS + DTYPE_BITS;
const ROOT_AT: u32 = OP_AT + OP_BITS + ALGORITHM_BITS;

const _: () = assert!(ROOT_AT + ROOT_BITS + COUNT_BITS == 64);
const _: () = assert!(crate::limits::RANKS_MAX <= 1 << ROOT_BITS);
const _: () = assert!(DataType::ALL.len() <= 1 << DTYPE_BITS);
const _: () = assert!(Collective::ALL.len() <= 1 << COLLECTIVE_BITS);

impl Signature {
    /// Packs the arguments. The count is kept modulo 2^33. `algorithm` is the position of the
    /// algorithm among those of the collective.
    pub fn new(
        collective: Collective,
        dtype: DataType,
        op: ReduceOp,
        root: Rank,
        algorithm: u32,
        count: u64,
    ) -> Signature {
        let op = if collective.is_reducing() {
            op.code()
        } else {
            0
        };
        let root = if collective.is_rooted() { root } else { 0 };
        let mut bits = count & ((1 << COUNT_BITS) - 1);
        for (value, width) in [
            (u64::from(root), ROOT_BITS),
            (u64::from(algorithm), ALGORITHM_BITS),
            (u64::from(op), OP_BITS),
            (dtype as u64, DTYPE_BITS),
            (collective as u64, COLLECTIVE_BITS),
        ] {
            bits = (bits << width) | (value & ((1 << width) - 1));
        }
        Signature(bits)
    }

    /// This signature for an all-gatherv whose counts have this hash: 18 bits of the hash take the
    /// places of the root and the operator, which an all-gatherv does not have. The sum of the
    /// counts does not change with their order; the hash does.
    pub fn with_counts(self, hash: u64) -> Signature {
        let (op, root) = (
            hash & ((1 << OP_BITS) - 1),
            (hash >> OP_BITS) & ((1 << ROOT_BITS) - 1),
        );
        Signature(
            self.0 & !(((1 << OP_BITS) - 1) << OP_AT) & !(((1 << ROOT_BITS) - 1) << ROOT_AT)
                | op << OP_AT
                | root << ROOT_AT,
        )
    }

    /// This signature for another collective with a length per rank, which has a root or an
    /// operator: the hash takes the place of the count.
    pub fn with_hash_of_counts(self, hash: u64) -> Signature {
        let at = 64 - COUNT_BITS;
        Signature(self.0 & ((1 << at) - 1) | hash << at)
    }

    /// The arguments as a part of a sentence: `allreduce of 5 f32 (sum)`.
    pub fn describe(self) -> String {
        let mut bits = self.0;
        let mut take = |width: u32| {
            let value = bits & ((1 << width) - 1);
            bits >>= width;
            value
        };
        let collective = Collective::from_code(take(COLLECTIVE_BITS) as u8);
        let dtype = DataType::from_code(take(DTYPE_BITS) as u8);
        let op = take(OP_BITS) as u8;
        let algorithm = take(ALGORITHM_BITS);
        let root = take(ROOT_BITS);
        let count = take(COUNT_BITS);
        let (Some(collective), Some(dtype)) = (collective, dtype) else {
            return format!("something unknown ({:#x})", self.0);
        };
        let mut text = match collective {
            // Each pair of ranks has a count of its own.
            Collective::AllToAllV => format!("{collective} of {dtype}"),
            of if of.has_part_lengths() && of != Collective::AllGatherV => {
                format!("{collective} of {dtype} (counts #{:04x})", count & 0xffff)
            }
            _ => format!("{collective} of {count} {dtype}"),
        };
        if collective.is_reducing() {
            text += &format!(" ({})", ReduceOp::name_of_code(op));
        }
        if collective == Collective::AllGatherV {
            text += &format!(" (counts #{:04x})", (root << OP_BITS) | u64::from(op));
        }
        if collective.is_rooted() {
            text += &format!(" root {root}");
        }
        match crate::collective::algorithms(collective).get(algorithm as usize) {
            Some(known) => text + &format!(" by {}", known.name),
            None => text,
        }
    }

    /// A text for two ranks that disagree: what each of them has called.
    pub fn describe_difference(self, rank: Rank, other: Signature, other_rank: Rank) -> String {
        format!(
            "rank {rank} called {}, rank {other_rank} called {}; make all ranks call the same",
            self.describe(),
            other.describe()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_argument_can_be_read_back() {
        let signature = Signature::new(
            Collective::Reduce,
            DataType::Bf16,
            ReduceOp::Max,
            crate::limits::RANKS_MAX - 1,
            3,
            1 << 32,
        );
        assert_eq!(
            signature.describe(),
            "reduce of 4294967296 bf16 (max) root 16383 by tree"
        );
        let barrier = Signature::new(Collective::Barrier, DataType::U8, ReduceOp::Sum, 0, 0, 0);
        assert_eq!(barrier.describe(), "barrier of 0 u8 by line");
    }

    #[test]
    fn every_type_operator_and_algorithm_has_a_code_of_its_own() {
        for dtype in DataType::ALL {
            for op in [ReduceOp::Sum, ReduceOp::BitOr, ReduceOp::BitXor] {
                let text = Signature::new(Collective::Reduce, dtype, op, 7, 4, 5).describe();
                let wanted = format!("reduce of 5 {dtype} ({op}) root 7 by chain");
                assert_eq!(text, wanted);
            }
        }
        for collective in Collective::ALL {
            let algorithms = crate::collective::algorithms(collective);
            assert!(algorithms.len() <= 1 << ALGORITHM_BITS, "{collective}");
        }
    }

    #[test]
    fn each_argument_changes_it() {
        let base = |c, d, o, r, a, n| Signature::new(c, d, o, r, a, n);
        let one = base(Collective::Reduce, DataType::F32, ReduceOp::Sum, 0, 0, 5);
        for other in [
            base(Collective::AllReduce, DataType::F32, ReduceOp::Sum, 0, 0, 5),
            base(Collective::Reduce, DataType::F64, ReduceOp::Sum, 0, 0, 5),
            base(Collective::Reduce, DataType::F32, ReduceOp::Avg, 0, 0, 5),
            base(Collective::Reduce, DataType::F32, ReduceOp::Sum, 1, 0, 5),
            base(Collective::Reduce, DataType::F32, ReduceOp::Sum, 0, 1, 5),
            base(Collective::Reduce, DataType::F32, ReduceOp::Sum, 0, 0, 6),
        ] {
            assert_ne!(one, other);
        }
    }

    #[test]
    fn counts_in_another_order_are_another_operation() {
        let plain = Signature::new(
            Collective::AllGatherV,
            DataType::F32,
            ReduceOp::Sum,
            0,
            0,
            90,
        );
        let (one, other) = (
            plain.with_counts(0x1234_5678),
            plain.with_counts(0x1234_5679),
        );
        assert_ne!(one, other);
        assert_eq!(one.with_counts(0), plain);
        assert_eq!(
            one.describe(),
            "all-gatherv of 90 f32 (counts #5678) by direct"
        );
    }

    #[test]
    fn a_root_means_something_where_there_is_one_only() {
        let of =
            |collective, root| Signature::new(collective, DataType::F32, ReduceOp::Sum, root, 0, 5);
        assert_eq!(of(Collective::AllReduce, 0), of(Collective::AllReduce, 1));
        assert_ne!(of(Collective::Broadcast, 0), of(Collective::Broadcast, 1));
    }
}
