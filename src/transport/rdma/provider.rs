//! What the contract asks of a provider: posts, polls and what is looked at slowly.

use super::device::Device;
use super::peer::Peer;
use super::rail::{Rail, Registered};
use super::{CONTROL_POLLS, PAUSE_MAX, PAUSE_MIN, RdmaTransport};
use crate::error::{Error, Result};
use crate::memory::{Region, RegionKey, View};
use crate::time::Time;
use crate::transport::posts::{Accepted, PeerState, no_such_rank};
use crate::transport::{
    Address, Atomic, Capabilities, Diagnostics, Event, Expecting, Mapping, Outcome, PortInUse,
    PostError, RemoteRange, Rma, Signals, Traffic, Transport, URGENT_CLASS, WaitSource, tag_class,
};
use crate::types::Rank;
use std::sync::Arc;

impl<D: Device> RdmaTransport<D> {
    /// A message with or without a completion.
    fn send(
        &mut self,
        peer: Rank,
        message: (u64, u64),
        source: View,
        token: Option<u64>,
    ) -> Accepted {
        self.check_peer(peer)?;
        self.shared.regions.check_source(source)?;
        if peer == self.shared.rank {
            let ends = &mut self.shared.ends;
            return self.own.send(message, source, token, ends);
        }
        if tag_class(message.0) == URGENT_CLASS && self.send_by_letter(peer, message, source) {
            let (ends, bytes) = (&mut self.shared.ends, source.len_bytes() as u64);
            if let Some(token) = token {
                ends.complete(peer, token, Outcome::Done, bytes, 0);
            }
            return Ok(());
        }
        let known = &mut self.peers[peer as usize];
        known.send(message, source, token, &mut self.shared)
    }

    /// Lets a connection begin in a slot that is not in use.
    fn use_slot(&mut self, peer: Rank) -> Result<()> {
        let ranks = self.peers.len();
        let Some(known) = self.peers.get_mut(peer as usize) else {
            return Err(Error::invalid(format!(
                "connecting to rank {peer} of a job of {ranks} ranks"
            )));
        };
        match known.state() {
            PeerState::Idle => Ok(()),
            PeerState::Gone => {
                known.renew(self.shared.sizes.ring);
                self.shared.ends.forget(peer);
                Ok(())
            }
            PeerState::Open => Err(Error::invalid(format!(
                "rank {peer} is connected already: disconnect it first"
            ))),
        }
    }

    /// Whether some pair is between two generations: its greetings are looked for with every poll.
    #[inline]
    fn is_joining(&mut self) -> bool {
        if self.joining.is_empty() {
            return false;
        }
        let peers = &self.peers;
        let is_joining = |peer: &Peer<D>| peer.is_open() && !peer.pair().is_up();
        self.joining
            .retain(|&rank| is_joining(&peers[rank as usize]));
        !self.joining.is_empty()
    }
}

/// The address of the control transport, behind this provider's name: others have one, too.
fn of_control<D: Device>(peer: Rank, address: &Address) -> Result<Address> {
    let rest = address.0.strip_prefix(D::NAME.as_bytes());
    let rest = rest.and_then(|rest| rest.strip_prefix(&[0]));
    let rest = rest.ok_or_else(|| crate::transport::other_transport(peer, D::NAME))?;
    Ok(Address(rest.to_vec()))
}

impl<D: Device> Transport for RdmaTransport<D> {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn local_address(&self) -> Address {
        let name = D::NAME.as_bytes().iter().chain(&[0]);
        let control = self.control.local_address().0;
        Address(name.copied().chain(control).collect())
    }

    fn connect(&mut self, peer: Rank, address: &Address) -> Result<()> {
        let is_small = !self.connects_at_first_use();
        let address = &of_control::<D>(peer, address)?;
        self.use_slot(peer)?;
        let known = &mut self.peers[peer as usize];
        if peer == self.shared.rank {
            self.own.connect_if(peer);
            known.open();
            self.shared.ends.push(Event::Connected(peer));
            return Ok(());
        }
        if is_small {
            known.make_rings(&mut self.shared)?;
            self.joining.push(peer);
        }
        known.open();
        self.control.connect(peer, address)?;
        self.expect_greeting(peer);
        Ok(())
    }

    fn disconnect(&mut self, peer: Rank) {
        let Some(known) = self.peers.get(peer as usize) else {
            return;
        };
        if known.is_open() {
            self.end_links(peer);
            let known = &mut self.peers[peer as usize];
            known.flush(&mut self.shared);
            if peer == self.shared.rank {
                self.own.disconnect(&mut self.shared.ends);
            }
            self.letters_out.retain(|(to, _)| *to != peer);
        }
        self.control.disconnect(peer);
        self.peers[peer as usize].forget();
        self.shared.ends.forget(peer);
    }

