//! The formulas where ranks send messages over a network: what takes place over which links, one
//! step after the other.
//!
//! Ranks of one host have links of their own, which are local, and a rank has a port for each kind.
//! So a step in which some ranks reach another host, and others a rank of their own, takes as long
//! as the slower of both.
//!
//! The constants are fitted to the times of the simulated network (`tests/simulated/choice.rs`).

use super::{Shape, Work};
use crate::limits::{CHUNKS_IN_FLIGHT, INLINE_BYTES_MAX};

/// What the messages over one kind of link cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkPrice {
    /// A message without bytes, in nanoseconds.
    pub message_ns: f64,
    /// What of that its port takes, in nanoseconds.
    pub post_ns: f64,
    /// A byte, in nanoseconds.
    pub byte_ns: f64,
}

impl LinkPrice {
    fn time(&self, bytes: f64) -> f64 {
        self.message_ns + bytes * self.byte_ns
    }

    fn port_time(&self, bytes: f64) -> f64 {
        self.post_ns + bytes * self.byte_ns
    }
}

/// Where halves of a vector go back and forth, a rank waits for the part of a message that it needs
/// first, and its port for the rank: for each round this share of the time of long vectors.
const HALVING_WAIT: f64 = 0.06;
/// The share of all-gathers by doubling, of short results and of long ones.
const DOUBLING_WAIT: [f64; 2] = [0.03, 0.07];
/// From these bytes on a vector is long, and the result of an all-gather.
const LONG_BYTES: f64 = 1e6;
const LONG_RESULT_BYTES: f64 = 8e6;
/// The bytes of the faster links that long vectors do not hide behind those of the slower ones: of
/// halving, of rings inside of hosts and between them, and of trees.
const SHOWN: f64 = 0.5;
const SHOWN_OF_TREE: f64 = 0.1;

/// The steps of a call.
struct Steps<'s> {
    s: &'s Shape,
    /// Ranks of a host; 1 where all ranks are on one host and reach each other over the network.
    each: f64,
    hosts: f64,
    work: Work,
}

impl Steps<'_> {
    fn of(s: &Shape) -> Steps<'_> {
        let hosts = match s.hosts {
            1 => s.p(),
            hosts => f64::from(hosts),
        };
        Steps {
            s,
            each: s.p() / hosts,
            hosts,
            work: Work::of(s),
        }
    }

    /// Adds steps between hosts with a message of this length.
    fn far(mut self, steps: f64, bytes: f64) -> Self {
        self.work.messages += steps;
        self.work.linked += steps * bytes;
        self.work.posts += steps * (self.s.chunks(bytes) - 1.0);
        self
    }

    /// Adds messages of a rank to other hosts that are under way together.
    fn stream_far(mut self, messages: f64, bytes: f64) -> Self {
        self.work.messages += 1.0;
        self.work.posts += messages - 1.0;
        self.work.linked += messages * bytes;
        self
    }

    /// Adds messages of a rank inside of its host that are under way together.
    fn stream_near(mut self, messages: f64, bytes: f64) -> Self {
        self.work.local_messages += 1.0;
        self.work.local_bytes += messages * bytes;
        self
    }

    /// Adds steps inside of hosts.
    fn near(mut self, steps: f64, bytes: f64) -> Self {
        self.work.local_messages += steps;
        self.work.local_bytes += steps * bytes;
        self
    }

    /// Whether a step that some ranks make over either link takes the time of the far one.
    fn is_far_slower(&self, bytes: f64) -> bool {
        self.each <= 1.0 || self.s.far.time(bytes) >= self.s.near.time(bytes)
    }

    /// Adds a step over this distance, in which the ranks of a block as long as the distance, or
    /// all, reach a rank of another block.
    fn over(self, distance: u32, bytes: f64) -> Self {
        match f64::from(distance) < self.each {
            true => self.near(1.0, bytes),
            false => self.far(1.0, bytes),
        }
    }

    /// Adds the way to ask for a first message that is not sent at once.
    fn ask(self, bytes: f64) -> Self {
        match bytes > INLINE_BYTES_MAX as f64 {
            true if self.each < self.s.p() => self.far(1.0, 0.0),
            _ => self,
        }
    }

    /// Whether the bytes take more time between hosts than inside of them.
    fn is_mostly_far(&self) -> bool {
        let near_ns = self.work.local_bytes * self.s.near.byte_ns;
        self.work.linked * self.s.far.byte_ns >= near_ns
    }

    /// What is long takes both kinds of links at the same time: only a share of the bytes of the
    /// faster ones counts.
    fn overlapped(mut self, shown: f64) -> Self {
        match self.is_mostly_far() {
            true => self.work.local_bytes *= shown,
            false => self.work.linked *= shown,
        }
        self
    }

    /// The steps of a tree where no rank is as many steps away from the root as the root has
    /// children: that depends on the number of hosts.
    fn shortened(mut self) -> Self {
        let hosts = self.hosts.ceil() as u32;
        let (children, depth) = (powers_below(hosts).count() as u32, depth_of_tree(hosts));
        self.work.messages -= f64::from(children - depth);
        self
    }

    /// Where all ranks share the cores of one host, what all of them send counts: `messages` of
    /// `bytes` each, whatever is under way together.
    fn of_all(mut self, messages: f64, bytes: f64) -> Self {
        if self.s.hosts > 1 {
            return self;
        }
        let work = &mut self.work;
        work.messages = self.s.shared(work.messages, messages);
        work.linked = self.s.shared(work.linked, messages * bytes);
        self
    }

    /// The bytes take longer by this share.
    fn slowed(mut self, share: f64) -> Self {
        self.work.linked *= 1.0 + share;
        self.work.local_bytes *= 1.0 + share;
        self
    }

    /// Adds the reduction of `bytes` bytes of `sources` ranges.
    fn reduce(mut self, sources: f64, bytes: f64) -> Self {
        self.work.reduced += (sources + 1.0) * bytes;
        self
    }

    /// Adds the folding of the ranks beyond a power of two, which are beside those that do their
    /// work.
    fn fold(self) -> Self {
        let (bytes, is_power) = (self.s.bytes, self.s.ranks.is_power_of_two());
        match (is_power, self.each > 1.0) {
            (true, _) => self,
            (_, true) => self.near(2.0, bytes).reduce(2.0, bytes),
            (_, false) => self.far(2.0, bytes).reduce(2.0, bytes),
        }
    }
}

