//! [`SimTransport`]: the transport contract over a [`super::World`].

use super::options::SimOptions;
use super::state::{Cause, Happening, State};
use crate::error::{Error, Result};
use crate::limits::{CHUNKS_IN_FLIGHT, INLINE_BYTES_MAX, MESSAGES_PER_PEER};
use crate::memory::{Region, RegionKey, View};
use crate::time::Time;
use crate::transport::{
    Address, Atomic, Capabilities, Diagnostics, Event, Expecting, Mapping, PostError, RemoteRange,
    Rma, Signals, Transport, WaitSource,
};
use crate::types::Rank;
use std::sync::{Arc, Mutex, MutexGuard};

/// One rank's view of a simulated world. Dropping it without [`Transport::leave`] is leaving at
/// once: what is on the wire may be lost.
#[derive(Debug)]
pub struct SimTransport {
    state: Arc<Mutex<State>>,
    capabilities: Capabilities,
    rank: Rank,
    incarnation: u64,
}

type Posted = std::result::Result<(), PostError>;

impl SimTransport {
    pub(super) fn new(
        state: Arc<Mutex<State>>,
        options: &SimOptions,
        rank: Rank,
        incarnation: u64,
    ) -> SimTransport {
        let link = options.network;
        // Ranks that share a NIC have their part of it where all of them send.
        let ranks_of_nic = options.ranks_per_nic();
        SimTransport {
            state,
            capabilities: Capabilities {
                name: "sim",
                one_host: false,
                mapped: options.mapped,
                host_mapped: false,
                store_signals: false,
                shared_regions: false,
                inline_bytes: INLINE_BYTES_MAX,
                messages_per_peer: MESSAGES_PER_PEER,
                chunks_in_flight: CHUNKS_IN_FLIGHT,
                device_memory: false,
                cached_bytes_max: 0,
                rails: 1,
                latency_ns: (link.latency_ns + link.per_message_ns) as f64,
                post_ns: link.per_message_ns as f64,
                bytes_per_second: link.bytes_per_second as f64 / ranks_of_nic,
            },
            rank,
            incarnation,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("a panic inside the simulation")
    }

    /// The world, unless this rank leaves or was killed (and perhaps lives again as another
    /// transport).
    fn alive(&self) -> Option<MutexGuard<'_, State>> {
        let state = self.lock();
        let own = &state.ranks[self.rank as usize];
        let is_there = own.is_alive && own.leaving.is_none();
        (is_there && own.incarnation == self.incarnation).then_some(state)
    }

    fn alive_or_error(&self) -> Result<MutexGuard<'_, State>> {
        self.alive().ok_or_else(|| Error::PeerFailed {
            rank: self.rank,
            cause: "this simulated rank was killed".into(),
            during: String::new(),
        })
    }

    fn post(&self, post: impl FnOnce(&mut State, Rank) -> Posted) -> Posted {
        let mut state = self.alive().ok_or(PostError::PeerFailed)?;
        post(&mut state, self.rank)
    }
}

impl Drop for SimTransport {
    fn drop(&mut self) {
        // A panic may be on its way through here already: then the lock is poisoned and nobody
        // looks.
        if let Ok(mut state) = self.state.lock()
            && let own = &state.ranks[self.rank as usize]
            && own.incarnation == self.incarnation
            && own.leaving.is_none()
        {
            state.leave(self.rank, Cause::Left(0));
        }
    }
}

#[allow(unsafe_code)] // The posts ask their callers for a promise.
impl Transport for SimTransport {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn local_address(&self) -> Address {
        Address(self.rank.to_le_bytes().to_vec())
    }

    fn connect(&mut self, peer: Rank, address: &Address) -> Result<()> {
        let mut state = self.alive_or_error()?;
        let ranks = state.options.ranks;
        if peer >= ranks || address.0 != peer.to_le_bytes() {
            return Err(Error::Malformed(format!(
                "connecting to rank {peer} of {ranks}: {:02x?} is not its simulated address",
                address.0
            )));
        }
        state.connect(self.rank, peer)
    }

    fn disconnect(&mut self, peer: Rank) {
        if let Some(mut state) = self.alive()
            && peer < state.options.ranks
        {
            state.disconnect(self.rank, peer);
        }
    }

    /// True at once: what is on the wire is still delivered in its time, and the peers are told
    /// after that.
    fn leave(&mut self, word: u64) -> bool {
        if let Some(mut state) = self.alive() {
            state.begin_leaving(self.rank, word);
        }
        true
    }

