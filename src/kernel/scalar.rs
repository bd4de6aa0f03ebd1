//! The kernels one element at a time. They are the definition and the test oracle, do the tail of
//! the vector code, and do all on CPUs for which there is no vector code.

use super::access;
use super::number::{Number, Wide, with_number};
use crate::memory::View;
use crate::types::{Combine, DataType, F8E4M3, F8E5M2, Finish};
use std::ops::Range;

/// Reduces the elements of a range of the sources (first) into the destinations (second).
pub(super) type Fold = fn(Finish, (&[View], &[View]), Range<usize>);

/// The fold of a type that is not complex and an operator.
pub(super) fn fold_of(dtype: DataType, combine: Combine) -> Fold {
    with_number!(dtype, T => match combine {
        Combine::Sum => |finish, views, range| fold::<T>(Wide::sum, finish, views, range),
        Combine::Prod => |finish, views, range| fold::<T>(Wide::prod, finish, views, range),
        Combine::Min => |finish, views, range| fold::<T>(Wide::min, finish, views, range),
        Combine::Max => |finish, views, range| fold::<T>(Wide::max, finish, views, range),
        Combine::BitAnd => |finish, views, range| fold::<T>(Wide::and, finish, views, range),
        Combine::BitOr => |finish, views, range| fold::<T>(Wide::or, finish, views, range),
        Combine::BitXor => |finish, views, range| fold::<T>(Wide::xor, finish, views, range),
    })
}

#[inline]
fn fold<T: Number>(
    combine: impl Fn(T::Wide, T::Wide) -> T::Wide,
    finish: Finish,
    (sources, destinations): (&[View], &[View]),
    range: Range<usize>,
) {
    for index in range {
        let mut value = access::load::<T>(sources[0], index).widen();
        for source in &sources[1..] {
            value = combine(value, access::load::<T>(*source, index).widen());
        }
        if let Finish::Divide(ranks) = finish {
            value = value.divide(ranks);
        }
        let value = T::narrow(value);
        for destination in destinations {
            access::store(*destination, index, value);
        }
    }
}

/// Scales the elements `range`; floating-point types only.
pub(super) fn scale(
    dtype: DataType,
    factor: f64,
    source: View,
    destination: View,
    range: Range<usize>,
) {
    match dtype {
        DataType::F64 => multiply::<f64>(factor, source, destination, range),
        DataType::F32 => multiply::<f32>(factor as f32, source, destination, range),
        DataType::F16 => multiply::<half::f16>(factor as f32, source, destination, range),
        DataType::Bf16 => multiply::<half::bf16>(factor as f32, source, destination, range),
        DataType::F8E4M3 => multiply::<F8E4M3>(factor as f32, source, destination, range),
        DataType::F8E5M2 => multiply::<F8E5M2>(factor as f32, source, destination, range),
        _ => unreachable!("scaling of integers: `scale` checks"),
    }
}

fn multiply<T: Number>(factor: T::Wide, source: View, destination: View, range: Range<usize>) {
    for index in range {
        let product = access::load::<T>(source, index).widen().prod(factor);
        access::store(destination, index, T::narrow(product));
    }
}
