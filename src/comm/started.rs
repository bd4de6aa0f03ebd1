//! Collectives that are started: on buffers alone, because an operation may outlive every borrow of
//! a slice.

use super::buffer::Buffer;
use super::call::Call;
use super::raw::RawBuffer;
use super::shape::{block, blocks, call, check, own_block};
use super::{Communicator, Operation};
use crate::error::Result;
use crate::memory::Element;
use crate::types::{Collective, Rank, ReduceOp};

/// Collectives that return at once. Each is as the blocking one of its name; the buffers are
/// borrowed until the operation has ended. All ranks start the same ones in the same order; any
/// number may be under way.
///
/// They go on while the caller computes, if [`Config::progress`](crate::Config::progress) gives
/// them a thread.
impl Communicator {
    /// Starts [`Communicator::all_reduce`].
    pub fn start_all_reduce<T: Element>(
        &self,
        data: &Buffer<T>,
        op: ReduceOp,
    ) -> Result<Operation> {
        let of = call::<T>(Collective::AllReduce, data.len()).by(op);
        self.start_on(of, Some(data.raw()), Some(data.raw()))
    }

    /// Starts [`Communicator::all_reduce_into`].
    pub fn start_all_reduce_into<T: Element>(
        &self,
        input: &Buffer<T>,
        output: &Buffer<T>,
        op: ReduceOp,
    ) -> Result<Operation> {
        check(Collective::AllReduce, "output", output.len(), input.len())?;
        let of = call::<T>(Collective::AllReduce, input.len()).by(op);
        self.start_on(of, Some(input.raw()), Some(output.raw()))
    }

    /// Starts [`Communicator::broadcast`].
    pub fn start_broadcast<T: Element>(&self, data: &Buffer<T>, root: Rank) -> Result<Operation> {
        let of = call::<T>(Collective::Broadcast, data.len()).at(root);
        let input = (self.rank() == root).then_some(data.raw());
        self.start_on(of, input, Some(data.raw()))
    }

    /// Starts [`Communicator::broadcast_into`].
    pub fn start_broadcast_into<T: Element>(
        &self,
        input: &Buffer<T>,
        output: &Buffer<T>,
        root: Rank,
    ) -> Result<Operation> {
        let input = (self.rank() == root).then_some(input);
        if let Some(input) = input {
            check(Collective::Broadcast, "input", input.len(), output.len())?;
        }
        let of = call::<T>(Collective::Broadcast, output.len()).at(root);
        self.start_on(of, input.map(Buffer::raw), Some(output.raw()))
    }

    /// Starts [`Communicator::reduce`].
    pub fn start_reduce<T: Element>(
        &self,
        data: &Buffer<T>,
        op: ReduceOp,
        root: Rank,
    ) -> Result<Operation> {
        let of = call::<T>(Collective::Reduce, data.len()).by(op).at(root);
        let output = (self.rank() == root).then_some(data.raw());
        self.start_on(of, Some(data.raw()), output)
    }

    /// Starts [`Communicator::reduce_into`].
    pub fn start_reduce_into<T: Element>(
        &self,
        input: &Buffer<T>,
        output: &Buffer<T>,
        op: ReduceOp,
        root: Rank,
    ) -> Result<Operation> {
        let output = (self.rank() == root).then_some(output);
        if let Some(output) = output {
            check(Collective::Reduce, "output", output.len(), input.len())?;
        }
        let of = call::<T>(Collective::Reduce, input.len()).by(op).at(root);
        self.start_on(of, Some(input.raw()), output.map(Buffer::raw))
    }

    /// Starts [`Communicator::reduce_scatter`].
    pub fn start_reduce_scatter<T: Element>(
        &self,
        input: &Buffer<T>,
        output: &Buffer<T>,
        op: ReduceOp,
    ) -> Result<Operation> {
        let all = blocks(Collective::ReduceScatter, output.len(), self.ranks())?;
        check(Collective::ReduceScatter, "input", input.len(), all)?;
        let of = call::<T>(Collective::ReduceScatter, output.len()).by(op);
        self.start_on(of, Some(input.raw()), Some(output.raw()))
    }

    /// Starts [`Communicator::reduce_scatter_in_place`].
    pub fn start_reduce_scatter_in_place<T: Element>(
        &self,
        data: &Buffer<T>,
        op: ReduceOp,
    ) -> Result<Operation> {
        let own = self.own_block_of(Collective::ReduceScatter, data)?;
        let of = call::<T>(Collective::ReduceScatter, own.len()).by(op);
        self.start_on(of, Some(data.raw()), Some(own.raw()))
    }