/// The powers of two below a number.
fn powers_below(ranks: u32) -> impl Iterator<Item = u32> {
    (0..32).map(|bit| 1 << bit).take_while(move |&d| d < ranks)
}

/// The most steps from the root of a binomial tree: the most bits of a position that are set.
fn depth_of_tree(ranks: u32) -> u32 {
    let bits = u32::BITS - (ranks - 1).leading_zeros();
    let last = ranks - 1;
    // The last position, or the highest one below it that ends with ones only.
    let below = (0..bits)
        .filter(|bit| last >> bit & 1 == 1)
        .map(|bit| (last >> bit >> 1).count_ones() + bit);
    below.chain([last.count_ones()]).max().unwrap_or(0)
}

/// Rounds of halving among a power of two of ranks.
fn rounds(s: &Shape) -> u32 {
    s.ranks.ilog2()
}

pub fn recursive_doubling(s: &Shape) -> Work {
    let mut steps = Steps::of(s).fold().ask(s.bytes);
    for distance in powers_below(1 << rounds(s)) {
        steps = steps.over(distance, s.bytes).reduce(2.0, s.bytes);
    }
    steps.of_all(s.p() * s.log(), s.bytes).work
}

pub fn rabenseifner(s: &Shape) -> Work {
    let ranks = f64::from(1 << rounds(s));
    let mut steps = Steps::of(s).fold().ask(s.bytes / 2.0);
    for distance in powers_below(1 << rounds(s)) {
        let bytes = s.bytes * f64::from(distance) / ranks;
        steps = steps.over(distance, bytes).over(distance, bytes);
        steps = steps.reduce(2.0, bytes);
    }
    if s.bytes > LONG_BYTES {
        let full = ((s.bytes - LONG_BYTES) / (3.0 * LONG_BYTES)).min(1.0);
        let near = steps.each.log2().ceil();
        let rounds = match steps.is_mostly_far() {
            true => f64::from(rounds(s)) - near,
            false => near,
        };
        steps = steps.overlapped(SHOWN).slowed(HALVING_WAIT * rounds * full);
    }
    let messages = 2.0 * s.p() * s.log();
    steps
        .of_all(messages, s.bytes * s.others() / s.log().max(1.0))
        .work
}

