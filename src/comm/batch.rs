//! [`Batch`]: several collectives that end as one operation. Short ones travel together.

use super::builder::CollectiveBuilder;
use super::call::Call;
use super::check::{Uses, check};
use super::driving::Driving;
use super::plans::bytes_of;
use super::ranges::Ranges;
use super::raw::{RawBuffer, Use};
use super::{Communicator, Operation};
use crate::config::checked_timeout;
use crate::engine::TaskId;
use crate::error::{Error, Result};
use crate::kernel;
use crate::memory::{Kept, View};
use crate::types::Collective;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Most bytes of one rank's part of a call that travels together with others: where ranks map each
/// other's memory, and elsewhere. 64 all-gathers of this length, by 2 ranks on 2 cores, are 1.3 and
/// 1.4 times as fast in a batch if their inputs are copied; with twice this length, 0.9 and 1.0
/// times. They are 2.3 and 1.6 times as fast if their inputs are used where they lie
/// (`ffi/capi/benches/speed.c`).
const PACKED_BYTES_MAX: [u64; 2] = [4 << 10, 16 << 10];
/// Most bytes of a buffer in which calls travel together. It is copied back under the engine's
/// lock.
const STAGING_BYTES_MAX: u64 = 1 << 20;
/// How many of these buffers are kept for the next batches.
const STAGING_KEPT: usize = 4;

/// Several collectives that are started together and end as one operation, like those of MPI or
/// NCCL between a group's start and end. Made by [`Communicator::batch`].
#[derive(Clone, Debug)]
#[must_use = "a batch does nothing until it is run or started"]
pub struct Batch<'a> {
    communicator: &'a Communicator,
    members: Vec<CollectiveBuilder<'a>>,
    timeout: Option<Duration>,
}

impl Communicator {
    /// An empty batch of collectives: give it some, then run or start it. All ranks give the same
    /// ones in the same order.
    ///
    /// Allreduces, broadcasts, reduces, all-gathers and reduce-scatters are short up to 16 KiB a
    /// rank (4 KiB where all ranks share memory), unless they name an algorithm. Short ones of one
    /// kind that agree in type, operator, root and timeout travel as one operation. Their inputs
    /// are copied together, and their outputs apart, unless they lie one after another in one
    /// registered buffer, in the order of the batch. The others are operations of their own, and
    /// are not copied. A sum of floats may be rounded in another order than alone, as between two
    /// algorithms.
    ///
    /// ```
    /// use linerate::{Collective, Communicator, Config, DataType, ReduceOp};
    /// let comm = Communicator::join(0, 1, "a job with batches", Config::default())?;
    /// let gradients = [comm.alloc::<f32>(10)?, comm.alloc::<f32>(20)?];
    /// let batch = gradients.iter().fold(comm.batch(), |batch, gradient| {
    ///     let sum = comm.collective(Collective::AllReduce, DataType::F32, gradient.len() as u64);
    ///     batch.with(sum.op(ReduceOp::Sum).input(gradient).output(gradient))
    /// });
    /// batch.start()?.wait()?;
    /// # Ok::<(), linerate::Error>(())
    /// ```
    pub fn batch(&self) -> Batch<'_> {
        Batch {
            communicator: self,
            members: Vec::new(),
            timeout: None,
        }
    }
}

/// What a batch starts: one collective, or several that travel together.
struct Start {
    /// The numbers of the members.
    members: Vec<usize>,
    /// Bytes of all parts of all ranks; 0: it travels alone.
    bytes: u64,
}

impl<'a> Batch<'a> {
    /// Adds a collective of this communicator.
    pub fn with(mut self, member: CollectiveBuilder<'a>) -> Self {
        self.members.push(member);
        self
    }

