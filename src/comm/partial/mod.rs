//! [`PartialAllreduce`]: an allreduce in which fast ranks do not wait for slow ones.
//!
//! Notices between the ranks begin a round. The round itself is one or two ordinary operations, on
//! a communicator that nothing else uses. The partial allreduce has a thread of its own that drives
//! this communicator, so waits on other communicators do not drive it.
//!
//! [`crate::partial`] decides when a round begins and what enters it; this folder moves the bytes.
//! `rounds.rs` starts and ends the operations of rounds, `memory.rs` has the buffers, `recovery.rs`
//! goes on after a death, `names.rs` translates the ranks in errors after a death, and `driving.rs`
//! says which thread drives. `fusion.rs` packs a model's gradients.
//!
//! Read first: [`PartialAllreduce::new`], then `rounds.rs`.

mod driving;
mod fusion;
mod memory;
mod names;
mod recovery;
mod rounds;

pub use fusion::{PartialFusion, PartialFusionOptions};

use super::Communicator;
use super::buffer::Buffer;
use super::queue::CompletionQueue;
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
/// `Send + Sync`. A thread of its own drives the rounds while the application computes, and sleeps
/// between them. A rank that does not submit in time contributes what it has, which may be nothing.
/// A process that is stopped stalls the rounds; after the timeout all ranks get an error that names
/// its rank. Dropping the partial allreduce in the middle of a round makes it fail on all ranks.
/// The drop does not touch the communicator from which it was made.
///
/// When a rank dies, all others get an error, unless [`PartialOptions::survive`] is set. With
/// `survive`, the living ranks connect to each other anew: the calls under way wait for that, at
/// most for the timeout, and then go on, and the reports say which ranks are dead. The communicator
/// from which the partial allreduce was made fails all the same; a caller that needs it rebuilds
/// it. With `survive`, a rank that drops the partial allreduce leaves, and the others go on.
pub struct PartialAllreduce {
    driving: BackgroundThread<PartialDriving>,
    bytes: usize,
    dtype: DataType,
}

impl PartialAllreduce {
    /// Makes a partial allreduce of `count` elements of `dtype`. Collective, with the same
    /// arguments on all ranks. It works on a communicator of its own, so any number of partial
    /// allreduces and of other operations may be under way at the same time.
    ///
    /// In each step a trainer submits the gradient, takes the result of that step and applies it.
    /// With ordered delivery the weights after step i are the same on all ranks, although the
    /// gradient that a slow rank computed in step i may be in the result of a later step.
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
    /// [`Error::InvalidArgument`]: an option or `count` is out of range, the arguments differ
    /// between ranks, or the divisor is one for `Bool`, which has no averages (`Divisor::One` gives
    /// the or of all values). [`Error::Exhausted`]: there is no memory for the snapshots and
    /// results. There are two snapshots for each round in flight. With ordered delivery there are
    /// as many results as `staleness_max` and `rounds_in_flight` together, and with `survive` as
    /// many more as `rounds_in_flight`.
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

    /// Submits this rank's next gradient, and returns the index of its step; the first is 0. The
    /// gradient is copied, so its memory may be changed when this returns. Its elements have the
    /// type of the partial allreduce, or are bytes.
    ///
    /// A rank may be [`PartialOptions::rounds_in_flight`] steps ahead of the last result that it
    /// has taken. If it is, this call waits until another thread takes a result.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: the buffer has another type or length, or no result was taken
    /// during the timeout. [`Error::InUse`]: something writes the buffer. Any error of a round.
    pub fn submit<T: Element>(&self, gradient: &Buffer<T>) -> Result<u64> {
        self.submit_parts(std::slice::from_ref(gradient))
    }

    /// As [`submit`](PartialAllreduce::submit), for a gradient that lies in several buffers, which
    /// together are as long as the vector. They enter the same round, all of them or none.
    /// [`PartialFusion`] does this for named tensors that are submitted in any order.
    pub fn submit_parts<T: Element>(&self, gradient: &[Buffer<T>]) -> Result<u64> {
        let (driving, parts) = self.driving_for(gradient, Access::Shared)?;
        driving.submit(&parts.views, false)
    }

