//! The formulas where all ranks are on one host and map each other's memory.
//!
//! In the comments, n is the bytes of `count` elements and p the number of ranks.
//!
//! A formula counts the steady state of a call that repeats on the same buffers. So a range that
//! only one rank reads and writes, such as its block in a direct allreduce, stays in the cache of
//! that rank's core, no matter which rank owns the memory. Inputs that no rank changes do not cross
//! again between cores. Bytes that one rank writes and another reads cross in every call.

use super::{Shape, Work};
use crate::limits::INLINE_BYTES_MAX;

/// How often a cache line crosses between two cores if one core writes it again and again and the
/// other reads it: once to be read, and once back to be written.
const BOTH_WAYS: f64 = 2.0;

/// The amount on the longest path, and the amount of all ranks together.
type Path = (f64, f64);

/// The numbers of source ranges, of result ranges, and of those of both that cross to another core.
type Operands = (f64, f64, f64);

/// The messages of a call.
struct Messages {
    /// Number of messages; on the longest path each waits for the one before.
    count: Path,
    /// Number of messages that the busiest rank sends and receives.
    posts: f64,
    /// Bytes of the messages.
    bytes: Path,
    /// The share of the bytes that ranks write during the call before they send them.
    fresh: f64,
}

impl Work {
    /// The work of starting a call, which has one segment or more.
    pub(crate) fn of(s: &Shape) -> Work {
        Work {
            calls: s.each(s.segments),
            ..Work::default()
        }
    }

    /// Adds meetings, in which each rank signals all others and waits for their signals; `times`
    /// in each segment.
    pub(crate) fn meet(mut self, s: &Shape, times: f64) -> Work {
        self.meetings += s.each(times * s.segments);
        self.signals += s.each(times * s.segments * (s.p() - 1.0));
        self
    }

    /// Adds the staging of each segment through a window.
    fn stage(mut self, s: &Shape) -> Work {
        self.stagings += s.each(s.segments);
        self
    }

    /// Adds one turn for each segment: at the end a rank waits for work of peers that they began
    /// only after it had come. If they share its core, the core has to switch once more.
    fn take_turns(mut self, s: &Shape) -> Work {
        self.turns += s.segments;
        self
    }

    /// Adds copies: `longest` bytes on the longest path, `total` by all ranks.
    fn copy(mut self, s: &Shape, longest: f64, total: f64) -> Work {
        self.copied += s.shared(longest, total);
        self
    }

    /// Adds copies from windows of peers, which have just written them.
    fn fetch(mut self, s: &Shape, longest: f64, total: f64) -> Work {
        self.crossed += s.shared(longest, total) * s.nearby(longest);
        self.copy(s, longest, total)
    }

    /// Adds a reduction by every rank, of `sources` ranges of `bytes` bytes into `results` ranges.
    /// `crossing` of these ranges are in windows of peers.
    fn reduce(mut self, s: &Shape, bytes: f64, (sources, results, crossing): Operands) -> Work {
        self.reduced += s.each(bytes * (sources + results));
        self.crossed += s.each(bytes * crossing) * s.nearby(bytes);
        self
    }

    /// As [`Work::reduce`], but only one rank reduces.
    fn reduce_at_root(
        mut self,
        s: &Shape,
        bytes: f64,
        (sources, results, crossing): Operands,
    ) -> Work {
        self.reduced += bytes * (sources + results);
        self.crossed += bytes * crossing * s.nearby(bytes);
        self
    }

    /// Adds messages.
    fn send(mut self, s: &Shape, sent: &Messages) -> Work {
        let (longest, total) = sent.bytes;
        // If ranks share a core, a message waits until each of them has had the core.
        self.messages += s.each(sent.count.0);
        self.posts += s.shared(sent.posts, 2.0 * sent.count.1);
        let is_staged = !s.registered || s.bytes <= INLINE_BYTES_MAX as f64;
        if is_staged {
            // The sender copies the bytes to memory that the receiver can read.
            self = self.copy(s, longest, total);
        }
        let fresh = BOTH_WAYS * if is_staged { 1.0 } else { sent.fresh };
        self.crossed += s.shared(longest, total) * fresh * s.nearby(longest);
        self.copy(s, longest, total)
    }

