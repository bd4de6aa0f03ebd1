//! What the published codes get wrong, and values at the ends of their types.

use super::cases;
use super::job::Job;
use super::memory;
use crate::prng::Prng;
use crate::sparse::balance::is_to_spread;
use crate::sparse::{
    Algorithm, Balance, DsaVariant, Finished, IndexFormat, Machine, Mode, NonFinite, OkTopkState,
    Phase, Regions, SparseOptions, Step, Stream, SwitchRule, ValueFormat, build_plan,
};

pub fn machines() -> impl Iterator<Item = Algorithm> {
    let is_machine = |a: &Algorithm| !matches!(a, Algorithm::Dense | Algorithm::Auto);
    Algorithm::ALL.into_iter().filter(is_machine)
}

/// One step of picks that are given.
fn step(
    algorithm: Algorithm,
    options: &SparseOptions,
    (count, k): (u64, u64),
    picks: &[Vec<(u64, f32)>],
) -> Vec<Finished<Stream>> {
    let picks_count = picks.len() as u32;
    let machine = |(rank, picks): (usize, &Vec<(u64, f32)>)| {
        let (indices, values) = picks.iter().copied().unzip();
        let step = Step {
            picks: Stream { indices, values },
            not_finite: 0,
            count,
            k,
        };
        let place = (rank as u32, picks_count);
        Machine::new(algorithm, options, place, step, OkTopkState::default())
    };
    memory::run(picks.iter().enumerate().map(machine).collect(), 3)
}

fn sparse_rank_order() -> [Algorithm; 5] {
    [
        Algorithm::OkTopk,
        Algorithm::TopkA,
        Algorithm::TopkDsa(DsaVariant::Split),
        Algorithm::TopkDsa(DsaVariant::Small),
        Algorithm::Gaussiank,
    ]
}

#[test]
fn sums_are_made_in_rank_order() {
    let options = SparseOptions::default();
    for algorithm in sparse_rank_order() {
        let sum = |values: [f32; 3]| {
            let picks: Vec<_> = values.iter().map(|v| vec![(3, *v)]).collect();
            let got = step(algorithm, &options, (1000, 1), &picks);
            assert!(got.iter().all(|f| f.result == got[0].result));
            got[0].result.values.clone()
        };
        assert_eq!(sum([1e8, -1e8, 1.0]), [1.0], "{algorithm}");
        // The 1 is lost in the sum, whose zero is not sent.
        assert!(sum([1e8, 1.0, -1e8]).is_empty(), "{algorithm}");
        assert_eq!(sum([1.0, 1e8, 1.0]), [1e8], "{algorithm}");
    }
}

#[test]
fn large_indices_survive_the_wire() {
    let far = (1 << 24) + 1;
    let beyond = (1u64 << 40) + 7;
    for algorithm in machines().filter(|a| *a != Algorithm::TopkDsa(DsaVariant::Big)) {
        let options = SparseOptions::default();
        let got = step(
            algorithm,
            &options,
            (far + 2, 1),
            &[vec![(far, 2.0)], vec![(far, 3.0)]],
        );
        assert_eq!(
            (got[1].result.indices[0], got[1].result.values[0]),
            (far, 5.0),
            "{algorithm}"
        );
        // Wide indices where 32 bits do not do, and where they are asked for.
        let got = step(
            algorithm,
            &options,
            (1 << 41, 1),
            &[vec![(beyond, 2.0)], vec![(beyond, 3.0)]],
        );
        assert_eq!(
            (got[0].result.indices[0], got[0].result.values[0]),
            (beyond, 5.0),
            "{algorithm}"
        );
        let wide = SparseOptions {
            indices: IndexFormat::U64,
            ..options
        };
        let got = step(
            algorithm,
            &wide,
            (100, 1),
            &[vec![(7, 2.0)], vec![(7, 3.0)]],
        );
        assert_eq!(
            (got[0].result.indices[0], got[0].result.values[0]),
            (7, 5.0),
            "{algorithm}"
        );
    }
}

