//! Collectives that are started. They take buffers only, because an operation may outlive every
//! borrow of a slice.

use super::buffer::Buffer;
use super::call::Call;
use super::{Communicator, Operation};
use crate::error::Result;
use crate::memory::Element;
use crate::types::{Collective, Rank, ReduceOp};

/// Collectives that return at once. Each does what the blocking one of its name does. It borrows
/// its buffers until the operation has ended. All ranks start the same ones in the same order; any
/// number may be under way.
///
/// They advance while the caller computes if [`Config::progress`](crate::Config::progress) gives
/// them a thread.
impl Communicator {
    /// Starts [`Communicator::all_reduce`].
    pub fn start_all_reduce<T: Element>(
        &self,
        data: &Buffer<T>,
        op: ReduceOp,
    ) -> Result<Operation> {
        let of = self.shape::<T>(Collective::AllReduce).by(op);
        self.start_and_overlap(&of.on(data.raw(), data.raw())?)
    }

    /// Starts [`Communicator::all_reduce_into`].
    pub fn start_all_reduce_into<T: Element>(
        &self,
        input: &Buffer<T>,
        output: &Buffer<T>,
        op: ReduceOp,
    ) -> Result<Operation> {
        let of = self.shape::<T>(Collective::AllReduce).by(op);
        self.start_and_overlap(&of.on(input.raw(), output.raw())?)
    }

    /// Starts [`Communicator::broadcast`].
    pub fn start_broadcast<T: Element>(&self, data: &Buffer<T>, root: Rank) -> Result<Operation> {
        let of = self.shape::<T>(Collective::Broadcast).at(root);
        self.start_and_overlap(&of.on(data.raw(), data.raw())?)
    }

    /// Starts [`Communicator::broadcast_into`].
    pub fn start_broadcast_into<T: Element>(
        &self,
        input: &Buffer<T>,
        output: &Buffer<T>,
        root: Rank,
    ) -> Result<Operation> {
        let of = self.shape::<T>(Collective::Broadcast).at(root);
        self.start_and_overlap(&of.on(input.raw(), output.raw())?)
    }

    /// Starts [`Communicator::reduce`].
    pub fn start_reduce<T: Element>(
        &self,
        data: &Buffer<T>,
        op: ReduceOp,
        root: Rank,
    ) -> Result<Operation> {
        let of = self.shape::<T>(Collective::Reduce).by(op).at(root);
        self.start_and_overlap(&of.on(data.raw(), data.raw())?)
    }

    /// Starts [`Communicator::reduce_into`].
    pub fn start_reduce_into<T: Element>(
        &self,
        input: &Buffer<T>,
        output: &Buffer<T>,
        op: ReduceOp,
        root: Rank,
    ) -> Result<Operation> {
        let of = self.shape::<T>(Collective::Reduce).by(op).at(root);
        self.start_and_overlap(&of.on(input.raw(), output.raw())?)
    }

    /// Starts [`Communicator::reduce_scatter`].
    pub fn start_reduce_scatter<T: Element>(
        &self,
        input: &Buffer<T>,
        output: &Buffer<T>,
        op: ReduceOp,
    ) -> Result<Operation> {
        let of = self.shape::<T>(Collective::ReduceScatter).by(op);
        self.start_and_overlap(&of.on(input.raw(), output.raw())?)
    }

    /// Starts [`Communicator::reduce_scatter_in_place`].
    pub fn start_reduce_scatter_in_place<T: Element>(
        &self,
        data: &Buffer<T>,
        op: ReduceOp,
    ) -> Result<Operation> {
        let of = self.shape::<T>(Collective::ReduceScatter).by(op);
        let own = of.own_block(data.raw())?;
        self.start_and_overlap(&of.on(data.raw(), &own)?)
    }

    /// Starts [`Communicator::reduce_scatter_v`].
    pub fn start_reduce_scatter_v<T: Element>(
        &self,
        input: &Buffer<T>,
        output: &Buffer<T>,
        counts: &[u64],
        op: ReduceOp,
    ) -> Result<Operation> {
        let of = self.shape::<T>(Collective::ReduceScatterV).by(op);
        self.start_and_overlap(&of.on_counts(input.raw(), output.raw(), counts)?)
    }

    /// Starts [`Communicator::reduce_scatter_v_in_place`].
    pub fn start_reduce_scatter_v_in_place<T: Element>(
        &self,
        data: &Buffer<T>,
        counts: &[u64],
        op: ReduceOp,
    ) -> Result<Operation> {
        let of = self.shape::<T>(Collective::ReduceScatterV).by(op);
        let own = of.own_block_of(data.raw(), counts)?;
        self.start_and_overlap(&of.on_counts(data.raw(), &own, counts)?)
    }

