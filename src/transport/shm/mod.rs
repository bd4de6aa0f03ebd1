//! The `shm` provider: rings and mapped regions between processes of one host.
//!
//! Messages of at most [`INLINE_BYTES_MAX`] bytes travel through a ring. For a larger one the ring
//! carries only its place, and the receiver copies it from the sender's region. If it is in no
//! region and that is wanted, the receiver reads it out of the sender's address space (`fetch.rs`).
//! Puts and gets are copies in mapped memory by the rank that posts them. Nothing appears in
//! /dev/shm: all memory is memfds, whose descriptors travel over Unix sockets.
//!
//! Set-up and control sockets are in `setup.rs`, slots that are used again in `slots.rs`, the look
//! at all sockets in `watch.rs`, messages in `messages.rs`, the ring in `ring.rs`.
//!
//! [`INLINE_BYTES_MAX`]: crate::limits::INLINE_BYTES_MAX
#![allow(unsafe_code)]

mod control;
mod early;
mod fetch;
#[cfg(test)]
mod fetch_tests;
mod messages;
mod outbound;
mod peer;
mod recall;
mod regions;
mod ring;
#[cfg(test)]
mod ring_tests;
mod segment;
mod setup;
mod slots;
mod socket;
mod watch;

pub use fetch::{FETCH_BYTES_MIN, fetch_own};
pub use socket::is_same_user;

use super::loopback::Loopback;
use super::posts::{Ends, change_here, get_here, no_such_rank, put_here};
use super::registry::{Registry, part_of};
use super::{
    Address, Atomic, Capabilities, Diagnostics, Event, Expecting, Mapping, Outcome, PostError,
    RemoteRange, Rma, Signals, Traffic, Transport, WaitSource, tag_class,
};
use crate::error::{Error, Result};
use crate::limits::{CHUNKS_IN_FLIGHT, INLINE_BYTES_MAX, MESSAGES_PER_PEER};
use crate::memory::{ProcessMark, Region, RegionKey, View};
use crate::prng::mix;
use crate::time::Time;
use crate::types::Rank;
use crate::wait::Watch;
use early::Early;
use peer::{Peer, PeerState};
use regions::PeerRegions;
use segment::Segment;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use watch::Watched;

/// A region of this rank and the peers that know it.
#[derive(Debug)]
struct Exported {
    region: Arc<Region>,
    known_to: Vec<bool>,
}

/// The `shm` provider of one rank.
#[derive(Debug)]
pub struct ShmTransport {
    rank: Rank,
    /// The process whose sockets these are.
    process: ProcessMark,
    capabilities: Capabilities,
    socket_name: String,
    listener: OwnedFd,
    /// Accepted connections of peers that have not said who they are.
    unidentified: Vec<OwnedFd>,
    /// Those of peers that this rank does not connect to yet.
    early: Early,
    watch: Watch,
    /// The word that peers read behind every message that they fetch; `None`: peers may not read
    /// this process.
    guard: Option<Box<u64>>,
    /// What peers make readable to wake this rank, where it sleeps on descriptors.
    alarm: Option<OwnedFd>,
    segment: Segment,
    /// Per peer, how much of its ring has been read. The consumer of each peer says it too, but on
    /// a cache line of its own.
    read: Vec<u64>,
    peers: Vec<Peer>,
    own: Loopback,
    regions: Registry<Exported>,
    /// The ends of posts that ended at once, and failures found outside `poll`.
    ends: Ends,
    /// When peers that have not connected are looked for again.
    look_at: Time,
}

