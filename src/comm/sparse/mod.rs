//! [`SparseAllreduce`]: takes the gradients of named tensors, gives the largest entries of their
//! sum over the ranks, and keeps the rest in residuals for later steps.
//!
//! It drives the machines of [`crate::sparse`] with ordinary operations of the communicator, so it
//! works on every transport. A step blocks ([`SparseAllreduce::run`]), or the caller starts it and
//! tests it until it ends ([`SparseAllreduce::start`], [`SparseAllreduce::test`]). Simulated ranks
//! need the second way.
//!
//! The steps themselves are [`Steps`]. A step that a queue is told of is also moved by the threads
//! that wait (`following.rs`).
//!
//! Read first: `state.rs`, then `step.rs`.

mod carrier;
mod commit;
mod dense;
mod following;
mod learn;
mod residuals;
mod result;
mod state;
mod step;

pub use result::{SparseResult, StepTimes};

use super::Communicator;
use super::buffer::Buffer;
use super::queue::CompletionQueue;
use crate::cost::Work;
use crate::error::{Error, Result};
use crate::fusion::{TensorSet, TensorSpec};
use crate::memory::ProcessOwned;
use crate::prng::mix;
use crate::sparse::{
    Algorithm, Balance, Experience, LocalPrices, LocalSelection, OkTopkState, Prices, Spare,
    SparseOptions, Stream,
};
use crate::types::DataType;
use carrier::Carrier;
use following::Following;
use residuals::{Origin, Residuals};
use result::check_lengths;
use state::{Steps, Unit};
use std::ops::Range;
use std::sync::Arc;

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
    comm: Communicator,
    tensors: Vec<TensorSpec>,
    k: u64,
    residuals: Arc<Residuals>,
    following: Following,
}

impl SparseAllreduce {
    /// Makes a sparse allreduce for these tensors, all of f32, with unique names. The residuals
    /// start at zero. Collective: all ranks call it, with the same tensors and options. Ranks that
    /// declare different ones get an error, except for simulated ranks, which cannot compare here.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: a tensor has another type than f32, two names are equal, an
    /// option is out of range, or the ranks' declarations differ. [`Error::Exhausted`]: there is no
    /// memory for the residuals.
    pub fn new(
        comm: &Communicator,
        tensors: Vec<TensorSpec>,
        options: SparseOptions,
    ) -> Result<SparseAllreduce> {
        check_tensors(&tensors)?;
        let set = TensorSet::new(tensors.clone())?;
        let mut starts = vec![0u64];
        for tensor in &tensors {
            starts.push(starts[starts.len() - 1] + tensor.count);
        }
        let count = starts[tensors.len()];
        options.check(count)?;
        if comm.inner.is_size_only {
            return Err(Error::invalid(
                "a size-only communicator has no values to select from: leave `SimOptions::size_only` off",
            ));
        }
        if !comm.inner.clock.is_virtual() {
            check_equal(comm, &set, &options)?;
        }
        let ranges: Vec<Range<usize>> = match options.per_tensor {
            true => (0..tensors.len()).map(|t| t..t + 1).collect(),
            false => std::iter::once(0..tensors.len()).collect(),
        };
        let unit = |tensors: Range<usize>| Unit {
            k: options
                .amount
                .of(starts[tensors.end] - starts[tensors.start]),
            tensors,
            selection: LocalSelection::default(),
            state: OkTopkState::default(),
            reduced: None,
            dense_steps: 0,
            memory: Stream::default(),
            experience: Experience::default(),
            untold: None,
        };
        let spare = Spare::default();
        let units: Vec<Unit> = ranges.into_iter().map(unit).collect();
        let residuals = Arc::new(Residuals::new(&tensors)?);
        let k = units.iter().map(|unit| unit.k).sum();
        let steps = Steps {
            carrier: Carrier::new(comm, &spare)?,
            spare,
            residuals: residuals.clone(),
            units,
            prices: prices(comm)?,
            comm: comm.clone(),
            starts,
            options,
            steps: 0,
            dense: None,
            pending: ProcessOwned::new(comm.inner.driving.process(), None),
            ended: None,
            turns: 0,
        };
        Ok(SparseAllreduce {
            comm: comm.clone(),
            tensors,
            k,
            residuals,
            following: Following::new(steps)?,
        })
    }