    /// Starts [`Communicator::all_gather`].
    pub fn start_all_gather<T: Element>(
        &self,
        input: &Buffer<T>,
        output: &Buffer<T>,
    ) -> Result<Operation> {
        let of = self.shape::<T>(Collective::AllGather);
        self.start_and_overlap(&of.on(input.raw(), output.raw())?)
    }

    /// Starts [`Communicator::all_gather_in_place`].
    pub fn start_all_gather_in_place<T: Element>(&self, data: &Buffer<T>) -> Result<Operation> {
        let of = self.shape::<T>(Collective::AllGather);
        let own = of.own_block(data.raw())?;
        self.start_and_overlap(&of.on(&own, data.raw())?)
    }

    /// Starts [`Communicator::all_gather_v`].
    pub fn start_all_gather_v<T: Element>(
        &self,
        input: &Buffer<T>,
        output: &Buffer<T>,
        counts: &[u64],
    ) -> Result<Operation> {
        let of = self.shape::<T>(Collective::AllGatherV);
        self.start_and_overlap(&of.on_counts(input.raw(), output.raw(), counts)?)
    }

    /// Starts [`Communicator::all_gather_v_in_place`].
    pub fn start_all_gather_v_in_place<T: Element>(
        &self,
        data: &Buffer<T>,
        counts: &[u64],
    ) -> Result<Operation> {
        let of = self.shape::<T>(Collective::AllGatherV);
        let own = of.own_block_of(data.raw(), counts)?;
        self.start_and_overlap(&of.on_counts(&own, data.raw(), counts)?)
    }

    /// Starts [`Communicator::gather`].
    pub fn start_gather<T: Element>(
        &self,
        input: &Buffer<T>,
        output: &Buffer<T>,
        root: Rank,
    ) -> Result<Operation> {
        let of = self.shape::<T>(Collective::Gather).at(root);
        self.start_and_overlap(&of.on(input.raw(), output.raw())?)
    }

    /// Starts [`Communicator::gather_v`].
    pub fn start_gather_v<T: Element>(
        &self,
        input: &Buffer<T>,
        output: &Buffer<T>,
        counts: &[u64],
        root: Rank,
    ) -> Result<Operation> {
        let of = self.shape::<T>(Collective::GatherV).at(root);
        self.start_and_overlap(&of.on_counts(input.raw(), output.raw(), counts)?)
    }

    /// Starts [`Communicator::scatter`].
    pub fn start_scatter<T: Element>(
        &self,
        input: &Buffer<T>,
        output: &Buffer<T>,
        root: Rank,
    ) -> Result<Operation> {
        let of = self.shape::<T>(Collective::Scatter).at(root);
        self.start_and_overlap(&of.on(input.raw(), output.raw())?)
    }

    /// Starts [`Communicator::scatter_v`].
    pub fn start_scatter_v<T: Element>(
        &self,
        input: &Buffer<T>,
        output: &Buffer<T>,
        counts: &[u64],
        root: Rank,
    ) -> Result<Operation> {
        let of = self.shape::<T>(Collective::ScatterV).at(root);
        self.start_and_overlap(&of.on_counts(input.raw(), output.raw(), counts)?)
    }

    /// Starts [`Communicator::all_to_all`].
    pub fn start_all_to_all<T: Element>(
        &self,
        input: &Buffer<T>,
        output: &Buffer<T>,
    ) -> Result<Operation> {
        let of = self.shape::<T>(Collective::AllToAll);
        self.start_and_overlap(&of.on(input.raw(), output.raw())?)
    }

    /// Starts [`Communicator::all_to_all_in_place`].
    pub fn start_all_to_all_in_place<T: Element>(&self, data: &Buffer<T>) -> Result<Operation> {
        let of = self.shape::<T>(Collective::AllToAll);
        self.start_and_overlap(&of.on(data.raw(), data.raw())?)
    }

    /// Starts [`Communicator::all_to_all_v`].
    pub fn start_all_to_all_v<T: Element>(
        &self,
        input: &Buffer<T>,
        send_counts: &[u64],
        output: &Buffer<T>,
        receive_counts: &[u64],
    ) -> Result<Operation> {
        let of = self.shape::<T>(Collective::AllToAllV);
        self.start_and_overlap(&of.on_both_counts(
            input.raw(),
            send_counts,
            output.raw(),
            receive_counts,
        ))
    }

    /// Starts [`Communicator::barrier`].
    pub fn start_barrier(&self) -> Result<Operation> {
        self.start_and_overlap(&Call::barrier())
    }
}