    /// How long each member may make no progress before the communicator fails, unless the member
    /// has a timeout of its own. Each rank goes by its own value.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Starts all and returns at once. The operation has ended when all have, and has the error of
    /// the first one that failed. It borrows all buffers until then. An empty batch has ended.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: the arguments of a member do not fit, or it is of another
    /// communicator; [`Error::InUse`]: something else uses a buffer, for example another member;
    /// any failure of the communicator.
    pub fn start(&self) -> Result<Operation> {
        let comm = self.communicator;
        let driving = comm.driving()?;
        let timeout = self.timeout.map(checked_timeout).transpose()?;
        let mut calls = Vec::with_capacity(self.members.len());
        for (number, member) in self.members.iter().enumerate() {
            if !member.is_of(comm) {
                return Err(Error::invalid(format!(
                    "member {number} of a batch is of another communicator: give each communicator a batch of its own"
                )));
            }
            let call = member.call()?;
            let uses = check(&call, comm.rank(), comm.ranks())?.uses;
            let timeout = call.timeout.or(timeout);
            calls.push((Call { timeout, ..call }, uses));
        }
        comm.settle()?;
        let mut tasks = Vec::new();
        for start in self.plan(&calls) {
            let started = match (&start.members[..], start.bytes) {
                (&[alone], _) | (&[alone, ..], 0) => comm.start_call(&calls[alone].0),
                (members, bytes) => {
                    let calls: Vec<_> = members.iter().map(|&at| &calls[at]).collect();
                    self.start_together(driving, &calls, bytes as usize)
                }
            };
            match started {
                Ok(task) => tasks.push(task),
                Err(error) => {
                    // Those that have started go on, as they do on other ranks.
                    drop(Operation::of_all(comm, tasks));
                    return Err(error);
                }
            }
        }
        Ok(Operation::of_all(comm, tasks))
    }

    /// Starts all and waits until all have ended. Errors: as [`Batch::start`], and any of a member.
    pub fn run(&self) -> Result<()> {
        self.start()?.wait()
    }

