//! Reads and writes of regions of the tools, as safe functions.
//!
//! They are safe because a command keeps its regions until it is done with their views, and makes
//! no references to their bytes. What it posts lies in regions that its transport holds, too.
#![allow(unsafe_code)]

use linerate::Element;
use linerate::transport::View;
use std::sync::atomic::AtomicU64;

/// The element with this index.
#[inline]
pub fn load<T: Element>(view: View, index: usize) -> T {
    // SAFETY: the command keeps the region.
    unsafe { view.load(index) }
}

/// Stores the element with this index.
#[inline]
pub fn store<T: Element>(view: View, index: usize, value: T) {
    // SAFETY: the command keeps the region.
    unsafe { view.store(index, value) }
}

/// Reads into `target` from byte `start` on.
#[inline]
pub fn read(view: View, start: usize, target: &mut [u8]) {
    // SAFETY: the command keeps the region.
    unsafe { view.read(start, target) }
}

/// Writes `source` from byte `start` on.
#[inline]
pub fn write(view: View, start: usize, source: &[u8]) {
    // SAFETY: the command keeps the region.
    unsafe { view.write(start, source) }
}

/// Sets every byte.
pub fn fill(view: View, byte: u8) {
    // SAFETY: the command keeps the region.
    unsafe { view.fill(byte) }
}

/// The aligned word at byte `start`.
#[inline]
pub fn word(view: &View, start: usize) -> &AtomicU64 {
    // SAFETY: the command keeps the region.
    unsafe { view.word(start) }
}
