//! Matches messages with receives in the simulation (clauses 6 and 7), for one receiving rank.
//!
//! A *stream* is one (peer, epoch of the connection, tag). A message enters its stream when it is
//! sent, so the order of sending is known however the wire reorders; it can match once it has
//! arrived and everything before it has matched. A stream without messages and receives does not
//! exist.
//!
//! Streams are kept in order: one peer may have thousands, each of a thousand peers may have one,
//! and the end of a connection looks at those of that connection only.

use crate::memory::View;
use crate::types::Rank;
use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};
use std::ops::RangeInclusive;

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

#[derive(Debug)]
struct Stream<M> {
    /// In the order sent, with whether each has arrived.
    messages: VecDeque<(M, bool)>,
    /// In the order posted.
    receives: VecDeque<Receive>,
}

impl<M> Stream<M> {
    const EMPTY: Stream<M> = Stream {
        messages: VecDeque::new(),
        receives: VecDeque::new(),
    };

    fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.receives.is_empty()
    }
}

/// Names a stream: peer, epoch, tag.
type StreamId = (Rank, u32, u64);

fn id(channel: Channel, tag: u64) -> StreamId {
    (channel.peer, channel.epoch, tag)
}

/// What is unmatched at one rank.
#[derive(Debug)]
pub(super) struct Matcher<M> {
    streams: BTreeMap<StreamId, Stream<M>>,
}

impl<M: Copy + PartialEq> Matcher<M> {
    pub(super) fn new() -> Matcher<M> {
        let streams = BTreeMap::new();
        Matcher { streams }
    }

    /// A message has left its sender.
    pub(super) fn handle_sent(&mut self, channel: Channel, tag: u64, message: M) {
        let stream = self.streams.entry(id(channel, tag));
        let messages = &mut stream.or_insert(Stream::EMPTY).messages;
        messages.push_back((message, false));
    }

    /// The message is here. It stays unmatched until [`Matcher::poll_match`] says otherwise.
    pub(super) fn handle_arrival(&mut self, channel: Channel, tag: u64, message: M) {
        // At most messages_per_peer entries; nearly always the first.
        if let Some(stream) = self.streams.get_mut(&id(channel, tag))
            && let Some(entry) = stream.messages.iter_mut().find(|e| e.0 == message)
        {
            entry.1 = true;
        }
    }

    /// A receive was posted.
    pub(super) fn handle_receive(&mut self, channel: Channel, tag: u64, receive: Receive) {
        let stream = self.streams.entry(id(channel, tag));
        let receives = &mut stream.or_insert(Stream::EMPTY).receives;
        if receives.is_empty() {
            // Nearly always the only one, and there may be a million such streams.
            receives.reserve_exact(1);
        }
        receives.push_back(receive);
    }

    /// The next match of a stream, if its oldest message has arrived and a receive waits.
    pub(super) fn poll_match(&mut self, channel: Channel, tag: u64) -> Option<Match<M>> {
        let Entry::Occupied(mut entry) = self.streams.entry(id(channel, tag)) else {
            return None;
        };
        let stream = entry.get_mut();
        let &(message, true) = stream.messages.front()? else {
            return None;
        };
        let receive = stream.receives.pop_front()?;
        stream.messages.pop_front();
        if stream.is_empty() {
            entry.remove();
        }
        Some((message, receive))
    }

    /// Takes a receive back.
    pub(super) fn cancel(&mut self, peer: Rank, token: u64) -> Option<Receive> {
        let of_peer = (peer, 0, 0)..=(peer, u32::MAX, u64::MAX);
        let is_it = |r: &Receive| r.token == token;
        let mut streams = self.streams.range_mut(of_peer);
        let (id, stream, at) = streams.find_map(|(id, stream)| {
            let at = stream.receives.iter().position(is_it)?;
            Some((*id, stream, at))
        })?;
        let found = stream.receives.remove(at);
        if stream.is_empty() {
            self.streams.remove(&id);
        }
        found
    }

    /// Takes a connection out: its receives, and its messages but for those at the head of each
    /// stream that have arrived and that `is_kept` names.
    pub(super) fn take(
        &mut self,
        channel: Channel,
        mut is_kept: impl FnMut(M) -> bool,
    ) -> (Vec<M>, Vec<Receive>) {
        let (mut messages, mut receives) = (Vec::new(), Vec::new());
        let mut ended = Vec::new();
        for (id, stream) in self.streams.range_mut(streams_of(channel)) {
            let is_last = |&(message, is_here): &(M, bool)| !(is_here && is_kept(message));
            let kept = stream.messages.iter().position(is_last);
            let kept = kept.unwrap_or(stream.messages.len());
            messages.extend(stream.messages.drain(kept..).map(|(message, _)| message));
            receives.extend(stream.receives.drain(..));
            ended.extend(stream.is_empty().then_some(*id));
        }
        for id in &ended {
            self.streams.remove(id);
        }
        (messages, receives)
    }

    /// Whether the oldest message of this stream is here: a receive matches it at once.
    pub(super) fn has_arrived(&self, channel: Channel, tag: u64) -> bool {
        let stream = self.streams.get(&id(channel, tag));
        stream.is_some_and(|stream| matches!(stream.messages.front(), Some((_, true))))
    }
}

fn streams_of(channel: Channel) -> RangeInclusive<StreamId> {
    id(channel, 0)..=id(channel, u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Channel = Channel { peer: 1, epoch: 1 };

    fn streams<M>(matcher: &Matcher<M>) -> usize {
        matcher.streams.len()
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
        assert_eq!(streams(&matcher), 0, "nothing is left behind");
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
    fn a_connection_is_taken_out_as_a_whole() {
        let mut matcher = Matcher::new();
        matcher.handle_receive(A, 7, receive(1));
        matcher.handle_sent(A, 8, "message");
        matcher.handle_receive(Channel { peer: 1, epoch: 2 }, 7, receive(3));
        let (messages, receives) = matcher.take(A, |_| false);
        assert_eq!((messages, receives.len()), (vec!["message"], 1));
        assert_eq!(streams(&matcher), 1, "the other connection is untouched");
    }
}
