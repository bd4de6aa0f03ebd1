//! Algorithms over the callers' own memory, which is registered and mapped by every rank of the
//! host: nothing is staged. A rank first signals [`ARRIVED`], which tells peers where its memory is
//! and whether it is registered, and it leaves once no peer uses its memory any more. A rank whose
//! memory is reached signals all ranks, so that all know whether the call can go on.

use super::Request;
use super::slots::parts;
use super::stage::{Group, begin};
use crate::schedule::{BufferId, Builder, Extent, Lane, Operand, Range, Schedule};

const ARRIVED: Lane = 0;
const DONE: Lane = 1;

/// Allreduce: rank r reduces block r of all inputs into block r of all outputs, in one step. Not
/// premultiplied: a call whose memory turns out not to be registered is repeated by staging, and
/// must find its input as it was.
pub(super) fn all_reduce(request: &Request) -> Schedule {
    let mut b = begin(request, "direct");
    let (rank, ranks) = (request.rank, request.ranks);
    let own = request.input(0, rank, 1, ranks);
    let sources = Group::all(request).across(own, request.peer_input(0, rank, 1, ranks));
    let mine = request.output(0, rank, 1, ranks);
    let results = Group::all(request).across(mine, request.peer_output(0, rank, 1, ranks));
    Group::all(request).meet(&mut b, ARRIVED);
    b.reduce_from(sources, results, true);
    Group::all(request).meet(&mut b, DONE);
    b.build()
}

/// Reduce-scatter; not premultiplied, because there is no room for the products.
pub(super) fn reduce_scatter(request: &Request) -> Schedule {
    let mut b = begin(request, "direct");
    let rank = request.rank;
    let own = request.input(rank, 0, 1, 1);
    let sources = Group::all(request).across(own, request.peer_input(rank, 0, 1, 1));
    Group::all(request).meet(&mut b, ARRIVED);
    let result = vec![Operand::Local(request.output(0, 0, 1, 1))];
    b.reduce_from(sources, result, true);
    Group::all(request).meet(&mut b, DONE);
    b.build()
}

/// Reduce-scatter with a length per rank.
pub(super) fn reduce_scatter_v(request: &Request) -> Schedule {
    let mut b = begin(request, "direct");
    let parts = parts(&mut b, request);
    let own = parts.among(request.rank);
    Group::all(request).meet(&mut b, ARRIVED);
    b.reduce_from(
        Group::all(request).across(own, own),
        vec![Operand::Local(parts.own)],
        true,
    );
    Group::all(request).meet(&mut b, DONE);
    b.build()
}

/// Reduce: rank r reduces block r of all inputs into the root's output; not premultiplied, because
/// other ranks have no room for the products.
pub(super) fn reduce(request: &Request) -> Schedule {
    let mut b = begin(request, "direct");
    let (rank, ranks) = (request.rank, request.ranks);
    let own = request.input(0, rank, 1, ranks);
    let sources = Group::all(request).across(own, request.peer_input(0, rank, 1, ranks));
    let result = if rank == request.root {
        Operand::Local(request.output(0, rank, 1, ranks))
    } else {
        Operand::Peer(request.root, request.peer_output(0, rank, 1, ranks))
    };
    Group::all(request).meet(&mut b, ARRIVED);
    b.reduce_from(sources, vec![result], true);
    Group::all(request).meet(&mut b, DONE);
    b.build()
}

/// All-gather: every rank fetches all parts.
pub(super) fn all_gather(request: &Request) -> Schedule {
    let mut b = begin(request, "direct");
    let own = request.input(0, 0, 1, 1);
    b.signal(request.peers(), ARRIVED);
    b.copy(own, request.output(request.rank, 0, 1, 1));
    b.wait(request.peers(), ARRIVED);
    for peer in request.peers() {
        let theirs = request.peer_input(0, 0, 1, 1);
        b.get(peer, theirs, request.output(peer, 0, 1, 1));
    }
    Group::all(request).meet(&mut b, DONE);
    b.build()
}