#[test]
fn boundaries_do_not_overflow_where_ranks_times_coordinates_do() {
    for regions in [Regions::Balanced, Regions::Averaged] {
        let options = SparseOptions {
            regions,
            ..SparseOptions::default()
        };
        let count = 1 << 30;
        let picks: Vec<Vec<(u64, f32)>> = (0..5)
            .map(|_| {
                (0..5)
                    .map(|i| (count - 100 + i * 10, 1.0 + i as f32))
                    .collect()
            })
            .collect();
        let got = step(Algorithm::OkTopk, &options, (count, 5), &picks);
        let bounds = &got[0].state.as_ref().unwrap().bounds;
        assert!(bounds[1] >= count - 100 && bounds.is_sorted(), "{bounds:?}");
        assert_eq!(got[0].result.values, [5.0, 10.0, 15.0, 20.0, 25.0]);
        assert!(got.iter().all(|f| f.state == got[0].state));
    }
}

#[test]
fn picks_in_one_region_are_shared_where_equal_regions_are_not() {
    let gradients: Vec<Vec<f32>> = (0..4)
        .map(|r| {
            (0..64)
                .map(|i| {
                    if i < 16 {
                        (1 + (i * 7 + r * 5) % 16) as f32
                    } else {
                        0.0
                    }
                })
                .collect()
        })
        .collect();
    let received = |regions| {
        let options = SparseOptions {
            regions,
            ..SparseOptions::default()
        };
        let got = Job::new(4, 64, 4, Algorithm::OkTopk, options).step(&gradients);
        let words = got
            .finished
            .iter()
            .map(|f| f.counters.of(Phase::Reduce).data_words_received);
        words.collect::<Vec<u64>>()
    };
    assert_eq!(received(Regions::Equal), [24, 0, 0, 0]);
    assert!(
        received(Regions::Balanced)
            .iter()
            .all(|words| *words <= 2 * (4 + 4))
    );
}

#[test]
fn the_lower_bound_is_reached_where_everybody_picks_in_its_own_region() {
    let (p, k) = (8u64, 64u64);
    let picks: Vec<Vec<(u64, f32)>> = (0..p)
        .map(|r| (0..k / p).map(|i| (r * 100 + i, 1.0 + i as f32)).collect())
        .collect();
    let options = SparseOptions {
        regions: Regions::Equal,
        ..SparseOptions::default()
    };
    for finished in step(Algorithm::OkTopk, &options, (100 * p, k), &picks) {
        let total = finished.counters.total();
        assert_eq!(total.data_words_received, 2 * k * (p - 1) / p);
        assert_eq!(total.data_words_sent, 2 * k * (p - 1) / p);
    }
}

#[test]
fn balancing_fires_above_the_threshold_only() {
    let is_unbalanced =
        |sizes: &[u64], rule| is_to_spread(sizes, rule, crate::sparse::Prices::default());
    assert!(is_unbalanced(&[31, 0, 0, 9], Balance::Auto));
    assert!(!is_unbalanced(&[30, 0, 0, 10], Balance::Auto));
    assert!(!is_unbalanced(&[9, 0], Balance::Auto));
    assert!(!is_unbalanced(&[42, 0, 0, 0], Balance::Paper));
    assert!(is_unbalanced(&[42, 0, 0, 0, 0], Balance::Paper));
    assert!(!is_unbalanced(&[4, 0, 0, 0, 1, 0, 0, 3], Balance::Auto));
    assert!(is_unbalanced(&[5, 0, 0, 0, 1, 0, 0, 2], Balance::Auto));
    let plan = build_plan(&[0, 7, 0, 1]);
    assert_eq!(
        plan,
        [(1, 0, 2), (1, 1, 2), (1, 2, 2), (1, 3, 1), (3, 3, 1)]
    );
    assert_eq!(build_plan(&[1, 0, 0]), [(0, 0, 1)]);
    let mut prng = Prng::new(9);
    for _ in 0..2000 {
        let sizes: Vec<u64> = (0..1 + prng.below(9))
            .map(|_| prng.below(20) * prng.below(2))
            .collect();
        let plan = build_plan(&sizes);
        let total: u64 = sizes.iter().sum();
        for rank in 0..sizes.len() as u32 {
            let sent: u64 = plan.iter().filter(|m| m.0 == rank).map(|m| m.2).sum();
            let got: u64 = plan.iter().filter(|m| m.1 == rank).map(|m| m.2).sum();
            assert_eq!(sent, sizes[rank as usize]);
            let p = sizes.len() as u64;
            assert_eq!(got, total / p + u64::from(u64::from(rank) < total % p));
        }
        let moves = plan.windows(2);
        assert!(
            moves
                .into_iter()
                .all(|m| (m[0].0, m[0].1) < (m[1].0, m[1].1))
        );
    }
}