    /// Adds `steps` steps of every rank, in each of which it sends and receives `bytes` bytes. The
    /// share `fresh` of them was written during the call.
    fn exchange(self, s: &Shape, steps: f64, bytes: f64, fresh: f64) -> Work {
        let posts = 2.0 * steps * s.chunks(bytes);
        let all = (steps * bytes, steps * bytes * s.p());
        self.send(
            s,
            &Messages {
                count: (steps, steps * s.p()),
                posts,
                bytes: all,
                fresh,
            },
        )
    }

    /// Adds the accesses to the callers' buffers that no cache serves. Each rank has buffers of
    /// `held` bytes, and reads and writes `touched` bytes of its own and the peers' buffers.
    fn buffers(mut self, s: &Shape, held: f64, touched: f64) -> Work {
        self.uncached += s.each(touched) * s.uncached(held);
        self
    }
}

/// The signals carry the payload, and a reduction reads p lines: one meeting.
pub fn line(s: &Shape) -> Work {
    Work::of(s).meet(s, 1.0)
}

/// Every rank copies in and reduces p vectors of n bytes: one meeting. All ranks read all windows
/// at the same time, so every byte crosses slowly, regardless of the size. 2 MiB of two ranks take
/// 204 us; without this term the prediction was 120 us.
pub fn window_all_reduce(s: &Shape) -> Work {
    let mut work = Work::of(s)
        .stage(s)
        .meet(s, 1.0)
        .copy(s, s.bytes, s.bytes * s.p())
        .reduce(s, s.bytes, (s.p(), 1.0, 0.0))
        .buffers(s, s.bytes, 2.0 * s.bytes);
    work.crossed += s.each(s.bytes * (s.p() - 1.0));
    work
}

/// Every rank copies in the blocks that the others reduce, reduces its own block of all vectors,
/// and copies out the blocks of the others: two meetings. The reduction has p results, but counts
/// with two of them: the others are lines that it has just read.
pub fn window_split(s: &Shape) -> Work {
    let others = s.bytes * s.others();
    Work::of(s)
        .stage(s)
        .meet(s, 2.0)
        .copy(s, others, others * s.p())
        .reduce(s, s.bytes / s.p(), (s.p(), 2.0, s.p() - 1.0))
        .fetch(s, others, others * s.p())
        .buffers(s, s.bytes, 2.0 * s.bytes)
}

/// The others copy in, and the root alone reduces p vectors of n bytes: one meeting.
pub fn window_reduce(s: &Shape) -> Work {
    Work::of(s)
        .stage(s)
        .meet(s, 1.0)
        .copy(s, s.bytes, s.bytes * (s.p() - 1.0))
        .reduce_at_root(s, s.bytes, (s.p(), 1.0, s.p() - 1.0))
        .buffers(s, s.bytes, s.bytes * (1.0 + 1.0 / s.p()))
}

/// Every rank copies in the others' parts of n bytes, and reduces its own part of all ranks: one
/// meeting.
pub fn window_reduce_scatter(s: &Shape) -> Work {
    let (all, others) = (s.bytes * s.p(), s.bytes * (s.p() - 1.0));
    Work::of(s)
        .stage(s)
        .meet(s, 1.0)
        .copy(s, others, others * s.p())
        .reduce(s, s.bytes, (s.p(), 1.0, s.p() - 1.0))
        .buffers(s, all, all + s.bytes)
}

/// Every rank copies in, and fetches p - 1 vectors of n bytes: one meeting.
pub fn window_all_gather(s: &Shape) -> Work {
    let others = s.bytes * (s.p() - 1.0);
    Work::of(s)
        .stage(s)
        .meet(s, 1.0)
        .copy(s, s.bytes, s.bytes * s.p())
        .fetch(s, others, others * s.p())
        .buffers(s, s.bytes * s.p(), s.bytes * s.p())
}

/// As [`window_all_gather`], but one rank gathers for all: two meetings.
pub fn window_star(s: &Shape) -> Work {
    window_all_gather(s).meet(s, 1.0)
}

/// Every rank copies p parts of n bytes, those for the others in and its own out, and fetches one
/// part from each of the others: one meeting.
pub fn window_all_to_all(s: &Shape) -> Work {
    let all = s.bytes * s.p();
    window_all_gather(s)
        .copy(s, all - s.bytes, (all - s.bytes) * s.p())
        .buffers(s, all, all)
}

