//! [`Credits`]: how many messages of each class of tags two ranks have sent each other, and how
//! many of them have met receives: a sender keeps within [`MESSAGES_PER_PEER`] (clause 7).
//!
//! Counts are modulo 2^16, which is far more than may be on the way.

use super::posts::Accepted;
use super::{PostError, TAG_CLASSES};
use crate::limits::MESSAGES_PER_PEER;

/// Messages of each class, modulo 2^16.
pub(super) type Counts = [u16; TAG_CLASSES];

/// A rank tells after this many matches of a class.
const TELL_MATCHES: u16 = MESSAGES_PER_PEER as u16 / 4;

/// The counts of both directions between this rank and one peer.
#[derive(Clone, Debug, Default)]
pub(super) struct Credits {
    /// Messages sent to the peer, and those that it has matched, as far as is known.
    sent: Counts,
    sent_matched: Counts,
    /// Messages of the peer that were matched here, and those that it was told of.
    matched: Counts,
    told: Counts,
}

impl Credits {
    /// Messages of this class that the peer has not matched yet, as far as is known.
    #[inline]
    pub fn backlog(&self, class: usize) -> u16 {
        self.sent[class].wrapping_sub(self.sent_matched[class])
    }

    /// Whether the peer holds another message of this class.
    #[inline]
    pub fn check(&self, class: usize) -> Accepted {
        match self.backlog(class) >= MESSAGES_PER_PEER as u16 {
            true => Err(PostError::WouldBlock),
            false => Ok(()),
        }
    }

    /// A message of this class was sent.
    #[inline]
    pub fn note_sent(&mut self, class: usize) {
        self.sent[class] = self.sent[class].wrapping_add(1);
    }

    /// The peer has matched this many messages of a class so far. A count that is old, as one that
    /// was sent once more may be, or that cannot be right changes nothing.
    #[inline]
    pub fn handle_told(&mut self, class: usize, count: u16) {
        let news = count.wrapping_sub(self.sent_matched[class]);
        if news <= self.backlog(class) {
            self.sent_matched[class] = count;
        }
    }

    /// The peer has matched this many messages of each class so far.
    #[inline]
    pub fn handle_all_told(&mut self, counts: Counts) {
        for (class, count) in counts.into_iter().enumerate() {
            self.handle_told(class, count);
        }
    }

    /// A message of the peer was matched here; how many of its class so far.
    #[inline]
    pub fn count_match(&mut self, class: usize) -> u16 {
        self.matched[class] = self.matched[class].wrapping_add(1);
        self.matched[class]
    }

    /// Matches of all classes, which the peer is being told of.
    #[inline]
    pub fn tell(&mut self) -> Counts {
        self.told = self.matched;
        self.matched
    }

    /// Matches of one class, which the peer is being told of.
    pub fn tell_class(&mut self, class: usize) -> u16 {
        self.told[class] = self.matched[class];
        self.matched[class]
    }

    /// Whether there are matches of this class that the peer was not told of.
    #[inline]
    pub fn has_untold(&self, class: usize) -> bool {
        self.matched[class] != self.told[class]
    }

    /// Whether there are enough of them that it should be told now.
    #[inline]
    pub fn is_due(&self, class: usize) -> bool {
        self.matched[class].wrapping_sub(self.told[class]) >= TELL_MATCHES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_that_is_full_has_room_when_the_peer_has_matched_and_others_have_room() {
        let mut credits = Credits::default();
        for _ in 0..MESSAGES_PER_PEER {
            credits.check(1).unwrap();
            credits.note_sent(1);
        }
        assert_eq!(credits.check(1), Err(PostError::WouldBlock));
        assert_eq!((credits.check(0), credits.backlog(0)), (Ok(()), 0));
        credits.handle_told(1, 1);
        assert_eq!(credits.check(1), Ok(()));
    }

    #[test]
    fn counts_go_round_and_neither_old_nor_impossible_ones_count() {
        let mut credits = Credits::default();
        for matched in 1..=2 * u32::from(u16::MAX) {
            credits.note_sent(0);
            credits.note_sent(0);
            credits.handle_told(0, (2 * matched) as u16);
            assert_eq!(credits.backlog(0), 0);
        }
        credits.note_sent(0);
        let sent = (4 * u32::from(u16::MAX) + 1) as u16;
        for wrong in [sent.wrapping_add(1), sent.wrapping_sub(2), 77] {
            credits.handle_told(0, wrong);
            assert_eq!(credits.backlog(0), 1, "{wrong}");
        }
        credits.handle_all_told([sent, 1, 0, 0]);
        assert_eq!((credits.backlog(0), credits.backlog(1)), (0, 0));
    }

    #[test]
    fn matches_are_told_a_quarter_of_the_places_at_a_time_or_in_passing() {
        let mut credits = Credits::default();
        for count in 1..TELL_MATCHES {
            assert_eq!(credits.count_match(3), count);
        }
        assert_eq!((credits.is_due(3), credits.has_untold(3)), (false, true));
        credits.count_match(3);
        assert!(credits.is_due(3));
        assert_eq!(credits.tell(), [0, 0, 0, TELL_MATCHES]);
        assert!(!credits.has_untold(3) && !credits.is_due(3));
        credits.count_match(2);
        assert_eq!((credits.tell_class(2), credits.has_untold(2)), (1, false));
    }
}
