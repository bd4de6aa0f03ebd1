//! Sparse allreduce through the public API: ranks are processes over shared memory and TCP, or
//! simulated.
//!
//! A test starts this very program again, once per rank, with `LINERATE_TEST_ROLE` set. Gradients
//! are integers that every rank can compute for all, so that each checks the whole: what was
//! applied and what residuals keep is what was given.

#[path = "../src/prng.rs"]
#[allow(dead_code)]
mod prng;

use crate::prng::mix;
use linerate::options::{Algorithm, Amount, DsaVariant, Mode, NonFinite, ValueFormat};
use linerate::reports::Phase;
use linerate::sim::{Link, SimOptions};
use linerate::{
    Buffer, Communicator, Config, DataType, Error, ReduceOp, Simulation, SparseAllreduce,
    SparseOptions, SparseResult, TensorSpec,
};
use linerate_children::{results, spawn};

#[path = "sparse/hostile.rs"]
mod hostile;

/// Elements of the tensors; one is empty.
const COUNTS: [u64; 4] = [37, 0, 500, 3];
const STEPS: u64 = 4;

fn specs() -> Vec<TensorSpec> {
    let spec = |(i, count): (usize, &u64)| TensorSpec {
        name: format!("tensor {i}"),
        count: *count,
        dtype: DataType::F32,
    };
    COUNTS.iter().enumerate().map(spec).collect()
}

/// A small integer that rank, step and place decide; many are zero or equal.
fn gradient(rank: u32, step: u64, tensor: usize, index: u64) -> f32 {
    let hash = mix(mix(u64::from(rank) << 40
        | step << 32
        | (tensor as u64) << 24
        | index));
    match hash % 4 {
        0 => 0.0,
        1 => (hash >> 8) as i8 as f32,
        _ => ((hash >> 8) % 7) as f32 - 3.0,
    }
}

fn gradients(comm: &Communicator, step: u64) -> Vec<Buffer<f32>> {
    let buffer = |(tensor, count): (usize, &u64)| {
        let values: Vec<f32> = (0..*count)
            .map(|i| gradient(comm.rank(), step, tensor, i))
            .collect();
        let buffer = comm.alloc(values.len().max(1)).unwrap();
        let buffer = buffer.range(..values.len());
        buffer.write(0, &values).unwrap();
        buffer
    };
    COUNTS.iter().enumerate().map(buffer).collect()
}

/// What the algorithm is told in these tests.
fn options(algorithm: Algorithm) -> SparseOptions {
    SparseOptions {
        algorithm,
        amount: Amount::Count(20),
        reuse_steps: 2,
        repartition_steps: 3,
        ..SparseOptions::default()
    }
}

/// The elements of a dense result, else none.
fn dense_of(result: &SparseResult) -> Vec<f32> {
    let dense = result.dense();
    dense.map_or(Vec::new(), |dense| dense.to_vec().unwrap())
}

/// A hash of a result's bits.
fn digest(result: &SparseResult) -> u64 {
    let (indices, values) = result.entries();
    let dense = dense_of(result);
    let words = indices.iter().copied();
    let words = words.chain(values.iter().chain(&dense).map(|v| u64::from(v.to_bits())));
    words.fold(indices.len() as u64, |hash, word| mix(hash ^ word))
}

/// What was applied, by tensor.
struct Applied(Vec<Buffer<f32>>);

impl Applied {
    fn new() -> Applied {
        let zeros = |count: &u64| Buffer::from_vec(vec![0.0; *count as usize]);
        Applied(COUNTS.iter().map(zeros).collect())
    }

    /// All gradients of `steps` steps are what was applied and what these residuals, summed over
    /// the ranks, keep.
    fn check(&self, ranks: u32, steps: u64, kept: &[Vec<f32>], what: &str) {
        for (tensor, count) in COUNTS.iter().enumerate() {
            let applied = self.0[tensor].to_vec().unwrap();
            for index in 0..*count {
                let given: f32 = (0..ranks)
                    .flat_map(|r| (0..steps).map(move |t| gradient(r, t, tensor, index)))
                    .sum();
                let at = index as usize;
                assert_eq!(
                    applied[at] + kept[tensor][at],
                    given,
                    "{what}: tensor {tensor}, {index}"
                );
            }
        }
    }
}

