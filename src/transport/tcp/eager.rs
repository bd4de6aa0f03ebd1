//! [`EagerBytes`]: bytes of long messages that leave before anybody asks for them, of which a peer
//! holds a bounded number.

/// See the module.
#[derive(Debug, Default)]
pub struct EagerBytes {
    /// Bytes sent, and those of messages that the peer has matched, as far as is known.
    sent: u64,
    sent_matched: u64,
    /// Bytes of the peer's messages that were matched here, and those that it was told of.
    matched: u64,
    told: u64,
}

impl EagerBytes {
    /// Takes room for a message of this length, if the peer holds `most` bytes; false: it is to be
    /// asked for.
    pub fn take_room(&mut self, bytes: u64, most: u64) -> bool {
        let has_room = self.sent - self.sent_matched + bytes <= most;
        if has_room {
            self.sent += bytes;
        }
        has_room
    }

    /// The peer has matched messages of this many bytes so far.
    pub fn handle_told(&mut self, bytes: u64) -> Result<(), String> {
        if bytes > self.sent {
            return Err(format!("it has matched {bytes} bytes, more than were sent"));
        }
        self.sent_matched = self.sent_matched.max(bytes);
        Ok(())
    }

    /// A message of this length was matched here.
    pub fn count_match(&mut self, bytes: u64) {
        self.matched += bytes;
    }

    /// Bytes of matched messages, which the peer is being told of.
    pub fn tell(&mut self) -> u64 {
        self.told = self.matched;
        self.matched
    }

    /// Whether it should be told now: of anything at a slow look, else of a quarter of `most`.
    #[inline]
    pub fn is_due(&self, most: u64, is_slow: bool) -> bool {
        let untold = self.matched - self.told;
        untold > 0 && (is_slow || untold >= most / 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_comes_back_as_messages_are_matched() {
        let mut eager = EagerBytes::default();
        assert!(eager.take_room(60, 100) && !eager.take_room(41, 100));
        assert!(eager.take_room(40, 100) && !eager.take_room(1, 100));
        eager.handle_told(60).unwrap();
        eager.handle_told(10).unwrap();
        assert!(eager.take_room(60, 100) && !eager.take_room(1, 100));
        assert!(eager.handle_told(161).is_err());
    }

    #[test]
    fn a_quarter_of_the_room_is_told_at_once_and_less_at_slow_looks() {
        let mut eager = EagerBytes::default();
        assert!(!eager.is_due(100, true));
        eager.count_match(24);
        assert_eq!(
            [false, true].map(|slow| eager.is_due(100, slow)),
            [false, true]
        );
        eager.count_match(1);
        assert!(eager.is_due(100, false));
        assert_eq!((eager.tell(), eager.is_due(100, true)), (25, false));
    }
}
