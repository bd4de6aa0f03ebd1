//! Algorithms for tiny vectors, which are the payload of signals: one store per peer and one wait.
//! Every algorithm here sends `count` elements per peer, which must fit a flag line
//! ([`crate::limits::LINE_PAYLOAD_BYTES`]).

use super::Request;
use super::stage::{Part, Vector, begin, contributions, part_in};
use crate::schedule::{Builder, Lane, Operand, Range, Schedule};
use crate::types::Rank;

const ARRIVED: Lane = 0;

/// The payloads of all ranks in their order, and this rank's own range among them.
fn mails(request: &Request, own: Range) -> Vec<Operand> {
    let mail = |rank| {
        if rank == request.rank {
            Operand::Local(own)
        } else {
            Operand::Mail(rank, ARRIVED)
        }
    };
    (0..request.ranks).map(mail).collect()
}

/// Stores a peer's payload.
fn take(b: &mut Builder, peer: Rank, destination: Range) {
    let source = vec![Operand::Mail(peer, ARRIVED)];
    b.reduce_from(source, vec![Operand::Local(destination)], false);
}

/// Allreduce.
pub(super) fn all_reduce(request: &Request) -> Schedule {
    let mut b = begin(request, "line");
    let vector = Vector::new(&mut b, request);
    let own = Part::WHOLE.of(vector.from);
    b.signal_with(request.peers(), ARRIVED, Some(own));
    b.wait(request.peers(), ARRIVED);
    let result = vec![Operand::Local(Part::WHOLE.of(vector.to))];
    b.reduce_from(mails(request, own), result, true);
    b.build()
}

/// Reduce-scatter: the signal to each peer carries that peer's part.
pub(super) fn reduce_scatter(request: &Request) -> Schedule {
    let mut b = begin(request, "line");
    let own = contributions(&mut b, request);
    for peer in request.peers() {
        b.signal_with(vec![peer], ARRIVED, Some(part_in(request, peer, own)));
    }
    b.wait(request.peers(), ARRIVED);
    let sources = mails(request, part_in(request, request.rank, own));
    b.reduce_from(
        sources,
        vec![Operand::Local(request.output(0, 0, 1, 1))],
        true,
    );
    b.build()
}

/// All-gather.
pub(super) fn all_gather(request: &Request) -> Schedule {
    let mut b = begin(request, "line");
    let own = request.input(0, 0, 1, 1);
    b.signal_with(request.peers(), ARRIVED, Some(own));
    b.copy(own, request.output(request.rank, 0, 1, 1));
    b.wait(request.peers(), ARRIVED);
    for peer in request.peers() {
        take(&mut b, peer, request.output(peer, 0, 1, 1));
    }
    b.build()
}

/// Broadcast.
pub(super) fn broadcast(request: &Request) -> Schedule {
    let mut b = begin(request, "line");
    let output = request.output(0, 0, 1, 1);
    if request.rank == request.root {
        let own = request.input(0, 0, 1, 1);
        b.signal_with(request.peers(), ARRIVED, Some(own));
        b.copy(own, output);
    } else {
        b.wait(vec![request.root], ARRIVED);
        take(&mut b, request.root, output);
    }
    b.build()
}

/// Reduce.
pub(super) fn reduce(request: &Request) -> Schedule {
    let mut b = begin(request, "line");
    let vector = Vector::new(&mut b, request);
    let own = Part::WHOLE.of(vector.from);
    if request.rank == request.root {
        b.wait(request.peers(), ARRIVED);
        let result = vec![Operand::Local(Part::WHOLE.of(vector.to))];
        b.reduce_from(mails(request, own), result, true);
    } else {
        b.signal_with(vec![request.root], ARRIVED, Some(own));
    }
    b.build()
}

/// Gather.
pub(super) fn gather(request: &Request) -> Schedule {
    let mut b = begin(request, "line");
    let own = request.input(0, 0, 1, 1);
    if request.rank == request.root {
        b.copy(own, request.output(request.rank, 0, 1, 1));
        b.wait(request.peers(), ARRIVED);
        for peer in request.peers() {
            take(&mut b, peer, request.output(peer, 0, 1, 1));
        }
    } else {
        b.signal_with(vec![request.root], ARRIVED, Some(own));
    }
    b.build()
}

/// Scatter.
pub(super) fn scatter(request: &Request) -> Schedule {
    let mut b = begin(request, "line");
    let output = request.output(0, 0, 1, 1);
    if request.rank == request.root {
        for peer in request.peers() {
            b.signal_with(vec![peer], ARRIVED, Some(request.input(peer, 0, 1, 1)));
        }
        b.copy(request.input(request.rank, 0, 1, 1), output);
    } else {
        b.wait(vec![request.root], ARRIVED);
        take(&mut b, request.root, output);
    }
    b.build()
}

/// All-to-all. In place too: the payloads have left before anything is stored.
pub(super) fn all_to_all(request: &Request) -> Schedule {
    let mut b = begin(request, "line");
    for peer in request.peers() {
        b.signal_with(vec![peer], ARRIVED, Some(request.input(peer, 0, 1, 1)));
    }
    b.copy(
        request.input(request.rank, 0, 1, 1),
        request.output(request.rank, 0, 1, 1),
    );
    b.wait(request.peers(), ARRIVED);
    for peer in request.peers() {
        take(&mut b, peer, request.output(peer, 0, 1, 1));
    }
    b.build()
}

/// Barrier: signals without payload.
pub(super) fn barrier(request: &Request) -> Schedule {
    let mut b = begin(request, "line");
    b.signal(request.peers(), ARRIVED);
    b.wait(request.peers(), ARRIVED);
    b.build()
}
