//! Spreading the selected entries evenly: who sends how many to whom.

use super::choose::{Prices, is_spreading_cheaper};
use super::counters::Phase;
use super::entries::{Arrival, Entries, Pack};
use super::faults;
use super::io::Io;
use super::options::Balance;
use crate::error::Result;
use crate::types::Rank;

/// Whether these sizes are spread before they are gathered; `prices` are those of the links.
pub fn is_to_spread(sizes: &[u64], rule: Balance, prices: Prices) -> bool {
    let p = sizes.len() as u128;
    let most = u128::from(sizes.iter().copied().max().unwrap_or(0));
    let total: u128 = sizes.iter().map(|s| u128::from(*s)).sum();
    // most > t * total / p, in whole numbers.
    match rule {
        Balance::Never => false,
        Balance::Cost => is_spreading_cheaper(sizes, prices),
        Balance::Always => p > 1 && total > 0,
        Balance::Paper => most * p > 4 * total,
        Balance::Auto if p <= 2 => false,
        // t = 3p/4 where that is below 4, that is for p <= 5.
        Balance::Auto if 3 * p < 16 => 4 * most > 3 * total,
        Balance::Auto => most * p > 4 * total,
    }
}

/// Sizes after spreading `total` entries: equal, but the first ones are one more if the total does
/// not divide.
pub(super) fn blocks(total: u64, ranks: u32) -> Vec<u64> {
    let p = u64::from(ranks);
    (0..p)
        .map(|r| total / p + u64::from(r < total % p))
        .collect()
}

/// The moves as (from, to, entries), by sender and receiver; entries that stay are a move of a rank
/// to itself. Each rank's interval of positions is cut where the equal blocks begin.
pub fn build_plan(sizes: &[u64]) -> Vec<(Rank, Rank, u64)> {
    let wanted = blocks(sizes.iter().sum(), sizes.len() as u32);
    let mut moves = Vec::new();
    let (mut to, mut room) = (0, wanted.first().copied().unwrap_or(0));
    for (from, size) in sizes.iter().enumerate() {
        let mut left = *size;
        while left > 0 {
            while room == 0 {
                to += 1;
                room = wanted[to];
            }
            let moved = left.min(room);
            moves.push((from as Rank, to as Rank, moved));
            left -= moved;
            room -= moved;
        }
    }
    moves
}

/// Moves this rank's entries, and returns those of its block. Values are exact here; the rank that
/// has a block rounds it later.
pub(super) async fn spread<E: Entries>(
    io: &Io,
    own: E,
    sizes: &[u64],
    pack: Pack,
    count: u64,
) -> Result<E> {
    let exact = Pack {
        values: super::format::ValueFormat::F32,
        ..pack
    };
    let plan = build_plan(sizes);
    let (mut sends, mut at, mut kept) = (Vec::new(), 0, None);
    for (_, to, entries) in plan.iter().filter(|m| m.0 == io.rank) {
        let part = own.slice(at, at + entries);
        at += entries;
        match *to == io.rank {
            true => kept = Some(part),
            false => sends.push((*to, part.encode(exact))),
        }
    }
    let incoming: Vec<_> = plan.iter().filter(|m| m.1 == io.rank).collect();
    let receives = incoming.iter().filter(|m| m.0 != io.rank);
    let receives = receives.map(|(from, _, entries)| (*from, exact.bytes(*entries)));
    let mut messages = (io
        .exchange(Phase::Balance, sends, receives.collect(), 0)
        .await)
        .into_iter();
    let parts = incoming
        .iter()
        .map(|(from, _, entries)| match *from == io.rank {
            true => Ok(kept.take().expect("one move of a rank to itself")),
            false => {
                let message = messages.next().expect("a message for each move");
                let arrival = Arrival {
                    message: &message,
                    count: *entries,
                    pack: exact,
                    range: (0, count),
                };
                E::decode(arrival, &io.spare()).map_err(|cause| faults::of_rank(*from, cause))
            }
        });
    let parts = parts.collect::<Result<Vec<E>>>()?;
    E::concat(parts).map_err(|number| {
        faults::of_rank(
            incoming[number].0,
            "its entries do not lie behind those of the rank before",
        )
    })
}
