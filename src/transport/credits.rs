//! [`Ledger`]: how much of one thing two ranks have sent each other, and how much of that has met
//! receives; and [`Credits`], the ledgers of messages, by which a sender keeps within
//! [`MESSAGES_PER_PEER`] of each class of tags (clause 7).

use super::posts::Accepted;
use super::{PostError, TAG_CLASSES};
use crate::limits::MESSAGES_PER_PEER;

/// Messages of each class that a rank has matched, modulo 2^16, which is far more than may be on
/// the way.
pub(super) type Counts = [u16; TAG_CLASSES];

/// A rank tells after this many matches of a class.
const TELL_MATCHES: u64 = MESSAGES_PER_PEER as u64 / 4;

/// What this rank and one peer have sent each other, and matched.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ledger {
    /// Sent to the peer, and of that matched there, as far as is known.
    sent: u64,
    sent_matched: u64,
    /// Of what the peer sent: matched here, and how much of that the peer was told of.
    matched: u64,
    told: u64,
}

impl Ledger {
    /// What was sent and is not matched yet, as far as is known.
    #[inline]
    pub fn backlog(&self) -> u64 {
        self.sent - self.sent_matched
    }

    #[inline]
    pub fn note_sent(&mut self, amount: u64) {
        self.sent += amount;
    }

    /// The peer has matched this much so far. What is old changes nothing.
    pub fn handle_told(&mut self, matched: u64) -> Result<(), String> {
        if matched > self.sent {
            return Err(format!(
                "it has matched {matched} bytes, more than were sent"
            ));
        }
        self.sent_matched = self.sent_matched.max(matched);
        Ok(())
    }

    #[inline]
    pub fn note_matched(&mut self, amount: u64) {
        self.matched += amount;
    }

    /// What was matched here so far, which the peer is being told of.
    #[inline]
    pub fn tell(&mut self) -> u64 {
        self.told = self.matched;
        self.matched
    }

    /// What was matched here and the peer was not told of.
    #[inline]
    pub fn untold(&self) -> u64 {
        self.matched - self.told
    }
}

/// The ledgers of messages with one peer, by class of tags.
#[derive(Clone, Debug, Default)]
pub(super) struct Credits([Ledger; TAG_CLASSES]);

impl Credits {
    /// Messages of this class that the peer has not matched yet, as far as is known.
    #[inline]
    pub fn backlog(&self, class: usize) -> u32 {
        self.0[class].backlog() as u32
    }

    /// Whether the peer holds another message of this class.
    #[inline]
    pub fn check(&self, class: usize) -> Accepted {
        match self.backlog(class) >= MESSAGES_PER_PEER {
            true => Err(PostError::WouldBlock),
            false => Ok(()),
        }
    }

    /// A message of this class was sent.
    #[inline]
    pub fn note_sent(&mut self, class: usize) {
        self.0[class].note_sent(1);
    }

    /// The peer has matched this many messages of a class so far. A count changes nothing if it is
    /// old, because it was sent once more, or cannot be right.
    #[inline]
    pub fn handle_told(&mut self, class: usize, count: u16) {
        let ledger = &mut self.0[class];
        let news = u64::from(count.wrapping_sub(ledger.sent_matched as u16));
        if news <= ledger.backlog() {
            ledger.sent_matched += news;
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
    pub fn count_match(&mut self, class: usize) -> u64 {
        self.0[class].note_matched(1);
        self.0[class].matched
    }

    /// Matches of all classes, which the peer is being told of.
    #[inline]
    pub fn tell(&mut self) -> Counts {
        std::array::from_fn(|class| self.tell_class(class))
    }

    /// Matches of one class, which the peer is being told of.
    #[inline]
    pub fn tell_class(&mut self, class: usize) -> u16 {
        self.0[class].tell() as u16
    }

    /// Whether there are matches of this class that the peer was not told of.
    #[inline]
    pub fn has_untold(&self, class: usize) -> bool {
        self.0[class].untold() > 0
    }

    /// Whether there are enough of them that it should be told now.
    #[inline]
    pub fn is_due(&self, class: usize) -> bool {
        self.0[class].untold() >= TELL_MATCHES
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
        assert_eq!(credits.tell(), [0, 0, 0, TELL_MATCHES as u16]);
        assert!(!credits.has_untold(3) && !credits.is_due(3));
        credits.count_match(2);
        assert_eq!((credits.tell_class(2), credits.has_untold(2)), (1, false));
    }

    #[test]
    fn what_is_told_once_more_changes_nothing_and_what_cannot_be_is_refused() {
        let mut bytes = Ledger::default();
        bytes.note_sent(100);
        bytes.handle_told(60).unwrap();
        bytes.handle_told(10).unwrap();
        assert_eq!(bytes.backlog(), 40);
        let text = bytes.handle_told(101).unwrap_err();
        assert!(text.contains("more than were sent"), "{text}");
        bytes.note_matched(25);
        assert_eq!((bytes.untold(), bytes.tell(), bytes.untold()), (25, 25, 0));
    }
}
