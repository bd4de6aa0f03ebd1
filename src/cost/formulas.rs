//! One formula per algorithm: the [`Work`] of a [`Shape`].
//!
//! In the comments, n is the bytes of `count` elements and p the number of ranks.
//!
//! What is counted is the steady state of a call that repeats on the same buffers. So a range that
//! only one rank reads and writes, such as its block in a direct allreduce, stays in its core's
//! cache, no matter who owns the memory, and inputs that nobody changes do not cross again; what
//! one rank writes and another reads, crosses every time.

use super::{Shape, Work};
use crate::limits::INLINE_BYTES_MAX;

/// Type of all formulas.
pub type Formula = fn(&Shape) -> Work;

/// A line that one core writes again and again and another reads crosses to be read, and back to be
/// written.
const BOTH_WAYS: f64 = 2.0;

/// What lies one after the other, and what all ranks do together.
type Path = (f64, f64);

/// Sources, results, and how many of both cross to another core.
type Operands = (f64, f64, f64);

/// The messages of a call.
struct Messages {
    /// Those that wait for each other.
    count: Path,
    /// Sent and received by the busiest rank.
    posts: f64,
    bytes: Path,
    /// The share of the bytes that ranks write during the call before they send them.
    fresh: f64,
}

impl Work {
    /// A call of one segment or more.
    pub(crate) fn of(s: &Shape) -> Work {
        Work {
            calls: s.each(s.segments),
            ..Work::default()
        }
    }

    /// Everybody signals everybody and waits, `times` times in each segment.
    pub(crate) fn meet(mut self, s: &Shape, times: f64) -> Work {
        self.meetings += s.each(times * s.segments);
        self.signals += s.each(times * s.segments * (s.p() - 1.0));
        self
    }

    /// Windows are used.
    fn stage(mut self, s: &Shape) -> Work {
        self.stagings += s.each(s.segments);
        self
    }

    /// A rank waits at the end for what others do after they have waited for it: where they share
    /// its core, it gives that away once more.
    fn take_turns(mut self, s: &Shape) -> Work {
        self.turns += s.segments;
        self
    }

    /// Copies: `longest` bytes one after the other, `total` by all ranks.
    fn copy(mut self, s: &Shape, longest: f64, total: f64) -> Work {
        self.copied += s.shared(longest, total);
        self
    }

    /// Copies from windows of peers, who have just written them.
    fn fetch(mut self, s: &Shape, longest: f64, total: f64) -> Work {
        self.crossed += s.shared(longest, total) * s.nearby(longest);
        self.copy(s, longest, total)
    }

    /// A reduction of `sources` ranges of `bytes` bytes into `results`, by every rank; `crossing`
    /// of them are windows of peers.
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

    /// Messages.
    fn send(mut self, s: &Shape, sent: &Messages) -> Work {
        let (longest, total) = sent.bytes;
        // Where ranks share cores, a rank that waits waits for a turn of all of them.
        self.messages += s.each(sent.count.0);
        self.posts += s.shared(sent.posts, 2.0 * sent.count.1);
        if !s.mapped {
            self.linked += longest;
            return self;
        }
        let is_staged = !s.registered || s.bytes <= INLINE_BYTES_MAX as f64;
        if is_staged {
            // Copied to where the receiver can read it.
            self = self.copy(s, longest, total);
        }
        let fresh = BOTH_WAYS * if is_staged { 1.0 } else { sent.fresh };
        self.crossed += s.shared(longest, total) * fresh * s.nearby(longest);
        self.copy(s, longest, total)
    }

    /// Every rank takes `steps` steps, in each of which it sends and receives `bytes` bytes.
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

    /// The callers' buffers, `held` bytes on each rank; each rank reads and writes `touched` bytes
    /// of any of them.
    fn buffers(mut self, s: &Shape, held: f64, touched: f64) -> Work {
        self.uncached += s.each(touched) * s.uncached(held);
        self
    }
}

/// Payload in the signals; a reduction reads p lines.
pub fn line(s: &Shape) -> Work {
    Work::of(s).meet(s, 1.0)
}

/// Copy in; everybody reduces p vectors of n bytes. All read all windows at the same time, so that
/// every byte crosses slowly whatever the size: 2 MiB of two ranks took 204 us where 120 were
/// predicted without.
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

/// Copy in what the others reduce, reduce one block of all, copy out theirs: two meetings. The
/// reduction counts with two destinations: those behind are lines that it has just read.
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

