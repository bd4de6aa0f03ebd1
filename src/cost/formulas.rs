//! One formula per algorithm: nanoseconds from a [`Model`] and a [`Shape`].
//!
//! In the names, `n` is the bytes of `count` elements and `p` the number of ranks.

use super::{Model, Shape};

/// Type of all formulas.
pub type Formula = fn(&Model, &Shape) -> f64;

/// Everybody signals everybody and waits.
fn meeting(m: &Model, s: &Shape) -> f64 {
    m.signal_ns + m.signal_peer_ns * (s.p() - 1.0)
}

/// Payload in the signals; the reduction reads p lines.
pub fn line(m: &Model, s: &Shape) -> f64 {
    meeting(m, s) + s.bytes * (s.p() - 1.0) * (m.mapped_byte_ns + m.reduce_byte_ns)
}

/// A barrier of signals.
pub fn line_barrier(m: &Model, s: &Shape) -> f64 {
    meeting(m, s)
}

/// Copy in; everybody reads p vectors of n bytes.
pub fn window_all(m: &Model, s: &Shape) -> f64 {
    s.segments * meeting(m, s)
        + s.bytes * (m.copy_byte_ns + (s.p() - 1.0) * (m.mapped_byte_ns + m.reduce_byte_ns))
}

/// Copy p parts of n in; read a part from each of p ranks.
pub fn window_parts(m: &Model, s: &Shape) -> f64 {
    window_all(m, s) + s.bytes * (s.p() - 1.0) * m.copy_byte_ns
}

/// Copy in; read one vector of n bytes from the root.
pub fn window_root(m: &Model, s: &Shape) -> f64 {
    s.segments * meeting(m, s) + s.bytes * (m.copy_byte_ns + m.mapped_byte_ns)
}

/// Copy in, reduce one block of all, fetch the others: two meetings.
pub fn window_split(m: &Model, s: &Shape) -> f64 {
    s.segments * 2.0 * meeting(m, s)
        + s.bytes * m.copy_byte_ns
        + s.bytes * s.others() * (2.0 * m.mapped_byte_ns + m.reduce_byte_ns)
}

/// Arrive, reduce one block of all inputs into all outputs, done.
pub fn direct_all_reduce(m: &Model, s: &Shape) -> f64 {
    2.0 * meeting(m, s) + s.bytes * s.others() * (2.0 * m.mapped_byte_ns + m.reduce_byte_ns)
}

/// Arrive, reduce one block of all inputs into the root's output, done.
pub fn direct_reduce(m: &Model, s: &Shape) -> f64 {
    2.0 * meeting(m, s) + s.bytes * s.others() * (m.mapped_byte_ns + m.reduce_byte_ns)
}

/// Arrive, read n bytes from each peer, done.
pub fn direct_parts(m: &Model, s: &Shape) -> f64 {
    2.0 * meeting(m, s) + s.bytes * (s.p() - 1.0) * m.mapped_byte_ns
}

/// The same, combined on the way.
pub fn direct_reduce_scatter(m: &Model, s: &Shape) -> f64 {
    direct_parts(m, s) + s.bytes * (s.p() - 1.0) * m.reduce_byte_ns
}

/// Arrive, move n bytes from or to the root, done.
pub fn direct_root(m: &Model, s: &Shape) -> f64 {
    2.0 * meeting(m, s) + s.bytes * m.mapped_byte_ns
}

/// Whole vectors, log p times, and twice more where p is no power of two.
pub fn recursive_doubling(m: &Model, s: &Shape) -> f64 {
    let rounds = f64::from(s.ranks.ilog2());
    rounds * (m.message_ns + s.bytes * (m.message_byte_ns + m.reduce_byte_ns)) + fold(m, s)
}

/// Halving and doubling: 2 log p messages, 2 n (p-1)/p bytes.
pub fn rabenseifner(m: &Model, s: &Shape) -> f64 {
    let rounds = f64::from(s.ranks.ilog2());
    2.0 * rounds * m.message_ns
        + s.bytes * s.others() * (2.0 * m.message_byte_ns + m.reduce_byte_ns)
        + fold(m, s)
}

