//! The words of windows, by which ranks tell each other what lies in memory.
//!
//! A rank puts bytes and then adds to a word. Who reads the sum reads these bytes. So a parameter
//! server finds a gradient in a worker's slot, and the worker finds out that it may put the next
//! one there. An atomic operation tells of all that its rank stored before it, and knows of all
//! that was told by the value that it finds: locks and counters work, too.
//!
//! `tests/loom.rs` compiles this file against a model of memory and finds a failure as soon as one
//! ordering is weaker.

use crate::kernel;
use crate::memory::View;
use crate::sync::Ordering;

/// The word at byte `start`. What was stored before the operation that made it so is there.
pub fn load(memory: &View, start: usize) -> u64 {
    // Pairs with the release halves below.
    kernel::word(memory, start).load(Ordering::Acquire)
}

/// Writes a word of this rank, which no other rank uses until an operation on another word has told
/// it that it may.
pub fn store(memory: &View, start: usize, value: u64) {
    // That operation publishes this, too.
    kernel::word(memory, start).store(value, Ordering::Relaxed);
}

/// Adds, and wraps; what was there.
pub fn fetch_and_add(memory: &View, start: usize, add: u64) -> u64 {
    // Acquire: the last of several that add reads what the others stored. Release: who reads the
    // sum reads what this rank stored.
    kernel::word(memory, start).fetch_add(add, Ordering::AcqRel)
}

/// Writes `swap` if `compare` is there; what was there.
pub fn compare_and_swap(memory: &View, start: usize, (compare, swap): (u64, u64)) -> u64 {
    let word = kernel::word(memory, start);
    // Acquire and release: a lock is taken and given back. The second acquire: another value may
    // tell that something is there.
    match word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire) {
        Ok(before) | Err(before) => before,
    }
}
