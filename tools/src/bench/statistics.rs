//! Percentiles of exact samples. A percentile is the least sample that is not below that share of
//! all ("nearest rank"), so it is always a time that was measured.

use serde::{Deserialize, Serialize};

/// Times of one measurement, us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Least.
    pub min: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Greatest.
    pub max: f64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Standard deviation of the samples as a whole population.
    pub stddev: f64,
}

impl Summary {
    /// All zero without samples.
    pub fn of(samples: &[f64]) -> Summary {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        Summary::of_sorted(&sorted)
    }

    /// Like [`Summary::of`], of samples that are sorted already.
    pub fn of_sorted(sorted: &[f64]) -> Summary {
        if sorted.is_empty() {
            return Summary::default();
        }
        let count = sorted.len() as f64;
        let mean = sorted.iter().sum::<f64>() / count;
        let variance = sorted.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
        Summary {
            min: sorted[0],
            p50: percentile(sorted, 500),
            p90: percentile(sorted, 900),
            p99: percentile(sorted, 990),
            max: sorted[sorted.len() - 1],
            mean,
            stddev: variance.sqrt(),
        }
    }
}

/// The least of the sorted samples that is not below this many thousandths of all. There is at
/// least one.
pub fn percentile(sorted: &[f64], thousandths: usize) -> f64 {
    let position = (sorted.len() * thousandths).div_ceil(1000);
    sorted[position.max(1) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let samples: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let summary = Summary::of(&samples);
        assert_eq!((summary.min, summary.max), (1.0, 100.0));
        assert_eq!((summary.p50, summary.p90, summary.p99), (50.0, 90.0, 99.0));
        assert_eq!(summary.mean, 50.5);
        assert!((summary.stddev - 28.866).abs() < 1e-3);
    }

    #[test]
    fn one_sample_is_every_percentile() {
        let summary = Summary::of(&[3.0]);
        assert_eq!(
            (summary.min, summary.p50, summary.p99, summary.max),
            (3.0, 3.0, 3.0, 3.0)
        );
        assert_eq!(summary.stddev, 0.0);
    }

    #[test]
    fn few_samples_have_their_greatest_as_99th_percentile() {
        let summary = Summary::of(&[5.0, 1.0, 3.0]);
        assert_eq!((summary.p50, summary.p90, summary.p99), (3.0, 5.0, 5.0));
    }

    #[test]
    fn no_sample_gives_zeros() {
        assert_eq!(Summary::of(&[]), Summary::default());
    }
}
