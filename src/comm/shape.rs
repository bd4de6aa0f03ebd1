//! The lengths that collectives need, and the [`Call`]s of typed arguments.

use super::call::Call;
use crate::error::{Error, Result};
use crate::memory::Element;
use crate::types::{Collective, Rank, ReduceOp};

/// The call of a collective on elements `T`, without its memory.
pub(super) fn call<T: Element>(collective: Collective, count: usize) -> Call<'static> {
    Call::new(collective, T::DTYPE, count as u64)
}

impl<'a> Call<'a> {
    /// This call with another operator.
    pub(super) fn by(self, op: ReduceOp) -> Call<'a> {
        Call { op, ..self }
    }

    /// This call with another root.
    pub(super) fn at(self, root: Rank) -> Call<'a> {
        Call { root, ..self }
    }
}

/// An error unless `given` elements are `wanted`.
pub(super) fn check(collective: Collective, what: &str, given: usize, wanted: usize) -> Result<()> {
    if given == wanted {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the {what} of {collective} has {given} elements, {wanted} are needed"
    )))
}

/// The elements of one of `ranks` equal blocks.
pub(super) fn block(collective: Collective, elements: usize, ranks: u32) -> Result<usize> {
    let ranks = ranks as usize;
    if elements.is_multiple_of(ranks) {
        return Ok(elements / ranks);
    }
    Err(Error::invalid(format!(
        "{elements} elements of {collective} are not {ranks} equal blocks, one for each rank"
    )))
}

/// `count` elements for each rank.
pub(super) fn blocks(collective: Collective, count: usize, ranks: u32) -> Result<usize> {
    count
        .checked_mul(ranks as usize)
        .ok_or_else(|| Error::invalid(format!("{collective} of {count} elements on {ranks} ranks")))
}

/// Where the block of `rank` begins, and its elements, in a vector of these blocks.
pub(super) fn own_block(collective: Collective, counts: &[u64], rank: Rank) -> Result<(u64, u64)> {
    let own = counts.get(rank as usize).copied();
    let own = own.ok_or_else(|| {
        Error::invalid(format!(
            "{collective} has {} counts, and none for rank {rank}: one for each rank",
            counts.len()
        ))
    })?;
    let before = counts[..rank as usize]
        .iter()
        .try_fold(0u64, |sum, &count| sum.checked_add(count));
    let start = before
        .filter(|start| start.checked_add(own).is_some())
        .ok_or_else(|| Error::invalid(format!("the counts of {collective} are more than 2^64")))?;
    Ok((start, own))
}