    /// Takes the next result: copies it to `update`, and returns its report. Waits for a result
    /// that is due; `Ok(None)` means that none is due before the next submit. With ordered delivery
    /// the results are those of the rounds in order, and a rank that is behind gets its next result
    /// at once.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: the buffer has another type or length. [`Error::InUse`]:
    /// something uses the buffer. [`Error::Timeout`]: the round has not begun during the timeout.
    /// Any error of the round. After an error of a round the partial allreduce has failed on all
    /// ranks; the communicator from which it was made is still good, unless a rank has died.
    pub fn next<T: Element>(&self, update: &Buffer<T>) -> Result<Option<RoundReport>> {
        self.next_parts(std::slice::from_ref(update))
    }

    /// As [`next`](PartialAllreduce::next), into several buffers which together are as long as the
    /// vector.
    pub fn next_parts<T: Element>(&self, update: &[Buffer<T>]) -> Result<Option<RoundReport>> {
        let (driving, parts) = self.driving_for(update, Access::Exclusive)?;
        driving.next(&parts.views, true)
    }

    /// Has a queue told, once, when a result can be taken, or when the rounds have failed: it then
    /// has a completion with the number `user`, and [`next`](PartialAllreduce::next) returns at
    /// once. The queue may be of any communicator.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: no result is due before the next submit, or a queue is to be
    /// told already; [`Error::Forked`]. If the rounds have failed, the completion has the error.
    pub fn notify(&self, queue: &CompletionQueue, user: u64) -> Result<()> {
        self.driving.get()?.notify(queue, user)
    }

    /// As [`next`](PartialAllreduce::next), but returns `Ok(None)` instead of waiting. A rank that
    /// is behind catches up by calling it until it returns `Ok(None)`.
    pub fn try_next<T: Element>(&self, update: &Buffer<T>) -> Result<Option<RoundReport>> {
        let (driving, parts) = self.driving_for(std::slice::from_ref(update), Access::Exclusive)?;
        driving.next(&parts.views, false)
    }

    /// Does [`submit`](PartialAllreduce::submit) and [`next`](PartialAllreduce::next) in one call.
    /// `gradient` and `update` may be the same buffer. A trainer calls it if it does no other work
    /// between the two: this is faster, because the thread does not have to drive in between.
    pub fn exchange<T: Element>(
        &self,
        gradient: &Buffer<T>,
        update: &Buffer<T>,
    ) -> Result<Option<RoundReport>> {
        // Checked first, so that nothing is submitted if the result cannot be taken.
        drop(self.driving_for(std::slice::from_ref(update), Access::Exclusive)?);
        {
            let (driving, parts) =
                self.driving_for(std::slice::from_ref(gradient), Access::Shared)?;
            driving.submit(&parts.views, true)?;
        }
        self.next(update)
    }

    /// Takes all results that are there, oldest first, and returns their number. For each of them
    /// it copies the result to `update` and then calls `visit` with its report. Errors: as
    /// [`next`](PartialAllreduce::next).
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

    /// Runs one round that waits for all ranks and delivers everything that is pending on any of
    /// them. It takes every result that was not taken yet, and the result of this last round: it
    /// copies each to `update` and then calls `visit` with its report.
    ///
    /// Collective, after the same number of submits on all ranks. Call it at the end, and before
    /// validation and checkpoints, because the ranks' weights may differ until then. Submits may go
    /// on afterwards. With [`PartialOptions::survive`] it returns when every living rank has the
    /// last result.
    ///
    /// # Errors
    /// As [`next`](PartialAllreduce::next); [`Error::InvalidArgument`] if another rank has
    /// submitted a gradient instead. The partial allreduce has then failed on all ranks. A rank
    /// that has already taken the result of that gradient gets the error at its next call.
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
        // Borrows the buffers for one result only, so that `visit` can read them.
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

    /// How many rounds this rank is behind: the rounds that have ended here less its submits, but
    /// at least 0; 0 in a forked child. Like every call, it handles what has come from peers. With
    /// [`PartialOptions::survive`] that may be a recovery after a death, in which the call waits
    /// for the other living ranks.
    pub fn lag(&self) -> u64 {
        self.driving.get().map_or(0, PartialDriving::lag)
    }

    /// Submits the gradient in these views. The caller has borrowed them.
    fn submit_views(&self, gradient: &[View]) -> Result<u64> {
        self.driving.get()?.submit(gradient, false)
    }

    /// Returns what drives the partial allreduce, and the memory of a user's buffers, which is
    /// borrowed for as long as the result lives. The buffers together are as long as the vector.
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

/// The borrowed memory of a user's buffers.
struct Parts<'a> {
    views: Vec<View>,
    _held: Vec<Held<'a>>,
}