#[test]
fn the_switch_to_dense_is_where_each_rule_says() {
    let dense = |rule: SwitchRule| (0..=24).find(|nnz| rule.is_dense(*nnz, 24));
    assert_eq!(
        (dense(SwitchRule::OkTopk), dense(SwitchRule::SparCml)),
        (Some(8), Some(12))
    );
    let words = |switch, entries: u64| {
        let options = SparseOptions {
            switch,
            ..SparseOptions::default()
        };
        let picks = vec![(0..entries).map(|i| (i, 1.0)).collect(), Vec::new()];
        let got = step(
            Algorithm::TopkDsa(DsaVariant::Split),
            &options,
            (24, 24),
            &picks,
        );
        let sent: u64 = got
            .iter()
            .map(|f| f.counters.of(Phase::Gather).data_words_received)
            .sum();
        sent
    };
    // Sparse: the entries with their indices; dense: one word for each coordinate.
    assert_eq!(
        (words(SwitchRule::OkTopk, 7), words(SwitchRule::OkTopk, 8)),
        (14, 24)
    );
    assert_eq!(
        (
            words(SwitchRule::SparCml, 11),
            words(SwitchRule::SparCml, 12)
        ),
        (22, 24)
    );
}

#[test]
fn extreme_values_are_conserved() {
    let tiny = f32::from_bits(1);
    for algorithm in machines() {
        let mut job = Job::new(3, 40, 5, algorithm, SparseOptions::default());
        for t in 0..12usize {
            let value = |r: usize, i: usize| match (r + i + t) % 5 {
                0 => tiny * (i + 1) as f32,
                1 => -tiny * (i % 7) as f32,
                2 => -0.0,
                _ => tiny * 3.0,
            };
            job.step(
                &(0..3)
                    .map(|r| (0..40).map(|i| value(r, i)).collect())
                    .collect::<Vec<_>>(),
            );
        }
        // A spike beside small integers, alone in its coordinate.
        let mut job = Job::new(3, 40, 5, algorithm, SparseOptions::default());
        for t in 0..4usize {
            let value = |r: usize, i: usize| match (i, r) {
                (0, 0) if t == 0 => 1e30,
                (0, _) => 0.0,
                _ => ((i * 3 + r + t) % 9) as f32,
            };
            let got = job.step(
                &(0..3)
                    .map(|r| (0..40).map(|i| value(r, i)).collect())
                    .collect::<Vec<_>>(),
            );
            assert_eq!(
                got.result().indices.first() == Some(&0),
                t == 0,
                "{algorithm}"
            );
        }
    }
}

#[test]
fn a_constant_gradient_reaches_every_coordinate() {
    let (count, k) = (60, 4);
    for algorithm in machines() {
        let mut job = Job::new(3, count, k, algorithm, SparseOptions::default());
        let mut seen = vec![false; count];
        let gradients = vec![vec![1.0f32; count]; 3];
        // As many steps as k at a time need, and as many again.
        for _ in 0..2 * count.div_ceil(k as usize) {
            let got = job.step(&gradients);
            got.result()
                .indices
                .iter()
                .for_each(|i| seen[*i as usize] = true);
        }
        assert!(seen.iter().all(|seen| *seen), "{algorithm}: {seen:?}");
    }
}

