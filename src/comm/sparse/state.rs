//! [`Steps`]: what a sparse allreduce holds between steps and during a step. Its methods are in the
//! other files of this folder.

use super::carrier::Carrier;
use super::residuals::Residuals;
use super::result::SparseResult;
use crate::comm::raw::RawBuffer;
use crate::comm::{Communicator, Operation};
use crate::error::Result;
use crate::memory::{Kept, ProcessOwned};
use crate::sparse::{
    Algorithm, Arrived, Experience, Finished, LocalPrices, LocalSelection, Machine, OkTopkState,
    Prices, Spare, SparseOptions, Stream,
};
use crate::time::Time;
use crate::wait::QueuePlace;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The state of a [`SparseAllreduce`](super::SparseAllreduce) that its steps change.
pub(super) struct Steps {
    pub(super) comm: Communicator,
    /// The index of each tensor's first coordinate among all coordinates, and last their number.
    pub(super) starts: Vec<u64>,
    pub(super) options: SparseOptions,
    pub(super) residuals: Arc<Residuals>,
    pub(super) units: Vec<Unit>,
    pub(super) steps: u64,
    pub(super) carrier: Carrier,
    /// Memory of earlier steps, which machines, messages and results use again.
    pub(super) spare: Spare,
    /// The vector that dense steps reduce; allocated in the first dense step.
    pub(super) dense: Option<RawBuffer>,
    pub(super) prices: (Prices, LocalPrices),
    /// The step under way.
    pub(super) pending: ProcessOwned<Option<Pending>>,
    /// What came out of a step that a queue was told of, until it is taken.
    pub(super) ended: Option<Result<SparseResult>>,
    /// Number of turns that all steps have taken so far.
    pub(super) turns: u64,
}

impl Steps {
    /// This rank's picks of a tensor in the last step, with indices relative to the tensor.
    pub(super) fn picks_of(&self, tensor: usize) -> Vec<(u64, f32)> {
        let mut units = self.units.iter();
        let unit = units.find(|unit| unit.tensors.contains(&tensor));
        let unit = unit.expect("every tensor is of a unit");
        let first = self.starts[unit.tensors.start];
        let (start, end) = (self.starts[tensor] - first, self.starts[tensor + 1] - first);
        let Stream { indices, values } = &unit.memory;
        let place = |end: u64| indices.partition_point(|index| *index < end);
        let range = place(start)..place(end);
        let indices = indices[range.clone()].iter().map(|i| i - start);
        indices.zip(values[range].iter().copied()).collect()
    }

    /// Forgets the thresholds and what steps took. The next steps find them anew.
    pub(super) fn forget_thresholds(&mut self) {
        for unit in &mut self.units {
            unit.selection = LocalSelection::default();
            unit.state = OkTopkState::default();
            unit.reduced = None;
            unit.dense_steps = 0;
            unit.experience = Experience::default();
            unit.untold = None;
        }
    }
}

/// Tensors that are selected from and reduced together, as one vector.
pub(super) struct Unit {
    pub(super) tensors: Range<usize>,
    pub(super) k: u64,
    pub(super) selection: LocalSelection,
    pub(super) state: OkTopkState,
    /// Non-zeros of the sum of all picks, in the last step that counted them.
    pub(super) reduced: Option<u64>,
    /// Number of dense steps since the last sparse one. Dense steps do not count the non-zeros.
    pub(super) dense_steps: u64,
    /// This rank's picks in the last step, with indices relative to the unit. The next step uses
    /// their memory again.
    pub(super) memory: Stream,
    /// What steps took, compared with the cost model; learned with [`Algorithm::Auto`].
    pub(super) experience: Experience,
    /// The times of the last step, if the ranks are to tell each other these times.
    pub(super) untold: Option<Untold>,
}

/// What a step of one unit took on this rank.
pub(super) struct Untold {
    pub(super) algorithm: Algorithm,
    /// Seconds that the step takes by the cost model.
    pub(super) modelled: f64,
    pub(super) communicate: Duration,
    /// Time for the selection and for applying the result.
    pub(super) own: Duration,
}

/// A step under way.
pub(super) struct Pending {
    /// `None`: the step flushes the residuals, without gradients.
    pub(super) gradients: Option<Vec<RawBuffer>>,
    /// The borrows of the gradients, of the residuals, and of the vector of dense steps.
    pub(super) _kept: Vec<Kept>,
    pub(super) unit: usize,
    pub(super) task: Task,
    pub(super) operation: Option<Operation>,
    /// The queue that is told of its end.
    pub(super) place: Option<QueuePlace>,
    pub(super) arrived: Arrived,
    /// The outcomes of the units that have ended.
    pub(super) outcomes: Vec<Outcome>,
    /// The selections that the units had before this step. A step that does not count restores
    /// them.
    pub(super) selections: Vec<LocalSelection>,
    /// When the communication of the present unit began.
    pub(super) since: Time,
    /// What each unit took, for the units that have begun.
    pub(super) spent: Vec<Spent>,
    pub(super) result: SparseResult,
}

/// What one unit took, without applying its result.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spent {
    pub(super) unit: usize,
    pub(super) algorithm: Algorithm,
    pub(super) select: Duration,
    pub(super) communicate: Duration,
}

impl Pending {
    /// Adds to the times of the present unit.
    pub(super) fn spend(&mut self, select: Duration, communicate: Duration) {
        self.result.times.select += select;
        self.result.times.communicate += communicate;
        if let Some(spent) = self.spent.last_mut() {
            spent.select += select;
            spent.communicate += communicate;
        }
    }
}

/// What the present unit is doing.
pub(super) enum Task {
    /// It has not begun.
    Begin,
    /// The machine of a sparse algorithm runs.
    Machine(Box<Machine<Stream>>),
    /// The ranks tell each other how many values are not finite, before a dense allreduce.
    Census,
    /// The dense allreduce is under way.
    Dense,
    /// The ranks tell each other what the last step took.
    Telling,
}

/// What came out of a unit's step.
pub(super) enum Outcome {
    /// The unit has no elements.
    Nothing,
    Sparse(Box<Finished<Stream>>),
    /// The sum is in the dense buffer. `born` of its values are not finite.
    Dense {
        born: u64,
    },
}