    fn leave(&mut self, word: u64) -> bool {
        // Long messages that wait for their receives lie in memory that ends with this rank.
        let own = self.shared.rank;
        let is_needed =
            |(rank, p): (Rank, &Peer<D>)| rank != own && p.is_open() && p.has_transfers();
        if !self.is_leaving && (0..).zip(&self.peers).any(is_needed) {
            return false;
        }
        self.go_on_leaving(word)
    }

    fn register(&mut self, region: Arc<Region>) -> Result<RegionKey> {
        let is_relaxed = self.shared.settings.is_relaxed;
        let registered = Registered::region(region, &self.shared.rails, is_relaxed)?;
        self.shared
            .regions
            .add(registered.view(), Arc::new(registered))
    }

    fn deregister(&mut self, key: RegionKey) -> Result<()> {
        self.shared.regions.remove(key)?;
        for peer in &mut self.peers {
            // Peers ask for it no more, and the device refuses what is on its way.
            peer.end_export(key, &mut self.shared);
        }
        Ok(())
    }

    unsafe fn post_send(
        &mut self,
        peer: Rank,
        tag: u64,
        header: u64,
        source: View,
        token: u64,
    ) -> Accepted {
        self.send(peer, (tag, header), source, Some(token))
    }

    unsafe fn inject(
        &mut self,
        peer: Rank,
        tag: u64,
        header: u64,
        source: View,
    ) -> std::result::Result<bool, PostError> {
        self.send(peer, (tag, header), source, None).map(|()| true)
    }

    fn withdraw(&mut self) {
        self.own.withdraw(&mut self.shared.ends);
        for rank in 0..self.peers.len() as Rank {
            self.wait_for_reads(rank);
            let known = &self.peers[rank as usize];
            if known.pair().is_up() && known.is_read() {
                // Only the end of the queue stops the device.
                self.handle_fault(rank, None, "memory was taken back while it was sent");
            }
            self.peers[rank as usize].withdraw(&mut self.shared);
        }
    }

