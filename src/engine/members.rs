//! How a rank ends a communicator on purpose, and what a rebuild asks of an engine: which peers are
//! gone, and whether every rank is connected.

use super::core::Engine;
use crate::error::Error;
use crate::types::Rank;
use crate::wire::{ControlKind, ControlMessage};

impl Engine {
    /// Fails the communicator on all ranks because this rank gives it up. If it has failed already,
    /// the first cause stays.
    pub fn abort(&mut self, reason: &str) {
        let (by, reason) = (self.rank(), reason.to_string());
        self.fail_with(Error::Aborted { by, reason });
    }

    /// Fails the communicator on all ranks with this cause, which was found outside of its
    /// operations.
    pub fn fail_with(&mut self, error: Error) {
        self.fail(error, true);
        // Threads of this rank may sleep: nothing arrives that would wake them.
        self.driver.links.transport.notify(self.driver.links.rank);
    }

    /// Why a peer is gone, if it is: it has failed, or it has left.
    pub fn gone(&self, peer: Rank) -> Option<&str> {
        self.driver.links.gone(peer)
    }

    /// The first peer that is gone, as the error of an operation that needs it.
    pub fn first_gone(&self) -> Option<Error> {
        self.driver.links.first_gone()
    }

    /// Tells all peers that every rank is connected. A rank that misses the message of the leader
    /// of a rebuild learns it from any rank that goes on.
    pub fn confirm(&mut self) {
        let message = ControlMessage {
            kind: ControlKind::Confirmed,
            rank: self.rank(),
            sequence: 0,
            signature: 0,
            text: String::new(),
        };
        for peer in self.driver.links.others() {
            self.driver.links.send_control(peer, &message);
        }
    }

    /// Whether a peer has confirmed that every rank is connected.
    pub fn is_confirmed(&self) -> bool {
        self.failing.is_confirmed
    }
}
