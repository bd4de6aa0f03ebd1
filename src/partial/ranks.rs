//! [`RankSet`]: who took part.

use crate::types::Rank;

/// A set of ranks, as words with the lowest rank in the lowest bit of the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankSet {
    words: Vec<u64>,
}

impl RankSet {
    /// An empty set of ranks below `ranks`.
    pub fn new(ranks: u32) -> RankSet {
        RankSet {
            words: vec![0; (ranks as usize).div_ceil(64)],
        }
    }

    /// The ranks below `ranks` that are not among these.
    pub fn all_but(ranks: u32, others: &[Rank]) -> RankSet {
        let mut set = RankSet::new(ranks);
        for rank in (0..ranks).filter(|rank| !others.contains(rank)) {
            set.insert(rank);
        }
        set
    }

    /// Adds a rank; whether it is new.
    pub fn insert(&mut self, rank: Rank) -> bool {
        let (word, bit) = (&mut self.words[rank as usize / 64], 1 << (rank % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// Whether a rank is in it.
    pub fn contains(&self, rank: Rank) -> bool {
        self.words
            .get(rank as usize / 64)
            .is_some_and(|word| word >> (rank % 64) & 1 == 1)
    }

    /// How many ranks are in it.
    pub fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// The ranks, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Rank> + '_ {
        (0..self.words.len() as Rank * 64).filter(|&rank| self.contains(rank))
    }

    /// The words.
    pub fn words(&self) -> &[u64] {
        &self.words
    }
}
