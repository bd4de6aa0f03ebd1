//! The numbers of collectives, types and operators.

use crate::status::{Fault, invalid};
use linerate::{Collective, DataType, ReduceOp};

/// The reduction of all inputs, on every rank.
pub const LINERATE_ALL_REDUCE: u32 = 1;
/// Rank r gets the reduction of block r.
pub const LINERATE_REDUCE_SCATTER: u32 = 2;
/// Block r of every output is rank r's input.
pub const LINERATE_ALL_GATHER: u32 = 3;
/// As LINERATE_ALL_GATHER, with a length per rank.
pub const LINERATE_ALL_GATHER_V: u32 = 4;
/// The root's elements, on all ranks.
pub const LINERATE_BROADCAST: u32 = 5;
/// The reduction of all inputs, on the root.
pub const LINERATE_REDUCE: u32 = 6;
/// Block r of the root's output is rank r's input.
pub const LINERATE_GATHER: u32 = 7;
/// Rank r gets block r of the root's input.
pub const LINERATE_SCATTER: u32 = 8;
/// Block r goes to rank r.
pub const LINERATE_ALL_TO_ALL: u32 = 9;
/// As LINERATE_ALL_TO_ALL, with a length per pair. Never in place.
pub const LINERATE_ALL_TO_ALL_V: u32 = 10;
/// No rank leaves before all have come.
pub const LINERATE_BARRIER: u32 = 11;
/// As LINERATE_GATHER, with a length per rank.
pub const LINERATE_GATHER_V: u32 = 13;
/// As LINERATE_SCATTER, with a length per rank.
pub const LINERATE_SCATTER_V: u32 = 14;
/// As LINERATE_REDUCE_SCATTER, with a length per rank.
pub const LINERATE_REDUCE_SCATTER_V: u32 = 15;

/// double
pub const LINERATE_F64: u32 = 1;
/// float
pub const LINERATE_F32: u32 = 2;
/// IEEE binary16; accumulated in f32.
pub const LINERATE_F16: u32 = 3;
/// bfloat16; accumulated in f32.
pub const LINERATE_BF16: u32 = 4;
/// int8_t
pub const LINERATE_I8: u32 = 5;
/// uint8_t
pub const LINERATE_U8: u32 = 6;
/// int32_t
pub const LINERATE_I32: u32 = 7;
/// uint32_t
pub const LINERATE_U32: u32 = 8;
/// int64_t
pub const LINERATE_I64: u32 = 9;
/// uint64_t
pub const LINERATE_U64: u32 = 10;
/// A truth value in one byte.
pub const LINERATE_BOOL: u32 = 11;
/// int16_t
pub const LINERATE_I16: u32 = 12;
/// uint16_t
pub const LINERATE_U16: u32 = 13;
/// float8_e4m3fn of OCP and torch; accumulated in f32.
pub const LINERATE_F8E4M3: u32 = 14;
/// float8_e5m2; accumulated in f32.
pub const LINERATE_F8E5M2: u32 = 15;
/// Two floats, the real part first.
pub const LINERATE_C64: u32 = 16;
/// Two doubles, the real part first.
pub const LINERATE_C128: u32 = 17;

/// Of truth values: or. Every type has it.
pub const LINERATE_SUM: u32 = 0;
/// Of truth values: and. Not of complex numbers.
pub const LINERATE_PROD: u32 = 1;
/// Of truth values: and. Not of complex numbers.
pub const LINERATE_MIN: u32 = 2;
/// Of truth values: or. Not of complex numbers.
pub const LINERATE_MAX: u32 = 3;
/// The sum, divided by the ranks once at the end. Not of truth values.
pub const LINERATE_AVG: u32 = 4;
/// The sum of what each rank multiplies by its `factor`. Floats and complex numbers.
pub const LINERATE_PREMUL_SUM: u32 = 5;
/// Integers and truth values.
pub const LINERATE_BIT_AND: u32 = 6;
/// Integers and truth values.
pub const LINERATE_BIT_OR: u32 = 7;
/// Integers and truth values.
pub const LINERATE_BIT_XOR: u32 = 8;

/// Numbers of C are one more than the library's codes, so that 0 is none.
fn code_of(number: u32) -> Option<u8> {
    u8::try_from(number.checked_sub(1)?).ok()
}

pub(crate) fn collective_of(number: u32) -> Result<Collective, Fault> {
    let known = code_of(number).and_then(Collective::from_code);
    let known = known.filter(|&known| known != Collective::SendRecv);
    known.ok_or_else(|| {
        invalid(format!(
            "collective {number}: LINERATE_ALL_REDUCE ({LINERATE_ALL_REDUCE}) to LINERATE_BARRIER ({LINERATE_BARRIER}), and LINERATE_GATHER_V ({LINERATE_GATHER_V}) to LINERATE_REDUCE_SCATTER_V ({LINERATE_REDUCE_SCATTER_V})"
        ))
    })
}

