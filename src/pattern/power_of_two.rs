//! The largest power of two inside any number of ranks, for algorithms that need one.
//!
//! With `extra = ranks - count`, where `count` is that power, each of the first `extra` even ranks
//! below `2 * extra` sends its data to the odd rank after it and gets the result from it. The other
//! ranks are *active* and numbered `0..count` in the order of their ranks.

use crate::types::Rank;

/// What a rank does in such an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sends its data to this rank and waits for the result.
    Passive(Rank),
    /// Takes part.
    Active {
        /// Number among the active ranks.
        number: u32,
        /// The passive rank whose data it has too.
        passive: Option<Rank>,
    },
}

/// The active ranks among a number of ranks.
#[derive(Clone, Copy, Debug)]
pub struct PowerOfTwo {
    ranks: u32,
    count: u32,
}

impl PowerOfTwo {
    /// Among `ranks` ranks, at least 1.
    pub fn of(ranks: u32) -> PowerOfTwo {
        PowerOfTwo {
            ranks,
            count: 1 << ranks.ilog2(),
        }
    }

    /// Number of active ranks.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Number of rounds of doubling among the active ranks.
    pub fn rounds(&self) -> u32 {
        self.count.ilog2()
    }

    /// What a rank does.
    pub fn role(&self, rank: Rank) -> Role {
        let extra = self.ranks - self.count;
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
        let extra = self.ranks - self.count;
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
            let power = PowerOfTwo::of(ranks);
            let mut actives = 0;
            for rank in 0..ranks {
                match power.role(rank) {
                    Role::Passive(with) => assert_eq!(
                        power.role(with),
                        Role::Active {
                            number: with / 2,
                            passive: Some(rank)
                        }
                    ),
                    Role::Active { number, .. } => {
                        assert_eq!(number, actives, "in the order of ranks");
                        assert_eq!(power.active(number), rank);
                        actives += 1;
                    }
                }
            }
            assert_eq!(actives, power.count());
        }
    }
}
