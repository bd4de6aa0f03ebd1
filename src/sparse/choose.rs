//! What a step costs with each algorithm, and which is cheapest: Table 1 of the paper with the fill-in that was measured.
//!
//! Only multiplications and additions of what all ranks have, so that all choose the same.

use super::options::{Algorithm, DsaVariant};

/// What a link costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// Seconds of a message.
    pub message: f64,
    /// Seconds of a word of 4 bytes.
    pub word: f64,
}

/// Words of the histograms of exact global selection.
const HISTOGRAMS: f64 = 2.0 * (2048.0 + 2048.0 + 512.0);

/// Seconds that the communication of a step takes: `k` of `count` coordinates on `ranks` ranks, with `reduced` non-zeros in
/// the sum of all picks (unknown: what independent picks would give).
pub fn seconds_of(
    algorithm: Algorithm,
    (count, k, ranks): (u64, u64, u32),
    reduced: Option<u64>,
    prices: Prices,
) -> f64 {
    let (n, k, p) = (count as f64, k as f64, f64::from(ranks));
    let others = (p - 1.0) / p;
    let log = f64::from(ranks.next_power_of_two().trailing_zeros());
    let reduced = reduced.map_or_else(|| n * (1.0 - power(1.0 - k / n, ranks)), |r| r as f64);
    let dense = 2.0 * n * others;
    let (words, messages) = match algorithm {
        Algorithm::OkTopk => {
            let selected = k.min(reduced);
            let histograms = if reduced > k { HISTOGRAMS } else { 0.0 };
            (
                (2.0 * k + 2.0 * selected) * others + histograms,
                2.0 * p + 2.0 * log,
            )
        }
        Algorithm::TopkA | Algorithm::Gaussiank => (2.0 * k * (p - 1.0), 2.0 * log),
        Algorithm::TopkDsa(DsaVariant::RecursiveDoubling) => {
            let doubled = (0..log as u32).map(|round| {
                let merged = n * (1.0 - power(1.0 - k / n, 1 << round));
                (2.0 * merged.min(reduced)).min(n)
            });
            (doubled.sum(), 2.0 * log)
        }
        Algorithm::TopkDsa(variant) => {
            let gathered = match variant {
                DsaVariant::Small => 2.0 * reduced,
                DsaVariant::Big => n,
                _ => (2.0 * reduced).min(n),
            };
            ((2.0 * k + gathered) * others, p + 2.0 * log)
        }
        Algorithm::GTopk => (4.0 * k * log, 2.0 * log),
        Algorithm::Dense | Algorithm::Auto => (dense, 2.0 * log),
    };
    words * prices.word + messages * prices.message
}

/// The cheapest of Ok-Topk, TopkDSA and dense.
pub fn choose(shape: (u64, u64, u32), reduced: Option<u64>, prices: Prices) -> Algorithm {
    let candidates = [
        Algorithm::OkTopk,
        Algorithm::TopkDsa(DsaVariant::Split),
        Algorithm::Dense,
    ];
    let seconds = |a: &Algorithm| seconds_of(*a, shape, reduced, prices);
    let cheapest = candidates
        .into_iter()
        .min_by(|a, b| seconds(a).total_cmp(&seconds(b)));
    cheapest.unwrap_or(Algorithm::Dense)
}

fn power(base: f64, exponent: u32) -> f64 {
    let (mut result, mut square, mut left) = (1.0, base, exponent);
    while left > 0 {
        if left & 1 == 1 {
            result *= square;
        }
        square *= square;
        left >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10 GB/s, 1.5 us.
    const FABRIC: Prices = Prices {
        message: 1.5e-6,
        word: 4e-10,
    };

    #[test]
    fn the_choice_follows_the_fill_in() {
        let bert = (133_547_324, 1_335_473, 256);
        assert_eq!(choose(bert, None, FABRIC), Algorithm::OkTopk);
        // All ranks pick the same coordinates: the sum is as short as one rank's picks.
        let identical = choose(bert, Some(1_335_473), FABRIC);
        assert_eq!(identical, Algorithm::TopkDsa(DsaVariant::Split));
        assert_eq!(choose((1000, 900, 8), None, FABRIC), Algorithm::Dense);
    }

    #[test]
    fn volumes_are_those_of_table_1() {
        let beta = Prices {
            message: 0.0,
            word: 1.0,
        };
        let shape = (133_547_324, 1_335_473, 32);
        let close = |algorithm, words: f64| {
            let got = seconds_of(algorithm, shape, None, beta);
            assert!((got / words - 1.0).abs() < 0.01, "{algorithm}: {got}");
        };
        close(Algorithm::Dense, 2.587e8);
        close(Algorithm::TopkA, 8.280e7);
        close(Algorithm::GTopk, 2.671e7);
        close(Algorithm::OkTopk, 5.175e6);
    }
}
