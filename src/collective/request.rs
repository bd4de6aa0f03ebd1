//! [`Request`]: what a schedule is built for; it names no count, so schedules serve all of them.

use crate::schedule::{BufferId, Extent, Range};
use crate::types::{Collective, Rank};

/// What is asked for, without the count, type and operator.
///
/// Buffer layouts, with `count` as the caller gives it: see [`Collective`]. In place means:
/// * allreduce, broadcast, reduce, all-to-all: input and output are the same memory;
/// * all-gather, gather (root): the input is part `rank` of the output;
/// * reduce-scatter, scatter (root): the output is part `rank` of the input. Here ranges are expressed in
///   the *input*, and everywhere else in the output, so that the builder sees what overlaps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Which collective.
    pub collective: Collective,
    /// This rank.
    pub rank: Rank,
    /// Number of ranks.
    pub ranks: u32,
    /// The root of rooted collectives, else 0.
    pub root: Rank,
    /// Whether input and output are the same memory.
    pub in_place: bool,
    /// Whether inputs are multiplied by each rank's factor first.
    pub premultiply: bool,
    /// Host index of every rank; ranks with equal ones share memory.
    pub hosts: Vec<u32>,
}

impl Request {
    /// How many times `count` elements the input and the output hold on this rank (0: not used). The v-collectives
    /// take their lengths from slots instead.
    pub fn times(&self) -> (u32, u32) {
        let is_root = self.rank == self.root;
        match self.collective {
            Collective::AllReduce | Collective::Broadcast => (1, 1),
            Collective::Reduce => (1, u32::from(is_root)),
            Collective::ReduceScatter => (self.ranks, 1),
            Collective::AllGather => (1, self.ranks),
            Collective::Gather => (1, if is_root { self.ranks } else { 0 }),
            Collective::Scatter => (if is_root { self.ranks } else { 0 }, 1),
            Collective::AllToAll => (self.ranks, self.ranks),
            Collective::AllGatherV
            | Collective::AllToAllV
            | Collective::Barrier
            | Collective::SendRecv => (0, 0),
        }
    }

    /// Block `first..first+len` of `of` of *one part* (`count` elements) of the input: part `part` of an
    /// input with a part per rank, or part 0 of an input with one.
    pub fn input(&self, part: u32, first: u32, len: u32, of: u32) -> Range {
        match self.collective {
            Collective::AllReduce | Collective::Broadcast | Collective::Reduce if self.in_place => {
                self.output(part, first, len, of)
            }
            Collective::AllToAll if self.in_place => self.output(part, first, len, of),
            Collective::AllGather | Collective::Gather if self.in_place => {
                self.output(self.rank, first, len, of)
            }
            Collective::ReduceScatter | Collective::Scatter | Collective::AllToAll => Range::new(
                BufferId::INPUT,
                blocks_of_part(part, self.ranks, first, len, of),
            ),
            _ => Range::new(BufferId::INPUT, Extent::blocks(first, len, of)),
        }
    }

    /// The same of the output.
    pub fn output(&self, part: u32, first: u32, len: u32, of: u32) -> Range {
        match self.collective {
            Collective::ReduceScatter | Collective::Scatter if self.in_place => Range::new(
                BufferId::INPUT,
                blocks_of_part(self.rank, self.ranks, first, len, of),
            ),
            Collective::AllGather | Collective::Gather | Collective::AllToAll => Range::new(
                BufferId::OUTPUT,
                blocks_of_part(part, self.ranks, first, len, of),
            ),
            _ => Range::new(BufferId::OUTPUT, Extent::blocks(first, len, of)),
        }
    }
}

/// Blocks of one part of a buffer of `parts` parts of `count` elements. The boundaries are those of the
/// block inside the part: `floor((part * of + i) * parts * count / (parts * of)) = part * count + floor(i * count / of)`.
fn blocks_of_part(part: u32, parts: u32, first: u32, len: u32, of: u32) -> Extent {
    Extent::Blocks {
        first: part * of + first,
        len,
        of: parts * of,
        times: parts,
    }
}
