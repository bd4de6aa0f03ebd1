//! Recursive doubling and halving: a logarithmic number of rounds.
//!
//! Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in
//! MPICH" (IJHPCA 2005). Ranks beyond a power of two are represented by their neighbours (see
//! [`crate::pattern::power_of_two`]).

use super::Request;
use super::stage::{Part, Vector, begin};
use crate::pattern::power_of_two::{PowerOfTwo, Role};
use crate::schedule::{Builder, Extent, Schedule};
use crate::types::Rank;

/// Allreduce: in every round all active ranks exchange whole vectors. For small vectors.
pub(super) fn all_reduce_doubling(request: &Request) -> Schedule {
    let mut b = begin(request, "recursive-doubling");
    among_power_of_two(&mut b, request, |b, vector, power, number| {
        let arrived = Part::WHOLE.of(b.scratch(Extent::all(1)));
        let spare = match power.rounds() {
            1 => vector.to,
            _ => b.scratch(Extent::all(1)),
        };
        let mut from = vector.from;
        for round in 0..power.rounds() {
            let other = number ^ (1 << round);
            let mine = Part::WHOLE.of(from);
            // A sum is not stored over what is being sent, or it would wait for the peer's word
            // that it has come. The last sum goes to the output.
            let to = match (power.rounds() - 1 - round).is_multiple_of(2) {
                true => vector.to,
                false => spare,
            };
            b.send(power.active(other), mine);
            b.recv(power.active(other), arrived);
            // The lower number first, so that both sides compute one expression.
            let sources = if number < other {
                vec![mine, arrived]
            } else {
                vec![arrived, mine]
            };
            b.reduce(sources, Part::WHOLE.of(to), round + 1 == power.rounds());
            from = to;
        }
    });
    b.build()
}

/// Allreduce: reduce-scatter by recursive halving, then all-gather by recursive doubling. For large
/// vectors.
pub(super) fn all_reduce_rabenseifner(request: &Request) -> Schedule {
    let mut b = begin(request, "rabenseifner");
    among_power_of_two(&mut b, request, |b, vector, power, number| {
        let to = vector.to;
        halve(b, vector, power, number);
        for round in 0..power.rounds() {
            let distance = 1 << round;
            let other = number ^ distance;
            let run = |number: u32| {
                let first = number & !(distance - 1);
                Part::WHOLE.pieces(first, distance, power.count()).of(to)
            };
            b.send(power.active(other), run(number));
            b.recv(power.active(other), run(other));
        }
    });
    b.build()
}

/// Leaves the reduction of block i on the active rank with number i. There is one block for each
/// active rank.
fn halve(b: &mut Builder, mut vector: Vector, power: &PowerOfTwo, number: u32) {
    for round in (0..power.rounds()).rev() {
        let distance = 1 << round;
        let other = number ^ distance;
        let scratch = b.scratch(Extent::blocks(0, distance, power.count()));
        let half = |number: u32| {
            let first = number & !(distance - 1);
            Part::WHOLE.pieces(first, distance, power.count())
        };
        let arrived = half(number).alone_in(scratch);
        let mine = half(number).of(vector.from);
        b.send(power.active(other), half(other).of(vector.from));
        b.recv(power.active(other), arrived);
        let sources = if number < other {
            vec![mine, arrived]
        } else {
            vec![arrived, mine]
        };
        b.reduce(sources, half(number).of(vector.to), round == 0);
        vector = vector.continued();
    }
}

/// Adds the vectors of passive ranks to those of active ones, runs `active` there, and sends the
/// results back.
fn among_power_of_two(
    b: &mut Builder,
    request: &Request,
    active: impl FnOnce(&mut Builder, Vector, &PowerOfTwo, Rank),
) {
    let power = PowerOfTwo::of(request.ranks);
    let mut vector = Vector::new(b, request);
    if request.ranks == 1 {
        return vector.pass(b, Part::WHOLE, true);
    }
    match power.role(request.rank) {
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
            active(b, vector, &power, number);
            if let Some(peer) = passive {
                b.send(peer, Part::WHOLE.of(vector.to));
            }
        }
    }
}
