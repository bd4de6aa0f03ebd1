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

/// Elements: from the environment, few in `cargo test --benches`, which runs every bench once to see that it still works.
fn count() -> usize {
    let is_test = std::env::args().any(|a| a == "--test");
    match std::env::var("LINERATE_BENCH_COUNT") {
        Ok(text) => text.parse().expect("a number of elements"),
        Err(_) if is_test => 1 << 16,
        Err(_) => 1 << 25,
    }
}

fn say(name: &str, seconds: f64, beside: f64) {
    let bytes = 4.0 * count() as f64;
    let rate = bytes / seconds / 1e9;
    println!(
        "{name:<28} {:>8.2} ms {rate:>8.2} GB/s {:>6.2}",
        seconds * 1e3,
        beside / seconds
    );
}

/// `collect`, without what it found before but in its memory, as from step to step.
fn collect_all(sources: &[Source], floor: u32, picks: &mut Picks) {
    picks.indices.clear();
    picks.values.clear();
    black_box(collect(sources, floor, usize::MAX, picks));
}

fn main() {
    let (a, b) = (filled(count(), 1), filled(count(), 2));
    let (residual, gradient) = (a.view(), b.view());
    let mut copy = vec![0f32; count()];
    residual.read(0, bytemuck::cast_slice_mut(&mut copy));
    let (one, both) = ([Source::of(residual)], [Source::sum(residual, gradient)]);
    let (k, mut picks) = (count() / 100, Picks::default());
    let (least, _) = select_top(&one, k, None, &mut picks);
    let hint = Some(magnitude(f32::from_bits(least) * 0.95));
    println!(
        "{} elements, k {k}; last: the speed relative to the pass it is compared with",
        count()
    );
    let read = best(|| {
        black_box(read_sum(black_box(&copy)));
    });
    say("read-only sum", read, read);
    say(
        "collect",
        best(|| collect_all(&one, least, &mut picks)),
        read,
    );
    let mut top = |sources: &[Source], hint| {
        best(|| {
            black_box(select_top(sources, k, hint, &mut picks));
        })
    };
    say("select_top", top(&one, None), read);
    say("select_top with a hint", top(&one, hint), read);
    say("select_top of sums", top(&both, None), read);
    let (views, to) = ([residual, gradient], [residual]);
    let add = best(|| reduce(DataType::F32, Combine::Sum, Finish::None, &views, &to));
    say("a += b", add, add);
    // After ten additions a magnitude that about 1 % reach; fewer after the first.
    let floor = magnitude(f32::from_bits(least) * 10.0);
    let accumulated = best(|| {
        picks.indices.clear();
        picks.values.clear();
        black_box(accumulate(&both, floor, usize::MAX, &mut picks));
    });
    say("accumulate", accumulated, add);
    println!("picks of the last: {}", picks.len());
}
