//! Values and indices on the wire.
//!
//! bf16 is rounded to nearest even, int8 linearly with a scale for each block of values, so that
//! the largest of a block is 127 steps. What the rounding takes away is kept by the rank that
//! rounds, in its residual.

use half::bf16;
use std::str::FromStr;

/// Values that share a scale: a word of scale for 64 words of values.
pub(super) const BLOCK: usize = 256;

/// What values are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueFormat {
    /// 4 bytes, exact.
    F32,
    /// 2 bytes.
    Bf16,
    /// 1 byte and a scale of 4 for each 256 values.
    I8,
}

impl FromStr for ValueFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<ValueFormat, String> {
        Ok(match text {
            "f32" => ValueFormat::F32,
            "bf16" => ValueFormat::Bf16,
            "i8" | "int8" => ValueFormat::I8,
            _ => return Err(format!("unknown value format '{text}': one of f32 bf16 i8")),
        })
    }
}

/// What indices are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexFormat {
    /// u32 where it suffices.
    Auto,
    /// 4 bytes: up to 2^32 coordinates.
    U32,
    /// 8 bytes.
    U64,
}

impl IndexFormat {
    /// Whether indices of `count` coordinates have 8 bytes.
    pub fn is_wide(self, count: u64) -> bool {
        match self {
            IndexFormat::Auto => count > 1 << 32,
            IndexFormat::U32 => false,
            IndexFormat::U64 => true,
        }
    }
}

impl ValueFormat {
    /// Bytes of `count` values.
    pub fn bytes(self, count: u64) -> u64 {
        match self {
            ValueFormat::F32 => 4 * count,
            ValueFormat::Bf16 => 2 * count,
            ValueFormat::I8 => count + 4 * count.div_ceil(BLOCK as u64),
        }
    }

    /// Puts the values, some at a time. A value that is not finite arrives as one that is not.
    pub(super) fn encode(self, values: &[f32], put: &mut impl FnMut(&[u8])) {
        if self == ValueFormat::F32 {
            return put(bytemuck::cast_slice(values));
        }
        let mut bytes = Vec::with_capacity(2 * BLOCK);
        for block in values.chunks(BLOCK) {
            bytes.clear();
            match self {
                ValueFormat::F32 => {}
                ValueFormat::Bf16 => {
                    let rounded = block.iter().map(|v| to_bf16(*v).to_le_bytes());
                    bytes.extend(rounded.flatten());
                }
                ValueFormat::I8 => {
                    let finite = block.iter().filter(|v| v.is_finite());
                    let scale = finite.fold(0f32, |most, v| most.max(v.abs())) / 127.0;
                    bytes.extend_from_slice(&scale.to_le_bytes());
                    bytes.extend(block.iter().map(|v| to_i8(*v, scale) as u8));
                }
            }
            put(&bytes);
        }
    }

    /// Appends `count` values.
    ///
    /// # Panics
    /// If the bytes are not [`ValueFormat::bytes`] of that.
    pub(super) fn decode(self, bytes: &[u8], count: usize, values: &mut Vec<f32>) {
        assert_eq!(bytes.len() as u64, self.bytes(count as u64));
        match self {
            ValueFormat::F32 => {
                values.extend(
                    bytes
                        .as_chunks::<4>()
                        .0
                        .iter()
                        .map(|b| f32::from_ne_bytes(*b)),
                );
            }
            ValueFormat::Bf16 => {
                let all = bytes.as_chunks::<2>().0.iter();
                values.extend(all.map(|b| bf16::from_le_bytes(*b).to_f32()));
            }
            ValueFormat::I8 => {
                for block in bytes.chunks(BLOCK + 4) {
                    let scale = f32::from_le_bytes(std::array::from_fn(|i| block[i]));
                    values.extend(block[4..].iter().map(|b| from_i8(*b as i8, scale)));
                }
            }
        }
    }
}

/// A finite value never becomes infinite: the largest value is sent for it, and the rest stays in
/// the residual.
fn to_bf16(value: f32) -> bf16 {
    let rounded = bf16::from_f32(value);
    match rounded.is_infinite() && value.is_finite() {
        true if value > 0.0 => bf16::MAX,
        true => bf16::MIN,
        false => rounded,
    }
}

/// Stands for a value that is not finite: steps go from -127 to 127.
const WILD: i8 = -128;

fn from_i8(steps: i8, scale: f32) -> f32 {
    match steps {
        WILD => f32::NAN,
        // A scale is rounded: 127 steps of the scale of the largest value would be infinite.
        _ => (f32::from(steps) * scale).clamp(-f32::MAX, f32::MAX),
    }
}

fn to_i8(value: f32, scale: f32) -> i8 {
    if !value.is_finite() {
        return WILD;
    }
    // A block of denormals may have a scale of zero: nothing of it is sent then.
    let steps = value / scale;
    match steps.is_finite() {
        true => steps.round_ties_even().clamp(-127.0, 127.0) as i8,
        false => 0,
    }
}
