//! [`PartialAllreduce`]: an allreduce in which fast ranks do not wait for slow ones.
//!
//! What a round is, when it begins and what enters it is in [`crate::partial`]; here bytes move. `rounds.rs` starts and ends
//! the operations of rounds, `memory.rs` has the buffers, `recovery.rs` goes on after a death, `names.rs` names ranks afterwards, `seat.rs` the threads; `fusion.rs` packs
//! a model's gradients.

mod fusion;
mod memory;
mod names;
mod recovery;
mod rounds;
mod seat;

pub use fusion::{PartialFusion, PartialFusionOptions};

use super::attended::Attended;
use super::{Buffer, Communicator};
use crate::error::{Error, Result};
use crate::memory::View;
use crate::partial::{Machine, PartialOptions, RoundReport};
use crate::types::DataType;
use memory::Memory;
use rounds::Rounds;
use seat::Seat;

/// Sums gradients over ranks, round after round, without waiting for slow ranks longer than its policy says. See
/// [`PartialAllreduce::new`].
///
/// `Send + Sync`. Rounds go on while the application computes, by a thread that sleeps between them: a rank that does not
/// submit contributes what it has. A process that is stopped stalls them; after the timeout all ranks have an error that names it.
/// Dropping it in the middle of a round fails it on all ranks; the communicator that it was made from is not touched.
///
/// When a rank dies all others have an error, unless [`PartialOptions::survive`] is set: then the calls under way wait until those
/// that live have found together, at most the timeout, and go on; reports say who is dead. The communicator that it was made
/// from fails with the death all the same, and is rebuilt by whoever needs it. Dropping it then is leaving: the others go on.
pub struct PartialAllreduce {
    seat: Attended<Seat>,
    bytes: usize,
    element_bytes: usize,
}

impl PartialAllreduce {
    /// A partial allreduce of `count` elements of `dtype`. Collective, with the same arguments on all ranks. It works on a
    /// communicator of its own, so any number of them and of other operations may be under way at the same time.
    ///
    /// The loop of a trainer: submit the gradient of a step, take the result of that step, apply it. With ordered delivery
    /// the weights after step i are the same on all ranks, although a slow rank's gradient may be in a later one.
    ///
    /// ```
    /// use linerate::{Communicator, Config, DataType, PartialAllreduce, PartialOptions};
    /// let job = format!("partial-{}", std::process::id());
    /// let run = |rank| -> linerate::Result<f32> {
    ///     let comm = Communicator::join(rank, 4, &job, Config::default())?;
    ///     let partial = PartialAllreduce::new(&comm, DataType::F32, 4, PartialOptions::default())?;
    ///     let (gradient, update) = (comm.alloc(16)?, comm.alloc(16)?);
    ///     let mut weight = 0.0f32;
    ///     for _step in 0..5 {
    ///         gradient.write(0, &[rank as f32; 4]);
    ///         let report = partial.exchange(&gradient, &update)?.expect("a result for every step");
    ///         assert!(report.active_count() >= 2, "a majority of 4");
    ///         weight -= update.to_vec::<f32>()[0];
    ///     }
    ///     // Before validation and checkpoints: what is pending anywhere is delivered to all.
    ///     partial.finish(&update, |_report| weight -= update.to_vec::<f32>()[0])?;
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
    /// [`Error::InvalidArgument`]: options out of range, or not the same on all ranks; [`Error::Exhausted`]: no memory for the
    /// snapshots (two per round in flight) and results (as many as the bound of staleness and the rounds in flight together, and
    /// the rounds in flight again where deaths are survived).
    pub fn new(
        comm: &Communicator,
        dtype: DataType,
        count: u64,
        options: PartialOptions,
    ) -> Result<PartialAllreduce> {
        options.check(comm.ranks())?;
        let comm = comm.duplicate_apart()?;
        let all = comm.gather_words(&[options.fingerprint(dtype, count)])?;
        if let Some(rank) = all.iter().position(|&word| word != all[0]) {
            return Err(Error::invalid(format!(
                "rank {rank} makes a partial allreduce with another type, count or PartialOptions than rank 0 \
                 (here {count} elements of {dtype}, {options:?}): all ranks give the same"
            )));
        }
        let mut machine = Machine::new(comm.rank(), comm.ranks(), options.clone());
        let snapshots_count = machine.snapshots_max();
        let memory = Memory::new(&comm, (dtype, count), &options, snapshots_count)?;
        if memory.has_hub() {
            machine = machine.by_hub();
        }
        let bytes = memory.bytes();
        let now = comm.inner.shared.clock.now();
        let process = comm.inner.shared.process;
        let rounds = Rounds::new(comm, machine, memory, now)?;
        let seat = Attended::start(Seat::new(rounds), process, "linerate-partial")?;
        Ok(PartialAllreduce {
            seat,
            bytes,
            element_bytes: dtype.size_bytes(),
        })
    }