/// The others copy in; the root alone reduces p vectors of n bytes.
pub fn window_reduce(s: &Shape) -> Work {
    Work::of(s)
        .stage(s)
        .meet(s, 1.0)
        .copy(s, s.bytes, s.bytes * (s.p() - 1.0))
        .reduce_at_root(s, s.bytes, (s.p(), 1.0, s.p() - 1.0))
        .buffers(s, s.bytes, s.bytes * (1.0 + 1.0 / s.p()))
}

/// Copy the others' parts of n in; reduce one part of each rank.
pub fn window_reduce_scatter(s: &Shape) -> Work {
    let (all, others) = (s.bytes * s.p(), s.bytes * (s.p() - 1.0));
    Work::of(s)
        .stage(s)
        .meet(s, 1.0)
        .copy(s, others, others * s.p())
        .reduce(s, s.bytes, (s.p(), 1.0, s.p() - 1.0))
        .buffers(s, all, all + s.bytes)
}

/// Copy in; fetch p - 1 vectors of n bytes.
pub fn window_all_gather(s: &Shape) -> Work {
    let others = s.bytes * (s.p() - 1.0);
    Work::of(s)
        .stage(s)
        .meet(s, 1.0)
        .copy(s, s.bytes, s.bytes * s.p())
        .fetch(s, others, others * s.p())
        .buffers(s, s.bytes * s.p(), s.bytes * s.p())
}

/// As [`window_all_gather`], but by way of one rank: two meetings.
pub fn window_star(s: &Shape) -> Work {
    window_all_gather(s).meet(s, 1.0)
}

/// Copy p parts of n, the others' in and its own out; fetch one part from each of the others.
pub fn window_all_to_all(s: &Shape) -> Work {
    let all = s.bytes * s.p();
    window_all_gather(s)
        .copy(s, all - s.bytes, (all - s.bytes) * s.p())
        .buffers(s, all, all)
}

/// The root copies in; the others fetch n bytes each, while it copies the next segment.
pub fn window_broadcast(s: &Shape) -> Work {
    Work::of(s)
        .stage(s)
        .meet(s, 1.0)
        .copy(s, s.bytes / s.segments, s.bytes)
        .fetch(s, s.bytes, s.bytes * (s.p() - 1.0))
        .buffers(s, s.bytes, s.bytes)
}

/// The others copy in; the root fetches p - 1 vectors of n bytes.
pub fn window_gather(s: &Shape) -> Work {
    let others = s.bytes * (s.p() - 1.0);
    Work::of(s)
        .stage(s)
        .meet(s, 1.0)
        .copy(s, s.bytes, others)
        .fetch(s, others, others)
        .buffers(s, s.bytes * s.p(), 2.0 * s.bytes)
}

/// The root copies p parts of n, the others' in and its own out; the others fetch one each.
pub fn window_scatter(s: &Shape) -> Work {
    let others = s.bytes * (s.p() - 1.0);
    Work::of(s)
        .stage(s)
        .meet(s, 1.0)
        .copy(s, s.bytes * s.p(), s.bytes * s.p())
        .fetch(s, s.bytes, others)
        .buffers(s, s.bytes * s.p(), 2.0 * s.bytes)
}

/// Arrive, reduce one block of all inputs into all outputs, done.
pub fn direct_all_reduce(s: &Shape) -> Work {
    Work::of(s)
        .meet(s, 2.0)
        .reduce(s, s.bytes / s.p(), (s.p(), s.p(), 0.0))
        .buffers(s, s.bytes, 2.0 * s.bytes)
}

/// Arrive, reduce one block of all inputs into the root's output, done.
pub fn direct_reduce(s: &Shape) -> Work {
    Work::of(s)
        .meet(s, 2.0)
        .reduce(s, s.bytes / s.p(), (s.p(), 1.0, 0.0))
        .buffers(s, s.bytes, s.bytes + s.bytes / s.p())
}

/// Arrive, reduce one part of all inputs, done.
pub fn direct_reduce_scatter(s: &Shape) -> Work {
    Work::of(s)
        .meet(s, 2.0)
        .reduce(s, s.bytes, (s.p(), 1.0, 0.0))
        .buffers(s, s.bytes * s.p(), s.bytes * (s.p() + 1.0))
}

/// Arrive, copy n bytes from each peer, done.
pub fn direct_parts(s: &Shape) -> Work {
    let others = s.bytes * (s.p() - 1.0);
    Work::of(s)
        .meet(s, 2.0)
        .copy(s, others, others * s.p())
        .buffers(s, s.bytes * s.p(), 2.0 * others)
}

