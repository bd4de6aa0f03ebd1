//! Arithmetic on [`View`]s: reduce, copy, scale, update weights, checksums.
//!
//! Pure functions of bytes: no allocation, no threads, no clock, and no decision about who may
//! touch which bytes when (the engine decides that). Views may lie at any address. A size-only view
//! among the arguments makes the call do nothing, after the lengths are checked.
//!
//! What the results are, on every CPU and for every shape of the call:
//! - the fold runs in the order of the sources, `((s0 op s1) op s2) ...`, without reassociation and
//!   without fused multiply-add, so vector code equals the scalar code bit for bit;
//! - integers wrap; an integer average truncates toward zero;
//! - f16, bf16 and 8-bit floats are folded in f32 over all sources of the call and rounded (to
//!   nearest even) once;
//! - a byte of a truth value is true unless it is 0, and the combination of several is 0 or 1;
//! - complex numbers are pairs of floats, whose sums are those of their parts;
//! - min and max: NaN wins and is stored as the canonical quiet NaN; -0 < +0;
//! - the payload and the sign of a NaN that a sum or a product gives are not specified.
//!
//! Read first: `scalar.rs`, which is the definition and the oracle of the tests; then
//! `simd/lane.rs`. The CPU's own bf16 conversions treat subnormals as zero, so vectors with one are
//! rounded by other code (`simd/avx512_bf16.rs`). AVX512-FP16 is not used: it computes in f16,
//! which would round after every source.

mod access;
mod crc;
mod isa;
mod number;
mod reduction;
mod scalar;
pub mod select;
mod simd;
pub mod update;

use crate::limits::CACHE_LINE_BYTES;
use crate::memory::View;
use crate::types::{Combine, DataType, Finish};
pub(crate) use access::{
    fill, line, load, read, read_contended, store, word, word32, write, write_contended,
};
pub use crc::crc32c;
use isa::Isa;
use reduction::{Reduction, Stores};
use std::ops::Range;

/// Combines the sources elementwise, in order, and stores the result into every destination.
///
/// All views are equally long, a multiple of the size of an element (of a complex one: of its
/// parts). A source may be exactly the same range as a destination and must not overlap it
/// otherwise; the same holds among destinations. One source makes it a copy, to which `finish` is
/// applied. Without destinations nothing happens.
///
/// # Panics
/// If there is no source, the lengths differ or are no multiple of the element size, `combine` or
/// a division is not defined for `dtype`, or `finish` divides by zero.
#[inline]
pub fn reduce(
    dtype: DataType,
    combine: Combine,
    finish: Finish,
    sources: &[View],
    destinations: &[View],
) {
    BoundReduction::new(dtype, combine, finish).run(sources, destinations);
}

/// [`reduce`], but destinations that are not sources are written by streaming stores where the CPU
/// can.
///
/// It gives the same bytes, ordered like plain stores when it returns. Destinations are not read
/// before they are written: that is 1.1 to 1.7 times as fast where they are in no cache and 0.7
/// times where they are in the second level. Results are in memory afterwards and in no cache, so
/// the engine uses it for operations whose buffers together exceed the last-level cache.
pub fn reduce_streaming(
    dtype: DataType,
    combine: Combine,
    finish: Finish,
    sources: &[View],
    destinations: &[View],
) {
    BoundReduction::streaming(dtype, combine, finish).run(sources, destinations);
}

/// [`reduce`] or [`reduce_streaming`] with their loops already found, for calls that repeat:
/// finding them takes longer than reducing 200 bytes.
#[derive(Clone, Copy, Debug)]
pub struct BoundReduction {
    /// For elements that do not fill a vector.
    scalar: scalar::Fold,
    vectors: Option<simd::Fold>,
    reduction: Reduction,
}

impl BoundReduction {
    /// As [`reduce`] does it.
    ///
    /// # Panics
    /// If `combine` or a division is not defined for `dtype`, or `finish` divides by zero.
    #[inline]
    pub fn new(dtype: DataType, combine: Combine, finish: Finish) -> BoundReduction {
        BoundReduction::of(Reduction::best(Stores::Cached, dtype, combine, finish))
    }

    /// As [`reduce_streaming`] does it.
    ///
    /// # Panics
    /// As [`BoundReduction::new`].
    pub fn streaming(dtype: DataType, combine: Combine, finish: Finish) -> BoundReduction {
        BoundReduction::of(Reduction::best(Stores::Streamed, dtype, combine, finish))
    }

