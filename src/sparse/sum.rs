//! The sum of sparse vectors from left to right: dense over a window of coordinates that fits the second-level cache.
//!
//! A window costs what lies in it and a look at each 64 coordinates; windows without entries cost nothing. Merging two vectors at
//! a time in the same order would touch the sum once for each of them.

use super::stream::Stream;

/// Coordinates of a window: 256 KiB of sums.
const WINDOW: u64 = 64 * 1024;

/// Sums of one window, with a bit for each coordinate that has any term.
struct Window {
    sums: Vec<f32>,
    bits: Vec<u64>,
}

/// See [`super::Entries::sum`].
pub(super) fn sum(parts: &[Stream]) -> Stream {
    let parts: Vec<&Stream> = parts.iter().filter(|p| !p.indices.is_empty()).collect();
    if let [only] = parts[..] {
        return only.clone();
    }
    let mut next = vec![0usize; parts.len()];
    // Room that is not needed is never touched.
    let most = parts.iter().map(|p| p.indices.len()).sum();
    let mut total = Stream::with_capacity(most);
    let mut window = Window {
        sums: vec![0.0; WINDOW as usize],
        bits: vec![0; WINDOW as usize / 64],
    };
    let first = |next: &[usize]| {
        let firsts = parts
            .iter()
            .zip(next)
            .filter_map(|(p, at)| p.indices.get(*at));
        firsts.min().copied()
    };
    while let Some(base) = first(&next) {
        let end = base.saturating_add(WINDOW);
        for (part, at) in parts.iter().zip(&mut next) {
            let count = part.indices[*at..].partition_point(|i| *i < end);
            let range = *at..*at + count;
            window.add(base, &part.indices[range.clone()], &part.values[range]);
            *at += count;
        }
        window.take(base, &mut total);
    }
    total
}

impl Window {
    fn add(&mut self, base: u64, indices: &[u64], values: &[f32]) {
        for (index, value) in indices.iter().zip(values) {
            let at = (index - base) as usize;
            let bit = 1 << (at % 64);
            let is_first = self.bits[at / 64] & bit == 0;
            self.bits[at / 64] |= bit;
            // Not zero plus the value: that would turn -0 into +0.
            self.sums[at] = if is_first {
                *value
            } else {
                self.sums[at] + value
            };
        }
    }

    /// Appends what is there, and leaves nothing.
    fn take(&mut self, base: u64, total: &mut Stream) {
        for (word, bits) in self.bits.iter_mut().enumerate() {
            let mut left = std::mem::take(bits);
            while left != 0 {
                let at = 64 * word + left.trailing_zeros() as usize;
                total.indices.push(base + at as u64);
                total.values.push(self.sums[at]);
                left &= left - 1;
            }
        }
    }
}
