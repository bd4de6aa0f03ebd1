//! Binomial trees: a logarithmic number of rounds to or from one rank. For small vectors.

use super::Request;
use super::stage::{Group, Part, Vector, begin, double_buffer};
use crate::pattern::bruck::runs;
use crate::pattern::tree::Tree;
use crate::schedule::{BufferId, Builder, Extent, Range, Schedule};

/// Allreduce: reduce to rank 0, then broadcast.
pub(super) fn all_reduce(request: &Request) -> Schedule {
    let mut b = begin(request, "tree");
    let vector = Vector::new(&mut b, request);
    let group = Group::all(request);
    reduce_to(&mut b, &group, 0, vector, true);
    broadcast_from(&mut b, &group, 0, vector.to);
    b.build()
}

/// Reduce.
pub(super) fn reduce(request: &Request) -> Schedule {
    let mut b = begin(request, "tree");
    let vector = Vector::new(&mut b, request);
    reduce_to(&mut b, &Group::all(request), request.root, vector, true);
    b.build()
}

/// Broadcast.
pub(super) fn broadcast(request: &Request) -> Schedule {
    let mut b = begin(request, "tree");
    if request.rank == request.root {
        b.copy(request.input(0, 0, 1, 1), request.output(0, 0, 1, 1));
    }
    broadcast_from(&mut b, &Group::all(request), request.root, BufferId::OUTPUT);
    b.build()
}

/// Leaves the reduction of the group's vectors where the results of position `root` go. Children
/// are added nearest first.
pub(super) fn reduce_to(
    b: &mut Builder,
    group: &Group,
    root: u32,
    mut vector: Vector,
    finish: bool,
) {
    let tree = Tree::binomial(group.len(), root);
    let children = tree.children(group.me);
    if group.len() == 1 {
        return vector.pass(b, Part::WHOLE, finish);
    }
    if !children.is_empty() {
        let scratch = double_buffer(b, Extent::all(1));
        for (index, &child) in children.iter().enumerate() {
            let arrived = Part::WHOLE.of(scratch[index % 2]);
            b.recv(group.rank(child), arrived);
            let is_last = group.me == root && index + 1 == children.len();
            b.reduce(
                vec![Part::WHOLE.of(vector.from), arrived],
                Part::WHOLE.of(vector.to),
                finish && is_last,
            );
            vector = vector.continued();
        }
    }
    if let Some(parent) = tree.parent(group.me) {
        b.send(group.rank(parent), Part::WHOLE.of(vector.from));
    }
}

/// Spreads the vector of position `root`, farthest child first, because it has most to do.
pub(super) fn broadcast_from(b: &mut Builder, group: &Group, root: u32, buffer: BufferId) {
    let tree = Tree::binomial(group.len(), root);
    let vector = Part::WHOLE.of(buffer);
    if let Some(parent) = tree.parent(group.me) {
        b.recv(group.rank(parent), vector);
    }
    for &child in tree.children(group.me).iter().rev() {
        b.send(group.rank(child), vector);
    }
}

/// Gather: every rank collects the parts of its subtree and passes them on.
pub(super) fn gather(request: &Request) -> Schedule {
    let mut b = begin(request, "tree");
    let tree = Tree::binomial(request.ranks, request.root);
    let children = tree.children(request.rank);
    let own = request.input(0, 0, 1, 1);
    let parts = Parts::new(&mut b, request, &tree, children.is_empty(), own);
    b.copy(own, parts.own());
    for &child in &children {
        for range in parts.subtree(child) {
            b.recv(child, range);
        }
    }
    if let Some(parent) = tree.parent(request.rank) {
        for range in parts.subtree(request.rank) {
            b.send(parent, range);
        }
    }
    b.build()
}

/// Scatter: every rank gets the parts of its subtree and hands them down.
pub(super) fn scatter(request: &Request) -> Schedule {
    let mut b = begin(request, "tree");
    let tree = Tree::binomial(request.ranks, request.root);
    let children = tree.children(request.rank);
    let own = request.output(0, 0, 1, 1);
    let parts = Parts::new(&mut b, request, &tree, children.is_empty(), own);
    if let Some(parent) = tree.parent(request.rank) {
        for range in parts.subtree(request.rank) {
            b.recv(parent, range);
        }
    }
    for &child in children.iter().rev() {
        for range in parts.subtree(child) {
            b.send(child, range);
        }
    }
    b.copy(parts.own(), own);
    b.build()
}

/// Where the parts of all ranks lie on one rank: in the root's large buffer, in scratch on the way,
/// and in the caller's own buffer on a leaf.
struct Parts<'a> {
    request: &'a Request,
    tree: &'a Tree,
    /// A buffer with a part per rank, by rank at the root and by position elsewhere.
    buffer: BufferId,
    leaf: Option<Range>,
}

impl<'a> Parts<'a> {
    fn new(
        b: &mut Builder,
        request: &'a Request,
        tree: &'a Tree,
        is_leaf: bool,
        own: Range,
    ) -> Parts<'a> {
        let is_root = request.rank == request.root;
        let subtree = Extent::Blocks {
            first: 0,
            len: tree.subtree(request.rank),
            of: request.ranks,
            times: request.ranks,
        };
        let buffer = match request.collective {
            _ if is_leaf && !is_root => own.buffer,
            crate::types::Collective::Gather if is_root => BufferId::OUTPUT,
            _ if is_root => BufferId::INPUT,
            _ => b.scratch(subtree),
        };
        Parts {
            request,
            tree,
            buffer,
            leaf: (is_leaf && !is_root).then_some(own),
        }
    }

    fn own(&self) -> Range {
        if let Some(own) = self.leaf {
            return own;
        }
        let ranks = self.request.ranks;
        if self.request.rank == self.request.root {
            return Range::new(self.buffer, Extent::part(self.request.rank, ranks));
        }
        self.scratch_run(self.tree.position(self.request.rank), 1)
    }

    /// The parts of a rank's subtree: one range, or two where the ranks wrap at the end. Both ends
    /// of a message divide it the same way.
    fn subtree(&self, of: u32) -> Vec<Range> {
        let ranks = self.request.ranks;
        let is_root = self.request.rank == self.request.root;
        let mut position = self.tree.position(of);
        let mut ranges = Vec::new();
        for (first, len) in runs(of, self.tree.subtree(of), ranks) {
            ranges.push(match self.leaf {
                Some(own) => own,
                None if is_root => Range::new(
                    self.buffer,
                    Extent::Blocks {
                        first,
                        len,
                        of: ranks,
                        times: ranks,
                    },
                ),
                None => self.scratch_run(position, len),
            });
            position += len;
        }
        ranges
    }

    /// A run of parts in scratch, which has them by position and begins with this rank's.
    fn scratch_run(&self, position: u32, len: u32) -> Range {
        let ranks = self.request.ranks;
        let extent = |first, len| Extent::Blocks {
            first,
            len,
            of: ranks,
            times: ranks,
        };
        let begin = self.tree.position(self.request.rank);
        Range {
            origin: Range::at_start(self.buffer, extent(begin, 1)).origin,
            ..Range::new(self.buffer, extent(position, len))
        }
    }
}
