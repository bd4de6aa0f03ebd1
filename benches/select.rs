//! Selection beside a plain read and a plain addition of the same bytes, in turn in one run, one
//! thread.
//!
//! `collect` fetches everything from a magnitude on that 1 % reach, `select_top` finds exactly k
//! (with the sample, and with the last step's threshold as a hint), `accumulate` adds a gradient
//! and selects. Throughput counts the bytes of one vector. `LINERATE_BENCH_COUNT` is the number of
//! elements (default 2^25, 128 MiB: no cache holds it). Figures: `benches/README.md`.
#![allow(unsafe_code, missing_docs)]

use linerate::DataType;
use linerate::schedule::{Combine, Finish};
use linerate::transport::Region;
use linerate::unstable::kernel::select::{
    Picks, Source, accumulate, collect, magnitude, select_top,
};
use linerate::unstable::kernel::{reduce, scale};
use linerate::unstable::prng::Prng;
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
        // SAFETY: the region lives here, and nobody else uses it.
        unsafe { view.write(4 * start, bytemuck::cast_slice(&part[..length])) };
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

/// Elements: from the environment, few in `cargo test --benches`, which runs every bench once to
/// see that it still works.
fn count() -> usize {
    let is_test = std::env::args().any(|a| a == "--test");
    match std::env::var("LINERATE_BENCH_COUNT") {
        Ok(text) => text.parse().expect("a number of elements"),
        Err(_) if is_test => 1 << 16,
        Err(_) => 1 << 25,
    }
}

/// One pass, and the number in the list of the one that it is compared with.
type Pass<'a> = (&'a str, usize, Box<dyn Fn(&mut Picks) + 'a>);

/// All passes in turn, so that what else the machine does meets all of them; the best time of each.
fn race(passes: &[Pass]) {
    let mut best = vec![f64::INFINITY; passes.len()];
    let mut picks = Picks::default();
    for _ in 0..ROUNDS {
        for ((_, _, run), best) in passes.iter().zip(&mut best) {
            let started = Instant::now();
            run(&mut picks);
            *best = best.min(started.elapsed().as_secs_f64());
        }
    }
    for ((name, beside, _), seconds) in passes.iter().zip(&best) {
        let rate = 4.0 * count() as f64 / seconds / 1e9;
        println!(
            "{name:<28} {:>8.2} ms {rate:>8.2} GB/s {:>6.2}",
            seconds * 1e3,
            best[*beside] / seconds
        );
    }
    println!("picks of the last: {}", picks.len());
}

/// What was found before goes, its memory stays, as from step to step.
fn clear(picks: &mut Picks) {
    picks.indices.clear();
    picks.values.clear();
}

fn main() {
    let (a, b, c) = (filled(count(), 1), filled(count(), 2), filled(count(), 2));
    let (residual, gradient, opposite) = (a.view(), b.view(), c.view());
    scale(DataType::F32, -1.0, gradient, opposite);
    let mut copy = vec![0f32; count()];
    // SAFETY: its region lives to the end, and nobody writes it now.
    unsafe { residual.read(0, bytemuck::cast_slice_mut(&mut copy)) };
    let (one, both) = ([Source::of(residual)], [Source::sum(residual, gradient)]);
    let k = count() / 100;
    let (least, _) = select_top(&one, k, None, &mut Picks::default());
    let hint = Some(magnitude(f32::from_bits(least) * 0.95));
    println!(
        "{} elements, k {k}; last: the speed relative to the pass it is compared with",
        count()
    );
    let top = |sources: &[Source], hint, picks: &mut Picks| {
        black_box(select_top(sources, k, hint, picks));
    };
    race(&[
        (
            "read-only sum",
            0,
            Box::new(|_| {
                black_box(read_sum(black_box(&copy)));
            }),
        ),
        (
            "collect",
            0,
            Box::new(|picks| {
                clear(picks);
                black_box(collect(&one, least, usize::MAX, picks));
            }),
        ),
        ("select_top", 0, Box::new(|picks| top(&one, None, picks))),
        (
            "select_top with a hint",
            0,
            Box::new(|picks| top(&one, hint, picks)),
        ),
        (
            "select_top of sums",
            0,
            Box::new(|picks| top(&both, None, picks)),
        ),
    ]);
    // There and back, so that 1 % reach the same magnitude every time.
    let (views, to) = ([residual, gradient], [residual]);
    let back = [Source::sum(residual, opposite)];
    race(&[
        (
            "a += b",
            0,
            Box::new(|_| {
                reduce(DataType::F32, Combine::Sum, Finish::None, &views, &to);
            }),
        ),
        (
            "accumulate",
            0,
            Box::new(|picks| {
                clear(picks);
                black_box(accumulate(&back, least, usize::MAX, picks));
            }),
        ),
    ]);
}
