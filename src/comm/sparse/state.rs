//! What a [`SparseAllreduce`] holds between steps and during a step. Its methods are in the other
//! files of this folder.

use super::carrier::Carrier;
use super::residuals::Residuals;
use super::result::SparseResult;
use crate::comm::raw::RawBuffer;
use crate::comm::{Communicator, Operation};
use crate::fusion::TensorSpec;
use crate::memory::{Kept, ProcessOwned};
use crate::sparse::{
    Algorithm, Arrived, Experience, Finished, LocalPrices, LocalSelection, Machine, OkTopkState,
    Prices, Spare, SparseOptions, Stream,
};
use crate::time::Time;
use std::ops::Range;
use std::time::Duration;

/// A sparse allreduce of the same tensors in every step, with their residuals.
///
/// Every step is a collective: all ranks of the communicator run it, in the same order as their
/// other collectives. k is the number of selected entries of all tensors together, or of each
/// tensor ([`SparseOptions::per_tensor`]).
///
/// What a step does not deliver stays in the residuals, so nothing of a gradient is lost except for
/// the rounding of `f32` additions.
///
/// In a forked child every step returns an error. The child has its own copy of the residuals, and
/// may save them.
///
/// ```
/// use linerate::{Communicator, Config, DataType, SparseAllreduce, SparseOptions, TensorSpec};
/// use linerate::options::Amount;
/// let comm = Communicator::join(0, 1, "a sparse job", Config::default())?;
/// let tensor = TensorSpec { name: "weights".into(), count: 4, dtype: DataType::F32 };
/// let options = SparseOptions { amount: Amount::Count(1), ..SparseOptions::default() };
/// let mut sparse = SparseAllreduce::new(&comm, vec![tensor], options)?;
/// let (gradient, weights) = (comm.alloc::<f32>(4)?, comm.alloc::<f32>(4)?);
/// gradient.write(0, &[1.0, -3.0, 2.0, 0.0])?;
/// let result = sparse.run(&[gradient])?;
/// result.add_to(&[weights.clone()], -0.5)?;
/// assert_eq!(*weights.as_slice()?, [0.0, 1.5, 0.0, 0.0]);
/// assert_eq!(*sparse.residual("weights").unwrap().as_slice()?, [1.0, 0.0, 2.0, 0.0]);
/// # Ok::<(), linerate::Error>(())
/// ```
pub struct SparseAllreduce {
    pub(super) comm: Communicator,
    pub(super) tensors: Vec<TensorSpec>,
    /// The index of each tensor's first coordinate among all coordinates, and last their number.
    pub(super) starts: Vec<u64>,
    pub(super) options: SparseOptions,
    pub(super) residuals: Residuals,
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
