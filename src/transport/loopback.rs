//! [`Loopback`]: posts of a rank to itself (clause 15), which no provider sends anywhere.
//!
//! A message is copied when it is sent, unless it is long and its send has a completion: then its
//! bytes stay where they are until a receive takes them.

use super::matching::{Matching, Met, Payload, Posted};
use super::posts::{Accepted, Ends, change_here, get_here, put_here};
use super::{Atomic, Outcome, PostError, tag_class};
use crate::limits::{INLINE_BYTES_MAX, MESSAGES_PER_PEER};
use crate::memory::View;
use crate::types::Rank;

/// A message that was not copied: where it lies, and the token of its send.
#[derive(Clone, Copy, Debug)]
struct Lying {
    source: View,
    token: u64,
}

/// The messages of one rank to itself, and its puts, gets and atomic operations.
#[derive(Debug)]
pub(super) struct Loopback {
    rank: Rank,
    matching: Matching<Lying>,
    is_over: bool,
}

impl Loopback {
    /// The loopback of this rank.
    pub fn new(rank: Rank) -> Loopback {
        Loopback {
            rank,
            matching: Matching::new(),
            is_over: false,
        }
    }

    /// Sends a message; without a token it has no completion, and is copied.
    pub fn send(
        &mut self,
        (tag, header): (u64, u64),
        source: View,
        token: Option<u64>,
        ends: &mut Ends,
    ) -> Accepted {
        if self.backlog(tag) >= MESSAGES_PER_PEER {
            return Err(PostError::WouldBlock);
        }
        let bytes = source.len_bytes();
        let payload = match (self.matching.take_posted(tag), token) {
            (Some(posted), _) => {
                posted.deliver(self.rank, header, source, ends);
                None
            }
            (None, Some(token)) if bytes > INLINE_BYTES_MAX => {
                let lying = Payload::Far(Lying { source, token });
                self.keep((tag, header), lying, ends);
                return Ok(());
            }
            (None, _) => Some(Payload::Copied(ends.copy(source))),
        };
        if let Some(token) = token {
            ends.complete(self.rank, token, Outcome::Done, bytes as u64, 0);
        }
        if let Some(payload) = payload {
            self.keep((tag, header), payload, ends);
        }
        Ok(())
    }

    fn keep(&mut self, message: (u64, u64), payload: Payload<Lying>, ends: &mut Ends) {
        let kept = self.matching.keep(self.rank, message, payload, ends);
        kept.expect("the backlog was looked at");
    }

    /// Receives a message.
    pub fn receive(
        &mut self,
        tag: u64,
        destination: View,
        token: u64,
        ends: &mut Ends,
    ) -> Accepted {
        let posted = Posted {
            tag,
            destination,
            token,
        };
        let met = (self.matching).receive(self.rank, posted, self.is_over, ends)?;
        if let Met::Far(Lying { source, token }, header) = met {
            posted.deliver(self.rank, header, source, ends);
            let bytes = source.len_bytes() as u64;
            ends.complete(self.rank, token, Outcome::Done, bytes, 0);
        }
        Ok(())
    }

    /// Ends the receive with this token, if it waits.
    pub fn cancel(&mut self, token: u64, ends: &mut Ends) {
        self.matching.cancel(self.rank, token, ends);
    }

    /// Messages of this tag's class that wait for receives.
    pub fn backlog(&self, tag: u64) -> u32 {
        self.matching.waiting(tag_class(tag))
    }

    /// The first message that waits and is meant: the rank, its tag and its header.
    pub fn find(&self, is_meant: &mut dyn FnMut(u64, u64) -> bool) -> Option<(Rank, u64, u64)> {
        self.matching.find(self.rank, is_meant)
    }

    /// Ends the sends whose messages lie where they were sent from.
    pub fn withdraw(&mut self, ends: &mut Ends) {
        let rank = self.rank;
        self.matching.retain_far(|lying| {
            ends.complete(rank, lying.token, Outcome::Cancelled, 0, 0);
            false
        });
    }

    /// The rank may connect to itself again, if this is it.
    pub fn connect_if(&mut self, peer: Rank) {
        self.is_over &= peer != self.rank;
    }

    /// The connection ends: everything outstanding is flushed, and no message is left.
    pub fn disconnect(&mut self, ends: &mut Ends) {
        let mut tokens = Vec::new();
        let posted = self.matching.flush(|lying| {
            tokens.push(lying.token);
            false
        });
        self.matching.clear();
        self.is_over = true;
        ends.flush(self.rank, posted.into_iter().chain(tokens));
    }

    /// Puts into this place in a region of this rank, if there is one.
    pub fn put(&self, source: View, place: Option<View>, token: u64, ends: &mut Ends) {
        let bytes = source.len_bytes() as u64;
        ends.complete(self.rank, token, put_here(place, source), bytes, 0);
    }

    /// Gets from this place, if there is one.
    pub fn get(&self, place: Option<View>, destination: View, token: u64, ends: &mut Ends) {
        let bytes = destination.len_bytes() as u64;
        ends.complete(self.rank, token, get_here(place, destination), bytes, 0);
    }

