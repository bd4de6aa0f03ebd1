//! [`Call`]: the arguments of one operation, as plain data.

use super::raw::RawBuffer;
use crate::types::{Collective, DataType, Rank, ReduceOp};

/// Arguments of one operation. Layouts are NCCL's; see [`Collective`] for what `count` means.
/// Whether it is in place follows from where the buffers are; all-to-allv never is, and its buffers
/// lie apart.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Which.
    pub collective: Collective,
    /// Elements per rank (the v-collectives use `send_counts` and `receive_counts`).
    pub count: u64,
    /// Element type.
    pub dtype: DataType,
    /// Operator, of reducing collectives.
    pub op: ReduceOp,
    /// Root, of rooted collectives.
    pub root: Rank,
    /// Input; `None` where this rank has none.
    pub input: Option<&'a RawBuffer>,
    /// Output; `None` where this rank has none.
    pub output: Option<&'a RawBuffer>,
    /// Elements to each rank (`AllToAllV`); lie one after another in the input, which does not
    /// overlap the output.
    pub send_counts: &'a [u64],
    /// Elements from each rank (`AllToAllV`, `AllGatherV`: the same on all ranks); lie one after
    /// another in the output.
    pub receive_counts: &'a [u64],
    /// Sends and receives of `SendRecv`.
    pub transfers: &'a [Transfer],
    /// Algorithm by name instead of the cost model's choice; all ranks must name the same.
    pub algorithm: Option<&'a str>,
    /// It borrows its memory; else its maker has done so, or holds memory that users cannot name.
    pub borrows: bool,
}

/// A call with buffers of its own.
#[derive(Clone, Debug)]
pub struct OwnedCall {
    /// Without its buffers.
    pub call: Call<'static>,
    /// Input.
    pub input: RawBuffer,
    /// Output.
    pub output: RawBuffer,
}

impl OwnedCall {
    /// The call, on its buffers.
    pub fn get(&self) -> Call<'_> {
        self.call.with(&self.input, &self.output)
    }
}

/// One send or receive of a group.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// The other side.
    pub peer: Rank,
    /// Whether this rank sends.
    pub is_send: bool,
    /// What, or where to. Its length is the message's.
    pub buffer: RawBuffer,
}

impl<'a> Call<'a> {
    /// A call with everything absent but the collective.
    pub fn new(collective: Collective, dtype: DataType, count: u64) -> Call<'a> {
        Call {
            collective,
            count,
            dtype,
            op: ReduceOp::Sum,
            root: 0,
            input: None,
            output: None,
            send_counts: &[],
            receive_counts: &[],
            transfers: &[],
            algorithm: None,
            borrows: false,
        }
    }

    /// A barrier.
    pub fn barrier() -> Call<'a> {
        Call::new(Collective::Barrier, DataType::U8, 0)
    }

    /// Allreduce of `count` elements; the same buffer twice for in place. Sums of floats may
    /// overflow, those of averages too: see [`ReduceOp`].
    pub fn all_reduce(
        dtype: DataType,
        op: ReduceOp,
        count: u64,
        input: &'a RawBuffer,
        output: &'a RawBuffer,
    ) -> Call<'a> {
        Call {
            op,
            ..Call::new(Collective::AllReduce, dtype, count)
        }
        .with(input, output)
    }

    /// A group of sends and receives that proceed together, so that no order of them can deadlock.
    /// The n-th send to a rank meets that rank's n-th receive from this one.
    pub fn send_recv(dtype: DataType, transfers: &'a [Transfer]) -> Call<'a> {
        Call {
            transfers,
            ..Call::new(Collective::SendRecv, dtype, 0)
        }
    }

    /// This call on these buffers.
    pub fn with<'b>(self, input: &'b RawBuffer, output: &'b RawBuffer) -> Call<'b>
    where
        'a: 'b,
    {
        Call {
            input: Some(input),
            output: Some(output),
            ..self
        }
    }
}