/// Folding p to a power of two: in and out once.
fn fold(m: &Model, s: &Shape) -> f64 {
    if s.ranks.is_power_of_two() {
        0.0
    } else {
        2.0 * (m.message_ns + s.bytes * m.message_byte_ns) + s.bytes * m.reduce_byte_ns
    }
}

/// 2 (p-1) messages, 2 n (p-1)/p bytes.
pub fn ring_all_reduce(m: &Model, s: &Shape) -> f64 {
    2.0 * (s.p() - 1.0) * m.message_ns
        + s.bytes * s.others() * (2.0 * m.message_byte_ns + m.reduce_byte_ns)
}

/// p - 1 messages of n bytes, combined on the way.
pub fn ring_reduce_scatter(m: &Model, s: &Shape) -> f64 {
    ring_parts(m, s) + (s.p() - 1.0) * s.bytes * m.reduce_byte_ns
}

/// p - 1 messages of n bytes, one after the other.
pub fn ring_parts(m: &Model, s: &Shape) -> f64 {
    (s.p() - 1.0) * (m.message_ns + s.bytes * m.message_byte_ns)
}

/// p - 1 messages of n bytes under way at once: the latency counts once, and half a latency of work for each.
pub fn pairwise(m: &Model, s: &Shape) -> f64 {
    m.message_ns + (s.p() - 1.0) * (m.message_ns / 2.0 + s.bytes * m.message_byte_ns)
}

/// The same, combined at the end.
pub fn pairwise_reduce_scatter(m: &Model, s: &Shape) -> f64 {
    pairwise(m, s) + (s.p() - 1.0) * s.bytes * (m.reduce_byte_ns + m.copy_byte_ns)
}

/// log p rounds; (p-1) n bytes in all. A run that wraps is a second message, so half a message more.
pub fn bruck(m: &Model, s: &Shape) -> f64 {
    1.5 * s.log() * m.message_ns + (s.p() - 1.0) * s.bytes * m.message_byte_ns
}

/// log p empty messages.
pub fn dissemination(m: &Model, s: &Shape) -> f64 {
    s.log() * m.message_ns
}

/// A vector down the tree.
pub fn tree_broadcast(m: &Model, s: &Shape) -> f64 {
    s.log() * (m.message_ns + s.bytes * m.message_byte_ns)
}

/// A vector up the tree.
pub fn tree_reduce(m: &Model, s: &Shape) -> f64 {
    tree_broadcast(m, s) + s.log() * s.bytes * m.reduce_byte_ns
}

/// Up and down.
pub fn tree_all_reduce(m: &Model, s: &Shape) -> f64 {
    tree_broadcast(m, s) + tree_reduce(m, s)
}

/// Parts to or from the root over a tree: log p messages, and parts are copied through scratch on the way.
pub fn tree_parts(m: &Model, s: &Shape) -> f64 {
    1.5 * s.log() * m.message_ns + (s.p() - 1.0) * s.bytes * (m.message_byte_ns + m.copy_byte_ns)
}

/// A pipeline: p - 1 latencies until the last rank begins, then n bytes.
pub fn chain_broadcast(m: &Model, s: &Shape) -> f64 {
    (s.p() - 1.0) * m.message_ns + s.bytes * m.message_byte_ns
}

/// The same, combined on the way.
pub fn chain_reduce(m: &Model, s: &Shape) -> f64 {
    chain_broadcast(m, s) + s.bytes * m.reduce_byte_ns
}

/// Rings on every host and between hosts. One message more than a ring, so that a ring wins where there is
/// only one level.
pub fn hierarchical(m: &Model, s: &Shape) -> f64 {
    let hosts = f64::from(s.hosts);
    let local = s.p() / hosts;
    let messages = 2.0 * (local - 1.0) + 2.0 * (hosts - 1.0) + 1.0;
    let inside = s.bytes * (local - 1.0) / local * (2.0 * m.local_byte_ns + m.reduce_byte_ns);
    let between = s.bytes / local * (hosts - 1.0) / hosts;
    messages * m.message_ns + inside + between * (2.0 * m.message_byte_ns + m.reduce_byte_ns)
}
