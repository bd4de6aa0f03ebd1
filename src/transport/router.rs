//! The `router`: ranks of one host reach each other through shared memory, all others through
//! connections (`tcp`) or RDMA (`verbs`).
//!
//! The far provider is RDMA if every rank has said that it can, else connections (`between.rs`).
//!
//! It joins two providers. A rank's address says on which host it is, and each pair of ranks uses
//! one of the two. Two ranks of a host find out whether they share memory by mapping each other's
//! before the first post. Where that fails (other users, a sandbox), the rank that notices calls
//! the other one over the far provider, and the other one then does without memory too. Both must
//! have mapped before either is connected, so that they agree. Regions are registered with both
//! providers, under one key. A schedule may reach the memory of peers on this host where all its
//! ranks map each other, which the engine finds out (`engine/links.rs`).
//!
//! One thread sleeps on both: the far provider's descriptor, and an eventfd that ranks of this host
//! write to while the words of shared memory say that somebody sleeps.

use super::shm::ShmTransport;
use super::sleeping::{new_eventfd, readable_with};
use super::{
    Address, Atomic, Capabilities, Diagnostics, Event, Expecting, Mapping, PostError, RemoteRange,
    Rma, Signals, Traffic, Transport, WaitSource,
};
use crate::error::{Error, Result};
use crate::kernel;
use crate::memory::{Region, RegionKey, View};
use crate::time::Time;
use crate::types::Rank;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const MAGIC: &[u8; 4] = b"LRR1";

type Posted = std::result::Result<(), PostError>;

/// The provider that a pair of ranks uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Shared memory, if both can.
    Undecided,
    Memory,
    Far,
}

/// The two providers of one rank.
pub struct Router {
    rank: Rank,
    shm: ShmTransport,
    far: Box<dyn Transport>,
    capabilities: Capabilities,
    /// This rank's host: ranks with the same number share memory.
    host: u64,
    /// The provider of each peer.
    ways: Vec<Way>,
    undecided: u32,
    /// Peers of this host that are treated as far.
    apart: u64,
    ready: Arc<OwnedFd>,
    alarm: OwnedFd,
    /// Counts the times that peers have written to the alarm.
    bell: View,
    sleeping: View,
    bell_seen: u32,
}

impl Router {
    /// The transport of `rank`. Ranks that say the same `host` share memory; `nonce` and `fetches`
    /// are those of [`ShmTransport::new`]; `far` leads to the others; it has to support
    /// [`Expecting`].
    pub fn new(
        (rank, ranks): (Rank, u32),
        host: u64,
        (nonce, fetches): (u64, bool),
        far: Box<dyn Transport>,
    ) -> Result<Router> {
        let mut shm = ShmTransport::new(rank, ranks, nonce, fetches)?;
        let (WaitSource::Futex { bell, sleeping }, WaitSource::Descriptor { ready: inner, .. }) =
            (shm.wait_source(), far.wait_source())
        else {
            let name = far.capabilities().name;
            let text = format!("the router over {name}, which is not slept on by a descriptor");
            return Err(Error::internal(text));
        };
        let alarm = new_eventfd()?;
        let both_fds = [inner.as_fd(), alarm.as_fd()];
        let ready = readable_with(both_fds, 0, "shared memory and connections")?;
        let copy = alarm
            .try_clone()
            .map_err(|e| Error::os("copying an eventfd", e))?;
        shm.wake_through(copy);
        Ok(Router {
            capabilities: both(shm.capabilities(), far.capabilities()),
            shm,
            far,
            rank,
            host,
            ways: vec![Way::Far; ranks as usize],
            undecided: 0,
            apart: 0,
            ready: Arc::new(ready),
            alarm,
            bell,
            sleeping,
            bell_seen: 0,
        })
    }

    #[inline]
    fn to(&mut self, peer: Rank) -> &mut dyn Transport {
        match self.ways.get(peer as usize) {
            Some(Way::Memory | Way::Undecided) => &mut self.shm,
            _ => self.far.as_mut(),
        }
    }

    fn decide(&mut self, peer: Rank, way: Way) {
        self.ways[peer as usize] = way;
        self.undecided -= 1;
    }

    fn is_undecided(&self, peer: Rank) -> bool {
        self.ways.get(peer as usize) == Some(&Way::Undecided)
    }