#[test]
fn what_is_not_finite_ends_the_step_everywhere_or_is_left_out() {
    let gradient = |bad: f32| {
        let mut all = vec![vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]; 4];
        all[2][5] = bad;
        all
    };
    for algorithm in machines() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for non_finite in [NonFinite::Error, NonFinite::Skip] {
                let options = SparseOptions {
                    non_finite,
                    ..SparseOptions::default()
                };
                let mut job = Job::new(4, 8, 2, algorithm, options);
                job.step(&gradient(6.0));
                let before: Vec<_> = (0..4)
                    .map(|r| (job.residual(r), job.ranks[r].state.clone()))
                    .collect();
                let got = job.step_unchecked(&gradient(bad));
                assert!(
                    got.finished.iter().all(|f| f.is_void && f.not_finite == 1),
                    "{algorithm}"
                );
                let after: Vec<_> = (0..4)
                    .map(|r| (job.residual(r), job.ranks[r].state.clone()))
                    .collect();
                assert_eq!(before, after, "{algorithm}");
                job.step(&gradient(6.0));
            }
            let options = SparseOptions {
                non_finite: NonFinite::Count,
                ..SparseOptions::default()
            };
            let mut job = Job::new(4, 8, 2, algorithm, options);
            let got = job.step_unchecked(&gradient(bad));
            assert!(
                got.finished.iter().all(|f| !f.is_void && f.not_finite == 1),
                "{algorithm}"
            );
            assert!(got.result().values.iter().all(|v| v.is_finite()));
            assert!((0..4).all(|r| job.residual(r).iter().all(|v| v.is_finite())));
            // As if that rank's gradient had been zero there.
            let mut other = Job::new(4, 8, 2, algorithm, SparseOptions::default());
            assert_eq!(
                other.step(&gradient(0.0)).result(),
                got.result(),
                "{algorithm}"
            );
        }
    }
}

#[test]
fn a_sum_that_is_not_finite_is_found_by_whoever_makes_it() {
    for algorithm in machines() {
        let mut gradients = vec![vec![1.0f32, 2.0, 3.0, 0.0, 5.0, 6.0]; 3];
        gradients[0][3] = f32::MAX;
        gradients[2][3] = f32::MAX;
        let strict =
            Job::new(3, 6, 2, algorithm, SparseOptions::default()).step_unchecked(&gradients);
        assert!(
            strict
                .finished
                .iter()
                .all(|f| f.is_void && f.not_finite > 0),
            "{algorithm}"
        );
        let options = SparseOptions {
            non_finite: NonFinite::Count,
            ..SparseOptions::default()
        };
        let mut job = Job::new(3, 6, 2, algorithm, options);
        let got = job.step_unchecked(&gradients);
        assert!(
            got.finished
                .iter()
                .all(|f| !f.is_void && f.result == *got.result()),
            "{algorithm}"
        );
        assert!(
            got.result().values.iter().all(|v| v.is_finite()),
            "{algorithm}"
        );
        assert!(!got.result().indices.contains(&3), "{algorithm}");
        assert_eq!(
            (job.residual(0)[3], job.residual(2)[3]),
            (f32::MAX, f32::MAX),
            "{algorithm}"
        );
    }
}

#[test]
fn rounded_values_are_made_up_for() {
    let mut prng = Prng::new(4);
    for values in [ValueFormat::Bf16, ValueFormat::I8] {
        for algorithm in machines() {
            for ranks in [1, 3, 4, 6] {
                let options = SparseOptions {
                    values,
                    ..SparseOptions::default()
                };
                let mut job = Job::new(ranks, 600, 60, algorithm, options);
                let mut owed = vec![0f64; 600];
                for _ in 0..6 {
                    let gradients = cases::gradients("random", ranks, 600, &mut prng);
                    let got = job.step_unchecked(&gradients);
                    for gradient in &gradients {
                        owed.iter_mut()
                            .zip(gradient)
                            .for_each(|(o, g)| *o += f64::from(*g));
                    }
                    owed.iter_mut()
                        .zip(got.dense(600))
                        .for_each(|(o, u)| *o -= f64::from(u));
                    assert!(
                        got.finished.iter().all(|f| f.result == *got.result()),
                        "{algorithm}"
                    );
                }
                for rank in 0..ranks {
                    owed.iter_mut()
                        .zip(job.residual(rank))
                        .for_each(|(o, r)| *o -= f64::from(r));
                }
                let worst = owed.iter().fold(0f64, |most, o| most.max(o.abs()));
                // Differences of f32 of up to some thousands are exact to a few 1e-4.
                assert!(
                    worst < 2e-2,
                    "{algorithm} {values:?} {ranks} ranks: {worst}"
                );
            }
        }
    }
}

