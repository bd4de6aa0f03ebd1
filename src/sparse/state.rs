//! [`OkTopkState`]: what Ok-Topk carries from step to step.

use super::foresight::Foresight;
use super::options::{Mode, SparseOptions};
use super::threshold::{Thresholds, Tracker};

/// What Ok-Topk carries from one step to the next; equal on all ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OkTopkState {
    /// Steps so far.
    pub steps: u64,
    /// Region r is `bounds[r]..bounds[r + 1]`; empty before the first step.
    pub bounds: Vec<u64>,
    /// From where on entries of the sum are selected, once there is one.
    pub tracker: Option<Tracker>,
    /// Where the sum's k-th largest should lie, if the last step found it exactly.
    pub foresight: Option<Foresight>,
    /// Some rank received more than 3k words: the next step cuts anew.
    pub is_forced: bool,
}

impl OkTopkState {
    /// The threshold to use again in this step, if any.
    pub(super) fn guess(&self, options: &SparseOptions) -> Option<Thresholds> {
        let is_due = self.steps.is_multiple_of(options.reuse_steps);
        let tracker = self
            .tracker
            .filter(|_| options.mode != Mode::Exact && !is_due);
        tracker.map(|tracker| Thresholds::of(tracker.threshold))
    }
}
