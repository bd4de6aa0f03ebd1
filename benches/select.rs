//! Selection beside a plain read and a plain addition of the same bytes, in turn in one run, one thread.
//!
//! `collect` fetches everything from a magnitude on that 1 % reach, `select_top` finds exactly k (with the sample, and with the
//! last step's threshold as a hint), `accumulate` adds a gradient and selects. Throughput counts the bytes of one vector.
//! `LINERATE_BENCH_COUNT` is the number of elements (default 2^25, 128 MiB: no cache holds it). Figures: `benches/README.md`.
#![allow(missing_docs)]

use linerate::kernel::reduce;
use linerate::kernel::select::{Picks, Source, accumulate, collect, magnitude, select_top};
use linerate::memory::Region;
use linerate::prng::Prng;
use linerate::types::{Combine, DataType, Finish};
use std::hint::black_box;
use std::time::Instant;

/// Runs of each, of which the best counts.
const ROUNDS: usize = 5;

/// A vector of sums of four uniform numbers.
fn filled(count: usize, seed: u64) -> Region {
    let region = Region::private(4 * count).expect("memory for the benchmark");
    let mut prng = Prng::new(seed);
    let view = region.view();
    let mut part = vec![0f32; 1 << 16];
    for start in (0..count).step_by(part.len()) {
        let length = part.len().min(count - start);
        for value in &mut part[..length] {
            let bits = prng.next_u64();
            let sum: u64 = (0..4).map(|i| (bits >> (16 * i)) & 0xffff).sum();
            *value = sum as f32 / 65536.0 - 2.0;
        }
        view.write(4 * start, bytemuck::cast_slice(&part[..length]));
    }
    region
}

/// A read-only sum: every element of the view, eight sums at a time, compiled for the CPU at hand.
fn read_sum(values: &[f32]) -> f32 {
    let mut sums = [0f32; 64];
    for chunk in values.chunks_exact(64) {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum += value;
        }
    }
    sums.iter().sum()
}

fn best(mut run: impl FnMut()) -> f64 {
    (0..ROUNDS)
        .map(|_| {
            let started = Instant::now();
            run();
            started.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min)
}

fn main() {
    // `cargo test --benches` runs every bench once, to see that it still works.
    let is_test = std::env::args().any(|a| a == "--test");
    let count = match std::env::var("LINERATE_BENCH_COUNT") {
        Ok(text) => text.parse().expect("a number of elements"),
        Err(_) if is_test => 1 << 16,
        Err(_) => 1 << 25,
    };
    let (a, b) = (filled(count, 1), filled(count, 2));
    let (residual, gradient) = (a.view(), b.view());
    let mut copy = vec![0f32; count];
    residual.read(0, bytemuck::cast_slice_mut(&mut copy));
    let k = count / 100;
    let mut picks = Picks::default();
    let (least, _) = select_top(&[Source::of(residual)], k, None, &mut picks);
    let hint = magnitude(f32::from_bits(least) * 0.95);
    let rate = |name: &str, seconds: f64, beside: f64| {
        let bytes = 4.0 * count as f64;
        println!(
            "{name:<28} {:>8.2} ms {:>8.2} GB/s {:>6.2}",
            seconds * 1e3,
            bytes / seconds / 1e9,
            beside / seconds
        );
    };
    println!(
        "{count} elements, k {k}; the last column is the speed relative to the pass it is compared with"
    );
    let read = best(|| {
        black_box(read_sum(black_box(&copy)));
    });
    rate("read-only sum", read, read);
    let mut fresh = |floor| {
        picks.indices.clear();
        picks.values.clear();
        black_box(collect(
            &[Source::of(residual)],
            floor,
            usize::MAX,
            &mut picks,
        ));
    };
    rate("collect", best(|| fresh(least)), read);
    let mut top = Picks::default();
    let one = [Source::of(residual)];
    rate(
        "select_top",
        best(|| drop(black_box(select_top(&one, k, None, &mut top)))),
        read,
    );
    rate(
        "select_top with a hint",
        best(|| drop(black_box(select_top(&one, k, Some(hint), &mut top)))),
        read,
    );
    let both = [Source::sum(residual, gradient)];
    rate(
        "select_top of sums",
        best(|| drop(black_box(select_top(&both, k, Some(hint), &mut top)))),
        read,
    );
    let add = best(|| {
        reduce(
            DataType::F32,
            Combine::Sum,
            Finish::None,
            &[residual, gradient],
            &[residual],
        )
    });
    rate("a += b", add, add);
    let floor = magnitude(f32::from_bits(least) * 7.0);
    let mut added = |floor| {
        picks.indices.clear();
        picks.values.clear();
        black_box(accumulate(&both, floor, usize::MAX, &mut picks));
    };
    rate("accumulate", best(|| added(floor)), add);
}
