//! Rings: a reduce-scatter or an all-gather takes one round less than there are ranks, in which
//! every byte crosses every link about once.
//!
//! Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
//! workstations" (JPDC 2009).

use super::Request;
use super::slots::parts;
use super::stage::{Group, Part, Vector, begin, contributions, double_buffer, part_in};
use crate::pattern::ring::{after, before};
use crate::schedule::{BufferId, Builder, Extent, Range, Schedule};

/// Allreduce: reduce-scatter, then all-gather.
pub(super) fn all_reduce(request: &Request) -> Schedule {
    let mut b = begin(request, "ring");
    let vector = Vector::new(&mut b, request);
    let group = Group::all(request);
    reduce_scatter_part(&mut b, &group, vector, Part::WHOLE, true);
    all_gather_part(&mut b, &group, vector.to, Part::WHOLE);
    b.build()
}

/// Leaves the reduction of piece i of `part` on position i of the group. The sum of piece i begins
/// at position i + 1 and goes once around.
pub(super) fn reduce_scatter_part(
    b: &mut Builder,
    group: &Group,
    vector: Vector,
    part: Part,
    finish: bool,
) {
    let n = group.len();
    if n == 1 {
        return vector.pass(b, part, finish);
    }
    let (next, previous) = neighbours(group);
    let scratch = double_buffer(b, part.piece(0, n).extent());
    for round in 0..n - 1 {
        let sent = part.piece(before(group.me, round + 1, n), n);
        let received = part.piece(before(group.me, round + 2, n), n);
        let from = if round == 0 { vector.from } else { vector.to };
        let arrived = received.alone_in(scratch[round as usize % 2]);
        b.send(next, sent.of(from));
        b.recv(previous, arrived);
        b.reduce(
            vec![arrived, received.of(vector.from)],
            received.of(vector.to),
            finish && round == n - 2,
        );
    }
}

/// Spreads the pieces of `part`, of which position i of the group has piece i.
pub(super) fn all_gather_part(b: &mut Builder, group: &Group, buffer: BufferId, part: Part) {
    let n = group.len();
    let (next, previous) = neighbours(group);
    for round in 0..n - 1 {
        let sent = part.piece(before(group.me, round, n), n);
        let received = part.piece(before(group.me, round + 1, n), n);
        b.send(next, sent.of(buffer));
        b.recv(previous, received.of(buffer));
    }
}

/// Reduce-scatter: partial sums go around, each to the rank that owns it.
pub(super) fn reduce_scatter(request: &Request) -> Schedule {
    let mut b = begin(request, "ring");
    let own = contributions(&mut b, request);
    let (rank, n) = (request.rank, request.ranks);
    let output = request.output(0, 0, 1, 1);
    if n == 1 {
        b.reduce(vec![part_in(request, 0, own)], output, true);
        return b.build();
    }
    let (next, previous) = neighbours(&Group::all(request));
    let scratch = double_buffer(&mut b, Extent::all(1));
    let mut sent = part_in(request, before(rank, 1, n), own);
    for round in 0..n - 1 {
        let is_last = round == n - 2;
        let arrived = Range::new(scratch[round as usize % 2], Extent::all(1));
        let mine = part_in(request, before(rank, round + 2, n), own);
        b.send(next, sent);
        b.recv(previous, arrived);
        let sum = if is_last { output } else { arrived };
        b.reduce(vec![arrived, mine], sum, is_last);
        sent = arrived;
    }
    b.build()
}

/// All-gather.
pub(super) fn all_gather(request: &Request) -> Schedule {
    let mut b = begin(request, "ring");
    b.copy(
        request.input(0, 0, 1, 1),
        request.output(request.rank, 0, 1, 1),
    );
    circulate(&mut b, request, |part| request.output(part, 0, 1, 1));
    b.build()
}

/// All-gather with a length per rank (see [`super::part_slots`]).
pub(super) fn all_gather_v(request: &Request) -> Schedule {
    let mut b = begin(request, "ring");
    let parts = parts(&mut b, request);
    b.copy(parts.own, parts.among(request.rank));
    circulate(&mut b, request, |part| parts.among(part));
    b.build()
}

fn circulate(b: &mut Builder, request: &Request, part: impl Fn(u32) -> Range) {
    let n = request.ranks;
    for round in 0..n - 1 {
        let (next, previous) = neighbours(&Group::all(request));
        b.send(next, part(before(request.rank, round, n)));
        b.recv(previous, part(before(request.rank, round + 1, n)));
    }
}

fn neighbours(group: &Group) -> (u32, u32) {
    let n = group.len();
    (
        group.rank(after(group.me, 1, n)),
        group.rank(before(group.me, 1, n)),
    )
}