    fn backlog(&mut self, peer: Rank, tag: u64) -> u32 {
        match self.peers.get(peer as usize) {
            Some(_) if peer == self.shared.rank => self.own.backlog(tag),
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
        if peer == self.shared.rank {
            let ends = &mut self.shared.ends;
            return self.own.receive(tag, destination, token, ends);
        }
        let known = &mut self.peers[peer as usize];
        known.post_recv(tag, destination, token, &mut self.shared)
    }

    fn cancel(&mut self, peer: Rank, token: u64) {
        if peer == self.shared.rank {
            return self.own.cancel(token, &mut self.shared.ends);
        }
        let Some(known) = self.peers.get_mut(peer as usize) else {
            return;
        };
        if !known.cancel_posted(token, &mut self.shared) {
            self.cancel_granted(peer, token);
        }
    }

    #[inline]
    fn hand_over(&mut self) {
        if !self.shared.dirty.is_empty() && !self.is_leaving {
            self.pump_dirty();
        }
    }

    #[inline]
    fn poll(&mut self, now: Time, events: &mut Vec<Event>) {
        self.shared.now = now;
        if self.is_leaving {
            return self.poll_leaving(false);
        }
        self.polls = self.polls.wrapping_add(1);
        // What the caller has posted does not wait for what has come.
        self.pump_dirty();
        self.poll_rails();
        if self.polls.is_multiple_of(CONTROL_POLLS) || self.is_joining() {
            self.poll_control(false);
        }
        self.pump_dirty();
        self.shared.ends.take(events);
    }

    fn wait_source(&self) -> WaitSource {
        let (WaitSource::Descriptor { ring, .. }, Some(ready)) =
            (self.control.wait_source(), &self.ready)
        else {
            return WaitSource::Virtual;
        };
        WaitSource::Descriptor {
            ready: Arc::clone(ready),
            ring,
            sleeping: None,
        }
    }

    fn poll_slow(&mut self, now: Time, events: &mut Vec<Event>) {
        self.shared.now = now;
        if self.is_leaving {
            return self.poll_leaving(true);
        }
        let rails = self.shared.rails.iter_mut();
        let is_told = rails
            .map(Rail::arm)
            .fold(true, |all, is_told| all & is_told);
        self.pause = match (is_told, self.pause) {
            (true, _) => None,
            (false, None) => Some(PAUSE_MIN),
            (false, Some(pause)) => Some((2 * pause).min(PAUSE_MAX)),
        };
        // What came before the channels were armed makes no event.
        self.poll_rails();
        self.poll_control(true);
        self.poll_events();
        for peer in &mut self.peers {
            peer.look_slowly(&mut self.shared);
        }
        self.pump_dirty();
        self.shared.ends.take(events);
    }

    fn next_timeout(&self) -> Option<Time> {
        let timeout = self.shared.settings.timeout;
        let of_peers = self.peers.iter().filter(|p| p.is_open());
        let times = of_peers.filter_map(|peer| peer.pair().generation().next_timeout(timeout));
        let look = self.pause.map(|pause| self.shared.now.after(pause));
        times.chain(self.control.next_timeout()).chain(look).min()
    }
}

impl<D: Device> Rma for RdmaTransport<D> {
    fn export(&mut self, peer: Rank, key: RegionKey) -> Accepted {
        self.check_peer(peer)?;
        match peer == self.shared.rank {
            true => Ok(()),
            false => self.peers[peer as usize].export(key, &mut self.shared),
        }
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
        if peer == self.shared.rank {
            let bytes = source.len_bytes() as u64;
            let place = self.shared.regions.range(destination, bytes);
            self.own.put(source, place, token, &mut self.shared.ends);
            return Ok(());
        }
        self.peers[peer as usize].put(source, destination, token, &mut self.shared)
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
        if peer == self.shared.rank {
            let bytes = destination.len_bytes() as u64;
            let place = self.shared.regions.range(source, bytes);
            (self.own).get(place, destination, token, &mut self.shared.ends);
            return Ok(());
        }
        self.peers[peer as usize].get(source, destination, token, &mut self.shared)
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
        if peer == self.shared.rank {
            let place = self.shared.regions.range(word, 8);
            (self.own).change(what, place, result, token, &mut self.shared.ends);
            return Ok(());
        }
        let known = &mut self.peers[peer as usize];
        match self.shared.settings.has_device_atomics {
            true => known.change(what, word, result, token, &mut self.shared),
            false => known.ask_change(what, word, result, token, &mut self.shared),
        }
    }
}

impl<D: Device> Mapping for RdmaTransport<D> {}

impl<D: Device> Signals for RdmaTransport<D> {
    fn notify(&mut self, peer: Rank) {
        if self.check_peer(peer).is_err() || peer == self.shared.rank {
            return;
        }
        let known = &mut self.peers[peer as usize];
        if known.pair().is_unused() {
            // Whatever the control transport brings wakes it.
            return self.control.notify(peer);
        }
        known.notify(&mut self.shared);
        self.pump_dirty();
    }
}

impl<D: Device> Expecting for RdmaTransport<D> {
    fn expect(&mut self, peer: Rank, address: &Address) -> Result<()> {
        self.control
            .expect(peer, &of_control::<D>(peer, address)?)?;
        self.use_slot(peer)?;
        self.peers[peer as usize].expect();
        Ok(())
    }

    fn call(&mut self, peer: Rank) {
        self.control.call(peer);
    }
}

impl<D: Device> Diagnostics for RdmaTransport<D> {
    fn unmatched(
        &mut self,
        is_meant: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Option<(Rank, u64, u64)> {
        let own = self.own.find(is_meant);
        own.or_else(|| self.peers.iter().find_map(|peer| peer.find(is_meant)))
    }

    fn ports(&self) -> Vec<PortInUse> {
        let mut ports: Vec<PortInUse> = Vec::new();
        for rail in &self.shared.rails {
            let Some(own) = rail.device.port() else {
                continue;
            };
            let is_same =
                |port: &&mut PortInUse| (&port.device, port.number) == (&own.device, own.number);
            match ports.iter_mut().find(is_same) {
                Some(port) => port.queue_pairs += 1,
                None => ports.push(own),
            }
        }
        ports
    }

    fn trouble(&self, peer: Rank) -> Option<String> {
        let generation = self.peers.get(peer as usize)?.pair().generation();
        let trouble = generation.trouble.as_ref()?;
        let mut names: Vec<&str> = self.shared.rails.iter().map(|r| r.name()).collect();
        names.dedup();
        Some(format!(
            "{} over {} does not reach it: {}",
            D::NAME,
            names.join(", "),
            trouble.cause
        ))
    }

    fn traffic(&self) -> Traffic {
        let all = self.peers.iter().map(Peer::traffic);
        all.max().unwrap_or(Traffic::Idle)
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let mut counts = self.shared.counts.named();
        counts.push(self.shared.regions.count());
        let is_connected = |peer: &&Peer<D>| peer.pair().links().next().is_some();
        let connected = self.peers.iter().filter(is_connected);
        counts.push(("peers connected", connected.count() as u64));
        counts
    }
}