/// All-gather with a length per rank (see [`super::part_slots`]).
pub(super) fn all_gather_v(request: &Request) -> Schedule {
    let mut b = begin(request, "direct");
    let parts = parts(&mut b, request);
    b.signal(request.peers(), ARRIVED);
    b.copy(parts.own, parts.among(request.rank));
    b.wait(request.peers(), ARRIVED);
    for peer in request.peers() {
        b.get(peer, parts.alone(peer), parts.among(peer));
    }
    Group::all(request).meet(&mut b, DONE);
    b.build()
}

/// Broadcast: every rank fetches from the root.
pub(super) fn broadcast(request: &Request) -> Schedule {
    let mut b = begin(request, "direct");
    let own = request.input(0, 0, 1, 1);
    let output = request.output(0, 0, 1, 1);
    from_root(&mut b, request, own, output, request.peer_input(0, 0, 1, 1));
    b.build()
}

/// Scatter: every rank fetches its part from the root.
pub(super) fn scatter(request: &Request) -> Schedule {
    let mut b = begin(request, "direct");
    let own = request.peer_input(request.rank, 0, 1, 1);
    from_root(&mut b, request, own, request.output(0, 0, 1, 1), own);
    b.build()
}

/// Scatter with a length per rank.
pub(super) fn scatter_v(request: &Request) -> Schedule {
    let mut b = begin(request, "direct");
    let parts = parts(&mut b, request);
    let among = parts.among(request.rank);
    from_root(&mut b, request, among, parts.own, among);
    b.build()
}

/// The root copies `own`, the others fetch `theirs` from it, both to `output`.
fn from_root(b: &mut Builder, request: &Request, own: Range, output: Range, theirs: Range) {
    if request.rank == request.root {
        b.signal(request.peers(), ARRIVED);
        b.copy(own, output);
        b.wait(request.peers(), DONE);
    } else {
        b.wait(vec![request.root], ARRIVED);
        b.get(request.root, theirs, output);
        b.signal(vec![request.root], DONE);
    }
}

/// Gather: every rank stores its part in the root's output.
pub(super) fn gather(request: &Request) -> Schedule {
    let mut b = begin(request, "direct");
    let (own, rank) = (request.input(0, 0, 1, 1), request.rank);
    let here = request.output(rank, 0, 1, 1);
    to_root(
        &mut b,
        request,
        own,
        (here, request.peer_output(rank, 0, 1, 1)),
    );
    b.build()
}

/// Gather with a length per rank.
pub(super) fn gather_v(request: &Request) -> Schedule {
    let mut b = begin(request, "direct");
    let parts = parts(&mut b, request);
    let among = parts.among(request.rank);
    to_root(&mut b, request, parts.own, (among, among));
    b.build()
}

/// The root copies `own` to `here`, the others store it `there` in the root's output.
fn to_root(b: &mut Builder, request: &Request, own: Range, (here, there): (Range, Range)) {
    if request.rank == request.root {
        b.signal(request.peers(), ARRIVED);
        b.copy(own, here);
        b.wait(request.peers(), DONE);
    } else {
        b.wait(vec![request.root], ARRIVED);
        b.put(request.root, own, there);
        b.signal(vec![request.root], DONE);
    }
}

/// All-to-all: every rank fetches its parts. In place, they wait in scratch until all ranks have
/// fetched. The signals are the same in both cases, so that ranks in place and others meet.
pub(super) fn all_to_all(request: &Request) -> Schedule {
    let mut b = begin(request, "direct");
    let (rank, ranks) = (request.rank, request.ranks);
    let all = Extent::all(ranks);
    let target = if request.in_place {
        b.scratch(all)
    } else {
        BufferId::OUTPUT
    };
    let part = |peer: u32, buffer| Range::new(buffer, request.peer_output(peer, 0, 1, 1).extent);
    b.signal(request.peers(), ARRIVED);
    b.copy(request.input(rank, 0, 1, 1), request.output(rank, 0, 1, 1));
    b.wait(request.peers(), ARRIVED);
    for peer in request.peers() {
        let theirs = request.peer_input(rank, 0, 1, 1);
        b.get(peer, theirs, part(peer, target));
    }
    Group::all(request).meet(&mut b, DONE);
    if request.in_place {
        for peer in request.peers() {
            b.copy(part(peer, target), part(peer, BufferId::OUTPUT));
        }
    }
    b.build()
}