    /// Changes the word at this place, if there is one.
    pub fn change(
        &self,
        what: Atomic,
        place: Option<View>,
        result: View,
        token: u64,
        ends: &mut Ends,
    ) {
        let outcome = change_here(place, what, result);
        ends.complete(self.rank, token, outcome, 8, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel;
    use crate::memory::Region;
    use crate::transport::test_posts::ended;

    const LONG: usize = INLINE_BYTES_MAX + 8;

    fn receive(
        own: &mut Loopback,
        region: &Region,
        (tag, token): (u64, u64),
        ends: &mut Ends,
    ) -> Accepted {
        own.receive(tag, region.view().part(LONG, LONG), token, ends)
    }

    #[test]
    fn a_rank_sends_to_itself_before_and_after_the_receive() {
        let region = Region::private(2 * LONG).unwrap();
        let (short, long) = (region.view().part(0, 8), region.view().part(0, LONG));
        let (mut own, mut ends) = (Loopback::new(0), Ends::default());
        own.send((1, 10), short, Some(1), &mut ends).unwrap();
        assert_eq!(ended(&mut ends), [(1, Outcome::Done, 0)], "copied");
        own.send((2, 20), long, Some(2), &mut ends).unwrap();
        assert_eq!(ended(&mut ends), [], "until it is received");
        own.send((3, 30), long, None, &mut ends).unwrap();
        assert_eq!(own.backlog(0), 3);
        assert_eq!(own.find(&mut |tag, _| tag == 2), Some((0, 2, 20)));
        for (tag, expected) in [
            (1, vec![(9, Outcome::Done, 10)]),
            (2, vec![(9, Outcome::Done, 20), (2, Outcome::Done, 0)]),
            (3, vec![(9, Outcome::Done, 30)]),
        ] {
            receive(&mut own, &region, (tag, 9), &mut ends).unwrap();
            assert_eq!(ended(&mut ends), expected);
        }
        receive(&mut own, &region, (4, 8), &mut ends).unwrap();
        own.send((4, 40), long, Some(4), &mut ends).unwrap();
        let both = [(8, Outcome::Done, 40), (4, Outcome::Done, 0)];
        assert_eq!(ended(&mut ends), both);
    }

    #[test]
    fn what_lies_where_it_was_sent_from_is_taken_back_and_all_ends_with_the_connection() {
        let region = Region::private(2 * LONG).unwrap();
        let long = region.view().part(0, LONG);
        let (mut own, mut ends) = (Loopback::new(0), Ends::default());
        own.send((1, 0), long, Some(1), &mut ends).unwrap();
        own.withdraw(&mut ends);
        assert_eq!(ended(&mut ends), [(1, Outcome::Cancelled, 0)]);
        assert_eq!(own.backlog(1), 0);
        own.send((1, 0), long, Some(2), &mut ends).unwrap();
        receive(&mut own, &region, (2, 3), &mut ends).unwrap();
        receive(&mut own, &region, (2, 4), &mut ends).unwrap();
        own.cancel(4, &mut ends);
        assert_eq!(ended(&mut ends), [(4, Outcome::Cancelled, 0)]);
        own.disconnect(&mut ends);
        let flushed = [(3, Outcome::Flushed, 0), (2, Outcome::Flushed, 0)];
        assert_eq!(ended(&mut ends), flushed);
        let late = receive(&mut own, &region, (1, 5), &mut ends);
        assert_eq!(late, Err(PostError::PeerFailed));
    }

    #[test]
    fn one_message_too_many_waits() {
        let (mut own, mut ends) = (Loopback::new(0), Ends::default());
        for _ in 0..MESSAGES_PER_PEER {
            own.send((1, 0), View::empty(), None, &mut ends).unwrap();
        }
        let more = own.send((1, 0), View::empty(), None, &mut ends);
        assert_eq!(more, Err(PostError::WouldBlock));
        own.send((1 << 62, 0), View::empty(), None, &mut ends)
            .unwrap();
    }

    #[test]
    fn puts_gets_and_changes_end_at_once_and_badly_where_there_is_no_such_place() {
        let region = Region::private(64).unwrap();
        let part = |at| region.view().part(at, 8);
        kernel::store(region.view(), 0, 7u64);
        let (own, mut ends) = (Loopback::new(0), Ends::default());
        own.put(part(0), Some(part(8)), 1, &mut ends);
        own.change(Atomic::FetchAdd(1), Some(part(8)), part(16), 2, &mut ends);
        own.get(Some(part(8)), part(24), 3, &mut ends);
        own.get(None, part(24), 4, &mut ends);
        let outcomes = ended(&mut ends).into_iter().map(|end| (end.0, end.1));
        let done = |token| (token, Outcome::Done);
        let expected = [done(1), done(2), done(3), (4, Outcome::BadKey)];
        assert!(outcomes.eq(expected));
        let words = [1, 2, 3].map(|at| kernel::load::<u64>(region.view(), at));
        assert_eq!(words, [8, 7, 8]);
    }
}