    fn register(&mut self, region: Arc<Region>) -> Result<RegionKey> {
        self.alive_or_error()?.register(self.rank, region)
    }

    fn deregister(&mut self, key: RegionKey) -> Result<()> {
        if self.alive_or_error()?.deregister(self.rank, key) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "deregistering region {}: rank {} has not registered it",
            key.0, self.rank
        )))
    }

    unsafe fn post_send(
        &mut self,
        peer: Rank,
        tag: u64,
        header: u64,
        source: View,
        token: u64,
    ) -> Posted {
        self.post(|state, rank| state.post_send(rank, peer, (tag, header), source, token))
    }

    unsafe fn post_recv(&mut self, peer: Rank, tag: u64, destination: View, token: u64) -> Posted {
        self.post(|state, rank| state.post_recv(rank, peer, tag, destination, token))
    }

    fn cancel(&mut self, peer: Rank, token: u64) {
        if let Some(mut state) = self.alive() {
            state.cancel(self.rank, peer, token);
        }
    }

    /// Copies what was sent or put, so that it arrives as it was when its memory is taken back.
    fn withdraw(&mut self) {
        if let Some(mut state) = self.alive() {
            state.withdraw(self.rank);
        }
    }

    /// Hands over what the world has delivered. The world has its own time, so `now` is not looked
    /// at.
    fn poll(&mut self, _now: Time, events: &mut Vec<Event>) {
        let Some(mut state) = self.alive() else {
            return;
        };
        let own = state.rank(self.rank);
        match events.is_empty() {
            true => std::mem::swap(events, &mut own.inbox),
            false => events.append(&mut own.inbox),
        }
        for mapping in own.stale_mappings.drain(..) {
            own.mappings.remove(&mapping);
        }
    }

    fn backlog(&mut self, peer: Rank, tag: u64) -> u32 {
        self.alive()
            .map_or(0, |mut state| state.backlog(self.rank, peer, tag))
    }

    fn wait_source(&self) -> WaitSource {
        WaitSource::Virtual
    }

    fn poll_slow(&mut self, _now: Time, _events: &mut Vec<Event>) {}
}

#[allow(unsafe_code)] // The posts ask their callers for a promise.
impl Rma for SimTransport {
    fn export(&mut self, peer: Rank, key: RegionKey) -> Posted {
        self.post(|state, rank| state.export(rank, peer, key))
    }

    unsafe fn post_put(
        &mut self,
        peer: Rank,
        source: View,
        destination: RemoteRange,
        token: u64,
    ) -> Posted {
        self.post(|state, rank| state.post_put(rank, peer, source, destination, token))
    }

    unsafe fn post_get(
        &mut self,
        peer: Rank,
        source: RemoteRange,
        destination: View,
        token: u64,
    ) -> Posted {
        self.post(|state, rank| state.post_get(rank, peer, source, destination, token))
    }

    unsafe fn post_atomic(
        &mut self,
        peer: Rank,
        what: Atomic,
        word: RemoteRange,
        result: View,
        token: u64,
    ) -> Posted {
        self.post(|state, rank| state.post_atomic(rank, peer, what, (word, result), token))
    }
}

impl Mapping for SimTransport {
    fn mapped(&mut self, peer: Rank, key: RegionKey) -> Result<Option<View>> {
        let mut state = self.alive_or_error()?;
        let ranks = state.options.ranks;
        if peer >= ranks {
            return Err(Error::invalid(format!(
                "mapping memory of rank {peer} in a world of {ranks} ranks"
            )));
        }
        Ok(state.mapped(self.rank, peer, key))
    }

    fn has_withdrawn(&self, peer: Rank) -> bool {
        let ranks = &self.lock().ranks;
        ranks.get(peer as usize).is_some_and(|of| of.has_withdrawn)
    }
}

impl Signals for SimTransport {
    fn notify(&mut self, peer: Rank) {
        if let Some(mut state) = self.alive()
            && peer < state.options.ranks
        {
            let link = state.options.link(state.options.class(self.rank, peer));
            let at_ns = state.now + link.latency_ns;
            state.schedule(at_ns, Happening::Wake(peer));
        }
    }
}

impl Expecting for SimTransport {}

impl Diagnostics for SimTransport {
    fn counts(&self) -> Vec<(&'static str, u64)> {
        let state = self.alive();
        state.map_or(Vec::new(), |mut state| {
            vec![state.registered_count(self.rank)]
        })
    }
}
