//! Building schedules, and preparing them for the engine: what the first call of a kind costs, and
//! no later one.
#![allow(missing_docs)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use linerate::Collective;
use linerate::collective::{Request, algorithms};
use linerate::unstable::engine::Prepared;
use std::hint::black_box;
use std::time::Duration;

const RANKS: [u32; 3] = [2, 8, 64];
/// Ranks of a host, so that there is something for the hierarchical ones to do.
const RANKS_PER_HOST: u32 = 8;

fn request(collective: Collective, ranks: u32) -> Request {
    Request {
        collective,
        rank: ranks / 2,
        ranks,
        root: 0,
        in_place: true,
        premultiply: false,
        hosts: (0..ranks).map(|rank| rank / RANKS_PER_HOST).collect(),
        maps_host: false,
        is_mapped: false,
    }
}

/// Throughput counts steps of one rank.
fn all(criterion: &mut Criterion) {
    for collective in Collective::ALL {
        for algorithm in algorithms(collective) {
            let mut group = criterion.benchmark_group(format!("{collective} {}", algorithm.name));
            for ranks in RANKS {
                let request = request(collective, ranks);
                let schedule = (algorithm.build)(&request);
                group.throughput(Throughput::Elements(schedule.steps.len() as u64));
                group.bench_function(BenchmarkId::new("build", ranks), |bencher| {
                    bencher.iter(|| (algorithm.build)(black_box(&request)));
                });
                group.bench_function(BenchmarkId::new("prepare", ranks), |bencher| {
                    bencher.iter_with_setup(
                        || schedule.clone(),
                        |schedule| Prepared::new(black_box(schedule), 0, false),
                    );
                });
            }
        }
    }
}

criterion_group! {
    name = schedule;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(50))
        .measurement_time(Duration::from_millis(200));
    targets = all
}
criterion_main!(schedule);
