//! [`fit`]: prices from measured times.
//!
//! Least squares of the relative errors, with no price below zero. Relative to the time that was
//! measured: on a machine that others use the outliers are times that are far too long, and no
//! prediction is off from one of them by more than itself. Prices that the samples do not tell
//! apart stay near those before.

use super::{Model, TERMS, Work};

/// What an operation did and how long it took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Its work.
    pub work: Work,
    /// Its time, above 0.
    pub time_ns: f64,
}

/// Sweeps over the prices: the problem is small, and sweeps converge slowly where two prices nearly
/// tell the same.
const SWEEPS: usize = 50_000;
/// How much a price is held back, against one sample: enough to decide what the samples leave open.
const HOLD: f64 = 1e-6;

/// The prices that explain the samples best. A price whose kind of work is in no sample stays as it
/// was.
pub fn fit(samples: &[Sample], before: &Model) -> Model {
    // In units of the prices before (of 1 where that is 0), so that all unknowns are about 1.
    let units: [f64; TERMS] = before.0.map(|price| if price > 0.0 { price } else { 1.0 });
    let mut matrix = [[0.0; TERMS]; TERMS];
    let mut target = [0.0; TERMS];
    for sample in samples {
        let amounts = sample.work.to_array();
        let row: [f64; TERMS] = std::array::from_fn(|i| amounts[i] * units[i] / sample.time_ns);
        for i in 0..TERMS {
            target[i] += row[i];
            for j in 0..TERMS {
                matrix[i][j] += row[i] * row[j];
            }
        }
    }
    let hold = HOLD * samples.len() as f64;
    for i in 0..TERMS {
        let scale = matrix[i][i].max(f64::MIN_POSITIVE);
        let own = hold.min(scale);
        matrix[i][i] += own;
        target[i] += own * before.0[i] / units[i];
    }
    let mut found: [f64; TERMS] = std::array::from_fn(|i| before.0[i] / units[i]);
    for _ in 0..SWEEPS {
        for i in 0..TERMS {
            let others: f64 = (0..TERMS)
                .filter(|&j| j != i)
                .map(|j| matrix[i][j] * found[j])
                .sum();
            found[i] = ((target[i] - others) / matrix[i][i]).max(0.0);
        }
    }
    let is_seen = |i: usize| samples.iter().any(|s| s.work.to_array()[i] > 0.0);
    Model(std::array::from_fn(|i| match is_seen(i) {
        true => found[i] * units[i],
        false => before.0[i],
    }))
}

#[cfg(test)]
mod tests {
    use super::super::{Caches, Models, Shape, formulas};
    use super::*;
    use crate::prng::Prng;

    const TRUE: Model = Model([
        90.0, 400.0, 50.0, 150.0, 12.0, 700.0, 60.0, 0.03, 0.04, 0.0, 0.02, 0.05,
    ]);

    /// Works of different algorithms, sizes and ranks.
    fn works() -> Vec<Work> {
        let all: [formulas::Formula; 13] = [
            formulas::line,
            formulas::window_all_reduce,
            formulas::window_split,
            formulas::window_reduce_scatter,
            formulas::window_all_gather,
            formulas::window_all_to_all,
            formulas::direct_all_reduce,
            formulas::direct_parts,
            formulas::ring_all_reduce,
            formulas::recursive_doubling,
            formulas::pairwise,
            formulas::tree_broadcast,
            formulas::direct_root,
        ];
        let mut works = Vec::new();
        for ranks in [2, 3, 4, 8] {
            for shift in (3..27).step_by(3) {
                let bytes = f64::from(1u32 << shift);
                let shape = Shape {
                    ranks,
                    hosts: 1,
                    cores: 8,
                    bytes,
                    segments: (bytes / 262_144.0).ceil(),
                    chunk_bytes: 262_144.0,
                    mapped: true,
                    registered: shift % 2 == 0,
                    caches: Caches {
                        core_bytes: 1e5,
                        host_bytes: 2e6,
                    },
                };
                works.extend(all.iter().map(|formula| formula(&shape)));
            }
        }
        works
    }

    fn samples(noise: f64) -> Vec<Sample> {
        let mut prng = Prng::new(7);
        let works = works().into_iter();
        works
            .map(|work| {
                let error = noise * (2.0 * prng.unit() - 1.0);
                let time_ns = TRUE.predict(&work) * (1.0 + error);
                Sample { work, time_ns }
            })
            .collect()
    }

    /// Greatest relative error of a prediction.
    fn worst(model: &Model) -> f64 {
        let errors = works().into_iter().map(|work| {
            let expected = TRUE.predict(&work);
            (model.predict(&work) / expected - 1.0).abs()
        });
        errors.fold(0.0, f64::max)
    }

    #[test]
    fn exact_times_give_the_prices_back() {
        let model = fit(&samples(0.0), &Models::BUILT_IN.apart);
        for (index, name) in Model::NAMES.iter().enumerate() {
            let (got, expected) = (model.0[index], TRUE.0[index]);
            // No sample goes over a network.
            let expected = if *name == "link" {
                Models::BUILT_IN.apart.0[index]
            } else {
                expected
            };
            assert!(
                (got - expected).abs() <= 0.1 * expected,
                "{name}: {got}, {expected}"
            );
        }
        assert!(worst(&model) < 0.02, "{}", worst(&model));
    }

    #[test]
    fn noise_and_a_tenth_of_outliers_move_predictions_little() {
        let mut samples = samples(0.1);
        samples
            .iter_mut()
            .step_by(10)
            .for_each(|s| s.time_ns *= 20.0);
        let model = fit(&samples, &Models::BUILT_IN.apart);
        assert!(worst(&model) < 0.2, "{}", worst(&model));
    }

    #[test]
    fn prices_are_never_negative_and_nothing_changes_nothing() {
        let work = works()[20];
        let tiny = fit(
            &[Sample {
                work,
                time_ns: 1e-3,
            }],
            &Models::BUILT_IN.apart,
        );
        assert!(
            tiny.0
                .iter()
                .all(|&price| price >= 0.0 && price.is_finite())
        );
        assert_eq!(fit(&[], &TRUE), TRUE);
    }
}
