//! One vector of elements as a [`Lane`], and the loops over lanes, common to all instruction sets.
//!
//! The loops are `#[inline(always)]` bodies. Each instruction set has one function per loop that
//! carries `#[target_feature]` ([`entry_points`]), into which the body and the intrinsics are
//! inlined.
//!
//! One pass over memory: per group of four vectors all sources are folded in registers, then stored
//! to all destinations, so a destination may be the same range as any source.

use crate::kernel::reduction::Stores;
use crate::limits::CACHE_LINE_BYTES;
use crate::memory::View;
use crate::types::Finish;
use std::arch::asm;
use std::arch::x86_64::_mm_sfence;
use std::ops::Range;

/// Vectors that are folded at a time: enough independent chains to hide the latency of an addition.
const UNROLL: usize = 4;

/// How far ahead of the vectors at hand lines are prefetched for writing. Other ranks have just
/// read or staged what a rank writes, so a store would wait for its line. An allreduce of 2 MiB
/// reaches 8.5 GB/s with 1 KiB, 8.7 with 2 KiB and 8.2 with 512 B.
const AHEAD_BYTES: usize = 1024;

/// One vector of elements of one type on one instruction set.
///
/// # Safety
/// Every method requires that the CPU has the lane's instruction set.
pub(super) unsafe trait Lane {
    /// The register that is computed with; elements of 16 bits are widened in it.
    type Register: Copy;
    /// Elements in one vector.
    const COUNT: usize;
    /// Bytes in memory of one vector.
    const BYTES: usize;
    /// # Safety
    /// `BYTES` readable bytes at `from`.
    unsafe fn load(from: *const u8) -> Self::Register;
    /// # Safety
    /// `BYTES` writable bytes at `to`.
    unsafe fn store(to: *mut u8, value: Self::Register);
    /// Streaming stores, past the caches.
    ///
    /// # Safety
    /// `BYTES` writable bytes at `to`, a multiple of `BYTES`; a store fence follows before anybody
    /// may learn of the store.
    unsafe fn stream(to: *mut u8, value: Self::Register);
    unsafe fn sum(a: Self::Register, b: Self::Register) -> Self::Register;
    unsafe fn prod(a: Self::Register, b: Self::Register) -> Self::Register;
    unsafe fn min(a: Self::Register, b: Self::Register) -> Self::Register;
    unsafe fn max(a: Self::Register, b: Self::Register) -> Self::Register;
}

/// A lane of floats.
///
/// # Safety
/// As [`Lane`].
pub(super) unsafe trait FloatLane: Lane {
    /// `value`, rounded to what is computed with, in every element.
    unsafe fn splat(value: f64) -> Self::Register;
    unsafe fn divide(a: Self::Register, b: Self::Register) -> Self::Register;
}

/// A lane of integers.
///
/// # Safety
/// As [`Lane`].
pub(super) unsafe trait IntegerLane: Lane {
    unsafe fn and(a: Self::Register, b: Self::Register) -> Self::Register;
    unsafe fn or(a: Self::Register, b: Self::Register) -> Self::Register;
    unsafe fn xor(a: Self::Register, b: Self::Register) -> Self::Register;
}

/// What is done to two vectors.
pub(super) trait Operator<L: Lane> {
    /// # Safety
    /// The CPU has the instruction set of `L`.
    unsafe fn apply(a: L::Register, b: L::Register) -> L::Register;
}

macro_rules! operator {
    ($name:ident, $method:ident, $lane:ident) => {
        pub(super) struct $name;

        impl<L: $lane> Operator<L> for $name {
            #[inline(always)]
            unsafe fn apply(a: L::Register, b: L::Register) -> L::Register {
                // SAFETY: the same contract.
                unsafe { L::$method(a, b) }
            }
        }
    };
}
operator!(Sum, sum, Lane);
operator!(Prod, prod, Lane);
operator!(Min, min, Lane);
operator!(Max, max, Lane);
operator!(And, and, IntegerLane);
operator!(Or, or, IntegerLane);
operator!(Xor, xor, IntegerLane);

