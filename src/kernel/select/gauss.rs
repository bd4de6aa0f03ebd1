//! The threshold that a normal distribution with the elements' mean and deviation would need for a
//! density.
//!
//! It is an estimate. Real gradients have a narrower middle than a normal distribution, and late in
//! a training they are far from normal, so it selects too little. Gaussiank uses and corrects it.

use super::{Source, magnitude};

/// Sums of the finite elements.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moments {
    /// Finite elements.
    pub count: u64,
    /// Their sum.
    pub sum: f64,
    /// The sum of their squares.
    pub squares: f64,
}

/// Sums the finite elements in one pass.
pub fn moments(sources: &[Source]) -> Moments {
    let mut total = Moments::default();
    for source in sources {
        // Eight sums, so that additions need not wait for each other.
        let (mut sums, mut squares) = ([0f64; 8], [0f64; 8]);
        for index in 0..source.count() {
            let value = source.load(index);
            if value.is_finite() {
                let value = f64::from(value);
                sums[index % 8] += value;
                squares[index % 8] += value * value;
                total.count += 1;
            }
        }
        total.sum += sums.iter().sum::<f64>();
        total.squares += squares.iter().sum::<f64>();
    }
    total
}

/// The magnitude that a share `density` of the elements should reach: mean + z * deviation, at
/// least 1. A constant vector, one element and a negative mean give no negative threshold: the
/// larger of the two tails counts.
pub fn gaussian_magnitude(moments: Moments, density: f64) -> u32 {
    let count = (moments.count as f64).max(1.0);
    let mean = moments.sum / count;
    let deviation = (moments.squares / count - mean * mean).max(0.0).sqrt();
    let threshold = mean.abs() + normal_quantile_of_tail(density / 2.0) * deviation;
    let bits = magnitude(threshold as f32);
    bits.clamp(1, super::MAGNITUDE_INFINITE - 1)
}

/// The z above which a share `tail` of a standard normal distribution lies, `tail` in (0, 1/2]; by
/// bisection.
fn normal_quantile_of_tail(tail: f64) -> f64 {
    let (mut low, mut high) = (0.0, 40.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        match upper_tail(middle) > tail {
            true => low = middle,
            false => high = middle,
        }
    }
    low
}

/// The share of a standard normal distribution above `z` >= 0: the series near the middle,
/// Laplace's continued fraction far from it (Abramowitz and Stegun, 26.2.11 and 26.2.14).
fn upper_tail(z: f64) -> f64 {
    let density = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if z < 3.0 {
        let (mut term, mut sum, mut odd) = (z, z, 1.0);
        while term > 1e-17 {
            odd += 2.0;
            term *= z * z / odd;
            sum += term;
        }
        return 0.5 - density * sum;
    }
    let fraction = (1..60).rev().fold(z, |below, n| z + f64::from(n) / below);
    density / fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (tail, z) in [
            (0.5, 0.0),
            (0.025, 1.959964),
            (0.005, 2.575829),
            (0.0005, 3.290527),
        ] {
            let got = normal_quantile_of_tail(tail);
            assert!((got - z).abs() < 1e-5, "{tail}: {got}");
        }
    }
}
