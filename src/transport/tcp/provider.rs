//! What the contract asks of the `tcp` provider: posts, polls and what is looked at slowly.

use super::peer::Peer;
use super::{CONNECTION_POLLS, COUNT_BYTES, DIRECT_RAILS_MAX, TELL_AFTER, TcpTransport};
use crate::error::Result;
use crate::memory::{Region, RegionKey, View};
use crate::time::Time;
use crate::transport::posts::{Accepted, PeerState, no_such_rank};
use crate::transport::{
    Address, Atomic, CONNECTED_RANKS_MAX, Capabilities, Diagnostics, Event, Expecting, Mapping,
    RemoteRange, Rma, Signals, Traffic, Transport, WaitSource,
};
use crate::types::Rank;
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
        if peer != self.rank && self.peers.len() <= CONNECTED_RANKS_MAX {
            let known = &mut self.peers[peer as usize];
            known.reach_mut().await_connection();
            // One of the two connects, so that they never meet on the way.
            known.reach_mut().set_opener(self.rank < peer);
            self.connect_if_needed(peer, false);
        } else {
            self.shared.ends.push(Event::Connected(peer));
        }
        Ok(())
    }

    fn disconnect(&mut self, peer: Rank) {
        let Some(known) = self.peers.get_mut(peer as usize) else {
            return;
        };
        if known.state() == PeerState::Open {
            if !known.rails().is_empty() {
                known.say_goodbye(0, &self.shared);
                // This is the last try: a pace must not hold it back.
                let pace = self.shared.pace.take();
                // A peer that takes nothing now sees the connection close.
                let _ = known.pump(&mut self.shared);
                self.shared.pace = pace;
            }
            known.flush(&mut self.shared);
            if peer == self.rank {
                self.own.disconnect(&mut self.shared.ends);
            }
            self.connecting.retain(|one| one.peer() != peer);
            self.close_rails(peer);
        }
        self.peers[peer as usize].forget();
        self.shared.ends.forget(peer);
    }

    fn leave(&mut self, word: u64) -> bool {
        let own = self.rank;
        // The bytes of a transfer lie in memory that ends with this rank, until the peer has them.
        let is_needed = |p: &Peer| p.rank() != own && !p.is_over() && p.has_transfers();
        if !self.shared.is_leaving {
            if self.peers.iter().any(is_needed) {
                return false;
            }
            self.say_goodbye(word);
        }
        self.go_on_leaving()
    }

    fn register(&mut self, region: Arc<Region>) -> Result<RegionKey> {
        self.shared.regions.add(region.view(), region)
    }

    fn deregister(&mut self, key: RegionKey) -> Result<()> {
        self.shared.regions.remove(key).map(drop)
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
        self.shared.regions.check_source(source)?;
        if peer == self.rank {
            let ends = &mut self.shared.ends;
            return self.own.send((tag, header), source, Some(token), ends);
        }
        let known = &mut self.peers[peer as usize];
        let sent = known.send((tag, header), source, token, &mut self.shared);
        if sent.is_ok() {
            self.pump(peer);
        } else if known.reach().is_asked_for() {
            self.connect_if_needed(peer, false);
        }
        sent
    }

    fn withdraw(&mut self) {
        self.own.withdraw(&mut self.shared.ends);
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
        match self.peers.get(peer as usize) {
            Some(_) if peer == self.rank => self.own.backlog(tag),
            Some(known) => known.backlog(tag),
            None => 0,
        }
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
        if peer == self.rank {
            let ends = &mut self.shared.ends;
            return self.own.receive(tag, destination, token, ends);
        }
        let known = &mut self.peers[peer as usize];
        known.post_recv(tag, destination, token, &mut self.shared)?;
        if known.has_output() {
            self.pump(peer);
        }
        Ok(())
    }

    fn cancel(&mut self, peer: Rank, token: u64) {
        if peer == self.rank {
            self.own.cancel(token, &mut self.shared.ends);
        } else if let Some(known) = self.peers.get_mut(peer as usize) {
            known.cancel(token, &mut self.shared);
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
        let is_time = self.tell_at.is_some_and(|at| now >= at);
        let mut owes = false;
        for rank in 0..self.peers.len() as Rank {
            let peer = &mut self.peers[rank as usize];
            if let Some(word) = peer.left() {
                self.end(rank, Event::PeerLeft(rank, word));
            } else if !peer.rails().is_empty() {
                peer.settle(&self.shared, is_time);
                owes |= peer.owes();
                self.pump(rank);
            }
        }
        self.tell_at = match owes {
            true => self
                .tell_at
                .filter(|_| !is_time)
                .or(Some(now.after(TELL_AFTER))),
            false => None,
        };
        self.arm();
        self.drain_closing();
        self.shared.ends.take(events);
    }

    fn next_timeout(&self) -> Option<Time> {
        let paced = self.shared.pace.as_ref().and_then(|pace| pace.next());
        paced.into_iter().chain(self.tell_at).min()
    }
}

impl Rma for TcpTransport {
    fn export(&mut self, peer: Rank, _key: RegionKey) -> Accepted {
        self.check_peer(peer)
    }

    unsafe fn post_put(
        &mut self,
        peer: Rank,
        source: View,
        destination: RemoteRange,
        token: u64,
    ) -> Accepted {
        self.check_peer(peer)?;
        self.shared.regions.check_source(source)?;
        let bytes = source.len_bytes() as u64;
        if peer == self.rank {
            let place = self.shared.regions.range(destination, bytes);
            self.own.put(source, place, token, &mut self.shared.ends);
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
        self.shared.regions.check_source(destination)?;
        let bytes = destination.len_bytes() as u64;
        if peer == self.rank {
            let place = self.shared.regions.range(source, bytes);
            (self.own).get(place, destination, token, &mut self.shared.ends);
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
            let place = self.shared.regions.range(word, 8);
            (self.own).change(what, place, result, token, &mut self.shared.ends);
            return Ok(());
        }
        self.peers[peer as usize].change(what, word, result, token, &mut self.shared)?;
        self.pump(peer);
        Ok(())
    }
}

impl Mapping for TcpTransport {}

impl Signals for TcpTransport {
    fn notify(&mut self, peer: Rank) {
        if self.check_peer(peer).is_ok() && peer != self.rank {
            self.peers[peer as usize].notify(&self.shared);
            self.pump(peer);
        }
    }
}

impl Expecting for TcpTransport {
    fn expect(&mut self, peer: Rank, address: &Address) -> Result<()> {
        self.begin(peer, address)?;
        self.peers[peer as usize].reach_mut().await_connection();
        Ok(())
    }

    fn call(&mut self, peer: Rank) {
        self.peers[peer as usize].reach_mut().set_opener(true);
        self.connect_if_needed(peer, false);
    }
}

impl Diagnostics for TcpTransport {
    fn unmatched(
        &mut self,
        is_meant: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Option<(Rank, u64, u64)> {
        let own = self.own.find(is_meant);
        own.or_else(|| self.peers.iter().find_map(|peer| peer.find(is_meant)))
    }

    fn traffic(&self) -> Traffic {
        let peers = self.active.iter().map(|&rank| &self.peers[rank as usize]);
        peers.map(Peer::traffic).max().unwrap_or(Traffic::Idle)
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let mut counts = self.shared.counts.named();
        counts.push(self.shared.regions.count());
        counts.push(("peers connected", self.active.len() as u64));
        counts
    }
}
