//! Reductions on one core, each beside the plain compiler loop over slices in the same run: `plain`
//! is compiled for the base x86-64 (16-byte vectors), `avx2 loop` and `avx512 loop` are the same
//! loop for 32- and 64-byte vectors.
//!
//! `rotating`: the buffers change with every call and together exceed the last-level cache, so
//! memory is measured. `warm`: the same 64 KiB buffers every time, so the arithmetic is. Throughput
//! counts the bytes of one view, not the traffic. `as the engine` is what an operation of two ranks
//! with buffers of this size runs: `kernel` or `streaming`.
//!
//! Last come the ratios that are claimed, of calls in turn in one run. Figures:
//! `benches/README.md`.
#![allow(unsafe_code, missing_docs)]

use bytemuck::Pod;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::{bf16, f16};
use linerate::schedule::{Combine, Finish};
use linerate::transport::{Region, View};
use linerate::unstable::comm::last_level_cache_bytes;
use linerate::unstable::kernel::{is_for_streaming, reduce, reduce_streaming};
use linerate::{DataType, Element};
use std::hint::black_box;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Bytes of all rotating buffers: four times the last-level cache of the machine in the README.
const POOL_BYTES: usize = 128 << 20;
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Equally long pieces of one allocation, handed out in turn.
struct Pool {
    region: Region,
    bytes: usize,
    views_count: usize,
    next: usize,
}

impl Pool {
    /// `sets` sets of `views` views of `bytes` bytes of small numbers of type `T`.
    fn new<T: Element>(bytes: usize, views: usize, sets: usize, small: impl Fn(u8) -> T) -> Pool {
        let views_count = views * sets;
        let region = Region::private(bytes * views_count).expect("memory for the benchmark");
        let view = region.view();
        for index in 0..view.len_bytes() / size_of::<T>() {
            // SAFETY: the region lives here, and nobody else uses it.
            unsafe { view.store(index, small(index as u8 % 8)) };
        }
        Pool {
            region,
            bytes,
            views_count,
            next: 0,
        }
    }

    fn take<const N: usize>(&mut self) -> [View; N] {
        let first = self.next;
        self.next = (first + N) % self.views_count;
        std::array::from_fn(|index| {
            self.region
                .view()
                .part((first + index) * self.bytes, self.bytes)
        })
    }
}

/// The elements as a slice, for the plain loops.
fn slice<'a, T: Pod>(view: View) -> &'a mut [T] {
    let count = view.len_bytes() / size_of::<T>();
    // SAFETY: the pool outlives the benchmark that took the view, and the views of one set are
    // disjoint.
    unsafe { std::slice::from_raw_parts_mut(view.as_ptr().cast(), count) }
}

fn sets(bytes: usize, views: usize, is_warm: bool) -> usize {
    match is_warm {
        true => 1,
        false => POOL_BYTES.div_ceil(bytes * views),
    }
}

/// The sum of two buffers into a third, by the code that the engine runs for it in an operation of
/// two ranks, each with an input and an output of this size.
fn sum_as_engine(dtype: DataType, [a, b, to]: [View; 3]) {
    static CACHE_BYTES: LazyLock<usize> =
        LazyLock::new(|| last_level_cache_bytes().unwrap_or(usize::MAX));
    let run = match is_for_streaming(4 * a.len_bytes(), *CACHE_BYTES) {
        true => reduce_streaming,
        false => reduce,
    };
    run(dtype, Combine::Sum, Finish::None, &[a, b], &[to]);
}

/// `plain`, compiled for the base of the architecture.
fn plain_loop<T: Element>(a: View, b: View, to: View, plain: impl Fn(T, T) -> T) {
    let (a, b, to) = (slice::<T>(a), slice::<T>(b), slice::<T>(to));
    for ((a, b), to) in a.iter().zip(b.iter()).zip(to) {
        *to = plain(*a, *b);
    }
}

