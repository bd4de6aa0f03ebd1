//! Peers that come one by one: a slot is connected at any time, also again when its peer has ended
//! (clause 23). Meanwhile everything else goes on.
//!
//! A peer that is not there has ended, for all that asks: operations on its windows and messages
//! to it fail by themselves. There are no collectives then, which need all ranks.

use super::core::Engine;
use super::links::Contact;
use crate::error::Result;
use crate::types::Rank;

impl Engine {
    /// Begins without peers, in place of [`Engine::connect`]: each slot, that of this rank
    /// included, is connected by [`Engine::connect_one`].
    pub fn start_alone(&mut self) {
        self.tolerate_failures();
        self.driver.links.start_alone();
    }

    /// Begins to connect the slot of a peer, which may have been used before: that peer is
    /// dismissed if it has not ended. Nothing of it is seen any more.
    ///
    /// # Errors
    /// The address is none of this transport.
    pub fn connect_one(&mut self, peer: Rank, contact: Contact) -> Result<()> {
        let is_in_use = !self.has_ended(peer) || self.is_connecting(peer);
        if is_in_use && peer != self.rank() {
            self.driver.links.transport.disconnect(peer);
            self.driver.links.mark_gone(peer, "it was dismissed".into());
        }
        self.take_all_events();
        self.fail_receives_of_ended();
        self.fail_remotes_of_ended();
        self.pair_counts[peer as usize] = (0, 0);
        self.tagged.forget_peer(peer);
        self.notices.forget_peer(peer);
        self.driver.links.connect_one(peer, contact)?;
        self.has_chores = true;
        Ok(())
    }

    /// Whether a peer can be reached. False: it is being connected, or has ended since
    /// ([`Engine::is_connecting`]).
    pub fn is_connected(&self, peer: Rank) -> bool {
        self.driver.links.is_known(peer) && !self.has_ended(peer)
    }

    /// Whether a slot is being connected.
    pub fn is_connecting(&self, peer: Rank) -> bool {
        self.driver.links.connecting.contains(&peer)
    }

    /// Goes on with all that come.
    pub(super) fn go_on_connecting(&mut self) {
        self.driver.moved |= self.driver.links.go_on_connecting();
    }
}