/// What is done to a vector before it is stored.
pub(super) trait Last<L: Lane>: Copy {
    /// The operand, in a register.
    type Operand: Copy;
    /// # Safety
    /// The CPU has the instruction set of `L`.
    unsafe fn operand(self) -> Self::Operand;
    /// # Safety
    /// The CPU has the instruction set of `L`.
    unsafe fn apply(value: L::Register, operand: Self::Operand) -> L::Register;
}

/// Nothing.
#[derive(Clone, Copy)]
pub(super) struct Keep;

impl<L: Lane> Last<L> for Keep {
    type Operand = ();
    #[inline(always)]
    unsafe fn operand(self) {}
    #[inline(always)]
    unsafe fn apply(value: L::Register, (): ()) -> L::Register {
        value
    }
}

impl From<Finish> for Keep {
    #[inline(always)]
    fn from(_: Finish) -> Keep {
        Keep
    }
}

/// A division by this.
#[derive(Clone, Copy)]
pub(super) struct DivideBy(f64);

impl From<Finish> for DivideBy {
    #[inline(always)]
    fn from(finish: Finish) -> DivideBy {
        match finish {
            Finish::Divide(ranks) => DivideBy(ranks.into()),
            Finish::None => DivideBy(1.0),
        }
    }
}

impl<L: FloatLane> Last<L> for DivideBy {
    type Operand = L::Register;
    #[inline(always)]
    unsafe fn operand(self) -> L::Register {
        // SAFETY: the same contract.
        unsafe { L::splat(self.0) }
    }
    #[inline(always)]
    unsafe fn apply(value: L::Register, operand: L::Register) -> L::Register {
        // SAFETY: the same contract.
        unsafe { L::divide(value, operand) }
    }
}

/// Folds whole vectors of all sources, from byte `range.start` while they end by `range.end`, into
/// all destinations. Gives where the last of them ended.
///
/// # Safety
/// The CPU has the instruction set of `L`; there is a source; no view is size-only; the range lies
/// inside all of them, and for streamed stores its start in every destination is aligned to a cache
/// line.
#[inline(always)]
pub(super) unsafe fn fold<L: Lane, O: Operator<L>, F: Last<L>>(
    last: F,
    sources: &[View],
    destinations: &[View],
    range: Range<usize>,
    stores: Stores,
) -> usize {
    let Range { mut start, end } = range;
    // SAFETY: the caller's contract, of which each call has the same for a part of the range.
    unsafe {
        let operand = last.operand();
        let views = (sources, destinations);
        if stores == Stores::Streamed {
            start = fold_groups::<L, O, F, Streamed, UNROLL>(operand, views, start..end);
            start = fold_groups::<L, O, F, Streamed, 1>(operand, views, start..end);
            // Orders the streamed stores before the caller's signal that they are done.
            _mm_sfence();
            return start;
        }
        let far = end.saturating_sub(AHEAD_BYTES).max(start);
        start = fold_groups::<L, O, F, Ahead, UNROLL>(operand, views, start..far);
        start = fold_groups::<L, O, F, Cached, UNROLL>(operand, views, start..end);
        fold_groups::<L, O, F, Cached, 1>(operand, views, start..end)
    }
}

/// As [`fold`], in groups of `N` vectors, which are stored as `S` does it.
///
/// # Safety
/// As [`fold`], and what `S` requires.
#[inline(always)]
unsafe fn fold_groups<L: Lane, O: Operator<L>, F: Last<L>, S: Storing, const N: usize>(
    operand: F::Operand,
    (sources, destinations): (&[View], &[View]),
    range: Range<usize>,
) -> usize {
    let Range { mut start, end } = range;
    while end - start >= N * L::BYTES {
        // SAFETY: the bytes lie inside the views, which are mapped (contract of `View::new`).
        unsafe {
            let first = sources.get_unchecked(0).as_ptr().add(start);
            let mut values = [L::load(first); N];
            for (index, value) in values.iter_mut().enumerate().skip(1) {
                *value = L::load(first.add(index * L::BYTES));
            }
            for source in sources.get_unchecked(1..) {
                let from = source.as_ptr().add(start);
                for (index, value) in values.iter_mut().enumerate() {
                    *value = O::apply(*value, L::load(from.add(index * L::BYTES)));
                }
            }
            for value in &mut values {
                *value = F::apply(*value, operand);
            }
            for destination in destinations {
                S::store::<L, N>(destination.as_ptr().add(start), &values);
            }
        }
        start += N * L::BYTES;
    }
    start
}

