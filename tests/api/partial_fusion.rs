//! Partial allreduces of a model's tensors: every gradient once, whatever buffer it is in, and one
//! decision where that is asked for.

use crate::threads::on_threads;
use linerate::options::{Divisor, PartialFusionOptions};
use linerate::{
    Buffer, Communicator, Config, DataType, Element, PartialFusion, PartialOptions, Policy,
    TensorSpec,
};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

fn on_ranks<T: Send>(ranks: u32, body: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    let config = Config {
        timeout: Duration::from_secs(20),
        ..Config::default()
    };
    on_threads(ranks, &config, body)
}

fn spec(name: &str, count: u64, dtype: DataType) -> TensorSpec {
    TensorSpec {
        name: name.into(),
        count,
        dtype,
    }
}

/// Sums of what is submitted, with buffers of this many bytes.
fn solo(bytes_max: u64) -> PartialFusionOptions {
    PartialFusionOptions {
        partial: PartialOptions {
            policy: Policy::Solo,
            divisor: Divisor::One,
            ..PartialOptions::default()
        },
        bytes_max,
        ..PartialFusionOptions::default()
    }
}

fn buffers<T: Element>(comm: &Communicator, counts: &[u64]) -> Vec<Buffer<T>> {
    let alloc = |count: &u64| comm.alloc(*count as usize).unwrap();
    counts.iter().map(alloc).collect()
}

const COUNTS: [u64; 5] = [3, 0, 700, 5, 2];
const STEPS: u32 = 12;

/// What a rank has applied to every tensor in the end, each element of which must be the same.
fn train(comm: &Communicator, options: PartialFusionOptions) -> Vec<u32> {
    let spec = |(i, &count): (usize, &u64)| spec(&format!("t{i}"), count, DataType::U32);
    let tensors = COUNTS.iter().enumerate().map(spec).collect();
    let fusion = PartialFusion::new(comm, tensors, options).unwrap();
    let (gradients, updates) = (buffers(comm, &COUNTS), buffers::<u32>(comm, &COUNTS));
    let groups: Vec<Vec<usize>> = fusion.buffers().map(<[usize]>::to_vec).collect();
    let mut applied: Vec<Vec<u32>> = COUNTS.iter().map(|&n| vec![0; n as usize]).collect();
    let mut apply = |tensor: usize| {
        let update = updates[tensor].to_vec().unwrap();
        for (sum, value) in applied[tensor].iter_mut().zip(update) {
            *sum += value;
        }
    };
    for step in 0..STEPS {
        if (step + comm.rank()).is_multiple_of(4) {
            std::thread::sleep(Duration::from_millis(3));
        }
        // In another order on every rank and in every step.
        for i in 0..COUNTS.len() {
            let tensor = (i * 3 + (step + comm.rank()) as usize) % COUNTS.len();
            let value = (step + 1) * (comm.rank() + 1) * (tensor as u32 + 1);
            gradients[tensor].as_mut_slice().unwrap().fill(value);
            fusion.submit(tensor, &gradients[tensor]).unwrap();
        }
        // All have been copied.
        for gradient in &gradients {
            gradient.as_mut_slice().unwrap().fill(u32::MAX);
        }
        let reports = fusion.next(&updates).unwrap();
        assert_eq!(reports.len(), groups.len());
        for (report, tensors) in reports.iter().zip(&groups) {
            assert_eq!(report.as_ref().unwrap().round, u64::from(step));
            tensors.iter().for_each(|&tensor| apply(tensor));
        }
    }
    let finish = |buffer: usize, _| groups[buffer].iter().for_each(|&tensor| apply(tensor));
    fusion.finish(&updates, finish).unwrap();
    let mut values = Vec::new();
    for sums in applied.iter().filter(|sums| !sums.is_empty()) {
        assert!(sums.iter().all(|sum| sum == &sums[0]), "{sums:?}");
        values.push(sums[0]);
    }
    values
}

#[test]
fn every_gradient_is_applied_once_whatever_buffer_it_is_in() {
    let steps: u32 = (1..=STEPS).sum();
    let expected = [1, 3, 4, 5].map(|tensor| steps * (1 + 2 + 3) * tensor);
    let atomic = PartialFusionOptions {
        step_atomic: true,
        ..solo(1)
    };
    for options in [solo(1), solo(24), solo(1 << 20), atomic] {
        let all = on_ranks(3, |comm| train(&comm, options.clone()));
        assert!(
            all.iter().all(|values| values == &expected),
            "{options:?} {all:?}"
        );
    }
}

