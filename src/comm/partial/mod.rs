//! [`PartialAllreduce`]: an allreduce in which fast ranks do not wait for slow ones.
//!
//! Its rounds begin by notices and run as ordinary operations on a communicator that nothing else
//! uses. That communicator is no member of a family, because a thread of its own attends to it.
//!
//! What a round is, when it begins and what enters it is in [`crate::partial`]; here bytes move.
//! `rounds.rs` starts and ends the operations of rounds, `memory.rs` has the buffers, `recovery.rs`
//! goes on after a death, `names.rs` names ranks afterwards, `driving.rs` says which thread drives;
//! `fusion.rs` packs a model's gradients.

mod driving;
mod fusion;
mod memory;
mod names;
mod recovery;
mod rounds;

pub use fusion::{PartialFusion, PartialFusionOptions};

use super::Communicator;
use super::buffer::Buffer;
use super::raw::RawBuffer;
use crate::error::{Error, Result};
use crate::memory::{Access, Element, Held, View};
use crate::partial::{Divisor, Machine, PartialOptions, RoundReport};
use crate::types::DataType;
use crate::wait::BackgroundThread;
use driving::PartialDriving;
use memory::Memory;
use rounds::Rounds;
use std::sync::Arc;

/// Sums gradients over ranks, round after round, without waiting for slow ranks longer than its
/// policy says. See [`PartialAllreduce::new`].
///
/// `Send + Sync`. Rounds go on while the application computes, by a thread that sleeps between
/// them: a rank that does not submit contributes what it has. A process that is stopped stalls
/// them; after the timeout all ranks have an error that names it. Dropping it in the middle of a
/// round fails it on all ranks; the communicator that it was made from is not touched.
///
/// When a rank dies all others have an error, unless [`PartialOptions::survive`] is set: then the
/// calls under way wait until those that live have found together, at most the timeout, and go on;
/// reports say who is dead. The communicator that it was made from fails with the death all the
/// same, and a caller that needs it rebuilds it. Dropping it then is leaving: the others go on.
pub struct PartialAllreduce {
    driving: BackgroundThread<PartialDriving>,
    bytes: usize,
    dtype: DataType,
}

impl PartialAllreduce {
    /// A partial allreduce of `count` elements of `dtype`. Collective, with the same arguments on
    /// all ranks. It works on a communicator of its own, so any number of them and of other
    /// operations may be under way at the same time.
    ///
    /// The loop of a trainer: submit the gradient of a step, take the result of that step, apply
    /// it. With ordered delivery the weights after step i are the same on all ranks, although a
    /// slow rank's gradient may be in a later one.
    ///
    /// ```
    /// use linerate::{Communicator, Config, DataType, PartialAllreduce, PartialOptions};
    /// let job = format!("partial-{}", std::process::id());
    /// let run = |rank| -> linerate::Result<f32> {
    ///     let comm = Communicator::join(rank, 4, &job, Config::default())?;
    ///     let partial = PartialAllreduce::new(&comm, DataType::F32, 4, PartialOptions::default())?;
    ///     let (gradient, update) = (comm.alloc::<f32>(4)?, comm.alloc::<f32>(4)?);
    ///     let mut weight = 0.0f32;
    ///     for _step in 0..5 {
    ///         gradient.write(0, &[rank as f32; 4])?;
    ///         let report = partial.exchange(&gradient, &update)?.expect("a result for every step");
    ///         assert!(report.active_count() >= 2, "a majority of 4");
    ///         weight -= update.as_slice()?[0];
    ///     }
    ///     // Before validation and checkpoints: what is pending anywhere is delivered to all.
    ///     partial.finish(&update, |_report| weight -= update.to_vec().unwrap()[0])?;
    ///     Ok(weight)
    /// };
    /// let weights = std::thread::scope(|scope| {
    ///     let ranks: Vec<_> = (0..4).map(|rank| scope.spawn(move || run(rank))).collect();
    ///     ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Result<Vec<_>, _>>()
    /// })?;
    /// assert_eq!(weights, [-7.5; 4], "5 steps of an average of 1.5, all of them, once");
    /// # Ok::<(), linerate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: options out of range, or not the same on all ranks, or a divisor
    /// of truth values, which have no averages (`Divisor::One` gives their or);
    /// [`Error::Exhausted`]: no memory for the snapshots (two per round in flight) and results (as
    /// many as the bound of staleness and the rounds in flight together, and the rounds in flight
    /// again where deaths are survived).
    pub fn new(
        comm: &Communicator,
        dtype: DataType,
        count: u64,
        options: PartialOptions,
    ) -> Result<PartialAllreduce> {
        options.check(comm.ranks())?;
        if dtype == DataType::Bool && options.divisor != Divisor::One {
            return Err(Error::invalid(format!(
                "PartialOptions: divisor is {:?}, and bool has no averages: use Divisor::One",
                options.divisor
            )));
        }
        let comm = comm.duplicate_apart()?;
        let all = comm.gather_words(&[options.fingerprint(dtype, count)])?;
        if let Some(rank) = all.iter().position(|&word| word != all[0]) {
            return Err(Error::invalid(format!(
                "rank {rank} makes a partial allreduce with another type, count or PartialOptions than rank 0 \
                 (here {count} elements of {dtype}, {options:?}): all ranks give the same"
            )));
        }
        let machine = Machine::new(comm.rank(), comm.ranks(), options.clone());
        let snapshots_count = machine.snapshots_max();
        let memory = Memory::new(&comm, (dtype, count), &options, snapshots_count)?;
        let bytes = memory.bytes();
        let now = comm.inner.clock.now();
        let process = comm.inner.driving.process();
        let rounds = Rounds::new(comm, machine, memory, now)?;
        let driving = Arc::new(PartialDriving::new(rounds));
        let driving = BackgroundThread::start(driving, process, "linerate-partial")?;
        Ok(PartialAllreduce {
            driving,
            bytes,
            dtype,
        })
    }

