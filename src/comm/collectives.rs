//! Collectives that wait: each in place and out of place, on slices and on buffers.

use super::Communicator;
use super::call::{Call, Transfer};
use super::lend::{Input, Lent, Output};
use crate::error::{Error, Result};
use crate::memory::{Element, abort_on_unwind};
use crate::types::{Collective, DataType, Rank, ReduceOp};

/// Blocking collectives. All ranks call the same ones in the same order, with equal lengths,
/// operators and roots.
///
/// A [`Buffer`](super::Buffer) that is registered is used where it lies; slices and other buffers
/// are staged through registered chunks. A call returns, also with an error, only when nothing
/// reads or writes a slice any more.
///
/// Errors of all: [`Error::InvalidArgument`]: lengths that do not fit, or an operator that the type
/// does not have; [`Error::InUse`]: a buffer that something else uses (nothing has been started
/// then); any failure of the communicator, after which outputs are undefined.
impl Communicator {
    /// Reduces `data` of all ranks to all of them, in place. As ncclAllReduce.
    ///
    /// ```
    /// use linerate::{Communicator, Config, ReduceOp};
    /// let communicator = Communicator::join(0, 1, "a job that reduces", Config::default())?;
    /// let mut gradients = vec![1.0f32, 2.0];
    /// communicator.all_reduce(&mut gradients, ReduceOp::Avg)?;
    /// assert_eq!(gradients, [1.0, 2.0]);
    /// # Ok::<(), linerate::Error>(())
    /// ```
    pub fn all_reduce<T: Element>(&self, mut data: impl Output<T>, op: ReduceOp) -> Result<()> {
        let data = data.lend();
        let of = self.shape::<T>(Collective::AllReduce).by(op);
        self.run_lent(of.on(data.raw(), data.raw())?)
    }

    /// Reduces `input` of all ranks to `output` of all of them, which is as long. As ncclAllReduce.
    pub fn all_reduce_into<T: Element>(
        &self,
        mut input: impl Input<T>,
        mut output: impl Output<T>,
        op: ReduceOp,
    ) -> Result<()> {
        let (input, output) = (input.lend(), output.lend());
        let of = self.shape::<T>(Collective::AllReduce).by(op);
        self.run_lent(of.on(input.raw(), output.raw())?)
    }

    /// Copies `data` of the root to `data` of all others. As ncclBroadcast, in place.
    pub fn broadcast<T: Element>(&self, mut data: impl Output<T>, root: Rank) -> Result<()> {
        let data = data.lend();
        let of = self.shape::<T>(Collective::Broadcast).at(root);
        self.run_lent(of.on(data.raw(), data.raw())?)
    }

    /// Copies `input` of the root to `output` of all ranks. `input` of other ranks is not looked
    /// at.
    pub fn broadcast_into<T: Element>(
        &self,
        mut input: impl Input<T>,
        mut output: impl Output<T>,
        root: Rank,
    ) -> Result<()> {
        let (input, output) = (input.lend(), output.lend());
        let of = self.shape::<T>(Collective::Broadcast).at(root);
        self.run_lent(of.on(input.raw(), output.raw())?)
    }

    /// Reduces `data` of all ranks to `data` of the root; that of others stays as it is. As
    /// ncclReduce, in place.
    pub fn reduce<T: Element>(
        &self,
        mut data: impl Output<T>,
        op: ReduceOp,
        root: Rank,
    ) -> Result<()> {
        let data = data.lend();
        let of = self.shape::<T>(Collective::Reduce).by(op).at(root);
        self.run_lent(of.on(data.raw(), data.raw())?)
    }

    /// Reduces `input` of all ranks to `output` of the root. `output` of other ranks is not looked
    /// at: `&mut []` will do.
    pub fn reduce_into<T: Element>(
        &self,
        mut input: impl Input<T>,
        mut output: impl Output<T>,
        op: ReduceOp,
        root: Rank,
    ) -> Result<()> {
        let (input, output) = (input.lend(), output.lend());
        let of = self.shape::<T>(Collective::Reduce).by(op).at(root);
        self.run_lent(of.on(input.raw(), output.raw())?)
    }

    /// Reduces `input`, one block for each rank, of all ranks; `output` is this rank's block of the
    /// result. As ncclReduceScatter.
    pub fn reduce_scatter<T: Element>(
        &self,
        mut input: impl Input<T>,
        mut output: impl Output<T>,
        op: ReduceOp,
    ) -> Result<()> {
        let (input, output) = (input.lend(), output.lend());
        let of = self.shape::<T>(Collective::ReduceScatter).by(op);
        self.run_lent(of.on(input.raw(), output.raw())?)
    }

    /// As [`Communicator::reduce_scatter`] of `data`, whose own block gets the result; the others
    /// are undefined then.
    pub fn reduce_scatter_in_place<T: Element>(
        &self,
        mut data: impl Output<T>,
        op: ReduceOp,
    ) -> Result<()> {
        let data = data.lend();
        let of = self.shape::<T>(Collective::ReduceScatter).by(op);
        let own = of.own_block(data.raw())?;
        self.run_lent(of.on(data.raw(), &own)?)
    }

    /// Copies `input` of every rank to its block of `output` on all ranks. As ncclAllGather.
    pub fn all_gather<T: Element>(
        &self,
        mut input: impl Input<T>,
        mut output: impl Output<T>,
    ) -> Result<()> {
        let (input, output) = (input.lend(), output.lend());
        let of = self.shape::<T>(Collective::AllGather);
        self.run_lent(of.on(input.raw(), output.raw())?)
    }

