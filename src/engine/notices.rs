//! Notices: single words that a rank may send to a peer at any time, about things that are no
//! operation (yet): that a rank has arrived at a partial collective, and that the collective
//! begins.
//!
//! A notice is the header of an empty message in a class of tags of its own, so that it needs no
//! memory, takes no place from operations, and works on every transport. A rank that is to take
//! notices posts one receive for each peer, and another one whenever a notice has come. Notices of
//! one peer come in order; the sender is not told that they have come.

use super::core::Engine;
use super::tag::{self, Token};
use crate::error::Result;
use crate::memory::View;
use crate::transport::{Completion, Outcome, PostError};
use crate::types::Rank;

impl Engine {
    /// Takes notices from now on. Notices that came earlier have waited in the transport.
    pub fn open_notices(&mut self) -> Result<()> {
        for peer in self.driver.links.others() {
            self.post_notice_receive(peer)?;
        }
        Ok(())
    }

    /// Sends a word to a peer, as soon as there is room.
    pub fn notice(&mut self, peer: Rank, word: u64) {
        self.notices.unsent.push_back((peer, word));
        self.send_notices();
    }

    /// The next word of a peer.
    pub fn take_notice(&mut self) -> Option<(Rank, u64)> {
        self.notices.arrived.pop_front()
    }

    /// Whether a word waits to be taken.
    pub fn has_notices(&self) -> bool {
        !self.notices.arrived.is_empty()
    }

    /// Sends the notices that wait for room, as far as there is some.
    pub(super) fn send_notices(&mut self) {
        if self.failing.cause.is_some() {
            return;
        }
        let links = &mut self.driver.links;
        let mut failed = None;
        // One peer without room does not hold up the others.
        self.notices.unsent.retain(|&(peer, word)| {
            let (tag, empty) = (tag::notice(), View::empty());
            match links.post_send(peer, (tag, word), empty, Token::FORGET) {
                Err(PostError::WouldBlock) => true,
                // A peer that is gone needs no notice.
                Ok(()) | Err(PostError::PeerFailed) => false,
                Err(error) => {
                    failed = Some(links.post_error(peer, error));
                    false
                }
            }
        });
        self.notices.has_unsent = !self.notices.unsent.is_empty();
        self.has_chores |= self.notices.has_unsent;
        if let Some(error) = failed {
            self.fail(error, true);
        }
    }

    pub(super) fn handle_notice(&mut self, peer: Rank, completion: &Completion) {
        if completion.outcome != Outcome::Done {
            return; // The peer is gone or the communicator ends; an event says which.
        }
        self.notices.arrived.push_back((peer, completion.header));
        self.driver.moved = true;
        if let Err(error) = self.post_notice_receive(peer) {
            self.fail(error, true);
        }
    }

    fn post_notice_receive(&mut self, peer: Rank) -> Result<()> {
        let links = &mut self.driver.links;
        let (tag, token) = (tag::notice(), Token::notice_receive(peer));
        match links.post_recv(peer, tag, View::empty(), token) {
            Ok(()) | Err(PostError::PeerFailed) => Ok(()),
            Err(error) => Err(links.post_error(peer, error)),
        }
    }
}
