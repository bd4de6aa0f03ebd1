//! The k-th largest of vectors that lie in regions, by sums of histograms of magnitudes.

use super::counters::Phase;
use super::entries::Entries;
use super::io::Io;
use crate::kernel::select::Level;

/// The magnitude of the `k`-th largest of the entries of all ranks, of which there are more than k, and how many of exactly that are among the
/// first k. The same on all ranks: it follows from sums alone.
pub(super) async fn kth_largest<E: Entries>(io: &Io, entries: &E, k: u64) -> (u32, u64) {
    let (mut level, mut wanted) = (Level::TOP, k);
    loop {
        let counts = io.sum(Phase::Select, entries.histogram(level)).await;
        let mut bin = counts.len() - 1;
        while counts[bin] < wanted {
            wanted -= counts[bin];
            bin = bin.checked_sub(1).expect("more than k entries are counted");
        }
        match level.below(bin) {
            Some(next) => level = next,
            None => return (level.magnitude(bin), wanted),
        }
    }
}

/// How many of `ties` entries of one magnitude each region gives, where they have `counts` of them: the lower indices first.
pub(super) fn ties_of(counts: impl Iterator<Item = u64>, ties: u64) -> Vec<u64> {
    let mut left = ties;
    let taken: Vec<u64> = counts
        .map(|count| {
            let taken = count.min(left);
            left -= taken;
            taken
        })
        .collect();
    taken
}

/// A threshold one step on, after it selected `count` where `k` were wanted: by the eighth root of the ratio, which for the tails of
/// normal and Laplace distributions at 1 % is most of the way and never too far. Square roots give the same bits on every
/// machine; at least 1, and finite.
pub(super) fn follow(threshold: u32, count: u64, k: u64) -> u32 {
    let ratio = (count.max(1) as f64 / k.max(1) as f64).clamp(0.25, 4.0);
    let factor = ratio.sqrt().sqrt().sqrt();
    let next = (f64::from(f32::from_bits(threshold)) * factor) as f32;
    next.to_bits().clamp(1, f32::MAX.to_bits())
}

/// Whether a count that a threshold gave may stand: within [min(k/2, nnz), 2k].
pub(super) fn is_within(count: u64, k: u64, nnz: u64) -> bool {
    count >= k.div_ceil(2).min(nnz) && count <= 2 * k
}
