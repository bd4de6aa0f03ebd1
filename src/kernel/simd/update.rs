//! The loops of `kernel::update`: plain ones over chunks of elements, which the compiler turns into
//! vector code, once for the CPUs that every build runs on and once for AVX2.
//!
//! A weight goes through the first-level cache once: 16-bit gradients are widened there block by
//! block, and new weights that are published are rounded from there. Chunks of 64 elements keep
//! loads, arithmetic and stores apart, so that the compiler needs no proof that the views differ.
//! From memory, chunks of 32 are equally fast and those of 256 half as fast.

use crate::kernel::access::{load, store};
use crate::kernel::isa::Isa;
use crate::kernel::number::Number;
use crate::kernel::reduction::Stores;
use crate::kernel::update::{Rule, Weights};
use crate::limits::CACHE_LINE_BYTES;
use crate::memory::View;
use crate::types::DataType;
use bytemuck::Pod;
use half::{bf16, f16};
use std::ops::{BitAnd, Range};

/// Elements that are loaded, computed and stored at a time.
const CHUNK: usize = 64;

/// Elements that are converted at a time: 4 KiB of f32.
const BLOCK: usize = 1024;

const F32_BYTES: usize = size_of::<f32>();

/// Applies the rule to all weights, which are `count`. The views are as [`Weights`] checks them,
/// and none is size-only.
pub(in crate::kernel) fn update<R: Rule>(
    isa: Isa,
    stores: Stores,
    rule: R,
    weights: &Weights,
    count: usize,
) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 => {
            debug_assert!(isa.is_present());
            let head = weights.to.as_ptr().align_offset(CACHE_LINE_BYTES);
            // The compiler makes no vector code of Adam's chunks with streaming stores, which would
            // halve their speed.
            let is_streamed = R::STATES < 2
                && stores == Stores::Streamed
                && weights.to.as_ptr() != weights.from.as_ptr()
                && head.is_multiple_of(F32_BYTES);
            if is_streamed {
                // SAFETY: the CPU has AVX2 and F16C, and `head` ends at a cache line.
                unsafe { x86::update::<R, true>(rule, weights, head / F32_BYTES, count) }
            } else {
                // SAFETY: the CPU has AVX2 and F16C.
                unsafe { x86::update::<R, false>(rule, weights, 0, count) }
            }
        }
        _ => blocks::<R, Plain>(rule, weights, 0, count),
    }
}

/// Whether an element has, after the `mask`, at least the value `floor`.
pub(in crate::kernel) fn reaches<T>(isa: Isa, view: View, mask: T, floor: T) -> bool
where
    T: Pod + Ord + BitAnd<Output = T>,
    [T; CHUNK]: Pod,
{
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 => {
            debug_assert!(isa.is_present());
            // SAFETY: the CPU has AVX2.
            unsafe { x86::reaches(view, mask, floor) }
        }
        _ => reaches_as(view, mask, floor),
    }
}

/// What the loops do otherwise on each instruction set.
trait Means {
    /// Widens a chunk.
    fn widen(halves: &[f16; CHUNK]) -> [f32; CHUNK];
    /// Rounds a chunk to nearest even.
    fn narrow(values: &[f32; CHUNK]) -> [f16; CHUNK];
    /// Stores a chunk of new weights, which begins at a cache line unless stores are cached.
    fn store(to: View, values: &[f32; CHUNK]);
}

/// Rust alone.
struct Plain;

impl Means for Plain {
    #[inline(always)]
    fn widen(halves: &[f16; CHUNK]) -> [f32; CHUNK] {
        widen_plainly(halves)
    }
    #[inline(always)]
    fn narrow(values: &[f32; CHUNK]) -> [f16; CHUNK] {
        narrow_plainly(values)
    }
    #[inline(always)]
    fn store(to: View, values: &[f32; CHUNK]) {
        store(to, 0, *values);
    }
}

#[inline(always)]
fn widen_plainly<T: Number<Wide = f32>>(halves: &[T; CHUNK]) -> [f32; CHUNK] {
    let mut values = [0.0; CHUNK];
    for (value, half) in values.iter_mut().zip(halves) {
        *value = half.widen();
    }
    values
}

#[inline(always)]
fn narrow_plainly<T: Number<Wide = f32>>(values: &[f32; CHUNK]) -> [T; CHUNK] {
    values.map(T::narrow)
}

