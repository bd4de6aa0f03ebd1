//! Every rank meets every rank, in rounds of pairs; or every rank meets the root.

use super::Request;
use super::slots::{exchanged, parts};
use super::stage::{begin, contributions, double_buffer, part_in};
use crate::pattern::pairwise::partner;
use crate::schedule::{Builder, Extent, Range, Schedule};

/// Reduce-scatter: every rank gets its part from all others and reduces them in the order of the
/// ranks.
pub(super) fn reduce_scatter(request: &Request) -> Schedule {
    let mut b = begin(request, "pairwise");
    let (rank, ranks) = (request.rank, request.ranks);
    let own = contributions(&mut b, request);
    let arrivals = b.scratch(Extent::all(ranks));
    for round in 0..ranks {
        let peer = partner(rank, round, ranks);
        if peer != rank {
            b.send(peer, part_in(request, peer, own));
            b.recv(peer, part_in(request, peer, arrivals));
        }
    }
    let source = |peer| {
        let buffer = if peer == rank { own } else { arrivals };
        part_in(request, peer, buffer)
    };
    let sources = (0..ranks).map(source).collect();
    b.reduce(sources, request.output(0, 0, 1, 1), true);
    b.build()
}

/// Reduce-scatter with a length per rank, as [`reduce_scatter`].
pub(super) fn reduce_scatter_v(request: &Request) -> Schedule {
    let mut b = begin(request, "pairwise");
    let parts = parts(&mut b, request);
    let (rank, ranks) = (request.rank, request.ranks);
    let contributions: Vec<Range> = (0..ranks)
        .map(|part| match request.premultiply {
            false => parts.among(part),
            true => {
                let product = Range::new(b.scratch(parts.length(part)), parts.length(part));
                b.premultiply(parts.among(part), product);
                product
            }
        })
        .collect();
    let mut sources = contributions.clone();
    for round in 0..ranks {
        let peer = partner(rank, round, ranks);
        if peer != rank {
            let arrival = Range::new(b.scratch(parts.length(rank)), parts.length(rank));
            b.send(peer, contributions[peer as usize]);
            b.recv(peer, arrival);
            sources[peer as usize] = arrival;
        }
    }
    b.reduce(sources, parts.own, true);
    b.build()
}

/// All-to-all. In place, what arrives waits in scratch until the part that it replaces has been
/// sent.
pub(super) fn all_to_all(request: &Request) -> Schedule {
    let mut b = begin(request, "pairwise");
    let (rank, ranks) = (request.rank, request.ranks);
    let scratch = request
        .in_place
        .then(|| double_buffer(&mut b, Extent::all(1)));
    for round in 0..ranks {
        let peer = partner(rank, round, ranks);
        let source = request.input(peer, 0, 1, 1);
        let destination = request.output(peer, 0, 1, 1);
        if peer == rank {
            b.copy(source, destination);
            continue;
        }
        b.send(peer, source);
        match scratch {
            None => {
                b.recv(peer, destination);
            }
            Some(scratch) => {
                let arrived = Range::new(scratch[round as usize % 2], Extent::all(1));
                b.recv(peer, arrived);
                b.copy(arrived, destination);
            }
        }
    }
    b.build()
}

/// All-to-all with a length per pair (see [`super::all_to_all_v_slots`]).
pub(super) fn all_to_all_v(request: &Request) -> Schedule {
    assert!(
        !request.in_place,
        "all-to-allv in place: Request::check refuses it"
    );
    let mut b = Builder::new("pairwise", request.rank, request.ranks, false);
    let slots = exchanged(&mut b, request);
    for round in 0..request.ranks {
        let peer = partner(request.rank, round, request.ranks);
        if peer == request.rank {
            b.copy(slots.sent(peer), slots.received(peer));
        } else {
            b.send(peer, slots.sent(peer));
            b.recv(peer, slots.received(peer));
        }
    }
    b.build()
}

/// Gather: every rank sends to the root.
pub(super) fn gather(request: &Request) -> Schedule {
    let mut b = begin(request, "linear");
    let own = request.input(0, 0, 1, 1);
    if request.rank == request.root {
        b.copy(own, request.output(request.rank, 0, 1, 1));
        for peer in request.peers() {
            b.recv(peer, request.output(peer, 0, 1, 1));
        }
    } else {
        b.send(request.root, own);
    }
    b.build()
}

/// Scatter: the root sends to every rank.
pub(super) fn scatter(request: &Request) -> Schedule {
    let mut b = begin(request, "linear");
    let own = request.output(0, 0, 1, 1);
    if request.rank == request.root {
        for peer in request.peers() {
            b.send(peer, request.input(peer, 0, 1, 1));
        }
        b.copy(request.input(request.rank, 0, 1, 1), own);
    } else {
        b.recv(request.root, own);
    }
    b.build()
}

/// Gather with a length per rank (see [`super::part_slots`]): every rank sends to the root.
pub(super) fn gather_v(request: &Request) -> Schedule {
    let mut b = begin(request, "linear");
    let parts = parts(&mut b, request);
    if request.rank == request.root {
        b.copy(parts.own, parts.among(request.rank));
        for peer in request.peers() {
            b.recv(peer, parts.among(peer));
        }
    } else {
        b.send(request.root, parts.own);
    }
    b.build()
}

/// Scatter with a length per rank: the root sends to every rank.
pub(super) fn scatter_v(request: &Request) -> Schedule {
    let mut b = begin(request, "linear");
    let parts = parts(&mut b, request);
    if request.rank == request.root {
        for peer in request.peers() {
            b.send(peer, parts.among(peer));
        }
        b.copy(parts.among(request.rank), parts.own);
    } else {
        b.recv(request.root, parts.own);
    }
    b.build()
}
