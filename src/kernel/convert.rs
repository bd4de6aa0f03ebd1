//! Conversion between all pairs of element types, one element at a time.
//!
//! Every value is first held exactly: floats in f64, integers in i128. So the one rounding is the last
//! step. Where a float narrower than f64 is reached through a wider one, the wider one is rounded to odd,
//! which makes the second rounding equal to a direct one (Boldo and Melquiond, "Emulation of FMA and
//! correctly rounded sums: proved algorithms using rounding to odd", 2008). `half` itself drops the low
//! 32 bits of an f64, which is a tie too many.

use super::access;
use super::number::with_number;
use crate::memory::View;
use crate::types::DataType;
use bytemuck::Pod;
use half::{bf16, f16};
use std::ops::Range;

/// An element's exact value.
#[derive(Clone, Copy)]
enum Exact {
    Float(f64),
    Integer(i128),
}

trait Convertible: Pod {
    fn exact(self) -> Exact;
    fn nearest(value: Exact) -> Self;
}

/// Converts the elements `range`.
pub(super) fn convert(
    from: DataType,
    source: View,
    to: DataType,
    destination: View,
    range: Range<usize>,
) {
    with_number!(from, From => with_number!(to, To => {
        for index in range {
            let value = access::load::<From>(source, index).exact();
            access::store(destination, index, To::nearest(value));
        }
    }))
}

macro_rules! convertible_integer {
    ($($integer:ty),*) => {$(
        impl Convertible for $integer {
            #[inline]
            fn exact(self) -> Exact {
                Exact::Integer(self.into())
            }
            #[inline]
            fn nearest(value: Exact) -> Self {
                match value {
                    Exact::Float(value) => value as $integer,
                    Exact::Integer(value) => {
                        value.clamp(<$integer>::MIN.into(), <$integer>::MAX.into()) as $integer
                    }
                }
            }
        }
    )*};
}
convertible_integer!(i8, u8, i32, u32, i64, u64);

macro_rules! convertible_float {
    ($($float:ty),*) => {$(
        impl Convertible for $float {
            #[inline]
            fn exact(self) -> Exact {
                Exact::Float(self.into())
            }
            #[inline]
            fn nearest(value: Exact) -> Self {
                match value {
                    Exact::Float(value) => value as $float,
                    Exact::Integer(value) => value as $float,
                }
            }
        }
    )*};
}
convertible_float!(f32, f64);

macro_rules! convertible_half {
    ($($half:ty),*) => {$(
        impl Convertible for $half {
            #[inline]
            fn exact(self) -> Exact {
                Exact::Float(self.into())
            }
            #[inline]
            fn nearest(value: Exact) -> Self {
                match value {
                    Exact::Float(value) => <$half>::from_f32(odd_f32(value)),
                    Exact::Integer(value) => <$half>::from_f32(odd_f32(odd_f64(value))),
                }
            }
        }
    )*};
}
convertible_half!(f16, bf16);

/// The f32 that equals `value`, or else the neighbour of it whose last bit is set.
fn odd_f32(value: f64) -> f32 {
    let near = value as f32;
    let back = f64::from(near);
    if back == value || value.is_nan() {
        return near;
    }
    // Toward zero, then the last bit. The bits of a float's magnitude order like the magnitude; the
    // step back from infinity is the greatest finite value, whose last bit is set.
    let bits = near.to_bits() - u32::from(back.abs() > value.abs());
    f32::from_bits(bits | 1)
}

/// The f64 that equals `value` (of 64 bits and a sign), or else the neighbour whose last bit is set.
fn odd_f64(value: i128) -> f64 {
    let magnitude = value.unsigned_abs() as u64;
    let excess_bits = 11u32.saturating_sub(magnitude.leading_zeros());
    let lost = magnitude & ((1 << excess_bits) - 1);
    let kept = (magnitude >> excess_bits) | u64::from(lost != 0);
    let rounded = (kept << excess_bits) as f64;
    if value < 0 { -rounded } else { rounded }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_double_just_above_a_tie_rounds_up_in_one_step() {
        // 1 + 2^-11 is the tie between 1 and the next f16; 2^-40 more is lost in f32.
        let above = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
        let tie = 1.0 + 2f64.powi(-11);
        assert_eq!(f16::nearest(Exact::Float(above)).to_bits(), 0x3c01);
        assert_eq!(f16::nearest(Exact::Float(tie)).to_bits(), 0x3c00);
        assert_eq!(f16::nearest(Exact::Float(-above)).to_bits(), 0xbc01);
        let above = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
        assert_eq!(bf16::nearest(Exact::Float(above)).to_bits(), 0x3f81);
    }

    #[test]
    fn an_integer_just_above_a_tie_rounds_up_in_one_step() {
        // 2^62 + 2^54 is a tie of bf16; 1 more is lost in f64.
        let tie = (1i128 << 62) + (1 << 54);
        let low = bf16::nearest(Exact::Integer(tie)).to_bits();
        assert_eq!(bf16::nearest(Exact::Integer(tie + 1)).to_bits(), low + 1);
        assert_eq!(odd_f64(i128::from(u64::MAX)), u64::MAX as f64 - 2048.0);
        assert_eq!(odd_f64(i128::from(i64::MIN)), i64::MIN as f64);
    }

    #[test]
    fn doubles_beyond_f32_become_infinite_and_tiny_ones_zero() {
        assert_eq!(f16::nearest(Exact::Float(1e300)), f16::INFINITY);
        assert_eq!(bf16::nearest(Exact::Float(-1e300)), bf16::NEG_INFINITY);
        assert_eq!(f16::nearest(Exact::Float(-1e-300)).to_bits(), 0x8000);
        assert!(f16::nearest(Exact::Float(f64::NAN)).is_nan());
        assert_eq!(f16::nearest(Exact::Float(65519.9)), f16::MAX);
        assert_eq!(f16::nearest(Exact::Float(65520.0)), f16::INFINITY);
    }
}
