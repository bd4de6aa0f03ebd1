//! Control messages: how ranks tell each other of failures and ask what the others are doing.
//!
//! Fixed length [`CONTROL_BYTES`]: magic, kind, text length, rank, two words, text.

use crate::error::{Error, Result};
use crate::limits::CONTROL_BYTES;
use crate::types::Rank;

const MAGIC: u32 = u32::from_le_bytes(*b"LRC1");
const TEXT_AT: usize = 28;

/// Bytes of text that fit; a longer text is cut at a character.
pub const CONTROL_TEXT_BYTES_MAX: usize = CONTROL_BYTES - TEXT_AT;

/// What a control message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ControlKind {
    /// "I wait in operation `sequence`, which I believe to be `signature`": from a rank that is
    /// about to give up.
    Query = 1,
    /// "I have started `sequence` operations and ended `signature` of them."
    Status = 2,
    /// The communicator failed: `rank` made no progress.
    Timeout = 3,
    /// The communicator failed: ranks disagree at `sequence`.
    Mismatch = 4,
    /// The communicator failed: `rank` is gone.
    PeerFailed = 5,
    /// The communicator failed: `rank` cancelled.
    Cancelled = 6,
    /// The communicator failed for another reason at `rank`.
    Failed = 7,
    /// The communicator failed: `rank` aborted it.
    Aborted = 8,
    /// Every rank of a rebuilt communicator is connected, and the sender uses it.
    Confirmed = 9,
    /// The communicator failed: `rank` asked for something that does not exist or does not fit.
    Invalid = 10,
    /// `rank` has left in good order, and `sequence` is the first operation that cannot end without
    /// it.
    Left = 11,
    /// The communicator failed: `rank` has left in good order, and an operation, which the text
    /// names, needs it.
    FailedWithout = 12,
}

/// A control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlMessage {
    /// What it says.
    pub kind: ControlKind,
    /// The rank it is about.
    pub rank: Rank,
    /// The operation it is about; of a timeout, how long nothing had moved, in milliseconds.
    pub sequence: u64,
    /// What the sender believes that operation to be, 0 if it does not know; of a status, the
    /// operations that it has ended.
    pub signature: u64,
    /// A text for people.
    pub text: String,
}

impl ControlMessage {
    /// The bytes to send.
    pub fn emit(&self) -> [u8; CONTROL_BYTES] {
        let text = cut_text(&self.text, CONTROL_TEXT_BYTES_MAX);
        let mut out = [0; CONTROL_BYTES];
        out[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4] = self.kind as u8;
        out[6..8].copy_from_slice(&(text.len() as u16).to_le_bytes());
        out[8..12].copy_from_slice(&self.rank.to_le_bytes());
        out[12..20].copy_from_slice(&self.sequence.to_le_bytes());
        out[20..28].copy_from_slice(&self.signature.to_le_bytes());
        out[TEXT_AT..TEXT_AT + text.len()].copy_from_slice(text.as_bytes());
        out
    }

    /// Checks and parses.
    pub fn parse(bytes: &[u8; CONTROL_BYTES]) -> Result<ControlMessage> {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        if word(0) != MAGIC {
            return Err(Error::Malformed(format!(
                "a control message that begins with {:#x}",
                word(0)
            )));
        }
        let kind = match bytes[4] {
            1 => ControlKind::Query,
            2 => ControlKind::Status,
            3 => ControlKind::Timeout,
            4 => ControlKind::Mismatch,
            5 => ControlKind::PeerFailed,
            6 => ControlKind::Cancelled,
            7 => ControlKind::Failed,
            8 => ControlKind::Aborted,
            9 => ControlKind::Confirmed,
            10 => ControlKind::Invalid,
            11 => ControlKind::Left,
            12 => ControlKind::FailedWithout,
            kind => {
                return Err(Error::Malformed(format!(
                    "a control message of unknown kind {kind}"
                )));
            }
        };
        let text_bytes = usize::from(u16::from_le_bytes([bytes[6], bytes[7]]));
        if text_bytes > CONTROL_TEXT_BYTES_MAX {
            return Err(Error::Malformed(format!(
                "a control message with {text_bytes} bytes of text"
            )));
        }
        let text = String::from_utf8_lossy(&bytes[TEXT_AT..TEXT_AT + text_bytes]).into_owned();
        Ok(ControlMessage {
            kind,
            rank: word(8),
            sequence: long(12),
            signature: long(20),
            text,
        })
    }
}

/// As much of a text as fits, cut at a character.
pub fn cut_text(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> ControlMessage {
        ControlMessage {
            kind: ControlKind::Mismatch,
            rank: 7,
            sequence: 1 << 40,
            signature: !3,
            text: text.into(),
        }
    }

    #[test]
    fn a_message_survives_and_a_long_text_is_cut_at_a_character() {
        let short = message("rank 1 called broadcast");
        assert_eq!(ControlMessage::parse(&short.emit()).unwrap(), short);
        let long = message(&"ä".repeat(CONTROL_BYTES));
        let parsed = ControlMessage::parse(&long.emit()).unwrap();
        assert_eq!(parsed.text, "ä".repeat(CONTROL_TEXT_BYTES_MAX / 2));
    }

    #[test]
    fn any_bytes_are_parsed_or_refused() {
        let mut prng = crate::prng::Prng::new(1);
        let (mut refused, mut parsed) = (0, 0);
        for _ in 0..20_000 {
            let mut bytes = message("x").emit();
            for _ in 0..prng.below(4) {
                bytes[prng.below(10) as usize] = prng.next_u64() as u8;
            }
            match ControlMessage::parse(&bytes) {
                Ok(_) => parsed += 1,
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 1000 && parsed > 1000, "{refused} {parsed}");
    }
}
