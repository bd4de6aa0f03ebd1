//! Rounds of disjoint pairs: in round k, ranks whose sum is k modulo the number of ranks meet.

use crate::types::Rank;

/// The partner in a round, `0..ranks`; it may be the rank itself. Partners in a round are mutual,
/// and over all rounds a rank meets every rank, itself included, exactly once.
pub fn partner(rank: Rank, round: u32, ranks: u32) -> Rank {
    (round + ranks - rank) % ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partners_are_mutual_and_everybody_is_met_once() {
        for ranks in 1..20 {
            for rank in 0..ranks {
                let mut met: Vec<_> = (0..ranks).map(|k| partner(rank, k, ranks)).collect();
                for (round, &other) in met.iter().enumerate() {
                    assert_eq!(partner(other, round as u32, ranks), rank);
                }
                met.sort_unstable();
                assert!(met.into_iter().eq(0..ranks));
            }
        }
    }
}