    /// This rank and the peer do not share memory after all, for this reason.
    fn do_without_memory(&mut self, peer: Rank, reason: &str) {
        self.decide(peer, Way::Far);
        self.apart += 1;
        if self.apart == 1 {
            super::say(
                self.rank,
                &format!(
                    "rank {peer} is on this host and shares no memory with it ({reason}): they use {}, as further such pairs of this rank do",
                    self.far.capabilities().name
                ),
            );
        }
    }

    /// Decides for the peers that shared memory speaks of in events from `first` on.
    fn hear_memory(&mut self, events: &mut Vec<Event>, first: usize) {
        let mut at = first;
        while let Some(event) = events.get(at) {
            match event {
                Event::Connected(peer) if self.is_undecided(*peer) => {
                    self.decide(*peer, Way::Memory);
                }
                Event::PeerFailed(peer, _) | Event::PeerLeft(peer, _)
                    if self.is_undecided(*peer) =>
                {
                    let (peer, reason) = match events.remove(at) {
                        Event::PeerFailed(peer, reason) => (peer, reason),
                        Event::PeerLeft(peer, _) => (peer, "it does without".into()),
                        _ => unreachable!("matched above"),
                    };
                    self.do_without_memory(peer, &reason);
                    self.far.call(peer);
                    continue;
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// A peer that calls over the far provider does without shared memory, so that this rank does
    /// too.
    fn hear_far(&mut self, events: &[Event]) {
        for event in events {
            if let Event::Connected(peer) | Event::PeerFailed(peer, _) | Event::PeerLeft(peer, _) =
                event
                && self.is_undecided(*peer)
            {
                self.shm.disconnect(*peer);
                self.do_without_memory(*peer, "it says so");
            }
        }
    }

    fn decide_by(
        &mut self,
        events: &mut Vec<Event>,
        poll: impl Fn(&mut Router, &mut Vec<Event>, bool),
    ) {
        let first = events.len();
        poll(self, events, true);
        self.hear_memory(events, first);
        let first = events.len();
        poll(self, events, false);
        self.hear_far(&events[first..]);
    }
}

/// What both providers can do.
fn both(shm: &Capabilities, far: &Capabilities) -> Capabilities {
    Capabilities {
        name: match far.name {
            "verbs" => "router:verbs",
            "ofi" => "router:ofi",
            _ => "router",
        },
        one_host: false,
        mapped: false,
        host_mapped: true,
        store_signals: false,
        shared_regions: true,
        inline_bytes: shm.inline_bytes.min(far.inline_bytes),
        chunks_in_flight: shm.chunks_in_flight.max(far.chunks_in_flight),
        messages_per_peer: shm.messages_per_peer.min(far.messages_per_peer),
        device_memory: shm.device_memory && far.device_memory,
        ..far.clone()
    }
}

#[allow(unsafe_code)] // The posts ask their callers for a promise.
impl Transport for Router {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn local_address(&self) -> Address {
        let near = self.shm.local_address().0;
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&self.host.to_le_bytes());
        out.extend_from_slice(&(near.len() as u32).to_le_bytes());
        out.extend_from_slice(&near);
        out.extend_from_slice(&self.far.local_address().0);
        Address(out)
    }

    fn connect(&mut self, peer: Rank, address: &Address) -> Result<()> {
        let parsed = parse(address);
        let (host, near, far) = parsed.map_err(|_| super::other_transport(peer, "router"))?;
        let uses_memory = self
            .ways
            .get(peer as usize)
            .is_some_and(|&way| way != Way::Far);
        if uses_memory {
            if self.shm.is_in_use(peer) {
                return Err(Error::invalid(format!(
                    "rank {peer} is connected already: disconnect it first"
                )));
            }
            // The far provider has expected it, in case that memory cannot be shared.
            self.disconnect(peer);
            self.ways[peer as usize] = Way::Far;
        }
        if host != self.host {
            return self.far.connect(peer, &far);
        }
        self.far.expect(peer, &far)?;
        self.shm.connect(peer, &near)?;
        self.ways[peer as usize] = Way::Undecided;
        self.undecided += 1;
        Ok(())
    }

    fn disconnect(&mut self, peer: Rank) {
        if self.is_undecided(peer) {
            self.decide(peer, Way::Memory);
        }
        self.shm.disconnect(peer);
        self.far.disconnect(peer);
    }

    fn leave(&mut self, word: u64) -> bool {
        // Each leaves as soon as it can.
        let near = self.shm.leave(word);
        self.far.leave(word) && near
    }

    fn register(&mut self, region: Arc<Region>) -> Result<RegionKey> {
        // The far provider comes first: a device may refuse a region, memory does not, and both
        // must count alike.
        let key = self.far.register(region.clone())?;
        let same = self.shm.register(region)?;
        assert_eq!(key, same, "both count their registrations");
        Ok(key)
    }

    fn deregister(&mut self, key: RegionKey) -> Result<()> {
        self.shm.deregister(key)?;
        self.far.deregister(key)
    }

    #[inline]
    unsafe fn post_send(
        &mut self,
        peer: Rank,
        tag: u64,
        header: u64,
        source: View,
        token: u64,
    ) -> Posted {
        // SAFETY: the caller's promise holds for either provider, and one of them has the post.
        unsafe { self.to(peer).post_send(peer, tag, header, source, token) }
    }

    #[inline]
    unsafe fn inject(
        &mut self,
        peer: Rank,
        tag: u64,
        header: u64,
        source: View,
    ) -> std::result::Result<bool, PostError> {
        // SAFETY: the caller's promise holds for either provider, and one of them has the post.
        unsafe { self.to(peer).inject(peer, tag, header, source) }
    }

    fn withdraw(&mut self) {
        self.shm.withdraw();
        self.far.withdraw();
    }

    fn backlog(&mut self, peer: Rank, tag: u64) -> u32 {
        self.to(peer).backlog(peer, tag)
    }

    #[inline]
    unsafe fn post_recv(&mut self, peer: Rank, tag: u64, destination: View, token: u64) -> Posted {
        // SAFETY: the caller's promise holds for either provider, and one of them has the post.
        unsafe { self.to(peer).post_recv(peer, tag, destination, token) }
    }

    fn cancel(&mut self, peer: Rank, token: u64) {
        self.to(peer).cancel(peer, token);
    }

    fn hand_over(&mut self) {
        self.far.hand_over();
    }

    #[inline]
    fn poll(&mut self, now: Time, events: &mut Vec<Event>) {
        let count = kernel::word32(&self.bell, 0).load(Ordering::Acquire);
        if count != self.bell_seen {
            self.bell_seen = count;
            // What woke this rank is looked at below; what comes from here on makes it readable
            // again.
            let _ = rustix::io::read(&self.alarm, &mut [0; 8]);
        }
        if self.undecided > 0 {
            return self.decide_by(events, |router, events, is_memory| match is_memory {
                true => router.shm.poll(now, events),
                false => router.far.poll(now, events),
            });
        }
        self.shm.poll(now, events);
        self.far.poll(now, events);
    }

    fn wait_source(&self) -> WaitSource {
        let WaitSource::Descriptor { ring, .. } = self.far.wait_source() else {
            unreachable!("connections are slept on by a descriptor")
        };
        WaitSource::Descriptor {
            ready: self.ready.clone(),
            ring,
            sleeping: Some(self.sleeping),
        }
    }

    fn poll_slow(&mut self, now: Time, events: &mut Vec<Event>) {
        if self.undecided > 0 {
            return self.decide_by(events, |router, events, is_memory| match is_memory {
                true => router.shm.poll_slow(now, events),
                false => router.far.poll_slow(now, events),
            });
        }
        self.shm.poll_slow(now, events);
        self.far.poll_slow(now, events);
    }

    fn next_timeout(&self) -> Option<Time> {
        let both = [self.shm.next_timeout(), self.far.next_timeout()];
        both.into_iter().flatten().min()
    }
}

#[allow(unsafe_code)] // The posts ask their callers for a promise.
impl Rma for Router {
    fn export(&mut self, peer: Rank, key: RegionKey) -> Posted {
        self.to(peer).export(peer, key)
    }

    unsafe fn post_put(&mut self, peer: Rank, source: View, to: RemoteRange, token: u64) -> Posted {
        // SAFETY: the caller's promise holds for either provider, and one of them has the post.
        unsafe { self.to(peer).post_put(peer, source, to, token) }
    }

    unsafe fn post_get(
        &mut self,
        peer: Rank,
        from: RemoteRange,
        destination: View,
        token: u64,
    ) -> Posted {
        // SAFETY: the caller's promise holds for either provider, and one of them has the post.
        unsafe { self.to(peer).post_get(peer, from, destination, token) }
    }

    unsafe fn post_atomic(
        &mut self,
        peer: Rank,
        what: Atomic,
        word: RemoteRange,
        result: View,
        token: u64,
    ) -> Posted {
        // SAFETY: the caller's promise holds for either provider, and one of them has the post.
        unsafe { self.to(peer).post_atomic(peer, what, word, result, token) }
    }
}

impl Mapping for Router {
    fn mapped(&mut self, peer: Rank, key: RegionKey) -> Result<Option<View>> {
        match self.maps(peer) {
            true => self.shm.mapped(peer, key),
            false => Ok(None),
        }
    }

    fn maps(&self, peer: Rank) -> bool {
        self.ways.get(peer as usize) == Some(&Way::Memory)
    }

    fn is_mappable(&self, key: RegionKey) -> bool {
        self.shm.is_mappable(key)
    }

    fn pin(&mut self, peer: Rank, key: RegionKey) {
        self.shm.pin(peer, key);
    }

    fn release_freed(&mut self) {
        self.shm.release_freed();
    }

    fn fetches(&self, peer: Rank, bytes: usize) -> bool {
        self.maps(peer) && self.shm.fetches(peer, bytes)
    }

    fn sends_in_place(&self, peer: Rank, source: &View) -> bool {
        match self.ways.get(peer as usize) {
            Some(Way::Memory) => self.shm.sends_in_place(peer, source),
            _ => self.far.sends_in_place(peer, source),
        }
    }

    #[inline]
    fn has_withdrawn(&self, peer: Rank) -> bool {
        self.maps(peer) && self.shm.has_withdrawn(peer)
    }
}

impl Signals for Router {
    fn notify(&mut self, peer: Rank) {
        self.to(peer).notify(peer);
    }

    fn notify_signals(&mut self, peers: &[Rank]) {
        match peers.iter().all(|&peer| self.maps(peer)) {
            true => self.shm.notify_signals(peers),
            false => peers.iter().for_each(|&peer| self.notify(peer)),
        }
    }

    fn notify_of_count(&mut self, peer: Rank) {
        self.to(peer).notify_of_count(peer);
    }

    fn want_signals(&mut self, count: u32) {
        // What comes from other hosts wakes this rank in any case.
        self.shm.want_signals(count);
    }
}

impl Expecting for Router {}

impl Diagnostics for Router {
    fn unmatched(
        &mut self,
        is_meant: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Option<(Rank, u64, u64)> {
        let near = self.shm.unmatched(is_meant);
        near.or_else(|| self.far.unmatched(is_meant))
    }

    fn trouble(&self, peer: Rank) -> Option<String> {
        match self.ways.get(peer as usize) {
            Some(Way::Memory) => self.shm.trouble(peer),
            _ => self.far.trouble(peer),
        }
    }

    fn traffic(&self) -> Traffic {
        self.far.traffic().max(self.shm.traffic())
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let mut counts = self.far.counts();
        counts.push(("pairs of this host without shared memory", self.apart));
        counts
    }
}

/// The host, and the addresses of both providers.
fn parse(address: &Address) -> Result<(u64, Address, Address)> {
    let parts = || {
        let rest = address.0.strip_prefix(MAGIC)?;
        let (host, rest) = rest.split_first_chunk()?;
        let (near_bytes, rest) = rest.split_first_chunk()?;
        let near_bytes = u32::from_le_bytes(*near_bytes) as usize;
        let (near, far) = rest.split_at_checked(near_bytes)?;
        let host = u64::from_le_bytes(*host);
        Some((host, Address(near.to_vec()), Address(far.to_vec())))
    };
    parts().ok_or_else(|| {
        Error::Malformed(format!(
            "bytes of {} that are no address of the router",
            address.0.len()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_and_others_are_refused() {
        let far = super::super::open("tcp", 0, 2, 0, &Default::default()).unwrap();
        let router = Router::new((0, 2), 7, (0x5070, false), far).unwrap();
        let address = router.local_address();
        let (host, near, far) = parse(&address).unwrap();
        assert_eq!(host, 7);
        assert_eq!(near, router.shm.local_address());
        assert_eq!(far, router.far.local_address());
        for bytes in [0, 3, 11, 15, 20] {
            assert!(parse(&Address(address.0[..bytes].to_vec())).is_err());
        }
        let mut long = address.0.clone();
        long[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(parse(&Address(long)).is_err());
    }
}