/// As [`direct_parts`], where peers write what is read before the next call.
pub fn direct_all_to_all(s: &Shape) -> Work {
    let others = s.bytes * (s.p() - 1.0);
    let mut work = direct_parts(s).copy(s, others, others * s.p());
    work.crossed += BOTH_WAYS * s.each(others) * s.nearby(s.bytes * s.p());
    work
}

/// Move n bytes between the root and each of the others. All meet once: those who wait for the root
/// have all arrived.
pub fn direct_root(s: &Shape) -> Work {
    Work::of(s)
        .meet(s, 1.0)
        .take_turns(s)
        .copy(s, s.bytes, s.bytes * (s.p() - 1.0))
        .buffers(s, s.bytes, 2.0 * s.bytes)
}

/// Whole vectors, log p times, and twice more where p is no power of two.
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

/// Folding p to a power of two: in and out once, by pairs of ranks.
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

/// 2 (p-1) messages, 2 n (p-1)/p bytes.
pub fn ring_all_reduce(s: &Shape) -> Work {
    let (steps, others) = (s.p() - 1.0, s.bytes * s.others());
    Work::of(s)
        .exchange(s, 2.0 * steps, s.bytes / s.p(), 1.0)
        .reduce(s, others, (2.0, 1.0, 0.0))
        .buffers(s, 1.5 * s.bytes, 7.0 * others)
}

/// p - 1 messages of n bytes, combined on the way.
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

/// p - 1 messages of n bytes under way at once: the latency counts once.
pub fn pairwise(s: &Shape) -> Work {
    let (steps, others) = (s.p() - 1.0, s.bytes * (s.p() - 1.0));
    let mut work =
        Work::of(s)
            .exchange(s, steps, s.bytes, 0.0)
            .buffers(s, s.bytes * s.p(), 2.0 * others);
    work.messages = s.each(steps.min(1.0));
    work
}

/// As [`pairwise`], where peers write what is read before the next call; what arrives is copied to
/// where it belongs.
pub fn pairwise_all_to_all(s: &Shape) -> Work {
    let others = s.bytes * (s.p() - 1.0);
    let mut work = pairwise(s).copy(s, others, others * s.p());
    if s.mapped && s.registered {
        work.crossed = BOTH_WAYS * s.each(others) * s.nearby(s.bytes * s.p());
    }
    work
}

/// As [`pairwise`], combined at the end: what arrives waits in scratch, and before that in messages
/// where it is staged.
pub fn pairwise_reduce_scatter(s: &Shape) -> Work {
    let others = s.bytes * (s.p() - 1.0);
    let staged = if s.registered { 0.0 } else { others };
    pairwise(s).reduce(s, s.bytes, (s.p(), 1.0, 0.0)).buffers(
        s,
        s.bytes * s.p() + others + staged,
        s.bytes * (s.p() + 1.0) + 2.0 * staged,
    )
}

/// log p rounds; (p-1) n bytes in all. A run that wraps is a second message, so half a message
/// more.
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

/// A vector down the tree, chunk by chunk.
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

/// A vector up the tree: the root combines log p of them.
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

/// Up and down.
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

/// Parts to or from the root over a tree: log p messages, and parts are copied through scratch on
/// the way.
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

/// A pipeline: p - 1 latencies until the last rank begins, then n bytes.
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

/// Rings on every host and between hosts. One message more than a ring, so that a ring wins where
/// there is only one level.
pub fn hierarchical(s: &Shape) -> Work {
    let hosts = f64::from(s.hosts);
    let local = s.p() / hosts;
    if s.hosts == 1 {
        let mut work = ring_all_reduce(s);
        work.messages += s.each(1.0);
        work.posts += s.each(1.0);
        return work;
    }
    let inside = s.bytes * (local - 1.0) / local;
    let between = s.bytes / local * (hosts - 1.0) / hosts;
    let messages = 2.0 * (local - 1.0) + 2.0 * (hosts - 1.0) + 1.0;
    let sent = Messages {
        count: (messages, messages * s.p()),
        posts: 2.0 * messages * s.chunks(s.bytes / s.p()),
        bytes: (2.0 * between, 2.0 * between * s.p()),
        fresh: 1.0,
    };
    Work::of(s)
        .send(s, &sent)
        .fetch(s, 2.0 * inside, 2.0 * inside * s.p())
        .reduce(s, inside + between, (2.0, 1.0, 0.0))
        .buffers(s, s.bytes, 4.0 * s.bytes)
}