/// Waits until the other rank has come so far.
fn wait_for(turn: &AtomicU32, value: u32) {
    let began = Instant::now();
    while turn.load(Ordering::Acquire) < value {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "turn {value} does not come"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Rank 1 submits its first tensor, and the second when rank 0 has its results.
fn half_a_step(options: PartialFusionOptions) -> Vec<Vec<(bool, f32)>> {
    let turn = AtomicU32::new(0);
    on_ranks(2, |comm| {
        let tensors = vec![spec("a", 2, DataType::F32), spec("b", 2, DataType::F32)];
        let fusion = PartialFusion::new(&comm, tensors, options.clone()).unwrap();
        let (gradients, updates) = (buffers(&comm, &[2, 2]), buffers(&comm, &[2, 2]));
        for gradient in &gradients {
            gradient.write(0, &[comm.rank() as f32 + 1.0; 2]).unwrap();
        }
        if comm.rank() == 0 {
            wait_for(&turn, 1);
            fusion.submit(0, &gradients[0]).unwrap();
        } else {
            fusion.submit(0, &gradients[0]).unwrap();
            turn.store(1, Ordering::Release);
            wait_for(&turn, 2);
        }
        fusion.submit(1, &gradients[1]).unwrap();
        let reports = fusion.next(&updates).unwrap();
        if comm.rank() == 0 {
            turn.store(2, Ordering::Release);
        }
        let report = |i: usize| reports[i.min(reports.len() - 1)].as_ref().unwrap();
        let seen = (0..2).map(|i| {
            let second_is_active = report(i).active.iter().any(|rank| rank == 1);
            (second_is_active, updates[i].to_vec().unwrap()[1])
        });
        let seen = seen.collect();
        fusion.finish(&updates, |_, _| ()).unwrap();
        seen
    })
}

#[test]
fn each_buffer_has_rounds_of_its_own() {
    let seen = half_a_step(solo(8));
    assert_eq!(seen[0], seen[1]);
    assert!(seen[0][0].0, "rank 1 has submitted the first: {seen:?}");
    assert_eq!(seen[0][1], (false, 1.0), "and not the second: {seen:?}");
}

#[test]
fn with_one_decision_for_a_step_half_of_it_is_in_no_round() {
    let atomic = PartialFusionOptions {
        step_atomic: true,
        ..solo(8)
    };
    let seen = half_a_step(atomic);
    assert_eq!(seen[0], [(false, 1.0), (false, 1.0)]);
    assert_eq!(seen[0], seen[1]);
}

#[test]
fn every_buffer_goes_on_without_a_rank_that_leaves() {
    let mut options = solo(8);
    options.partial.policy = Policy::Full;
    options.partial.survive = true;
    on_ranks(3, |comm| {
        let tensors: Vec<TensorSpec> = (0..4)
            .map(|i| spec(&format!("t{i}"), 2, DataType::U32))
            .collect();
        let fusion = PartialFusion::new(&comm, tensors, options.clone()).unwrap();
        let (gradients, updates) = (buffers(&comm, &[2; 4]), buffers::<u32>(&comm, &[2; 4]));
        let steps = if comm.rank() == 2 { 5 } else { 12 };
        for step in 0..steps {
            for (tensor, gradient) in gradients.iter().enumerate() {
                let value = (256 << (8 * comm.rank())) + step;
                gradient.write(0, &[value; 2]).unwrap();
                fusion.submit(tensor, gradient).unwrap();
            }
            let reports = fusion.next(&updates).unwrap();
            let (live, ranks) = if step < 5 {
                (3, 0x01010100)
            } else {
                (2, 0x010100)
            };
            for (report, update) in reports.iter().zip(&updates) {
                let report = report.as_ref().unwrap();
                assert_eq!(report.included.count(), live, "step {step}: {report:?}");
                assert_eq!(update.to_vec().unwrap(), [ranks + live * step; 2]);
            }
        }
        if comm.rank() != 2 {
            fusion.finish(&updates, |_, _| ()).unwrap();
        }
    });
}

#[test]
fn what_cannot_be_is_told() {
    on_ranks(2, |comm| {
        let tensors = || vec![spec("a", 2, DataType::F32), spec("b", 3, DataType::F32)];
        let fusion = PartialFusion::new(&comm, tensors(), solo(8)).unwrap();
        let all = buffers::<f32>(&comm, &[2, 3]);
        let text = |result: linerate::Result<()>| result.unwrap_err().to_string();
        assert!(text(fusion.submit(2, &all[0])).contains("2 are declared"));
        assert!(text(fusion.submit(0, &all[1])).contains("tensor 0 'a' has 2 elements"));
        assert!(text(fusion.next(&all[..1]).map(drop)).contains("1 updates for 2 tensors"));
        fusion.submit(0, &all[0]).unwrap();
        let error = text(fusion.next(&all).map(drop));
        assert!(error.contains("step 0"), "{error}");
        assert!(error.contains("tensor 1 'b' not yet"), "{error}");
        let error = text(fusion.finish(&all, |_, _| ()));
        assert!(error.contains("tensor 1 'b' not yet"), "{error}");
        fusion.submit(1, &all[1]).unwrap();
        assert_eq!(fusion.next(&all).unwrap().len(), 2);
        fusion.finish(&all, |_, _| ()).unwrap();

        let fusion = PartialFusion::new(&comm, tensors(), solo(64)).unwrap();
        fusion.submit(0, &all[0]).unwrap();
        assert!(text(fusion.submit(0, &all[0])).contains("waits for tensor 1 'b'"));
        drop(fusion);

        let wrong = |tensors, options| {
            let made = PartialFusion::new(&comm, tensors, options);
            made.unwrap_err().to_string()
        };
        assert!(wrong(tensors(), solo(0)).contains("bytes_max is 0"));
        let other = spec("a", 2 + u64::from(comm.rank()), DataType::F32);
        let error = wrong(vec![other], solo(8));
        assert!(error.contains("rank 1 declares tensor 0"), "{error}");
        let error = wrong(tensors(), solo(8 + u64::from(comm.rank())));
        assert!(error.contains("PartialFusionOptions"), "{error}");
    });
}
