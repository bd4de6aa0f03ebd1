//! [`Inbox`]: the tensors that callers have announced, on their way to the service.

use crate::comm::raw::RawBuffer;
use crate::error::Result;
use crate::memory::{Access, Kept};
use crate::time::Time;

/// A tensor that was announced, borrowed until the step is over.
#[derive(Debug)]
pub struct Announced {
    pub raw: RawBuffer,
    kept: Option<Kept>,
}

impl Announced {
    pub fn new(raw: &RawBuffer) -> Result<Announced> {
        let held = raw.borrow_all(Access::Exclusive, "a step of a fusion buffer")?;
        Ok(Announced {
            raw: raw.clone(),
            kept: raw.keep(held),
        })
    }

    /// Ends the borrow. No operation uses the tensor any more.
    pub fn end(self) {
        if let Some(kept) = self.kept {
            kept.end();
        }
    }
}

/// What callers have announced and the service has not taken yet.
#[derive(Debug, Default)]
pub struct Inbox {
    /// Index, buffer and time of the announcement; each tensor at most once.
    pub tensors: Vec<(usize, Announced, Time)>,
    /// When the backward pass ended, if it has.
    pub ended_at: Option<Time>,
}

impl Inbox {
    pub fn with_capacity(tensors_count: usize) -> Inbox {
        Inbox {
            tensors: Vec::with_capacity(tensors_count),
            ended_at: None,
        }
    }
}
