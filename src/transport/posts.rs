//! What providers do alike with posts: checks before they are accepted, puts and gets in memory of
//! this process, and how posts end.

use super::buffers::Buffers;
use super::{Atomic, Completion, Event, Outcome, PostError, tells_arrival};
use crate::kernel;
use crate::memory::View;
use crate::types::Rank;

pub(super) type Accepted = Result<(), PostError>;

/// Whether a connection takes posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerState {
    /// Nobody has asked for it.
    Idle,
    /// It takes posts.
    Open,
    /// It has failed, or is closed.
    Gone,
}

impl PeerState {
    /// Whether a post may name a peer in this state; `None`: there is no such rank.
    pub fn check(state: Option<PeerState>, peer: Rank, ranks: usize) -> Accepted {
        match state {
            Some(PeerState::Open) => Ok(()),
            Some(PeerState::Idle) => Err(PostError::WouldBlock),
            Some(PeerState::Gone) => Err(PostError::PeerFailed),
            None => Err(no_such_rank(peer, ranks)),
        }
    }
}

pub(super) fn no_such_rank(peer: Rank, ranks: usize) -> PostError {
    PostError::invalid(format!("rank {peer} of a job of {ranks} ranks"))
}

/// Does a put into memory of this process, if there is such a range.
pub(super) fn put_here(place: Option<View>, source: View) -> Outcome {
    place.map_or(Outcome::BadKey, |place| {
        kernel::copy(source, place);
        Outcome::Done
    })
}

/// Does a get from memory of this process, if there is such a range.
pub(super) fn get_here(place: Option<View>, destination: View) -> Outcome {
    place.map_or(Outcome::BadKey, |place| {
        kernel::copy(place, destination);
        Outcome::Done
    })
}

/// Does an atomic operation on a word of this process, if there is such a word.
pub(super) fn change_here(place: Option<View>, what: Atomic, result: View) -> Outcome {
    place.map_or(Outcome::BadKey, |place| {
        kernel::write(result, 0, &what.apply(&place).to_ne_bytes());
        Outcome::Done
    })
}

/// What the next poll reports, and buffers of messages that were delivered, for reuse.
#[derive(Debug, Default)]
pub(super) struct Ends {
    events: Vec<Event>,
    pub spare: Buffers,
}

impl Ends {
    /// A post to or from `peer` has ended.
    pub fn complete(&mut self, peer: Rank, token: u64, outcome: Outcome, bytes: u64, header: u64) {
        self.events.push(Event::Completion(Completion {
            token,
            peer,
            outcome,
            bytes,
            header,
        }));
    }

    /// A message waits for its receive.
    #[inline]
    pub fn note_unmatched(&mut self, peer: Rank, tag: u64) {
        if tells_arrival(tag) {
            self.events.push(Event::Unmatched(peer, tag));
        }
    }

    /// Posts end because the connection does.
    pub fn flush(&mut self, peer: Rank, tokens: impl IntoIterator<Item = u64>) {
        for token in tokens {
            self.complete(peer, token, Outcome::Flushed, 0, 0);
        }
    }

    pub fn push(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Nothing of a connection that has ended is reported but the ends of its posts.
    pub fn forget(&mut self, of: Rank) {
        self.events.retain(|event| match *event {
            Event::Completion(_) => true,
            Event::Connected(peer)
            | Event::PeerFailed(peer, _)
            | Event::PeerLeft(peer, _)
            | Event::Unmatched(peer, _) => peer != of,
        });
    }

    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Hands over what has happened.
    #[inline]
    pub fn take(&mut self, events: &mut Vec<Event>) {
        events.append(&mut self.events);
    }

    /// Copies the bytes of a message whose receive is not posted yet.
    pub fn copy(&mut self, source: View) -> Vec<u8> {
        let mut copied = self.spare.take(source.len_bytes());
        kernel::read(source, 0, &mut copied);
        copied
    }
}

#[cfg(test)]
mod tests {
    use super::super::registry::Registry;
    use super::*;
    use crate::limits::INLINE_BYTES_MAX;
    use crate::memory::Region;

    #[test]
    fn posts_name_a_rank_that_is_there_and_memory_that_is_registered() {
        let check = |state| PeerState::check(state, 7, 4);
        assert_eq!(check(Some(PeerState::Open)), Ok(()));
        assert_eq!(check(Some(PeerState::Idle)), Err(PostError::WouldBlock));
        assert_eq!(check(Some(PeerState::Gone)), Err(PostError::PeerFailed));
        assert!(matches!(check(None), Err(PostError::Invalid(text)) if text.contains("rank 7")));
        let region = Region::private(INLINE_BYTES_MAX + 1).unwrap();
        let (view, mut registry) = (region.view(), Registry::new());
        assert!(registry.check_source(view).is_err());
        assert_eq!(
            registry.check_source(view.part(0, INLINE_BYTES_MAX)),
            Ok(())
        );
        let key = registry.add(view, ()).unwrap();
        assert_eq!(registry.check_source(view.in_region(key, 0)), Ok(()));
    }
}
