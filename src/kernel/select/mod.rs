//! Selection: which elements of a long vector are the largest, in few passes and never by a sort.
//!
//! The vector is a list of [`Source`]s one after another, as the tensors of a call lie; an element
//! is that of one view or the sum of two (residual and gradient), formed in registers. Its
//! *magnitude* is its bits without the sign: magnitudes compare like absolute values. The total
//! order is magnitude descending, index ascending. Zeros and values that are not finite are never
//! selected; the latter are counted.
//!
//! - [`collect`]: everything from a magnitude on, in one pass ([`accumulate`] adds the gradient to
//!   the residual in the same pass); gives up when there is more than a limit, so that no
//!   distribution can take the memory.
//! - [`select_top`]: exactly k. A sample of the elements gives a magnitude that a little more than
//!   k reach, [`collect`] fetches those, and a selection among them the k-th. Where the sample
//!   misleads (an all-equal vector), [`histogram`]s of the magnitudes' bits find the k-th in three
//!   passes and bounded memory.
//! - [`moments`]: for the estimate of a threshold from a normal distribution
//!   ([`gaussian_magnitude`]).
//!
//! What a block of elements gives is defined by `scalar.rs`, which is the oracle of the vector code
//! in `simd/select.rs`.
//!
//! Source: Li and Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep Learning" (PPoPP
//! 2022), section 3.

mod exact;
mod gauss;
mod histogram;
mod scalar;
#[cfg(test)]
mod tests;

pub use exact::{keep_top, room_for, select_top};
pub use gauss::{gaussian_magnitude, moments};
pub use histogram::{Level, histogram_of};

use super::access;
use super::simd::{self, Isa};
use crate::memory::View;

/// Magnitude of infinity: what is not below is not finite.
pub const MAGNITUDE_INFINITE: u32 = 0x7f80_0000;

/// Elements that are looked at between two looks at the limit; their picks fit the first-level
/// cache.
const BLOCK: usize = 2048;

/// The bits of a value without its sign.
#[inline]
pub fn magnitude(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}

/// f32 elements: those of a view, or the sums of two.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    a: View,
    b: Option<View>,
}

impl Source {
    /// The elements of one view.
    pub fn of(a: View) -> Source {
        Source { a, b: None }
    }

    /// The sums of two views' elements.
    ///
    /// # Panics
    /// If the views differ in length.
    pub fn sum(a: View, b: View) -> Source {
        assert_eq!(
            a.len_bytes(),
            b.len_bytes(),
            "a residual and a gradient of different lengths"
        );
        Source { a, b: Some(b) }
    }

    /// Number of elements.
    pub fn count(&self) -> usize {
        self.a.len_bytes() / size_of::<f32>()
    }

    pub(super) fn views(&self) -> (View, Option<View>) {
        (self.a, self.b)
    }

    /// One element.
    #[inline]
    pub fn load(&self, index: usize) -> f32 {
        let a = access::load::<f32>(self.a, index);
        self.b.map_or(a, |b| a + access::load::<f32>(b, index))
    }
}

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
    /// Elements that are not finite; of all elements only if the pass was not over its limit.
    pub not_finite: u64,
}

/// What one block gives; the vector code fills it.
pub(super) struct Block {
    /// Offsets in the block. A vector's worth longer than a block, so that whole vectors can be
    /// stored.
    pub offsets: [u32; BLOCK + 16],
    /// Values.
    pub values: [f32; BLOCK + 16],
    /// How many.
    pub count: usize,
    /// Elements that are not finite.
    pub not_finite: u64,
}

impl Block {
    fn new() -> Block {
        Block {
            offsets: [0; BLOCK + 16],
            values: [0.0; BLOCK + 16],
            count: 0,
            not_finite: 0,
        }
    }
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

/// Both, on a given instruction set.
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
