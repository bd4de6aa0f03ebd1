//! [`Atomic`]: operations on single words (clause 20).

use super::{PostError, RemoteRange, View};
use std::sync::atomic::{AtomicU64, Ordering};

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
    /// Whether the word and the place for what was there are such as devices take.
    pub(super) fn check(
        self,
        word: RemoteRange,
        result: View,
    ) -> std::result::Result<(), PostError> {
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

    /// The other way round.
    pub(super) fn of_operands(compare: Option<u64>, operand: u64) -> Atomic {
        compare.map_or(Atomic::FetchAdd(operand), |compare| Atomic::CompareSwap {
            compare,
            swap: operand,
        })
    }

    /// By this processor; what was there.
    pub(super) fn apply(self, word: &AtomicU64) -> u64 {
        // What was stored before it is seen by anyone who sees its result, and the other way round.
        match self {
            Atomic::FetchAdd(add) => word.fetch_add(add, Ordering::AcqRel),
            Atomic::CompareSwap { compare, swap } => {
                match word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(before) | Err(before) => before,
                }
            }
        }
    }
}
