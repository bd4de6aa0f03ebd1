//! Staged through windows, which every rank of the host maps: for small vectors, and for memory that is not
//! registered. No rank waits at the end: a window is not used again before all ranks have retired the
//! operation. Every rank has the same windows, also where only one of them is used.

use super::Request;
use super::stage::{Part, part_in};
use crate::schedule::{Builder, Extent, Lane, Operand, Range, Schedule};
use crate::types::Rank;

const ARRIVED: Lane = 0;
const REDUCED: Lane = 1;

fn begin(request: &Request, name: &'static str) -> Builder {
    Builder::new(name, request.rank, request.ranks, request.in_place)
}

/// Puts this rank's contribution into its window, multiplied by the factor if the request says so.
fn stage(b: &mut Builder, request: &Request, source: Range, staged: Range) {
    if request.premultiply {
        b.premultiply(source, staged);
    } else {
        b.copy(source, staged);
    }
}

/// The same range of all ranks' windows, in the order of the ranks.
fn windows(request: &Request, range: Range) -> Vec<Operand> {
    (0..request.ranks)
        .map(|rank| at(request, rank, range))
        .collect()
}

fn at(request: &Request, rank: Rank, range: Range) -> Operand {
    if rank == request.rank {
        Operand::Local(range)
    } else {
        Operand::Peer(rank, range)
    }
}

/// Allreduce: every rank reduces whole vectors.
pub(super) fn all_reduce(request: &Request) -> Schedule {
    let mut b = begin(request, "window");
    let window = b.window(Extent::all(1));
    stage(
        &mut b,
        request,
        request.input(0, 0, 1, 1),
        Part::WHOLE.of(window),
    );
    b.signal(request.peers(), ARRIVED);
    b.wait(request.peers(), ARRIVED);
    let result = vec![Operand::Local(request.output(0, 0, 1, 1))];
    b.reduce_from(windows(request, Part::WHOLE.of(window)), result, true);
    b.build()
}

/// Allreduce: every rank reduces one block inside its window, from where the others fetch it.
pub(super) fn all_reduce_split(request: &Request) -> Schedule {
    let mut b = begin(request, "window-split");
    let (rank, ranks) = (request.rank, request.ranks);
    let window = b.window(Extent::all(1));
    let block = |index| Part::WHOLE.piece(index, ranks).of(window);
    stage(
        &mut b,
        request,
        request.input(0, 0, 1, 1),
        Part::WHOLE.of(window),
    );
    b.signal(request.peers(), ARRIVED);
    b.wait(request.peers(), ARRIVED);
    let result = vec![Operand::Local(block(rank))];
    b.reduce_from(windows(request, block(rank)), result, true);
    b.signal(request.peers(), REDUCED);
    b.copy(block(rank), request.output(0, rank, 1, ranks));
    b.wait(request.peers(), REDUCED);
    for peer in request.peers() {
        b.get(peer, block(peer), request.output(0, peer, 1, ranks));
    }
    b.build()
}

/// Reduce-scatter.
pub(super) fn reduce_scatter(request: &Request) -> Schedule {
    let mut b = begin(request, "window");
    let all = request.input(0, 0, request.ranks, 1);
    let window = b.window(all.extent);
    stage(&mut b, request, all, Range::new(window, all.extent));
    b.signal(request.peers(), ARRIVED);
    b.wait(request.peers(), ARRIVED);
    let result = vec![Operand::Local(request.output(0, 0, 1, 1))];
    let part = part_in(request, request.rank, window);
    b.reduce_from(windows(request, part), result, true);
    b.build()
}

/// All-gather.
pub(super) fn all_gather(request: &Request) -> Schedule {
    let mut b = begin(request, "window");
    let window = b.window(Extent::all(1));
    let own = request.input(0, 0, 1, 1);
    stage(&mut b, request, own, Part::WHOLE.of(window));
    b.signal(request.peers(), ARRIVED);
    b.copy(own, request.output(request.rank, 0, 1, 1));
    b.wait(request.peers(), ARRIVED);
    for peer in request.peers() {
        b.get(peer, Part::WHOLE.of(window), request.output(peer, 0, 1, 1));
    }
    b.build()
}