/// Around a ring once or more often, with parts of this length. What takes longest counts: the way
/// of a part, the port of a rank beside another host, or that of a rank beside others of its own.
fn around(s: &Shape, times: f64, bytes: f64) -> Steps<'_> {
    let steps = Steps::of(s).ask(bytes);
    // A part that begins amid a host's ranks comes back to that host.
    let far = steps.hosts.min(s.p() - 1.0);
    let near = s.p() - 1.0 - far;
    let all = times * (s.p() - 1.0);
    let way_ns = times * (far * s.far.time(bytes) + near * s.near.time(bytes));
    let far_ns = s.far.message_ns + all * s.far.port_time(bytes);
    let near_ns = s.near.message_ns + all * s.near.port_time(bytes);
    let steps = match steps.each <= 1.0 || way_ns >= far_ns.max(near_ns) {
        true => steps.far(times * far, bytes).near(times * near, bytes),
        false if far_ns >= near_ns => steps.stream_far(all, bytes),
        false => steps.stream_near(all, bytes),
    };
    steps.of_all(all * s.p(), bytes)
}

pub fn ring_all_reduce(s: &Shape) -> Work {
    let bytes = s.bytes / s.p();
    let steps = around(s, 2.0, bytes);
    steps.reduce(2.0, (s.p() - 1.0) * bytes).work
}

/// Around a ring once, with parts of `s.bytes` bytes.
fn ring(s: &Shape) -> Steps<'_> {
    around(s, 1.0, s.bytes)
}

pub fn ring_parts(s: &Shape) -> Work {
    ring(s).work
}

pub fn ring_reduce_scatter(s: &Shape) -> Work {
    ring(s).reduce(2.0, (s.p() - 1.0) * s.bytes).work
}

/// All messages of a rank are under way together: its ports take one after the other. `senders`:
/// how many ranks have as many.
fn exchange(s: &Shape, senders: f64) -> Steps<'_> {
    let steps = Steps::of(s).ask(s.bytes);
    let (far, near) = (s.p() - steps.each, steps.each - 1.0);
    let time = |link: &LinkPrice, count: f64| link.message_ns + count * link.port_time(s.bytes);
    let steps = match time(&s.far, far) >= time(&s.near, near) {
        true => steps.stream_far(far, s.bytes),
        false => steps.stream_near(near, s.bytes),
    };
    steps.of_all(senders * (s.p() - 1.0), s.bytes)
}

pub fn pairwise(s: &Shape) -> Work {
    exchange(s, s.p()).work
}

pub fn pairwise_reduce_scatter(s: &Shape) -> Work {
    exchange(s, s.p()).reduce(s.p(), s.bytes).work
}

pub fn linear(s: &Shape) -> Work {
    exchange(s, 1.0).work
}

/// In each round some ranks of a host reach another one.
pub fn bruck(s: &Shape) -> Work {
    let mut steps = Steps::of(s).ask(s.bytes);
    for distance in powers_below(s.ranks) {
        let bytes = s.bytes * f64::from(distance.min(s.ranks - distance));
        steps = match f64::from(distance) < steps.each {
            true if steps.is_far_slower(bytes) => {
                steps.work.linked += bytes;
                steps.near(1.0, 0.0)
            }
            true => steps.near(1.0, bytes),
            false => steps.far(1.0, bytes),
        };
    }
    if steps.each > 1.0 {
        // On its way through the rounds of short distances a part comes to another host once.
        steps = steps.far(1.0, 0.0).near(-1.0, 0.0);
    }
    let is_long = s.bytes * s.p() > LONG_RESULT_BYTES;
    let share = DOUBLING_WAIT[usize::from(is_long)] * steps.hosts.log2().ceil();
    let steps = steps.slowed(share);
    let messages = s.p() * s.log();
    steps
        .of_all(messages, s.bytes * (s.p() - 1.0) / s.log().max(1.0))
        .work
}

pub fn dissemination(s: &Shape) -> Work {
    let steps = Steps::of(s).far(s.log(), 0.0);
    steps.of_all(s.p() * s.log(), 0.0).work
}

