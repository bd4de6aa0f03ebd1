//! [`Fusion`]: many small gradients, reduced in few large operations while the backward pass still
//! runs.
//!
//! A thread of its own runs the agreement ([`crate::fusion::Machine`]), packs, communicates and
//! unpacks, while the caller only announces; a caller that waits for the step does it itself
//! (`driving.rs`). What is flushed when, and why all ranks agree, is in [`crate::fusion`]. Read
//! first: [`Fusion::new`].

mod driving;
mod inbox;
mod packing;
mod report;
mod service;

pub use report::{FlushReport, StepReport};

use super::Communicator;
use super::buffer::Buffer;
use crate::error::{Error, Result};
use crate::fusion::{FusionOptions, Machine, TensorSet, TensorSpec};
use crate::memory::{Element, ProcessMark};
use crate::time::Time;
use crate::types::DataType;
use crate::wait::{BackgroundThread, Clock};
use driving::FusionDriving;
use service::Service;
use std::sync::Arc;

/// Reduces a declared set of tensors, step after step. See [`Fusion::new`].
///
/// `Send + Sync`: several threads may announce. Dropping it joins its thread; in the middle of a
/// step that fails the fusion buffer on all ranks if a round is under way, so that no peer waits
/// for this rank; the communicator that it was made from is not touched.
#[derive(Debug)]
pub struct Fusion {
    driving: BackgroundThread<FusionDriving>,
    set: Arc<TensorSet>,
    clock: Clock,
}

impl Fusion {
    /// A fusion buffer for these tensors, which every rank announces once in every step, in any
    /// order. Collective: all ranks call it, with the same tensors and options.
    ///
    /// Works on a duplicate of `comm` ([`Communicator::duplicate`]), so operations of the caller on
    /// `comm` may run at any time, in a step too, and several fusion buffers beside each other.
    /// What it announces may be allocated from either. If the duplicate fails, `comm` is still
    /// good, unless a rank has died.
    ///
    /// The thread sleeps when nothing waits, and drives the duplicate while something is under way.
    ///
    /// ```no_run
    /// # fn main() -> linerate::Result<()> {
    /// use linerate::{Communicator, DataType, Fusion, FusionOptions, TensorSpec};
    ///
    /// let comm = Communicator::from_env()?;
    /// let weight = TensorSpec { name: "weight".into(), count: 1000, dtype: DataType::F32 };
    /// let gradient = comm.alloc::<f32>(1000)?;
    /// let fusion = Fusion::new(&comm, FusionOptions::default(), vec![weight])?;
    /// for _step in 0..10 {
    ///     fusion.announce(0, &gradient)?; // as soon as it is computed
    ///     let report = fusion.wait()?; // now it holds the sum over all ranks
    ///     println!("{} flushes, {:?} exposed", report.flushes.len(), report.exposed());
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if an option is out of range, the operator is undefined for a
    /// type, or the ranks declare different tensors or options (naming a rank and a tensor);
    /// [`Error::Exhausted`] if the buffers cannot be allocated; any error of the communicator.
    pub fn new(
        comm: &Communicator,
        options: FusionOptions,
        tensors: Vec<TensorSpec>,
    ) -> Result<Fusion> {
        let set = Arc::new(TensorSet::new(tensors)?);
        let machine = Machine::new(set.clone(), options)?;
        Fusion::start(comm, set, machine, 0)
    }

    /// A fusion buffer whose flushes are fixed beforehand: flush i reduces the tensors `plan[i]` as
    /// soon as they are ready and flush i-1 has started. The ranks need no rounds to agree; age,
    /// size and count of the options are not looked at. Collective, with the same tensors, options
    /// and plan on all ranks.
    ///
    /// # Errors
    /// As [`Fusion::new`], and [`Error::InvalidArgument`] if the plan has a tensor twice or not at
    /// all (empty ones may be left out), an empty flush, or two types in one.
    pub fn with_plan(
        comm: &Communicator,
        options: FusionOptions,
        tensors: Vec<TensorSpec>,
        plan: &[Vec<u32>],
    ) -> Result<Fusion> {
        let set = Arc::new(TensorSet::new(tensors)?);
        let machine = Machine::with_plan(set.clone(), options, plan)?;
        let words =
            (plan.iter()).flat_map(|flush| flush.iter().map(|t| u64::from(*t) + 1).chain([0]));
        let fingerprint = words.fold(1, |hash, word| crate::prng::mix(hash ^ word));
        Fusion::start(comm, set, machine, fingerprint)
    }

