//! Checked data: what a rank's input holds, and what a result must be.
//!
//! Inputs are integers, functions of (seed, rank, element). They are so small that the results of
//! few ranks are exact in every type. With more ranks a bound on the rounding (one rounding per
//! addend) is allowed. All elements are compared.

use super::layout::{Segment, Source};
use half::{bf16, f16};
use linerate::elements::{Bool, F8E4M3, F8E5M2};
use linerate::unstable::prng;
use linerate::{Buffer, DataType, Element, Rank, ReduceOp, Result};
use num_complex::Complex;

/// One of each operator.
pub const OPERATORS: [ReduceOp; 9] = [
    ReduceOp::Sum,
    ReduceOp::Prod,
    ReduceOp::Min,
    ReduceOp::Max,
    ReduceOp::Avg,
    ReduceOp::PremulSum(2.0),
    ReduceOp::BitAnd,
    ReduceOp::BitOr,
    ReduceOp::BitXor,
];
/// Sums add integers up to this (signed types: down to its negative).
const ADDEND_MAX: u64 = 3;
/// Ranks whose factor of a product may be 2: 2^14 is within the range of f16 and f8e5m2, and 2^8
/// within that of f8e4m3.
const fn doubling_ranks(dtype: DataType) -> Rank {
    match dtype {
        DataType::F8E4M3 => 8,
        _ => 14,
    }
}
/// What outputs are filled with before a run; no result consists of this byte alone.
const POISON: u8 = 0xa5;

/// The data of one row.
#[derive(Clone, Copy, Debug)]
pub struct Data {
    /// Every input depends on it.
    pub seed: u64,
    /// Element type.
    pub dtype: DataType,
    /// Operator; `None` where elements are only moved.
    pub op: Option<ReduceOp>,
    /// Ranks.
    pub ranks: u32,
}

impl Data {
    /// Writes rank `rank`'s input.
    pub fn fill(&self, rank: Rank, buffer: &Buffer<u8>) -> Result<()> {
        by_type(self.dtype).fill(self, rank, buffer)
    }

    /// Elements of `buffer`, from its beginning, that are not what `segments` say.
    pub fn count_wrong(&self, segments: &[Segment], buffer: &Buffer<u8>) -> Result<u64> {
        by_type(self.dtype).count_wrong(self, segments, buffer)
    }

    /// The integer that an input element is made from.
    fn integer(&self, rank: Rank, index: u64) -> i64 {
        // Ranks have 14 bits and indices 48, so no two elements of a job share a hash.
        let hash = prng::mix(prng::mix(self.seed) ^ (u64::from(rank) << 48) ^ index);
        let below = |bound: u64| (((hash >> 32) * bound) >> 32) as i64;
        if self.dtype == DataType::Bool {
            return i64::from(self.is_true(hash));
        }
        use DataType::{U8, U16, U32, U64};
        let is_signed = !matches!(self.dtype, U8 | U16 | U32 | U64);
        let symmetric = |most: u64| {
            if is_signed {
                below(2 * most + 1) - most as i64
            } else {
                below(most + 1)
            }
        };
        match self.op {
            None if is_real(self.dtype) => symmetric(125),
            None => hash as i64,
            Some(ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PremulSum(_)) => symmetric(ADDEND_MAX),
            Some(ReduceOp::Prod) => match below(3) {
                0 => 1,
                1 => -1,
                _ if rank < doubling_ranks(self.dtype) => 2,
                _ => 1,
            },
            Some(ReduceOp::Min | ReduceOp::Max) => symmetric(100),
            // Each bit is set with probability 7/8, so that some are left after a few ranks.
            Some(ReduceOp::BitAnd) => (hash | hash.rotate_left(21) | hash.rotate_left(43)) as i64,
            Some(ReduceOp::BitOr) => (hash & hash.rotate_left(21) & hash.rotate_left(43)) as i64,
            Some(ReduceOp::BitXor) => hash as i64,
        }
    }

    /// The truth value of an input element with this hash. It is drawn so that the results of a few
    /// ranks have both values.
    fn is_true(&self, hash: u64) -> bool {
        let eighth = (hash >> 32) % 8;
        match self.op {
            Some(ReduceOp::Prod | ReduceOp::Min | ReduceOp::BitAnd) => eighth > 0,
            Some(ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr) => eighth == 0,
            _ => eighth < 4,
        }
    }

    fn input<T: Value>(&self, rank: Rank, index: u64) -> T {
        T::from_int(self.integer(rank, index))
    }

    fn expected<T: Value>(&self, source: Source, index: u64) -> T {
        match source {
            Source::Rank(rank) => self.input(rank, index),
            Source::All => self.reduced(index),
        }
    }