    fn of(given: Reduction) -> BoundReduction {
        check_kind(given.dtype, given.combine, given.finish);
        let (dtype, combine) = (given.dtype.part(), given.combine);
        let reduction = Reduction { dtype, ..given };
        BoundReduction {
            scalar: scalar::fold_of(dtype, combine),
            vectors: simd::fold_of(&reduction),
            reduction,
        }
    }

    /// Combines the sources and stores the result into every destination.
    ///
    /// # Panics
    /// If there is no source, the lengths differ or are no multiple of the element size.
    pub fn run(&self, sources: &[View], destinations: &[View]) {
        let Reduction { dtype, finish, .. } = self.reduction;
        let Some(bytes) = check_views(dtype, sources, destinations) else {
            return;
        };
        // Too short for vectors.
        let is_copy = sources.len() == 1 && finish == Finish::None;
        if bytes < CACHE_LINE_BYTES && !is_copy {
            return self.fold_rest((sources, destinations), 0..bytes);
        }
        let head = match self.reduction.stores {
            Stores::Streamed => simd::stream_head_bytes(&self.reduction, sources, destinations),
            Stores::Cached => None,
        };
        if let ([source], Finish::None) = (sources, finish) {
            let is_short = bytes < VECTORS_BYTES_MIN || self.vectors.is_none();
            if head.is_none() && (is_short || sources == destinations) {
                destinations
                    .iter()
                    .for_each(|to| access::copy_bytes(*source, *to));
                return;
            }
            if dtype != DataType::U8 {
                // Bits, not values: a detour through f32 would change a signalling NaN.
                return copy_to(self.reduction.stores, *source, destinations);
            }
        }
        let views = (sources, destinations);
        let head_bytes = head.unwrap_or(0);
        if head_bytes > 0 {
            self.fold_rest(views, 0..head_bytes);
        }
        let mut end_bytes = head_bytes;
        if let Some(vectors) = self.vectors
            && bytes - head_bytes >= CACHE_LINE_BYTES
        {
            let range = head_bytes..bytes;
            end_bytes = match finish {
                Finish::Divide(_) if !dtype.is_float() => {
                    self.fold_then_divide(vectors, views, range)
                }
                _ if head.is_some() => vectors.run(finish, views, range, Stores::Streamed),
                _ => vectors.run(finish, views, range, Stores::Cached),
            };
        }
        if end_bytes < bytes {
            self.fold_rest(views, end_bytes..bytes);
        }
    }

    /// Reduces bytes that do not fill whole vectors. It is not inlined, so that calls without such
    /// bytes do not pay for it.
    #[inline(never)]
    fn fold_rest(&self, views: (&[View], &[View]), bytes: Range<usize>) {
        // Sizes are powers of two, and each division costs as much as the sum of a short vector.
        let shift = self.reduction.dtype.size_bytes().trailing_zeros();
        let elements = bytes.start >> shift..bytes.end >> shift;
        (self.scalar)(self.reduction.finish, views, elements);
    }

    /// Integers: folds block by block into the first destination, then divides from there into all.
    fn fold_then_divide(
        &self,
        vectors: simd::Fold,
        (sources, destinations): (&[View], &[View]),
        range: Range<usize>,
    ) -> usize {
        let Reduction { dtype, finish, .. } = self.reduction;
        let size = dtype.size_bytes();
        let sums = &destinations[..1];
        let mut start = range.start;
        while start < range.end {
            let block = start..range.end.min(start + DIVIDE_BYTES);
            let end = vectors.run(Finish::None, (sources, sums), block, Stores::Cached);
            if end == start {
                break;
            }
            (self.scalar)(finish, (sums, destinations), start / size..end / size);
            start = end;
        }
        start
    }
}

/// Bytes that are summed, then divided while they are in the first-level cache (of 32 KiB or more).
const DIVIDE_BYTES: usize = 4096;

/// Whether an operation should use [`reduce_streaming`] and `copy_streaming`: the buffers of all
/// its ranks, together `buffers_bytes`, fill the last-level cache of `cache_bytes`.
#[inline]
pub fn is_for_streaming(buffers_bytes: usize, cache_bytes: usize) -> bool {
    buffers_bytes >= cache_bytes
}

