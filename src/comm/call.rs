//! [`Call`]: the arguments of one operation, as plain data.

use super::Buffer;
use crate::types::{Collective, DataType, Rank, ReduceOp};

/// Arguments of one operation. Layouts are NCCL's; see [`Collective`] for what `count` means. Whether it
/// is in place follows from where the buffers are.
#[derive(Clone, Debug)]
pub struct Call {
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
    pub input: Option<Buffer>,
    /// Output; `None` where this rank has none.
    pub output: Option<Buffer>,
    /// Elements to each rank (`AllToAllV`); lie one after another in the input.
    pub send_counts: Vec<u64>,
    /// Elements from each rank (`AllToAllV`, `AllGatherV`: the same on all ranks); lie one after another in the output.
    pub receive_counts: Vec<u64>,
    /// Sends and receives of `SendRecv`.
    pub transfers: Vec<Transfer>,
    /// Algorithm by name instead of the cost model's choice; all ranks must name the same.
    pub algorithm: Option<String>,
}

/// One send or receive of a group.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// The other side.
    pub peer: Rank,
    /// Whether this rank sends.
    pub is_send: bool,
    /// What, or where to. Its length is the message's.
    pub buffer: Buffer,
}

impl Call {
    /// A call with everything absent but the collective.
    pub fn new(collective: Collective, dtype: DataType, count: u64) -> Call {
        Call {
            collective,
            count,
            dtype,
            op: ReduceOp::Sum,
            root: 0,
            input: None,
            output: None,
            send_counts: Vec::new(),
            receive_counts: Vec::new(),
            transfers: Vec::new(),
            algorithm: None,
        }
    }

    /// A barrier.
    pub fn barrier() -> Call {
        Call::new(Collective::Barrier, DataType::U8, 0)
    }

    /// Allreduce of `count` elements; the same buffer twice for in place.
    pub fn all_reduce(
        dtype: DataType,
        op: ReduceOp,
        count: u64,
        input: &Buffer,
        output: &Buffer,
    ) -> Call {
        Call {
            op,
            ..Call::new(Collective::AllReduce, dtype, count)
        }
        .with(input, output)
    }

    /// A group of sends and receives that proceed together, so that no order of them can deadlock. The n-th send to a
    /// rank meets that rank's n-th receive from this one.
    pub fn send_recv(dtype: DataType, transfers: Vec<Transfer>) -> Call {
        Call {
            transfers,
            ..Call::new(Collective::SendRecv, dtype, 0)
        }
    }

    /// The same call on these buffers.
    pub fn with(mut self, input: &Buffer, output: &Buffer) -> Call {
        self.input = Some(input.clone());
        self.output = Some(output.clone());
        self
    }
}