/// All-gather by way of the root: everybody stores its part in the root's window, where all find the whole. The root is woken
/// once and wakes each of the others once, which is what counts where ranks sleep and have few cores.
pub(super) fn all_gather_star(request: &Request) -> Schedule {
    let mut b = begin(request, "star");
    let all = request.output(0, 0, request.ranks, 1);
    let window = b.window(all.extent);
    let part = Range::new(window, request.output(request.rank, 0, 1, 1).extent);
    let own = Operand::Local(request.input(0, 0, 1, 1));
    b.reduce_from(vec![own], vec![at(request, request.root, part)], false);
    if request.rank == request.root {
        b.wait(request.peers(), ARRIVED);
        b.copy(Range::new(window, all.extent), all);
        b.signal(request.peers(), REDUCED);
    } else {
        b.signal(vec![request.root], ARRIVED);
        b.wait(vec![request.root], REDUCED);
        b.get(request.root, Range::new(window, all.extent), all);
    }
    b.build()
}

/// Broadcast.
pub(super) fn broadcast(request: &Request) -> Schedule {
    let mut b = begin(request, "window");
    let window = b.window(Extent::all(1));
    let output = request.output(0, 0, 1, 1);
    if request.rank == request.root {
        let own = request.input(0, 0, 1, 1);
        stage(&mut b, request, own, Part::WHOLE.of(window));
        b.signal(request.peers(), ARRIVED);
        b.copy(own, output);
    } else {
        b.wait(vec![request.root], ARRIVED);
        b.get(request.root, Part::WHOLE.of(window), output);
    }
    b.build()
}

/// Reduce.
pub(super) fn reduce(request: &Request) -> Schedule {
    let mut b = begin(request, "window");
    let window = b.window(Extent::all(1));
    stage(
        &mut b,
        request,
        request.input(0, 0, 1, 1),
        Part::WHOLE.of(window),
    );
    if request.rank == request.root {
        b.wait(request.peers(), ARRIVED);
        let result = vec![Operand::Local(request.output(0, 0, 1, 1))];
        b.reduce_from(windows(request, Part::WHOLE.of(window)), result, true);
    } else {
        b.signal(vec![request.root], ARRIVED);
    }
    b.build()
}

/// Gather.
pub(super) fn gather(request: &Request) -> Schedule {
    let mut b = begin(request, "window");
    let window = b.window(Extent::all(1));
    let own = request.input(0, 0, 1, 1);
    if request.rank == request.root {
        b.copy(own, request.output(request.rank, 0, 1, 1));
        b.wait(request.peers(), ARRIVED);
        for peer in request.peers() {
            b.get(peer, Part::WHOLE.of(window), request.output(peer, 0, 1, 1));
        }
    } else {
        stage(&mut b, request, own, Part::WHOLE.of(window));
        b.signal(vec![request.root], ARRIVED);
    }
    b.build()
}

/// Scatter.
pub(super) fn scatter(request: &Request) -> Schedule {
    let mut b = begin(request, "window");
    let window = b.window(request.peer_input(0, 0, request.ranks, 1).extent);
    let output = request.output(0, 0, 1, 1);
    if request.rank == request.root {
        let all = request.input(0, 0, request.ranks, 1);
        stage(&mut b, request, all, Range::new(window, all.extent));
        b.signal(request.peers(), ARRIVED);
        b.copy(request.input(request.rank, 0, 1, 1), output);
    } else {
        b.wait(vec![request.root], ARRIVED);
        let part = part_in(request, request.rank, window);
        b.get(request.root, part, output);
    }
    b.build()
}

/// All-to-all; in place too, because the input has been staged before anything is stored.
pub(super) fn all_to_all(request: &Request) -> Schedule {
    let mut b = begin(request, "window");
    let all = request.input(0, 0, request.ranks, 1);
    let window = b.window(all.extent);
    stage(&mut b, request, all, Range::new(window, all.extent));
    b.signal(request.peers(), ARRIVED);
    let rank = request.rank;
    b.copy(request.input(rank, 0, 1, 1), request.output(rank, 0, 1, 1));
    b.wait(request.peers(), ARRIVED);
    for peer in request.peers() {
        let part = part_in(request, rank, window);
        b.get(peer, part, request.output(peer, 0, 1, 1));
    }
    b.build()
}
