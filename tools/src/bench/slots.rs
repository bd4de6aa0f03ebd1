//! The memory of a rank: two arenas, allocated once, from which every row cuts its copies of input
//! and output.

use super::args::Memory;
use super::layout::{Layout, Placement, slot_bytes};
use super::plan::Plan;
use linerate::{
    Buffer, Collective, CollectiveBuilder, Communicator, DataType, Group, Operation, Rank,
    ReduceOp, Result,
};

/// The caller's memory begins at a multiple of this, so that copies start on cache lines of their
/// own.
const PAGE_BYTES: usize = 4096;

/// Both arenas. In place only the first is used.
pub struct Arenas {
    communicator: Communicator,
    first: Buffer<u8>,
    second: Option<Buffer<u8>>,
}

/// Input and output of one copy; a side that this rank does not have is empty.
pub struct Slot {
    /// What the rank gives.
    pub input: Option<Buffer<u8>>,
    /// What it gets.
    pub output: Option<Buffer<u8>>,
}

/// What all copies of a row have in common.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    /// Which elements each rank holds.
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
    pub fn new(communicator: &Communicator, plan: &Plan) -> Result<Arenas> {
        let bytes = plan.arena_bytes as usize;
        let make = || match plan.memory {
            Memory::Registered => communicator.alloc::<u8>(bytes),
            Memory::Caller => written(bytes),
        };
        let has_two = plan.placements.contains(&Placement::OutOfPlace);
        Ok(Arenas {
            communicator: communicator.clone(),
            first: make()?,
            second: if has_two { Some(make()?) } else { None },
        })
    }

    /// How many copies of a row have room.
    pub fn room(&self, row: &Row) -> u64 {
        self.first.len() as u64 / row.stride_bytes() as u64
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
        let cut = |(arena, start): (&Buffer<u8>, u64), elements: Option<u64>| {
            let start = base + start as usize * width;
            elements.map(|n| arena.range(start..start + n as usize * width))
        };
        Slot {
            input: cut(input, row.layout.input_elements()),
            output: cut(output, row.layout.output_elements()),
        }
    }

    /// The call on copy `index`.
    pub fn call(&self, row: &Row, index: u32) -> Call<'_> {
        if row.layout.collective != Collective::SendRecv {
            return Call::Collective(self.collective(row, index));
        }
        Call::Neighbours(Neighbours {
            communicator: &self.communicator,
            slot: self.slot(row, index),
            ranks: row.layout.neighbours(),
        })
    }

    /// The call on copy `index` of a row, for every collective but `sendrecv`.
    pub fn collective(&self, row: &Row, index: u32) -> CollectiveBuilder<'_> {
        let (slot, layout) = (self.slot(row, index), &row.layout);
        let mut call = (self.communicator)
            .collective(layout.collective, row.dtype, layout.count)
            .op(row.op)
            .root(layout.root)
            .send_counts(&layout.send_counts())
            .receive_counts(&layout.receive_counts());
        if let Some(input) = &slot.input {
            call = call.input(input);
        }
        if let Some(output) = &slot.output {
            call = call.output(output);
        }
        match row.algorithm {
            Some(name) => call.algorithm(name),
            None => call,
        }
    }
}

/// What runs on a copy of a row, any number of times.
pub enum Call<'a> {
    /// All but sends and receives.
    Collective(CollectiveBuilder<'a>),
    /// `sendrecv`.
    Neighbours(Neighbours<'a>),
}

impl Call<'_> {
    /// Starts it and returns at once.
    pub fn start(&self) -> Result<Operation> {
        match self {
            Call::Collective(call) => call.start(),
            Call::Neighbours(both) => both.group().start(),
        }
    }

    /// Runs it to its end.
    pub fn run(&self) -> Result<()> {
        match self {
            Call::Collective(call) => call.run(),
            Call::Neighbours(both) => both.group().run(),
        }
    }

    /// The algorithm that it runs.
    pub fn algorithm(&self) -> Result<&'static str> {
        match self {
            Call::Collective(call) => Ok(call.explain()?.algorithm),
            Call::Neighbours(_) => Ok("direct"),
        }
    }
}

/// A send of the input to one neighbour, and a receive of the output from the other.
pub struct Neighbours<'a> {
    communicator: &'a Communicator,
    slot: Slot,
    ranks: (Rank, Rank),
}

impl Neighbours<'_> {
    /// The send and the receive as a group, which runs once.
    pub fn group(&self) -> Group<'_> {
        let (next, previous) = self.ranks;
        let mut group = self.communicator.group();
        if let Some(input) = &self.slot.input {
            group = group.send(input, next);
        }
        if let Some(output) = &self.slot.output {
            group = group.recv(output, previous);
        }
        group
    }
}

/// Memory whose pages have been written, as those of a program that computed its data. Unwritten
/// pages are all one page of zeros in the first cache: Bruck's all-gather of 2 MiB on 3 ranks takes
/// 250 to 410 us with them and 430 to 610 us with written ones.
fn written(bytes: usize) -> Result<Buffer<u8>> {
    let all = Buffer::from_vec(vec![0u8; bytes + PAGE_BYTES]);
    let start = {
        let mut bytes = all.as_mut_slice()?;
        bytes.fill(0);
        bytes.as_ptr().align_offset(PAGE_BYTES)
    };
    Ok(all.range(start..start + bytes))
}

impl Row<'_> {
    /// Bytes from one copy to the next. All ranks of a row have the same, also those that have an
    /// input or an output only.
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
