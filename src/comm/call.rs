//! [`Call`]: the arguments of one operation, as plain data.

use super::raw::RawBuffer;
use crate::collective::Lists;
use crate::types::{Collective, DataType, Rank, ReduceOp};
use std::time::Duration;

/// Arguments of one operation. Layouts are those of NCCL; [`Collective`] says what `count` means.
/// The addresses of the buffers tell whether the operation is in place. An all-to-allv has no
/// in-place form: its input and output must not overlap.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The collective.
    pub collective: Collective,
    /// Elements per rank. Collectives with a length per rank have `receive_counts` and
    /// `send_counts`.
    pub count: u64,
    /// Element type.
    pub dtype: DataType,
    /// Operator, of reducing collectives.
    pub op: ReduceOp,
    /// Root, of rooted collectives.
    pub root: Rank,
    /// Input; `None` if this rank has none.
    pub input: Option<&'a RawBuffer>,
    /// Output; `None` if this rank has none.
    pub output: Option<&'a RawBuffer>,
    /// How many elements this rank sends to each rank (`AllToAllV`). They lie one after another in
    /// the input.
    pub send_counts: &'a [u64],
    /// How many elements this rank receives from each rank (`AllToAllV`), or how many the part of
    /// each rank has, equal on all ranks (`AllGatherV`, `GatherV`, `ScatterV`, `ReduceScatterV`).
    /// They lie one after another in the buffer that has all parts.
    pub receive_counts: &'a [u64],
    /// The sends and receives of a `SendRecv`. Of other collectives, the segments of lists in place
    /// of input and output: those of the input are sent, those of the output received.
    pub transfers: &'a [Transfer],
    /// Name of the algorithm, the same on all ranks; `None`: the cost model chooses.
    pub algorithm: Option<&'a str>,
    /// How long it may make no progress; `None`: as long as the communicator's timeout says.
    pub timeout: Option<Duration>,
    /// Whether starting the call borrows its memory. If not, the caller has borrowed it already, or
    /// it is memory that users cannot name.
    pub borrows: bool,
}

/// A call that owns its buffers.
#[derive(Clone, Debug)]
pub struct OwnedCall {
    /// The arguments without the buffers.
    pub call: Call<'static>,
    /// Input.
    pub input: RawBuffer,
    /// Output.
    pub output: RawBuffer,
}

impl OwnedCall {
    /// The call with its buffers.
    pub fn get(&self) -> Call<'_> {
        self.call.with(&self.input, &self.output)
    }
}

/// One send or receive of a group.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// The rank at the other end.
    pub peer: Rank,
    /// Whether this rank sends.
    pub is_send: bool,
    /// The memory to send or to receive into. Its length is the message's length.
    pub buffer: RawBuffer,
}

impl<'a> Call<'a> {
    /// Which buffers are lists.
    pub fn lists(&self) -> Lists {
        let has = |is_send| self.transfers.iter().any(|t| t.is_send == is_send);
        match self.collective {
            Collective::SendRecv => Lists::default(),
            _ => Lists {
                input: has(true),
                output: has(false),
            },
        }
    }

    /// A call of this collective with defaults for everything else.
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
            timeout: None,
            borrows: false,
        }
    }

    /// A barrier.
    pub fn barrier() -> Call<'a> {
        Call::new(Collective::Barrier, DataType::U8, 0)
    }

    /// An allreduce of `count` elements. Give one buffer twice to reduce in place. Sums of floats
    /// may overflow, and so may averages: see [`ReduceOp`].
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

    /// A group of sends and receives that proceed together: they cannot deadlock, in whatever order
    /// they are given. The n-th send to a rank meets that rank's n-th receive from this one.
    pub fn send_recv(transfers: &'a [Transfer]) -> Call<'a> {
        Call {
            transfers,
            ..Call::new(Collective::SendRecv, DataType::U8, 0)
        }
    }

    /// This call with these buffers as input and output.
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
