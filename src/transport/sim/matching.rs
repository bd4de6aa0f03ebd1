//! Matches messages with receives in the simulation (clauses 6 and 7), for one receiving rank.
//!
//! A *stream* is one (peer, epoch of the connection, tag). A message enters its stream when it is
//! sent, so the order of sending is known however the wire reorders; it can match once it has
//! arrived and everything before it has matched.
//!
//! Each peer has a list of messages and one of receives, in the order of their streams and inside a
//! stream as sent or posted. The tags of a collective's messages rise, so what comes next is nearly
//! always near the front.

use crate::memory::View;
use crate::types::Rank;
use std::collections::VecDeque;

/// One connection with one peer: what a disconnect ends as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Channel {
    pub(super) peer: Rank,
    pub(super) epoch: u32,
}

/// A posted receive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receive {
    pub(super) destination: View,
    pub(super) token: u64,
}

/// A message of type `M` and the receive that it met.
pub(super) type Match<M> = (M, Receive);

/// A stream of one peer: epoch and tag.
type StreamId = (u32, u64);

/// What belongs to the streams of one peer, in order.
#[derive(Debug)]
struct Queue<T>(VecDeque<(StreamId, T)>);

impl<T> Queue<T> {
    const EMPTY: Queue<T> = Queue(VecDeque::new());

    /// How many entries belong before one of this stream: those of the streams before it, and with
    /// `behind` those of this stream, too. It looks from the front.
    fn before(&self, id: StreamId, behind: bool) -> usize {
        let is_before = |other: StreamId| other < id || (behind && other == id);
        let mut end = 1;
        while end <= self.0.len() && is_before(self.0[end - 1].0) {
            end *= 2;
        }
        let mut first = end / 2;
        end = end.min(self.0.len());
        while first < end {
            let middle = (first + end) / 2;
            match is_before(self.0[middle].0) {
                true => first = middle + 1,
                false => end = middle,
            }
        }
        first
    }

    /// The first entry of a stream, and its place.
    fn first(&self, id: StreamId) -> Option<(usize, &T)> {
        let at = self.before(id, false);
        let (of, entry) = self.0.get(at)?;
        (*of == id).then_some((at, entry))
    }

    fn push(&mut self, id: StreamId, entry: T) {
        if self.0.is_empty() {
            // Nearly always the only one where a rank has a thousand peers.
            self.0.reserve_exact(1);
        }
        self.0.insert(self.before(id, true), (id, entry));
    }

    fn remove(&mut self, at: usize) -> Option<T> {
        Some(self.0.remove(at)?.1)
    }
}

/// What is unmatched of one peer.
#[derive(Debug)]
struct Unmatched<M> {
    /// With whether each has arrived.
    messages: Queue<(M, bool)>,
    receives: Queue<Receive>,
}

/// What is unmatched at one rank.
#[derive(Debug)]
pub(super) struct Matcher<M> {
    /// By peer; those at the end that never had anything may be missing.
    peers: Vec<Unmatched<M>>,
}

impl<M: Copy + PartialEq> Matcher<M> {
    pub(super) fn new() -> Matcher<M> {
        let peers = Vec::new();
        Matcher { peers }
    }

    fn of(&mut self, peer: Rank) -> &mut Unmatched<M> {
        let peer = peer as usize;
        if self.peers.len() <= peer {
            self.peers.resize_with(peer + 1, || Unmatched {
                messages: Queue::EMPTY,
                receives: Queue::EMPTY,
            });
        }
        &mut self.peers[peer]
    }

    /// A message has left its sender.
    pub(super) fn handle_sent(&mut self, channel: Channel, tag: u64, message: M) {
        let messages = &mut self.of(channel.peer).messages;
        messages.push((channel.epoch, tag), (message, false));
    }

    /// The message is here. It stays unmatched until [`Matcher::poll_match`] says otherwise.
    pub(super) fn handle_arrival(&mut self, channel: Channel, tag: u64, message: M) {
        let messages = &mut self.of(channel.peer).messages;
        let id = (channel.epoch, tag);
        let mut of_stream = messages.0.range_mut(messages.before(id, false)..);
        // At most messages_per_peer entries; nearly always the first.
        if let Some((_, entry)) = of_stream.find(|(of, entry)| *of != id || entry.0 == message)
            && entry.0 == message
        {
            entry.1 = true;
        }
    }

    /// A receive was posted.
    pub(super) fn handle_receive(&mut self, channel: Channel, tag: u64, receive: Receive) {
        let receives = &mut self.of(channel.peer).receives;
        receives.push((channel.epoch, tag), receive);
    }

    /// The next match of a stream, if its oldest message has arrived and a receive waits.
    pub(super) fn poll_match(&mut self, channel: Channel, tag: u64) -> Option<Match<M>> {
        let (unmatched, id) = (self.of(channel.peer), (channel.epoch, tag));
        let (message_at, &(message, true)) = unmatched.messages.first(id)? else {
            return None;
        };
        let (receive_at, _) = unmatched.receives.first(id)?;
        unmatched.messages.remove(message_at);
        Some((message, unmatched.receives.remove(receive_at)?))
    }

    /// Takes a receive back.
    pub(super) fn cancel(&mut self, peer: Rank, token: u64) -> Option<Receive> {
        let receives = &mut self.of(peer).receives;
        let at = (receives.0.iter()).position(|(_, receive)| receive.token == token)?;
        receives.remove(at)
    }