fn summed_residuals(comm: &Communicator, sparse: &SparseAllreduce) -> Vec<Vec<f32>> {
    let sum = |tensor: usize| {
        let mut values = sparse
            .residual(&format!("tensor {tensor}"))
            .unwrap()
            .to_vec()
            .unwrap();
        if !values.is_empty() {
            comm.all_reduce(&mut values, ReduceOp::Sum).unwrap();
        }
        values
    };
    (0..COUNTS.len()).map(sum).collect()
}

fn every_algorithm(comm: &Communicator) -> u64 {
    let mut total = 0;
    for algorithm in Algorithm::ALL {
        for (per_tensor, mode) in [
            (false, Mode::Exact),
            (true, Mode::Exact),
            (false, Mode::Threshold),
        ] {
            let options = SparseOptions {
                per_tensor,
                mode,
                ..options(algorithm)
            };
            let mut sparse = SparseAllreduce::new(comm, specs(), options).unwrap();
            let applied = Applied::new();
            for step in 0..STEPS {
                let result = sparse.run(&gradients(comm, step)).unwrap();
                result.add_to(&applied.0, 1.0).unwrap();
                match algorithm {
                    // What it chooses depends on times, but is the same on all ranks.
                    Algorithm::Auto => {
                        let (mut low, mut high) = ([digest(&result)], [digest(&result)]);
                        comm.all_reduce(&mut low, ReduceOp::Min).unwrap();
                        comm.all_reduce(&mut high, ReduceOp::Max).unwrap();
                        assert_eq!(low, high);
                    }
                    _ => total = mix(total ^ digest(&result)),
                }
                if algorithm == Algorithm::OkTopk && !per_tensor && mode == Mode::Exact {
                    let sent = result.counters.total().data_words_sent;
                    assert!(sent <= 6 * 20 + 2 * u64::from(comm.ranks()), "{sent}");
                    assert_eq!(result.selected_global, 20);
                    assert!(
                        comm.ranks() == 1 || result.counters.of(Phase::Sizes).control_words > 0
                    );
                }
            }
            let kept = summed_residuals(comm, &sparse);
            let what = format!("{algorithm}, per tensor {per_tensor}, {mode:?}");
            applied.check(comm.ranks(), STEPS, &kept, &what);
            let flushed = sparse.flush_residual().unwrap();
            flushed.add_to(&applied.0, 1.0).unwrap();
            let zeros: Vec<Vec<f32>> = COUNTS.iter().map(|c| vec![0.0; *c as usize]).collect();
            applied.check(comm.ranks(), STEPS, &zeros, &format!("{what}, flushed"));
            assert_eq!(summed_residuals(comm, &sparse), zeros);
        }
    }
    total
}

fn policies(comm: &Communicator) {
    let bad = |step| {
        let buffers = gradients(comm, step);
        if comm.rank() == comm.ranks() - 1 {
            buffers[2].write(77, &[f32::NAN]).unwrap();
        }
        buffers
    };
    // Tensors with results of their own: the one that is not finite comes after others.
    let both = [false, true];
    let each = |algorithm| both.map(|per_tensor| (algorithm, per_tensor));
    for (algorithm, per_tensor) in Algorithm::ALL.into_iter().flat_map(each) {
        let with = |non_finite| SparseOptions {
            non_finite,
            per_tensor,
            ..options(algorithm)
        };
        let mut sparse = SparseAllreduce::new(comm, specs(), with(NonFinite::Error)).unwrap();
        sparse.run(&gradients(comm, 0)).unwrap();
        let before = sparse.save().unwrap();
        let error = sparse.run(&bad(1)).unwrap_err();
        assert!(
            matches!(error, Error::NotFinite { count: 1, step: 1 }),
            "{algorithm}: {error}"
        );
        assert_eq!(
            sparse.save().unwrap(),
            before,
            "{algorithm}: an error has changed residuals"
        );
        sparse.run(&gradients(comm, 1)).unwrap();

        let mut sparse = SparseAllreduce::new(comm, specs(), with(NonFinite::Skip)).unwrap();
        let before = sparse.save().unwrap();
        let skipped = sparse.run(&bad(0)).unwrap();
        assert!(
            skipped.is_skipped && skipped.selected_global == 0,
            "{algorithm}"
        );
        assert_eq!(
            sparse.save().unwrap(),
            before,
            "{algorithm}: a skipped step has changed residuals"
        );

        let mut sparse = SparseAllreduce::new(comm, specs(), with(NonFinite::Count)).unwrap();
        let counted = sparse.run(&bad(0)).unwrap();
        assert!(
            !counted.is_skipped && counted.not_finite == 1,
            "{algorithm}"
        );
        assert!(counted.entries().1.iter().all(|v| v.is_finite()));
    }
}

