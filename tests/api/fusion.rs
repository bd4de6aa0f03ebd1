//! `Fusion` over real communicators: sums, deadlines, reuse over steps, and errors that reach every
//! rank.

use crate::threads::on_threads;
use linerate::reports::StepReport;
use linerate::{
    Buffer, Communicator, Config, DataType, Error, Fusion, FusionOptions, ReduceOp, TensorSpec,
};
use std::time::Duration;

/// Runs `body` on every rank of a job of its own.
fn on_ranks<T: Send>(ranks: u32, body: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    let config = Config {
        timeout: Duration::from_secs(20),
        ..Config::default()
    };
    on_threads(ranks, &config, body)
}

fn specs(counts: &[u64]) -> Vec<TensorSpec> {
    let spec = |(index, &count): (usize, &u64)| TensorSpec {
        name: format!("layer{index}"),
        count,
        dtype: DataType::F32,
    };
    counts.iter().enumerate().map(spec).collect()
}

/// A gradient whose values differ per rank, tensor, element and step; integers, so that sums are
/// exact.
fn gradient(comm: &Communicator, tensor: usize, count: u64, step: usize) -> Buffer<f32> {
    let buffer = comm.alloc((count as usize).max(1)).unwrap();
    let buffer = buffer.range(..count as usize);
    let values = values(count, comm.rank(), tensor, step);
    buffer.write(0, &values).unwrap();
    buffer
}

fn values(count: u64, rank: u32, tensor: usize, step: usize) -> Vec<f32> {
    (0..count)
        .map(|i| (i % 97) as f32 + (rank as usize * 1000 + tensor * 10 + step) as f32)
        .collect()
}

fn sums(count: u64, ranks: u32, tensor: usize, step: usize) -> Vec<f32> {
    let mut sums = vec![0.0; count as usize];
    for rank in 0..ranks {
        for (sum, value) in sums.iter_mut().zip(values(count, rank, tensor, step)) {
            *sum += value;
        }
    }
    sums
}

fn gradients(comm: &Communicator, counts: &[u64], step: usize) -> Vec<Buffer<f32>> {
    let of_tensor = |(tensor, &count): (usize, &u64)| gradient(comm, tensor, count, step);
    counts.iter().enumerate().map(of_tensor).collect()
}

fn check_sums(comm: &Communicator, tensors: &[Buffer<f32>], counts: &[u64], step: usize) {
    for (tensor, &count) in counts.iter().enumerate() {
        let expected = sums(count, comm.ranks(), tensor, step);
        assert!(
            tensors[tensor].to_vec().unwrap() == expected,
            "tensor {tensor} of step {step}"
        );
    }
}

/// Announces all tensors in this rank's own order, ends, waits, and compares every element.
fn run_step(comm: &Communicator, fusion: &Fusion, counts: &[u64], step: usize) -> StepReport {
    let tensors = gradients(comm, counts, step);
    for index in 0..counts.len() {
        let tensor = (index * 7 + comm.rank() as usize * 3 + step) % counts.len();
        fusion.announce(tensor, &tensors[tensor]).unwrap();
    }
    fusion.end_of_backward().unwrap();
    let report = fusion.wait().unwrap();
    check_sums(comm, &tensors, counts, step);
    report
}

#[test]
fn ranks_that_announce_in_different_orders_get_the_same_sums_step_after_step() {
    // 11 tensors (not a multiple of 7 or 3), among them empty, one element, and above bytes_max.
    let counts = [5, 0, 1000, 1, 64, 3000, 0, 17, 999, 4096, 2];
    for ranks in [1, 2, 3] {
        let plans = on_ranks(ranks, |comm| {
            let options = FusionOptions {
                bytes_max: 8000,
                buffers_count: 2,
                ..FusionOptions::default()
            };
            let fusion = Fusion::new(&comm, options, specs(&counts)).unwrap();
            let mut plans = Vec::new();
            for step in 0..5 {
                let report = run_step(&comm, &fusion, &counts, step);
                assert_eq!(report.step_index, step as u64);
                let bytes: u64 = report.flushes.iter().map(|f| f.bytes).sum();
                assert_eq!(bytes, 4 * counts.iter().sum::<u64>());
                assert!(
                    report
                        .flushes
                        .iter()
                        .all(|f| f.ready <= f.start && f.start <= f.end)
                );
                plans.push(
                    report
                        .flushes
                        .into_iter()
                        .map(|f| f.tensors)
                        .collect::<Vec<_>>(),
                );
            }
            plans
        });
        assert!(plans.iter().all(|plan| *plan == plans[0]));
    }
}

