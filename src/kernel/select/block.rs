//! [`Source`]: what is selected from; [`Block`]: what a block of its elements gives.

use crate::kernel::access;
use crate::memory::View;

/// Magnitude of infinity: only values below it are finite.
pub const MAGNITUDE_INFINITE: u32 = 0x7f80_0000;

/// Elements between two checks of the limit; their picks fit the first-level cache.
pub(super) const BLOCK: usize = 2048;

/// The bits of a value without its sign.
#[inline]
pub fn magnitude(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}

/// f32 elements: those of a view, or the sums of two.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    pub(super) a: View,
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

    pub(crate) fn views(&self) -> (View, Option<View>) {
        (self.a, self.b)
    }

    /// One element.
    #[inline]
    pub fn load(&self, index: usize) -> f32 {
        let a = access::load::<f32>(self.a, index);
        self.b.map_or(a, |b| a + access::load::<f32>(b, index))
    }
}

/// What one block gives; the vector code fills it.
pub(crate) struct Block {
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
    pub(super) fn new() -> Block {
        Block {
            offsets: [0; BLOCK + 16],
            values: [0.0; BLOCK + 16],
            count: 0,
            not_finite: 0,
        }
    }
}