/// As [`plain_loop`], for wider vectors; inlined, so that it is compiled with the features of its
/// caller.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn wide_loop(a: &[f32], b: &[f32], to: &mut [f32]) {
    for ((a, b), to) in a.iter().zip(b).zip(to) {
        *to = a + b;
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2_loop(a: &[f32], b: &[f32], to: &mut [f32]) {
    wide_loop(a, b, to);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl")]
fn avx512_loop(a: &[f32], b: &[f32], to: &mut [f32]) {
    wide_loop(a, b, to);
}

/// The compiler's sum of f32 for vectors of 32 and of 64 bytes.
#[cfg(target_arch = "x86_64")]
fn native_sums(criterion: &mut Criterion, bytes: usize, is_warm: bool) {
    let placement = if is_warm { "warm" } else { "rotating" };
    let mut group = criterion.benchmark_group(format!("f32 sum 2->1 {placement}"));
    group.throughput(Throughput::Bytes(bytes as u64));
    let mut pool = Pool::new(bytes, 3, sets(bytes, 3, is_warm), f32::from);
    if is_x86_feature_detected!("avx2") {
        group.bench_function(BenchmarkId::new("avx2 loop", bytes), |bencher| {
            bencher.iter(|| {
                let [a, b, to] = black_box(pool.take()).map(slice::<f32>);
                // SAFETY: the CPU has AVX2.
                unsafe { avx2_loop(a, b, to) }
            });
        });
    }
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl") {
        group.bench_function(BenchmarkId::new("avx512 loop", bytes), |bencher| {
            bencher.iter(|| {
                let [a, b, to] = black_box(pool.take()).map(slice::<f32>);
                // SAFETY: the CPU has AVX-512 F and VL.
                unsafe { avx512_loop(a, b, to) }
            });
        });
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn native_sums(_: &mut Criterion, _: usize, _: bool) {}

/// Two sources into a third buffer: the kernel and `plain`.
fn two_to_one<T: Element>(
    criterion: &mut Criterion,
    (name, combine): (&str, Combine),
    bytes: usize,
    is_warm: bool,
    (small, plain): (fn(u8) -> T, impl Fn(T, T) -> T),
) {
    let placement = if is_warm { "warm" } else { "rotating" };
    let mut group = criterion.benchmark_group(format!("{name} 2->1 {placement}"));
    group.throughput(Throughput::Bytes(bytes as u64));
    let mut pool = Pool::new(bytes, 3, sets(bytes, 3, is_warm), small);
    group.bench_function(BenchmarkId::new("kernel", bytes), |bencher| {
        bencher.iter(|| {
            let [a, b, to] = black_box(pool.take());
            reduce(T::DTYPE, combine, Finish::None, &[a, b], &[to]);
        });
    });
    group.bench_function(BenchmarkId::new("streaming", bytes), |bencher| {
        bencher.iter(|| {
            let [a, b, to] = black_box(pool.take());
            reduce_streaming(T::DTYPE, combine, Finish::None, &[a, b], &[to]);
        });
    });
    if combine == Combine::Sum {
        group.bench_function(BenchmarkId::new("as the engine", bytes), |bencher| {
            bencher.iter(|| sum_as_engine(T::DTYPE, black_box(pool.take())));
        });
    }
    group.bench_function(BenchmarkId::new("plain", bytes), |bencher| {
        bencher.iter(|| {
            let [a, b, to] = black_box(pool.take());
            plain_loop(a, b, to, &plain);
        });
    });
}

/// `N` sources that are also the destinations, as in the direct allreduce in place.
fn in_place<const N: usize>(criterion: &mut Criterion, bytes: usize, is_warm: bool) {
    let placement = if is_warm { "warm" } else { "rotating" };
    let mut group = criterion.benchmark_group(format!("f32 sum {N}->{N} {placement}"));
    group.throughput(Throughput::Bytes(bytes as u64));
    // Zeros: repeated sums in place must not grow into infinity.
    let mut pool = Pool::new(bytes, N, sets(bytes, N, is_warm), |_| 0f32);
    group.bench_function(BenchmarkId::new("kernel", bytes), |bencher| {
        bencher.iter(|| {
            let views: [View; N] = black_box(pool.take());
            reduce(DataType::F32, Combine::Sum, Finish::None, &views, &views);
        });
    });
    group.bench_function(BenchmarkId::new("plain", bytes), |bencher| {
        bencher.iter(|| {
            let mut slices = black_box(pool.take::<N>()).map(slice::<f32>);
            for index in 0..bytes / 4 {
                let sum = slices.iter().fold(0f32, |sum, slice| sum + slice[index]);
                slices.iter_mut().for_each(|slice| slice[index] = sum);
            }
        });
    });
}

fn all(criterion: &mut Criterion) {
    let sizes = [
        (64 * KIB, true),
        (64 * KIB, false),
        (MIB, false),
        (16 * MIB, false),
    ];
    for (bytes, is_warm) in sizes {
        two_to_one(
            criterion,
            ("f32 sum", Combine::Sum),
            bytes,
            is_warm,
            (f32::from, |a, b| a + b),
        );
        native_sums(criterion, bytes, is_warm);
        in_place::<2>(criterion, bytes, is_warm);
        in_place::<4>(criterion, bytes, is_warm);
    }
    for (bytes, is_warm) in [(64 * KIB, true), (MIB, false), (16 * MIB, false)] {
        two_to_one(
            criterion,
            ("f32 min", Combine::Min),
            bytes,
            is_warm,
            (
                f32::from,
                |a: f32, b: f32| if a.is_nan() || a < b { a } else { b },
            ),
        );
        two_to_one(
            criterion,
            ("i32 sum", Combine::Sum),
            bytes,
            is_warm,
            (i32::from, i32::wrapping_add),
        );
        two_to_one(
            criterion,
            ("bf16 sum", Combine::Sum),
            bytes,
            is_warm,
            (bf16::from, |a: bf16, b: bf16| a + b),
        );
        two_to_one(
            criterion,
            ("f16 sum", Combine::Sum),
            bytes,
            is_warm,
            (f16::from, |a: f16, b: f16| a + b),
        );
    }
}

/// How often each of two programs is timed, in turn.
const TURNS: usize = 41;

/// How many times as fast the first program is as the second: the ratio of the medians.
fn ratio(mut first: impl FnMut(), mut second: impl FnMut()) -> f64 {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..TURNS {
        let programs: [&mut dyn FnMut(); 2] = [&mut first, &mut second];
        for (program, times) in programs.into_iter().zip(&mut times) {
            let begin = Instant::now();
            program();
            times.push(begin.elapsed());
        }
    }
    let [first, second] = times.map(|mut times| {
        times.sort_unstable();
        times[TURNS / 2].as_secs_f64()
    });
    second / first
}

/// Calls of one turn on warm buffers: one takes microseconds, too short for a clock.
const WARM_CALLS: usize = 100;

fn claimed_ratios(_: &mut Criterion) {
    let floats = |bytes, is_warm| Pool::new(bytes, 3, sets(bytes, 3, is_warm), f32::from);
    println!("\nratios of bytes/s, sum 2->1, calls in turn, medians of {TURNS}:");
    for bytes in [MIB, 16 * MIB] {
        let (mut ours, mut theirs) = (floats(bytes, false), floats(bytes, false));
        let found = ratio(
            || sum_as_engine(DataType::F32, black_box(ours.take())),
            || {
                let [a, b, to] = black_box(theirs.take());
                plain_loop::<f32>(a, b, to, |a, b| a + b);
            },
        );
        println!("  f32 as the engine / plain loop, rotating, {bytes} bytes: {found:.2}");
    }
    for (bytes, is_warm) in [(64 * KIB, true), (16 * MIB, false)] {
        let calls = if is_warm { WARM_CALLS } else { 1 };
        let placement = if is_warm { "warm" } else { "rotating" };
        let bf16s = Pool::new(bytes, 3, sets(bytes, 3, is_warm), bf16::from);
        let f16s = Pool::new(bytes, 3, sets(bytes, 3, is_warm), f16::from);
        for (dtype, mut ours) in [(DataType::Bf16, bf16s), (DataType::F16, f16s)] {
            let mut theirs = floats(bytes, is_warm);
            let found = ratio(
                || (0..calls).for_each(|_| sum_as_engine(dtype, black_box(ours.take()))),
                || (0..calls).for_each(|_| sum_as_engine(DataType::F32, black_box(theirs.take()))),
            );
            println!("  {dtype} / f32 as the engine, {placement}, {bytes} bytes: {found:.2}");
        }
    }
}

criterion_group! {
    name = kernel;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = all, claimed_ratios
}
criterion_main!(kernel);
