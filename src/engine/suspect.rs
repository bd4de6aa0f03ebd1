//! [`Suspect`]: what makes no progress, and what the peers say of it.

use crate::time::Time;
use crate::types::Rank;
use std::time::Duration;

/// Something that makes no progress, while its rank asks the others.
#[derive(Debug)]
pub struct Suspect {
    /// The task; `None`: it is something that the engine does not run (`Engine::inquire`).
    pub task: Option<usize>,
    /// When it last moved.
    pub since: Time,
    pub sequence: u64,
    /// Whether `sequence` is the number of a collective, which all ranks share.
    pub is_numbered: bool,
    pub waited: Duration,
    pub deadline: Time,
    pub answers: Vec<Option<Answer>>,
}

/// What a peer answers.
#[derive(Clone, Debug)]
pub struct Answer {
    /// How many operations it has started, and how many of them have ended.
    pub started: u64,
    pub ended: u64,
    pub text: String,
}

/// Names ascending ranks in a text: `ranks 0, 2 and 5-9`, or `rank 3`.
pub(crate) fn name_ranks(ranks: &[Rank]) -> String {
    let mut names: Vec<String> = Vec::new();
    let mut rest = ranks;
    while let Some(&first) = rest.first() {
        let run = (first..).zip(rest).take_while(|(a, b)| a == *b).count();
        let (taken, name) = match run {
            1 | 2 => (1, first.to_string()),
            _ => (run, format!("{first}-{}", rest[run - 1])),
        };
        names.push(name);
        rest = &rest[taken..];
    }
    match names.split_last() {
        Some((last, [])) if ranks.len() == 1 => format!("rank {last}"),
        Some((last, [])) => format!("ranks {last}"),
        Some((last, others)) => format!("ranks {} and {last}", others.join(", ")),
        None => "no rank".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_named_in_runs() {
        assert_eq!(name_ranks(&[3]), "rank 3");
        assert_eq!(name_ranks(&[0, 1]), "ranks 0 and 1");
        assert_eq!(name_ranks(&[0, 1, 3]), "ranks 0, 1 and 3");
        assert_eq!(name_ranks(&[0, 1, 2, 3]), "ranks 0-3");
        assert_eq!(name_ranks(&[0, 2, 5, 6, 7, 9]), "ranks 0, 2, 5-7 and 9");
    }
}
