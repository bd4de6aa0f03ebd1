//! What a decision of a parameter server costs: a push of the fastest of 64 workers, which asks how
//! many further pushes make it wait least.
#![allow(missing_docs)]

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use linerate::options::{Reading, Release, Staleness};
use linerate::unstable::staleness::Controller;
use std::hint::black_box;
use std::time::Duration;

const WORKERS: u32 = 64;

fn decisions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("staleness");
    for r_max in [0, 12, 48, 192] {
        let staleness = Staleness::Dssp {
            s_lower: 0,
            r_max,
            release: Release::Paper,
            reading: Reading::Wait,
        };
        let mut controller = Controller::new(staleness, WORKERS).expect("in range");
        (0..WORKERS).for_each(|worker| drop(controller.attach(worker)));
        let mut push = |worker: u32, clock: u64, time: u64| {
            let time = Duration::from_micros(time);
            black_box(controller.push(worker, clock, time).expect("the next one"))
        };
        // A round takes a second. Every push but the last of a round is beyond the bound, and finds
        // that it waits least now, after a look at all others.
        let mut clock = 0;
        group.bench_function(BenchmarkId::new("push of 64 workers", r_max), |bencher| {
            bencher.iter_custom(|rounds| {
                let begun = std::time::Instant::now();
                for _ in 0..rounds.div_ceil(u64::from(WORKERS)) {
                    clock += 1;
                    for worker in 0..WORKERS {
                        push(worker, clock, clock * 1_000_000 + u64::from(worker));
                    }
                }
                begun.elapsed()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, decisions);
criterion_main!(benches);
