//! [`F8E4M3`] and [`F8E5M2`]: floats of 8 bits.
//!
//! Source: Micikevicius and others, "FP8 Formats for Deep Learning" (arXiv 2209.05433), and the OCP
//! 8-bit Floating Point Specification. Conversions give the numbers that torch's `float8_e4m3fn`
//! and `float8_e5m2` give.

use bytemuck::{Pod, Zeroable};
use std::cmp::Ordering;
use std::fmt;

/// Bits of an f32 below its exponent.
const F32_MANTISSA_BITS: u32 = 23;

/// The bias of an f32's exponent.
const F32_BIAS: u32 = 127;

/// An element of type [`DataType::F8E4M3`](super::DataType::F8E4M3), torch's `float8_e4m3fn`: 4
/// bits of exponent and 3 of mantissa, magnitudes from 2^-9 to 448, NaN, no infinities.
///
/// ```
/// use linerate::elements::F8E4M3;
/// assert_eq!(F8E4M3::from_f32(1.06).to_f32(), 1.0);
/// assert_eq!(F8E4M3::from_f32(464.0).to_f32(), 448.0);
/// assert!(F8E4M3::from_f32(465.0).is_nan());
/// ```
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct F8E4M3(u8);

/// An element of type [`DataType::F8E5M2`](super::DataType::F8E5M2), torch's `float8_e5m2`: 5 bits
/// of exponent and 2 of mantissa, magnitudes from 2^-16 to 57344, NaN and infinities as in IEEE
/// 754.
///
/// ```
/// use linerate::elements::F8E5M2;
/// assert_eq!(F8E5M2::from_f32(1.12).to_f32(), 1.0);
/// assert_eq!(F8E5M2::from_f32(61439.0).to_f32(), 57344.0);
/// assert_eq!(F8E5M2::from_f32(61440.0).to_f32(), f32::INFINITY);
/// ```
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct F8E5M2(u8);

impl F8E4M3 {
    /// The bits of 448, the greatest number.
    const GREATEST: u32 = 0x7e;
    const NAN: u32 = 0x7f;

    /// The value with these bits: sign, exponent, mantissa.
    #[inline]
    pub const fn from_bits(bits: u8) -> F8E4M3 {
        F8E4M3(bits)
    }

    /// Its bits: sign, exponent, mantissa.
    #[inline]
    pub const fn to_bits(self) -> u8 {
        self.0
    }

    /// Whether it is not a number.
    #[inline]
    pub const fn is_nan(self) -> bool {
        magnitude(self.0) > F8E4M3::GREATEST
    }

    /// The nearest value, ties to even; NaN for what is nearer to 480 than to 448, for infinities
    /// and for NaN.
    #[inline]
    pub const fn from_f32(value: f32) -> F8E4M3 {
        let bits = value.abs().to_bits();
        // Numbers beyond 464 are rounded to the bits of 480, which stand for NaN.
        let magnitude = match bits < 480f32.to_bits() {
            true => narrow::<3, 7>(bits),
            false => F8E4M3::NAN,
        };
        F8E4M3(signed_as(magnitude, value))
    }

    /// The number as an f32, exactly; a quiet NaN for NaN.
    #[inline]
    pub const fn to_f32(self) -> f32 {
        let value = match self.is_nan() {
            true => f32::NAN,
            false => widen::<3, 7>(magnitude(self.0)),
        };
        with_sign(value, self.0)
    }
}

impl F8E5M2 {
    const INFINITY: u32 = 0x7c;
    const NAN: u32 = 0x7f;

    /// The value with these bits: sign, exponent, mantissa.
    #[inline]
    pub const fn from_bits(bits: u8) -> F8E5M2 {
        F8E5M2(bits)
    }

    /// Its bits: sign, exponent, mantissa.
    #[inline]
    pub const fn to_bits(self) -> u8 {
        self.0
    }

