//! [`Inbox`]: what callers have announced.

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

    /// No operation uses it any more.
    pub fn end(self) {
        if let Some(kept) = self.kept {
            kept.end();
        }
    }
}

/// What was announced and not yet taken by the service.
#[derive(Debug, Default)]
pub struct Inbox {
    /// At most one of each.
    pub tensors: Vec<(usize, Announced, Time)>,
    /// The end of the backward pass.
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
