//! What the contract asks of the `tcp` provider: posts, polls and what is looked at slowly.

use super::peer::Peer;
use super::{
    CONNECTED_RANKS_MAX, CONNECTION_POLLS, COUNT_BYTES, DIRECT_RAILS_MAX, SMALL_BYTES_MAX,
    TcpTransport,
};
use crate::error::Result;
use crate::limits::MESSAGES_PER_PEER;
use crate::memory::{Region, RegionKey, View};
use crate::time::Time;
use crate::transport::posts::{Accepted, PeerState, change_here, get_here, no_such_rank, put_here};
use crate::transport::{
    Address, Atomic, Capabilities, Event, PostError, RemoteRange, Transport, WaitSource, keys,
    tag_class,
};
use crate::types::Rank;
use crate::wire::Frame;
use std::sync::Arc;

impl Transport for TcpTransport {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn local_address(&self) -> Address {
        self.address.emit()
    }

    fn connect(&mut self, peer: Rank, address: &Address) -> Result<()> {
        self.begin(peer, address)?;
        if peer != self.rank && self.peers.len() <= CONNECTED_RANKS_MAX as usize {
            let known = &mut self.peers[peer as usize];
            known.reach.await_connection();
            // One of the two connects, so that they never meet on the way.
            known.reach.set_opener(self.rank < peer);
            self.connect_if_needed(peer, false);
        } else {
            self.shared.ends.push(Event::Connected(peer));
        }
        Ok(())
    }

    fn expect(&mut self, peer: Rank, address: &Address) -> Result<()> {
        self.begin(peer, address)?;
        self.peers[peer as usize].reach.await_connection();
        Ok(())
    }

    fn call(&mut self, peer: Rank) {
        self.peers[peer as usize].reach.set_opener(true);
        self.connect_if_needed(peer, false);
    }

    fn disconnect(&mut self, peer: Rank) {
        let Some(known) = self.peers.get_mut(peer as usize) else {
            return;
        };
        if known.state == PeerState::Open {
            if !known.rails.is_empty() {
                known.settle(&self.shared, true);
                known.push_control(&self.shared, Frame::Goodbye { word: 0 });
                // Nobody asks for it again.
                let pace = self.shared.pace.take();
                // A peer that takes nothing now sees the connection close.
                let _ = known.pump(&mut self.shared);
                self.shared.pace = pace;
            }
            known.flush(&mut self.shared);
            self.connecting.retain(|one| one.peer() != peer);
            self.close_rails(peer);
        }
        known_gone(&mut self.peers[peer as usize]);
    }

    fn leave(&mut self, word: u64) -> bool {
        let own = self.rank;
        // The bytes of a transfer lie in memory that ends with this rank, until the peer has them.
        let is_needed = |p: &Peer| p.rank != own && !p.is_over() && !p.outgoing.is_empty();
        if !self.shared.is_leaving {
            if self.peers.iter().any(is_needed) {
                return false;
            }
            self.say_goodbye(word);
        }
        self.go_on_leaving()
    }

    fn register(&mut self, region: Arc<Region>) -> Result<RegionKey> {
        let key = self.keys.take()?;
        self.shared.regions.insert(key, region);
        Ok(key)
    }

    fn deregister(&mut self, key: RegionKey) -> Result<()> {
        keys::known(key, self.shared.regions.remove(&key)).map(drop)
    }

    fn export(&mut self, peer: Rank, _key: RegionKey) -> Accepted {
        self.check_peer(peer)
    }

    fn mapped(&mut self, _peer: Rank, _key: RegionKey) -> Result<Option<View>> {
        Ok(None)
    }

    unsafe fn post_send(
        &mut self,
        peer: Rank,
        tag: u64,
        header: u64,
        source: View,
        token: u64,
    ) -> Accepted {
        self.check_peer(peer)?;
        self.check_source(source)?;
        let known = &mut self.peers[peer as usize];
        if peer == self.rank {
            if known.matching.waiting(tag_class(tag)) >= MESSAGES_PER_PEER {
                return Err(PostError::WouldBlock);
            }
            let (message, copied_max) = ((peer, tag, header), SMALL_BYTES_MAX as usize);
            let ends = &mut self.shared.ends;
            (known.matching).send_to_oneself(message, source, Some(token), copied_max, ends);
            return Ok(());
        }
        known.send((tag, header), source, token, &mut self.shared)?;
        self.pump(peer);
        Ok(())
    }

    fn withdraw(&mut self) {
        for rank in 0..self.peers.len() as Rank {
            let known = &mut self.peers[rank as usize];
            if known.withdraw(&mut self.shared) {
                self.refresh_active();
                self.pump(rank);
                self.connect_if_needed(rank, false);
            }
        }
    }

    fn backlog(&mut self, peer: Rank, tag: u64) -> u32 {
        let class = tag_class(tag);
        match self.peers.get(peer as usize) {
            Some(known) if peer == self.rank => known.matching.waiting(class),
            Some(known) => u32::from(known.backlog(class)),
            None => 0,
        }
    }

