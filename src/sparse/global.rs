//! The k-th largest of vectors that lie in regions, by sums of histograms of magnitudes.

use super::counters::Phase;
use super::entries::Entries;
use super::io::Io;
use crate::kernel::select::Level;

/// The k-th largest of the entries of all ranks.
pub(super) struct Kth {
    /// Its magnitude, the same on all ranks: it follows from sums alone.
    pub least: u32,
    /// How many of exactly that are among the first k.
    pub ties: u64,
    /// How many of this rank's entries are larger.
    pub above: u64,
    /// How many of this rank's entries are exactly as large.
    pub tied: u64,
}

/// The `k`-th largest of the entries of all ranks; nothing, on all of them, if they have fewer.
pub(super) async fn kth_largest<E: Entries>(io: &Io, entries: &E, k: u64) -> Option<Kth> {
    let (mut level, mut wanted, mut above) = (Level::TOP, k, 0);
    loop {
        let own = entries.histogram(level);
        let counts = io.sum(Phase::Select, own.clone()).await;
        let mut bin = counts.len() - 1;
        while counts[bin] < wanted {
            wanted -= counts[bin];
            bin = bin.checked_sub(1)?;
        }
        above += own[bin + 1..].iter().sum::<u64>();
        match level.below(bin) {
            Some(next) => level = next,
            None => {
                return Some(Kth {
                    least: level.magnitude(bin),
                    ties: wanted,
                    above,
                    tied: own[bin],
                });
            }
        }
    }
}

/// How many of `ties` entries of one magnitude each region gives, where they have `counts` of them:
/// the lower indices first.
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