pub(crate) fn dtype_of(number: u32) -> Result<DataType, Fault> {
    let known = code_of(number).and_then(DataType::from_code);
    known.ok_or_else(|| {
        invalid(format!(
            "type {number}: LINERATE_F64 ({LINERATE_F64}) to LINERATE_C128 ({LINERATE_C128})"
        ))
    })
}

/// The number of a type.
pub(crate) fn number_of(dtype: DataType) -> u32 {
    let mut all = (1..).zip(DataType::ALL);
    let own = all.find(|(_, known)| *known == dtype);
    own.map_or(0, |(number, _)| number)
}

#[inline]
pub(crate) fn op_of(number: u32, factor: f64) -> Result<ReduceOp, Fault> {
    Ok(match number {
        LINERATE_SUM => ReduceOp::Sum,
        LINERATE_PROD => ReduceOp::Prod,
        LINERATE_MIN => ReduceOp::Min,
        LINERATE_MAX => ReduceOp::Max,
        LINERATE_AVG => ReduceOp::Avg,
        LINERATE_PREMUL_SUM => ReduceOp::PremulSum(factor),
        LINERATE_BIT_AND => ReduceOp::BitAnd,
        LINERATE_BIT_OR => ReduceOp::BitOr,
        LINERATE_BIT_XOR => ReduceOp::BitXor,
        _ => {
            return Err(invalid(format!(
                "operator {number}: LINERATE_SUM ({LINERATE_SUM}) to LINERATE_BIT_XOR ({LINERATE_BIT_XOR})"
            )));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_the_library_has_its_number() {
        let types = [
            (LINERATE_F64, DataType::F64),
            (LINERATE_F32, DataType::F32),
            (LINERATE_F16, DataType::F16),
            (LINERATE_BF16, DataType::Bf16),
            (LINERATE_I8, DataType::I8),
            (LINERATE_U8, DataType::U8),
            (LINERATE_I32, DataType::I32),
            (LINERATE_U32, DataType::U32),
            (LINERATE_I64, DataType::I64),
            (LINERATE_U64, DataType::U64),
            (LINERATE_BOOL, DataType::Bool),
            (LINERATE_I16, DataType::I16),
            (LINERATE_U16, DataType::U16),
            (LINERATE_F8E4M3, DataType::F8E4M3),
            (LINERATE_F8E5M2, DataType::F8E5M2),
            (LINERATE_C64, DataType::C64),
            (LINERATE_C128, DataType::C128),
        ];
        assert_eq!(types.map(|(_, dtype)| dtype), DataType::ALL);
        for (number, dtype) in types {
            assert_eq!(dtype_of(number).unwrap(), dtype);
            assert_eq!(number_of(dtype), number);
        }
        let collectives = [
            (LINERATE_ALL_REDUCE, Collective::AllReduce),
            (LINERATE_REDUCE_SCATTER, Collective::ReduceScatter),
            (LINERATE_ALL_GATHER, Collective::AllGather),
            (LINERATE_ALL_GATHER_V, Collective::AllGatherV),
            (LINERATE_BROADCAST, Collective::Broadcast),
            (LINERATE_REDUCE, Collective::Reduce),
            (LINERATE_GATHER, Collective::Gather),
            (LINERATE_SCATTER, Collective::Scatter),
            (LINERATE_ALL_TO_ALL, Collective::AllToAll),
            (LINERATE_ALL_TO_ALL_V, Collective::AllToAllV),
            (LINERATE_BARRIER, Collective::Barrier),
            (LINERATE_GATHER_V, Collective::GatherV),
            (LINERATE_SCATTER_V, Collective::ScatterV),
            (LINERATE_REDUCE_SCATTER_V, Collective::ReduceScatterV),
        ];
        for (number, collective) in collectives {
            assert_eq!(collective_of(number).unwrap(), collective);
        }
        assert_eq!(collectives.len() + 1, Collective::ALL.len());
        for number in 0..9 {
            let op = op_of(number, 2.0).unwrap();
            assert_eq!(u32::from(op.code()), number);
        }
        for bad in [0, 18, 256, 257, u32::MAX] {
            assert!(dtype_of(bad).is_err() && collective_of(bad).is_err());
        }
        assert!(collective_of(12).is_err() && op_of(9, 1.0).is_err());
    }
}
