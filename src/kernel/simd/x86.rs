//! From run-time values (instruction set, element type, operator) to the one compiled loop.

use super::avx2::{self, fold_avx2, scale_avx2};
use super::avx512::{self, fold_avx512, scale_avx512};
use super::avx512_bf16::{self, fold_avx512_bf16};
use super::compiled::Compiled;
use super::lane::{And, DivideBy, Keep, Max, Min, Prod, Sum};
use crate::kernel::isa::Isa;
use crate::kernel::reduction::Reduction;
use crate::memory::View;
use crate::types::{Combine, DataType, Finish};

/// A compiled multiplication; gives the count of elements that it did.
type Scale = unsafe fn(f64, View, View) -> usize;

/// See [`super::fold_of`].
pub(super) fn fold_of(reduction: &Reduction) -> Compiled {
    let Reduction {
        isa,
        dtype,
        combine,
        finish,
        ..
    } = *reduction;
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

/// The lane of the operators that depend on signedness, the lane of those that do not.
macro_rules! by_combine {
    ($fold:ident, $ordered:ty, $ring:ty, $last:ty, $combine:expr, $and:expr) => {
        match $combine {
            Combine::Sum => $fold::<$ring, Sum, $last>,
            Combine::Prod => $fold::<$ring, Prod, $last>,
            Combine::Min => $fold::<$ordered, Min, $last>,
            Combine::Max => $fold::<$ordered, Max, $last>,
            Combine::BitAnd => $and,
        }
    };
}

macro_rules! float_table {
    ($isa:ident, $fold:ident, $last:ty, $dtype:expr, $combine:expr, $integers:expr) => {
        match $dtype {
            DataType::F64 => by_combine!($fold, $isa::F64, $isa::F64, $last, $combine, no_and()),
            DataType::F32 => by_combine!($fold, $isa::F32, $isa::F32, $last, $combine, no_and()),
            DataType::F16 => by_combine!($fold, $isa::F16, $isa::F16, $last, $combine, no_and()),
            DataType::Bf16 => by_combine!($fold, $isa::Bf16, $isa::Bf16, $last, $combine, no_and()),
            _ => $integers,
        }
    };
}

macro_rules! integer_table {
    ($isa:ident, $fold:ident, $dtype:expr, $combine:expr) => {{
        let and = $fold::<$isa::U8, And, Keep>;
        match $dtype {
            DataType::I8 => by_combine!($fold, $isa::I8, $isa::U8, Keep, $combine, and),
            DataType::I32 => by_combine!($fold, $isa::I32, $isa::U32, Keep, $combine, and),
            DataType::U32 => by_combine!($fold, $isa::U32, $isa::U32, Keep, $combine, and),
            DataType::I64 => by_combine!($fold, $isa::I64, $isa::U64, Keep, $combine, and),
            DataType::U64 => by_combine!($fold, $isa::U64, $isa::U64, Keep, $combine, and),
            _ => by_combine!($fold, $isa::U8, $isa::U8, Keep, $combine, and),
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
            no_and()
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
    match isa {
        Isa::Avx512 | Isa::Avx512Bf16 => scale_table!(avx512, scale_avx512, dtype),
        _ => scale_table!(avx2, scale_avx2, dtype),
    }
}

fn no_and<T>() -> T {
    unreachable!("bitwise and of floating-point values: `kernel::reduce` checks")
}

fn no_float<T>() -> T {
    unreachable!("integers have no floating-point kernel: the callers check")
}
