//! How ranks tell each other of a failure: an error becomes a control message, and the message
//! becomes an error. A message cuts its text at a certain length ([`ControlMessage::emit`]), so the
//! text begins with what a program acts on: the missing ranks, then the operation, then what is
//! known of every rank.

use crate::error::Error;
use crate::limits::RANKS_MAX;
use crate::types::Rank;
use crate::wire::{ControlKind, ControlMessage};
use std::time::Duration;

/// Most bytes that the missing ranks take: the rest of the text is for people.
const RANKS_BYTES_MAX: usize = 64;

/// What the peers are told of a failure.
pub fn message_of(error: &Error, rank: Rank) -> ControlMessage {
    let (kind, rank, sequence, text) = match error {
        Error::Timeout {
            rank,
            operation,
            missing,
            detail,
            waited,
        } => (
            ControlKind::Timeout,
            *rank,
            waited.as_millis() as u64,
            format!("{}\n{operation}\n{detail}", emit_ranks(missing)),
        ),
        Error::Mismatch { sequence, detail } => {
            (ControlKind::Mismatch, rank, *sequence, detail.clone())
        }
        Error::PeerFailed { rank, cause, .. } => (ControlKind::PeerFailed, *rank, 0, cause.clone()),
        Error::Left { rank, operation } => {
            (ControlKind::FailedWithout, *rank, 0, operation.clone())
        }
        Error::Cancelled { by, operation } => (ControlKind::Cancelled, *by, 0, operation.clone()),
        Error::Aborted { by, reason } => (ControlKind::Aborted, *by, 0, reason.clone()),
        Error::InvalidArgument(text) => (
            ControlKind::Invalid,
            rank,
            0,
            format!("rank {rank}: {text}"),
        ),
        other => (ControlKind::Failed, rank, 0, other.to_string()),
    };
    ControlMessage {
        kind,
        rank,
        sequence,
        signature: 0,
        text,
    }
}

/// The failure that a message tells of, as the rank that receives it reports it.
pub fn error_of(message: &ControlMessage, from: Rank) -> Error {
    let text = message.text.clone();
    match message.kind {
        ControlKind::Timeout => {
            let (missing, rest) = text.split_once('\n').unwrap_or(("", &text));
            let (operation, detail) = rest.split_once('\n').unwrap_or((rest, ""));
            Error::Timeout {
                rank: message.rank,
                operation: operation.into(),
                waited: Duration::from_millis(message.sequence),
                missing: parse_ranks(missing),
                detail: detail.into(),
            }
        }
        ControlKind::Mismatch => Error::Mismatch {
            sequence: message.sequence,
            detail: text,
        },
        ControlKind::PeerFailed => Error::PeerFailed {
            rank: message.rank,
            cause: text,
            during: String::new(),
        },
        ControlKind::FailedWithout => Error::Left {
            rank: message.rank,
            operation: text,
        },
        ControlKind::Cancelled => Error::Cancelled {
            by: message.rank,
            operation: text,
        },
        ControlKind::Aborted => Error::Aborted {
            by: message.rank,
            reason: text,
        },
        ControlKind::Invalid => Error::InvalidArgument(text),
        _ => Error::PeerFailed {
            rank: from,
            cause: text,
            during: String::new(),
        },
    }
}

/// `0,2,5-9`: ascending ranks in runs, as many as fit.
fn emit_ranks(ranks: &[Rank]) -> String {
    let mut text = String::new();
    for run in ranks.chunk_by(|a, b| a + 1 == *b) {
        let (first, last) = (run[0], run[run.len() - 1]);
        let name = match first == last {
            true => format!("{first},"),
            false => format!("{first}-{last},"),
        };
        if text.len() + name.len() > RANKS_BYTES_MAX {
            break;
        }
        text += &name;
    }
    text
}

/// The ranks in a text of a peer. Anything else in it is left out.
fn parse_ranks(text: &str) -> Vec<Rank> {
    let mut ranks: Vec<Rank> = Vec::new();
    for run in text.split(',') {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        let (Ok(first), Ok(last)) = (first.parse::<Rank>(), last.parse::<Rank>()) else {
            continue;
        };
        let is_after = ranks.last().is_none_or(|&before| before < first);
        if is_after && last < RANKS_MAX {
            ranks.extend(first..=last);
        }
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(error: &Error) -> Error {
        let message = ControlMessage::parse(&message_of(error, 1).emit()).unwrap();
        error_of(&message, 1)
    }

    #[test]
    fn a_timeout_is_told_with_the_missing_ranks() {
        let timeout = |missing: Vec<Rank>, detail: &str| Error::Timeout {
            rank: 1,
            operation: "operation 3, barrier".into(),
            waited: Duration::from_millis(1500),
            missing,
            detail: detail.into(),
        };
        for missing in [
            vec![],
            vec![0],
            vec![2, 3, 4, 7, RANKS_MAX - 2, RANKS_MAX - 1],
        ] {
            let error = timeout(missing, "rank 2 is missing: no answer");
            assert_eq!(told(&error), error);
        }
        // What does not fit is left out at the end.
        let every_second: Vec<Rank> = (0..1000).map(|rank| 2 * rank).collect();
        let Error::Timeout {
            missing, operation, ..
        } = told(&timeout(every_second.clone(), ""))
        else {
            panic!("another error");
        };
        assert_eq!(operation, "operation 3, barrier");
        assert!(
            missing.len() > 10 && every_second.starts_with(&missing),
            "{missing:?}"
        );
    }

    #[test]
    fn ranks_in_a_text_of_a_peer_are_bounded() {
        for (text, ranks) in [
            ("", vec![]),
            ("3,", vec![3]),
            ("0-2,5,", vec![0, 1, 2, 5]),
            ("5,3,9-7,x,-1,8", vec![5, 8]),
            ("0-4294967295,16384,16383", vec![16383]),
        ] {
            assert_eq!(parse_ranks(text), ranks, "{text}");
        }
    }

    #[test]
    fn what_a_rank_asked_for_in_vain_is_told_with_its_number() {
        let error = Error::invalid("7 elements: at most 5");
        assert_eq!(
            told(&error),
            Error::invalid("rank 1: 7 elements: at most 5")
        );
    }
}