    /// Takes a connection out: its receives, and its messages but for those at the head of each
    /// stream that have arrived and that `is_kept` names.
    pub(super) fn take(
        &mut self,
        channel: Channel,
        mut is_kept: impl FnMut(M) -> bool,
    ) -> (Vec<M>, Vec<Receive>) {
        let (mut messages, mut receives) = (Vec::new(), Vec::new());
        let unmatched = self.of(channel.peer);
        // The last stream of which a message was taken.
        let mut ended = None;
        unmatched.messages.0.retain(|&(id, (message, is_here))| {
            if id.0 != channel.epoch || (ended != Some(id) && is_here && is_kept(message)) {
                return true;
            }
            ended = Some(id);
            messages.push(message);
            false
        });
        unmatched.receives.0.retain(|(id, receive)| {
            let is_other = id.0 != channel.epoch;
            receives.extend((!is_other).then_some(*receive));
            is_other
        });
        (messages, receives)
    }

    /// Whether the oldest message of this stream is here: a receive matches it at once.
    pub(super) fn has_arrived(&self, channel: Channel, tag: u64) -> bool {
        let unmatched = self.peers.get(channel.peer as usize);
        let first = unmatched.and_then(|of| of.messages.first((channel.epoch, tag)));
        matches!(first, Some((_, (_, true))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Channel = Channel { peer: 1, epoch: 1 };

    /// How many messages and receives are left.
    fn left<M>(matcher: &Matcher<M>) -> usize {
        let left = |of: &Unmatched<M>| of.messages.0.len() + of.receives.0.len();
        matcher.peers.iter().map(left).sum()
    }

    fn receive(token: u64) -> Receive {
        Receive {
            destination: View::empty(),
            token,
        }
    }

    #[test]
    fn messages_of_one_tag_match_in_the_order_sent_however_they_arrive() {
        let mut matcher = Matcher::new();
        matcher.handle_sent(A, 7, "first");
        matcher.handle_sent(A, 7, "second");
        matcher.handle_receive(A, 7, receive(1));
        matcher.handle_receive(A, 7, receive(2));
        matcher.handle_arrival(A, 7, "second");
        assert!(matcher.poll_match(A, 7).is_none());
        matcher.handle_arrival(A, 7, "first");
        assert_eq!(
            matcher.poll_match(A, 7).map(|m| (m.0, m.1.token)),
            Some(("first", 1))
        );
        assert_eq!(
            matcher.poll_match(A, 7).map(|m| (m.0, m.1.token)),
            Some(("second", 2))
        );
        assert_eq!(left(&matcher), 0, "nothing is left behind");
    }

    #[test]
    fn tags_peers_and_epochs_do_not_mix() {
        let mut matcher = Matcher::new();
        matcher.handle_receive(A, 7, receive(1));
        for (channel, tag) in [
            (A, 8),
            (Channel { peer: 2, epoch: 1 }, 7),
            (Channel { peer: 1, epoch: 2 }, 7),
        ] {
            matcher.handle_sent(channel, tag, "other");
            matcher.handle_arrival(channel, tag, "other");
            assert!(matcher.poll_match(channel, tag).is_none());
        }
        assert!(matcher.poll_match(A, 7).is_none());
    }

    #[test]
    fn a_cancelled_receive_takes_no_message_with_it() {
        let mut matcher = Matcher::new();
        matcher.handle_receive(A, 7, receive(1));
        matcher.handle_receive(A, 7, receive(2));
        assert!(
            matcher.cancel(2, 1).is_none(),
            "of another peer nothing is cancelled"
        );
        assert_eq!(matcher.cancel(1, 1).map(|r| r.token), Some(1));
        assert!(matcher.cancel(1, 1).is_none());
        matcher.handle_sent(A, 7, "message");
        matcher.handle_arrival(A, 7, "message");
        assert_eq!(matcher.poll_match(A, 7).map(|m| m.1.token), Some(2));
    }

    #[test]
    fn what_arrived_in_order_can_be_kept_when_a_connection_is_taken_out() {
        let mut matcher = Matcher::new();
        for message in [1, 2, 3, 4] {
            matcher.handle_sent(A, 7, message);
        }
        for message in [1, 2, 4] {
            matcher.handle_arrival(A, 7, message);
        }
        assert_eq!(matcher.take(A, |_| true).0, [3, 4], "4 would come before 3");
        assert!(matcher.has_arrived(A, 7) && !matcher.has_arrived(A, 8));
        assert_eq!(matcher.take(A, |message| message == 1).0, [2]);
    }

    #[test]
    fn a_stream_is_found_wherever_its_tag_is() {
        // Every number of streams up to 20, added from both ends inwards.
        for count in 0..20u64 {
            let mut matcher = Matcher::new();
            for place in (0..count).map(|n| if n % 2 == 0 { n / 2 } else { count - 1 - n / 2 }) {
                matcher.handle_receive(A, 2 * place + 1, receive(place));
                matcher.handle_sent(A, 2 * place + 1, place);
                matcher.handle_arrival(A, 2 * place + 1, place);
            }
            assert_eq!(left(&matcher), 2 * count as usize);
            for place in 0..=count {
                assert!(matcher.poll_match(A, 2 * place).is_none());
            }
            for place in (0..count).rev() {
                let met = matcher.poll_match(A, 2 * place + 1);
                assert_eq!(met.map(|m| (m.0, m.1.token)), Some((place, place)));
            }
            assert_eq!(left(&matcher), 0);
        }
    }

    #[test]
    fn a_connection_is_taken_out_as_a_whole() {
        let mut matcher = Matcher::new();
        matcher.handle_receive(A, 7, receive(1));
        matcher.handle_sent(A, 8, "message");
        matcher.handle_receive(Channel { peer: 1, epoch: 2 }, 7, receive(3));
        let (messages, receives) = matcher.take(A, |_| false);
        assert_eq!((messages, receives.len()), (vec!["message"], 1));
        assert_eq!(left(&matcher), 1, "the other connection is untouched");
    }
}