    /// Submits this rank's next gradient, copied: its memory may be changed when this returns. The
    /// number of the step, from 0. Waits while as many steps as there may be rounds in flight have
    /// no result taken.
    ///
    /// Buffers have elements of the type that was given, or bytes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: a buffer of another type or length, or no result is taken for
    /// the timeout; [`Error::InUse`]: something writes the buffer; any error of a round.
    pub fn submit<T: Element>(&self, gradient: &Buffer<T>) -> Result<u64> {
        self.submit_parts(std::slice::from_ref(gradient))
    }

    /// Submits a gradient that lies in several buffers, which together are as long as the vector.
    /// One decision is for all of them, so that all layers of a step are in one round or none.
    /// [`PartialFusion`] does it for named tensors, which come in any order.
    pub fn submit_parts<T: Element>(&self, gradient: &[Buffer<T>]) -> Result<u64> {
        let (driving, parts) = self.driving_for(gradient, Access::Shared)?;
        driving.submit(&parts.views, false)
    }

    /// Takes the next result, copied to `update`, and what it is. With ordered delivery these are
    /// the rounds in order; a rank that is behind has its result at once. `Ok(None)`: there is
    /// none, and none is due before the next submit.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: a buffer of another type or length. [`Error::InUse`]: something
    /// uses the buffer. [`Error::Timeout`]: the round has not begun for that long. Any error of the
    /// round; the partial allreduce has then failed on all ranks, and the communicator is still
    /// good unless a rank has died.
    pub fn next<T: Element>(&self, update: &Buffer<T>) -> Result<Option<RoundReport>> {
        self.next_parts(std::slice::from_ref(update))
    }

    /// As [`next`](PartialAllreduce::next), into several buffers which together are as long as the
    /// vector.
    pub fn next_parts<T: Element>(&self, update: &[Buffer<T>]) -> Result<Option<RoundReport>> {
        let (driving, parts) = self.driving_for(update, Access::Exclusive)?;
        driving.next(&parts.views, true)
    }

    /// As [`next`](PartialAllreduce::next), and `None` instead of waiting: a rank that is behind
    /// calls it until then to catch up.
    pub fn try_next<T: Element>(&self, update: &Buffer<T>) -> Result<Option<RoundReport>> {
        let (driving, parts) = self.driving_for(std::slice::from_ref(update), Access::Exclusive)?;
        driving.next(&parts.views, false)
    }

    /// [`submit`](PartialAllreduce::submit) and [`next`](PartialAllreduce::next) in one, which may
    /// be the same buffer: what a trainer does that has nothing to do in between. Faster than the
    /// two, because no thread has to take over in between.
    pub fn exchange<T: Element>(
        &self,
        gradient: &Buffer<T>,
        update: &Buffer<T>,
    ) -> Result<Option<RoundReport>> {
        // Nothing is submitted where the result cannot be taken.
        drop(self.driving_for(std::slice::from_ref(update), Access::Exclusive)?);
        {
            let (driving, parts) =
                self.driving_for(std::slice::from_ref(gradient), Access::Shared)?;
            driving.submit(&parts.views, true)?;
        }
        self.next(update)
    }

