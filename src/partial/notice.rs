//! [`Notice`]: what ranks tell each other before a round begins, as one word.

use crate::error::{Error, Result};

/// Bits of the round; the kind is above.
const ROUND_BITS: u32 = 62;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The sender has submitted its generation of this round; for the rank that counts.
    Arrived(u64),
    /// The round begins.
    Activate(u64),
    /// The sender has completed this round, which was the last.
    Completed(u64),
}

impl Notice {
    /// As a word.
    pub fn emit(self) -> u64 {
        match self {
            Notice::Arrived(round) => round,
            Notice::Activate(round) => round | 1 << ROUND_BITS,
            Notice::Completed(round) => round | 2 << ROUND_BITS,
        }
    }

    /// Parses a word of a peer.
    pub fn parse(word: u64) -> Result<Notice> {
        let round = word & ((1 << ROUND_BITS) - 1);
        match word >> ROUND_BITS {
            0 => Ok(Notice::Arrived(round)),
            1 => Ok(Notice::Activate(round)),
            2 => Ok(Notice::Completed(round)),
            kind => Err(Error::Malformed(format!(
                "a notice of a partial collective of kind {kind}: 0, 1 and 2 are known"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_come_back_as_they_went_and_others_are_refused() {
        for notice in [
            Notice::Arrived(0),
            Notice::Activate((1 << 62) - 1),
            Notice::Completed(7),
        ] {
            assert_eq!(Notice::parse(notice.emit()), Ok(notice));
        }
        assert!(Notice::parse(3 << 62).is_err());
    }
}
