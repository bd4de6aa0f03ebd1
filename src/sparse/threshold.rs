//! [`Thresholds`]: a threshold that is used again, with its neighbours; and [`Tracker`]: how it
//! follows the vectors from step to step.

/// A threshold that is used again, and its neighbours. The right one changes from step to step by
/// more than earlier steps can foretell, so a step takes the one of these that selects nearest to
/// k. Their counts travel with the sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// The least magnitude.
    least: u32,
}

impl Thresholds {
    /// How many they are.
    pub const COUNT: usize = 33;
    /// Bits of a magnitude between two neighbours. They are 0.4 % to 0.8 % apart, so that all reach
    /// 6 % to 13 % up and down.
    const STEP: u32 = 1 << 15;

    /// A threshold of at least 1, and its neighbours.
    pub fn of(threshold: u32) -> Thresholds {
        let reach = Self::STEP * (Self::COUNT as u32 / 2);
        let most = f32::MAX.to_bits() - Self::STEP * Self::COUNT as u32;
        Thresholds {
            least: threshold.saturating_sub(reach).clamp(1, most),
        }
    }

    /// All of them, ascending.
    pub fn magnitudes(self) -> impl Iterator<Item = u32> {
        (0..Self::COUNT as u32).map(move |place| self.least + place * Self::STEP)
    }

    /// How many of them are at most this magnitude.
    pub fn reached(self, magnitude: u32) -> usize {
        let above = i64::from(magnitude) - i64::from(self.least);
        (above.div_euclid(Self::STEP.into()) + 1).clamp(0, Self::COUNT as i64) as usize
    }

    /// The threshold that selects nearest to `k` by the counts of all ranks, the least of several:
    /// its place, its magnitude, and how many it selects.
    pub(super) fn nearest(self, totals: &[u64], k: u64) -> (usize, u32, u64) {
        let places = 0..totals.len();
        let place = places.min_by_key(|place| totals[*place].abs_diff(k));
        self.at(place.unwrap_or(0), totals)
    }

    /// The threshold in the middle, whose neighbours the others are: its place, its magnitude, and
    /// how many it selects.
    pub(super) fn middle(self, totals: &[u64]) -> (usize, u32, u64) {
        self.at(Self::COUNT / 2, totals)
    }

    fn at(self, place: usize, totals: &[u64]) -> (usize, u32, u64) {
        (place, self.least + place as u32 * Self::STEP, totals[place])
    }
}

/// How often the square root of a ratio of counts is taken to give a ratio of thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Steepness {
    /// Of a rank's accumulator.
    Local = 4,
    /// Of the sum of all picks.
    Global = 5,
}

/// A threshold that follows the vectors that it selects from.
///
/// The count that it selected says how far off it was: by a root of count / k. Picks leave the
/// residuals, so that hardly more than a step's gradients lie above a threshold, and counts fall
/// steeply as it grows. Of the 8th to 64th roots the 16th for a rank's own count, and the 32nd for
/// the sum's, kept deviations lowest on normal gradients. Residuals grow from step to step, most in
/// the first steps, so the next threshold also grows as the right ones did on average. Square
/// roots, products and quotients give the same bits on every machine.
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
    /// The tracker after a step that found the right threshold exactly.
    pub(super) fn found(before: Option<Tracker>, exact: u32) -> Tracker {
        let right = f64::from(f32::from_bits(exact));
        let growth = before.map_or(1.0, |tracker| tracker.growth_to(right));
        Tracker::going_on(right, growth)
    }

    /// This tracker with another threshold.
    pub(super) fn with(self, threshold: u32) -> Tracker {
        Tracker { threshold, ..self }
    }

    /// The tracker after a step in which the threshold selected `count` where `k` were wanted.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sparse::Stream;
    use crate::sparse::entries::ByMagnitude;

    #[test]
    fn neighbours_are_counted_as_one_by_one() {
        for threshold in [1, 7, 0x3f80_0000, 0x3f80_1234, f32::MAX.to_bits()] {
            let thresholds = Thresholds::of(threshold);
            let all: Vec<u32> = thresholds.magnitudes().collect();
            assert!(all.windows(2).all(|pair| pair[0] < pair[1]) && all[0] >= 1);
            let near = |bits: &u32| [bits - 1, *bits, bits + 1];
            let values: Vec<f32> = all.iter().flat_map(near).map(f32::from_bits).collect();
            let stream = Stream {
                indices: (0..values.len() as u64).collect(),
                values,
            };
            let right: Vec<u64> = all.iter().map(|bits| stream.count_from(*bits)).collect();
            assert_eq!(stream.counts_from(thresholds), right, "{threshold:#x}");
        }
    }

    #[test]
    fn the_nearest_to_k_is_taken() {
        let thresholds = Thresholds::of(1.0f32.to_bits());
        let totals: Vec<u64> = (0..Thresholds::COUNT as u64)
            .map(|i| 1000 - 20 * i)
            .collect();
        let middle = (16, 1.0f32.to_bits(), 680);
        assert_eq!(thresholds.nearest(&totals, 689), middle);
        assert_eq!(thresholds.middle(&totals), middle);
        assert_eq!(thresholds.magnitudes().nth(16), Some(middle.1));
        // Fewer than k whatever is taken: as many as there are.
        assert_eq!(thresholds.nearest(&totals, 5000).2, 1000);
    }
}