    /// Runs one step, and waits for its result. `gradients` has one buffer for each tensor, in the
    /// order of the declaration. They are only read: what the result does not contain is added to
    /// the residuals.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: the buffers do not fit the tensors in number or length.
    /// [`Error::NotFinite`], on all ranks: a value is not finite, and [`SparseOptions::non_finite`]
    /// is [`NonFinite::Error`](crate::options::NonFinite::Error); the residuals are unchanged. Any
    /// error of the communicator; the residuals may then lack this step's gradient.
    pub fn run(&mut self, gradients: &[Buffer<f32>]) -> Result<SparseResult> {
        self.comm
            .check_can_wait("a sparse allreduce that runs at once")?;
        self.start(gradients)?;
        self.wait()
    }

    /// Starts a step, which [`SparseAllreduce::test`] then moves. The step borrows the gradients
    /// and the residuals until it has ended. Errors: as [`SparseAllreduce::run`].
    ///
    /// Until the step has ended, start no other operation on the communicator: the step consists of
    /// several operations, which the ranks start at different times, and all ranks have to start
    /// their operations in the same order. Run other operations on a [`Communicator::duplicate`].
    pub fn start(&mut self, gradients: &[Buffer<f32>]) -> Result<()> {
        self.here(|steps| {
            check_lengths("gradient", gradients, &steps.starts)?;
            steps.begin(Some(gradients))
        })
    }

    /// Makes progress with the step under way, without waiting. Returns the result when the step
    /// has ended, and `None` until then. Errors: as [`SparseAllreduce::run`], and
    /// [`Error::InvalidArgument`] if no step was started.
    pub fn test(&mut self) -> Result<Option<SparseResult>> {
        let result = self.here(Steps::test);
        if !matches!(result, Ok(None)) {
            self.following.leave();
        }
        result
    }

    /// Has a queue told, once, when the step under way has ended or failed: it then has a
    /// completion with the number `user`, and [`SparseAllreduce::test`] returns the result. A
    /// thread that waits for the queue moves the step, and so does the progress thread where there
    /// is one. The queue is of a communicator of the same family.
    ///
    /// ```
    /// use linerate::{Communicator, Config, DataType, SparseAllreduce, SparseOptions, TensorSpec};
    /// use std::time::Duration;
    /// let comm = Communicator::join(0, 1, "sparse steps in a queue", Config::default())?;
    /// let queue = comm.completion_queue()?;
    /// let tensor = TensorSpec { name: "weights".into(), count: 4, dtype: DataType::F32 };
    /// let mut sparse = SparseAllreduce::new(&comm, vec![tensor], SparseOptions::default())?;
    /// sparse.start(&[comm.alloc::<f32>(4)?])?;
    /// sparse.notify(&queue, 7)?;
    /// let ended = queue.wait(Duration::from_secs(1))?;
    /// assert_eq!(ended[0].user, 7);
    /// assert!(sparse.test()?.is_some());
    /// # Ok::<(), linerate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: no step is under way, it is in a queue already, or the queue is
    /// of another family; [`Error::Forked`].
    pub fn notify(&mut self, queue: &CompletionQueue, user: u64) -> Result<()> {
        self.comm.driving()?;
        self.following.notify(queue, user)
    }

    /// Runs one dense step with the residuals alone; they are zero afterwards. Collective. Call it
    /// before the ranks change, and at the end of the training. Errors: as
    /// [`SparseAllreduce::run`].
    pub fn flush_residual(&mut self) -> Result<SparseResult> {
        self.comm.check_can_wait("flushing residuals")?;
        self.here(|steps| steps.begin(None))?;
        self.wait()
    }

    fn wait(&mut self) -> Result<SparseResult> {
        let result = self.here(|steps| steps.go_on(true))?;
        result.ok_or_else(|| Error::internal("a sparse step that was waited for has not ended"))
    }

    /// Calls `then` with the steps, in the process that has made them.
    fn here<T>(&self, then: impl FnOnce(&mut Steps) -> Result<T>) -> Result<T> {
        self.comm.driving()?;
        self.following.with(then)?
    }

    /// The residual of the tensor with this name; `None` if there is no such tensor. The caller may
    /// read and change it between steps.
    pub fn residual(&self, name: &str) -> Option<&Buffer<f32>> {
        self.residuals.named(name)
    }

