//! [`SparseAllreduce`]: gradients of named tensors in, the sum's largest entries out, the rest kept
//! for later.
//!
//! Drives the machines of [`crate::sparse`] with the communicator's own operations, so that every
//! transport works. A step is blocking ([`SparseAllreduce::run`]) or stepped
//! ([`SparseAllreduce::start`], [`SparseAllreduce::test`]), which simulated ranks need.
//!
//! Read first: `state.rs`, then `step.rs`.

mod carrier;
mod commit;
mod dense;
mod learn;
mod residuals;
mod result;
mod state;
mod step;

pub use result::{SparseResult, StepTimes};
pub use state::SparseAllreduce;

use super::Communicator;
use super::buffer::Buffer;
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
use residuals::{Origin, Residuals};
use result::check_lengths;
use state::Unit;
use std::ops::Range;

impl SparseAllreduce {
    /// For these tensors, all f32, with unique names. Residuals start at zero. Collective: ranks
    /// that declare different tensors or options get an error (but for simulated ranks, which
    /// cannot wait for each other here).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: a type other than f32, equal names, an option out of range,
    /// ranks that differ; [`Error::Exhausted`]: no memory for the residuals.
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
        Ok(SparseAllreduce {
            carrier: Carrier::new(comm, &spare)?,
            spare,
            residuals: Residuals::new(&tensors)?,
            units: ranges.into_iter().map(unit).collect(),
            prices: prices(comm)?,
            comm: comm.clone(),
            tensors,
            starts,
            options,
            steps: 0,
            dense: None,
            pending: ProcessOwned::new(comm.inner.driving.process(), None),
        })
    }

    /// One step: absorbs the gradients (one buffer for each tensor, in the order of the
    /// declaration; they are only read) and gives the result. Waits.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: other buffers than tensors; [`Error::NotFinite`] under the
    /// policy error, on all ranks, with residuals as before; any error of the communicator, after
    /// which the residuals may lack this step's gradient.
    pub fn run(&mut self, gradients: &[Buffer<f32>]) -> Result<SparseResult> {
        self.comm
            .check_can_wait("a sparse allreduce that runs at once")?;
        self.start(gradients)?;
        self.go_on(true)?
            .ok_or_else(|| Error::internal("a sparse step that was waited for has not ended"))
    }

    /// Starts a step; [`SparseAllreduce::test`] moves it. It borrows the gradients, and the
    /// residuals, until it has ended, and the communicator is used for nothing else meanwhile: a
    /// step is operations that begin one after another, at other times on every rank. What is to
    /// run beside it uses a [`Communicator::duplicate`].
    pub fn start(&mut self, gradients: &[Buffer<f32>]) -> Result<()> {
        check_lengths("gradient", gradients, &self.starts)?;
        self.begin(Some(gradients))
    }

    /// Makes progress; the result once the step has ended.
    pub fn test(&mut self) -> Result<Option<SparseResult>> {
        self.go_on(false)
    }

    /// One dense step of the residuals alone, which are zero after it: before the ranks change, or
    /// at the end.
    pub fn flush_residual(&mut self) -> Result<SparseResult> {
        self.comm.check_can_wait("flushing residuals")?;
        self.begin(None)?;
        self.go_on(true)?
            .ok_or_else(|| Error::internal("a sparse step that was waited for has not ended"))
    }

    /// The residual of the tensor with this name: to look at or to change between steps.
    pub fn residual(&self, name: &str) -> Option<&Buffer<f32>> {
        self.residuals.named(name)
    }

    /// What this rank selected of a tensor in the last step, residual and gradient together:
    /// indices, relative to it and ascending, and values. The result has the coordinates that all
    /// ranks apply, and the residual what of these is in no sum. Nothing before the first step,
    /// after a dense one, and after one that did not count.
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
        let unit = self
            .units
            .iter()
            .find(|unit| unit.tensors.contains(&tensor));
        let unit = unit.expect("every tensor is of a unit");
        let first = self.starts[unit.tensors.start];
        let (start, end) = (self.starts[tensor] - first, self.starts[tensor + 1] - first);
        let Stream { indices, values } = &unit.memory;
        let place = |end: u64| indices.partition_point(|index| *index < end);
        let range = place(start)..place(end);
        let indices = indices[range.clone()].iter().map(move |i| i - start);
        indices.zip(values[range].iter().copied())
    }

    /// Forgets all residuals and thresholds, on this rank. All ranks do so between the same steps.
    /// Errors: as [`SparseAllreduce::scale_residuals`].
    pub fn reset(&mut self) -> Result<()> {
        let _kept = self.residuals.keep()?;
        self.residuals.reset();
        self.forget_thresholds();
        Ok(())
    }

    /// Multiplies all residuals: where gradients are scaled by a factor that changes, residuals
    /// change with it, or old gradients weigh more or less than new ones.
    ///
    /// # Errors
    /// [`Error::InUse`]: a step is under way, or a slice of a residual is held.
    pub fn scale_residuals(&mut self, factor: f32) -> Result<()> {
        let _kept = self.residuals.keep()?;
        self.residuals.scale(factor.into());
        Ok(())
    }

    /// The residuals of this rank, with ranks, steps, k, names and counts. Thresholds are not kept:
    /// they are found anew. Errors: as [`SparseAllreduce::scale_residuals`].
    pub fn save(&self) -> Result<Vec<u8>> {
        let _kept = self.residuals.keep()?;
        Ok(self.residuals.save(Origin {
            ranks: self.comm.ranks().into(),
            steps: self.steps,
            k: self.k(),
        }))
    }

    /// Takes over what [`SparseAllreduce::save`] gave on this rank of a job of as many ranks. All
    /// ranks load before the same step.
    ///
    /// # Errors
    /// [`Error::Malformed`]: another form, other tensors, k or number of ranks; nothing has been
    /// changed.
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

    /// As [`Self::load`], where the number of ranks may have changed. New ranks reset instead.
    pub fn load_after_resize(&mut self, bytes: &[u8]) -> Result<()> {
        let _kept = self.residuals.keep()?;
        self.steps = self.residuals.load(bytes, self.k())?.steps;
        self.forget_thresholds();
        Ok(())
    }

    /// Entries wanted, over all tensors.
    pub fn k(&self) -> u64 {
        self.units.iter().map(|unit| unit.k).sum()
    }

    /// Steps so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Tensors, as declared.
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    fn forget_thresholds(&mut self) {
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

/// All ranks have declared the same.
fn check_equal(comm: &Communicator, set: &TensorSet, options: &SparseOptions) -> Result<()> {
    let tensors = (0..set.len()).map(|t| set.fingerprint_of(t));
    // Every field, by its text: the same build runs on all ranks.
    let mut text = format!("{options:?}");
    if options.algorithm == Algorithm::Auto || options.balance == Balance::Cost {
        // What decides must be the same everywhere too.
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

/// Seconds of an entry that is picked, sent, summed and applied: 50 ns when four ranks on two cores
/// (Zen 4) exchanged 2 x 167,772 of them in 16.7 ms over loopback, the selection and the result's
/// own turn not counted; rounded up.
const ENTRY_SECONDS: f64 = 6e-8;

/// What the cost model says of messages between two ranks and of passes over memory; the same on
/// all.
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

/// Bits per second that this rank's connections are held to.
fn pace(comm: &Communicator) -> Result<Option<u64>> {
    let driving = comm.driving()?;
    Ok(driving.engine().config().tcp.pace_bits_per_second)
}