/// How a group of vectors goes to memory.
trait Storing {
    /// # Safety
    /// The CPU has the instruction set of `L`; `N` vectors at `to` are writable.
    unsafe fn store<L: Lane, const N: usize>(to: *mut u8, values: &[L::Register; N]);
}

/// Through the caches.
struct Cached;

impl Storing for Cached {
    #[inline(always)]
    unsafe fn store<L: Lane, const N: usize>(to: *mut u8, values: &[L::Register; N]) {
        for (index, &value) in values.iter().enumerate() {
            // SAFETY: the caller's contract.
            unsafe { L::store(to.add(index * L::BYTES), value) };
        }
    }
}

/// Through the caches, with a prefetch for writing of the lines [`AHEAD_BYTES`] further on.
struct Ahead;

impl Storing for Ahead {
    #[inline(always)]
    unsafe fn store<L: Lane, const N: usize>(to: *mut u8, values: &[L::Register; N]) {
        for at in (0..N * L::BYTES).step_by(CACHE_LINE_BYTES) {
            let line = to.wrapping_add(AHEAD_BYTES + at);
            // SAFETY: a hint, which changes nothing and does not fault wherever it points to. Every
            // x86-64 CPU takes it.
            unsafe {
                asm!("prefetchw byte ptr [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
            }
        }
        // SAFETY: the caller's contract.
        unsafe { Cached::store::<L, N>(to, values) }
    }
}

/// By non-temporal stores: `to` is aligned to a cache line, and a store fence follows before
/// anybody may learn of the store.
struct Streamed;

impl Storing for Streamed {
    #[inline(always)]
    unsafe fn store<L: Lane, const N: usize>(to: *mut u8, values: &[L::Register; N]) {
        for (index, &value) in values.iter().enumerate() {
            // SAFETY: the caller's contract.
            unsafe { L::stream(to.add(index * L::BYTES), value) };
        }
    }
}

/// Multiplies whole vectors by a factor, and says how many elements were done.
///
/// # Safety
/// The CPU has the instruction set of `L`; no view is size-only; both are equally long, and either
/// disjoint or the same range.
#[inline(always)]
pub(super) unsafe fn scale<L: FloatLane>(factor: f64, source: View, destination: View) -> usize {
    let vectors = source.len_bytes() / L::BYTES;
    // SAFETY: `vectors` vectors lie inside both views, which are mapped (contract of `View::new`).
    unsafe {
        let factor = L::splat(factor);
        for start in (0..vectors * L::BYTES).step_by(L::BYTES) {
            let value = L::load(source.as_ptr().add(start));
            L::store(destination.as_ptr().add(start), L::prod(value, factor));
        }
    }
    vectors * L::COUNT
}

/// The functions of an instruction set into which the loops are inlined.
macro_rules! entry_points {
    ($features:literal, $fold:ident $(, $scale:ident)?) => {
        /// [`fold`](super::lane::fold) with these instructions.
        ///
        /// # Safety
        /// As there, and the CPU has the instructions.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $fold<L, O, F>(
            finish: $crate::types::Finish,
            sources: &[$crate::memory::View],
            destinations: &[$crate::memory::View],
            range: std::ops::Range<usize>,
            stores: $crate::kernel::reduction::Stores,
        ) -> usize
        where
            L: super::lane::Lane,
            O: super::lane::Operator<L>,
            F: super::lane::Last<L> + From<$crate::types::Finish>,
        {
            let last = F::from(finish);
            // SAFETY: the same contract.
            unsafe { super::lane::fold::<L, O, F>(last, sources, destinations, range, stores) }
        }

        $(
            /// [`scale`](super::lane::scale) with these instructions.
            ///
            /// # Safety
            /// As there, and the CPU has the instructions.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $scale<L: super::lane::FloatLane>(
                factor: f64,
                source: $crate::memory::View,
                destination: $crate::memory::View,
            ) -> usize {
                // SAFETY: the same contract.
                unsafe { super::lane::scale::<L>(factor, source, destination) }
            }
        )?
    };
}
pub(super) use entry_points;