#[test]
fn the_average_divides_once() {
    on_ranks(2, |comm| {
        let options = FusionOptions {
            op: ReduceOp::Avg,
            ..FusionOptions::default()
        };
        let fusion = Fusion::new(&comm, options, specs(&[3, 1])).unwrap();
        let (a, b) = (comm.alloc(3).unwrap(), comm.alloc(1).unwrap());
        a.write(0, &[1.0f32 + comm.rank() as f32; 3]).unwrap();
        b.write(0, &[10.0f32]).unwrap();
        fusion.announce(1, &b).unwrap();
        fusion.announce(0, &a).unwrap();
        fusion.wait().unwrap();
        assert_eq!(a.to_vec().unwrap(), [1.5; 3]);
        assert_eq!(b.to_vec().unwrap(), [10.0]);
    });
}

/// Between arrivals, far longer than the ages: what is flushed sooner was not flushed by the next
/// arrival.
const NEXT_ARRIVAL: Duration = Duration::from_secs(1);

#[test]
fn a_ready_tensor_is_flushed_at_its_age_without_a_further_arrival() {
    let reports = on_ranks(2, |comm| {
        let fusion = Fusion::new(&comm, FusionOptions::default(), specs(&[8, 8])).unwrap();
        let tensors = [gradient(&comm, 0, 8, 0), gradient(&comm, 1, 8, 0)];
        fusion.announce(0, &tensors[0]).unwrap();
        std::thread::sleep(NEXT_ARRIVAL);
        fusion.announce(1, &tensors[1]).unwrap();
        fusion.wait().unwrap()
    });
    for report in reports {
        assert_eq!(report.flushes.len(), 2);
        let waited = report.flushes[0].start.since(report.flushes[0].ready);
        let is_of_age = (Duration::from_millis(5)..NEXT_ARRIVAL).contains(&waited);
        assert!(is_of_age, "{waited:?}");
    }
}

#[test]
fn a_fixed_plan_waits_for_the_arrival_that_it_names() {
    let counts = [8, 8, 8];
    let reports = on_ranks(2, |comm| {
        let plan = [vec![0, 1], vec![2]];
        let options = FusionOptions::default();
        let fusion = Fusion::with_plan(&comm, options, specs(&counts), &plan).unwrap();
        let tensors: Vec<_> = (0..3).map(|t| gradient(&comm, t, 8, 0)).collect();
        fusion.announce(0, &tensors[0]).unwrap();
        std::thread::sleep(Duration::from_millis(30));
        fusion.announce(1, &tensors[1]).unwrap();
        fusion.announce(2, &tensors[2]).unwrap();
        let report = fusion.wait().unwrap();
        for (tensor, buffer) in tensors.iter().enumerate() {
            assert_eq!(buffer.to_vec().unwrap(), sums(8, 2, tensor, 0));
        }
        report
    });
    for report in reports {
        assert_eq!(report.rounds_count, 0);
        assert_eq!(report.flushes.len(), 2);
        assert!(report.flushes[0].start.since(report.begin) >= Duration::from_millis(30));
    }
}

#[test]
fn a_tensor_that_one_rank_never_announces_is_an_error_on_all_ranks_and_spares_the_communicator() {
    let texts = on_ranks(3, |comm| {
        let fusion = Fusion::new(&comm, FusionOptions::default(), specs(&[8, 8])).unwrap();
        let tensors = [gradient(&comm, 0, 8, 0), gradient(&comm, 1, 8, 0)];
        fusion.announce(0, &tensors[0]).unwrap();
        if comm.rank() != 2 {
            fusion.announce(1, &tensors[1]).unwrap();
        }
        let error = fusion.wait().unwrap_err();
        assert_eq!(fusion.announce(0, &tensors[0]), Err(error.clone()));
        drop(fusion);
        comm.barrier().unwrap();
        error.to_string()
    });
    for text in texts {
        assert!(
            text.contains("rank 2 never announced tensor 1 'layer1'"),
            "{text}"
        );
    }
}

