//! [`RankSet`]: who took part.

use crate::types::Rank;
use std::fmt;

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

    /// Adds a rank. Returns whether it is new.
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

/// Ranks and ranges of them, `0-3,5` for example; `none` for an empty set.
impl fmt::Display for RankSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        let mut ranks = self.iter().peekable();
        while let Some(first) = ranks.next() {
            let mut last = first;
            while let Some(next) = ranks.next_if(|&next| next == last + 1) {
                last = next;
            }
            write!(f, "{comma}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            comma = ",";
        }
        match comma {
            "" => f.write_str("none"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_reads_as_ranks_and_ranges() {
        let text = |ranks: &[Rank]| {
            let mut set = RankSet::new(130);
            ranks.iter().for_each(|rank| assert!(set.insert(*rank)));
            set.to_string()
        };
        assert_eq!(text(&[]), "none");
        assert_eq!(text(&[0]), "0");
        assert_eq!(text(&[5, 3, 1, 2]), "1-3,5");
        assert_eq!(text(&[62, 63, 64, 65, 129]), "62-65,129");
        assert_eq!(RankSet::all_but(3, &[]).to_string(), "0-2");
    }
}
