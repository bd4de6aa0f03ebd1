//! Counts of elements by the bits of their magnitudes, eleven bits at a time from the top.
//!
//! A magnitude has 31 bits: two levels of 2048 bins and one of 512 find the k-th largest exactly,
//! also over many ranks, who add their counts.

use super::{MAGNITUDE_INFINITE, Source, magnitude};

/// Number of levels.
pub const LEVELS: usize = 3;

/// Lowest bit of each level's bins.
const SHIFTS: [u32; LEVELS] = [20, 9, 0];
/// Bits of each level's bins.
const BITS: [u32; LEVELS] = [11, 11, 9];

/// Tables that are used in turn. Most magnitudes fall into a few bins, and an addition to a bin has
/// to wait for the previous one to the same bin.
const TURNS: usize = 4;

const _: () = assert!(BITS[0] + BITS[1] + BITS[2] == 31 && SHIFTS[1] == BITS[2]);

/// Which magnitudes are counted into which bins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    index: usize,
    /// The bits above those of the bins, that a magnitude must have to be counted.
    prefix: u32,
}

impl Level {
    /// All magnitudes but zero, by their upper bits.
    pub const TOP: Level = Level {
        index: 0,
        prefix: 0,
    };

    /// Number of bins.
    pub fn bins(self) -> usize {
        1 << BITS[self.index]
    }

    /// The level for the next bits of the magnitudes in a bin; `None` at the last level.
    pub fn below(self, bin: usize) -> Option<Level> {
        (self.index + 1 < LEVELS).then(|| Level {
            index: self.index + 1,
            prefix: (self.prefix << BITS[self.index]) | bin as u32,
        })
    }

    /// The least magnitude of a bin.
    pub fn magnitude(self, bin: usize) -> u32 {
        ((self.prefix << BITS[self.index]) | bin as u32) << SHIFTS[self.index]
    }

    /// The bin of a magnitude.
    #[inline]
    fn bin(self, bits: u32) -> Option<usize> {
        let upper = bits >> SHIFTS[self.index];
        let is_here = upper >> BITS[self.index] == self.prefix;
        (is_here && bits != 0 && bits < MAGNITUDE_INFINITE)
            .then_some((upper & ((1 << BITS[self.index]) - 1)) as usize)
    }
}

/// Elements of all sources by bin.
pub fn histogram(sources: &[Source], level: Level) -> Vec<u64> {
    let mut counts = vec![0; level.bins()];
    for source in sources {
        for index in 0..source.count() {
            if let Some(bin) = level.bin(magnitude(source.load(index))) {
                counts[bin] += 1;
            }
        }
    }
    counts
}

/// Values by bin.
pub fn histogram_of(values: &[f32], level: Level) -> Vec<u64> {
    match level.index {
        0 => crowded::<0>(values, level.prefix),
        1 => crowded::<1>(values, level.prefix),
        _ => scattered(values, level),
    }
}

/// For levels at which many of the values are counted. The level is a constant, so that shifts are
/// by constants.
fn crowded<const INDEX: usize>(values: &[f32], prefix: u32) -> Vec<u64> {
    let (shift, bits) = (SHIFTS[INDEX], BITS[INDEX]);
    let mut counts = vec![0; 1 << bits];
    for part in values.chunks(TURNS * u32::MAX as usize / 2) {
        let mut tables = [[0u32; 1 << BITS[0]]; TURNS];
        let count = |table: &mut [u32; 1 << BITS[0]], value: f32| {
            let magnitude = magnitude(value);
            let upper = magnitude >> shift;
            // Neither zero nor beyond what is finite. A value that is not counted adds 0 to some
            // bin, so that there is no branch to mispredict.
            let is_counted =
                (upper >> bits == prefix) & (magnitude.wrapping_sub(1) < MAGNITUDE_INFINITE - 1);
            table[upper as usize & ((1 << bits) - 1) & ((1 << BITS[0]) - 1)] +=
                u32::from(is_counted);
        };
        let (turns, rest) = part.as_chunks::<TURNS>();
        for turn in turns {
            (tables.iter_mut().zip(turn)).for_each(|(table, value)| count(table, *value));
        }
        (rest.iter()).for_each(|value| count(&mut tables[0], *value));
        for table in &tables {
            (counts.iter_mut().zip(table)).for_each(|(sum, count)| *sum += u64::from(*count));
        }
    }
    counts
}

/// For the last level, at which nearly none or nearly all of the values are counted: the branch is
/// predicted well.
fn scattered(values: &[f32], level: Level) -> Vec<u64> {
    const LAST: usize = LEVELS - 1;
    let mut counts = vec![0; level.bins()];
    for value in values {
        let magnitude = magnitude(*value);
        if magnitude >> (SHIFTS[LAST] + BITS[LAST]) == level.prefix
            && let Some(bin) = level.bin(magnitude)
        {
            counts[bin] += 1;
        }
    }
    counts
}

/// The bin of the `wanted`-th largest (from 1), and how many lie in bins above it.
pub(super) fn place_from_top(counts: &[u64], wanted: u64) -> Option<(usize, u64)> {
    let mut above = 0;
    for (bin, count) in counts.iter().enumerate().rev() {
        if above + count >= wanted && *count > 0 {
            return Some((bin, above));
        }
        above += count;
    }
    None
}
