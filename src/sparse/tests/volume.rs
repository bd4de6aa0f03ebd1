//! Words of each algorithm as Table 1 says, up to 256 ranks at the size of BERT, without values.

use super::job::Job;
use super::memory;
use crate::prng::Prng;
use crate::sparse::{
    Algorithm, DsaVariant, Finished, Machine, OkTopkState, Phase, Sized, SparseOptions, Step,
    Support,
};

const BERT: (u64, u64) = (133_547_324, 1_335_473);

fn sized(
    algorithm: Algorithm,
    ranks: u32,
    (count, k): (u64, u64),
    support: Support,
) -> Vec<Finished<Sized>> {
    let machine = |rank| {
        let step = Step {
            picks: Sized::new(0, count, k, support),
            not_finite: 0,
            count,
            k,
        };
        Machine::new(
            algorithm,
            &SparseOptions::default(),
            (rank, ranks),
            step,
            OkTopkState::default(),
        )
    };
    memory::run((0..ranks).map(machine).collect(), 1)
}

/// Words sent and received by the rank with the most, and the mean received.
fn words<E>(finished: &[Finished<E>]) -> (f64, f64, f64)
where
    E: crate::sparse::Entries,
{
    let totals: Vec<_> = finished.iter().map(|f| f.counters.total()).collect();
    let sent = totals.iter().map(|t| t.data_words_sent).max().unwrap() as f64;
    let received = totals.iter().map(|t| t.data_words_received).max().unwrap() as f64;
    let all: u64 = totals.iter().map(|t| t.data_words_received).sum();
    (sent, received, all as f64 / totals.len() as f64)
}

#[test]
fn every_algorithm_has_the_words_of_table_1() {
    let (n, k) = (BERT.0 as f64, BERT.1 as f64);
    for ranks in [2, 5, 32, 256] {
        let p = f64::from(ranks);
        let others = (p - 1.0) / p;
        let run = |algorithm| words(&sized(algorithm, ranks, BERT, Support::Independent));
        let (sent, received, mean) = run(Algorithm::OkTopk);
        let most = 6.0 * k + 2.0 * p;
        assert!(
            sent <= most && received <= most && mean >= 2.0 * k * others,
            "{ranks}: {sent} {received} {mean}"
        );
        let (_, _, mean) = run(Algorithm::TopkA);
        assert_eq!(mean.round(), 2.0 * k * (p - 1.0), "{ranks}");
        let (_, received, mean) = run(Algorithm::TopkDsa(DsaVariant::Split));
        let bounds = 4.0 * k * others * 0.99..=(2.0 * k + n) * others * 1.01;
        assert!(
            bounds.contains(&mean) && bounds.contains(&received),
            "{ranks}: {mean} {received}"
        );
        // Entries go up once and down once; the root has a message in each round.
        let (sent, received, _) = run(Algorithm::GTopk);
        let rounds = p.log2().ceil();
        assert_eq!(
            (sent, received),
            (2.0 * k * rounds, 2.0 * k * rounds),
            "{ranks}"
        );
    }
}

#[test]
fn topka_passes_dense_where_density_says() {
    let (n, k) = (BERT.0 as f64, BERT.1 as f64);
    for (ranks, is_more) in [(64, false), (128, true)] {
        let (_, _, mean) = words(&sized(Algorithm::TopkA, ranks, BERT, Support::Independent));
        let p = f64::from(ranks);
        assert_eq!(
            mean > 2.0 * n * (p - 1.0) / p,
            is_more,
            "{ranks}: {mean} of k {k}"
        );
    }
}

#[test]
fn equal_supports_make_topkdsa_the_shortest() {
    // Of the rank that receives the most.
    let run = |algorithm| words(&sized(algorithm, 32, BERT, Support::Identical)).1;
    let split = run(Algorithm::TopkDsa(DsaVariant::Split));
    assert!(split <= 4.0 * BERT.1 as f64);
    assert!(split <= run(Algorithm::OkTopk) * 1.001);
    assert!(2.0 * split < run(Algorithm::GTopk) && 2.0 * split < run(Algorithm::TopkA));
}

#[test]
fn sizes_agree_with_values_within_a_hundredth() {
    let (count, k, ranks) = (100_000u64, 1000u64, 32u32);
    let mut prng = Prng::new(6);
    // Independent uniform picks: the large values of each rank lie anywhere.
    let gradients: Vec<Vec<f32>> = (0..ranks)
        .map(|_| {
            let mut values = vec![0f32; count as usize];
            let mut left = k;
            while left > 0 {
                let at = prng.below(count) as usize;
                left -= u64::from(values[at] == 0.0);
                values[at] = 1.0 + prng.below(1000) as f32;
            }
            values
        })
        .collect();
    for algorithm in [
        Algorithm::OkTopk,
        Algorithm::TopkA,
        Algorithm::TopkDsa(DsaVariant::Split),
        Algorithm::GTopk,
    ] {
        let mut job = Job::new(
            ranks as usize,
            count as usize,
            k,
            algorithm,
            SparseOptions::default(),
        );
        let real = job.step(&gradients).finished;
        let model = sized(algorithm, ranks, (count, k), Support::Independent);
        let (real_words, model_words) = (words(&real).2, words(&model).2);
        let ratio = model_words / real_words;
        assert!(
            (ratio - 1.0).abs() < 0.01,
            "{algorithm}: {model_words} instead of {real_words}"
        );
        if let (Some(a), Some(b)) = (real[0].reduced, model[0].reduced) {
            assert!(
                (a as f64 / b as f64 - 1.0).abs() < 0.01,
                "{algorithm}: {b} instead of {a}"
            );
        }
    }
}

#[test]
fn control_words_are_those_of_sizes_boundaries_and_histograms() {
    let (p, rounds) = (8u64, 17);
    let finished = sized(
        Algorithm::OkTopk,
        p as u32,
        (100_000, 1000),
        Support::Independent,
    );
    let counters = &finished[3].counters;
    // An all-to-all of sizes, three words of state, two of ties.
    assert_eq!(
        counters.of(Phase::Sizes).control_words,
        (p - 1) * (1 + 3 + 2)
    );
    assert_eq!(
        counters.of(Phase::Select).control_words,
        2 * (2048 + 2048 + 512)
    );
    let partition = counters.of(Phase::Partition).control_words;
    assert!(partition <= 2 * (rounds * (p - 1) + 1), "{partition}");
}