impl ShmTransport {
    /// The transport of `rank` in a job of `ranks` ranks on this host. `nonce` makes its socket's
    /// name unique; it must differ between all ranks and jobs alive on the host. With `fetches`,
    /// messages of memory that is not registered are read where they lie, between this rank and
    /// each peer that also wants it and is allowed to.
    pub fn new(rank: Rank, ranks: u32, nonce: u64, fetches: bool) -> Result<ShmTransport> {
        if rank >= ranks || ranks > crate::limits::RANKS_MAX {
            return Err(Error::invalid(format!(
                "rank {rank} of {ranks}: ranks are below the count, which is at most {}",
                crate::limits::RANKS_MAX
            )));
        }
        let socket_name = format!("linerate-shm-{}-{nonce:016x}", std::process::id());
        let listener = socket::listen_on(socket_name.as_bytes())?;
        let watch = Watch::new()?;
        watch.add(&listener, Watched::Entrance.key())?;
        Ok(ShmTransport {
            rank,
            process: ProcessMark::current()?,
            capabilities: Capabilities {
                name: "shm",
                one_host: true,
                mapped: true,
                host_mapped: false,
                store_signals: true,
                shared_regions: true,
                inline_bytes: INLINE_BYTES_MAX,
                messages_per_peer: MESSAGES_PER_PEER,
                chunks_in_flight: CHUNKS_IN_FLIGHT,
                device_memory: false,
                cached_bytes_max: 0,
                rails: 1,
                latency_ns: 300.0,
                post_ns: 100.0,
                bytes_per_second: 8e9,
            },
            socket_name,
            listener,
            unidentified: Vec::new(),
            early: Early::default(),
            watch,
            alarm: None,
            guard: fetches.then(|| Box::new(mix(!nonce))),
            segment: Segment::create(ranks)?,
            read: vec![0; ranks as usize],
            peers: (0..ranks).map(|_| Peer::new()).collect(),
            own: Loopback::new(rank),
            regions: Registry::new(),
            ends: Ends::default(),
            look_at: Time::default(),
        })
    }

    /// Lets peers wake this rank by this eventfd too, because it sleeps on descriptors. Called
    /// before the first connection. A peer first looks at the words of [`Transport::wait_source`],
    /// then writes to the eventfd, and then counts.
    pub fn wake_through(&mut self, alarm: OwnedFd) {
        self.alarm = Some(alarm);
    }

    fn complete(&mut self, token: u64, peer: Rank, outcome: Outcome, bytes: u64, header: u64) {
        self.ends.complete(peer, token, outcome, bytes, header);
    }

    /// Checks that a post may name this peer.
    fn check_peer(&self, peer: Rank) -> std::result::Result<(), PostError> {
        match self.peers.get(peer as usize).map(|p| &p.state) {
            Some(PeerState::Connected) => Ok(()),
            Some(PeerState::Idle | PeerState::Connecting(_)) => Err(PostError::WouldBlock),
            Some(PeerState::Gone) => Err(PostError::PeerFailed),
            None => Err(no_such_rank(peer, self.peers.len())),
        }
    }

    /// Part of a peer's region, `None` if there is no such range.
    fn remote(&mut self, peer: Rank, range: RemoteRange, bytes: usize) -> Result<Option<View>> {
        let Some(view) = self.mapped(peer, range.key)? else {
            return Ok(None);
        };
        Ok(part_of(view, range.offset, bytes as u64))
    }

    fn copy_remote(
        &mut self,
        peer: Rank,
        local: View,
        remote: RemoteRange,
        token: u64,
        is_put: bool,
    ) -> std::result::Result<(), PostError> {
        self.check_peer(peer)?;
        self.regions.check_source(local)?;
        let found = self.remote(peer, remote, local.len_bytes())?;
        let outcome = match is_put {
            true => put_here(found, local),
            false => get_here(found, local),
        };
        if is_put && outcome == Outcome::Done {
            self.notify(peer);
        }
        self.complete(token, peer, outcome, local.len_bytes() as u64, 0);
        Ok(())
    }
}

impl Transport for ShmTransport {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn local_address(&self) -> Address {
        Address(self.socket_name.clone().into_bytes())
    }

    fn connect(&mut self, peer: Rank, address: &Address) -> Result<()> {
        self.begin_connect(peer, address)
    }

    fn disconnect(&mut self, peer: Rank) {
        self.close(peer);
    }

