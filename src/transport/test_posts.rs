//! Posts for the tests of providers, whose memory outlives their posts.
#![allow(unsafe_code)]

use super::posts::Ends;
use super::{Atomic, Event, Outcome, PostError, RemoteRange, Transport};
use crate::memory::View;
use crate::types::Rank;

type Posted = std::result::Result<(), PostError>;

/// The posts of a [`Transport`]. A test keeps its regions until what it has posted has completed or
/// its transports have ended, and reads and writes them by copies.
pub(super) trait TestPosts: Transport {
    /// [`Transport::post_send`].
    fn test_send(&mut self, peer: Rank, tag: u64, header: u64, source: View, token: u64) -> Posted {
        // SAFETY: the test keeps the memory.
        unsafe { self.post_send(peer, tag, header, source, token) }
    }

    /// [`Transport::post_recv`].
    fn test_recv(&mut self, peer: Rank, tag: u64, destination: View, token: u64) -> Posted {
        // SAFETY: the test keeps the memory.
        unsafe { self.post_recv(peer, tag, destination, token) }
    }

    /// [`Rma::post_put`](super::Rma::post_put).
    fn test_put(
        &mut self,
        peer: Rank,
        source: View,
        destination: RemoteRange,
        token: u64,
    ) -> Posted {
        // SAFETY: the test keeps the memory.
        unsafe { self.post_put(peer, source, destination, token) }
    }

    /// [`Rma::post_get`](super::Rma::post_get).
    fn test_get(
        &mut self,
        peer: Rank,
        source: RemoteRange,
        destination: View,
        token: u64,
    ) -> Posted {
        // SAFETY: the test keeps the memory.
        unsafe { self.post_get(peer, source, destination, token) }
    }

    /// [`Rma::post_atomic`](super::Rma::post_atomic).
    fn test_atomic(
        &mut self,
        peer: Rank,
        what: Atomic,
        word: RemoteRange,
        result: View,
        token: u64,
    ) -> Posted {
        // SAFETY: the test keeps the memory.
        unsafe { self.post_atomic(peer, what, word, result, token) }
    }
}

impl<T: Transport + ?Sized> TestPosts for T {}

/// The completions that have come about: token, outcome and header of each.
pub(super) fn ended(ends: &mut Ends) -> Vec<(u64, Outcome, u64)> {
    let mut events = Vec::new();
    ends.take(&mut events);
    let ended = events.into_iter().map(|event| match event {
        Event::Completion(end) => (end.token, end.outcome, end.header),
        other => panic!("{other:?}"),
    });
    ended.collect()
}
