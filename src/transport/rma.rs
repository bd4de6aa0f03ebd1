//! [`Rma`]: puts, gets and atomic operations, by which a rank reaches regions of its peers (clauses
//! 8, 11 and 20).

use super::{PostError, words};
use crate::memory::{RegionKey, View};
use crate::types::Rank;

/// A place in a peer's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRange {
    /// The peer's region.
    pub key: RegionKey,
    /// Byte offset in it.
    pub offset: u64,
}

impl RemoteRange {
    /// As messages of the protocols name it.
    pub(super) fn of(key: u32, offset: u64) -> RemoteRange {
        let key = RegionKey(key);
        RemoteRange { key, offset }
    }
}

/// What is done to an aligned word of 8 bytes, in the byte order of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Adds, and wraps.
    FetchAdd(u64),
    /// Writes `swap` where `compare` is.
    CompareSwap {
        /// What must be there.
        compare: u64,
        /// What is there then.
        swap: u64,
    },
}

impl Atomic {
    /// Checks the word's alignment and the result's length, as devices want them.
    pub(super) fn check(self, word: RemoteRange, result: View) -> Result<(), PostError> {
        match result.len_bytes() == 8 && word.offset.is_multiple_of(8) {
            true => Ok(()),
            false => Err(PostError::invalid(format!(
                "an atomic operation at offset {} with {} bytes for the result: a multiple of 8, and 8 bytes",
                word.offset,
                result.len_bytes()
            ))),
        }
    }

    /// What must be there (`None`: the operand is added), and the operand.
    pub(super) fn operands(self) -> (Option<u64>, u64) {
        match self {
            Atomic::FetchAdd(add) => (None, add),
            Atomic::CompareSwap { compare, swap } => (Some(compare), swap),
        }
    }

    /// The operation with these operands.
    pub(super) fn of_operands(compare: Option<u64>, operand: u64) -> Atomic {
        compare.map_or(Atomic::FetchAdd(operand), |compare| Atomic::CompareSwap {
            compare,
            swap: operand,
        })
    }

    /// By this processor; what was there.
    pub(super) fn apply(self, word: &View) -> u64 {
        match self {
            Atomic::FetchAdd(add) => words::fetch_and_add(word, 0, add),
            Atomic::CompareSwap { compare, swap } => {
                words::compare_and_swap(word, 0, (compare, swap))
            }
        }
    }
}

/// Puts, gets and atomic operations.
#[allow(unsafe_code)] // Posts ask their callers for a promise.
pub trait Rma {
    /// Makes a region of this rank known to a peer before its first use there. Idempotent.
    fn export(&mut self, _peer: Rank, _key: RegionKey) -> Result<(), PostError> {
        Ok(())
    }

    /// Writes into a peer's region.
    ///
    /// # Safety
    /// "Memory of posts" in the [module](super).
    unsafe fn post_put(
        &mut self,
        peer: Rank,
        source: View,
        destination: RemoteRange,
        token: u64,
    ) -> Result<(), PostError>;

    /// Reads from a peer's region.
    ///
    /// # Safety
    /// "Memory of posts" in the [module](super).
    unsafe fn post_get(
        &mut self,
        peer: Rank,
        source: RemoteRange,
        destination: View,
        token: u64,
    ) -> Result<(), PostError>;

    /// Changes a word of a region, at a multiple of 8; what was there comes to the 8 bytes of
    /// `result` (clause 20). The owner's processor does it, while its rank polls, or the poster's
    /// where it maps the memory. So it is atomic with a processor's own atomic instructions on the
    /// word, too.
    ///
    /// # Safety
    /// "Memory of posts" in the [module](super).
    unsafe fn post_atomic(
        &mut self,
        peer: Rank,
        what: Atomic,
        word: RemoteRange,
        result: View,
        token: u64,
    ) -> Result<(), PostError>;
}