/// Updates block by block. The first block has `head` elements, if that is not 0.
#[inline(always)]
fn blocks<R: Rule, M: Means>(rule: R, weights: &Weights, head: usize, count: usize) {
    let (mut gradients, mut rounded) = ([0f32; BLOCK], [0f32; BLOCK]);
    // SAFETY: the arrays live until the function returns, and only these views reach them.
    let (gradients, rounded) = unsafe {
        (
            View::new(gradients.as_mut_ptr().cast(), size_of_val(&gradients)),
            View::new(rounded.as_mut_ptr().cast(), size_of_val(&rounded)),
        )
    };
    let mut start = 0;
    while start < count {
        let end = match start < head {
            true => count.min(head),
            false => count.min(start + BLOCK),
        };
        let part = |view: View, size: usize| view.part(start * size, (end - start) * size);
        let (dtype, gradient) = weights.gradient;
        let gradient = part(gradient, dtype.size_bytes());
        let wide = gradients.part(0, (end - start) * F32_BYTES);
        let gradient = match dtype {
            DataType::F16 => {
                convert(gradient, wide, M::widen, f16::widen);
                wide
            }
            DataType::Bf16 => {
                convert(gradient, wide, widen_plainly, bf16::widen);
                wide
            }
            _ => gradient,
        };
        let mut states = [View::empty(); 2];
        for (state, view) in states.iter_mut().zip(&weights.states[..R::STATES]) {
            *state = part(*view, F32_BYTES);
        }
        let places = Places {
            gradient,
            from: part(weights.from, F32_BYTES),
            to: part(weights.to, F32_BYTES),
            states,
        };
        match weights.published {
            None => run::<R, M>(rule, &places, None),
            Some((dtype, to)) => {
                let rounded = rounded.part(0, (end - start) * F32_BYTES);
                let to = part(to, dtype.size_bytes());
                run::<R, M>(rule, &places, Some(rounded));
                match dtype {
                    DataType::F16 => convert(rounded, to, M::narrow, f16::narrow),
                    _ => convert(rounded, to, narrow_plainly, bf16::narrow),
                }
            }
        }
        start = end;
    }
}

/// Converts all elements of a view into another, chunk by chunk and the rest one by one.
#[inline(always)]
fn convert<A: Pod, B: Pod>(
    from: View,
    to: View,
    chunk: impl Fn(&[A; CHUNK]) -> [B; CHUNK],
    one: impl Fn(A) -> B,
) where
    [A; CHUNK]: Pod,
    [B; CHUNK]: Pod,
{
    let count = from.len_bytes() / size_of::<A>();
    let whole = count / CHUNK;
    for index in 0..whole {
        store(to, index, chunk(&load(from, index)));
    }
    for index in whole * CHUNK..count {
        store(to, index, one(load(from, index)));
    }
}

/// The memory of a block, all in f32.
struct Places {
    gradient: View,
    from: View,
    to: View,
    states: [View; 2],
}

/// Updates a block. New weights are stored into `copy` as well.
#[inline(always)]
fn run<R: Rule, M: Means>(rule: R, places: &Places, copy: Option<View>) {
    let Places {
        gradient,
        from,
        to,
        states: [first, second],
    } = *places;
    let count = from.len_bytes() / F32_BYTES;
    let whole = count / CHUNK;
    for index in 0..whole {
        let gradients: [f32; CHUNK] = load(gradient, index);
        let mut values: [f32; CHUNK] = load(from, index);
        let (mut a, mut b) = ([0f32; CHUNK], [0f32; CHUNK]);
        if R::STATES > 0 {
            a = load(first, index);
        }
        if R::STATES > 1 {
            b = load(second, index);
        }
        for at in 0..CHUNK {
            let (value, states) = rule.apply(gradients[at], values[at], [a[at], b[at]]);
            values[at] = value;
            [a[at], b[at]] = states;
        }
        M::store(
            to.part(index * CHUNK * F32_BYTES, CHUNK * F32_BYTES),
            &values,
        );
        if R::STATES > 0 {
            store(first, index, a);
        }
        if R::STATES > 1 {
            store(second, index, b);
        }
        if let Some(copy) = copy {
            store(copy, index, values);
        }
    }
    rest(rule, places, copy, whole * CHUNK..count);
}

