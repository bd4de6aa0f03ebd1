//! [`Fusion`]: many small gradients, reduced in few large operations while the backward pass still
//! runs.
//!
//! The fusion buffer has a thread of its own. While the callers only announce tensors, that thread
//! runs the agreement of the ranks ([`crate::fusion::Machine`]), packs, communicates and unpacks.
//! A caller that waits for the step does this work itself (`driving.rs`).
//!
//! Not here: what is flushed when, and why all ranks agree ([`crate::fusion`]).
//!
//! Read first: [`Fusion::new`].

mod driving;
mod inbox;
mod packing;
mod report;
mod service;

pub use report::{FlushReport, StepReport};

use super::Communicator;
use super::buffer::Buffer;
use super::queue::CompletionQueue;
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
/// `Send + Sync`: several threads may announce. Dropping it joins its thread. If a round is under
/// way at that time, the drop makes the fusion buffer fail on all ranks, so that no peer waits for
/// this rank. The drop does not touch the communicator from which the fusion buffer was made.
#[derive(Debug)]
pub struct Fusion {
    driving: BackgroundThread<FusionDriving>,
    set: Arc<TensorSet>,
    clock: Clock,
}

impl Fusion {
    /// Makes a fusion buffer for these tensors. Every rank announces each of them once in every
    /// step, in any order. Collective: all ranks call it, with the same tensors and options.
    ///
    /// The fusion buffer works on a duplicate of `comm` ([`Communicator::duplicate`]). So the
    /// caller may run operations on `comm` at any time, also during a step, and several fusion
    /// buffers may work at the same time. The announced buffers may be allocated from `comm` or
    /// from a communicator that was made from it. If the duplicate fails, `comm` is still good,
    /// unless a rank has died.
    ///
    /// The fusion buffer's thread drives the duplicate while an operation is under way, and sleeps
    /// otherwise.
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
    /// [`Error::InvalidArgument`] if an option is out of range, if the operator is undefined for a
    /// type, or if the ranks declare different tensors or options (the text names a rank and a
    /// tensor); [`Error::Exhausted`] if the buffers cannot be allocated; any error of the
    /// communicator.
    pub fn new(
        comm: &Communicator,
        options: FusionOptions,
        tensors: Vec<TensorSpec>,
    ) -> Result<Fusion> {
        let set = Arc::new(TensorSet::new(tensors)?);
        let machine = Machine::new(set.clone(), options)?;
        Fusion::start(comm, set, machine, 0)
    }

    /// Makes a fusion buffer whose flushes are fixed in advance: flush i reduces the tensors
    /// `plan[i]` as soon as they are ready and flush i - 1 has started. The ranks need no rounds to
    /// agree, so the limits of age, bytes and tensors in the options have no effect. Collective:
    /// all ranks call it, with the same tensors, options and plan.
    ///
    /// # Errors
    /// As [`Fusion::new`], and [`Error::InvalidArgument`] if a tensor is twice in the plan, if a
    /// tensor that has elements is not in the plan, if a flush is empty, or if the tensors of one
    /// flush have two types.
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

    /// Announces that the gradient of a tensor is ready in `buffer`. The fusion buffer borrows
    /// `buffer` until [`wait`](Fusion::wait) returns; then `buffer` holds the reduction. Its
    /// elements have the tensor's type, or are bytes. Returns at once.
    ///
    /// # Errors
    /// [`Error::InUse`]: something else uses the buffer. [`Error::InvalidArgument`]: there is no
    /// such tensor, the buffer has another type or length, the tensor was already announced in this
    /// step, or the backward pass has ended. These errors leave the step unchanged. If an earlier
    /// error has ended the fusion buffer, that error is returned.
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

    /// Says that this rank announces no more tensors in this step. The tensors that are ready are
    /// then flushed without waiting for more. Call it only if the thread does other work before
    /// [`wait`](Fusion::wait), which also ends the backward pass, but wakes no thread.
    ///
    /// # Errors
    /// The error that has ended the fusion buffer, if there was one.
    pub fn end_of_backward(&self) -> Result<()> {
        self.driving.get()?.end(self.clock.now())
    }

    /// Has a queue told, once, when every tensor of this step is reduced on this rank, or when the
    /// fusion buffer has failed: it then has a completion with the number `user`, and
    /// [`wait`](Fusion::wait) returns at once. Call [`end_of_backward`](Fusion::end_of_backward)
    /// too. The queue may be of any communicator.
    ///
    /// ```
    /// use linerate::{Communicator, Config, DataType, Fusion, FusionOptions, TensorSpec};
    /// use std::time::Duration;
    /// let comm = Communicator::join(0, 1, "a job with a fusion buffer", Config::default())?;
    /// let weight = TensorSpec { name: "weight".into(), count: 100, dtype: DataType::F32 };
    /// let gradient = comm.alloc::<f32>(100)?;
    /// let fusion = Fusion::new(&comm, FusionOptions::default(), vec![weight])?;
    /// let queue = comm.completion_queue()?;
    /// fusion.announce(0, &gradient)?;
    /// fusion.end_of_backward()?;
    /// fusion.notify(&queue, 7)?;
    /// let ended = queue.wait(Duration::from_secs(10))?;
    /// assert_eq!((ended[0].user, &ended[0].result), (7, &Ok(())));
    /// assert_eq!(fusion.wait()?.flushes.len(), 1);
    /// # Ok::<(), linerate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: a queue is told of this step already; [`Error::Forked`]. If the
    /// fusion buffer has failed, the completion has the error.
    pub fn notify(&self, queue: &CompletionQueue, user: u64) -> Result<()> {
        match self.driving.get()?.notify(queue, user)? {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "a step of a fusion buffer is in one queue, once: this one, with user {user}, is in one already"
            ))),
        }
    }

    /// Waits until every tensor of the step is reduced on this rank, and begins the next step. Ends
    /// the backward pass if [`end_of_backward`](Fusion::end_of_backward) was not called.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a rank has ended its backward pass without announcing a
    /// tensor; the text names the tensor and the rank. Also any error of the duplicate of the
    /// communicator. After an error the caller has to make a new fusion buffer. The communicator
    /// itself is still good, unless a rank has died.
    pub fn wait(&self) -> Result<StepReport> {
        self.driving.get()?.wait(self.clock.now())
    }

    /// The time now, on the clock of the reports. That clock starts at 0 when the fusion buffer is
    /// made.
    pub fn now(&self) -> Time {
        self.clock.now()
    }
}

/// Compares the declarations of all ranks. First it compares one hash of everything. If that
/// differs, it compares a hash of each tensor, to name the tensor in the error. `others` names in
/// the error what else the first hash covers.
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
