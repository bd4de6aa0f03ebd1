//! Selection: which elements of a long vector are the largest, in few passes and never by a sort.
//!
//! The vector is a list of [`Source`]s one after another, as the tensors of a call lie; an element
//! is that of one view or the sum of two (residual and gradient), formed in registers. Its
//! *magnitude* is its bits without the sign: magnitudes compare like absolute values. The total
//! order is magnitude descending, index ascending. Zeros and values that are not finite are never
//! selected; the latter are counted.
//!
//! - [`collect`]: everything from a magnitude on, in one pass ([`accumulate`] adds the gradient to
//!   the residual in the same pass); gives up when there is more than a limit, so that memory is
//!   bounded for every distribution.
//! - [`select_top`]: exactly k. A sample of the elements gives a magnitude that a little more than
//!   k reach, [`collect`] fetches those, and a selection among them finds the k-th. Where the
//!   sample misleads (an all-equal vector), [`histogram`]s of the magnitudes' bits find the k-th in
//!   three passes and bounded memory.
//! - [`moments`]: sums for the estimate of a threshold by a normal distribution
//!   ([`gaussian_magnitude`]).
//!
//! What a block of elements gives is defined by `scalar.rs`, which is the oracle of the vector code
//! in `simd/select.rs`.
//!
//! Source: Li and Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep Learning" (PPoPP
//! 2022), section 3.

mod block;
mod exact;
mod gauss;
mod histogram;
mod scalar;
#[cfg(test)]
mod tests;

pub(super) use block::Block;
pub use block::{MAGNITUDE_INFINITE, Source, magnitude};
pub use exact::{keep_top, room_for, select_top};
pub use gauss::{gaussian_magnitude, moments};
pub use histogram::{Level, histogram_of};

use super::isa::Isa;
use super::simd;
use block::BLOCK;

/// Elements of all sources.
pub fn count_of(sources: &[Source]) -> u64 {
    sources.iter().map(|source| source.count() as u64).sum()
}

/// Selected elements, by increasing index over all sources.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Picks {
    /// Where they are.
    pub indices: Vec<u64>,
    /// What they are.
    pub values: Vec<f32>,
}

impl Picks {
    /// Number of picks.
    pub fn len(&self) -> usize {
        self.indices.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }

    fn clear(&mut self) {
        self.indices.clear();
        self.values.clear();
    }
}

/// What a pass saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// More elements reached the magnitude than the limit allows: the picks are incomplete.
    pub is_over: bool,
    /// Elements that are not finite. A [`collect`] that went over its limit has not seen all of
    /// them.
    pub not_finite: u64,
}

/// Appends all elements of at least the magnitude `floor` (at least 1) to `picks`, unless they are
/// more than `limit`.
pub fn collect(sources: &[Source], floor: u32, limit: usize, picks: &mut Picks) -> Scan {
    scan(Isa::best(), sources, false, floor, limit, picks)
}

/// Adds the second view of every source to its first, and selects among the sums as [`collect`]
/// does. A sum that is not finite is not stored: the element stays as it was. All is added even if
/// the picks are over their limit.
pub fn accumulate(sources: &[Source], floor: u32, limit: usize, picks: &mut Picks) -> Scan {
    scan(Isa::best(), sources, true, floor, limit, picks)
}

/// [`collect`] or, if `is_stored`, [`accumulate`], on a given instruction set.
fn scan(
    isa: Isa,
    sources: &[Source],
    is_stored: bool,
    floor: u32,
    limit: usize,
    picks: &mut Picks,
) -> Scan {
    assert!(floor > 0, "zeros are never selected: the least floor is 1");
    let mut block = Block::new();
    let (mut scan, mut floor) = (Scan::default(), floor);
    let (mut base, first) = (0u64, picks.len());
    for source in sources {
        let count = source.count();
        let mut start = 0;
        while start < count {
            let end = count.min(start + BLOCK);
            block.count = 0;
            block.not_finite = 0;
            let done = simd::select(isa, *source, start..end, is_stored, floor, &mut block);
            scalar::select(*source, start..end, done, is_stored, floor, &mut block);
            scan.not_finite += block.not_finite;
            if picks.len() - first + block.count > limit {
                scan.is_over = true;
                if !is_stored {
                    return scan;
                }
                // The rest is only added.
                floor = MAGNITUDE_INFINITE;
                block.count = 0;
            }
            let base = base + start as u64;
            let offsets = block.offsets[..block.count].iter();
            (picks.indices).extend(offsets.map(|&offset| base + u64::from(offset)));
            (picks.values).extend_from_slice(&block.values[..block.count]);
            start = end;
        }
        base += count as u64;
    }
    scan
}
