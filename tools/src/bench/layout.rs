//! Which rank holds which elements before and after a collective. Pure; buffers, calls and checks
//! all go by this description.
//!
//! Layouts are NCCL's. The lengths of the v-collectives are uneven on purpose: half more, half
//! less, in turns, so that every rank still sends and receives as much as without the v.

use clap::ValueEnum;
use linerate::{Collective, Rank};

/// Copies start on cache lines of their own.
const SLOT_ALIGN_BYTES: u64 = 64;

/// Bytes from one copy of a buffer to the next.
pub fn slot_bytes(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(SLOT_ALIGN_BYTES)
}

/// Whether a collective has an in-place form here. Barriers have no data, and the parts of the
/// others that lack it would overlap.
pub fn has_in_place(collective: Collective) -> bool {
    let has_none = matches!(
        collective,
        Collective::AllToAllV | Collective::SendRecv | Collective::Barrier
    );
    !has_none && !collective.has_part_lengths()
}

/// Whether input and output share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Placement {
    /// Input and output share memory as NCCL lays them out.
    InPlace,
    /// Input and output are apart.
    OutOfPlace,
}

impl Placement {
    /// As titles and flags spell it.
    pub fn name(self) -> &'static str {
        match self {
            Placement::OutOfPlace => "out-of-place",
            Placement::InPlace => "in-place",
        }
    }
}

/// Where elements of an output come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// From this rank's input, unchanged.
    Rank(Rank),
    /// From the inputs of all ranks, reduced.
    All,
}

/// `len` elements of an output, in order: those from `start` on of the source's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where they come from.
    pub source: Source,
    /// First element, in the source's input.
    pub start: u64,
    /// Elements.
    pub len: u64,
}

/// One collective seen from one rank.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The collective.
    pub collective: Collective,
    /// This rank.
    pub rank: Rank,
    /// Ranks.
    pub ranks: u32,
    /// Root of rooted collectives.
    pub root: Rank,
    /// Elements per rank; the mean of the uneven lengths.
    pub count: u64,
}

impl Layout {
    /// Elements of the input; `None`: this rank has none.
    pub fn input_elements(&self) -> Option<u64> {
        let all = self.count * u64::from(self.ranks);
        match self.collective {
            Collective::Barrier => None,
            Collective::Scatter | Collective::ScatterV => self.is_root().then_some(all),
            Collective::ReduceScatter
            | Collective::ReduceScatterV
            | Collective::AllToAll
            | Collective::AllToAllV => Some(all),
            Collective::AllGatherV | Collective::GatherV => Some(self.uneven(self.rank)),
            _ => Some(self.count),
        }
    }

    /// Elements of the output; `None`: this rank has none.
    pub fn output_elements(&self) -> Option<u64> {
        let all = self.count * u64::from(self.ranks);
        match self.collective {
            Collective::Barrier => None,
            Collective::Reduce => self.is_root().then_some(self.count),
            Collective::Gather | Collective::GatherV => self.is_root().then_some(all),
            Collective::ScatterV | Collective::ReduceScatterV => Some(self.uneven(self.rank)),
            Collective::AllGather
            | Collective::AllGatherV
            | Collective::AllToAll
            | Collective::AllToAllV => Some(all),
            _ => Some(self.count),
        }
    }

    /// Where input and output begin in the one range that they share in place, in elements.
    pub fn in_place_starts(&self) -> (u64, u64) {
        let own = u64::from(self.rank) * self.count;
        match self.collective {
            Collective::AllGather => (own, 0),
            Collective::AllGatherV => (self.before(), 0),
            Collective::Gather if self.is_root() => (own, 0),
            Collective::ReduceScatter => (0, own),
            Collective::Scatter if self.is_root() => (0, own),
            _ => (0, 0),
        }
    }

    /// Elements to each rank, of `AllToAllV`.
    pub fn send_counts(&self) -> Vec<u64> {
        match self.collective {
            Collective::AllToAllV => self.sends_of(self.rank),
            _ => Vec::new(),
        }
    }

