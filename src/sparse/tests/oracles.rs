//! The integer cases of `tests/data/sparse/oracles_sparse.json`, with full outputs, of every
//! algorithm they have.

use super::job::Job;
use crate::sparse::{Algorithm, DsaVariant, Phase, Regions, SparseOptions};
use serde_json::Value;

fn cases() -> Vec<Value> {
    let text = include_str!("../../../tests/data/sparse/oracles_sparse.json");
    let all: Value = serde_json::from_str(text).unwrap();
    all["cases"].as_array().unwrap().clone()
}

fn floats(value: &Value) -> Vec<f32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_f64().unwrap() as f32)
        .collect()
}

fn matrix(value: &Value) -> Vec<Vec<f32>> {
    value.as_array().unwrap().iter().map(floats).collect()
}

fn job(case: &Value, algorithm: Algorithm, options: SparseOptions) -> Job {
    let number = |name: &str| case[name].as_u64().unwrap();
    Job::new(
        number("P") as usize,
        number("n") as usize,
        number("k"),
        algorithm,
        options,
    )
}

fn pairs(value: &Value) -> (Vec<u64>, Vec<f32>) {
    let entries = value.as_array().unwrap().iter();
    entries
        .map(|e| (e[0].as_u64().unwrap(), e[1].as_f64().unwrap() as f32))
        .unzip()
}

#[test]
fn oktopk_is_that_of_the_oracles() {
    let all = cases();
    let steps = all
        .iter()
        .map(|case| case["grads"].as_array().unwrap().len());
    assert_eq!((all.len(), steps.sum::<usize>()), (6, 15));
    for regions in [Regions::Balanced, Regions::Averaged, Regions::Equal] {
        for case in &all {
            let options = SparseOptions {
                regions,
                ..SparseOptions::default()
            };
            let mut job = job(case, Algorithm::OkTopk, options);
            for (t, gradients) in case["grads"].as_array().unwrap().iter().enumerate() {
                let want = &case["oktopk"][t];
                let name = format!("{} step {t}", case["name"]);
                let got = job.step(&matrix(gradients));
                for (rank, picks) in got.picks.iter().enumerate() {
                    let local = floats(&want["local_idx"][rank]);
                    assert_eq!(
                        picks.indices.iter().map(|i| *i as f32).collect::<Vec<_>>(),
                        local,
                        "{name}"
                    );
                    assert_eq!(
                        job.residual(rank),
                        floats(&want["residual"][rank]),
                        "{name} rank {rank}"
                    );
                    if regions == Regions::Equal {
                        let reduce = got.finished[rank].counters.of(Phase::Reduce);
                        let words = |field: &str| want[field][rank].as_u64().unwrap();
                        assert_eq!(
                            reduce.data_words_received,
                            words("phase1_equal_regions_recv_words"),
                            "{name}"
                        );
                        assert_eq!(
                            reduce.data_words_sent,
                            words("phase1_equal_regions_sent_words"),
                            "{name}"
                        );
                    }
                }
                let result = got.result();
                assert_eq!(
                    (result.indices.clone(), result.values.clone()),
                    pairs(&want["u"]),
                    "{name}"
                );
            }
        }
    }
}

#[test]
fn the_plain_sums_are_those_of_the_oracles() {
    let algorithms = [
        Algorithm::TopkA,
        Algorithm::TopkDsa(DsaVariant::Split),
        Algorithm::TopkDsa(DsaVariant::Small),
        Algorithm::TopkDsa(DsaVariant::Big),
        Algorithm::TopkDsa(DsaVariant::RecursiveDoubling),
    ];
    for algorithm in algorithms {
        for case in cases() {
            let mut job = job(&case, algorithm, SparseOptions::default());
            for (t, gradients) in case["grads"].as_array().unwrap().iter().enumerate() {
                let got = job.step(&matrix(gradients));
                let want = floats(&case["topka_dsa_sum"][t]["sum"]);
                assert_eq!(
                    got.dense(job.count),
                    want,
                    "{algorithm} {} step {t}",
                    case["name"]
                );
            }
            for rank in 0..job.ranks.len() {
                let want = floats(&case["topka_final_residual"][rank]);
                assert_eq!(job.residual(rank), want, "{algorithm} {}", case["name"]);
            }
        }
    }
}

#[test]
fn gtopk_is_that_of_the_oracles() {
    // The file has trees where the number of ranks is a power of two.
    for case in cases()
        .into_iter()
        .filter(|case| !case["gtopk_tree"].is_null())
    {
        let mut job = job(&case, Algorithm::GTopk, SparseOptions::default());
        for (t, gradients) in case["grads"].as_array().unwrap().iter().enumerate() {
            let got = job.step(&matrix(gradients));
            let want = pairs(&case["gtopk_tree"][t]["u"]);
            let result = got.result();
            assert_eq!(
                (result.indices.clone(), result.values.clone()),
                want,
                "{} step {t}",
                case["name"]
            );
        }
        for rank in 0..job.ranks.len() {
            let want = floats(&case["gtopk_final_residual_dropsite"][rank]);
            assert_eq!(job.residual(rank), want, "{} rank {rank}", case["name"]);
        }
    }
}

#[test]
fn the_top_of_the_sum_is_of_the_picks_and_a_dropped_partial_sum_returns() {
    // Index 0 cancels: it is not sent, and both keep what they have.
    let mut three = Job::new(3, 4, 1, Algorithm::OkTopk, SparseOptions::default());
    let got = three.step(&[
        vec![4., 0., 3., 0.],
        vec![-4., 0., 3., 0.],
        vec![0., 5., 3., 0.],
    ]);
    assert_eq!(
        (got.result().indices.clone(), got.result().values.clone()),
        (vec![1], vec![5.0])
    );
    assert_eq!((three.residual(0)[0], three.residual(1)[0]), (4.0, -4.0));
    // gTopk: rank 0's part of index 0 is dropped in its subtree, and the index is in the result all
    // the same.
    let gradients = [
        vec![3., 0., 0., 0.],
        vec![0., 5., 0., 0.],
        vec![10., 0., 0., 0.],
        vec![0., 0., 0., 4.],
    ];
    let mut tree = Job::new(4, 4, 1, Algorithm::GTopk, SparseOptions::default());
    let got = tree.step(&gradients);
    assert_eq!(
        (got.result().indices.clone(), got.result().values.clone()),
        (vec![0], vec![10.0])
    );
    assert_eq!(tree.residual(0)[0], 3.0);
    let mut other = Job::new(4, 4, 1, Algorithm::OkTopk, SparseOptions::default());
    assert_eq!(other.step(&gradients).result().values, [13.0]);
}