/// Sums that are not finite are not applied, and every rank keeps its own part of them.
fn sums_beyond_the_type(comm: &Communicator) {
    for algorithm in Algorithm::ALL {
        let non_finite = NonFinite::Count;
        let options = SparseOptions {
            non_finite,
            ..options(algorithm)
        };
        let mut sparse = SparseAllreduce::new(comm, specs(), options).unwrap();
        let buffers = gradients(comm, 0);
        buffers[2].write(77, &[f32::MAX]).unwrap();
        let result = sparse.run(&buffers).unwrap();
        assert!(result.not_finite > 0 && !result.is_skipped, "{algorithm}");
        let dense = dense_of(&result);
        let mut values = result.entries().1.iter().chain(&dense);
        assert!(values.all(|v| v.is_finite()), "{algorithm}");
        let residual = sparse.residual("tensor 2").unwrap().to_vec().unwrap();
        assert_eq!(residual[77], f32::MAX, "{algorithm}");
    }
}

fn saved_and_loaded(comm: &Communicator) {
    let new = || SparseAllreduce::new(comm, specs(), options(Algorithm::OkTopk)).unwrap();
    let mut first = new();
    first.run(&gradients(comm, 0)).unwrap();
    let saved = first.save().unwrap();
    let mut second = new();
    second.load(&saved).unwrap();
    assert_eq!((second.steps(), second.save().unwrap()), (1, saved.clone()));
    // Thresholds and regions are found anew in both.
    first.load(&saved).unwrap();
    let (a, b) = (
        first.run(&gradients(comm, 1)).unwrap(),
        second.run(&gradients(comm, 1)).unwrap(),
    );
    assert_eq!(digest(&a), digest(&b));
    let error = second.load(&saved[..saved.len() - 1]).unwrap_err();
    assert!(error.to_string().contains("ends early"), "{error}");
    let mut ranks = saved.clone();
    ranks[8] += 1;
    assert!(
        second
            .load(&ranks)
            .unwrap_err()
            .to_string()
            .contains("load_after_resize")
    );
    second.load_after_resize(&ranks).unwrap();
    second.scale_residuals(0.5).unwrap();
    let half = second.residual("tensor 2").unwrap().to_vec().unwrap();
    second.load(&saved).unwrap();
    let whole = second.residual("tensor 2").unwrap().to_vec().unwrap();
    assert!(half.iter().zip(&whole).all(|(h, w)| 2.0 * h == *w));
    second.reset().unwrap();
    assert!(
        second
            .residual("tensor 2")
            .unwrap()
            .to_vec()
            .unwrap()
            .iter()
            .all(|v| *v == 0.0)
    );
    assert!(second.residual("no such tensor").is_none());
}

/// Warm-up, average and rounded values.
fn other_options(comm: &Communicator) {
    let options = SparseOptions {
        warm_up_steps: 2,
        is_average: true,
        values: ValueFormat::Bf16,
        ..options(Algorithm::OkTopk)
    };
    let mut sparse = SparseAllreduce::new(comm, specs(), options).unwrap();
    for step in 0..3 {
        let result = sparse.run(&gradients(comm, step)).unwrap();
        assert_eq!(result.dense().is_some(), step < 2);
        let (at, value) = match result.dense() {
            Some(dense) => (40u64, dense.to_vec().unwrap()[40]),
            None => (result.entries().0[0], result.entries().1[0]),
        };
        if step < 2 {
            let sum: f32 = (0..comm.ranks())
                .map(|r| gradient(r, step, 2, at - 37))
                .sum();
            assert_eq!(value, sum / comm.ranks() as f32);
        }
    }
}

#[test]
fn child_entry() {
    let Ok(role) = std::env::var("LINERATE_TEST_ROLE") else {
        return;
    };
    let comm = Communicator::from_env().unwrap();
    match role.as_str() {
        "algorithms" => println!("RESULT {:x}", every_algorithm(&comm)),
        "rules" => {
            policies(&comm);
            sums_beyond_the_type(&comm);
            saved_and_loaded(&comm);
            other_options(&comm);
            println!("RESULT good");
        }
        "differing" => {
            let k = 10 + u64::from(comm.rank());
            let options = SparseOptions {
                amount: Amount::Count(k),
                ..options(Algorithm::OkTopk)
            };
            let error = SparseAllreduce::new(&comm, specs(), options).err().unwrap();
            assert!(error.to_string().contains("other options"), "{error}");
            println!("RESULT good");
        }
        other => panic!("unknown role {other}"),
    }
}

