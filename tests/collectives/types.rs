//! Every algorithm with every type that is not a plain word of a processor, byte for byte.

use crate::values::{Planned, Prepared};
use linerate::{Buffer, Collective, Communicator, DataType, ReduceOp};

/// Operators whose results do not round.
const OPERATORS: [ReduceOp; 8] = [
    ReduceOp::Sum,
    ReduceOp::BitXor,
    ReduceOp::PremulSum(2.0),
    ReduceOp::BitOr,
    ReduceOp::Max,
    ReduceOp::BitAnd,
    ReduceOp::Min,
    ReduceOp::Prod,
];

/// The types that are more than numbers which every processor adds.
const TYPES: [DataType; 7] = [
    DataType::Bool,
    DataType::I16,
    DataType::U16,
    DataType::F8E4M3,
    DataType::F8E5M2,
    DataType::C64,
    DataType::C128,
];

/// The operator with this number that the type has. Products of floats round.
fn operator(dtype: DataType, number: usize) -> ReduceOp {
    let is_exact = |op: &ReduceOp| *op != ReduceOp::Prod || !dtype.is_float();
    let known = (OPERATORS.into_iter()).filter(|op| op.is_defined_for(dtype) && is_exact(op));
    let known: Vec<ReduceOp> = known.collect();
    known[number % known.len()]
}

/// Each algorithm, and the free choice, of each collective with each of the types; counts,
/// operators, roots and placements take turns.
pub fn cases(ranks: u32, is_mapped: bool) -> Vec<Planned> {
    let counts = [1, 0, 3, 97, u64::from(ranks) + 1, 5003];
    let mut all = Vec::new();
    for collective in Collective::ALL {
        let named = linerate::collective::algorithms(collective)
            .iter()
            .map(Some);
        for algorithm in std::iter::once(None).chain(named) {
            for dtype in TYPES {
                let number = all.len();
                let mut case = Planned {
                    salt: number as u64,
                    collective,
                    dtype,
                    op: operator(dtype, number / TYPES.len()),
                    count: counts[number % counts.len()],
                    root: number as u32 % ranks,
                    ranks,
                    algorithm: algorithm.map(|algorithm| algorithm.name),
                    in_place: number % 2 == 1,
                    registered: number % 3 != 2,
                };
                if algorithm.is_some_and(|algorithm| !case.can_run(algorithm, is_mapped)) {
                    // Three of the largest elements fit into a line.
                    (case.count, case.registered, case.op) = (3, true, operator(dtype, 0));
                }
                if algorithm.is_none_or(|algorithm| case.can_run(algorithm, is_mapped)) {
                    all.push(case);
                }
            }
        }
    }
    all
}

/// The buffers of a rank.
pub fn prepare(case: &Planned, comm: &Communicator) -> Prepared {
    case.prepare(comm.rank(), |bytes| match case.registered {
        true => comm.alloc(bytes).unwrap(),
        false => Buffer::from_vec(vec![0; bytes]),
    })
}

/// Checks what a rank has got.
pub fn check(case: &Planned, comm: &Communicator, prepared: &Prepared) {
    let (got, wanted) = (
        prepared.output.to_vec().unwrap(),
        case.expected(comm.rank()),
    );
    // A rank that is no root has nothing to get.
    if !wanted.is_empty() {
        assert!(got == wanted, "{case:?} on rank {}", comm.rank());
    }
}