/// The root copies in, and each of the others fetches n bytes while the root copies the next
/// segment in: one meeting for each segment.
pub fn window_broadcast(s: &Shape) -> Work {
    Work::of(s)
        .stage(s)
        .meet(s, 1.0)
        .copy(s, s.bytes / s.segments, s.bytes)
        .fetch(s, s.bytes, s.bytes * (s.p() - 1.0))
        .buffers(s, s.bytes, s.bytes)
}

/// The others copy in, and the root fetches p - 1 vectors of n bytes: one meeting.
pub fn window_gather(s: &Shape) -> Work {
    let others = s.bytes * (s.p() - 1.0);
    Work::of(s)
        .stage(s)
        .meet(s, 1.0)
        .copy(s, s.bytes, others)
        .fetch(s, others, others)
        .buffers(s, s.bytes * s.p(), 2.0 * s.bytes)
}

/// The root copies p parts of n bytes, those for the others in and its own out, and each of the
/// others fetches one: one meeting.
pub fn window_scatter(s: &Shape) -> Work {
    let others = s.bytes * (s.p() - 1.0);
    Work::of(s)
        .stage(s)
        .meet(s, 1.0)
        .copy(s, s.bytes * s.p(), s.bytes * s.p())
        .fetch(s, s.bytes, others)
        .buffers(s, s.bytes * s.p(), 2.0 * s.bytes)
}

/// All ranks meet, each reduces one block of all inputs into all outputs, and all meet again.
pub fn direct_all_reduce(s: &Shape) -> Work {
    Work::of(s)
        .meet(s, 2.0)
        .reduce(s, s.bytes / s.p(), (s.p(), s.p(), 0.0))
        .buffers(s, s.bytes, 2.0 * s.bytes)
}

/// All ranks meet, each reduces one block of all inputs into the root's output, and all meet again.
pub fn direct_reduce(s: &Shape) -> Work {
    Work::of(s)
        .meet(s, 2.0)
        .reduce(s, s.bytes / s.p(), (s.p(), 1.0, 0.0))
        .buffers(s, s.bytes, s.bytes + s.bytes / s.p())
}

/// All ranks meet, each reduces its part of all inputs, and all meet again.
pub fn direct_reduce_scatter(s: &Shape) -> Work {
    Work::of(s)
        .meet(s, 2.0)
        .reduce(s, s.bytes, (s.p(), 1.0, 0.0))
        .buffers(s, s.bytes * s.p(), s.bytes * (s.p() + 1.0))
}

/// All ranks meet, each copies n bytes from each peer, and all meet again.
pub fn direct_parts(s: &Shape) -> Work {
    let others = s.bytes * (s.p() - 1.0);
    Work::of(s)
        .meet(s, 2.0)
        .copy(s, others, others * s.p())
        .buffers(s, s.bytes * s.p(), 2.0 * others)
}

/// As [`direct_parts`], but peers write the bytes that are read anew before each call.
pub fn direct_all_to_all(s: &Shape) -> Work {
    let others = s.bytes * (s.p() - 1.0);
    let mut work = direct_parts(s).copy(s, others, others * s.p());
    work.crossed += BOTH_WAYS * s.each(others) * s.nearby(s.bytes * s.p());
    work
}

/// n bytes move between the root and each of the others: one meeting, since at the end only the
/// root waits for the others.
pub fn direct_root(s: &Shape) -> Work {
    Work::of(s)
        .meet(s, 1.0)
        .take_turns(s)
        .copy(s, s.bytes, s.bytes * (s.p() - 1.0))
        .buffers(s, s.bytes, 2.0 * s.bytes)
}

/// Whole vectors, log p times, and twice more if p is no power of two.
pub fn recursive_doubling(s: &Shape) -> Work {
    let rounds = f64::from(s.ranks.ilog2());
    fold(Work::of(s), s)
        .exchange(s, rounds, s.bytes, 1.0)
        .reduce(s, rounds * s.bytes, (2.0, 1.0, 0.0))
        .buffers(s, 2.0 * s.bytes, rounds * 5.0 * s.bytes)
}

/// Halving and doubling: 2 log p messages, 2 n (p-1)/p bytes.
pub fn rabenseifner(s: &Shape) -> Work {
    let rounds = f64::from(s.ranks.ilog2());
    let others = s.bytes * s.others();
    let mean = others / rounds.max(1.0);
    fold(Work::of(s), s)
        .exchange(s, 2.0 * rounds, mean, 1.0)
        .reduce(s, others, (2.0, 1.0, 0.0))
        .buffers(s, 1.5 * s.bytes, 7.0 * others)
}

