//! [`IndexMarks`]: which indices two increasing lists of sparse entries have in common. The indices
//! of the one are marked over a window of coordinates, and those of the other are looked up.
//!
//! Two pointers that overtake each other would need a branch for each entry, which cannot be
//! predicted. A search for the end of a window would wait for memory at every step.

/// Coordinates of a window: 4 KiB of marks.
pub(crate) const WINDOW: usize = 32 * 1024;

/// Says of indices whether a list has them, window by window.
pub(crate) struct IndexMarks<'a> {
    indices: &'a [u64],
    /// Indices of the windows before.
    done: usize,
    /// Indices up to the end of this one.
    marked: usize,
    base: u64,
    bits: [u64; WINDOW / 64],
}

impl<'a> IndexMarks<'a> {
    /// The marks of increasing indices.
    pub fn of(indices: &'a [u64]) -> IndexMarks<'a> {
        IndexMarks {
            indices,
            done: 0,
            marked: 0,
            base: 0,
            bits: [0; WINDOW / 64],
        }
    }

    /// Begins a window at a coordinate, which lies behind the window before. Returns where it ends.
    pub fn mark(&mut self, base: u64) -> u64 {
        let end = base.saturating_add(WINDOW as u64);
        self.mark_up_to(base, end);
        end
    }

    /// Begins a window that ends at a coordinate.
    pub fn mark_up_to(&mut self, base: u64, end: u64) {
        debug_assert!(end - base <= WINDOW as u64, "{base}..{end}");
        for index in &self.indices[self.done..self.marked] {
            self.bits[(index - self.base) as usize % WINDOW / 64] = 0;
        }
        self.done = self.marked;
        while self.indices.get(self.done).is_some_and(|i| *i < base) {
            self.done += 1;
        }
        (self.marked, self.base) = (self.done, base);
        for index in &self.indices[self.done..] {
            if *index >= end {
                break;
            }
            let at = (index - base) as usize % WINDOW;
            self.bits[at / 64] |= 1 << (at % 64);
            self.marked += 1;
        }
    }

    /// Whether an index of the window is in the list.
    #[inline]
    pub fn has(&self, index: u64) -> bool {
        let at = (index - self.base) as usize % WINDOW;
        self.bits[at / 64] >> (at % 64) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;

    fn indices(count: usize, below: u64, seed: u64) -> Vec<u64> {
        let mut prng = Prng::new(seed);
        let mut all: Vec<u64> = (0..count).map(|_| prng.below(below)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    #[test]
    fn marks_of_one_window_are_gone_in_the_next() {
        // Dense, sparse, and with windows that are left out.
        for (count, below, width) in [
            (40_000, 100_000, WINDOW as u64),
            (40_000, 100_000, 700),
            (300, 3_000_000, WINDOW as u64),
            (5, 1 << 40, 64),
        ] {
            let (list, asked) = (indices(count, below, 1), indices(count, below, 2));
            let mut marks = IndexMarks::of(&list);
            let mut at = 0;
            while let Some(base) = asked.get(at) {
                let end = *base + width;
                marks.mark_up_to(*base, end);
                while asked.get(at).is_some_and(|index| *index < end) {
                    let index = asked[at];
                    assert_eq!(marks.has(index), list.binary_search(&index).is_ok());
                    at += 1;
                }
            }
        }
    }
}
