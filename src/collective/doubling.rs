//! Recursive doubling and halving: a logarithmic number of rounds.
//!
//! Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in
//! MPICH" (IJHPCA 2005). Ranks beyond a power of two fold into their neighbours (see
//! [`crate::pattern::fold`]).

use super::Request;
use super::stage::{Part, Vector};
use crate::pattern::fold::{Fold, Role};
use crate::schedule::{Builder, Extent, Schedule};
use crate::types::Rank;

/// Allreduce: in every round all active ranks exchange whole vectors. For small vectors.
pub(super) fn all_reduce_doubling(request: &Request) -> Schedule {
    let mut b = Builder::new(
        "recursive-doubling",
        request.rank,
        request.ranks,
        request.in_place,
    );
    folded(&mut b, request, |b, mut vector, fold, number| {
        let scratch = b.scratch(Extent::all(1));
        for round in 0..fold.rounds() {
            let other = number ^ (1 << round);
            let arrived = Part::WHOLE.of(scratch);
            let mine = Part::WHOLE.of(vector.from);
            b.send(fold.active(other), mine);
            b.recv(fold.active(other), arrived);
            // The lower number first: the same expression on both sides.
            let sources = if number < other {
                vec![mine, arrived]
            } else {
                vec![arrived, mine]
            };
            b.reduce(
                sources,
                Part::WHOLE.of(vector.to),
                round + 1 == fold.rounds(),
            );
            vector = vector.continued();
        }
    });
    b.build()
}

/// Allreduce: reduce-scatter by recursive halving, then all-gather by recursive doubling. For large
/// vectors.
pub(super) fn all_reduce_rabenseifner(request: &Request) -> Schedule {
    let mut b = Builder::new(
        "rabenseifner",
        request.rank,
        request.ranks,
        request.in_place,
    );
    folded(&mut b, request, |b, vector, fold, number| {
        let to = vector.to;
        halve(b, vector, fold, number);
        let power = fold.power();
        for round in 0..fold.rounds() {
            let distance = 1 << round;
            let other = number ^ distance;
            let run = |number: u32| {
                let first = number & !(distance - 1);
                Part::WHOLE.pieces(first, distance, power).of(to)
            };
            b.send(fold.active(other), run(number));
            b.recv(fold.active(other), run(other));
        }
    });
    b.build()
}

/// Leaves the reduction of block i of `power` on the active rank with number i.
fn halve(b: &mut Builder, mut vector: Vector, fold: &Fold, number: u32) {
    let power = fold.power();
    for round in (0..fold.rounds()).rev() {
        let distance = 1 << round;
        let other = number ^ distance;
        let scratch = b.scratch(Extent::blocks(0, distance, power));
        let half = |number: u32| {
            let first = number & !(distance - 1);
            Part::WHOLE.pieces(first, distance, power)
        };
        let arrived = half(number).alone_in(scratch);
        let mine = half(number).of(vector.from);
        b.send(fold.active(other), half(other).of(vector.from));
        b.recv(fold.active(other), arrived);
        let sources = if number < other {
            vec![mine, arrived]
        } else {
            vec![arrived, mine]
        };
        b.reduce(sources, half(number).of(vector.to), round == 0);
        vector = vector.continued();
    }
}

/// Folds the vectors of passive ranks into active ones, runs `active` there, and sends the results
/// back.
fn folded(
    b: &mut Builder,
    request: &Request,
    active: impl FnOnce(&mut Builder, Vector, &Fold, Rank),
) {
    let fold = Fold::new(request.ranks);
    let mut vector = Vector::new(b, request);
    if request.ranks == 1 {
        return vector.pass(b, Part::WHOLE, true);
    }
    match fold.role(request.rank) {
        Role::Passive(with) => {
            b.send(with, Part::WHOLE.of(vector.from));
            b.recv(with, Part::WHOLE.of(vector.to));
        }
        Role::Active { number, passive } => {
            if let Some(peer) = passive {
                let scratch = b.scratch(Extent::all(1));
                let arrived = Part::WHOLE.of(scratch);
                b.recv(peer, arrived);
                b.reduce(
                    vec![arrived, Part::WHOLE.of(vector.from)],
                    Part::WHOLE.of(vector.to),
                    false,
                );
                vector = vector.continued();
            }
            active(b, vector, &fold, number);
            if let Some(peer) = passive {
                b.send(peer, Part::WHOLE.of(vector.to));
            }
        }
    }
}
