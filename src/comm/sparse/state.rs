//! What a [`SparseAllreduce`] holds between steps and during one. It has methods in the files
//! beside this one.

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
/// Every step is a collective of all ranks of the communicator, in the same order on all of them. k
/// counts over all tensors of the call, or over each ([`SparseOptions::per_tensor`]).
///
/// Nothing of a gradient is lost but what additions of `f32` round away.
///
/// In a forked child every step is an error. The residuals there are the child's own copy: it may
/// save them, say.
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
    /// Where each tensor begins among all coordinates, and the end.
    pub(super) starts: Vec<u64>,
    pub(super) options: SparseOptions,
    pub(super) residuals: Residuals,
    pub(super) units: Vec<Unit>,
    pub(super) steps: u64,
    pub(super) carrier: Carrier,
    /// Memory of steps before, for machines, messages and results.
    pub(super) spare: Spare,
    /// For dense steps, once there was one.
    pub(super) dense: Option<RawBuffer>,
    pub(super) prices: (Prices, LocalPrices),
    /// The step under way.
    pub(super) pending: ProcessOwned<Option<Pending>>,
}

/// Tensors that are one vector.
pub(super) struct Unit {
    pub(super) tensors: Range<usize>,
    pub(super) k: u64,
    pub(super) selection: LocalSelection,
    pub(super) state: OkTopkState,
    pub(super) reduced: Option<u64>,
    /// Dense steps since the last one that could see the fill-in.
    pub(super) dense_steps: u64,
    /// This rank's picks of the step before, indices relative to the unit; memory for the next.
    pub(super) memory: Stream,
    /// What steps took, where the algorithm is chosen.
    pub(super) experience: Experience,
    /// The last step, whose time the ranks are to tell each other.
    pub(super) untold: Option<Untold>,
}

/// A step of one unit on this rank.
pub(super) struct Untold {
    pub(super) algorithm: Algorithm,
    /// What the model says of it.
    pub(super) modelled: f64,
    pub(super) communicate: Duration,
    pub(super) own: Duration,
}

/// A step under way.
pub(super) struct Pending {
    /// `None`: only the residuals are flushed.
    pub(super) gradients: Option<Vec<RawBuffer>>,
    /// The borrows of gradients and residuals, and of the result of a dense step before.
    pub(super) _kept: Vec<Kept>,
    pub(super) unit: usize,
    pub(super) task: Task,
    pub(super) operation: Option<Operation>,
    pub(super) arrived: Arrived,
    /// What the units before gave.
    pub(super) outcomes: Vec<Outcome>,
    /// How they selected before this step.
    pub(super) selections: Vec<LocalSelection>,
    /// When the communication of the unit at hand began.
    pub(super) since: Time,
    /// What units took, of those that have begun.
    pub(super) spent: Vec<Spent>,
    pub(super) result: SparseResult,
}

/// What one unit took before its result is applied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spent {
    pub(super) unit: usize,
    pub(super) algorithm: Algorithm,
    pub(super) select: Duration,
    pub(super) communicate: Duration,
}

impl Pending {
    /// The unit at hand took this.
    pub(super) fn spend(&mut self, select: Duration, communicate: Duration) {
        self.result.times.select += select;
        self.result.times.communicate += communicate;
        if let Some(spent) = self.spent.last_mut() {
            spent.select += select;
            spent.communicate += communicate;
        }
    }
}

/// What the unit at hand is doing.
pub(super) enum Task {
    /// It has not begun.
    Begin,
    /// A machine.
    Machine(Box<Machine<Stream>>),
    /// Ranks tell each other how many values are not finite.
    Census,
    /// The dense allreduce.
    Dense,
    /// Ranks tell each other what the step before took.
    Telling,
}

/// What a unit gave.
pub(super) enum Outcome {
    /// It has no elements.
    Nothing,
    Sparse(Box<Finished<Stream>>),
    /// The sum is in the dense buffer; this many of its values are not finite.
    Dense {
        born: u64,
    },
}