#[test]
fn a_fusion_buffer_that_is_dropped_while_the_others_agree_fails_theirs() {
    on_ranks(2, |comm| {
        let fusion = Fusion::new(&comm, FusionOptions::default(), specs(&[8, 8])).unwrap();
        run_step(&comm, &fusion, &[8, 8], 0);
        let tensors = gradients(&comm, &[8, 8], 1);
        fusion.announce(0, &tensors[0]).unwrap();
        // Longer than the age: rank 1 is in a round of its own when it drops its part.
        if comm.rank() == 1 {
            fusion.announce(1, &tensors[1]).unwrap();
            std::thread::sleep(Duration::from_millis(100));
        } else {
            std::thread::sleep(Duration::from_millis(300));
            fusion.wait().unwrap_err();
        }
        drop(fusion);
        comm.barrier().unwrap();
    });
}

#[test]
fn ranks_that_declare_different_tensors_are_told_so() {
    let texts = on_ranks(2, |comm| {
        let counts = [8, 8 + u64::from(comm.rank())];
        let error = Fusion::new(&comm, FusionOptions::default(), specs(&counts)).unwrap_err();
        error.to_string()
    });
    assert!(
        texts.iter().all(|t| t.contains("rank 1 declares tensor 1")),
        "{texts:?}"
    );
    let texts = on_ranks(2, |comm| {
        let options = FusionOptions {
            bytes_max: 1000 + u64::from(comm.rank()),
            ..FusionOptions::default()
        };
        Fusion::new(&comm, options, specs(&[8]))
            .unwrap_err()
            .to_string()
    });
    assert!(
        texts.iter().all(|t| t.contains("different FusionOptions")),
        "{texts:?}"
    );
}

#[test]
fn a_caller_takes_over_from_the_thread_that_waits_for_a_late_rank() {
    let counts = [3000, 5, 1000, 0, 70_000];
    on_ranks(2, |comm| {
        let fusion = Fusion::new(&comm, FusionOptions::default(), specs(&counts)).unwrap();
        for step in 0..6 {
            let tensors = gradients(&comm, &counts, step);
            let is_late = step % 2 == comm.rank() as usize;
            if is_late {
                std::thread::sleep(Duration::from_millis(30));
            }
            for (tensor, buffer) in tensors.iter().enumerate() {
                fusion.announce(tensor, buffer).unwrap();
            }
            if !is_late {
                // The thread begins a round, in which it waits when the caller comes.
                fusion.end_of_backward().unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(fusion.wait().unwrap().step_index, step as u64);
            check_sums(&comm, &tensors, &counts, step);
        }
    });
}

#[test]
fn a_wrong_announcement_is_refused_and_leaves_the_step_as_it_was() {
    on_ranks(1, |comm| {
        let fusion = Fusion::new(&comm, FusionOptions::default(), specs(&[8])).unwrap();
        let (good, short) = (gradient(&comm, 0, 8, 0), gradient(&comm, 0, 7, 0));
        let text = fusion.announce(0, &short).unwrap_err().to_string();
        assert!(
            text.contains("32 bytes") && text.contains("28 bytes"),
            "{text}"
        );
        assert!(matches!(
            fusion.announce(1, &good),
            Err(Error::InvalidArgument(_))
        ));
        fusion.announce(0, &good).unwrap();
        let text = fusion.announce(0, &good).unwrap_err().to_string();
        assert!(text.contains("'layer0' announced twice"), "{text}");
        assert_eq!(fusion.wait().unwrap().flushes.len(), 1);
    });
}

#[test]
fn steps_without_tensors_and_dropping_at_once_work() {
    on_ranks(2, |comm| {
        let fusion = Fusion::new(&comm, FusionOptions::default(), Vec::new()).unwrap();
        assert!(fusion.wait().unwrap().flushes.is_empty());
        assert_eq!(fusion.wait().unwrap().step_index, 1);
        drop(fusion);
        drop(Fusion::new(&comm, FusionOptions::default(), specs(&[8])).unwrap());
    });
}
