//! [`CheckError`]: what is wrong, and where.

use crate::schedule::StepId;
use crate::types::Rank;
use std::fmt;

/// Kinds of mistakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The schedules do not fit each other or the request: ranks, buffers, edges.
    Malformed,
    /// A range leaves its buffer.
    Bounds,
    /// Ranges of one step, or both ends of a message, differ in length.
    Length,
    /// A send without a receive, or the reverse.
    Unmatched,
    /// A signal is sent twice on one lane, or mail is read that was not sent.
    Signal,
    /// Steps that can never start.
    Deadlock,
    /// Two steps touch an element, one of them writes it, and nothing orders them.
    Unordered,
    /// A peer's memory is touched before that peer has arrived or after it may have left.
    Lifetime,
    /// An element is read that nobody has written.
    Undefined,
    /// A contributor is counted twice, or different elements are combined.
    Combined,
    /// An input is not multiplied exactly once.
    Premultiplied,
    /// The last act of the operator is not applied exactly once, at the end.
    Finished,
    /// An output holds something else than the collective's definition says.
    Result,
    /// Two ranks computed the same result in different ways, so their bits may differ.
    Tree,
    /// An input was changed although the operation is not in place.
    InputChanged,
    /// A rank may leave a barrier before another has come.
    Barrier,
}

/// The first mistake found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckError {
    /// What kind.
    pub fault: Fault,
    /// Where: the rank.
    pub rank: Rank,
    /// Where: its step, if one is to blame.
    pub step: Option<StepId>,
    /// Where: the element of the buffer that the detail names.
    pub element: Option<u64>,
    /// What is wrong.
    pub detail: String,
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: rank {}", self.fault, self.rank)?;
        if let Some(step) = self.step {
            write!(f, ", step {step}")?;
        }
        if let Some(element) = self.element {
            write!(f, ", element {element}")?;
        }
        write!(f, ": {}", self.detail)
    }
}

impl std::error::Error for CheckError {}

impl CheckError {
    pub(super) fn new(
        fault: Fault,
        rank: Rank,
        step: Option<StepId>,
        detail: impl Into<String>,
    ) -> CheckError {
        CheckError {
            fault,
            rank,
            step,
            element: None,
            detail: detail.into(),
        }
    }

    pub(super) fn at(mut self, element: u64) -> CheckError {
        self.element = Some(element);
        self
    }
}
