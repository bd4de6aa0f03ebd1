//! Algorithms that stage through windows, which every rank of the host maps: for small vectors, and
//! for memory that is not registered. No rank waits at the end, because a window is not used again
//! before all ranks have retired the operation. All ranks have equal windows, also where only those
//! of one rank are used.

use super::Request;
use super::stage::{Group, Part, begin, part_in};
use crate::schedule::{BufferId, Builder, Extent, Lane, Operand, Range, Schedule};
use crate::types::Rank;

const ARRIVED: Lane = 0;
const REDUCED: Lane = 1;

/// Puts this rank's contribution into its window, multiplied by the factor if the request says so.
fn stage(b: &mut Builder, request: &Request, source: Range, staged: Range) {
    if request.premultiply {
        b.premultiply(source, staged);
    } else {
        b.copy(source, staged);
    }
}

/// [`Group::stage_for_others`] of an input with a part per rank, into a window as large.
fn stage_parts(b: &mut Builder, request: &Request, window: BufferId) -> Range {
    let input = request.input(0, 0, request.ranks, 1).buffer;
    let run = |buffer, first, len| {
        let (of, times) = (request.ranks, request.ranks);
        let extent = Extent::Blocks {
            first,
            len,
            of,
            times,
        };
        Range::new(buffer, extent)
    };
    Group::all(request).stage_for_others(
        b,
        request.premultiply,
        |first, len| run(input, first, len),
        |first, len| run(window, first, len),
    )
}

/// A range of the windows of all ranks, in the order of the ranks.
fn windows(request: &Request, range: Range) -> Vec<Operand> {
    Group::all(request).across(range, range)
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

/// Allreduce: every rank reduces one block. It stores the result in its output and in the others'
/// windows, over what they staged for it; there they read it. A place of its own for the result
/// would double the cache lines that go from core to core: 2 MiB of two ranks reach 4.4 GB/s with
/// it and 5.9 without.
pub(super) fn all_reduce_split(request: &Request) -> Schedule {
    let mut b = begin(request, "window-split");
    let (rank, ranks) = (request.rank, request.ranks);
    let window = b.window(Extent::all(1));
    let blocks = |first, len| Part::WHOLE.pieces(first, len, ranks).of(window);
    let block = blocks(rank, 1);
    let group = Group::all(request);
    let own = group.stage_for_others(
        &mut b,
        request.premultiply,
        |first, len| request.input(0, first, len, ranks),
        blocks,
    );
    b.signal(request.peers(), ARRIVED);
    b.wait(request.peers(), ARRIVED);
    let output = request.output(0, rank, 1, ranks);
    b.reduce_from(group.across(own, block), group.across(output, block), true);
    b.signal(request.peers(), REDUCED);
    b.wait(request.peers(), REDUCED);
    for (first, len) in group.others() {
        b.copy(blocks(first, len), request.output(0, first, len, ranks));
    }
    b.build()
}

/// Reduce-scatter.
pub(super) fn reduce_scatter(request: &Request) -> Schedule {
    let mut b = begin(request, "window");
    let window = b.window(request.input(0, 0, request.ranks, 1).extent);
    let own = stage_parts(&mut b, request, window);
    b.signal(request.peers(), ARRIVED);
    b.wait(request.peers(), ARRIVED);
    let result = vec![Operand::Local(request.output(0, 0, 1, 1))];
    let part = part_in(request, request.rank, window);
    b.reduce_from(Group::all(request).across(own, part), result, true);
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

/// All-gather by way of the root: each rank stores its part in the root's window, from which all
/// read the whole. The root is woken once and wakes each of the others once, which is cheap where
/// ranks sleep because cores are few.
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
    let staged = Part::WHOLE.of(window);
    let own = request.input(0, 0, 1, 1);
    let is_root = request.rank == request.root;
    // The root reads its own input where it lies; only a product needs a place.
    let is_staged = !is_root || request.premultiply;
    if is_staged {
        stage(&mut b, request, own, staged);
    }
    if is_root {
        b.wait(request.peers(), ARRIVED);
        let own = if is_staged { staged } else { own };
        let result = vec![Operand::Local(request.output(0, 0, 1, 1))];
        b.reduce_from(Group::all(request).across(own, staged), result, true);
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
        let own = stage_parts(&mut b, request, window);
        b.signal(request.peers(), ARRIVED);
        b.copy(own, output);
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
    let window = b.window(request.input(0, 0, request.ranks, 1).extent);
    let own = stage_parts(&mut b, request, window);
    b.signal(request.peers(), ARRIVED);
    let rank = request.rank;
    b.copy(own, request.output(rank, 0, 1, 1));
    b.wait(request.peers(), ARRIVED);
    for peer in request.peers() {
        let part = part_in(request, rank, window);
        b.get(peer, part, request.output(peer, 0, 1, 1));
    }
    b.build()
}
