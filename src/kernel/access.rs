//! Reads and writes of [`View`]s as safe functions, for this crate alone.
//!
//! Why they may be safe: only [`View::new`], which is `unsafe`, makes a view that reaches memory.
//! The few places of this crate that call it say who keeps the bytes mapped and free of conflicting
//! references: for a region its owner (an operation holds its buffers, a transport what is
//! registered with it), for a slice of the caller the call that borrows it, for memory of a peer
//! the provider that mapped it. Code of this crate that is given a view is done with it before
//! these let go. Code outside of the crate has no such promise: for it, accesses are the `unsafe`
//! methods of [`View`], and these functions are not there.
#![allow(unsafe_code)]

use crate::limits::CACHE_LINE_BYTES;
use crate::memory::View;
use bytemuck::Pod;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The element with this index, at any alignment; zero in a size-only view.
#[inline]
pub(crate) fn load<T: Pod>(view: View, index: usize) -> T {
    // SAFETY: the maker of the view keeps it mapped (see above).
    unsafe { view.load(index) }
}

/// Stores the element with this index, at any alignment.
#[inline]
pub(crate) fn store<T: Pod>(view: View, index: usize, value: T) {
    // SAFETY: the maker of the view keeps it mapped (see above).
    unsafe { view.store(index, value) }
}

/// Reads into `target` from byte `start` on; a size-only view reads as zeros.
#[inline]
pub(crate) fn read(view: View, start: usize, target: &mut [u8]) {
    // SAFETY: the maker of the view keeps it mapped (see above).
    unsafe { view.read(start, target) }
}

/// Writes `source` from byte `start` on.
#[inline]
pub(crate) fn write(view: View, start: usize, source: &[u8]) {
    // SAFETY: the maker of the view keeps it mapped (see above).
    unsafe { view.write(start, source) }
}

/// As [`read`], where a peer may write the same bytes meanwhile.
pub(crate) fn read_contended(view: View, start: usize, target: &mut [u8]) {
    // SAFETY: the maker of the view keeps it mapped (see above).
    unsafe { view.read_contended(start, target) }
}

/// As [`write`], where a peer may write the same bytes meanwhile.
pub(crate) fn write_contended(view: View, start: usize, source: &[u8]) {
    // SAFETY: the maker of the view keeps it mapped (see above).
    unsafe { view.write_contended(start, source) }
}

/// Sets every byte.
#[inline]
pub(crate) fn fill(view: View, byte: u8) {
    // SAFETY: the maker of the view keeps it mapped (see above).
    unsafe { view.fill(byte) }
}

/// Copies by the C library, whatever the length. The views are as for [`super::copy`].
#[inline]
pub(super) fn copy_bytes(source: View, destination: View) {
    // SAFETY: the makers of the views keep them mapped (see above).
    unsafe { destination.copy_from(source) }
}

/// The aligned 64-bit word at byte `start`, as an atomic. Panics on a size-only view.
#[inline]
pub(crate) fn word(view: &View, start: usize) -> &AtomicU64 {
    // SAFETY: the maker of the view keeps it mapped (see above).
    unsafe { view.word(start) }
}

/// The aligned cache line at byte `start`, as atomics. Panics on a size-only view.
#[inline]
pub(crate) fn line(view: &View, start: usize) -> &[AtomicU64; CACHE_LINE_BYTES / 8] {
    // SAFETY: the maker of the view keeps it mapped (see above).
    unsafe { view.line(start) }
}

/// The aligned 32-bit word at byte `start`, as an atomic. Panics on a size-only view.
#[inline]
pub(crate) fn word32(view: &View, start: usize) -> &AtomicU32 {
    // SAFETY: the maker of the view keeps it mapped (see above).
    unsafe { view.word32(start) }
}
