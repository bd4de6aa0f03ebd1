//! Ranges without byte counts: blocks of a run-time count, or lengths from run-time slots.

use super::{BufferId, SlotId};

/// The run-time numbers that give ranges their lengths, in elements.
#[derive(Clone, Copy, Debug)]
pub struct Count<'a> {
    /// Elements per rank, as the caller gave them.
    pub count: u64,
    /// Run-time offsets and lengths.
    pub slots: &'a [u64],
}

/// The boundary before block `index` of `of` equal blocks of `times * count` elements:
/// `floor(index * times * count / of)`. Equal fractions are equal boundaries for every count, so
/// blocks of different subdivisions nest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Point {
    /// Block boundary, `0..=of`.
    pub index: u32,
    /// Number of blocks, at least 1.
    pub of: u32,
    /// How many times the caller's count is subdivided.
    pub times: u32,
}

impl Point {
    /// The beginning of a buffer.
    pub const ZERO: Point = Point::new(0, 1, 1);

    const fn new(index: u32, of: u32, times: u32) -> Point {
        Point { index, of, times }
    }

    /// Position in elements.
    #[inline]
    pub fn position(self, count: u64) -> u64 {
        let total = count * u64::from(self.times);
        let (index, of) = (u64::from(self.index), u64::from(self.of));
        // Most ranges are whole vectors, and dividing for them would take a tenth of a small
        // operation.
        if index == 0 {
            return 0;
        } else if index == of {
            return total;
        }
        // total / of * index <= total, and (total % of) * index < of^2: no product leaves 64 bits.
        total / of * index + total % of * index / of
    }

    /// Whether this boundary lies at or before `other` for every count.
    pub fn is_at_or_before(self, other: Point) -> bool {
        let left = u128::from(self.index) * u128::from(self.times) * u128::from(other.of);
        let right = u128::from(other.index) * u128::from(other.times) * u128::from(self.of);
        left <= right
    }
}

/// How long a range is and where it begins, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extent {
    /// Blocks `first .. first + len` of `of` blocks of `times * count` elements.
    Blocks {
        /// First block.
        first: u32,
        /// Number of blocks.
        len: u32,
        /// Blocks in all.
        of: u32,
        /// How many times the caller's count is subdivided: 1 for a vector, `ranks` for a block per
        /// rank.
        times: u32,
    },
    /// Offset and length from slots. Ranges with different offset slots are taken to be disjoint:
    /// the caller's layout says so, and it is checked when an operation starts.
    Slots {
        /// Slot of the offset.
        offset: SlotId,
        /// Slot of the length.
        length: SlotId,
    },
}

impl Extent {
    /// All `times * count` elements.
    pub const fn all(times: u32) -> Extent {
        Extent::Blocks {
            first: 0,
            len: 1,
            of: 1,
            times,
        }
    }

    /// Block `index` of `of` of the caller's count.
    pub const fn block(index: u32, of: u32) -> Extent {
        Extent::Blocks {
            first: index,
            len: 1,
            of,
            times: 1,
        }
    }

    /// Blocks `first .. first + len` of `of` of the caller's count.
    pub const fn blocks(first: u32, len: u32, of: u32) -> Extent {
        Extent::Blocks {
            first,
            len,
            of,
            times: 1,
        }
    }

    /// The whole part of rank `index` in a buffer with one part of `count` elements per rank.
    pub const fn part(index: u32, ranks: u32) -> Extent {
        Extent::Blocks {
            first: index,
            len: 1,
            of: ranks,
            times: ranks,
        }
    }

    /// First element and number of elements.
    #[inline]
    pub fn resolve(&self, count: &Count<'_>) -> (u64, u64) {
        match *self {
            Extent::Blocks {
                first,
                len,
                of,
                times,
            } => {
                let start = Point::new(first, of, times).position(count.count);
                let end = Point::new(first + len, of, times).position(count.count);
                (start, end - start)
            }
            Extent::Slots { offset, length } => {
                (count.slots[offset as usize], count.slots[length as usize])
            }
        }
    }

    /// The greatest length of any run of as many blocks: what a buffer for it must hold.
    pub fn length_max(&self, count: &Count<'_>) -> u64 {
        match *self {
            Extent::Blocks { len, of, times, .. } => {
                (u128::from(count.count) * u128::from(times) * u128::from(len))
                    .div_ceil(u128::from(of)) as u64
            }
            Extent::Slots { length, .. } => count.slots[length as usize],
        }
    }

    fn bounds(&self) -> Option<(Point, Point)> {
        match *self {
            Extent::Blocks {
                first,
                len,
                of,
                times,
            } => Some((
                Point::new(first, of, times),
                Point::new(first + len, of, times),
            )),
            Extent::Slots { .. } => None,
        }
    }
}

/// Elements of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    /// Which buffer.
    pub buffer: BufferId,
    /// Which elements, in the coordinates of the vector they belong to.
    pub extent: Extent,
    /// Where the buffer begins in those coordinates: [`Point::ZERO`] for whole vectors. A scratch
    /// buffer that holds block i of a vector has its origin at block i.
    pub origin: Point,
}

impl Range {
    /// A range of a buffer that begins where the vector does.
    pub const fn new(buffer: BufferId, extent: Extent) -> Range {
        Range {
            buffer,
            extent,
            origin: Point::ZERO,
        }
    }

    /// The elements of `extent` in a buffer that begins with the first of them.
    pub fn at_start(buffer: BufferId, extent: Extent) -> Range {
        let origin = extent.bounds().map_or(Point::ZERO, |(start, _)| start);
        Range {
            buffer,
            extent,
            origin,
        }
    }