    /// The entries that this rank selected of a tensor in the last step: ascending indices, which
    /// are relative to the tensor, each with the sum of residual and gradient there. The result of
    /// the step has only those that all ranks apply; the residual keeps the others. There are none
    /// before the first step, after a dense step and after a step that was skipped.
    ///
    /// ```
    /// use linerate::{Communicator, Config, DataType, SparseAllreduce, SparseOptions, TensorSpec};
    /// use linerate::options::Amount;
    /// let comm = Communicator::join(0, 1, "a job with picks", Config::default())?;
    /// let tensor = TensorSpec { name: "weights".into(), count: 4, dtype: DataType::F32 };
    /// let options = SparseOptions { amount: Amount::Count(2), ..SparseOptions::default() };
    /// let mut sparse = SparseAllreduce::new(&comm, vec![tensor], options)?;
    /// let gradient = comm.alloc::<f32>(4)?;
    /// gradient.write(0, &[1.0, -3.0, 0.0, 2.0])?;
    /// sparse.run(&[gradient])?;
    /// assert_eq!(sparse.picks_of(0).collect::<Vec<_>>(), [(1, -3.0), (3, 2.0)]);
    /// # Ok::<(), linerate::Error>(())
    /// ```
    ///
    /// # Panics
    /// If there is no such tensor.
    pub fn picks_of(&self, tensor: usize) -> impl Iterator<Item = (u64, f32)> + '_ {
        assert!(tensor < self.tensors.len(), "there is no tensor {tensor}");
        let picks = self.following.with(|steps| steps.picks_of(tensor));
        picks.unwrap_or_default().into_iter()
    }

    /// Sets all residuals of this rank to zero, and forgets its thresholds. All ranks call it
    /// between the same two steps. Errors: as [`SparseAllreduce::scale_residuals`].
    pub fn reset(&mut self) -> Result<()> {
        let _kept = self.residuals.keep()?;
        self.residuals.reset();
        self.following.with(Steps::forget_thresholds)
    }

    /// Multiplies all residuals of this rank by `factor`. If a trainer scales its gradients and
    /// changes the scale, the residuals have to change by the same factor; otherwise old gradients
    /// weigh more or less than new ones.
    ///
    /// # Errors
    /// [`Error::InUse`]: a step is under way, or a slice of a residual is held.
    pub fn scale_residuals(&mut self, factor: f32) -> Result<()> {
        let _kept = self.residuals.keep()?;
        self.residuals.scale(factor.into());
        Ok(())
    }

    /// Returns the residuals of this rank as bytes, for [`SparseAllreduce::load`]. With them are
    /// the numbers of ranks and steps, k, and the tensors' names and counts. Thresholds are not
    /// saved: the steps after a load find them anew. Errors: as
    /// [`SparseAllreduce::scale_residuals`].
    pub fn save(&self) -> Result<Vec<u8>> {
        let _kept = self.residuals.keep()?;
        Ok(self.residuals.save(Origin {
            ranks: self.comm.ranks().into(),
            steps: self.steps(),
            k: self.k,
        }))
    }

    /// Loads the bytes that [`SparseAllreduce::save`] returned on this rank, in a job with the same
    /// number of ranks. All ranks load before the same step.
    ///
    /// # Errors
    /// [`Error::Malformed`]: the bytes are no saved residuals, or the tensors, k or the number of
    /// ranks differ. [`Error::InUse`]: as [`SparseAllreduce::scale_residuals`]. After an error
    /// nothing has been changed.
    pub fn load(&mut self, bytes: &[u8]) -> Result<()> {
        let own = u64::from(self.comm.ranks());
        let ranks = bytes
            .get(8..16)
            .map(|b| u64::from_le_bytes(std::array::from_fn(|i| b[i])));
        if let Some(ranks) = ranks.filter(|ranks| *ranks != own) {
            return Err(Error::Malformed(format!(
                "residuals of a job of {ranks} ranks for one of {own}: a rank that stays loads them with \
                 load_after_resize, new ranks start at zero, and ranks that leave flush theirs first"
            )));
        }
        self.load_after_resize(bytes)
    }

    /// As [`Self::load`], but the number of ranks may have changed since the save. A rank that is
    /// new in the job calls [`SparseAllreduce::reset`] instead.
    pub fn load_after_resize(&mut self, bytes: &[u8]) -> Result<()> {
        let _kept = self.residuals.keep()?;
        let loaded = self.residuals.load(bytes, self.k)?;
        self.following.with(|steps| {
            steps.steps = loaded.steps;
            steps.forget_thresholds();
        })
    }

    /// k, the number of entries that a step is to select, over all tensors.
    pub fn k(&self) -> u64 {
        self.k
    }

    /// The number of steps so far, without those that were skipped.
    pub fn steps(&self) -> u64 {
        self.following.with(|steps| steps.steps).unwrap_or_default()
    }

    /// The tensors, in the order of the declaration.
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }
}

