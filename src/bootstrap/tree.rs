//! The tree over which the contacts of all ranks reach all ranks. Each rank sends its own and those
//! from below it up, until rank 0 has all, and then all of them go down. With four children a rank,
//! a thousand ranks are five levels deep, and no rank sends all contacts more than four times.
//!
//! Pure: who is above and below whom, and the tables as bytes.

use super::contact::CONTACT_BYTES_MAX;
use crate::error::{Error, Result};
use crate::types::Rank;
use std::collections::BTreeMap;

/// Children of a rank.
const FANOUT: u32 = 4;

/// The rank above.
pub(super) fn parent(rank: Rank) -> Option<Rank> {
    (rank > 0).then(|| (rank - 1) / FANOUT)
}

/// The ranks directly below.
pub(super) fn children(rank: Rank, ranks: u32) -> std::ops::Range<Rank> {
    let first = u64::from(rank) * u64::from(FANOUT) + 1;
    let end = (first + u64::from(FANOUT)).min(ranks.into());
    first.min(end) as Rank..end as Rank
}

/// Contacts by rank.
pub(super) type Table = BTreeMap<Rank, Vec<u8>>;

/// The longest table that a rank of this many sends.
pub(super) fn table_bytes_max(ranks: u32) -> usize {
    ranks as usize * (8 + CONTACT_BYTES_MAX)
}

/// Rank, length, contact; one after another.
pub(super) fn emit_table(table: &Table) -> Vec<u8> {
    let bytes = table.values().map(|blob| 8 + blob.len()).sum();
    let mut out = Vec::with_capacity(bytes);
    for (rank, blob) in table {
        out.extend(rank.to_le_bytes());
        out.extend((blob.len() as u32).to_le_bytes());
        out.extend(blob);
    }
    out
}

/// Checks, and adds what is there; no rank comes twice.
pub(super) fn parse_table(mut rest: &[u8], ranks: u32, into: &mut Table) -> Result<()> {
    let bad = |what: &str| Error::Malformed(format!("a table of contacts: {what}"));
    while !rest.is_empty() {
        let (head, behind) = rest.split_at_checked(8).ok_or_else(|| bad("half a head"))?;
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| head[at + i]));
        let (rank, length) = (word(0), word(4) as usize);
        if rank >= ranks || length > CONTACT_BYTES_MAX {
            return Err(bad(&format!("rank {rank} of {ranks} with {length} bytes")));
        }
        let (blob, behind) = behind
            .split_at_checked(length)
            .ok_or_else(|| bad("half a contact"))?;
        if into.insert(rank, blob.to_vec()).is_some() {
            return Err(bad(&format!("rank {rank} twice")));
        }
        rest = behind;
    }
    Ok(())
}

/// The contacts of all, in the order of the ranks.
pub(super) fn all_of_table(table: Table, ranks: u32) -> Result<Vec<Vec<u8>>> {
    let missing: Vec<Rank> = (0..ranks).filter(|r| !table.contains_key(r)).collect();
    match missing.is_empty() {
        true => Ok(table.into_values().collect()),
        false => Err(Error::Malformed(format!(
            "a table of contacts without ranks {missing:?}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::RANKS_MAX;

    #[test]
    fn everyone_is_below_rank_0_once_and_not_deep() {
        for ranks in [1, 2, 4, 5, 6, 21, 64, 1023, 1024, RANKS_MAX] {
            let mut above = 0;
            for rank in 0..ranks {
                for child in children(rank, ranks) {
                    assert_eq!(parent(child), Some(rank));
                    above += 1;
                }
                let mut depth = 0;
                let mut at = rank;
                while let Some(next) = parent(at) {
                    (at, depth) = (next, depth + 1);
                }
                assert!(depth <= 7, "rank {rank} of {ranks} is {depth} levels deep");
            }
            assert_eq!(above, ranks - 1);
        }
    }

    #[test]
    fn a_table_survives_and_anything_else_is_refused() {
        let table: Table = [(0, vec![1; CONTACT_BYTES_MAX]), (3, vec![]), (7, vec![9])].into();
        let bytes = emit_table(&table);
        let mut got = Table::new();
        parse_table(&bytes, 8, &mut got).unwrap();
        assert_eq!(got, table);
        assert!(bytes.len() <= table_bytes_max(8));
        assert!(
            parse_table(&bytes, 8, &mut got)
                .unwrap_err()
                .to_string()
                .contains("twice")
        );
        assert!(parse_table(&bytes, 7, &mut Table::new()).is_err());
        for cut in [1, 7, 9, bytes.len() - 1] {
            assert!(
                parse_table(&bytes[..cut], 8, &mut Table::new()).is_err(),
                "{cut}"
            );
        }
        let long = [1, 0, 0, 0, 255, 255, 255, 255];
        assert!(parse_table(&long, 8, &mut Table::new()).is_err());
    }
}