    fn unmatched(
        &mut self,
        is_meant: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Option<(Rank, u64, u64)> {
        (0..).zip(&self.peers).find_map(|(rank, peer)| {
            let found = peer.matching.find(is_meant);
            found.map(|(tag, header)| (rank, tag, header))
        })
    }

    unsafe fn post_recv(
        &mut self,
        peer: Rank,
        tag: u64,
        destination: View,
        token: u64,
    ) -> Accepted {
        if peer as usize >= self.peers.len() {
            return Err(no_such_rank(peer, self.peers.len()));
        }
        let known = &mut self.peers[peer as usize];
        known.post_recv(tag, destination, token, &mut self.shared)?;
        if known.has_output() {
            self.pump(peer);
        }
        Ok(())
    }

    unsafe fn post_put(
        &mut self,
        peer: Rank,
        source: View,
        destination: RemoteRange,
        token: u64,
    ) -> Accepted {
        self.check_peer(peer)?;
        self.check_source(source)?;
        let bytes = source.len_bytes() as u64;
        if peer == self.rank {
            let range = (self.shared).range(destination.key.0, destination.offset, bytes);
            let outcome = put_here(range, source);
            self.shared.complete(peer, token, outcome, bytes, 0);
            return Ok(());
        }
        self.peers[peer as usize].put(source, destination, token, &mut self.shared)?;
        if bytes > COUNT_BYTES as u64 {
            self.pump(peer);
        }
        Ok(())
    }

    unsafe fn post_get(
        &mut self,
        peer: Rank,
        source: RemoteRange,
        destination: View,
        token: u64,
    ) -> Accepted {
        self.check_peer(peer)?;
        self.check_source(destination)?;
        let bytes = destination.len_bytes() as u64;
        if peer == self.rank {
            let range = self.shared.range(source.key.0, source.offset, bytes);
            let outcome = get_here(range, destination);
            self.shared.complete(peer, token, outcome, bytes, 0);
            return Ok(());
        }
        self.peers[peer as usize].get(source, destination, token, &mut self.shared)?;
        self.pump(peer);
        Ok(())
    }

    unsafe fn post_atomic(
        &mut self,
        peer: Rank,
        what: Atomic,
        word: RemoteRange,
        result: View,
        token: u64,
    ) -> Accepted {
        self.check_peer(peer)?;
        what.check(word, result)?;
        if peer == self.rank {
            let range = self.shared.range(word.key.0, word.offset, 8);
            let outcome = change_here(range, what, result);
            self.shared.complete(peer, token, outcome, 8, 0);
            return Ok(());
        }
        self.peers[peer as usize].change(what, word, result, token, &mut self.shared)?;
        self.pump(peer);
        Ok(())
    }

    fn cancel(&mut self, peer: Rank, token: u64) {
        if let Some(peer) = self.peers.get_mut(peer as usize) {
            peer.cancel(token, &mut self.shared);
        }
    }

    #[inline]
    fn poll(&mut self, now: Time, events: &mut Vec<Event>) {
        self.shared.now = now;
        self.shared.polls = self.shared.polls.wrapping_add(1);
        let is_opening = !self.connecting.is_empty() || !self.listener.is_idle();
        if is_opening || self.shared.polls.is_multiple_of(CONNECTION_POLLS) {
            self.look_at_connections(false);
        }
        if self.rails_count > DIRECT_RAILS_MAX {
            self.poll_ready();
        } else {
            let mut at = 0;
            while let Some(&rank) = self.active.get(at) {
                self.poll_peer(rank);
                at += 1;
            }
        }
        self.shared.ends.take(events);
    }

    fn notify(&mut self, peer: Rank) {
        if self.check_peer(peer).is_ok() && peer != self.rank {
            self.peers[peer as usize].notify(&self.shared);
            self.pump(peer);
        }
    }

    fn wait_source(&self) -> WaitSource {
        WaitSource::Descriptor {
            ready: self.shared.epoll.clone(),
            ring: self.ring.clone(),
            sleeping: None,
        }
    }

    fn poll_slow(&mut self, now: Time, events: &mut Vec<Event>) {
        self.shared.now = now;
        self.look_at_connections(true);
        for rank in 0..self.peers.len() as Rank {
            let peer = &mut self.peers[rank as usize];
            if let Some(word) = peer.left {
                self.end(rank, Event::PeerLeft(rank, word));
            } else if !peer.rails.is_empty() {
                peer.settle(&self.shared, true);
                self.pump(rank);
            }
        }
        self.arm();
        self.drain_closing();
        self.shared.ends.take(events);
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        self.shared.counts.named()
    }

    fn next_timeout(&self) -> Option<Time> {
        self.shared.pace.and_then(|pace| pace.next())
    }
}

/// Nothing of the old connection is reported, nor is a new one made.
fn known_gone(peer: &mut Peer) {
    peer.state = PeerState::Gone;
    peer.matching.clear();
    peer.incoming.clear();
}