    /// Whether it is not a number.
    #[inline]
    pub const fn is_nan(self) -> bool {
        magnitude(self.0) > F8E5M2::INFINITY
    }

    /// The nearest value, ties to even; infinity for magnitudes from 61440 on, NaN for NaN.
    #[inline]
    pub const fn from_f32(value: f32) -> F8E5M2 {
        let bits = value.abs().to_bits();
        let magnitude = if bits < 65536f32.to_bits() {
            // Numbers from 61440 on are rounded to the bits of infinity.
            narrow::<2, 15>(bits)
        } else if bits <= f32::INFINITY.to_bits() {
            F8E5M2::INFINITY
        } else {
            F8E5M2::NAN
        };
        F8E5M2(signed_as(magnitude, value))
    }

    /// The number as an f32, exactly; a quiet NaN for NaN.
    #[inline]
    pub const fn to_f32(self) -> f32 {
        let bits = magnitude(self.0);
        let value = if bits < F8E5M2::INFINITY {
            widen::<2, 15>(bits)
        } else if bits == F8E5M2::INFINITY {
            f32::INFINITY
        } else {
            f32::NAN
        };
        with_sign(value, self.0)
    }
}

/// The f32 with the magnitude of a finite float of 8 bits: `bits` are its lower 7.
#[inline]
const fn widen<const MANTISSA_BITS: u32, const BIAS: u32>(bits: u32) -> f32 {
    let least = f32::from_bits((F32_BIAS + 1 - BIAS - MANTISSA_BITS) << F32_MANTISSA_BITS);
    let exponent = (F32_BIAS - BIAS) << F32_MANTISSA_BITS;
    match bits < 1 << MANTISSA_BITS {
        // A subnormal is a multiple of the least one.
        true => bits as f32 * least,
        false => f32::from_bits((bits << (F32_MANTISSA_BITS - MANTISSA_BITS)) + exponent),
    }
}

/// The lower 7 bits of the float of 8 bits that is nearest to a magnitude, ties to even. `bits` are
/// those of an f32 without its sign, less than the power of two above the largest float of 8 bits.
#[inline]
const fn narrow<const MANTISSA_BITS: u32, const BIAS: u32>(bits: u32) -> u32 {
    let shift = F32_MANTISSA_BITS - MANTISSA_BITS;
    let least_normal = (F32_BIAS + 1 - BIAS) << F32_MANTISSA_BITS;
    if bits < least_normal {
        // The last bit of this power of two is worth the least subnormal, so that the addition
        // rounds to it.
        let power = least_normal + (shift << F32_MANTISSA_BITS);
        return (f32::from_bits(bits) + f32::from_bits(power)).to_bits() - power;
    }
    let exponent = (F32_BIAS - BIAS) << F32_MANTISSA_BITS;
    let just_under_half = (1 << (shift - 1)) - 1;
    let is_odd = (bits >> shift) & 1;
    (bits - exponent + just_under_half + is_odd) >> shift
}

/// Bits without the sign.
#[inline]
const fn magnitude(bits: u8) -> u32 {
    bits as u32 & 0x7f
}

/// The bits of a magnitude with the sign of an f32.
#[inline]
const fn signed_as(magnitude: u32, value: f32) -> u8 {
    (magnitude | (value.to_bits() >> 24) & 0x80) as u8
}

/// An f32 that is not negative, with the sign of these bits.
#[inline]
const fn with_sign(value: f32, bits: u8) -> f32 {
    f32::from_bits(value.to_bits() | (bits as u32 & 0x80) << 24)
}

/// Both types are compared and printed as numbers, not as bits.
macro_rules! as_numbers {
    ($($name:ident),*) => {$(
        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.to_f32() == other.to_f32()
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                self.to_f32().partial_cmp(&other.to_f32())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.to_f32().fmt(f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.to_f32().fmt(f)
            }
        }
    )*};
}
as_numbers!(F8E4M3, F8E5M2);