    /// First element inside the buffer, and number of elements.
    #[inline]
    pub fn resolve(&self, count: &Count<'_>) -> (u64, u64) {
        let (start, len) = self.extent.resolve(count);
        (start - self.origin.position(count.count), len)
    }

    /// Whether it begins with the buffer's first element, for every count (never wrongly true).
    fn begins_its_buffer(&self) -> bool {
        match self.extent.bounds() {
            Some((start, _)) => start == self.origin || (start.index, self.origin.index) == (0, 0),
            None => false,
        }
    }

    /// Whether both begin one buffer, and their lengths differ by at most one element for every
    /// count.
    pub fn is_like(&self, other: &Range) -> bool {
        let is_block_alike = match (self.extent, other.extent) {
            (
                Extent::Blocks { len, of, times, .. },
                Extent::Blocks {
                    len: l,
                    of: o,
                    times: t,
                    ..
                },
            ) => (len, of, times) == (l, o, t),
            _ => false,
        };
        let is_same_buffer = self.buffer == other.buffer;
        is_same_buffer && is_block_alike && self.begins_its_buffer() && other.begins_its_buffer()
    }

    /// Whether some count exists for which both ranges share an element (never wrongly false).
    #[inline]
    pub fn may_overlap(&self, other: &Range) -> bool {
        if self.buffer != other.buffer {
            return false;
        }
        if let Some([(a, a_end), (b, b_end)]) = self.like_blocks(other) {
            return a < b_end && b < a_end;
        }
        match (self.extent, other.extent) {
            (Extent::Slots { offset: a, .. }, Extent::Slots { offset: b, .. }) => a == b,
            _ => match (self.extent.bounds(), other.extent.bounds()) {
                (Some(a), Some(b)) if self.origin == other.origin => {
                    !a.1.is_at_or_before(b.0) && !b.1.is_at_or_before(a.0)
                }
                _ => true,
            },
        }
    }

    /// Whether every element of `other` is in this range, for every count (never wrongly true).
    #[inline]
    pub fn covers(&self, other: &Range) -> bool {
        if self.buffer != other.buffer || self.origin != other.origin {
            return false;
        }
        if let Some([(a, a_end), (b, b_end)]) = self.like_blocks(other) {
            return a <= b && b_end <= a_end;
        }
        match (self.extent.bounds(), other.extent.bounds()) {
            (Some(a), Some(b)) => a.0.is_at_or_before(b.0) && b.1.is_at_or_before(a.1),
            _ => self.extent == other.extent,
        }
    }

    /// The first block and the end of both, if they are blocks of one subdivision, as most are: a
    /// long schedule compares many.
    #[inline]
    fn like_blocks(&self, other: &Range) -> Option<[(u32, u32); 2]> {
        let blocks = |range: &Range| match range.extent {
            Extent::Blocks {
                first,
                len,
                of,
                times,
            } => Some(((first, first + len), (of, times, range.origin))),
            Extent::Slots { .. } => None,
        };
        let (own, theirs) = (blocks(self)?, blocks(other)?);
        (own.1 == theirs.1).then_some([own.0, theirs.0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_tile_every_count_and_nest() {
        for count in [0u64, 1, 2, 6, 7, 8, 97, 1 << 47] {
            for of in [1u32, 2, 3, 7, 32, 1024] {
                let point = |index, of| Point::new(index, of, 1).position(count);
                assert_eq!(point(of, of), count);
                for i in 0..of {
                    let len = point(i + 1, of) - point(i, of);
                    assert!(len >= count / u64::from(of) && len <= count.div_ceil(u64::from(of)));
                    assert_eq!(point(i, of), point(i * 3, of * 3));
                }
            }
        }
    }

    #[test]
    fn a_buffer_for_some_blocks_holds_any_run_of_them() {
        let count = Count {
            count: 10,
            slots: &[],
        };
        for first in 0..4 {
            let extent = Extent::blocks(first, 2, 6);
            assert!(extent.resolve(&count).1 <= extent.length_max(&count));
        }
    }

    #[test]
    fn overlap_is_exact_for_blocks_and_conservative_else() {
        let range = |first, len, of| Range::new(BufferId::OUTPUT, Extent::blocks(first, len, of));
        assert!(!range(0, 1, 2).may_overlap(&range(2, 2, 4)));
        assert!(range(0, 2, 3).may_overlap(&range(1, 1, 2)));
        assert!(range(0, 1, 1).covers(&range(3, 1, 7)));
        assert!(!range(3, 1, 7).covers(&range(0, 1, 1)));
        let slots = |offset| {
            Range::new(
                BufferId::OUTPUT,
                Extent::Slots {
                    offset,
                    length: offset + 1,
                },
            )
        };
        assert!(!slots(0).may_overlap(&slots(2)) && slots(0).may_overlap(&slots(0)));
        assert!(slots(0).may_overlap(&range(0, 1, 2)));
        let scratch = |first| Range::at_start(BufferId(2), Extent::block(first, 4));
        assert!(
            scratch(0).may_overlap(&scratch(1)),
            "both begin at the start of the scratch buffer"
        );
    }

    #[test]
    fn a_scratch_range_begins_at_its_origin() {
        let count = Count {
            count: 10,
            slots: &[],
        };
        let range = Range::at_start(BufferId(2), Extent::block(2, 3));
        assert_eq!(range.resolve(&count), (0, 4));
        let whole = Range::new(BufferId(1), Extent::block(2, 3));
        assert_eq!(whole.resolve(&count), (6, 4));
    }
}