/// Adds the folding of p ranks to a power of two: pairs of ranks send a vector in at the beginning,
/// and one out at the end.
fn fold(work: Work, s: &Shape) -> Work {
    let pairs = f64::from(s.ranks - (1 << s.ranks.ilog2()));
    if pairs == 0.0 {
        return work;
    }
    let bytes = (2.0 * s.bytes, 2.0 * s.bytes * pairs);
    let mut work = work.send(
        s,
        &Messages {
            count: (2.0, 2.0 * pairs),
            posts: 2.0 * s.chunks(s.bytes),
            bytes,
            fresh: 1.0,
        },
    );
    work.reduced += s.shared(3.0 * s.bytes, 3.0 * s.bytes * pairs);
    work
}

/// Around the ring twice: 2 (p-1) messages, 2 n (p-1)/p bytes.
pub fn ring_all_reduce(s: &Shape) -> Work {
    let (steps, others) = (s.p() - 1.0, s.bytes * s.others());
    Work::of(s)
        .exchange(s, 2.0 * steps, s.bytes / s.p(), 1.0)
        .reduce(s, others, (2.0, 1.0, 0.0))
        .buffers(s, 1.5 * s.bytes, 7.0 * others)
}

/// p - 1 messages of n bytes, one after the other; each rank combines a vector before it sends it.
pub fn ring_reduce_scatter(s: &Shape) -> Work {
    let (steps, others) = (s.p() - 1.0, s.bytes * (s.p() - 1.0));
    Work::of(s)
        .exchange(s, steps, s.bytes, s.forwarded())
        .reduce(s, others, (2.0, 1.0, 0.0))
        .buffers(s, s.bytes * s.p(), others)
}

/// p - 1 messages of n bytes, one after the other.
pub fn ring_parts(s: &Shape) -> Work {
    let (steps, others) = (s.p() - 1.0, s.bytes * (s.p() - 1.0));
    Work::of(s)
        .exchange(s, steps, s.bytes, s.forwarded())
        .buffers(s, s.bytes * s.p(), 2.0 * others)
}

/// p - 1 messages of n bytes, all under way at the same time, so the latency counts once.
pub fn pairwise(s: &Shape) -> Work {
    let (steps, others) = (s.p() - 1.0, s.bytes * (s.p() - 1.0));
    let mut work =
        Work::of(s)
            .exchange(s, steps, s.bytes, 0.0)
            .buffers(s, s.bytes * s.p(), 2.0 * others);
    work.messages = s.each(steps.min(1.0));
    work
}

/// As [`pairwise`], but peers write the bytes that are sent anew before each call, and each rank
/// copies what has arrived to its place.
pub fn pairwise_all_to_all(s: &Shape) -> Work {
    let others = s.bytes * (s.p() - 1.0);
    let mut work = pairwise(s).copy(s, others, others * s.p());
    if s.mapped && s.registered {
        work.crossed = BOTH_WAYS * s.each(others) * s.nearby(s.bytes * s.p());
    }
    work
}

/// As [`pairwise`], and each rank combines the vectors at the end. Until then they wait in scratch;
/// if the messages are staged, they wait in the messages before that.
pub fn pairwise_reduce_scatter(s: &Shape) -> Work {
    let others = s.bytes * (s.p() - 1.0);
    let staged = if s.registered { 0.0 } else { others };
    pairwise(s).reduce(s, s.bytes, (s.p(), 1.0, 0.0)).buffers(
        s,
        s.bytes * s.p() + others + staged,
        s.bytes * (s.p() + 1.0) + 2.0 * staged,
    )
}

/// log p rounds, (p-1) n bytes in all. A run of blocks that wraps around needs a second message,
/// so a round counts as one and a half messages.
pub fn bruck(s: &Shape) -> Work {
    let (rounds, others) = (s.log(), s.bytes * (s.p() - 1.0));
    let posts = 3.0 * rounds.max(s.chunks(others));
    Work::of(s)
        .send(
            s,
            &Messages {
                count: (1.5 * rounds, 1.5 * rounds * s.p()),
                posts,
                bytes: (others, others * s.p()),
                fresh: s.forwarded(),
            },
        )
        .buffers(s, s.bytes * s.p(), 2.0 * others)
}

/// log p empty messages.
pub fn dissemination(s: &Shape) -> Work {
    Work::of(s).exchange(s, s.log(), 0.0, 0.0)
}