/// Updates elements one by one.
#[inline(always)]
fn rest<R: Rule>(rule: R, places: &Places, copy: Option<View>, range: Range<usize>) {
    for index in range {
        let mut states = [0f32; 2];
        for (state, view) in states.iter_mut().zip(&places.states[..R::STATES]) {
            *state = load(*view, index);
        }
        let (gradient, weight) = (load(places.gradient, index), load(places.from, index));
        let (value, states) = rule.apply(gradient, weight, states);
        store(places.to, index, value);
        for (state, view) in states.iter().zip(&places.states[..R::STATES]) {
            store(*view, index, *state);
        }
        if let Some(copy) = copy {
            store(copy, index, value);
        }
    }
}

/// See [`reaches`].
#[inline(always)]
fn reaches_as<T>(view: View, mask: T, floor: T) -> bool
where
    T: Pod + Ord + BitAnd<Output = T>,
    [T; CHUNK]: Pod,
{
    let count = view.len_bytes() / size_of::<T>();
    let whole = count / CHUNK;
    for index in 0..whole {
        let values: [T; CHUNK] = load(view, index);
        let largest = values
            .iter()
            .fold(T::zeroed(), |largest, value| largest.max(*value & mask));
        if largest >= floor {
            return true;
        }
    }
    (whole * CHUNK..count).any(|index| load::<T>(view, index) & mask >= floor)
}

/// The loops with AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::avx2::{F16, F32};
    use super::super::lane::Lane;
    use super::*;
    use std::arch::x86_64::_mm_sfence;

    /// See [`blocks`]. With `STREAMS`, chunks of new weights go past the caches.
    ///
    /// # Safety
    /// The CPU has AVX2 and F16C. With `STREAMS`, `to` begins a cache line after `head` elements.
    #[target_feature(enable = "avx2,f16c")]
    pub(super) unsafe fn update<R: Rule, const STREAMS: bool>(
        rule: R,
        weights: &Weights,
        head: usize,
        count: usize,
    ) {
        blocks::<R, Avx2<STREAMS>>(rule, weights, head, count);
        if STREAMS {
            // It orders the streamed stores before the caller's signal that they are done.
            _mm_sfence();
        }
    }

    /// See [`reaches_as`].
    ///
    /// # Safety
    /// The CPU has AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn reaches<T>(view: View, mask: T, floor: T) -> bool
    where
        T: Pod + Ord + BitAnd<Output = T>,
        [T; CHUNK]: Pod,
    {
        reaches_as(view, mask, floor)
    }

    /// It is used by [`update`] alone, whose callers promise that the CPU has AVX2 and F16C.
    struct Avx2<const STREAMS: bool>;

    impl<const STREAMS: bool> Means for Avx2<STREAMS> {
        #[inline(always)]
        fn widen(halves: &[f16; CHUNK]) -> [f32; CHUNK] {
            let mut values = [0f32; CHUNK];
            for at in (0..CHUNK).step_by(F16::COUNT) {
                // SAFETY: a vector of each lies inside its array; see `Avx2` for the CPU.
                unsafe {
                    let vector = F16::load(halves.as_ptr().add(at).cast());
                    F32::store(values.as_mut_ptr().add(at).cast(), vector);
                }
            }
            values
        }

        #[inline(always)]
        fn narrow(values: &[f32; CHUNK]) -> [f16; CHUNK] {
            let mut halves = [f16::ZERO; CHUNK];
            for at in (0..CHUNK).step_by(F16::COUNT) {
                // SAFETY: as in `widen`.
                unsafe {
                    let vector = F32::load(values.as_ptr().add(at).cast());
                    F16::store(halves.as_mut_ptr().add(at).cast(), vector);
                }
            }
            halves
        }

        #[inline(always)]
        fn store(to: View, values: &[f32; CHUNK]) {
            if !STREAMS {
                return store(to, 0, *values);
            }
            assert!(to.len_bytes() == size_of_val(values));
            for at in (0..CHUNK).step_by(F32::COUNT) {
                // SAFETY: the vector lies inside of the view, whose maker keeps it mapped, and is
                // aligned, as blocks after the head are whole cache lines and the head has none.
                unsafe {
                    let vector = F32::load(values.as_ptr().add(at).cast());
                    F32::stream(to.as_ptr().cast::<f32>().add(at).cast(), vector);
                }
            }
        }
    }
}
