//! From run-time values (instruction set, element type, operator) to the one compiled loop.

use super::avx2::{self, fold_avx2, map_avx2};
use super::avx512::{self, fold_avx512, map_avx512};
use super::avx512_bf16::{self, fold_avx512_bf16};
use super::lane::{And, DivideBy, Keep, Max, Min, MultiplyBy, Prod, Sum};
use super::{Isa, Reduction, Stores};
use crate::kernel::scalar;
use crate::memory::View;
use crate::types::{Combine, DataType, Finish};
use std::ops::Range;

/// A compiled reduction of bytes `range`; gives the end of what it did.
type Fold<F> = unsafe fn(F, &[View], &[View], Range<usize>, Stores) -> usize;
/// A compiled conversion or multiplication; gives the count of elements it did.
type Map<F> = unsafe fn(F, View, View) -> usize;

/// Bytes that are summed, then divided while they are in the first-level cache (of 32 KiB or more).
const DIVIDE_BYTES: usize = 4096;

/// See [`super::reduce`].
#[inline]
pub(super) fn reduce(
    reduction: &Reduction,
    sources: &[View],
    destinations: &[View],
    range: Range<usize>,
) -> usize {
    let Reduction {
        isa,
        stores,
        dtype,
        combine,
        finish,
    } = *reduction;
    debug_assert!(isa.is_present());
    match finish {
        Finish::None => {
            let fold = fold_of(isa, dtype, combine);
            // SAFETY: the CPU has `isa`; the views are as `kernel::reduce` checks them, and streamed
            // destinations are aligned (`stream_head_bytes`).
            unsafe { fold(Keep, sources, destinations, range, stores) }
        }
        Finish::Divide(ranks) if dtype.is_float() => {
            let fold = fold_divide_of(isa, dtype, combine);
            let last = DivideBy(ranks.into());
            // SAFETY: as above.
            unsafe { fold(last, sources, destinations, range, stores) }
        }
        Finish::Divide(_) => fold_then_divide(reduction, sources, destinations, range),
    }
}

/// Integers: folds block by block into the first destination, then divides from there into all.
fn fold_then_divide(
    reduction: &Reduction,
    sources: &[View],
    destinations: &[View],
    range: Range<usize>,
) -> usize {
    let fold = fold_of(reduction.isa, reduction.dtype, reduction.combine);
    let size = reduction.dtype.size_bytes();
    let sums = &destinations[..1];
    let mut start = range.start;
    while start < range.end {
        let block = start..range.end.min(start + DIVIDE_BYTES);
        // SAFETY: as in `reduce`; the block lies inside the views.
        let end = unsafe { fold(Keep, sources, sums, block, Stores::Cached) };
        if end == start {
            break;
        }
        scalar::reduce(reduction, (sums, destinations), start / size..end / size);
        start = end;
    }
    start
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
    unsafe { scale(MultiplyBy(factor), source, destination) }
}

/// See [`super::convert`].
pub(super) fn convert(
    isa: Isa,
    from: DataType,
    source: View,
    to: DataType,
    destination: View,
) -> usize {
    debug_assert!(isa.is_present());
    match convert_of(isa, from, to) {
        // SAFETY: the CPU has `isa`; the views are as `kernel::convert` checks them.
        Some(convert) => unsafe { convert(Keep, source, destination) },
        None => 0,
    }
}

/// The lane of the operators that depend on signedness, the lane of those that do not.
macro_rules! by_combine {
    ($fold:ident, $ordered:ty, $ring:ty, $combine:expr, $and:expr) => {
        match $combine {
            Combine::Sum => $fold::<$ring, Sum, _>,
            Combine::Prod => $fold::<$ring, Prod, _>,
            Combine::Min => $fold::<$ordered, Min, _>,
            Combine::Max => $fold::<$ordered, Max, _>,
            Combine::BitAnd => $and,
        }
    };
}

macro_rules! float_table {
    ($isa:ident, $fold:ident, $dtype:expr, $combine:expr, $integers:expr) => {
        match $dtype {
            DataType::F64 => by_combine!($fold, $isa::F64, $isa::F64, $combine, no_and()),
            DataType::F32 => by_combine!($fold, $isa::F32, $isa::F32, $combine, no_and()),
            DataType::F16 => by_combine!($fold, $isa::F16, $isa::F16, $combine, no_and()),
            DataType::Bf16 => by_combine!($fold, $isa::Bf16, $isa::Bf16, $combine, no_and()),
            _ => $integers,
        }
    };
}

