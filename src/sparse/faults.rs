//! What peers say is checked before it is used: lengths and counts against what their rank can
//! have, sums against each other.
//!
//! A rank whose bytes are wrong is named, as one that failed. Sums of all ranks' words have no
//! author: what contradicts itself there is [`Error::Malformed`].

use crate::error::{Error, Result};
use crate::types::Rank;

/// What a rank sent is not what it can have sent.
pub(super) fn of_rank(rank: Rank, cause: impl std::fmt::Display) -> Error {
    Error::PeerFailed {
        rank,
        cause: format!("its part of a sparse allreduce is malformed: {cause}"),
        during: String::new(),
    }
}

/// What all ranks made together contradicts itself.
pub(super) fn of_all(what: impl std::fmt::Display) -> Error {
    Error::Malformed(format!(
        "a sparse allreduce: {what}; ranks run the same build with the same tensors and options: compare them, then rebuild the \
         communicator"
    ))
}

/// Words of all ranks, `names.len()` of each: none above its limit, and this rank's as it sent
/// them.
pub(super) fn check_words(
    words: &[u64],
    (rank, own): (Rank, &[u64]),
    names: &[&str],
    limit: impl Fn(Rank, usize) -> u64,
) -> Result<()> {
    for (sender, said) in (0..).zip(words.chunks_exact(names.len())) {
        for (i, (word, name)) in said.iter().zip(names).enumerate() {
            let most = limit(sender, i);
            if *word > most {
                return Err(of_rank(
                    sender,
                    format_args!("it says {word} {name}, where at most {most} can be"),
                ));
            }
        }
        if sender == rank && said != own {
            return Err(of_all(format_args!(
                "rank {rank} sent the words {own:?} of its own, and gets {said:?} back"
            )));
        }
    }
    Ok(())
}