/// Starts every rank in a role; what each printed after `RESULT `.
fn run_ranks(role: &str, transport: &str, ranks: u32) -> Vec<String> {
    let results = results(&spawn(role, ranks, &[("LINERATE_TRANSPORT", transport)]));
    assert!(
        results.iter().all(|result| !result.is_empty()),
        "{results:?}"
    );
    results
}

#[test]
fn every_algorithm_conserves_over_shared_memory_and_tcp_with_the_same_bits() {
    for ranks in [1, 3, 4] {
        let shm = run_ranks("algorithms", "shm", ranks);
        assert!(shm.iter().all(|digest| *digest == shm[0]), "{shm:?}");
        assert_eq!(run_ranks("algorithms", "tcp", ranks), shm, "{ranks} ranks");
    }
}

#[test]
fn policies_and_checkpoints_work_between_processes() {
    for (transport, ranks) in [("shm", 3), ("tcp", 2)] {
        let results = run_ranks("rules", transport, ranks);
        assert!(results.iter().all(|result| result == "good"));
    }
}

#[test]
fn ranks_that_declare_different_options_are_told() {
    assert_eq!(run_ranks("differing", "shm", 2), ["good", "good"]);
}

/// One step of all simulated ranks; results by rank, and the virtual seconds.
fn simulated_step(
    simulation: &mut Simulation,
    ranks: &mut [SparseAllreduce],
    gradients: &dyn Fn(&Communicator) -> Vec<Buffer<f32>>,
) -> (Vec<SparseResult>, f64) {
    let begin = simulation.now();
    let comms = simulation.communicators().to_vec();
    let buffers: Vec<Vec<Buffer<f32>>> = comms.iter().map(gradients).collect();
    let results = simulation.run_sparse(ranks, &buffers).unwrap();
    let seconds = simulation.now().since(begin).as_secs_f64();
    (results, seconds)
}

#[test]
fn simulated_ranks_conserve_under_any_order_of_delivery() {
    for algorithm in Algorithm::ALL {
        let mut digests = Vec::new();
        for seed in 0..4 {
            let sim = SimOptions {
                reorder: seed > 0,
                network: Link {
                    jitter_ns: 30_000 * seed,
                    ..Link::ETHERNET_100G
                },
                ..SimOptions::new(7, seed)
            };
            let mut simulation = Simulation::new(sim, Config::default()).unwrap();
            let comms = simulation.communicators().to_vec();
            let new =
                |c: &Communicator| SparseAllreduce::new(c, specs(), options(algorithm)).unwrap();
            let mut ranks: Vec<SparseAllreduce> = comms.iter().map(new).collect();
            let applied = Applied::new();
            let mut digest_all = 0;
            for step in 0..STEPS {
                let (results, _) =
                    simulated_step(&mut simulation, &mut ranks, &|c| gradients(c, step));
                assert!(
                    results.iter().all(|r| digest(r) == digest(&results[0])),
                    "{algorithm}"
                );
                results[0].add_to(&applied.0, 1.0).unwrap();
                digest_all = mix(digest_all ^ digest(&results[0]));
            }
            let mut kept: Vec<Vec<f32>> = COUNTS.iter().map(|c| vec![0.0; *c as usize]).collect();
            for rank in &ranks {
                for (tensor, kept) in kept.iter_mut().enumerate() {
                    let residual = rank
                        .residual(&format!("tensor {tensor}"))
                        .unwrap()
                        .to_vec()
                        .unwrap();
                    kept.iter_mut().zip(residual).for_each(|(k, r)| *k += r);
                }
            }
            applied.check(7, STEPS, &kept, algorithm.name());
            digests.push(digest_all);
        }
        assert!(
            digests.iter().all(|d| *d == digests[0]),
            "{algorithm}: {digests:?}"
        );
    }
}