#[test]
fn a_constant_below_a_quantum_is_not_lost_in_ten_thousand_steps() {
    let options = SparseOptions {
        values: ValueFormat::I8,
        ..SparseOptions::default()
    };
    let mut job = Job::new(2, 4, 4, Algorithm::OkTopk, options);
    // The quantum of the block is 1.
    let gradients = vec![vec![127.0f32, 0.25, 0.0, 0.0]; 2];
    let mut applied = [0f64; 4];
    for _ in 0..10_000 {
        let got = job.step_unchecked(&gradients);
        applied
            .iter_mut()
            .zip(got.dense(4))
            .for_each(|(a, v)| *a += f64::from(v));
    }
    assert!((applied[1] - 5000.0).abs() < 8.0, "{applied:?}");
    assert!((applied[0] - 2_540_000.0).abs() < 1000.0, "{applied:?}");
}

#[test]
fn thresholds_follow_gradients_whose_scale_halves_or_doubles() {
    for factor in [0.5f32, 2.0] {
        let options = SparseOptions {
            mode: Mode::Threshold,
            reuse_steps: 1000,
            ..SparseOptions::default()
        };
        let (count, k) = (4000, 40);
        let mut job = Job::new(4, count, k, Algorithm::OkTopk, options);
        let mut prng = Prng::new(8);
        let mut scale = if factor < 1.0 { 1e15f32 } else { 1e-15 };
        for t in 0..100 {
            scale *= factor;
            let mut normal = || (0..12).map(|_| prng.unit() - 0.5).sum::<f64>() as f32 * scale;
            let gradients: Vec<Vec<f32>> = (0..4)
                .map(|_| (0..count).map(|_| normal()).collect())
                .collect();
            let got = job.step_unchecked(&gradients);
            let within = |n: u64| (k / 2..=2 * k).contains(&n);
            for picks in &got.picks {
                assert!(
                    within(picks.indices.len() as u64),
                    "step {t}: {}",
                    picks.indices.len()
                );
            }
            assert!(within(got.result().indices.len() as u64), "step {t}");
            assert!(
                got.finished
                    .iter()
                    .all(|f| f.state == got.finished[0].state),
                "step {t}"
            );
        }
    }
}

#[test]
fn reused_thresholds_stay_near_k() {
    let options = SparseOptions {
        mode: Mode::Threshold,
        reuse_steps: 32,
        ..SparseOptions::default()
    };
    let (count, k, steps) = (20_000, 400, 64);
    let mut job = Job::new(4, count, k, Algorithm::OkTopk, options);
    let mut prng = Prng::new(2);
    let (mut local, mut global) = (0.0, 0.0);
    for _ in 0..steps {
        let mut normal = || (0..12).map(|_| prng.unit() - 0.5).sum::<f64>() as f32;
        let gradients: Vec<Vec<f32>> = (0..4)
            .map(|_| (0..count).map(|_| normal()).collect())
            .collect();
        let got = job.step_unchecked(&gradients);
        let off = |n: usize| (n as f64 - k as f64).abs() / k as f64;
        local += got.picks.iter().map(|p| off(p.indices.len())).sum::<f64>() / 4.0;
        global += off(got.result().indices.len());
    }
    let (local, global) = (local / f64::from(steps), global / f64::from(steps));
    assert!(local <= 0.11 && global <= 0.11, "{local:.3} {global:.3}");
}
