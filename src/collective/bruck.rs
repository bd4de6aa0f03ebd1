//! Doubling distances: all-gather and barrier in a logarithmic number of rounds, for any number of
//! ranks.
//!
//! Source: Bruck et al., "Efficient Algorithms for All-to-All Communications in Multiport
//! Message-Passing Systems" (TPDS 1997); Hensgen, Finkel, Manber, "Two Algorithms for Barrier
//! Synchronization" (1988).

use super::Request;
use super::stage::{begin, double_buffer};
use crate::pattern::bruck::{distances, parts, runs};
use crate::pattern::ring::{after, before};
use crate::schedule::{Builder, Extent, Range, Schedule};

/// All-gather. In the round of distance d every rank sends the parts of itself and the d - 1 ranks
/// before it to the rank d after it. Parts go to their places at once: a run that wraps is two
/// messages.
pub(super) fn all_gather(request: &Request) -> Schedule {
    let mut b = begin(request, "bruck");
    let (rank, ranks) = (request.rank, request.ranks);
    b.copy(request.input(0, 0, 1, 1), request.output(rank, 0, 1, 1));
    for distance in distances(ranks) {
        let len = parts(distance, ranks);
        let to = after(rank, distance, ranks);
        let from = before(rank, distance, ranks);
        let run = |last: u32| runs(before(last, len - 1, ranks), len, ranks);
        for (first, len) in run(rank) {
            b.send(to, request.output(first, 0, len, 1));
        }
        for (first, len) in run(from) {
            b.recv(from, request.output(first, 0, len, 1));
        }
    }
    b.build()
}

/// Barrier: one element to the rank d after this one, for d = 1, 2, 4, ... The element is no part
/// of the count (which is 0), because an empty message need not be sent (see
/// [`super::BARRIER_SLOTS`]).
pub(super) fn barrier(request: &Request) -> Schedule {
    let mut b = Builder::new("dissemination", request.rank, request.ranks, false);
    let offset = b.slots(2);
    let extent = Extent::Slots {
        offset,
        length: offset + 1,
    };
    let [sent, arrived] = double_buffer(&mut b, extent).map(|buffer| Range::new(buffer, extent));
    for distance in distances(request.ranks) {
        // The element goes through a copy, so that each round's message waits for all earlier
        // rounds.
        if distance > 1 {
            b.copy(arrived, sent);
        }
        b.send(after(request.rank, distance, request.ranks), sent);
        b.recv(before(request.rank, distance, request.ranks), arrived);
    }
    b.build()
}
