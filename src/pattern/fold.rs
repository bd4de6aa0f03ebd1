//! The largest power of two inside any number of ranks.
//!
//! With `extra = ranks - power`, each of the first `extra` even ranks below `2 * extra` hands its
//! data to the odd rank after it and gets the result back from it; the other ranks are *active* and
//! numbered `0..power` in the order of their ranks.

use crate::types::Rank;

/// What a rank does in a folded algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Hands its data to this rank and waits for the result.
    Passive(Rank),
    /// Takes part.
    Active {
        /// Number among the active ranks.
        number: u32,
        /// The passive rank that it stands for.
        passive: Option<Rank>,
    },
}

/// A number of ranks folded to a power of two.
#[derive(Clone, Copy, Debug)]
pub struct Fold {
    ranks: u32,
    power: u32,
}

impl Fold {
    /// Folds `ranks`, at least 1.
    pub fn new(ranks: u32) -> Fold {
        Fold {
            ranks,
            power: 1 << ranks.ilog2(),
        }
    }

    /// Number of active ranks.
    pub fn power(&self) -> u32 {
        self.power
    }

    /// Number of rounds of doubling among the active ranks.
    pub fn rounds(&self) -> u32 {
        self.power.ilog2()
    }

    /// What a rank does.
    pub fn role(&self, rank: Rank) -> Role {
        let extra = self.ranks - self.power;
        if rank >= 2 * extra {
            Role::Active {
                number: rank - extra,
                passive: None,
            }
        } else if rank.is_multiple_of(2) {
            Role::Passive(rank + 1)
        } else {
            Role::Active {
                number: rank / 2,
                passive: Some(rank - 1),
            }
        }
    }

    /// The rank with this number among the active ones.
    pub fn active(&self, number: u32) -> Rank {
        let extra = self.ranks - self.power;
        if number < extra {
            2 * number + 1
        } else {
            number + extra
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_and_numbers_agree() {
        for ranks in 1..70 {
            let fold = Fold::new(ranks);
            let mut actives = 0;
            for rank in 0..ranks {
                match fold.role(rank) {
                    Role::Passive(with) => assert_eq!(
                        fold.role(with),
                        Role::Active {
                            number: with / 2,
                            passive: Some(rank)
                        }
                    ),
                    Role::Active { number, .. } => {
                        assert_eq!(number, actives, "in the order of ranks");
                        assert_eq!(fold.active(number), rank);
                        actives += 1;
                    }
                }
            }
            assert_eq!(actives, fold.power());
        }
    }
}
