//! The memory of a rank: two arenas, allocated once, from which every row cuts its copies of input and output.

use super::args::Memory;
use super::layout::{Layout, Placement, slot_bytes};
use super::plan::Plan;
use linerate::{Buffer, Call, Collective, Communicator, DataType, ReduceOp, Transfer};

/// Both arenas. In place only the first is used.
pub struct Arenas {
    first: Buffer,
    second: Option<Buffer>,
}

/// Input and output of one copy; a side that this rank does not have is empty.
pub struct Slot {
    /// What the rank gives.
    pub input: Option<Buffer>,
    /// What it gets.
    pub output: Option<Buffer>,
}

/// What all copies of a row have in common.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    /// Who holds what.
    pub layout: Layout,
    /// How input and output lie.
    pub placement: Placement,
    /// Element type.
    pub dtype: DataType,
    /// Operator.
    pub op: ReduceOp,
    /// Algorithm by name.
    pub algorithm: Option<&'a str>,
}

impl Arenas {
    /// Allocates what the plan needs.
    pub fn new(communicator: &Communicator, plan: &Plan) -> linerate::Result<Arenas> {
        let bytes = plan.arena_bytes as usize;
        let make = || match plan.memory {
            Memory::Registered => communicator.alloc(bytes),
            Memory::Caller => written(bytes),
        };
        let has_two = plan.placements.contains(&Placement::OutOfPlace);
        Ok(Arenas {
            first: make()?,
            second: if has_two { Some(make()?) } else { None },
        })
    }

    /// How many copies of a row have room.
    pub fn room(&self, row: &Row) -> u64 {
        self.first.len_bytes() as u64 / row.stride_bytes() as u64
    }

    /// Copy `index` of a row.
    pub fn slot(&self, row: &Row, index: u32) -> Slot {
        let base = index as usize * row.stride_bytes();
        let (input, output) = match (row.placement, &self.second) {
            (Placement::OutOfPlace, Some(second)) => ((&self.first, 0), (second, 0)),
            _ => {
                let (input, output) = row.layout.in_place_starts();
                ((&self.first, input), (&self.first, output))
            }
        };
        let width = row.dtype.size_bytes();
        let cut = |(arena, start): (&Buffer, u64), elements: Option<u64>| {
            elements.map(|n| arena.part(base + start as usize * width, n as usize * width))
        };
        Slot {
            input: cut(input, row.layout.input_elements()),
            output: cut(output, row.layout.output_elements()),
        }
    }

    /// The call on copy `index`.
    pub fn call(&self, row: &Row, index: u32) -> Call {
        let slot = self.slot(row, index);
        let mut call = Call::new(row.layout.collective, row.dtype, row.layout.count);
        call.op = row.op;
        call.root = row.layout.root;
        call.algorithm = row.algorithm.map(String::from);
        call.send_counts = row.layout.send_counts();
        call.receive_counts = row.layout.receive_counts();
        if row.layout.collective == Collective::SendRecv {
            let (next, previous) = row.layout.neighbours();
            let send = slot.input.map(|buffer| (next, true, buffer));
            let receive = slot.output.map(|buffer| (previous, false, buffer));
            let transfer = |(peer, is_send, buffer)| Transfer {
                peer,
                is_send,
                buffer,
            };
            call.transfers = send.into_iter().chain(receive).map(transfer).collect();
        } else {
            call.input = slot.input;
            call.output = slot.output;
        }
        call
    }
}

/// Memory as a program has it that computed what it gives. Pages that nobody has written are all one page of zeros, which is
/// read from the first cache: of such Bruck's all-gather of 2 MiB and 3 ranks took 250 to 410 us, of others 430
/// to 610.
fn written(bytes: usize) -> linerate::Result<Buffer> {
    let buffer = Buffer::plain(bytes)?;
    buffer.view().fill(0);
    Ok(buffer)
}

impl Row<'_> {
    /// The same on all ranks of a row, whichever side each of them has.
    fn stride_bytes(&self) -> usize {
        let layout = &self.layout;
        let larger = layout.count * u64::from(layout.ranks);
        let elements = match layout.collective {
            Collective::AllReduce
            | Collective::Broadcast
            | Collective::Reduce
            | Collective::SendRecv
            | Collective::Barrier => layout.count,
            _ => larger,
        };
        slot_bytes(elements * self.dtype.size_bytes() as u64) as usize
    }
}