/// A vector goes down the tree, chunk by chunk.
pub fn tree_broadcast(s: &Shape) -> Work {
    let (depth, others) = (s.log(), s.p() - 1.0);
    Work::of(s)
        .send(
            s,
            &Messages {
                count: (depth, others),
                posts: (depth + 1.0) * s.chunks(s.bytes),
                bytes: (s.pipelined(depth), s.bytes * others),
                fresh: s.forwarded(),
            },
        )
        .buffers(s, s.bytes, 2.0 * s.bytes)
}

/// Vectors go up the tree, and the root combines log p of them.
pub fn tree_reduce(s: &Shape) -> Work {
    let (depth, others) = (s.log(), s.p() - 1.0);
    let mut work = Work::of(s)
        .send(
            s,
            &Messages {
                count: (depth, others),
                posts: (depth + 1.0) * s.chunks(s.bytes),
                bytes: (s.bytes * depth, s.bytes * others),
                fresh: s.forwarded(),
            },
        )
        .buffers(s, 2.0 * s.bytes, 4.0 * s.bytes);
    work.reduced += s.shared(3.0 * s.bytes * depth, 3.0 * s.bytes * others);
    work
}

/// Vectors go up the tree, as in [`tree_reduce`], and down, as in [`tree_broadcast`].
pub fn tree_all_reduce(s: &Shape) -> Work {
    let (up, down) = (tree_reduce(s), tree_broadcast(s));
    Work {
        calls: up.calls,
        messages: up.messages + down.messages,
        posts: up.posts + down.posts,
        copied: up.copied + down.copied,
        crossed: up.crossed + down.crossed,
        linked: up.linked + down.linked,
        uncached: up.uncached + down.uncached,
        ..up
    }
}

/// Parts go to or from the root over a tree: log p messages, and the ranks on the way copy parts
/// through scratch.
pub fn tree_parts(s: &Shape) -> Work {
    let (depth, others) = (s.log(), s.bytes * (s.p() - 1.0));
    let all = s.bytes * s.p() * depth / 2.0;
    Work::of(s)
        .send(
            s,
            &Messages {
                count: (1.5 * depth, s.p() - 1.0),
                posts: 3.0 * depth.max(s.chunks(others)),
                bytes: (others, others.max(all)),
                fresh: s.forwarded(),
            },
        )
        .copy(s, others, others.max(all))
        .buffers(s, s.bytes * s.p(), 2.0 * s.bytes)
}

/// As [`tree_parts`], from the root.
pub fn tree_scatter(s: &Shape) -> Work {
    tree_parts(s)
}

/// p - 1 messages of n bytes between the root and the others.
pub fn linear(s: &Shape) -> Work {
    let (peers, others) = (s.p() - 1.0, s.bytes * (s.p() - 1.0));
    Work::of(s)
        .send(
            s,
            &Messages {
                count: (peers.min(1.0), peers),
                posts: peers * s.chunks(s.bytes),
                bytes: (others, others),
                fresh: s.forwarded(),
            },
        )
        .buffers(s, s.bytes * s.p(), 2.0 * s.bytes)
}

/// A vector passes through all ranks, chunk by chunk: p - 1 latencies until the last rank begins,
/// then n bytes.
pub fn chain_broadcast(s: &Shape) -> Work {
    let others = s.p() - 1.0;
    Work::of(s)
        .send(
            s,
            &Messages {
                count: (others, others),
                posts: 2.0 * s.chunks(s.bytes),
                bytes: (s.pipelined(others), s.bytes * others),
                fresh: s.forwarded(),
            },
        )
        .buffers(s, s.bytes, 2.0 * s.bytes)
}

/// As [`chain_broadcast`], and every rank combines what it passes on.
pub fn chain_reduce(s: &Shape) -> Work {
    let others = s.p() - 1.0;
    let mut work = chain_broadcast(s).buffers(s, 2.0 * s.bytes, 2.0 * s.bytes);
    work.reduced += s.shared(3.0 * s.pipelined(others), 3.0 * s.bytes * others);
    work
}

/// It counts one message more than a ring, so that a plain ring is cheaper on one host.
pub fn hierarchical(s: &Shape) -> Work {
    let mut work = ring_all_reduce(s);
    work.messages += s.each(1.0);
    work.posts += s.each(1.0);
    work
}