    fn leave(&mut self, word: u64) -> bool {
        self.go_on_leaving(word)
    }

    fn register(&mut self, region: Arc<Region>) -> Result<RegionKey> {
        let known_to = vec![false; self.peers.len()];
        (self.regions).add(region.view(), Exported { region, known_to })
    }

    fn deregister(&mut self, key: RegionKey) -> Result<()> {
        let exported = self.regions.remove(key)?;
        for peer in (0..self.peers.len()).filter(|&p| exported.known_to[p]) {
            let freed = socket::SocketMessage::Freed(key.0);
            self.peers[peer].control.push(freed);
        }
        self.flush_outboxes();
        Ok(())
    }

    unsafe fn post_send(
        &mut self,
        peer: Rank,
        tag: u64,
        header: u64,
        source: View,
        token: u64,
    ) -> std::result::Result<(), PostError> {
        self.check_peer(peer)?;
        self.send_message(peer, tag, header, source, token)
    }

    unsafe fn inject(
        &mut self,
        peer: Rank,
        tag: u64,
        header: u64,
        source: View,
    ) -> std::result::Result<bool, PostError> {
        self.check_peer(peer)?;
        if source.len_bytes() > INLINE_BYTES_MAX {
            return Ok(false);
        }
        if peer == self.rank {
            self.own.send((tag, header), source, None, &mut self.ends)?;
            self.notify(peer);
            return Ok(true);
        }
        self.send_copied(peer, tag, header, source)?;
        Ok(true)
    }

    fn withdraw(&mut self) {
        self.own.withdraw(&mut self.ends);
        for peer in 0..self.peers.len() as Rank {
            for token in self.recall(peer) {
                self.complete(token, peer, Outcome::Cancelled, 0, 0);
            }
        }
    }

    fn backlog(&mut self, peer: Rank, tag: u64) -> u32 {
        match peer == self.rank {
            true => self.own.backlog(tag),
            false => self.unmatched(peer, tag_class(tag)),
        }
    }

    unsafe fn post_recv(
        &mut self,
        peer: Rank,
        tag: u64,
        destination: View,
        token: u64,
    ) -> std::result::Result<(), PostError> {
        self.receive_message(peer, tag, destination, token)
    }

    fn cancel(&mut self, peer: Rank, token: u64) {
        if peer == self.rank {
            self.own.cancel(token, &mut self.ends);
        } else {
            (self.peers[peer as usize].matching).cancel(peer, token, &mut self.ends);
        }
    }

    #[inline]
    fn poll(&mut self, _now: Time, events: &mut Vec<Event>) {
        let heads = self.segment.heads();
        // SAFETY: this transport's segment keeps them mapped; they are only accessed as atomics.
        let lines = unsafe { heads.lines(0, self.peers.len()) };
        for (peer, line) in (0..).zip(lines) {
            // Of a peer that has sent nothing, only this is touched. `Consumer::peek` loads it
            // again, with the ordering that reading needs.
            if line[0].load(Ordering::Relaxed) != self.read[peer as usize] {
                self.poll_ring(peer);
            }
        }
        self.ends.take(events);
    }

    fn wait_source(&self) -> WaitSource {
        self.segment.wait_source()
    }

    fn poll_slow(&mut self, now: Time, events: &mut Vec<Event>) {
        self.poll_sockets(now);
        self.ends.take(events);
    }
}

impl Rma for ShmTransport {
    fn export(&mut self, peer: Rank, key: RegionKey) -> std::result::Result<(), PostError> {
        self.check_peer(peer)?;
        self.export_to(peer, key)
    }

    unsafe fn post_put(
        &mut self,
        peer: Rank,
        source: View,
        destination: RemoteRange,
        token: u64,
    ) -> std::result::Result<(), PostError> {
        self.copy_remote(peer, source, destination, token, true)
    }

