//! The sum of sparse vectors from left to right: dense over a window of coordinates that nearly fits the first-level cache.
//!
//! A window costs what lies in it and a look at each 64 coordinates; windows without entries cost nothing. Merging two vectors at
//! a time in the same order would touch the sum once for each of them.

use super::spare::Spare;
use super::stream::Stream;

/// Coordinates of a window: 32 KiB of sums, of which at 1 % half of the lines are used, beside the parts that are read.
const WINDOW: usize = 8 * 1024;

/// What is there before the first term. Plus any value it is that value, also where that is -0; zero would turn it into +0.
const NOTHING: f32 = -0.0;

/// Entries that are taken from a window at a time.
const BATCH: usize = 512;

/// Entries that are taken from 64 coordinates without asking how many there are: no branch could guess it, and more are few.
const ROUND: usize = 4;

/// Sums of one window, with a bit for each coordinate that has any term. Between uses nothing is in it.
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

/// See [`super::Entries::sum`].
pub(super) fn sum(parts: &[Stream], spare: &Spare) -> Stream {
    let parts: Vec<&Stream> = parts.iter().filter(|p| !p.indices.is_empty()).collect();
    let most = parts.iter().map(|p| p.indices.len()).sum();
    // Room that is not needed is never touched.
    let mut total = spare.stream(most);
    if let [only] = parts[..] {
        total.indices.extend_from_slice(&only.indices);
        total.values.extend_from_slice(&only.values);
        return total;
    }
    let mut next = vec![0usize; parts.len()];
    let mut window = spare.window();
    let first = |next: &[usize]| {
        let firsts = parts
            .iter()
            .zip(next)
            .filter_map(|(p, at)| p.indices.get(*at));
        firsts.min().copied()
    };
    while let Some(base) = first(&next) {
        let end = base.saturating_add(WINDOW as u64);
        for (part, at) in parts.iter().zip(&mut next) {
            *at += window.add((base, end), &part.indices[*at..], &part.values[*at..]);
        }
        window.take(base, &mut total);
    }
    spare.keep_window(window);
    total
}

impl Window {
    /// Adds what lies before the window's end; how many that are. No search for the end: it would wait for memory at every
    /// step, and this branch is guessed wrong once.
    fn add(&mut self, (base, end): (u64, u64), indices: &[u64], values: &[f32]) -> usize {
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

    /// Appends what is there, and leaves nothing.
    fn take(&mut self, base: u64, total: &mut Stream) {
        let (mut indices, mut values, mut count) = ([0u64; BATCH], [0f32; BATCH], 0);
        for (word, bits) in self.bits.iter_mut().enumerate() {
            if count > BATCH - 64 - ROUND {
                total.extend(&indices[..count], &values[..count]);
                count = 0;
            }
            let mut left = std::mem::take(bits);
            while left != 0 {
                let end = count + (left.count_ones() as usize).min(ROUND);
                for slot in count..count + ROUND {
                    // Of nothing left, the last coordinate, which stays as it is.
                    let at = (64 * word + left.trailing_zeros().min(63) as usize) % WINDOW;
                    let sum = self.sums[at];
                    indices[slot % BATCH] = base + at as u64;
                    values[slot % BATCH] = sum;
                    self.sums[at] = if left == 0 { sum } else { NOTHING };
                    left &= left.wrapping_sub(1);
                }
                count = end;
            }
        }
        total.extend(&indices[..count], &values[..count]);
    }
}
