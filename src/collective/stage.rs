//! The parts that algorithms are made of: a group of ranks, a part of the vector, and where a
//! rank's contribution and result lie.

use super::Request;
use crate::schedule::{BufferId, Builder, Extent, Lane, Operand, Range};
use crate::types::{Collective, Rank};

/// An empty schedule for a request.
pub(super) fn begin(request: &Request, name: &'static str) -> Builder {
    Builder::new(name, request.rank, request.ranks, request.in_place)
}

/// The ranks of one stage, and this rank's position among them.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub ranks: Vec<Rank>,
    pub me: u32,
}

impl Group {
    pub fn new(ranks: Vec<Rank>, rank: Rank) -> Group {
        let me = ranks.iter().position(|&r| r == rank);
        let me = me.expect("a rank is in its own group") as u32;
        Group { ranks, me }
    }

    pub fn all(request: &Request) -> Group {
        Group::new((0..request.ranks).collect(), request.rank)
    }

    pub fn len(&self) -> u32 {
        self.ranks.len() as u32
    }

    pub fn rank(&self, position: u32) -> Rank {
        self.ranks[position as usize]
    }

    /// The positions before this rank's and those behind it, as runs: the first and how many.
    pub fn others(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        let runs = [(0, self.me), (self.me + 1, self.len() - self.me - 1)];
        runs.into_iter().filter(|&(_, len)| len > 0)
    }

    /// One range of every rank in their order: `own` here, `theirs` at the others.
    pub fn across(&self, own: Range, theirs: Range) -> Vec<Operand> {
        let operand = |(position, &rank)| match position == self.me {
            true => Operand::Local(own),
            false => Operand::Peer(rank, theirs),
        };
        (0..).zip(&self.ranks).map(operand).collect()
    }

    /// Every rank signals every other one and waits for all.
    pub fn meet(&self, b: &mut Builder, lane: Lane) {
        let own = self.rank(self.me);
        let peers: Vec<Rank> = (self.ranks.iter().copied()).filter(|&r| r != own).collect();
        b.signal(peers.clone(), lane);
        b.wait(peers, lane);
    }

    /// Copies the blocks that other ranks will read, one per rank, to where they are mapped, and
    /// returns where its own block lies. With factors its own block is there too, because the
    /// product needs a place.
    ///
    /// `input` and `staged` give a run of blocks by its first block and its length. An allreduce of
    /// two ranks thus stages only half and copies no result of its own: 2 MiB reach 5.5 GB/s
    /// instead of 4.6.
    pub fn stage_for_others(
        &self,
        b: &mut Builder,
        premultiply: bool,
        input: impl Fn(u32, u32) -> Range,
        staged: impl Fn(u32, u32) -> Range,
    ) -> Range {
        if premultiply {
            b.premultiply(input(0, self.len()), staged(0, self.len()));
            return staged(self.me, 1);
        }
        for (first, len) in self.others() {
            b.copy(input(first, len), staged(first, len));
        }
        input(self.me, 1)
    }
}

/// Blocks `first .. first + len` of `of` of the vector.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub first: u32,
    pub len: u32,
    pub of: u32,
}

impl Part {
    pub const WHOLE: Part = Part {
        first: 0,
        len: 1,
        of: 1,
    };

    /// Pieces `first .. first + len` of `n` of this part, which must be one block.
    pub fn pieces(self, first: u32, len: u32, n: u32) -> Part {
        assert!(self.len == 1, "a run of blocks is not divided further");
        Part {
            first: self.first * n + first,
            len,
            of: self.of * n,
        }
    }

    pub fn piece(self, index: u32, n: u32) -> Part {
        self.pieces(index, 1, n)
    }

    pub fn extent(self) -> Extent {
        Extent::blocks(self.first, self.len, self.of)
    }

    /// This part of a buffer that holds the whole vector.
    pub fn of(self, buffer: BufferId) -> Range {
        Range::new(buffer, self.extent())
    }

    /// This part in a buffer that holds nothing else.
    pub fn alone_in(self, buffer: BufferId) -> Range {
        Range::at_start(buffer, self.extent())
    }
}

/// Where a vector of `count` elements is read by the first stage, and where results go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vector {
    pub from: BufferId,
    pub to: BufferId,
}

impl Vector {
    /// The vector of an allreduce or reduce, multiplied by the factor if the request says so.
    /// Results go to the output, or to scratch on ranks that have none.
    pub fn new(b: &mut Builder, request: &Request) -> Vector {
        let has_output = request.collective != Collective::Reduce || request.rank == request.root;
        let from = request.input(0, 0, 1, 1);
        let to = if has_output {
            BufferId::OUTPUT
        } else {
            b.scratch(Extent::all(1))
        };
        if request.premultiply {
            b.premultiply(from, Part::WHOLE.of(to));
            return Vector { from: to, to };
        }
        Vector {
            from: from.buffer,
            to,
        }
    }

    /// The vector after a stage that has left its result where results go.
    pub fn continued(self) -> Vector {
        Vector {
            from: self.to,
            to: self.to,
        }
    }

    /// The stage of a group of one rank: the contribution is the result.
    pub fn pass(self, b: &mut Builder, part: Part, finish: bool) {
        if finish {
            b.reduce(vec![part.of(self.from)], part.of(self.to), true);
        } else {
            b.copy(part.of(self.from), part.of(self.to));
        }
    }
}

/// Two scratch buffers for blocks as long as `extent`, so that one is received into while the other
/// is used.
pub(super) fn double_buffer(b: &mut Builder, extent: Extent) -> [BufferId; 2] {
    [b.scratch(extent), b.scratch(extent)]
}

/// Where the contributions to all parts of a reduce-scatter lie: the input, or a premultiplied
/// copy.
pub(super) fn contributions(b: &mut Builder, request: &Request) -> BufferId {
    let all = request.input(0, 0, request.ranks, 1);
    if !request.premultiply {
        return all.buffer;
    }
    let scratch = b.scratch(all.extent);
    b.premultiply(all, Range::new(scratch, all.extent));
    scratch
}

/// Part `part` (`count` elements) of a buffer with a part per rank.
pub(super) fn part_in(request: &Request, part: u32, buffer: BufferId) -> Range {
    Range::new(buffer, Extent::part(part, request.ranks))
}