    /// Starts [`Communicator::all_gather`].
    pub fn start_all_gather<T: Element>(
        &self,
        input: &Buffer<T>,
        output: &Buffer<T>,
    ) -> Result<Operation> {
        let all = blocks(Collective::AllGather, input.len(), self.ranks())?;
        check(Collective::AllGather, "output", output.len(), all)?;
        let of = call::<T>(Collective::AllGather, input.len());
        self.start_on(of, Some(input.raw()), Some(output.raw()))
    }

    /// Starts [`Communicator::all_gather_in_place`].
    pub fn start_all_gather_in_place<T: Element>(&self, data: &Buffer<T>) -> Result<Operation> {
        let own = self.own_block_of(Collective::AllGather, data)?;
        let of = call::<T>(Collective::AllGather, own.len());
        self.start_on(of, Some(own.raw()), Some(data.raw()))
    }

    /// Starts [`Communicator::all_gather_v`].
    pub fn start_all_gather_v<T: Element>(
        &self,
        input: &Buffer<T>,
        output: &Buffer<T>,
        counts: &[u64],
    ) -> Result<Operation> {
        let (_, own) = own_block(Collective::AllGatherV, counts, self.rank())?;
        check(Collective::AllGatherV, "input", input.len(), own as usize)?;
        let of = Call {
            receive_counts: counts,
            ..call::<T>(Collective::AllGatherV, 0)
        };
        self.start_on(of, Some(input.raw()), Some(output.raw()))
    }

    /// Starts [`Communicator::gather`].
    pub fn start_gather<T: Element>(
        &self,
        input: &Buffer<T>,
        output: &Buffer<T>,
        root: Rank,
    ) -> Result<Operation> {
        let output = (self.rank() == root).then_some(output);
        if let Some(output) = output {
            let all = blocks(Collective::Gather, input.len(), self.ranks())?;
            check(Collective::Gather, "output", output.len(), all)?;
        }
        let of = call::<T>(Collective::Gather, input.len()).at(root);
        self.start_on(of, Some(input.raw()), output.map(Buffer::raw))
    }

    /// Starts [`Communicator::scatter`].
    pub fn start_scatter<T: Element>(
        &self,
        input: &Buffer<T>,
        output: &Buffer<T>,
        root: Rank,
    ) -> Result<Operation> {
        let input = (self.rank() == root).then_some(input);
        if let Some(input) = input {
            let all = blocks(Collective::Scatter, output.len(), self.ranks())?;
            check(Collective::Scatter, "input", input.len(), all)?;
        }
        let of = call::<T>(Collective::Scatter, output.len()).at(root);
        self.start_on(of, input.map(Buffer::raw), Some(output.raw()))
    }

    /// Starts [`Communicator::all_to_all`].
    pub fn start_all_to_all<T: Element>(
        &self,
        input: &Buffer<T>,
        output: &Buffer<T>,
    ) -> Result<Operation> {
        check(Collective::AllToAll, "output", output.len(), input.len())?;
        let count = block(Collective::AllToAll, input.len(), self.ranks())?;
        let of = call::<T>(Collective::AllToAll, count);
        self.start_on(of, Some(input.raw()), Some(output.raw()))
    }

    /// Starts [`Communicator::all_to_all_in_place`].
    pub fn start_all_to_all_in_place<T: Element>(&self, data: &Buffer<T>) -> Result<Operation> {
        let count = block(Collective::AllToAll, data.len(), self.ranks())?;
        let of = call::<T>(Collective::AllToAll, count);
        self.start_on(of, Some(data.raw()), Some(data.raw()))
    }

    /// Starts [`Communicator::all_to_all_v`].
    pub fn start_all_to_all_v<T: Element>(
        &self,
        input: &Buffer<T>,
        send_counts: &[u64],
        output: &Buffer<T>,
        receive_counts: &[u64],
    ) -> Result<Operation> {
        let of = Call {
            send_counts,
            receive_counts,
            ..call::<T>(Collective::AllToAllV, 0)
        };
        self.start_on(of, Some(input.raw()), Some(output.raw()))
    }

    /// Starts [`Communicator::barrier`].
    pub fn start_barrier(&self) -> Result<Operation> {
        self.start_on(Call::barrier(), None, None)
    }

    fn own_block_of<T: Element>(&self, of: Collective, data: &Buffer<T>) -> Result<Buffer<T>> {
        let count = block(of, data.len(), self.ranks())?;
        let start = self.rank() as usize * count;
        Ok(data.range(start..start + count))
    }

    fn start_on(
        &self,
        call: Call<'_>,
        input: Option<&RawBuffer>,
        output: Option<&RawBuffer>,
    ) -> Result<Operation> {
        self.start_and_overlap(&Call {
            input,
            output,
            borrows: true,
            ..call
        })
    }
}