    fn start(
        comm: &Communicator,
        set: Arc<TensorSet>,
        machine: Machine,
        plan_fingerprint: u64,
    ) -> Result<Fusion> {
        let comm = comm.duplicate()?;
        let fingerprint = set.fingerprint(machine.options()) ^ plan_fingerprint;
        check_declarations(&comm, &set, fingerprint, "FusionOptions or plans")?;
        let clock = Clock::monotonic();
        let service = Service::new(comm.clone(), machine, clock.clone())?;
        let driving = FusionDriving::new(comm, service, set.len());
        let driving = BackgroundThread::start(
            Arc::new(driving),
            ProcessMark::current()?,
            "linerate-fusion",
        )?;
        Ok(Fusion {
            driving,
            set,
            clock,
        })
    }

    /// The gradient of a tensor is ready: `buffer` holds it, and will hold the reduction when
    /// [`wait`](Fusion::wait) returns; until then it is borrowed. Its elements are of the tensor's
    /// type, or bytes. Returns at once.
    ///
    /// # Errors
    /// [`Error::InUse`]: something else uses the buffer. [`Error::InvalidArgument`]: no such
    /// tensor, a buffer of another type or length, announced twice in this step, or after the end
    /// of the backward pass (this leaves the step as it was). Also the error that ended the
    /// service, if one did.
    pub fn announce<T: Element>(&self, tensor: usize, buffer: &Buffer<T>) -> Result<()> {
        let raw = buffer.raw();
        if tensor >= self.set.len() {
            return Err(Error::invalid(format!(
                "tensor {tensor} announced, {} are declared",
                self.set.len()
            )));
        }
        let dtype = self.set.spec(tensor).dtype;
        let is_typed = [dtype, DataType::U8].contains(&T::DTYPE);
        if !is_typed || raw.len_bytes() as u64 != self.set.bytes(tensor) {
            return Err(Error::invalid(format!(
                "{} has {} elements of {}, {} bytes; the announced buffer has {} bytes, elements of {}: give that type or \
                 bytes (Buffer::cast)",
                self.set.label(tensor),
                self.set.spec(tensor).count,
                self.set.spec(tensor).dtype,
                self.set.bytes(tensor),
                raw.len_bytes(),
                T::DTYPE
            )));
        }
        let now = self.clock.now();
        if self.driving.get()?.announce(tensor, raw, now)? {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{} announced twice in a step, or between the end of the backward pass and the return of wait",
            self.set.label(tensor)
        )))
    }

    /// No tensor of this step comes any more on this rank: what is ready is flushed without waiting
    /// for company. Only of use where something else is to be done before [`wait`](Fusion::wait),
    /// which says it too and wakes no thread for it.
    ///
    /// # Errors
    /// The error that ended the service, if one did.
    pub fn end_of_backward(&self) -> Result<()> {
        self.driving.get()?.end(self.clock.now())
    }

    /// Waits until every tensor of the step is reduced on this rank, and begins the next step. Ends
    /// the backward pass if [`end_of_backward`](Fusion::end_of_backward) was not called.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming tensor and rank, if a rank has ended its backward pass
    /// without announcing it; any error of its duplicate of the communicator. The fusion buffer
    /// must then be made anew; the communicator itself is still good, unless a rank has died.
    pub fn wait(&self) -> Result<StepReport> {
        self.driving.get()?.wait(self.clock.now())
    }

    /// The time on the clock of the reports, which starts when the fusion buffer is made.
    pub fn now(&self) -> Time {
        self.clock.now()
    }
}

/// Compares the declarations of all ranks: first one hash of everything; if that differs, per
/// tensor for the error. What else is in the hash has the name `others`.
pub(super) fn check_declarations(
    comm: &Communicator,
    set: &TensorSet,
    fingerprint: u64,
    others: &str,
) -> Result<()> {
    let all = comm.gather_words(&[set.len() as u64, fingerprint])?;
    let (count, first) = (all[0], all[1]);
    if all.chunks_exact(2).all(|rank| rank == [count, first]) {
        return Ok(());
    }
    if let Some(rank) = all.chunks_exact(2).position(|rank| rank[0] != count) {
        return Err(Error::invalid(format!(
            "ranks declare different tensors for fusion: rank 0 has {count}, rank {rank} has {}",
            all[2 * rank]
        )));
    }
    let own: Vec<u64> = (0..set.len()).map(|t| set.fingerprint_of(t)).collect();
    let all = comm.gather_words(&own)?;
    for (rank, hashes) in all.chunks_exact(set.len().max(1)).enumerate() {
        if let Some(tensor) = (0..set.len()).find(|&t| hashes[t] != all[t]) {
            return Err(Error::invalid(format!(
                "rank {rank} declares tensor {tensor} for fusion with another name, count or type than rank 0; this rank: {}, \
                 {} elements of {}",
                set.label(tensor),
                set.spec(tensor).count,
                set.spec(tensor).dtype
            )));
        }
    }
    Err(Error::invalid(format!(
        "ranks use different {others}: every field must be equal on all ranks"
    )))
}
