//! [`Reduction`]: what decides which loops run.

use super::isa::Isa;
use crate::types::{Combine, DataType, Finish};

/// What a reduction does and by which code, but not on which memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reduction {
    pub isa: Isa,
    pub stores: Stores,
    pub dtype: DataType,
    pub combine: Combine,
    pub finish: Finish,
}

impl Reduction {
    /// The reduction by the fastest code for the type.
    #[inline]
    pub fn best(stores: Stores, dtype: DataType, combine: Combine, finish: Finish) -> Reduction {
        Reduction {
            isa: Isa::best_for(dtype),
            stores,
            dtype,
            combine,
            finish,
        }
    }
}

/// How results go to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stores {
    /// Through the caches.
    Cached,
    /// By non-temporal stores, if possible.
    Streamed,
}