    /// As [`Communicator::all_gather`] of the own block of `data`, which has one for each rank.
    pub fn all_gather_in_place<T: Element>(&self, mut data: impl Output<T>) -> Result<()> {
        let data = data.lend();
        let of = self.shape::<T>(Collective::AllGather);
        let own = of.own_block(data.raw())?;
        self.run_lent(of.on(&own, data.raw())?)
    }

    /// As [`Communicator::all_gather`] with `counts[r]` elements of rank r, equal on all ranks. As
    /// MPI_Allgatherv.
    pub fn all_gather_v<T: Element>(
        &self,
        mut input: impl Input<T>,
        mut output: impl Output<T>,
        counts: &[u64],
    ) -> Result<()> {
        let (input, output) = (input.lend(), output.lend());
        let of = self.shape::<T>(Collective::AllGatherV);
        self.run_lent(of.on_counts(input.raw(), output.raw(), counts)?)
    }

    /// As [`Communicator::all_gather_v`] of the own block of `data`, which has one of `counts[r]`
    /// elements for each rank.
    pub fn all_gather_v_in_place<T: Element>(
        &self,
        mut data: impl Output<T>,
        counts: &[u64],
    ) -> Result<()> {
        let data = data.lend();
        let of = self.shape::<T>(Collective::AllGatherV);
        let own = of.own_block_of(data.raw(), counts)?;
        self.run_lent(of.on_counts(&own, data.raw(), counts)?)
    }

    /// Copies `input` of every rank to its block of `output` on the root. `output` of other ranks
    /// is not looked at: `&mut []` will do.
    pub fn gather<T: Element>(
        &self,
        mut input: impl Input<T>,
        mut output: impl Output<T>,
        root: Rank,
    ) -> Result<()> {
        let (input, output) = (input.lend(), output.lend());
        let of = self.shape::<T>(Collective::Gather).at(root);
        self.run_lent(of.on(input.raw(), output.raw())?)
    }

    /// Copies block r of the root's `input` to `output` of rank r. `input` of other ranks is not
    /// looked at: `&[]` will do.
    pub fn scatter<T: Element>(
        &self,
        mut input: impl Input<T>,
        mut output: impl Output<T>,
        root: Rank,
    ) -> Result<()> {
        let (input, output) = (input.lend(), output.lend());
        let of = self.shape::<T>(Collective::Scatter).at(root);
        self.run_lent(of.on(input.raw(), output.raw())?)
    }

    /// Copies block r of `input` to rank r, whose `output` has it as the block of this rank. As
    /// ncclAlltoAll.
    pub fn all_to_all<T: Element>(
        &self,
        mut input: impl Input<T>,
        mut output: impl Output<T>,
    ) -> Result<()> {
        let (input, output) = (input.lend(), output.lend());
        let of = self.shape::<T>(Collective::AllToAll);
        self.run_lent(of.on(input.raw(), output.raw())?)
    }

    /// As [`Communicator::all_to_all`] of `data`, whose blocks are replaced.
    pub fn all_to_all_in_place<T: Element>(&self, mut data: impl Output<T>) -> Result<()> {
        let data = data.lend();
        let of = self.shape::<T>(Collective::AllToAll);
        self.run_lent(of.on(data.raw(), data.raw())?)
    }

    /// As [`Communicator::all_to_all`] with `send_counts[r]` elements to and `receive_counts[r]`
    /// from rank r, one after another. What a rank sends another one receives. As MPI_Alltoallv; it
    /// has no form in place.
    pub fn all_to_all_v<T: Element>(
        &self,
        mut input: impl Input<T>,
        send_counts: &[u64],
        mut output: impl Output<T>,
        receive_counts: &[u64],
    ) -> Result<()> {
        let (input, output) = (input.lend(), output.lend());
        let of = self.shape::<T>(Collective::AllToAllV);
        self.run_lent(of.on_both_counts(input.raw(), send_counts, output.raw(), receive_counts))
    }

    /// Sends `data` to a rank, which receives as many elements. As ncclSend. Two ranks that send to
    /// each other first wait for each other: use a [`Group`](super::Group).
    pub fn send<T: Element>(&self, mut data: impl Input<T>, peer: Rank) -> Result<()> {
        self.transfer(&data.lend(), peer, true)
    }

    /// Receives `data` from a rank, which sends as many elements. As ncclRecv.
    pub fn recv<T: Element>(&self, mut data: impl Output<T>, peer: Rank) -> Result<()> {
        self.transfer(&data.lend(), peer, false)
    }

    /// Nobody returns before all have called.
    pub fn barrier(&self) -> Result<()> {
        self.run(&Call::barrier())
    }

    fn transfer(&self, data: &Lent<'_>, peer: Rank, is_send: bool) -> Result<()> {
        let transfers = [Transfer {
            peer,
            is_send,
            buffer: data.raw().clone(),
        }];
        self.run_lent(Call {
            borrows: true,
            ..Call::send_recv(DataType::U8, &transfers)
        })
    }

    /// Runs a call on what was lent.
    fn run_lent(&self, call: Call<'_>) -> Result<()> {
        let transfers = call.transfers.iter().map(|transfer| &transfer.buffer);
        let mut all = call.input.into_iter().chain(call.output).chain(transfers);
        if all.all(|raw| !raw.is_lent()) {
            return self.run(&call);
        }
        if self.driving()?.clock.is_virtual() {
            // Nobody can wait here, and the loan must not end before the operation does.
            return Err(Error::invalid(
                "a simulated rank cannot wait inside a call on a slice: start an operation on a Buffer",
            ));
        }
        abort_on_unwind(|| self.run(&call))
    }
}