    /// Elements from each rank, of the v-collectives.
    pub fn receive_counts(&self) -> Vec<u64> {
        match self.collective {
            of if of.has_part_lengths() => (0..self.ranks).map(|r| self.uneven(r)).collect(),
            Collective::AllToAllV => (0..self.ranks)
                .map(|source| self.uneven(self.distance(source, self.rank)))
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Whom this rank sends to and receives from in `SendRecv`: a ring, as in nccl-tests.
    pub fn neighbours(&self) -> (Rank, Rank) {
        let next = (self.rank + 1) % self.ranks;
        let previous = (self.rank + self.ranks - 1) % self.ranks;
        (next, previous)
    }

    /// What the whole output must be.
    pub fn segments(&self) -> Vec<Segment> {
        if self.output_elements().is_none() {
            return Vec::new();
        }
        let own = u64::from(self.rank) * self.count;
        let of_length = |source, start, len| vec![Segment { source, start, len }];
        let one = |source, start| of_length(source, start, self.count);
        let part = |source| of_length(source, self.before(), self.uneven(self.rank));
        let from_each = |piece: &dyn Fn(Rank) -> (u64, u64)| {
            let segment = |rank| {
                let (start, len) = piece(rank);
                Segment {
                    source: Source::Rank(rank),
                    start,
                    len,
                }
            };
            (0..self.ranks).map(segment).collect()
        };
        match self.collective {
            Collective::AllReduce | Collective::Reduce => one(Source::All, 0),
            Collective::ReduceScatter => one(Source::All, own),
            Collective::ReduceScatterV => part(Source::All),
            Collective::ScatterV => part(Source::Rank(self.root)),
            Collective::Broadcast => one(Source::Rank(self.root), 0),
            Collective::Scatter => one(Source::Rank(self.root), own),
            Collective::SendRecv => one(Source::Rank(self.neighbours().1), 0),
            Collective::AllGather | Collective::Gather => from_each(&|_| (0, self.count)),
            Collective::AllGatherV | Collective::GatherV => {
                from_each(&|rank| (0, self.uneven(rank)))
            }
            Collective::AllToAll => from_each(&|_| (own, self.count)),
            Collective::AllToAllV => from_each(&|rank| {
                let sends = self.sends_of(rank);
                let before = sends[..self.rank as usize].iter().sum();
                (before, sends[self.rank as usize])
            }),
            Collective::Barrier => Vec::new(),
        }
    }

    /// What the input must still be after a run out of place.
    pub fn input_segments(&self) -> Vec<Segment> {
        let segment = |len| Segment {
            source: Source::Rank(self.rank),
            start: 0,
            len,
        };
        self.input_elements().map(segment).into_iter().collect()
    }

    /// Where this rank's part begins among all parts of uneven lengths.
    fn before(&self) -> u64 {
        (0..self.rank).map(|rank| self.uneven(rank)).sum()
    }

    fn is_root(&self) -> bool {
        self.rank == self.root
    }

    fn sends_of(&self, source: Rank) -> Vec<u64> {
        (0..self.ranks)
            .map(|target| self.uneven(self.distance(source, target)))
            .collect()
    }

    fn distance(&self, source: Rank, target: Rank) -> u32 {
        (target + self.ranks - source) % self.ranks
    }

    /// Half more for even indices, half less for odd ones, the plain count for a last one without a
    /// partner: the sum over all indices is `ranks * count`.
    fn uneven(&self, index: u32) -> u64 {
        let half = self.count / 2;
        match (index % 2, index + 1 == self.ranks) {
            (0, true) => self.count,
            (0, false) => self.count + half,
            _ => self.count - half,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layouts(collective: Collective, ranks: u32, count: u64) -> Vec<Layout> {
        (0..ranks)
            .map(|rank| Layout {
                collective,
                rank,
                ranks,
                root: ranks - 1,
                count,
            })
            .collect()
    }

    #[test]
    fn segments_cover_the_whole_output_and_stay_inside_the_inputs() {
        for collective in Collective::ALL {
            for (ranks, count) in [(1, 5), (2, 5), (3, 7), (4, 0), (5, 1)] {
                let all = layouts(collective, ranks, count);
                for layout in &all {
                    let segments = layout.segments();
                    let covered: u64 = segments.iter().map(|s| s.len).sum();
                    assert_eq!(covered, layout.output_elements().unwrap_or(0));
                    for segment in segments {
                        let source = match segment.source {
                            Source::Rank(rank) => rank,
                            Source::All => 0,
                        };
                        let held = all[source as usize].input_elements().unwrap();
                        assert!(segment.start + segment.len <= held, "{collective} {ranks}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_one_rank_sends_is_what_the_other_expects() {
        for ranks in 1..=6 {
            let all = layouts(Collective::AllToAllV, ranks, 6);
            for (source, sender) in all.iter().enumerate() {
                for (target, receiver) in all.iter().enumerate() {
                    let sent = sender.send_counts()[target];
                    assert_eq!(sent, receiver.receive_counts()[source]);
                }
                assert_eq!(
                    sender.send_counts().iter().sum::<u64>(),
                    6 * u64::from(ranks)
                );
            }
        }
    }

    #[test]
    fn lengths_of_v_collectives_differ_but_their_sum_does_not() {
        for ranks in 1..=6 {
            let layout = layouts(Collective::AllGatherV, ranks, 7)[0];
            let counts = layout.receive_counts();
            assert_eq!(counts.iter().sum::<u64>(), 7 * u64::from(ranks));
            assert!(ranks == 1 || counts[0] != counts[1]);
        }
    }

    #[test]
    fn in_place_parts_lie_where_nccl_has_them() {
        let gather = layouts(Collective::AllGather, 3, 10);
        assert_eq!(gather[2].in_place_starts(), (20, 0));
        let uneven = layouts(Collective::AllGatherV, 3, 10);
        assert_eq!(uneven[2].in_place_starts(), (20, 0));
        assert_eq!(uneven[1].in_place_starts(), (15, 0));
        let scatter = layouts(Collective::ReduceScatter, 3, 10);
        assert_eq!(scatter[1].in_place_starts(), (0, 10));
        let rooted = layouts(Collective::Gather, 3, 10);
        assert_eq!(rooted[2].in_place_starts(), (20, 0));
        assert_eq!(rooted[1].in_place_starts(), (0, 0));
        assert_eq!(rooted[1].output_elements(), None);
    }

    #[test]
    fn copies_start_on_cache_lines() {
        assert_eq!(
            [slot_bytes(0), slot_bytes(64), slot_bytes(65)],
            [64, 64, 128]
        );
    }
}
