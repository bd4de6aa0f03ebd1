//! What only some providers can do, or only some callers ask: traits beside
//! [`Transport`](super::Transport) and [`Rma`](super::Rma). A provider implements each of them,
//! most of them by an empty `impl`.

use super::{Address, RegionKey, Traffic, View};
use crate::error::{Error, Result};
use crate::types::Rank;

/// Memory of peers that is reached where it lies: mapped, or read out of their processes.
pub trait Mapping {
    /// A peer's region as memory of this process, if it is mapped and known. `Ok(None)`: it is not
    /// known (yet); poll and ask again. Nobody writes there once the end of the peer is reported
    /// (clause 23).
    fn mapped(&mut self, _peer: Rank, _key: RegionKey) -> Result<Option<View>> {
        Ok(None)
    }

    /// Whether [`Mapping::mapped`] gives the regions of a peer that is connected. It is asked where
    /// [`Capabilities::host_mapped`](super::Capabilities::host_mapped) is.
    fn maps(&self, _peer: Rank) -> bool {
        false
    }

    /// Whether peers that map this rank's memory can map the region that has this key.
    fn is_mappable(&self, _key: RegionKey) -> bool {
        false
    }

    /// A mapped region is used until the connection ends: a peer that deregisters it fails.
    fn pin(&mut self, _peer: Rank, _key: RegionKey) {}

    /// The caller uses no view of a region that its peer had deregistered before the previous call.
    /// A view from [`Mapping::mapped`] stays valid until the second call after it, whatever peers
    /// do.
    fn release_freed(&mut self) {}

    /// Whether a send of this many bytes to this peer may come from memory that is not registered,
    /// which the peer then reads where it lies. That memory stays as it is until the completion.
    fn fetches(&self, _peer: Rank, _bytes: usize) -> bool {
        false
    }

    /// Whether a send of these bytes to this peer may come from where they lie: they are registered
    /// so that the peer reaches them, or it fetches them.
    fn sends_in_place(&self, peer: Rank, source: &View) -> bool {
        source.key().is_some() || self.fetches(peer, source.len_bytes())
    }

    /// Whether a peer has withdrawn its memory: then what was read of it through a view of
    /// [`Mapping::mapped`] may have changed since. It is asked after the last read; a rank that is
    /// told so finds the messages that the peer had sent before.
    fn has_withdrawn(&self, _peer: Rank) -> bool {
        false
    }
}

/// Waking peers that sleep (clause 17).
pub trait Signals {
    /// Wakes a peer that sleeps.
    fn notify(&mut self, peer: Rank);

    /// A signal was stored for each of these peers. Wakes each peer for which it is the last of the
    /// signals that the peer wants.
    fn notify_signals(&mut self, peers: &[Rank]) {
        peers.iter().for_each(|&peer| self.notify(peer));
    }

    /// Wakes a peer for which a count was stored, unless it waits for signals only.
    fn notify_of_count(&mut self, peer: Rank) {
        self.notify(peer);
    }

    /// Where signals are stores: one thread of this rank is about to sleep, and signals wake it
    /// only when this many that it has not seen have come. 0 is passed before it looks for them:
    /// then anything that comes wakes it.
    fn want_signals(&mut self, _count: u32) {}
}

/// Peers that call, instead of being called. Only providers that the router uses between hosts have
/// them.
pub trait Expecting {
    /// Takes a peer's address, lets it in and does not call it:
    /// [`Event::Connected`](super::Event::Connected) says that it has called.
    fn expect(&mut self, _peer: Rank, _address: &Address) -> Result<()> {
        Err(Error::internal(
            "this transport calls the peers that it knows, and was told to expect one",
        ))
    }

    /// Calls a peer that is expected.
    fn call(&mut self, _peer: Rank) {}
}

/// A port of a device that traffic goes over, for people and for tools that compare bandwidth with
/// what it can carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInUse {
    /// As the kernel names it.
    pub device: String,
    /// Counted from 1.
    pub number: u8,
    /// Largest payload of a packet that this port allows.
    pub mtu_bytes: u32,
    /// The smallest such payload of the ports at the other ends; packets carry the smaller of both.
    /// `None`: no peer has told its own yet.
    pub peers_mtu_bytes: Option<u32>,
    /// Index of the GID that packets carry.
    pub gid_index: u32,
    /// Ethernet, or InfiniBand.
    pub is_ethernet: bool,
    /// Posts of at most this many bytes are inline.
    pub inline_bytes: u32,
    /// To each peer.
    pub queue_pairs: u32,
}

impl PortInUse {
    /// Payload of a packet, as far as both ends are known.
    pub fn packet_bytes(&self) -> u32 {
        (self.peers_mtu_bytes).map_or(self.mtu_bytes, |peers| peers.min(self.mtu_bytes))
    }
}

/// What a transport says of itself, for people, errors and tests. The data path asks for none of
/// it.
pub trait Diagnostics {
    /// Ports of RDMA devices in use; empty where there is none.
    fn ports(&self) -> Vec<PortInUse> {
        Vec::new()
    }

    /// What keeps a peer from being reached at the moment, while the transport still tries: for the
    /// error of an operation that does not wait as long. It names what this rank uses, and not the
    /// peer's rank, which the caller knows.
    fn trouble(&self, _peer: Rank) -> Option<String> {
        None
    }

    /// What has happened so far, by name.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// What is under way between this rank and its peers. A profile asks while a thread waits; the
    /// answer may take a look at every peer.
    fn traffic(&self) -> Traffic {
        Traffic::Idle
    }

    /// The peer, tag and header of a message that waits for a receive and that `is_meant` accepts
    /// by its tag and header. A provider may know of none.
    fn unmatched(
        &mut self,
        _is_meant: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Option<(Rank, u64, u64)> {
        None
    }
}
