//! Vector code for x86-64: AVX2 (with F16C) and AVX-512 (F, BW, DQ, VL), chosen once at run time.
//!
//! Each function does as many leading elements as it can and says how many; the caller does the
//! rest with the scalar code. On other architectures and older CPUs the rest is all of them.
//!
//! Not here: the integer division of averages (done block by block in scalar code after the vector
//! sum) and intrinsics for conversions other than those among f32, f16 and bf16.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
#[cfg(target_arch = "x86_64")]
mod blocks;
mod compiled;
#[cfg(target_arch = "x86_64")]
mod crc;
#[cfg(target_arch = "x86_64")]
mod lane;
#[cfg(target_arch = "x86_64")]
mod select;
mod update;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::isa::Isa;
use super::reduction::{Reduction, Stores};
use super::select::{Block, Source};
use crate::limits::CACHE_LINE_BYTES;
use crate::memory::View;
use crate::types::{DataType, Finish};
use compiled::Compiled;
use std::ops::Range;
pub(super) use update::{reaches, update};

/// A loop for which this CPU has the instructions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fold(Compiled);

impl Fold {
    /// Reduces whole vectors of bytes `range` of the sources (first) into the destinations
    /// (second); where the last of them ended.
    ///
    /// The views are as [`crate::kernel::reduce`] checks them, and none is size-only. For streamed
    /// stores the range begins at [`stream_head_bytes`].
    #[inline]
    pub(super) fn run(
        self,
        finish: Finish,
        (sources, destinations): (&[View], &[View]),
        range: Range<usize>,
        stores: Stores,
    ) -> usize {
        // SAFETY: the CPU has the instruction set: only `fold_of` makes a fold, of an `Isa` that
        // was found on it. The views are as `kernel::reduce` checks them, and streamed destinations
        // are aligned (`stream_head_bytes`).
        unsafe { (self.0)(finish, sources, destinations, range, stores) }
    }
}

/// The vector code of a reduction, if there is some for this CPU. Integers are not divided by it.
pub(super) fn fold_of(reduction: &Reduction) -> Option<Fold> {
    match reduction.isa {
        Isa::Scalar => None,
        #[cfg(target_arch = "x86_64")]
        isa => {
            debug_assert!(isa.is_present());
            Some(Fold(x86::fold_of(reduction)))
        }
        #[cfg(not(target_arch = "x86_64"))]
        _ => None,
    }
}

/// Bytes before the first cache line of the destinations, if they can be streamed: there is vector
/// code, they are no sources, are equally aligned, and a line begins at an element of theirs.
pub(super) fn stream_head_bytes(
    reduction: &Reduction,
    sources: &[View],
    destinations: &[View],
) -> Option<usize> {
    let head_of = |view: &View| view.as_ptr().align_offset(CACHE_LINE_BYTES);
    let head_bytes = head_of(destinations.first()?);
    let is_possible = reduction.isa != Isa::Scalar
        && head_bytes.is_multiple_of(reduction.dtype.size_bytes())
        && head_bytes <= sources[0].len_bytes()
        && destinations.iter().all(|to| {
            let is_source = sources.iter().any(|from| from.as_ptr() == to.as_ptr());
            head_of(to) == head_bytes && !is_source
        });
    is_possible.then_some(head_bytes)
}

/// Scales leading elements and says how many. Arguments as in [`crate::kernel::scale`], none
/// size-only.
pub(super) fn scale(
    isa: Isa,
    dtype: DataType,
    factor: f64,
    source: View,
    destination: View,
) -> usize {
    match isa {
        Isa::Scalar => 0,
        #[cfg(target_arch = "x86_64")]
        _ => x86::scale(isa, dtype, factor, source, destination),
        #[cfg(not(target_arch = "x86_64"))]
        _ => 0,
    }
}

/// Fills an empty block with what leading elements of `range` of a source give, and says how many.
/// With `is_stored`, sums are stored into the first view. Arguments as in `kernel::select`.
pub(super) fn select(
    isa: Isa,
    source: Source,
    range: Range<usize>,
    is_stored: bool,
    floor: u32,
    block: &mut Block,
) -> usize {
    let (a, b) = source.views();
    if a.is_size_only() || b.is_some_and(|b| b.is_size_only()) {
        return 0;
    }
    match isa {
        Isa::Scalar => 0,
        #[cfg(target_arch = "x86_64")]
        _ => {
            let run = match (isa >= Isa::Avx512, b.is_some(), is_stored) {
                (true, false, _) => select::select_avx512::<false, false>,
                (true, true, false) => select::select_avx512::<true, false>,
                (true, true, true) => select::select_avx512::<true, true>,
                (false, false, _) => select::select_avx2::<false, false>,
                (false, true, false) => select::select_avx2::<true, false>,
                (false, true, true) => select::select_avx2::<true, true>,
            };
            // SAFETY: the CPU has `isa`, the range is one of the source's that a block has room
            // for, and its views have bytes.
            unsafe { run(source, range, floor, block) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        _ => 0,
    }
}

/// Folds the leading bytes of a view. Gives bytes whose CRC32C from a state of zero is that of the
/// leading ones from `state`, and how many those are. `None`: there is no vector code for this CPU,
/// or too little to fold.
#[cfg(target_arch = "x86_64")]
pub(super) fn fold_crc(state: u32, view: View) -> Option<([u8; crc::BLOCK_BYTES], usize)> {
    let bytes = view.len_bytes() / crc::BLOCK_BYTES * crc::BLOCK_BYTES;
    if bytes == 0 || view.is_size_only() || !crc::is_present() {
        return None;
    }
    // SAFETY: the CPU has the instructions, and the view a block of bytes.
    Some((unsafe { crc::fold(state, view) }, bytes))
}

/// There is no vector code for this CPU.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn fold_crc(_state: u32, _view: View) -> Option<([u8; 256], usize)> {
    None
}