macro_rules! integer_table {
    ($isa:ident, $fold:ident, $dtype:expr, $combine:expr) => {{
        let and = $fold::<$isa::U8, And, _>;
        match $dtype {
            DataType::I8 => by_combine!($fold, $isa::I8, $isa::U8, $combine, and),
            DataType::I32 => by_combine!($fold, $isa::I32, $isa::U32, $combine, and),
            DataType::U32 => by_combine!($fold, $isa::U32, $isa::U32, $combine, and),
            DataType::I64 => by_combine!($fold, $isa::I64, $isa::U64, $combine, and),
            DataType::U64 => by_combine!($fold, $isa::U64, $isa::U64, $combine, and),
            _ => by_combine!($fold, $isa::U8, $isa::U8, $combine, and),
        }
    }};
}

macro_rules! native_bf16 {
    ($combine:expr) => {
        by_combine!(
            fold_avx512_bf16,
            avx512_bf16::Bf16,
            avx512_bf16::Bf16,
            $combine,
            no_and()
        )
    };
}

fn fold_of(isa: Isa, dtype: DataType, combine: Combine) -> Fold<Keep> {
    match isa {
        Isa::Avx512Bf16 if dtype == DataType::Bf16 => native_bf16!(combine),
        Isa::Avx512 | Isa::Avx512Bf16 => float_table!(avx512, fold_avx512, dtype, combine, {
            integer_table!(avx512, fold_avx512, dtype, combine)
        }),
        _ => float_table!(avx2, fold_avx2, dtype, combine, {
            integer_table!(avx2, fold_avx2, dtype, combine)
        }),
    }
}

fn fold_divide_of(isa: Isa, dtype: DataType, combine: Combine) -> Fold<DivideBy> {
    match isa {
        Isa::Avx512Bf16 if dtype == DataType::Bf16 => native_bf16!(combine),
        Isa::Avx512 | Isa::Avx512Bf16 => {
            float_table!(avx512, fold_avx512, dtype, combine, no_float())
        }
        _ => float_table!(avx2, fold_avx2, dtype, combine, no_float()),
    }
}

macro_rules! scale_table {
    ($isa:ident, $map:ident, $dtype:expr) => {
        match $dtype {
            DataType::F64 => $map::<$isa::F64, $isa::F64, _>,
            DataType::F32 => $map::<$isa::F32, $isa::F32, _>,
            DataType::F16 => $map::<$isa::F16, $isa::F16, _>,
            DataType::Bf16 => $map::<$isa::Bf16, $isa::Bf16, _>,
            _ => no_float(),
        }
    };
}

fn scale_of(isa: Isa, dtype: DataType) -> Map<MultiplyBy> {
    match isa {
        Isa::Avx512 | Isa::Avx512Bf16 => scale_table!(avx512, map_avx512, dtype),
        _ => scale_table!(avx2, map_avx2, dtype),
    }
}

macro_rules! convert_table {
    ($isa:ident, $map:ident, $pair:expr) => {
        match $pair {
            (DataType::F32, DataType::F16) => $map::<$isa::F32, $isa::F16, _>,
            (DataType::F32, DataType::Bf16) => $map::<$isa::F32, $isa::OrderedBf16, _>,
            (DataType::F16, DataType::F32) => $map::<$isa::F16, $isa::F32, _>,
            (DataType::Bf16, DataType::F32) => $map::<$isa::OrderedBf16, $isa::F32, _>,
            (DataType::F16, DataType::Bf16) => $map::<$isa::F16, $isa::OrderedBf16, _>,
            (DataType::Bf16, DataType::F16) => $map::<$isa::OrderedBf16, $isa::F16, _>,
            _ => return None,
        }
    };
}

fn convert_of(isa: Isa, from: DataType, to: DataType) -> Option<Map<Keep>> {
    Some(match isa {
        Isa::Avx512 | Isa::Avx512Bf16 => convert_table!(avx512, map_avx512, (from, to)),
        _ => convert_table!(avx2, map_avx2, (from, to)),
    })
}

fn no_and<T>() -> T {
    unreachable!("bitwise and of floating-point values: `kernel::reduce` checks")
}

fn no_float<T>() -> T {
    unreachable!("integers have no floating-point kernel: the callers check")
}
