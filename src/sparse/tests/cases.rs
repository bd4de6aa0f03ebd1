//! Every algorithm on many shapes of gradients: conservation in integers at each step, on every number of ranks.

use super::job::Job;
use crate::prng::Prng;
use crate::sparse::{Algorithm, Balance, Mode, Regions, SparseOptions, SwitchRule};

const RANKS: [usize; 6] = [1, 3, 5, 8, 17, 40];

/// Algorithms with a machine.
fn algorithms() -> impl Iterator<Item = Algorithm> {
    let is_machine = |a: &Algorithm| !matches!(a, Algorithm::Dense | Algorithm::Auto);
    Algorithm::ALL.into_iter().filter(is_machine)
}

/// Shapes of gradients; all integers, so that sums are exact.
const SHAPES: [&str; 10] = [
    "random",
    "one region",
    "one rank",
    "disjoint",
    "ties",
    "two values",
    "zero",
    "cancelling",
    "signed zeros",
    "tails",
];

pub fn gradients(shape: &str, ranks: usize, count: usize, prng: &mut Prng) -> Vec<Vec<f32>> {
    let mut integer = |span: u64| prng.below(2 * span + 1) as f32 - span as f32;
    let mut value = |rank: usize, index: usize| match shape {
        "random" => integer(100),
        "one region" if index < count.div_ceil(8) => integer(100),
        "one rank" if rank == ranks / 2 => integer(1000),
        "disjoint" if index % ranks == rank => integer(50),
        "ties" => 7.0,
        "two values" => {
            if integer(3) > 0.0 {
                3.0
            } else {
                -2.0
            }
        }
        "cancelling" => [9.0, -9.0][rank % 2] * (1 + index % 5) as f32,
        "signed zeros" => [0.0, -0.0, 1.0][index % 3],
        "tails" => (integer(8) * integer(8) * integer(8)).round(),
        _ => 0.0,
    };
    (0..ranks)
        .map(|r| (0..count).map(|i| value(r, i)).collect())
        .collect()
}

fn run(
    ranks: usize,
    (count, k): (usize, u64),
    algorithm: Algorithm,
    options: &SparseOptions,
    seed: u64,
) {
    let mut prng = Prng::new(seed);
    for shape in SHAPES {
        let mut job = Job::new(ranks, count, k, algorithm, options.clone());
        for _ in 0..3 {
            job.step(&gradients(shape, ranks, count, &mut prng));
        }
    }
}

#[test]
fn no_algorithm_loses_or_doubles_a_gradient() {
    for algorithm in algorithms() {
        for ranks in RANKS {
            for shape in [(1, 1), (7, 3), (61, 4), (64, 100), (300, 12)] {
                run(
                    ranks,
                    shape,
                    algorithm,
                    &SparseOptions::default(),
                    ranks as u64,
                );
            }
        }
    }
}

#[test]
fn every_mode_of_oktopk_conserves_and_keeps_to_its_volume() {
    for mode in [Mode::Exact, Mode::Threshold, Mode::Paper] {
        for regions in [Regions::Balanced, Regions::Averaged, Regions::Equal] {
            for balance in [
                Balance::Auto,
                Balance::Paper,
                Balance::Always,
                Balance::Never,
            ] {
                let options = SparseOptions {
                    mode,
                    regions,
                    balance,
                    reuse_steps: 2,
                    repartition_steps: 3,
                    ..SparseOptions::default()
                };
                for ranks in [2, 3, 5, 8] {
                    // The paper's mode sends more at a re-evaluation; its volume is not bounded.
                    let algorithm = Algorithm::OkTopk;
                    let mut prng = Prng::new(3);
                    for shape in SHAPES {
                        let mut job = Job::new(ranks, 80, 8, algorithm, options.clone());
                        for _ in 0..5 {
                            let gradients = gradients(shape, ranks, 80, &mut prng);
                            match mode {
                                Mode::Paper => job.step_unbounded(&gradients),
                                _ => job.step(&gradients),
                            };
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn both_switch_rules_conserve() {
    for switch in [SwitchRule::SparCml, SwitchRule::OkTopk] {
        let options = SparseOptions {
            switch,
            ..SparseOptions::default()
        };
        for algorithm in algorithms().filter(|a| matches!(a, Algorithm::TopkDsa(_))) {
            for k in [2, 7, 8, 11, 12, 24] {
                run(3, (24, k), algorithm, &options, 5);
            }
        }
    }
}

#[test]
fn results_do_not_depend_on_the_order_of_delivery() {
    // Fractions of many sizes, whose sums depend on their order.
    let mut prng = Prng::new(11);
    let gradients: Vec<Vec<f32>> = (0..7)
        .map(|_| {
            (0..200)
                .map(|_| ((prng.unit() - 0.5) * f64::exp2(prng.below(20) as f64)) as f32)
                .collect()
        })
        .collect();
    for algorithm in algorithms() {
        let results: Vec<_> = (0..6)
            .map(|seed| {
                let mut job = Job::new(7, 200, 20, algorithm, SparseOptions::default());
                job.set_seed(1000 * seed);
                let result = job.step_unchecked(&gradients).result().clone();
                result
                    .values
                    .iter()
                    .map(|v| v.to_bits())
                    .collect::<Vec<_>>()
            })
            .collect();
        assert!(results.iter().all(|r| *r == results[0]), "{algorithm}");
    }
}