fn check_tensors(tensors: &[TensorSpec]) -> Result<()> {
    let mut names: Vec<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Error::invalid(format!(
            "two tensors are named '{}': residuals are kept by name, so names are unique",
            pair[0]
        )));
    }
    if let Some(other) = tensors.iter().find(|t| t.dtype != DataType::F32) {
        return Err(Error::invalid(format!(
            "tensor '{}' is of {}: sparse allreduce takes f32",
            other.name, other.dtype
        )));
    }
    Ok(())
}

/// Checks that all ranks have declared the same tensors and options.
fn check_equal(comm: &Communicator, set: &TensorSet, options: &SparseOptions) -> Result<()> {
    let tensors = (0..set.len()).map(|t| set.fingerprint_of(t));
    // The text has every field. Equal options have equal texts, as all ranks run the same build.
    let mut text = format!("{options:?}");
    if options.algorithm == Algorithm::Auto || options.balance == Balance::Cost {
        // The pace enters the choice, which has to be the same on all ranks.
        text.push_str(&format!(", LINERATE_TCP_PACE {:?}", pace(comm)?));
    }
    let hash =
        |seed: u64, words: &mut dyn Iterator<Item = u64>| words.fold(seed, |h, w| mix(h ^ w));
    let own = [
        hash(set.len() as u64, &mut tensors.into_iter()),
        hash(text.len() as u64, &mut text.bytes().map(u64::from)),
    ];
    let all = comm.gather_words(&own)?;
    for (rank, words) in all.chunks_exact(2).enumerate() {
        let what = match (words[0] == all[0], words[1] == all[1]) {
            (true, true) => continue,
            (false, _) => "tensors (names, counts, order)",
            _ => "options",
        };
        return Err(Error::invalid(format!(
            "rank {rank} declares other {what} for a sparse allreduce than rank 0: they are equal on all ranks; rank {} has {} \
             tensors and {text}",
            comm.rank(),
            set.len()
        )));
    }
    Ok(())
}

/// Seconds for picking, sending, summing and applying one entry. Four ranks on two cores (Zen 4)
/// took 50 ns for each entry (16.7 ms for 2 x 167,772 entries over loopback, without selecting).
/// The value is rounded up.
const ENTRY_SECONDS: f64 = 6e-8;

/// What messages between two ranks and passes over memory cost by the cost model. All ranks have
/// equal prices.
fn prices(comm: &Communicator) -> Result<(Prices, LocalPrices)> {
    let (model, is_mapped) = comm.driving()?.engine().plans.link_model();
    let message = Work {
        messages: 1.0,
        posts: 2.0,
        ..Work::default()
    };
    let word = match is_mapped {
        true => Work {
            crossed: 4.0,
            ..Work::default()
        },
        false => Work {
            linked: 4.0,
            ..Work::default()
        },
    };
    let byte = Work {
        reduced: 1.0,
        uncached: 1.0,
        ..Work::default()
    };
    let paced = match is_mapped {
        true => 0.0,
        false => pace(comm)?.map_or(0.0, |bits| 32.0 / bits as f64),
    };
    let links = Prices {
        message: model.predict(&message) * 1e-9,
        word: (model.predict(&word) * 1e-9).max(paced),
    };
    let local = LocalPrices {
        byte: model.predict(&byte) * 1e-9,
        entry: ENTRY_SECONDS,
    };
    Ok((links, local))
}

/// The limit of this rank's TCP connections in bits per second, if there is one.
fn pace(comm: &Communicator) -> Result<Option<u64>> {
    let driving = comm.driving()?;
    Ok(driving.engine().config().tcp.pace_bits_per_second)
}
