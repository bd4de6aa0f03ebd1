//! Blocking collectives: in place and out of place, on slices and on buffers.

use super::Communicator;
use super::call::{Call, Transfer};
use super::lend::{Input, Lent, Output};
use crate::error::{Error, Result};
use crate::memory::{Element, abort_on_unwind};
use crate::types::{Collective, Rank, ReduceOp};

/// Blocking collectives. All ranks call the same ones in the same order, with equal lengths,
/// operators and roots. Where a buffer has one block for each rank, the blocks lie one after
/// another in the order of the ranks, and are equally long unless the call names counts.
///
/// A registered [`Buffer`](super::Buffer) is used where it lies. Slices and other buffers are
/// staged through registered chunks. When a call returns, with success or with an error, nothing
/// reads or writes a slice any more.
///
/// All of them return these errors. [`Error::InvalidArgument`]: lengths that do not fit, or an
/// operator that the type does not have. [`Error::InUse`]: something else uses a buffer; then
/// nothing has been started. Any failure of the communicator: outputs are undefined then.
impl Communicator {
    /// Reduces `data` of all ranks, element by element, and gives every rank the result in place,
    /// like ncclAllReduce.
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
        self.run_lent(&of.on(data.raw(), data.raw())?)
    }

    /// Reduces `input` of all ranks and writes the result to `output` of every rank. Both are
    /// equally long. Like ncclAllReduce.
    pub fn all_reduce_into<T: Element>(
        &self,
        mut input: impl Input<T>,
        mut output: impl Output<T>,
        op: ReduceOp,
    ) -> Result<()> {
        let (input, output) = (input.lend(), output.lend());
        let of = self.shape::<T>(Collective::AllReduce).by(op);
        self.run_lent(&of.on(input.raw(), output.raw())?)
    }

    /// Copies `data` of the root to `data` of all other ranks, like ncclBroadcast in place.
    pub fn broadcast<T: Element>(&self, mut data: impl Output<T>, root: Rank) -> Result<()> {
        let data = data.lend();
        let of = self.shape::<T>(Collective::Broadcast).at(root);
        self.run_lent(&of.on(data.raw(), data.raw())?)
    }

    /// Copies `input` of the root to `output` of all ranks. `input` of the other ranks is ignored.
    pub fn broadcast_into<T: Element>(
        &self,
        mut input: impl Input<T>,
        mut output: impl Output<T>,
        root: Rank,
    ) -> Result<()> {
        let (input, output) = (input.lend(), output.lend());
        let of = self.shape::<T>(Collective::Broadcast).at(root);
        self.run_lent(&of.on(input.raw(), output.raw())?)
    }

    /// Reduces `data` of all ranks to `data` of the root, like ncclReduce in place. `data` of the
    /// other ranks stays as it is.
    pub fn reduce<T: Element>(
        &self,
        mut data: impl Output<T>,
        op: ReduceOp,
        root: Rank,
    ) -> Result<()> {
        let data = data.lend();
        let of = self.shape::<T>(Collective::Reduce).by(op).at(root);
        self.run_lent(&of.on(data.raw(), data.raw())?)
    }

    /// Reduces `input` of all ranks to `output` of the root. `output` of the other ranks is
    /// ignored: give `&mut []`.
    pub fn reduce_into<T: Element>(
        &self,
        mut input: impl Input<T>,
        mut output: impl Output<T>,
        op: ReduceOp,
        root: Rank,
    ) -> Result<()> {
        let (input, output) = (input.lend(), output.lend());
        let of = self.shape::<T>(Collective::Reduce).by(op).at(root);
        self.run_lent(&of.on(input.raw(), output.raw())?)
    }

    /// Reduces `input` of all ranks, which has one block for each rank, and writes this rank's
    /// block of the result to `output`. Like ncclReduceScatter.
    pub fn reduce_scatter<T: Element>(
        &self,
        mut input: impl Input<T>,
        mut output: impl Output<T>,
        op: ReduceOp,
    ) -> Result<()> {
        let (input, output) = (input.lend(), output.lend());
        let of = self.shape::<T>(Collective::ReduceScatter).by(op);
        self.run_lent(&of.on(input.raw(), output.raw())?)
    }

    /// As [`Communicator::reduce_scatter`] of `data`: this rank's block of `data` gets the result,
    /// and the other blocks are undefined afterwards.
    pub fn reduce_scatter_in_place<T: Element>(
        &self,
        mut data: impl Output<T>,
        op: ReduceOp,
    ) -> Result<()> {
        let data = data.lend();
        let of = self.shape::<T>(Collective::ReduceScatter).by(op);
        let own = of.own_block(data.raw())?;
        self.run_lent(&of.on(data.raw(), &own)?)
    }

    /// As [`Communicator::reduce_scatter`], where block r has `counts[r]` elements. `counts` are
    /// equal on all ranks. Like MPI_Reduce_scatter.
    pub fn reduce_scatter_v<T: Element>(
        &self,
        mut input: impl Input<T>,
        mut output: impl Output<T>,
        counts: &[u64],
        op: ReduceOp,
    ) -> Result<()> {
        let (input, output) = (input.lend(), output.lend());
        let of = self.shape::<T>(Collective::ReduceScatterV).by(op);
        self.run_lent(&of.on_counts(input.raw(), output.raw(), counts)?)
    }

    /// As [`Communicator::reduce_scatter_v`] in `data`, which has one block of `counts[r]` elements
    /// for each rank r: the output is this rank's block. The others are as they were.
    pub fn reduce_scatter_v_in_place<T: Element>(
        &self,
        mut data: impl Output<T>,
        counts: &[u64],
        op: ReduceOp,
    ) -> Result<()> {
        let data = data.lend();
        let of = self.shape::<T>(Collective::ReduceScatterV).by(op);
        let own = of.own_block_of(data.raw(), counts)?;
        self.run_lent(&of.on_counts(data.raw(), &own, counts)?)
    }

    /// Copies `input` of every rank to that rank's block of `output` on all ranks. Like
    /// ncclAllGather.
    pub fn all_gather<T: Element>(
        &self,
        mut input: impl Input<T>,
        mut output: impl Output<T>,
    ) -> Result<()> {
        let (input, output) = (input.lend(), output.lend());
        let of = self.shape::<T>(Collective::AllGather);
        self.run_lent(&of.on(input.raw(), output.raw())?)
    }

    /// As [`Communicator::all_gather`] in `data`, which has one block for each rank: the input is
    /// this rank's block.
    pub fn all_gather_in_place<T: Element>(&self, mut data: impl Output<T>) -> Result<()> {
        let data = data.lend();
        let of = self.shape::<T>(Collective::AllGather);
        let own = of.own_block(data.raw())?;
        self.run_lent(&of.on(&own, data.raw())?)
    }

    /// As [`Communicator::all_gather`], with `counts[r]` elements from rank r. `counts` are equal
    /// on all ranks. Like MPI_Allgatherv.
    pub fn all_gather_v<T: Element>(
        &self,
        mut input: impl Input<T>,
        mut output: impl Output<T>,
        counts: &[u64],
    ) -> Result<()> {
        let (input, output) = (input.lend(), output.lend());
        let of = self.shape::<T>(Collective::AllGatherV);
        self.run_lent(&of.on_counts(input.raw(), output.raw(), counts)?)
    }

    /// As [`Communicator::all_gather_v`] in `data`, which has one block of `counts[r]` elements for
    /// each rank r: the input is this rank's block.
    pub fn all_gather_v_in_place<T: Element>(
        &self,
        mut data: impl Output<T>,
        counts: &[u64],
    ) -> Result<()> {
        let data = data.lend();
        let of = self.shape::<T>(Collective::AllGatherV);
        let own = of.own_block_of(data.raw(), counts)?;
        self.run_lent(&of.on_counts(&own, data.raw(), counts)?)
    }

    /// Copies `input` of every rank to that rank's block of `output` on the root. `output` of the
    /// other ranks is ignored: give `&mut []`.
    pub fn gather<T: Element>(
        &self,
        mut input: impl Input<T>,
        mut output: impl Output<T>,
        root: Rank,
    ) -> Result<()> {
        let (input, output) = (input.lend(), output.lend());
        let of = self.shape::<T>(Collective::Gather).at(root);
        self.run_lent(&of.on(input.raw(), output.raw())?)
    }

    /// As [`Communicator::gather`], with `counts[r]` elements from rank r. `counts` are equal on
    /// all ranks. Like MPI_Gatherv.
    pub fn gather_v<T: Element>(
        &self,
        mut input: impl Input<T>,
        mut output: impl Output<T>,
        counts: &[u64],
        root: Rank,
    ) -> Result<()> {
        let (input, output) = (input.lend(), output.lend());
        let of = self.shape::<T>(Collective::GatherV).at(root);
        self.run_lent(&of.on_counts(input.raw(), output.raw(), counts)?)
    }

    /// Copies block r of the root's `input` to `output` of rank r. `input` of the other ranks is
    /// ignored: give `&[]`.
    pub fn scatter<T: Element>(
        &self,
        mut input: impl Input<T>,
        mut output: impl Output<T>,
        root: Rank,
    ) -> Result<()> {
        let (input, output) = (input.lend(), output.lend());
        let of = self.shape::<T>(Collective::Scatter).at(root);
        self.run_lent(&of.on(input.raw(), output.raw())?)
    }

    /// As [`Communicator::scatter`], with `counts[r]` elements to rank r. `counts` are equal on all
    /// ranks. Like MPI_Scatterv.
    pub fn scatter_v<T: Element>(
        &self,
        mut input: impl Input<T>,
        mut output: impl Output<T>,
        counts: &[u64],
        root: Rank,
    ) -> Result<()> {
        let (input, output) = (input.lend(), output.lend());
        let of = self.shape::<T>(Collective::ScatterV).at(root);
        self.run_lent(&of.on_counts(input.raw(), output.raw(), counts)?)
    }

    /// Copies block r of `input` to rank r, which stores it in its `output` as the block of this
    /// rank. Like ncclAlltoAll.
    pub fn all_to_all<T: Element>(
        &self,
        mut input: impl Input<T>,
        mut output: impl Output<T>,
    ) -> Result<()> {
        let (input, output) = (input.lend(), output.lend());
        let of = self.shape::<T>(Collective::AllToAll);
        self.run_lent(&of.on(input.raw(), output.raw())?)
    }

    /// As [`Communicator::all_to_all`] in `data`: the blocks received replace those sent.
    pub fn all_to_all_in_place<T: Element>(&self, mut data: impl Output<T>) -> Result<()> {
        let data = data.lend();
        let of = self.shape::<T>(Collective::AllToAll);
        self.run_lent(&of.on(data.raw(), data.raw())?)
    }

    /// As [`Communicator::all_to_all`], with `send_counts[r]` elements to rank r and
    /// `receive_counts[r]` elements from it; in each buffer they lie one after another. Rank a's
    /// `receive_counts[b]` equals rank b's `send_counts[a]`. Like MPI_Alltoallv. It has no in-place
    /// form.
    pub fn all_to_all_v<T: Element>(
        &self,
        mut input: impl Input<T>,
        send_counts: &[u64],
        mut output: impl Output<T>,
        receive_counts: &[u64],
    ) -> Result<()> {
        let (input, output) = (input.lend(), output.lend());
        let of = self.shape::<T>(Collective::AllToAllV);
        self.run_lent(&of.on_both_counts(input.raw(), send_counts, output.raw(), receive_counts))
    }

    /// Sends `data` to rank `peer`, which receives as many elements. Like ncclSend. If two ranks
    /// both send to each other first, they wait for each other for ever: use a
    /// [`Group`](super::Group).
    pub fn send<T: Element>(&self, mut data: impl Input<T>, peer: Rank) -> Result<()> {
        self.transfer(&data.lend(), peer, true)
    }

    /// Receives `data` from rank `peer`, which sends as many elements. Like ncclRecv.
    pub fn recv<T: Element>(&self, mut data: impl Output<T>, peer: Rank) -> Result<()> {
        self.transfer(&data.lend(), peer, false)
    }

    /// Returns when all ranks have called it.
    pub fn barrier(&self) -> Result<()> {
        self.run(&Call::barrier())
    }

    fn transfer(&self, data: &Lent<'_>, peer: Rank, is_send: bool) -> Result<()> {
        let transfers = [Transfer {
            peer,
            is_send,
            buffer: data.raw().clone(),
        }];
        self.run_lent(&Call {
            borrows: true,
            ..Call::send_recv(&transfers)
        })
    }

    /// Runs a call whose memory may be slices of the caller.
    #[inline]
    pub(super) fn run_lent(&self, call: &Call<'_>) -> Result<()> {
        let transfers = call.transfers.iter().map(|transfer| &transfer.buffer);
        let mut all = call.input.into_iter().chain(call.output).chain(transfers);
        if all.all(|raw| !raw.is_lent()) {
            return self.run(call);
        }
        if self.driving()?.clock.is_virtual() {
            // A simulated rank cannot wait in here, and the slice is the caller's again once this
            // returns.
            return Err(Error::invalid(
                "a simulated rank cannot wait inside a call on a slice: start an operation on a Buffer",
            ));
        }
        abort_on_unwind(|| self.run(call))
    }
}