#[test]
fn auto_looks_at_the_fill_in_again_after_dense_steps() {
    // Links on which independent picks are for dense, and the same picks on all ranks for TopkDSA:
    // that they are the same is only seen by who picks.
    const RANKS: u32 = 8;
    let mut config = Config::default();
    config.tcp.pace_bits_per_second = Some(2_000_000_000);
    let mut simulation = Simulation::new(SimOptions::new(RANKS, 1), config).unwrap();
    let comms = simulation.communicators().to_vec();
    let tensor = TensorSpec {
        name: "same".into(),
        count: 4000,
        dtype: DataType::F32,
    };
    let options = SparseOptions {
        algorithm: Algorithm::Auto,
        amount: Amount::Count(200),
        ..SparseOptions::default()
    };
    let new =
        |c: &Communicator| SparseAllreduce::new(c, vec![tensor.clone()], options.clone()).unwrap();
    let mut ranks: Vec<SparseAllreduce> = comms.iter().map(new).collect();
    let values: Vec<f32> = (0..4000)
        .map(|i| if i % 20 == 7 { 1.0 } else { 0.0 })
        .collect();
    let mut ran = Vec::new();
    for _ in 0..200 {
        let gradients = |c: &Communicator| {
            let buffer = c.alloc(4000).unwrap();
            buffer.write(0, &values).unwrap();
            vec![buffer]
        };
        let (results, _) = simulated_step(&mut simulation, &mut ranks, &gradients);
        assert!(results.iter().all(|r| r.algorithm == results[0].algorithm));
        ran.push(results[0].algorithm);
    }
    let probed = ran.iter().position(|a| *a != Algorithm::Dense).unwrap();
    assert!(probed >= 64, "{ran:?}");
    let chosen = Algorithm::TopkDsa(DsaVariant::Split);
    assert!(ran[probed + 1..].iter().all(|a| *a == chosen), "{ran:?}");
    assert!(probed < 150, "{ran:?}");
}

/// How gradients of the test of time are spread.
fn extreme(shape: usize, rank: u32, ranks: u32, index: u64, count: u64) -> f32 {
    let hash = mix(mix(u64::from(rank) << 32 | index));
    let small = (hash % 1000) as f32 / 1000.0;
    let is_first = index < count / u64::from(ranks);
    match shape {
        // Anywhere.
        0 => small,
        // All ranks pick in the first region.
        1 if is_first => 10.0 + small,
        // Picks everywhere, the largest in one place, so that one rank has the whole result.
        2 if is_first && index.is_multiple_of(2) => 100.0 + small,
        2 => small,
        // One rank has everything.
        3 if rank == 0 => 10.0 + small,
        _ => 0.0,
    }
}

#[test]
fn without_latency_a_step_takes_no_longer_than_six_k_words() {
    let (ranks, count, k) = (8u32, 200_000u64, 20_000u64);
    let rate = 1_000_000_000u64;
    for shape in 0..4 {
        let sim = SimOptions {
            network: Link {
                latency_ns: 0,
                bytes_per_second: rate,
                per_message_ns: 0,
                jitter_ns: 0,
            },
            ..SimOptions::new(ranks, 1)
        };
        let mut simulation = Simulation::new(sim, Config::default()).unwrap();
        let comms = simulation.communicators().to_vec();
        let spec = TensorSpec {
            name: "all".into(),
            count,
            dtype: DataType::F32,
        };
        let options = SparseOptions {
            amount: Amount::Count(k),
            ..SparseOptions::default()
        };
        let new = |c: &Communicator| {
            SparseAllreduce::new(c, vec![spec.clone()], options.clone()).unwrap()
        };
        let mut sparse: Vec<SparseAllreduce> = comms.iter().map(new).collect();
        let gradients = |c: &Communicator| {
            let values: Vec<f32> = (0..count)
                .map(|i| extreme(shape, c.rank(), ranks, i, count))
                .collect();
            let buffer = c.alloc(values.len()).unwrap();
            buffer.write(0, &values).unwrap();
            vec![buffer]
        };
        for step in 0..2 {
            let (results, seconds) = simulated_step(&mut simulation, &mut sparse, &gradients);
            let bound = 6.0 * k as f64 * 4.0 / rate as f64;
            let words: Vec<u64> = results
                .iter()
                .map(|r| r.counters.total().data_words_received)
                .collect();
            assert!(
                seconds <= 1.05 * bound,
                "shape {shape}, step {step}: {:.3} of the bound, words {words:?}",
                seconds / bound
            );
        }
    }
}