    /// Which members travel together; equal on all ranks.
    fn plan(&self, calls: &[(Call<'_>, Uses)]) -> Vec<Start> {
        let is_one_host = self.communicator.inner.is_one_host;
        let longest = PACKED_BYTES_MAX[usize::from(!is_one_host)];
        let mut all: Vec<Start> = Vec::new();
        for (number, (call, _)) in calls.iter().enumerate() {
            let bytes = self.packed_bytes(call, longest);
            let room = all.iter_mut().find(|start| {
                let first = &calls[start.members[0]].0;
                bytes > 0
                    && start.bytes > 0
                    && start.bytes + bytes <= STAGING_BYTES_MAX
                    && (first.collective, first.dtype) == (call.collective, call.dtype)
                    && (first.op, first.root) == (call.op, call.root)
                    && first.timeout == call.timeout
            });
            match room {
                Some(start) => {
                    start.members.push(number);
                    start.bytes += bytes;
                }
                None => all.push(Start {
                    members: vec![number],
                    bytes,
                }),
            }
        }
        all
    }

    /// Bytes of a call in the buffer in which it travels; 0: it travels alone.
    fn packed_bytes(&self, call: &Call<'_>, longest: u64) -> u64 {
        let ranks = u64::from(self.communicator.ranks());
        let parts = match call.collective {
            Collective::AllReduce | Collective::Broadcast | Collective::Reduce => 1,
            Collective::AllGather | Collective::ReduceScatter => ranks,
            _ => 0,
        };
        let bytes = bytes_of(call);
        let is_short = bytes <= longest && call.algorithm.is_none();
        match is_short && !self.communicator.inner.is_size_only {
            true => bytes * parts,
            false => 0,
        }
    }

    /// Starts one call for several. Inputs and outputs that lie one after another in registered
    /// memory are used where they lie. Others are copied together before, or copied back after.
    fn start_together(
        &self,
        driving: &Driving,
        calls: &[&(Call<'_>, Uses)],
        bytes: usize,
    ) -> Result<TaskId> {
        let comm = self.communicator;
        let (rank, ranks) = (comm.rank() as usize, comm.ranks() as usize);
        let first = &calls[0].0;
        let element = first.dtype.size_bytes();
        let together: u64 = calls.iter().map(|(call, _)| call.count).sum();
        let stride = together as usize * element;
        // The inputs of reduce-scatters and the outputs of all-gathers have a part for each rank.
        // The parts of a rank travel together, and do not lie so.
        let has_run = [
            first.collective != Collective::ReduceScatter,
            first.collective != Collective::AllGather,
        ];
        let memory_of = [input_of, output_of];
        let runs = [0, 1].map(|side| {
            let of = calls.iter().map(|(call, _)| (call, memory_of[side](call)));
            let run = has_run[side].then(|| run_of(of, stride, &comm.inner.ranges));
            run.flatten().filter(|run| run.is_at_home(&driving.garbage))
        });
        let staging = match runs.iter().all(Option::is_some) {
            true => None,
            false => Some(self.staging(bytes)?),
        };
        let pool = comm.inner.staging.clone();
        let kept = borrow(calls).inspect_err(|_| keep_staging(&pool, staging.clone()))?;
        let mut out_of = Vec::new();
        if let Some(staging) = &staging {
            let mut at = 0;
            for (call, _) in calls {
                let of = Packed {
                    rank,
                    ranks,
                    bytes: call.count as usize * element,
                    staging: staging.view(),
                    at,
                    stride,
                };
                if runs[0].is_none() {
                    of.copy_input(call);
                }
                if runs[1].is_none() {
                    of.copies_of_output(call, &mut out_of);
                }
                at += of.bytes;
            }
        }
        let staged = |side: usize| {
            let staging = staging.as_ref().expect("what is no run is staged");
            // An all-gather gives the part of one rank, and a reduce-scatter takes it.
            match (first.collective, side) {
                (Collective::AllGather, 0) | (Collective::ReduceScatter, 1) => {
                    staging.part(rank * stride, stride)
                }
                _ => staging.part(0, bytes),
            }
        };
        let [input, output] = runs;
        let input = input.unwrap_or_else(|| staged(0));
        let output = output.unwrap_or_else(|| staged(1));
        let call = Call {
            op: first.op,
            root: first.root,
            timeout: first.timeout,
            ..Call::new(first.collective, first.dtype, together)
        };
        let at_end = Box::new(move || {
            out_of.iter().for_each(|&(from, to)| kernel::copy(from, to));
            keep_staging(&pool, staging);
        });
        driving.start_call_with(&call.with(&input, &output), kept, at_end)
    }

    /// Memory for a call of this length.
    fn staging(&self, bytes: usize) -> Result<RawBuffer> {
        let staging = &self.communicator.inner.staging;
        let mut known = staging.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = known.iter().position(|buffer| buffer.len_bytes() >= bytes);
        if let Some(at) = fits {
            return Ok(known.swap_remove(at));
        }
        drop(known);
        self.communicator.alloc_raw(bytes.next_power_of_two())
    }
}

/// Keeps memory for the next batches, if there is not enough already.
fn keep_staging(pool: &Mutex<Vec<RawBuffer>>, memory: Option<RawBuffer>) {
    let mut known = pool.lock().unwrap_or_else(PoisonError::into_inner);
    if known.len() < STAGING_KEPT {
        known.extend(memory);
    }
}

/// Borrows the memory of calls of one collective until the operation has ended. Parts of a buffer
/// that lie one after another, as the parameters of a model often do, become one borrow.
fn borrow(calls: &[&(Call<'_>, Uses)]) -> Result<Vec<Kept>> {
    let mut uses: Vec<(&RawBuffer, Use)> = Vec::new();
    for side in 0..2 {
        for (call, used) in calls.iter().map(|(call, uses)| (call, &uses[side])) {
            let buffer = [call.input, call.output][side];
            let (Some(buffer), Some(used)) = (buffer, used) else {
                continue;
            };
            let last = uses.last_mut();
            let mut last = last.filter(|(last, _)| last.has_owner_of(buffer));
            if !(last.as_mut()).is_some_and(|(_, all)| all.take_up(used)) {
                uses.push((buffer, used.clone()));
            }
        }
    }
    let mut kept = Vec::with_capacity(uses.len());
    for (buffer, used) in uses {
        match buffer.borrow(&used, calls[0].0.collective.name()) {
            Ok(held) => kept.extend(buffer.keep(held)),
            Err(error) => {
                kept.into_iter().for_each(Kept::end);
                return Err(error);
            }
        }
    }
    // The latest borrow ends fastest, so the latest one comes first.
    kept.reverse();
    Ok(kept)
}

/// What a call reads.
fn input_of<'a>(call: &Call<'a>) -> &'a RawBuffer {
    call.input.or(call.output).expect("it was checked")
}

/// What a call writes; on a rank that has no output, what it reads.
fn output_of<'a>(call: &Call<'a>) -> &'a RawBuffer {
    call.output.or(call.input).expect("it was checked")
}

/// The memory of calls, `bytes` bytes in all, if they lie one after another in one registered
/// buffer.
fn run_of<'a, 'b: 'a>(
    calls: impl Iterator<Item = (&'a Call<'b>, &'b RawBuffer)>,
    bytes: usize,
    ranges: &Ranges,
) -> Option<RawBuffer> {
    let mut first = None;
    let mut at = 0;
    for (call, buffer) in calls {
        let first: &RawBuffer = first.get_or_insert(buffer);
        if !buffer.has_owner_of(first) || first.distance_to(buffer) != Some(at) {
            return None;
        }
        at += bytes_of(call) as isize;
    }
    let first = first?;
    let run = RawBuffer::inside(first.view().as_ptr().addr(), bytes, ranges);
    // Memory that was adopted before it was registered is another buffer there.
    run.filter(|run| run.has_owner_of(first))
}

/// Where a call lies among those that travel together: from `at` on in the part of each rank, which
/// has `stride` bytes.
struct Packed {
    rank: usize,
    ranks: usize,
    /// Bytes of one part of the call.
    bytes: usize,
    staging: View,
    at: usize,
    stride: usize,
}

impl Packed {
    /// The memory in which the call's part of a rank travels.
    fn staged(&self, part: usize) -> View {
        self.staging.part(part * self.stride + self.at, self.bytes)
    }

    /// One part of what the call reads or writes.
    fn part_of(&self, buffer: &RawBuffer, part: usize) -> View {
        buffer.view_ref().part(part * self.bytes, self.bytes)
    }

    /// Copies the call's input to where it travels.
    fn copy_input(&self, call: &Call<'_>) {
        let input = input_of(call);
        match call.collective {
            Collective::AllGather => {
                kernel::copy(self.part_of(input, 0), self.staged(self.rank));
            }
            Collective::ReduceScatter => {
                (0..self.ranks)
                    .for_each(|part| kernel::copy(self.part_of(input, part), self.staged(part)));
            }
            Collective::Broadcast if self.rank != call.root as usize => {}
            _ => kernel::copy(self.part_of(input, 0), self.staged(0)),
        }
    }

    /// Adds the copies of the call's output to where the caller wants it.
    fn copies_of_output(&self, call: &Call<'_>, copies: &mut Vec<(View, View)>) {
        let output = output_of(call);
        match call.collective {
            Collective::AllGather => {
                // What is in place already is not copied.
                let own = self.part_of(output, self.rank);
                let is_in_place = input_of(call).view_ref().as_ptr() == own.as_ptr();
                for part in 0..self.ranks {
                    if !is_in_place || part != self.rank {
                        copies.push((self.staged(part), self.part_of(output, part)));
                    }
                }
            }
            Collective::ReduceScatter => {
                copies.push((self.staged(self.rank), self.part_of(output, 0)));
            }
            Collective::Reduce if self.rank != call.root as usize => {}
            _ => copies.push((self.staged(0), self.part_of(output, 0))),
        }
    }
}
