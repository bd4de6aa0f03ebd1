//! Binomial trees with any root and any number of ranks.
//!
//! Positions count from the root. The parent of a position is the position with its lowest bit
//! cleared, so a subtree is a run of consecutive positions.

use super::bruck::distances;
use crate::types::Rank;

/// A binomial tree.
#[derive(Clone, Copy, Debug)]
pub struct Tree {
    ranks: u32,
    root: Rank,
}

impl Tree {
    /// The tree of `ranks` ranks with this one at position 0.
    pub fn binomial(ranks: u32, root: Rank) -> Tree {
        Tree { ranks, root }
    }

    /// Position of a rank: its distance after the root.
    pub fn position(&self, rank: Rank) -> u32 {
        (rank + self.ranks - self.root) % self.ranks
    }

    /// The rank at a position.
    pub fn rank(&self, position: u32) -> Rank {
        (position + self.root) % self.ranks
    }

    /// The parent; `None` for the root.
    pub fn parent(&self, rank: Rank) -> Option<Rank> {
        let position = self.position(rank);
        (position != 0).then(|| self.rank(position - lowest_bit(position)))
    }

    /// The children, nearest position first (so the smallest subtree first).
    pub fn children(&self, rank: Rank) -> Vec<Rank> {
        let position = self.position(rank);
        let end = match position {
            0 => self.ranks,
            _ => lowest_bit(position),
        };
        distances(end)
            .map(|distance| position + distance)
            .take_while(|&child| child < self.ranks)
            .map(|child| self.rank(child))
            .collect()
    }

    /// Number of ranks in the subtree below and including a rank; they follow it in position.
    pub fn subtree(&self, rank: Rank) -> u32 {
        match self.position(rank) {
            0 => self.ranks,
            position => lowest_bit(position).min(self.ranks - position),
        }
    }
}

/// The lowest bit of a position that is not 0: how many positions its subtree spans.
fn lowest_bit(position: u32) -> u32 {
    1 << position.trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_is_the_child_of_its_parent_and_of_nobody_else() {
        for ranks in 1..40 {
            for root in [0, ranks / 2, ranks - 1] {
                let tree = Tree::binomial(ranks, root);
                let mut seen = vec![0; ranks as usize];
                for rank in 0..ranks {
                    let children = tree.children(rank);
                    for &child in &children {
                        seen[child as usize] += 1;
                        assert_eq!(tree.parent(child), Some(rank));
                    }
                    let below: u32 = children.iter().map(|&c| tree.subtree(c)).sum();
                    assert_eq!(tree.subtree(rank), below + 1);
                }
                assert_eq!(tree.parent(root), None);
                seen[root as usize] += 1;
                assert!(seen.iter().all(|&n| n == 1), "{tree:?}: {seen:?}");
            }
        }
    }

    #[test]
    fn a_binomial_tree_of_eight_has_three_levels() {
        let tree = Tree::binomial(8, 0);
        assert_eq!(tree.children(0), [1, 2, 4]);
        assert_eq!(tree.children(4), [5, 6]);
        assert_eq!(tree.parent(7), Some(6));
    }
}
