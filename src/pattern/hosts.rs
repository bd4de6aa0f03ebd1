//! Ranks grouped by host.

use crate::types::Rank;
use std::collections::HashMap;

/// The ranks of every host, in order of their first rank; ranks of a host ascend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts(Vec<Vec<Rank>>);

impl Hosts {
    /// Groups ranks by the host index of each.
    pub fn new(host_of_rank: &[u32]) -> Hosts {
        let mut known: HashMap<u32, usize> = HashMap::new();
        let mut groups: Vec<Vec<Rank>> = Vec::new();
        for (rank, &host) in host_of_rank.iter().enumerate() {
            let index = *known.entry(host).or_insert(groups.len());
            if index == groups.len() {
                groups.push(Vec::new());
            }
            groups[index].push(rank as Rank);
        }
        Hosts(groups)
    }

    /// Number of hosts.
    pub fn hosts(&self) -> usize {
        self.0.len()
    }

    /// Ranks of one host if all hosts have equally many.
    pub fn ranks_per_host(&self) -> Option<usize> {
        let ranks = self.0[0].len();
        self.0.iter().all(|g| g.len() == ranks).then_some(ranks)
    }

    /// All ranks on the host of `rank`, itself included.
    pub fn neighbours(&self, rank: Rank) -> &[Rank] {
        self.0
            .iter()
            .find(|g| g.contains(&rank))
            .expect("every rank has a host")
    }

    /// The n-th rank of every host; hosts with fewer ranks are left out.
    pub fn column(&self, n: usize) -> Vec<Rank> {
        self.0.iter().filter_map(|g| g.get(n).copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_grouped_in_order_even_when_hosts_interleave() {
        let hosts = Hosts::new(&[7, 3, 7, 3, 7]);
        assert_eq!(hosts.hosts(), 2);
        assert_eq!(hosts.neighbours(3), [1, 3]);
        assert_eq!(hosts.column(0), [0, 1]);
        assert_eq!(hosts.column(2), [4]);
        assert_eq!(hosts.ranks_per_host(), None);
        assert_eq!(Hosts::new(&[0, 0, 1, 1]).ranks_per_host(), Some(2));
    }
}
