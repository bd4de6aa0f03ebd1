//! [`Request`]: what a schedule is built for. It names no count, so one schedule serves every
//! count.

use crate::error::{Error, Result};
use crate::limits;
use crate::schedule::{BufferId, Extent, Range};
use crate::types::{Collective, Rank};

/// What is asked for, without the count, type and operator.
///
/// Buffer layouts, with `count` as the caller gives it: see [`Collective`]. In place means:
/// * allreduce, broadcast, reduce, all-to-all: input and output are the same memory;
/// * all-gather, gather (root), also with lengths: the input is part `rank` of the output;
/// * reduce-scatter, scatter (root), also with lengths: the output is part `rank` of the input. For
///   these, ranges are expressed in the *input*, and for all others in the output, so that the
///   builder sees what overlaps.
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
    /// Whether the ranks of this rank's host map each other's memory. Equal on all ranks of a host.
    pub maps_host: bool,
    /// Whether those ranks map this rank's input and output.
    pub is_mapped: bool,
}

impl Request {
    /// How many times `count` elements the input and the output hold on this rank (0: not used).
    /// The v-collectives take their lengths from slots instead.
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
            | Collective::GatherV
            | Collective::ScatterV
            | Collective::ReduceScatterV
            | Collective::AllToAllV
            | Collective::Barrier
            | Collective::SendRecv => (0, 0),
        }
    }

    /// Whether input and output share memory on this rank. For reduce, gather and scatter that is
    /// so only on the root: the others have one buffer, and `in_place` means nothing there.
    pub fn is_aliased(&self) -> bool {
        let is_root_only = matches!(
            self.collective,
            Collective::Reduce
                | Collective::Gather
                | Collective::GatherV
                | Collective::Scatter
                | Collective::ScatterV
        );
        self.in_place && (!is_root_only || self.rank == self.root)
    }

    /// Blocks `first..first+len`, of `of` blocks, of *one part* (`count` elements) of the input. An
    /// input with a part per rank has part `part`, others have part 0 only.
    pub fn input(&self, part: u32, first: u32, len: u32, of: u32) -> Range {
        match self.collective {
            Collective::AllReduce
            | Collective::Broadcast
            | Collective::Reduce
            | Collective::AllToAll
                if self.is_aliased() =>
            {
                self.peer_output(part, first, len, of)
            }
            Collective::AllGather | Collective::Gather if self.is_aliased() => {
                self.peer_output(self.rank, first, len, of)
            }
            _ => self.peer_input(part, first, len, of),
        }
    }

    /// Blocks of one part of the output, with arguments as in [`Request::input`].
    pub fn output(&self, part: u32, first: u32, len: u32, of: u32) -> Range {
        match self.collective {
            Collective::ReduceScatter | Collective::Scatter if self.is_aliased() => {
                self.peer_input(self.rank, first, len, of)
            }
            _ => self.peer_output(part, first, len, of),
        }
    }

    /// A range of a peer's input, in the coordinates of the input, whether or not that peer is in
    /// place.
    pub fn peer_input(&self, part: u32, first: u32, len: u32, of: u32) -> Range {
        let extent = match self.collective {
            Collective::ReduceScatter | Collective::Scatter | Collective::AllToAll => {
                blocks_of_part(part, self.ranks, first, len, of)
            }
            _ => Extent::blocks(first, len, of),
        };
        Range::new(BufferId::INPUT, extent)
    }

    /// A range of a peer's output, in the coordinates of the output.
    pub fn peer_output(&self, part: u32, first: u32, len: u32, of: u32) -> Range {
        let extent = match self.collective {
            Collective::AllGather | Collective::Gather | Collective::AllToAll => {
                blocks_of_part(part, self.ranks, first, len, of)
            }
            _ => Extent::blocks(first, len, of),
        };
        Range::new(BufferId::OUTPUT, extent)
    }

    /// All ranks but this one, ascending.
    pub fn peers(&self) -> Vec<Rank> {
        (0..self.ranks).filter(|&r| r != self.rank).collect()
    }

    /// Refuses a request that no schedule can be built for, with the reason: ranks out of range,
    /// not one host for each, a factor where nothing is reduced, or all-to-allv in place (its parts
    /// may overlap in any way).
    pub fn check(&self) -> Result<()> {
        let ranks = self.ranks;
        if ranks == 0 || self.rank >= ranks || self.root >= ranks || ranks > limits::RANKS_MAX {
            return Err(Error::invalid(format!(
                "rank {} and root {} of {ranks} ranks: both must be below the number of ranks, which is 1 to {}",
                self.rank,
                self.root,
                limits::RANKS_MAX
            )));
        }
        if self.hosts.len() != ranks as usize {
            let hosts = self.hosts.len();
            return Err(Error::invalid(format!(
                "{hosts} hosts given for {ranks} ranks: one each"
            )));
        }
        if self.premultiply && !self.collective.is_reducing() {
            let text = format!(
                "{} does not reduce, so nothing is premultiplied",
                self.collective
            );
            return Err(Error::invalid(text));
        }
        if self.in_place && self.collective == Collective::AllToAllV {
            let text = "all-to-allv in place is not supported: give it an output of its own";
            return Err(Error::invalid(text));
        }
        Ok(())
    }
}

/// Blocks of one part of a buffer of `parts` parts of `count` elements. The boundaries are those of
/// the block inside the part:
/// `floor((part * of + i) * parts * count / (parts * of)) = part * count + floor(i * count / of)`.
fn blocks_of_part(part: u32, parts: u32, first: u32, len: u32, of: u32) -> Extent {
    Extent::Blocks {
        first: part * of + first,
        len,
        of: parts * of,
        times: parts,
    }
}
