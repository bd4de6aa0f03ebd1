//! Peers that are connected one by one (`engine/connecting.rs`).

use super::{Contact, Links, Peer};
use crate::error::Result;
use crate::kernel;
use crate::limits::{CACHE_LINE_BYTES, LANES, OPERATION_SLOTS};
use crate::memory::RegionKey;
use crate::schedule::Lane;
use crate::transport::Address;
use crate::types::Rank;
use std::sync::Arc;

impl Links {
    /// No slot is connected.
    pub fn start_alone(&mut self) {
        let nobody = Contact {
            address: Address(Vec::new()),
            control_key: RegionKey::NONE,
            window_key: RegionKey::NONE,
        };
        self.contacts = vec![nobody; self.ranks as usize].into();
        for peer in self.others() {
            self.mark_gone(peer, "it has not come".into());
        }
    }

    /// Begins to connect a slot that is not connected.
    pub fn connect_one(&mut self, peer: Rank, contact: Contact) -> Result<()> {
        self.transport.connect(peer, &contact.address)?;
        Arc::make_mut(&mut self.contacts)[peer as usize] = contact;
        let known = &mut self.peers[peer as usize];
        // Until it is connected, it has ended for all that asks.
        *known = Peer {
            gone: known.gone.take(),
            left: known.left.take(),
            ..Peer::default()
        };
        self.connecting.retain(|&other| other != peer);
        self.connecting.push(peer);
        Ok(())
    }

    /// The transport has connected a slot.
    pub fn note_connected(&mut self, peer: Rank) {
        if !self.connecting.contains(&peer) {
            return;
        }
        // Nobody of the old connection writes here any more, and the new peer does not yet.
        let lines = (0..OPERATION_SLOTS)
            .flat_map(|slot| (0..LANES as Lane).map(move |lane| (slot, lane)))
            .map(|(slot, lane)| self.layout.line(slot, lane, peer));
        for at in lines.chain([self.layout.retired(peer)]) {
            kernel::write(self.control, at, &[0; CACHE_LINE_BYTES]);
        }
        self.peers[peer as usize].is_connected = true;
    }

    /// A slot that was being connected has failed.
    pub fn end_connecting(&mut self, peer: Rank) {
        self.connecting.retain(|&other| other != peer);
    }

    /// Goes on with the slots that are being connected; whether one of them is none of these any
    /// more. A peer whose memory cannot be used is dismissed.
    pub fn go_on_connecting(&mut self) -> bool {
        let before = self.connecting.len();
        for peer in self.connecting.clone() {
            if !self.peers[peer as usize].is_connected {
                continue;
            }
            match self.map_peer(peer) {
                Ok(false) => {}
                Ok(true) => self.end_well(peer),
                Err(error) => {
                    self.transport.disconnect(peer);
                    self.end_connecting(peer);
                    self.mark_gone(peer, error.to_string());
                }
            }
        }
        before != self.connecting.len()
    }

    fn end_well(&mut self, peer: Rank) {
        self.end_connecting(peer);
        // A peer whose receive cannot be posted is gone, which an event reports.
        if peer != self.rank && self.post_control_receive(peer).is_err() {
            return;
        }
        let known = &mut self.peers[peer as usize];
        known.is_known = true;
        self.gone_count -= u32::from(known.gone.take().is_some());
        self.left_count -= u32::from(known.left.take().is_some());
        self.connected_later += 1;
    }

    /// Whether the memory of a peer is known here, and that of this rank to it.
    pub fn is_known(&self, peer: Rank) -> bool {
        self.peers[peer as usize].is_known
    }
}