/// Implements [`Lane`] and [`FloatLane`] or [`IntegerLane`] from functions that need `$features`.
macro_rules! lane {
    (
        $features:literal, $lane:ident: $register:ty, $count:literal of $size:literal bytes,
        $load:ident $store:ident $stream:ident, $sum:ident $prod:ident $min:ident $max:ident, $($rest:tt)*
    ) => {
        #[doc = concat!(stringify!($count), " elements of ", stringify!($size), " bytes.")]
        pub(super) struct $lane;

        // SAFETY: `load` and `store` touch BYTES bytes.
        unsafe impl Lane for $lane {
            type Register = $register;
            const COUNT: usize = $count;
            const BYTES: usize = $count * $size;

            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn load(from: *const u8) -> $register {
                // SAFETY: the caller's contract: BYTES readable bytes.
                unsafe { $load(from.cast()) }
            }
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn store(to: *mut u8, value: $register) {
                // SAFETY: the caller's contract: BYTES writable bytes.
                unsafe { $store(to.cast(), value) }
            }
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn stream(to: *mut u8, value: $register) {
                // SAFETY: the caller's contract: BYTES writable bytes, aligned to as many.
                unsafe { $stream(to.cast(), value) }
            }
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn sum(a: $register, b: $register) -> $register {
                $sum(a, b)
            }
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn prod(a: $register, b: $register) -> $register {
                $prod(a, b)
            }
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn min(a: $register, b: $register) -> $register {
                $min(a, b)
            }
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn max(a: $register, b: $register) -> $register {
                $max(a, b)
            }
        }
        lane!(@more $features, $lane: $register, $($rest)*);
    };
    (@more $features:literal, $lane:ident: $register:ty, float $splat:ident $divide:ident) => {
        // SAFETY: only arithmetic.
        unsafe impl FloatLane for $lane {
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn splat(value: f64) -> $register {
                $splat(value as _)
            }
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn divide(a: $register, b: $register) -> $register {
                $divide(a, b)
            }
        }
    };
    (@more $features:literal, $lane:ident: $register:ty, integer $and:ident $or:ident $xor:ident) => {
        // SAFETY: only arithmetic.
        unsafe impl IntegerLane for $lane {
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn and(a: $register, b: $register) -> $register {
                $and(a, b)
            }
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn or(a: $register, b: $register) -> $register {
                $or(a, b)
            }
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn xor(a: $register, b: $register) -> $register {
                $xor(a, b)
            }
        }
    };
}
pub(super) use lane;

/// A store and a streamed store of registers that are narrowed to `$to` first. The streamed one
/// wants its place aligned to as many bytes as it writes.
macro_rules! narrowing_stores {
    ($features:literal, $register:ty => $narrow:expr, $store:ident = $plain:ident to $place:ty,
        $stream:ident = $streaming:ident to $aligned:ty) => {
        /// # Safety
        /// As many writable bytes as the narrowed register has.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn $store(to: *mut $place, value: $register) {
            let narrow = $narrow(value);
            // SAFETY: the caller's contract.
            unsafe { $plain(to, narrow) }
        }

        /// # Safety
        /// As many writable bytes as the narrowed register has, aligned to as many.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn $stream(to: *mut $aligned, value: $register) {
            let narrow = $narrow(value);
            // SAFETY: the caller's contract.
            unsafe { $streaming(to, narrow) }
        }
    };
}
pub(super) use narrowing_stores;

/// Functions of two registers side by side, from those of one.
macro_rules! pairwise {
    ($features:literal, $pair:ty, $($name:ident = $each:ident),*) => {$(
        #[inline]
        #[target_feature(enable = $features)]
        pub(super) fn $name(a: $pair, b: $pair) -> $pair {
            [$each(a[0], b[0]), $each(a[1], b[1])]
        }
    )*};
}
pub(super) use pairwise;