    unsafe fn post_get(
        &mut self,
        peer: Rank,
        source: RemoteRange,
        destination: View,
        token: u64,
    ) -> std::result::Result<(), PostError> {
        self.copy_remote(peer, destination, source, token, false)
    }

    unsafe fn post_atomic(
        &mut self,
        peer: Rank,
        what: Atomic,
        word: RemoteRange,
        result: View,
        token: u64,
    ) -> std::result::Result<(), PostError> {
        self.check_peer(peer)?;
        what.check(word, result)?;
        let found = self.remote(peer, word, result.len_bytes())?;
        let outcome = change_here(found, what, result);
        if outcome == Outcome::Done {
            self.notify(peer);
        }
        self.complete(token, peer, outcome, result.len_bytes() as u64, 0);
        Ok(())
    }
}

impl Mapping for ShmTransport {
    fn mapped(&mut self, peer: Rank, key: RegionKey) -> Result<Option<View>> {
        if peer == self.rank {
            return Ok(self.regions.view(key));
        }
        self.read_announcements(peer)?;
        Ok(self.peers[peer as usize].regions.get(key))
    }

    fn is_mappable(&self, key: RegionKey) -> bool {
        let exported = self.regions.get(key);
        exported.is_some_and(|exported| exported.region.file().is_some())
    }

    fn pin(&mut self, peer: Rank, key: RegionKey) {
        self.peers[peer as usize].regions.pin(key);
    }

    fn release_freed(&mut self) {
        let regions = self.peers.iter_mut().map(|peer| &mut peer.regions);
        regions.for_each(PeerRegions::release_freed);
    }

    fn fetches(&self, peer: Rank, bytes: usize) -> bool {
        let is_read = |p: &Peer| p.process.reads_us();
        bytes >= FETCH_BYTES_MIN && self.peers.get(peer as usize).is_some_and(is_read)
    }

    fn sends_in_place(&self, peer: Rank, source: &View) -> bool {
        self.is_mappable(source.key()) || self.fetches(peer, source.len_bytes())
    }

    #[inline]
    fn has_withdrawn(&self, peer: Rank) -> bool {
        recall::valid_from(self.segment.recalled_by(peer)) != 0
    }
}

impl Signals for ShmTransport {
    #[inline]
    fn notify(&mut self, peer: Rank) {
        self.peers[peer as usize].wake();
    }

    #[inline]
    fn notify_signals(&mut self, peers: &[Rank]) {
        // One fence for the bells of all peers: `Segment::wake_by_signal` makes none.
        fence(Ordering::SeqCst);
        for &peer in peers {
            if let Some(segment) = &self.peers[peer as usize].segment {
                segment.wake_by_signal();
            }
        }
    }

    fn notify_of_count(&mut self, peer: Rank) {
        if let Some(segment) = &self.peers[peer as usize].segment {
            segment.wake_if_open();
        }
    }

    fn want_signals(&mut self, count: u32) {
        match count {
            0 => self.segment.quota().open(),
            count => self.segment.quota().set(count),
        }
    }
}

impl Expecting for ShmTransport {}

impl Diagnostics for ShmTransport {
    /// A receiver copies a message at once when it takes it, so none is ever seen to move.
    fn traffic(&self) -> Traffic {
        let is_held = self.peers.iter().any(|peer| peer.outbound.has_unread());
        match is_held {
            true => Traffic::Held,
            false => Traffic::Idle,
        }
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        vec![self.regions.count()]
    }

    fn unmatched(
        &mut self,
        is_meant: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Option<(Rank, u64, u64)> {
        let own = self.own.find(is_meant);
        own.or_else(|| {
            let mut peers = (0..).zip(&self.peers);
            peers.find_map(|(rank, peer)| peer.matching.find(rank, is_meant))
        })
    }
}

impl Drop for ShmTransport {
    fn drop(&mut self) {
        if self.process.is_forked() {
            return; // The peers are connected to the parent, which has not said goodbye.
        }
        for peer in 0..self.peers.len() as Rank {
            self.close(peer);
        }
    }
}
