//! A block one element at a time: the definition, the test oracle, and the tail of the vector code.

use super::block::{Block, MAGNITUDE_INFINITE, Source, magnitude};
use crate::kernel::access;
use std::ops::Range;

/// Appends to `block` what the elements `range` of the source give, without the first `done` of
/// them.
pub(super) fn select(
    source: Source,
    range: Range<usize>,
    done: usize,
    is_stored: bool,
    floor: u32,
    block: &mut Block,
) {
    for offset in done..range.len() {
        let index = range.start + offset;
        let value = source.load(index);
        let bits = magnitude(value);
        if bits >= MAGNITUDE_INFINITE {
            block.not_finite += 1;
            continue;
        }
        if is_stored {
            access::store(source.a, index, value);
        }
        if bits >= floor {
            block.offsets[block.count] = offset as u32;
            block.values[block.count] = value;
            block.count += 1;
        }
    }
}
