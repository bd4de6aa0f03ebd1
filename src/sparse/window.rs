//! [`Window`]: sums of a window of coordinates that nearly fits the first-level cache.

use super::stream::Stream;
use crate::kernel::select::magnitude;

/// Coordinates of a window: 32 KiB of sums. At a density of 1 % half of their cache lines are used,
/// beside the parts that are read.
pub(super) const WINDOW: usize = 8 * 1024;

/// The sum before the first term. Adding a value to it gives that value, also -0; +0 would turn -0
/// into +0.
const NOTHING: f32 = -0.0;

/// Entries that are taken from a window at a time.
const BATCH: usize = 512;

/// Entries that are taken from 64 coordinates without a branch on how many there are, which could
/// not be predicted. More than these are rare.
const ROUND: usize = 4;

/// Sums of one window, with a bit for each coordinate that has any term. Between uses it is empty.
#[derive(Debug)]
pub(super) struct Window {
    sums: Box<[f32; WINDOW]>,
    bits: Box<[u64; WINDOW / 64]>,
}

impl Default for Window {
    fn default() -> Window {
        let boxed = |sums: Box<[f32]>| sums.try_into().expect("as many as a window has");
        Window {
            sums: boxed(vec![NOTHING; WINDOW].into_boxed_slice()),
            bits: Box::new([0; WINDOW / 64]),
        }
    }
}

impl Window {
    /// Adds what lies before the window's end, and returns how many that are. A search for the end
    /// would wait for memory at every step; this branch is mispredicted once.
    pub fn add(&mut self, (base, end): (u64, u64), indices: &[u64], values: &[f32]) -> usize {
        let mut count = 0;
        for (index, value) in indices.iter().zip(values) {
            if *index >= end {
                break;
            }
            let at = (index - base) as usize % WINDOW;
            self.bits[at / 64] |= 1 << (at % 64);
            self.sums[at] += value;
            count += 1;
        }
        count
    }

    /// Appends the sums that are not zero, and leaves the window empty.
    pub fn take(&mut self, base: u64, total: &mut Stream) {
        let (mut indices, mut values, mut count) = ([0u64; BATCH], [0f32; BATCH], 0);
        for (word, bits) in self.bits.iter_mut().enumerate() {
            if count > BATCH - 64 - ROUND {
                total.extend(&indices[..count], &values[..count]);
                count = 0;
            }
            let mut left = std::mem::take(bits);
            while left != 0 {
                for _ in 0..ROUND {
                    // If no bit is left, it is the last coordinate, whose sum stays as it is.
                    let at = (64 * word + left.trailing_zeros().min(63) as usize) % WINDOW;
                    let sum = self.sums[at];
                    // It is written, and the next one over it unless it counts.
                    indices[count % BATCH] = base + at as u64;
                    values[count % BATCH] = sum;
                    count += usize::from((left != 0) & (magnitude(sum) != 0));
                    self.sums[at] = if left == 0 { sum } else { NOTHING };
                    left &= left.wrapping_sub(1);
                }
            }
        }
        total.extend(&indices[..count], &values[..count]);
    }
}