/// A rank sends the whole vector to one child after the other, the farthest first.
fn down_the_tree(steps: Steps<'_>) -> Steps<'_> {
    let (ranks, bytes) = (steps.s.ranks, steps.s.bytes);
    let mut steps = steps.ask(bytes);
    for distance in powers_below(ranks) {
        steps = steps.over(distance, bytes);
    }
    steps.shortened()
}

/// What is longer than a chunk goes to children inside and outside of the host at the same time.
fn tree(s: &Shape) -> Steps<'_> {
    let steps = down_the_tree(Steps::of(s));
    match s.bytes > s.chunk_bytes {
        true => steps.overlapped(SHOWN_OF_TREE),
        false => steps,
    }
}

pub fn tree_broadcast(s: &Shape) -> Work {
    tree(s).of_all(s.p() - 1.0, s.bytes).work
}

fn up_the_tree(s: &Shape) -> Steps<'_> {
    tree(s).reduce(2.0, s.bytes * s.log())
}

pub fn tree_reduce(s: &Shape) -> Work {
    up_the_tree(s).of_all(s.p() - 1.0, s.bytes).work
}

pub fn tree_all_reduce(s: &Shape) -> Work {
    let steps = down_the_tree(up_the_tree(s));
    steps.of_all(2.0 * (s.p() - 1.0), s.bytes).work
}

/// The root has the parts of all other hosts over one port, and each host those of its ranks.
pub fn tree_parts(s: &Shape) -> Work {
    let mut steps = Steps::of(s).ask(s.bytes);
    for distance in powers_below(s.ranks) {
        steps = steps.over(distance, 0.0);
    }
    steps = steps.shortened();
    steps.work.linked += (s.p() - steps.each) * s.bytes;
    steps.work.local_bytes += (steps.each - 1.0) * s.bytes;
    steps.of_all(s.p() - 1.0, s.bytes * s.log() / 2.0).work
}

/// As [`tree_parts`]. Where the longest message is longer than what is under way, the root sends
/// others beside it, and its receiver passes its last chunks on later.
pub fn tree_scatter(s: &Shape) -> Work {
    let mut work = tree_parts(s);
    if s.bytes * s.p() / 2.0 > f64::from(CHUNKS_IN_FLIGHT) * s.chunk_bytes {
        work.linked += (s.log() - 1.0) * s.chunk_bytes;
    }
    work
}

/// The first chunk goes along all links, one after the other, and the others follow.
fn chain(s: &Shape) -> Steps<'_> {
    let chunk = s.bytes.min(s.chunk_bytes);
    let steps = Steps::of(s).ask(s.bytes);
    let (far, near) = (steps.hosts - 1.0, steps.hosts * (steps.each - 1.0));
    let mut steps = steps.far(far, chunk).near(near, chunk);
    match steps.is_far_slower(chunk) {
        true => steps.work.linked += s.bytes - chunk,
        false => steps.work.local_bytes += s.bytes - chunk,
    }
    steps.work.posts += s.chunks(s.bytes) - 1.0;
    steps.of_all(s.p() - 1.0, s.bytes)
}

pub fn chain_broadcast(s: &Shape) -> Work {
    chain(s).work
}

pub fn chain_reduce(s: &Shape) -> Work {
    let chunk = s.bytes.min(s.chunk_bytes);
    chain(s).reduce(2.0, s.bytes + s.p() * chunk).work
}

/// Around a ring inside of hosts, one between hosts, and again inside of hosts.
pub fn hierarchical(s: &Shape) -> Work {
    let steps = Steps::of(s);
    let (inside, across) = (steps.each - 1.0, steps.hosts - 1.0);
    let (piece, bytes) = (s.bytes / steps.each, s.bytes / s.p());
    let steps = steps.ask(bytes).far(2.0 * across, bytes);
    let steps = steps.near(2.0 * inside, piece);
    let steps = steps.reduce(2.0, inside * piece + across * bytes);
    let steps = steps.of_all(2.0 * across * s.p(), bytes);
    match piece > s.chunk_bytes && inside > 0.0 {
        true => steps.overlapped(SHOWN).work,
        false => steps.work,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_as_deep_as_its_deepest_position() {
        for ranks in 1..200 {
            let deepest = (0..ranks).map(u32::count_ones).max();
            assert_eq!(Some(depth_of_tree(ranks)), deepest, "{ranks} ranks");
        }
    }
}
