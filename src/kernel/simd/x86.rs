//! From run-time values (instruction set, element type, operator) to the one compiled loop.

use super::avx2::{self, fold_avx2, scale_avx2};
use super::avx512::{self, fold_avx512, scale_avx512};
use super::avx512_bf16::{self, fold_avx512_bf16};
use super::blocks;
use super::compiled::{Compiled, Scale};
use super::lane::{And, DivideBy, Keep, Max, Min, Or, Prod, Sum, Xor};
use crate::kernel::isa::Isa;
use crate::kernel::reduction::Reduction;
use crate::memory::View;
use crate::types::{Combine, DataType, Finish};

/// See [`super::fold_of`].
pub(super) fn fold_of(reduction: &Reduction) -> Compiled {
    let Reduction {
        isa,
        dtype,
        combine,
        finish,
        ..
    } = *reduction;
    if let Some(fold) = blocks::fold_of(dtype, combine) {
        return fold;
    }
    match finish {
        Finish::Divide(_) if dtype.is_float() => fold_divide_of(isa, dtype, combine),
        _ => fold_keep_of(isa, dtype, combine),
    }
}

/// See [`super::scale`].
pub(super) fn scale(
    isa: Isa,
    dtype: DataType,
    factor: f64,
    source: View,
    destination: View,
) -> usize {
    debug_assert!(isa.is_present());
    let scale = scale_of(isa, dtype);
    // SAFETY: the CPU has `isa`; the views are as `kernel::scale` checks them.
    unsafe { scale(factor, source, destination) }
}

/// The loop of an operator: min and max depend on signedness and use the lane `$ordered`; sums and
/// products use `$ring`.
macro_rules! by_combine {
    ($fold:ident, $ordered:ty, $ring:ty, $last:ty, $combine:expr, $bits:expr) => {
        match $combine {
            Combine::Sum => $fold::<$ring, Sum, $last>,
            Combine::Prod => $fold::<$ring, Prod, $last>,
            Combine::Min => $fold::<$ordered, Min, $last>,
            Combine::Max => $fold::<$ordered, Max, $last>,
            Combine::BitAnd | Combine::BitOr | Combine::BitXor => $bits,
        }
    };
}

macro_rules! float_table {
    ($isa:ident, $fold:ident, $last:ty, $dtype:expr, $combine:expr, $integers:expr) => {
        match $dtype {
            DataType::F64 => by_combine!($fold, $isa::F64, $isa::F64, $last, $combine, no_bits()),
            DataType::F32 => by_combine!($fold, $isa::F32, $isa::F32, $last, $combine, no_bits()),
            DataType::F16 => by_combine!($fold, $isa::F16, $isa::F16, $last, $combine, no_bits()),
            DataType::Bf16 => {
                by_combine!($fold, $isa::Bf16, $isa::Bf16, $last, $combine, no_bits())
            }
            _ => $integers,
        }
    };
}

/// The bitwise operators, on the lane of any integer type.
macro_rules! by_bits {
    ($fold:ident, $lane:ty, $combine:expr) => {
        match $combine {
            Combine::BitOr => $fold::<$lane, Or, Keep>,
            Combine::BitXor => $fold::<$lane, Xor, Keep>,
            _ => $fold::<$lane, And, Keep>,
        }
    };
}

macro_rules! integer_table {
    ($isa:ident, $fold:ident, $dtype:expr, $combine:expr) => {{
        let bits = by_bits!($fold, $isa::U8, $combine);
        match $dtype {
            DataType::I8 => by_combine!($fold, $isa::I8, $isa::U8, Keep, $combine, bits),
            DataType::I16 => by_combine!($fold, $isa::I16, $isa::U16, Keep, $combine, bits),
            DataType::U16 => by_combine!($fold, $isa::U16, $isa::U16, Keep, $combine, bits),
            DataType::I32 => by_combine!($fold, $isa::I32, $isa::U32, Keep, $combine, bits),
            DataType::U32 => by_combine!($fold, $isa::U32, $isa::U32, Keep, $combine, bits),
            DataType::I64 => by_combine!($fold, $isa::I64, $isa::U64, Keep, $combine, bits),
            DataType::U64 => by_combine!($fold, $isa::U64, $isa::U64, Keep, $combine, bits),
            DataType::Bool => by_combine!($fold, $isa::Bool, $isa::Bool, Keep, $combine, {
                by_bits!($fold, $isa::Bool, $combine)
            }),
            _ => by_combine!($fold, $isa::U8, $isa::U8, Keep, $combine, bits),
        }
    }};
}

macro_rules! native_bf16 {
    ($last:ty, $combine:expr) => {
        by_combine!(
            fold_avx512_bf16,
            avx512_bf16::Bf16,
            avx512_bf16::Bf16,
            $last,
            $combine,
            no_bits()
        )
    };
}

fn fold_keep_of(isa: Isa, dtype: DataType, combine: Combine) -> Compiled {
    match isa {
        Isa::Avx512Bf16 if dtype == DataType::Bf16 => native_bf16!(Keep, combine),
        Isa::Avx512 | Isa::Avx512Bf16 => float_table!(avx512, fold_avx512, Keep, dtype, combine, {
            integer_table!(avx512, fold_avx512, dtype, combine)
        }),
        _ => float_table!(avx2, fold_avx2, Keep, dtype, combine, {
            integer_table!(avx2, fold_avx2, dtype, combine)
        }),
    }
}

fn fold_divide_of(isa: Isa, dtype: DataType, combine: Combine) -> Compiled {
    match isa {
        Isa::Avx512Bf16 if dtype == DataType::Bf16 => native_bf16!(DivideBy, combine),
        Isa::Avx512 | Isa::Avx512Bf16 => {
            float_table!(avx512, fold_avx512, DivideBy, dtype, combine, no_float())
        }
        _ => float_table!(avx2, fold_avx2, DivideBy, dtype, combine, no_float()),
    }
}

macro_rules! scale_table {
    ($isa:ident, $scale:ident, $dtype:expr) => {
        match $dtype {
            DataType::F64 => $scale::<$isa::F64>,
            DataType::F32 => $scale::<$isa::F32>,
            DataType::F16 => $scale::<$isa::F16>,
            DataType::Bf16 => $scale::<$isa::Bf16>,
            _ => no_float(),
        }
    };
}

fn scale_of(isa: Isa, dtype: DataType) -> Scale {
    if let Some(scale) = blocks::scale_of(dtype) {
        return scale;
    }
    match isa {
        Isa::Avx512 | Isa::Avx512Bf16 => scale_table!(avx512, scale_avx512, dtype),
        _ => scale_table!(avx2, scale_avx2, dtype),
    }
}

fn no_bits<T>() -> T {
    unreachable!("bits of floating-point values: `kernel::reduce` checks")
}

fn no_float<T>() -> T {
    unreachable!("integers have no floating-point kernel: the callers check")
}