    /// Submits this rank's next gradient, copied: its memory may be changed when this returns. The number of the step, from 0.
    /// Waits while as many steps as there may be rounds in flight have no result taken.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: a buffer of another length, or no result is taken for the timeout; any error of a round.
    pub fn submit(&self, gradient: &Buffer) -> Result<u64> {
        self.check(std::slice::from_ref(gradient))?;
        self.seat.submit(&[gradient.view()], false)
    }

    /// The same for a gradient in several buffers, which together are as long: one decision for all of them, so that all
    /// layers of a step are in the same round or none. [`PartialFusion`] does it for named tensors, which come in any order.
    pub fn submit_parts(&self, gradient: &[Buffer]) -> Result<u64> {
        self.check(gradient)?;
        let parts: Vec<View> = gradient.iter().map(Buffer::view).collect();
        self.seat.submit(&parts, false)
    }

    /// Takes the next result, copied to `update`, and what it is. With ordered delivery these are the rounds in order; a rank
    /// that is behind has its result at once. `Ok(None)`: there is none, and none is due before the next submit.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: a buffer of another length. [`Error::Timeout`]: the round has not begun for that long. Any
    /// error of the round; the partial allreduce has then failed on all ranks, and the communicator is still good unless a rank
    /// has died.
    pub fn next(&self, update: &Buffer) -> Result<Option<RoundReport>> {
        self.check(std::slice::from_ref(update))?;
        self.seat.next(&[update.view()], true)
    }

    /// The same, into several buffers which together are as long.
    pub fn next_parts(&self, update: &[Buffer]) -> Result<Option<RoundReport>> {
        self.check(update)?;
        let parts: Vec<View> = update.iter().map(Buffer::view).collect();
        self.seat.next(&parts, true)
    }

    /// As [`next`](PartialAllreduce::next), and `None` instead of waiting: a rank that is behind calls it until then to catch up.
    pub fn try_next(&self, update: &Buffer) -> Result<Option<RoundReport>> {
        self.check(std::slice::from_ref(update))?;
        self.seat.next(&[update.view()], false)
    }

    /// [`submit`](PartialAllreduce::submit) and [`next`](PartialAllreduce::next) in one, which may be the same buffer: what a
    /// trainer does that has nothing to do in between. Faster than the two, because no thread has to take over in between.
    pub fn exchange(&self, gradient: &Buffer, update: &Buffer) -> Result<Option<RoundReport>> {
        self.check(std::slice::from_ref(gradient))?;
        self.check(std::slice::from_ref(update))?;
        self.seat.submit(&[gradient.view()], true)?;
        self.seat.next(&[update.view()], true)
    }

    /// Takes all results that are there, oldest first: `visit` finds each in `update`. How many.
    pub fn catch_up(&self, update: &Buffer, mut visit: impl FnMut(RoundReport)) -> Result<u64> {
        let mut rounds = 0;
        while let Some(report) = self.try_next(update)? {
            rounds += 1;
            visit(report);
        }
        Ok(rounds)
    }

    /// One round that waits for all ranks and delivers everything that is pending anywhere; `visit` finds every result that
    /// was not taken, and the last, in `update`. Collective, after the same number of submits on all ranks: before
    /// validation and checkpoints, since ranks would see different weights, and at the end. Submits may go on afterwards. Where
    /// deaths are survived it returns when every rank that lives has the last result.
    ///
    /// # Errors
    /// As [`next`](PartialAllreduce::next); [`Error::InvalidArgument`] if another rank has submitted a gradient instead. The
    /// partial allreduce has then failed on all ranks; one that had taken the result of that gradient finds out at its next call.
    pub fn finish(&self, update: &Buffer, visit: impl FnMut(RoundReport)) -> Result<()> {
        self.finish_parts(std::slice::from_ref(update), visit)
    }

    /// The same, into several buffers which together are as long.
    pub fn finish_parts(
        &self,
        update: &[Buffer],
        mut visit: impl FnMut(RoundReport),
    ) -> Result<()> {
        self.check(update)?;
        let parts: Vec<View> = update.iter().map(Buffer::view).collect();
        while !self.seat.finish()? {
            if let Some(report) = self.seat.next(&parts, true)? {
                visit(report);
            }
        }
        while let Some(report) = self.seat.next(&parts, true)? {
            let last = report.is_last.then_some(report.round);
            visit(report);
            if let Some(last) = last {
                return self.seat.leave(last);
            }
        }
        Ok(())
    }

    /// Rounds that have ended here less submits: how far this rank is behind, 0 if it is not, and in a forked child. Takes part in
    /// what has come, as every call does; with [`PartialOptions::survive`] that may be a recovery, which takes until the others are in it.
    pub fn lag(&self) -> u64 {
        if self.seat.process().is_forked() {
            return 0; // The lock may be the parent's.
        }
        self.seat.lag()
    }

    /// An error in a forked child.
    fn check_process(&self) -> Result<()> {
        self.seat.process().check()
    }

    fn check(&self, buffers: &[Buffer]) -> Result<()> {
        self.check_process()?;
        let lengths = buffers.iter().map(Buffer::len_bytes);
        let (is_whole, bytes) = lengths.fold((true, 0), |(is_whole, sum), bytes| {
            let is_multiple = bytes.is_multiple_of(self.element_bytes);
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
