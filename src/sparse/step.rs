//! What a step of any algorithm starts from, what it knows, and what it gives.

use super::choose::Prices;
use super::counters::Counters;
use super::entries::{Entries, Pack};
use super::format::ValueFormat;
use super::options::SparseOptions;
use super::spare::Spare;
use super::state::OkTopkState;

/// What one step of one rank starts from.
#[derive(Clone, Debug)]
pub struct Step<E> {
    /// What this rank selected of its accumulator: no zeros, nothing that is not finite.
    pub picks: E,
    /// Elements of its accumulator that are not finite.
    pub not_finite: u64,
    /// Coordinates of the vector.
    pub count: u64,
    /// Entries of the result, `1..=count`.
    pub k: u64,
}

/// What a step gives.
#[derive(Clone, Debug)]
pub struct Finished<E> {
    /// The sum's entries that all ranks apply; the same bits on every rank. Never a zero.
    pub result: E,
    /// This rank's picks: they become zero in the residual, but for what returns. None if the step
    /// is void.
    pub picks: E,
    /// What this rank's residual gets back; an index may occur in several lists.
    pub returned: Vec<E>,
    /// Whether picks that the result does not have return whole, without being in those lists: the
    /// pass that changes the residual meets picks and result. [`Finished::all_returned`] has them.
    pub is_rest_returned: bool,
    /// The step did not take place on any rank, because something was not finite and the policy is
    /// strict.
    pub is_void: bool,
    /// Values that are not finite, on all ranks and in the sums.
    pub not_finite: u64,
    /// Non-zeros of the sum of all picks, where the algorithm gets to know that.
    pub reduced: Option<u64>,
    /// Traffic of this rank.
    pub counters: Counters,
    /// What Ok-Topk carries to the next step; as before the step if that is void.
    pub state: Option<OkTopkState>,
}

impl<E: Entries> Finished<E> {
    pub(super) fn new(result: E, returned: Vec<E>) -> Finished<E> {
        Finished {
            result,
            picks: E::empty(0, 0),
            returned,
            is_rest_returned: false,
            is_void: false,
            not_finite: 0,
            reduced: None,
            counters: Counters::default(),
            state: None,
        }
    }

    /// Everything that this rank's residual gets back.
    pub fn all_returned(&self) -> Vec<E> {
        let mut all = self.returned.clone();
        if self.is_rest_returned {
            let rest = (self.picks).returned(&self.picks, &self.result, &Spare::default());
            all.push(rest);
        }
        all
    }

    pub(super) fn void(not_finite: u64) -> Finished<E> {
        Finished {
            is_void: true,
            not_finite,
            ..Finished::new(E::empty(0, 0), Vec::new())
        }
    }
}

/// What all algorithms know of a step.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub pack: Pack,
    /// Whether something that is not finite makes the step void.
    pub is_strict: bool,
    pub options: SparseOptions,
    pub prices: Prices,
}

impl Terms {
    /// These terms for values that are sent as `f32`.
    pub fn exact(&self) -> Terms {
        let mut terms = self.clone();
        terms.pack.values = ValueFormat::F32;
        terms
    }
}