/// Copies `source` into `destination`, which is the same range or does not overlap it. Long copies
/// are made by the vector code, which prefetches lines for writing: that counts in memory that
/// another core has read last. Those of an allreduce of 2 MiB take 110 us, and 139 by the `rep
/// movsb` of the C library.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub fn copy(source: View, destination: View) {
    if source.len_bytes() < VECTORS_BYTES_MIN {
        return access::copy_bytes(source, destination);
    }
    copy_to(Stores::Cached, source, &[destination]);
}

/// [`copy`], by streaming stores where the CPU can; see [`reduce_streaming`].
///
/// # Panics
/// If the lengths differ.
pub fn copy_streaming(source: View, destination: View) {
    copy_to(Stores::Streamed, source, &[destination]);
}

/// Copies by the vector code. It is not inlined, so that short copies do not pay for it.
#[inline(never)]
fn copy_to(stores: Stores, source: View, destinations: &[View]) {
    let reduction = Reduction::best(stores, DataType::U8, Combine::Sum, Finish::None);
    BoundReduction::of(reduction).run(&[source], destinations);
}

/// Shorter copies are left to the C library, which is faster in the first-level cache.
const VECTORS_BYTES_MIN: usize = 16 << 10;

/// Multiplies `source` by `factor` into `destination`.
///
/// Both views are equally long and either disjoint or the same range. The factor is first rounded
/// to the accumulator (f64 for f64, f32 for the others), and the product to the element type. Of
/// complex numbers both parts are multiplied.
///
/// # Panics
/// If `dtype` is no float and not complex, the lengths differ or are no multiple of the element
/// size.
pub fn scale(dtype: DataType, factor: f64, source: View, destination: View) {
    scale_with(Isa::best_for(dtype), dtype, factor, source, destination);
}

/// The common length in bytes; `None` if there is nothing to do.
fn check_views(dtype: DataType, sources: &[View], destinations: &[View]) -> Option<usize> {
    assert!(!sources.is_empty(), "a reduction without sources");
    let bytes = sources[0].len_bytes();
    check_whole(dtype, bytes);
    let mut is_size_only = destinations.is_empty() || bytes == 0;
    for view in sources.iter().chain(destinations) {
        let other_bytes = view.len_bytes();
        assert!(
            other_bytes == bytes,
            "reduction of views of {bytes} and {other_bytes} bytes: all must be equally long"
        );
        is_size_only |= view.is_size_only();
    }
    if cfg!(debug_assertions) {
        for (index, destination) in destinations.iter().enumerate() {
            let others = sources.iter().chain(&destinations[..index]);
            others.for_each(|other| check_same_or_disjoint(other, destination));
        }
    }
    (!is_size_only).then_some(bytes)
}

fn check_kind(dtype: DataType, combine: Combine, finish: Finish) {
    let is_defined = match combine {
        Combine::Sum => true,
        Combine::Prod | Combine::Min | Combine::Max => !dtype.is_complex(),
        Combine::BitAnd | Combine::BitOr | Combine::BitXor => !dtype.part().is_float(),
    };
    assert!(is_defined, "{combine:?} is not defined for {dtype}");
    assert!(
        finish == Finish::None || dtype != DataType::Bool,
        "averages are not defined for {dtype}"
    );
    assert!(finish != Finish::Divide(0), "division by zero ranks");
}

fn check_whole(dtype: DataType, bytes: usize) {
    assert!(
        bytes & (dtype.size_bytes() - 1) == 0,
        "{bytes} bytes are no whole number of {dtype} elements"
    );
}

fn check_same_or_disjoint(a: &View, b: &View) {
    assert!(
        a.as_ptr() == b.as_ptr() || !a.overlaps(b),
        "views overlap without being the same range"
    );
}

/// [`scale`] on a given instruction set.
fn scale_with(isa: Isa, dtype: DataType, factor: f64, source: View, destination: View) {
    let dtype = dtype.part();
    let bytes = source.len_bytes();
    assert!(
        dtype.is_float(),
        "scaling is defined for floating point, not for {dtype}"
    );
    assert!(
        bytes == destination.len_bytes(),
        "scaling of {bytes} bytes into {}: both must be equally long",
        destination.len_bytes()
    );
    check_whole(dtype, bytes);
    if source.is_size_only() || destination.is_size_only() {
        return;
    }
    debug_assert!(source.as_ptr() == destination.as_ptr() || !source.overlaps(&destination));
    let done = simd::scale(isa, dtype, factor, source, destination);
    let end = bytes / dtype.size_bytes();
    scalar::scale(dtype, factor, source, destination, done..end);
}

#[cfg(test)]
mod tests;
