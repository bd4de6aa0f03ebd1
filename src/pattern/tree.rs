//! k-nomial trees with any root and any number of ranks.
//!
//! Positions count from the root. The parent of a position is the position with its lowest digit
//! other than zero (in base `radix`) cleared, so a subtree is a run of consecutive positions.

use crate::types::Rank;

/// A k-nomial tree.
#[derive(Clone, Copy, Debug)]
pub struct Tree {
    /// Number of ranks.
    pub ranks: u32,
    /// The rank at position 0.
    pub root: Rank,
    /// Children per level plus one, at least 2; 2 is the binomial tree.
    pub radix: u32,
}

impl Tree {
    /// The binomial tree.
    pub fn binomial(ranks: u32, root: Rank) -> Tree {
        Tree {
            ranks,
            root,
            radix: 2,
        }
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
        (position != 0).then(|| {
            let weight = self.weight(position);
            self.rank(position - position / weight % self.radix * weight)
        })
    }

    /// The children, nearest position first (so the smallest subtree first).
    pub fn children(&self, rank: Rank) -> Vec<Rank> {
        let position = self.position(rank);
        let end = if position == 0 {
            self.ranks
        } else {
            self.weight(position)
        };
        let mut children = Vec::new();
        let mut weight = 1;
        while weight < end {
            for digit in 1..self.radix {
                let child = position + digit * weight;
                if child < self.ranks {
                    children.push(self.rank(child));
                }
            }
            weight *= self.radix;
        }
        children
    }

    /// Number of ranks in the subtree below and including a rank; they follow it in position.
    pub fn subtree(&self, rank: Rank) -> u32 {
        match self.position(rank) {
            0 => self.ranks,
            position => self.weight(position).min(self.ranks - position),
        }
    }

    /// The weight of the lowest digit that is not zero.
    fn weight(&self, position: u32) -> u32 {
        let mut weight = 1;
        while (position / weight).is_multiple_of(self.radix) {
            weight *= self.radix;
        }
        weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_is_the_child_of_its_parent_and_of_nobody_else() {
        for radix in 2..5 {
            for ranks in 1..40 {
                for root in [0, ranks / 2, ranks - 1] {
                    let tree = Tree { ranks, root, radix };
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
    }

    #[test]
    fn a_binomial_tree_of_eight_has_three_levels() {
        let tree = Tree::binomial(8, 0);
        assert_eq!(tree.children(0), [1, 2, 4]);
        assert_eq!(tree.children(4), [5, 6]);
        assert_eq!(tree.parent(7), Some(6));
    }
}
