//! Which rank owns which coordinates.

use super::counters::Phase;
use super::entries::Entries;
use super::faults;
use super::io::Io;
use super::options::Regions;
use crate::error::Result;

/// Boundaries of equal shares of the coordinates: region r is `bounds[r]..bounds[r + 1]`.
pub(super) fn equal(count: u64, ranks: u32) -> Vec<u64> {
    let p = u128::from(ranks);
    let bound = |r: u128| (r * u128::from(count)).div_ceil(p) as u64;
    (0..=p).map(bound).collect()
}

/// Boundaries by the picks of all ranks; the same on all.
pub(super) async fn cut<E: Entries>(
    io: &Io,
    picks: &E,
    count: u64,
    by: Regions,
) -> Result<Vec<u64>> {
    if io.ranks == 1 {
        return Ok(vec![0, count]);
    }
    match by {
        Regions::Equal => Ok(equal(count, io.ranks)),
        Regions::Balanced => balanced(io, picks, count).await,
        Regions::Averaged => averaged(io, picks, count).await,
    }
}

/// Boundary i is the least coordinate below which at least i / P of all picks lie. A coordinate has
/// at most P of them, so no region has more than total / P + P. One bisection for all boundaries
/// together: ceil(log2 count) sums.
async fn balanced<E: Entries>(io: &Io, picks: &E, count: u64) -> Result<Vec<u64>> {
    let p = u64::from(io.ranks);
    // The boundary lies in low..=high.
    let (mut low, mut high) = (vec![1; p as usize - 1], vec![count; p as usize - 1]);
    let mut total = None;
    while total.is_none() || low != high {
        let middles: Vec<u64> = (low.iter().zip(&high))
            .map(|(l, h)| l + (h - l) / 2)
            .collect();
        let mut words: Vec<u64> = middles.iter().map(|m| picks.below(*m)).collect();
        if total.is_none() {
            words.push(picks.len());
        }
        let mut sums = io.sum(Phase::Partition, words).await;
        let total = *total.get_or_insert_with(|| sums.pop().expect("the word that was added"));
        if total == 0 {
            return Ok(equal(count, io.ranks));
        }
        for (i, below) in sums.into_iter().enumerate() {
            let wanted = (u128::from(total) * (i as u128 + 1)).div_ceil(u128::from(p)) as u64;
            match (low[i] == high[i], below >= wanted) {
                (true, _) => {}
                (false, true) => high[i] = middles[i],
                (false, false) => low[i] = middles[i] + 1,
            }
        }
    }
    bounds_of(low, count)
}

/// Every rank's own equal shares, averaged: one sum. A rank with fewer picks than there are ranks
/// gives equal shares of the coordinates.
async fn averaged<E: Entries>(io: &Io, picks: &E, count: u64) -> Result<Vec<u64>> {
    let p = u64::from(io.ranks);
    let own = match picks.len() >= p {
        true => (1..p)
            .map(|i| picks.index_at(i * (picks.len() / p)))
            .collect(),
        false => equal(count, io.ranks)[1..p as usize].to_vec(),
    };
    let sums = io.sum(Phase::Partition, own).await;
    let averages = sums.into_iter().map(|sum| sum / p).collect();
    bounds_of(averages, count)
}

fn bounds_of(inner: Vec<u64>, count: u64) -> Result<Vec<u64>> {
    let bounds = [vec![0], inner, vec![count]].concat();
    match bounds.is_sorted() {
        true => Ok(bounds),
        false => Err(faults::of_all(
            "the counts that ranks summed up give regions that do not lie one after another",
        )),
    }
}
