//! What the element types do, one value at a time: the definition of every operator.
//!
//! A [`Number`] is what lies in memory; its [`Number::Wide`] is what is computed with.

use crate::types::{Bool, F8E4M3, F8E5M2};
use bytemuck::Pod;
use half::{bf16, f16};

/// A value that the kernels compute with.
pub(super) trait Wide: Copy {
    fn sum(self, other: Self) -> Self;
    fn prod(self, other: Self) -> Self;
    /// NaN if either is, as the canonical quiet one; -0 < +0.
    fn min(self, other: Self) -> Self;
    /// As `min`.
    fn max(self, other: Self) -> Self;
    /// Integers and truth values only.
    fn and(self, other: Self) -> Self;
    /// As `and`.
    fn or(self, other: Self) -> Self;
    /// As `and`.
    fn xor(self, other: Self) -> Self;
    /// Divides by a number of ranks, not zero; no truth values.
    fn divide(self, ranks: u32) -> Self;
}

macro_rules! wide_float {
    ($float:ty, $nan_bits:literal) => {
        impl Wide for $float {
            #[inline]
            fn sum(self, other: Self) -> Self {
                self + other
            }
            #[inline]
            fn prod(self, other: Self) -> Self {
                self * other
            }
            #[inline]
            fn min(self, other: Self) -> Self {
                if self.is_nan() || other.is_nan() {
                    <$float>::from_bits($nan_bits)
                } else if self < other || (self == other && self.is_sign_negative()) {
                    self
                } else {
                    other
                }
            }
            #[inline]
            fn max(self, other: Self) -> Self {
                if self.is_nan() || other.is_nan() {
                    <$float>::from_bits($nan_bits)
                } else if self > other || (self == other && self.is_sign_positive()) {
                    self
                } else {
                    other
                }
            }
            fn and(self, _: Self) -> Self {
                no_bits()
            }
            fn or(self, _: Self) -> Self {
                no_bits()
            }
            fn xor(self, _: Self) -> Self {
                no_bits()
            }
            #[inline]
            fn divide(self, ranks: u32) -> Self {
                self / ranks as $float
            }
        }
    };
}
wide_float!(f32, 0x7fc0_0000);
wide_float!(f64, 0x7ff8_0000_0000_0000);

fn no_bits<T>() -> T {
    unreachable!("bits of floating-point values: `reduce` checks")
}

macro_rules! wide_integer {
    ($($integer:ty),*) => {$(
        impl Wide for $integer {
            #[inline]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline]
            fn prod(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline]
            fn min(self, other: Self) -> Self {
                Ord::min(self, other)
            }
            #[inline]
            fn max(self, other: Self) -> Self {
                Ord::max(self, other)
            }
            #[inline]
            fn and(self, other: Self) -> Self {
                self & other
            }
            #[inline]
            fn or(self, other: Self) -> Self {
                self | other
            }
            #[inline]
            fn xor(self, other: Self) -> Self {
                self ^ other
            }
            #[inline]
            fn divide(self, ranks: u32) -> Self {
                // A divisor beyond the type's range exceeds every magnitude but that of the least
                // value, and `MIN / (MAX + 1)` is the one quotient that is not 0.
                match <$integer>::try_from(ranks) {
                    Ok(ranks) => self / ranks,
                    Err(_) => divide_far(self.into(), ranks) as $integer,
                }
            }
        }
    )*};
}
wide_integer!(i8, u8, i16, u16, i32, u32, i64, u64);

fn divide_far(value: i128, ranks: u32) -> i128 {
    value / i128::from(ranks)
}

impl Wide for bool {
    #[inline]
    fn sum(self, other: Self) -> Self {
        self | other
    }
    #[inline]
    fn prod(self, other: Self) -> Self {
        self & other
    }
    #[inline]
    fn min(self, other: Self) -> Self {
        self & other
    }
    #[inline]
    fn max(self, other: Self) -> Self {
        self | other
    }
    #[inline]
    fn and(self, other: Self) -> Self {
        self & other
    }
    #[inline]
    fn or(self, other: Self) -> Self {
        self | other
    }
    #[inline]
    fn xor(self, other: Self) -> Self {
        self ^ other
    }
    fn divide(self, _: u32) -> Self {
        unreachable!("an average of truth values: `reduce` checks")
    }
}

/// An element as it lies in memory.
pub(super) trait Number: Pod {
    /// What it is computed in.
    type Wide: Wide;
    fn widen(self) -> Self::Wide;
    /// Rounds to nearest even where the element is narrower.
    fn narrow(wide: Self::Wide) -> Self;
}

macro_rules! number_of_itself {
    ($($number:ty),*) => {$(
        impl Number for $number {
            type Wide = $number;
            #[inline]
            fn widen(self) -> $number {
                self
            }
            #[inline]
            fn narrow(wide: $number) -> $number {
                wide
            }
        }
    )*};
}
number_of_itself!(f32, f64, i8, u8, i16, u16, i32, u32, i64, u64);

macro_rules! number_in {
    ($wide:ty, $widen:ident, $narrow:ident: $($number:ty),*) => {$(
        impl Number for $number {
            type Wide = $wide;
            #[inline]
            fn widen(self) -> $wide {
                self.$widen()
            }
            #[inline]
            fn narrow(wide: $wide) -> $number {
                <$number>::$narrow(wide)
            }
        }
    )*};
}
number_in!(f32, to_f32, from_f32: f16, bf16, F8E4M3, F8E5M2);
number_in!(bool, into, from: Bool);

/// Runs an expression with `$number` standing for the Rust type of `$dtype`, or of the parts of a
/// complex number.
macro_rules! with_number {
    (@ $dtype:expr, $number:ident => $body:expr; $($variant:ident $rust:ty),*) => {
        match $dtype {
            $(DataType::$variant => {
                type $number = $rust;
                $body
            })*
        }
    };
    ($dtype:expr, $number:ident => $body:expr) => {
        with_number!(@ $dtype, $number => $body;
            F64 f64, F32 f32, F16 half::f16, Bf16 half::bf16,
            I8 i8, U8 u8, I32 i32, U32 u32, I64 i64, U64 u64,
            Bool $crate::types::Bool, I16 i16, U16 u16,
            F8E4M3 $crate::types::F8E4M3, F8E5M2 $crate::types::F8E5M2, C64 f32, C128 f64)
    };
}
pub(super) use with_number;