    /// Takes all results that are there, oldest first: `visit` finds each in `update`. How many.
    pub fn catch_up<T: Element>(
        &self,
        update: &Buffer<T>,
        mut visit: impl FnMut(RoundReport),
    ) -> Result<u64> {
        let mut rounds = 0;
        while let Some(report) = self.try_next(update)? {
            rounds += 1;
            visit(report);
        }
        Ok(rounds)
    }

    /// One round that waits for all ranks and delivers everything that is pending anywhere; `visit`
    /// finds every result that was not taken, and the last, in `update`. Collective, after the same
    /// number of submits on all ranks: before validation and checkpoints, since ranks would see
    /// different weights, and at the end. Submits may go on afterwards. Where deaths are survived
    /// it returns when every rank that lives has the last result.
    ///
    /// # Errors
    /// As [`next`](PartialAllreduce::next); [`Error::InvalidArgument`] if another rank has
    /// submitted a gradient instead. The partial allreduce has then failed on all ranks; one that
    /// had taken the result of that gradient finds out at its next call.
    pub fn finish<T: Element>(
        &self,
        update: &Buffer<T>,
        visit: impl FnMut(RoundReport),
    ) -> Result<()> {
        self.finish_parts(std::slice::from_ref(update), visit)
    }

    /// As [`finish`](PartialAllreduce::finish), into several buffers which together are as long as
    /// the vector.
    pub fn finish_parts<T: Element>(
        &self,
        update: &[Buffer<T>],
        mut visit: impl FnMut(RoundReport),
    ) -> Result<()> {
        // Borrowed for one result at a time: `visit` reads it.
        let next = || {
            let (driving, parts) = self.driving_for(update, Access::Exclusive)?;
            driving.next(&parts.views, true)
        };
        let (driving, _) = self.driving_for(update, Access::Exclusive)?;
        while !driving.finish()? {
            if let Some(report) = next()? {
                visit(report);
            }
        }
        while let Some(report) = next()? {
            let last = report.is_last.then_some(report.round);
            visit(report);
            if let Some(last) = last {
                return driving.leave(last);
            }
        }
        Ok(())
    }

    /// Rounds that have ended here less submits: how far this rank is behind, 0 if it is not, and
    /// in a forked child. Takes part in what has come, as every call does; with
    /// [`PartialOptions::survive`] that may be a recovery, which takes until the others are in it.
    pub fn lag(&self) -> u64 {
        self.driving.get().map_or(0, PartialDriving::lag)
    }

    /// Submits what these views have, which the caller has borrowed.
    fn submit_views(&self, gradient: &[View]) -> Result<u64> {
        self.driving.get()?.submit(gradient, false)
    }

    /// What drives it, and the memory of buffers of a user that together are as long as the vector,
    /// borrowed for as long as it is used.
    fn driving_for<'a, T: Element>(
        &'a self,
        buffers: &'a [Buffer<T>],
        access: Access,
    ) -> Result<(&'a PartialDriving, Parts<'a>)> {
        let driving = self.driving.get()?;
        self.check(buffers)?;
        let raw = || buffers.iter().map(Buffer::raw);
        let held =
            raw().filter_map(|raw| raw.borrow_all(access, "a partial allreduce").transpose());
        let parts = Parts {
            views: raw().map(RawBuffer::view).collect(),
            _held: held.collect::<Result<_>>()?,
        };
        Ok((driving, parts))
    }

    fn check<T: Element>(&self, buffers: &[Buffer<T>]) -> Result<()> {
        if ![self.dtype, DataType::U8].contains(&T::DTYPE) {
            return Err(Error::invalid(format!(
                "buffers of {} for a partial allreduce of {}: give that type or bytes (Buffer::cast)",
                T::DTYPE,
                self.dtype
            )));
        }
        let lengths = buffers.iter().map(|buffer| buffer.raw().len_bytes());
        let (is_whole, bytes) = lengths.fold((true, 0), |(is_whole, sum), bytes| {
            let is_multiple = bytes.is_multiple_of(self.dtype.size_bytes());
            (is_whole && is_multiple, sum + bytes)
        });
        if is_whole && bytes == self.bytes {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{} buffers of {bytes} bytes for a partial allreduce of {} bytes: exactly that, each of whole elements",
            buffers.len(),
            self.bytes
        )))
    }
}

impl std::fmt::Debug for PartialAllreduce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PartialAllreduce")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// Memory of buffers, borrowed.
struct Parts<'a> {
    views: Vec<View>,
    _held: Vec<Held<'a>>,
}
