//! Translates the ranks in errors. After a death the new communicator numbers the living ranks
//! anew, and its errors use these numbers. A user knows the ranks of creation, which are the ranks
//! at the time when the partial allreduce was made.

use crate::engine::name_ranks;
use crate::error::Error;
use crate::types::Rank;

/// Returns an error of the present communicator with the ranks of creation in it. `members` has the
/// rank of creation of each rank of the communicator.
pub(super) fn with_names(error: Error, members: &[Rank]) -> Error {
    if (0..).zip(members).all(|(place, &rank)| place == rank) {
        return error;
    }
    let name = |place: Rank| members.get(place as usize).copied().unwrap_or(place);
    let text = |text: String| rename(&text, members);
    match error {
        Error::Timeout {
            rank,
            operation,
            waited,
            missing,
            detail,
        } => Error::Timeout {
            rank: name(rank),
            operation,
            waited,
            missing: missing.into_iter().map(name).collect(),
            detail: text(detail),
        },
        Error::Mismatch { sequence, detail } => Error::Mismatch {
            sequence,
            detail: text(detail),
        },
        Error::PeerFailed {
            rank,
            cause,
            during,
        } => Error::PeerFailed {
            rank: name(rank),
            cause,
            during,
        },
        Error::Left { rank, operation } => Error::Left {
            rank: name(rank),
            operation,
        },
        Error::Cancelled { by, operation } => Error::Cancelled {
            by: name(by),
            operation,
        },
        Error::Aborted { by, reason } => Error::Aborted {
            by: name(by),
            reason,
        },
        Error::CommunicatorFailed(first) => {
            Error::CommunicatorFailed(Box::new(with_names(*first, members)))
        }
        other => other,
    }
}

/// Replaces the ranks in a text of the engine, where [`name_ranks`] has written them, by the ranks
/// of creation.
fn rename(text: &str, members: &[Rank]) -> String {
    let mut renamed = String::new();
    let mut rest = text;
    while let Some((before, places, after)) = next_places(rest) {
        renamed += before;
        let names: Option<Vec<Rank>> = (places.iter())
            .map(|&place| members.get(place as usize).copied())
            .collect();
        match names {
            Some(names) => renamed += &name_ranks(&names),
            None => renamed += &rest[before.len()..rest.len() - after.len()],
        }
        rest = after;
    }
    renamed + rest
}

/// Finds the next mention of ranks in a text. Returns the text before it, the ranks, and the text
/// after it.
fn next_places(text: &str) -> Option<(&str, Vec<Rank>, &str)> {
    for (at, found) in text.match_indices("rank") {
        let is_word = !text[..at].ends_with(|c: char| c.is_alphanumeric());
        let (is_many, after) = match text[at + found.len()..].strip_prefix('s') {
            Some(after) => (true, after),
            None => (false, &text[at + found.len()..]),
        };
        let Some((mut places, mut after)) = after.strip_prefix(' ').and_then(run_of_places) else {
            continue;
        };
        if !is_word {
            continue;
        }
        while is_many
            && let Some(more) = after.strip_prefix(", ").or(after.strip_prefix(" and "))
            && let Some((run, rest)) = run_of_places(more)
        {
            places.extend(run);
            after = rest;
        }
        return Some((&text[..at], places, after));
    }
    None
}

/// Parses `5` or `5-9` at the beginning of a text. Returns the ranks and the text after them.
fn run_of_places(text: &str) -> Option<(Vec<Rank>, &str)> {
    let (first, after) = number(text)?;
    let last = after.strip_prefix('-').and_then(number);
    let (last, after) = last.unwrap_or((first, after));
    Some(((first..=last).collect(), after))
}

fn number(text: &str) -> Option<(Rank, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit());
    let (digits, after) = text.split_at(end.unwrap_or(text.len()));
    let number = digits.parse().ok()?;
    (number < crate::limits::RANKS_MAX).then_some((number, after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn ranks_in_texts_have_the_numbers_of_creation() {
        let members = [0, 2, 3, 5, 7, 8];
        for (text, wanted) in [
            (
                "rank 1 is missing: it sleeps",
                "rank 2 is missing: it sleeps",
            ),
            ("ranks 0-2 and 4", "ranks 0, 2, 3 and 7"),
            ("ranks 1, 3-5; rank 0", "ranks 2, 5, 7 and 8; rank 0"),
            (
                "rank 1 called 2, rank 3 called 1",
                "rank 2 called 2, rank 5 called 1",
            ),
            (
                "rank 6, frank 1, the rank 2x, ranks",
                "rank 6, frank 1, the rank 3x, ranks",
            ),
            ("", ""),
        ] {
            assert_eq!(rename(text, &members), wanted);
        }
    }

    #[test]
    fn an_error_names_who_is_missing_by_the_numbers_of_creation_and_is_left_alone_before_a_death() {
        let error = Error::Timeout {
            rank: 1,
            operation: "operation 3, allgather of 12 u64".into(),
            waited: Duration::from_secs(1),
            missing: vec![0, 2],
            detail: "ranks 0 and 2 are missing: nothing".into(),
        };
        assert_eq!(with_names(error.clone(), &[0, 1, 2]), error);
        let text = with_names(Error::CommunicatorFailed(Box::new(error)), &[1, 3, 4]).to_string();
        assert!(
            text.contains("rank 3: operation 3, allgather of 12 u64"),
            "{text}"
        );
        assert!(text.contains("ranks 1 and 4 are missing"), "{text}");
    }
}