    fn reduced<T: Value>(&self, index: u64) -> T {
        let inputs = || (0..self.ranks).map(|rank| self.integer(rank, index));
        let sum = || inputs().fold(0i64, i64::wrapping_add);
        match self.op.unwrap_or(ReduceOp::Sum) {
            ReduceOp::Sum => T::from_int(sum()),
            ReduceOp::Prod => T::from_int(inputs().fold(1i64, i64::wrapping_mul)),
            ReduceOp::Min => T::from_int(inputs().min().unwrap_or(0)),
            ReduceOp::Max => T::from_int(inputs().max().unwrap_or(0)),
            ReduceOp::BitAnd => T::from_int(inputs().fold(-1i64, |a, b| a & b)),
            ReduceOp::BitOr => T::from_int(inputs().fold(0i64, |a, b| a | b)),
            ReduceOp::BitXor => T::from_int(inputs().fold(0i64, |a, b| a ^ b)),
            ReduceOp::PremulSum(factor) => {
                let product = |input: i64| T::from_real(input as f64 * factor).to_real();
                T::from_real(inputs().map(product).sum())
            }
            ReduceOp::Avg if is_real(T::DTYPE) => {
                T::from_real(sum() as f64 / f64::from(self.ranks))
            }
            ReduceOp::Avg => {
                let wrapped = T::from_int(sum()).to_real() as i64;
                T::from_int(wrapped / i64::from(self.ranks))
            }
        }
    }

    /// How far a result may be from the expected value; 0 where it is exact.
    fn tolerance<T: Value>(&self) -> f64 {
        let ranks = f64::from(self.ranks);
        let factor = match self.op {
            Some(ReduceOp::PremulSum(factor)) => factor.abs(),
            Some(ReduceOp::Sum | ReduceOp::Avg) => 1.0,
            _ => return 0.0,
        };
        if !is_real(T::DTYPE) {
            return 0.0;
        }
        let largest = largest_sum(factor, self.ranks);
        // Whole numbers up to 2^p are exact with p bits, and epsilon is 2^(1-p).
        let is_sum_exact = factor.fract() == 0.0 && largest <= 2.0 / T::EPSILON;
        let of_sum = if is_sum_exact {
            0.0
        } else {
            ranks * T::EPSILON * largest
        };
        match self.op {
            Some(ReduceOp::Avg) if is_sum_exact && self.ranks.is_power_of_two() => 0.0,
            Some(ReduceOp::Avg) => (of_sum + T::EPSILON * largest) / ranks,
            _ => of_sum,
        }
    }
}

/// Whether a type is made of floats.
fn is_real(dtype: DataType) -> bool {
    dtype.is_float() || dtype.is_complex()
}

/// The greatest sum of the checked inputs of this many ranks, each times a factor.
pub fn largest_sum(factor: f64, ranks: u32) -> f64 {
    ADDEND_MAX as f64 * f64::from(ranks) * factor.abs()
}

/// Makes all bytes of an output wrong.
pub fn poison(buffer: &Buffer<u8>) -> Result<()> {
    buffer.as_mut_slice()?.fill(POISON);
    Ok(())
}

/// Makes all bytes zero: timed runs in place then stay at zero, whatever the operator.
pub fn clear(buffer: &Buffer<u8>) -> Result<()> {
    buffer.as_mut_slice()?.fill(0);
    Ok(())
}

/// Conversions of one element type. Exact for the integers used here.
pub trait Value: Element {
    /// Distance from 1 to the next value; 0 for integers.
    const EPSILON: f64;
    fn from_int(value: i64) -> Self;
    fn from_real(value: f64) -> Self;
    /// Of a complex number, its real part.
    fn to_real(self) -> f64;
    fn is_same(self, other: Self) -> bool {
        self == other
    }
    fn distance(self, other: Self) -> f64 {
        (self.to_real() - other.to_real()).abs()
    }
}

macro_rules! values {
    ($($type:ty, $epsilon:expr);*) => {
        $(impl Value for $type {
            const EPSILON: f64 = $epsilon;
            fn from_int(value: i64) -> Self { value as $type }
            fn from_real(value: f64) -> Self { value as $type }
            fn to_real(self) -> f64 { self as f64 }
        })*
    };
}
values!(f64, f64::EPSILON; f32, f32::EPSILON as f64);
values!(i8, 0.0; u8, 0.0; i16, 0.0; u16, 0.0; i32, 0.0; u32, 0.0; i64, 0.0; u64, 0.0);

