//! The k-th largest of vectors that lie in regions, by sums of histograms of magnitudes.

use super::counters::Phase;
use super::entries::Entries;
use super::faults;
use super::io::Io;
use crate::error::Result;
use crate::kernel::select::Level;

/// The magnitude of the `k`-th largest of the entries of all ranks, of which there are more than k, and how many of exactly that are among the
/// first k. The same on all ranks: it follows from sums alone.
pub(super) async fn kth_largest<E: Entries>(io: &Io, entries: &E, k: u64) -> Result<(u32, u64)> {
    let (mut level, mut wanted) = (Level::TOP, k);
    loop {
        let counts = io.sum(Phase::Select, entries.histogram(level)).await;
        let mut bin = counts.len() - 1;
        while counts[bin] < wanted {
            wanted -= counts[bin];
            bin = bin.checked_sub(1).ok_or_else(|| {
                faults::of_all(format_args!(
                    "ranks said to have more than {k} non-zeros, and count {wanted} fewer by their magnitudes"
                ))
            })?;
        }
        match level.below(bin) {
            Some(next) => level = next,
            None => return Ok((level.magnitude(bin), wanted)),
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

/// How many square roots of a ratio of counts make one of thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Steepness {
    /// Of a rank's accumulator.
    Local = 4,
    /// Of the sum of all picks.
    Global = 5,
}

/// A threshold that goes along with the vectors it selects from.
///
/// What it selected says where it should have been: off by a root of count / k. Picks leave the residuals, so that what lies
/// above a threshold is hardly more than a step's gradients, and counts fall steeply with it: the 16th root of a rank's own
/// count, the 32nd of the sum's, held deviations lowest among the 8th to 64th on normal gradients. Residuals grow from step to step, most in the first
/// ones, so the next threshold also goes on as the right ones have gone before, averaged. Square roots, products and
/// quotients give the same bits on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tracker {
    /// Magnitude from which on the next step selects: at least 1, and finite.
    pub threshold: u32,
    /// What would have been right in the last step.
    right: u32,
    /// Bits of the factor by which that grows from step to step, an f64.
    growth: u64,
}

impl Tracker {
    /// After a step that found the right threshold exactly.
    pub(super) fn found(before: Option<Tracker>, exact: u32) -> Tracker {
        let right = f64::from(f32::from_bits(exact));
        let growth = before.map_or(1.0, |tracker| tracker.growth_to(right));
        Tracker::going_on(right, growth)
    }

    /// After a step in which the threshold selected `count` where `k` were wanted.
    pub(super) fn followed(self, count: u64, k: u64, steepness: Steepness) -> Tracker {
        let ratio = (count.max(1) as f64 / k.max(1) as f64).clamp(0.25, 4.0);
        let factor = (0..steepness as u32).fold(ratio, |root, _| root.sqrt());
        let right = f64::from(f32::from_bits(self.threshold)) * factor;
        Tracker::going_on(right, self.growth_to(right))
    }

    fn growth_to(self, right: f64) -> f64 {
        let last = right / f64::from(f32::from_bits(self.right));
        let average = (f64::from_bits(self.growth) * last).sqrt();
        average.clamp(0.8, 1.25)
    }

    fn going_on(right: f64, growth: f64) -> Tracker {
        let bits = |value: f64| (value as f32).to_bits().clamp(1, f32::MAX.to_bits());
        Tracker {
            threshold: bits(right * growth),
            right: bits(right),
            growth: growth.to_bits(),
        }
    }
}

/// Whether a count that a threshold gave may stand: within [min(k/2, nnz), 2k].
pub(super) fn is_within(count: u64, k: u64, nnz: u64) -> bool {
    count >= k.div_ceil(2).min(nnz) && count <= 2 * k
}
