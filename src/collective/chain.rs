//! Chains: the vector goes from rank to rank; the engine's chunks make it a pipeline, so every byte
//! crosses every link once. For large vectors.

use super::Request;
use super::stage::{Part, Vector, begin};
use crate::pattern::tree::Tree;
use crate::schedule::{Extent, Schedule};

/// Broadcast along the ranks after the root.
pub(super) fn broadcast(request: &Request) -> Schedule {
    let mut b = begin(request, "chain");
    let tree = Tree::binomial(request.ranks, request.root);
    let position = tree.position(request.rank);
    let output = request.output(0, 0, 1, 1);
    if position == 0 {
        b.copy(request.input(0, 0, 1, 1), output);
    } else {
        b.recv(tree.rank(position - 1), output);
    }
    if position + 1 < request.ranks {
        b.send(tree.rank(position + 1), output);
    }
    b.build()
}

/// Reduce: the last rank after the root begins, and each rank adds its own vector.
pub(super) fn reduce(request: &Request) -> Schedule {
    let mut b = begin(request, "chain");
    let tree = Tree::binomial(request.ranks, request.root);
    let position = tree.position(request.rank);
    let mut vector = Vector::new(&mut b, request);
    if request.ranks == 1 {
        vector.pass(&mut b, Part::WHOLE, true);
    } else if position + 1 < request.ranks {
        let scratch = b.scratch(Extent::all(1));
        let arrived = Part::WHOLE.of(scratch);
        b.recv(tree.rank(position + 1), arrived);
        let sources = vec![Part::WHOLE.of(vector.from), arrived];
        b.reduce(sources, Part::WHOLE.of(vector.to), position == 0);
        vector = vector.continued();
    }
    if position > 0 {
        b.send(tree.rank(position - 1), Part::WHOLE.of(vector.from));
    }
    b.build()
}