impl Value for Bool {
    const EPSILON: f64 = 0.0;
    fn from_int(value: i64) -> Self {
        (value != 0).into()
    }
    fn from_real(value: f64) -> Self {
        (value != 0.0).into()
    }
    fn to_real(self) -> f64 {
        f64::from(u8::from(bool::from(self)))
    }
    /// Compares bytes, because a result must be 0 or 1.
    fn is_same(self, other: Self) -> bool {
        self.to_bits() == other.to_bits()
    }
}

/// The imaginary part is the negative of the real one.
macro_rules! complex {
    ($($part:ty),*) => {
        $(impl Value for Complex<$part> {
            const EPSILON: f64 = <$part as Value>::EPSILON;
            fn from_int(value: i64) -> Self { Self::new(value as $part, -(value as $part)) }
            fn from_real(value: f64) -> Self { Self::new(value as $part, -value as $part) }
            fn to_real(self) -> f64 { self.re.to_real() }
            fn distance(self, other: Self) -> f64 {
                // A NaN in either part is far from everything.
                self.re.distance(other.re) + self.im.distance(other.im)
            }
        })*
    };
}
complex!(f32, f64);

macro_rules! float8s {
    ($($type:ty, $epsilon:literal);*) => {
        $(impl Value for $type {
            const EPSILON: f64 = $epsilon;
            fn from_int(value: i64) -> Self { <$type>::from_f32(value as f32) }
            fn from_real(value: f64) -> Self { <$type>::from_f32(value as f32) }
            fn to_real(self) -> f64 { self.to_f32().into() }
        })*
    };
}
float8s!(F8E4M3, 0.125; F8E5M2, 0.25);

macro_rules! halves {
    ($($type:ty),*) => {
        $(impl Value for $type {
            const EPSILON: f64 = 1.0 / (1u64 << (<$type>::MANTISSA_DIGITS - 1)) as f64;
            fn from_int(value: i64) -> Self { <$type>::from_f64(value as f64) }
            fn from_real(value: f64) -> Self { <$type>::from_f64(value) }
            fn to_real(self) -> f64 { self.to_f64() }
        })*
    };
}
halves!(f16, bf16);

/// The two loops, once per element type.
trait Loops {
    fn fill(&self, data: &Data, rank: Rank, buffer: &Buffer<u8>) -> Result<()>;
    fn count_wrong(&self, data: &Data, segments: &[Segment], buffer: &Buffer<u8>) -> Result<u64>;
}

struct Of<T>(std::marker::PhantomData<T>);

fn by_type(dtype: DataType) -> &'static dyn Loops {
    macro_rules! of {
        ($type:ty) => {
            &Of::<$type>(std::marker::PhantomData)
        };
    }
    match dtype {
        DataType::F64 => of!(f64),
        DataType::F32 => of!(f32),
        DataType::F16 => of!(f16),
        DataType::Bf16 => of!(bf16),
        DataType::I8 => of!(i8),
        DataType::U8 => of!(u8),
        DataType::I32 => of!(i32),
        DataType::U32 => of!(u32),
        DataType::I64 => of!(i64),
        DataType::U64 => of!(u64),
        DataType::Bool => of!(Bool),
        DataType::I16 => of!(i16),
        DataType::U16 => of!(u16),
        DataType::F8E4M3 => of!(F8E4M3),
        DataType::F8E5M2 => of!(F8E5M2),
        DataType::C64 => of!(Complex<f32>),
        DataType::C128 => of!(Complex<f64>),
    }
}

impl<T: Value> Loops for Of<T> {
    fn fill(&self, data: &Data, rank: Rank, buffer: &Buffer<u8>) -> Result<()> {
        let buffer = buffer.cast::<T>()?;
        for (index, value) in buffer.as_mut_slice()?.iter_mut().enumerate() {
            *value = data.input(rank, index as u64);
        }
        Ok(())
    }

    fn count_wrong(&self, data: &Data, segments: &[Segment], buffer: &Buffer<u8>) -> Result<u64> {
        let tolerance = data.tolerance::<T>();
        let buffer = buffer.cast::<T>()?;
        let mut rest = &*buffer.as_slice()?;
        let mut wrong = 0;
        for segment in segments {
            let part;
            (part, rest) = rest.split_at(segment.len as usize);
            wrong += (segment.start..)
                .zip(part)
                .filter(|&(index, &got)| {
                    let want = data.expected(segment.source, index);
                    !is_close(got, want, tolerance)
                })
                .count() as u64;
        }
        Ok(wrong)
    }
}

fn is_close<T: Value>(got: T, want: T, tolerance: f64) -> bool {
    got.is_same(want) || (tolerance > 0.0 && got.distance(want) <= tolerance)
}

#[cfg(test)]
#[path = "values_tests.rs"]
mod tests;
