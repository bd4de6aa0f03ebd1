//! [`Rail`]: a device, the peers of its queues, and what has failed on it; [`Registered`]: memory
//! that all rails know.

use super::blame::Blame;
use super::device::{Device, Memory, Queue};
use super::record::{RAILS_MAX, RailKeys};
use crate::error::{Error, Result};
use crate::kernel;
use crate::memory::{Region, View};
use crate::types::Rank;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A piece of registered memory, for posts on one rail of such devices.
pub type SegmentOf<D> = <<D as Device>::Queue as Queue>::Segment;

/// See the module.
#[derive(Debug)]
pub struct Rail<D> {
    pub device: D,
    blame: Blame,
    /// The device is gone.
    is_removed: bool,
    /// The device has not ended the posts of a queue that was stopped in time.
    is_mute: bool,
    /// The peers of queues, by the numbers of these.
    peers: BTreeMap<u32, Rank>,
}

impl<D: Device> Rail<D> {
    pub fn new(device: D) -> Rail<D> {
        Rail {
            device,
            blame: Blame::default(),
            is_removed: false,
            is_mute: false,
            peers: BTreeMap::new(),
        }
    }

    /// The name of the device.
    pub fn name(&self) -> &str {
        self.device.name()
    }

    /// Makes the next completion readable, unless the device is gone; false: it has to be polled.
    pub fn arm(&mut self) -> bool {
        self.is_removed || self.device.arm()
    }

    /// Whose queue this is.
    #[inline]
    pub fn peer_of(&self, queue: u32) -> Option<Rank> {
        self.peers.get(&queue).copied()
    }

    /// A queue is this peer's from now on.
    pub fn add_queue(&mut self, queue: u32, peer: Rank) {
        self.peers.insert(queue, peer);
    }

    /// A queue is no more.
    pub fn remove_queue(&mut self, queue: u32) {
        self.peers.remove(&queue);
    }

    /// The device is gone; true where that is news.
    pub fn note_removed(&mut self) -> bool {
        !std::mem::replace(&mut self.is_removed, true)
    }

    /// The device has not ended the posts of a queue that was stopped. It is not waited for again.
    pub fn note_mute(&mut self) {
        self.is_mute = true;
    }

    /// Whether the device ends the posts of stopped queues, as far as is known.
    pub fn ends_posts(&self) -> bool {
        !self.is_removed && !self.is_mute
    }

    /// Whether packets get through, as far as is known.
    pub fn is_usable(&self) -> bool {
        self.device.is_active() && !self.is_removed
    }

    /// Whether the device answers. One that is gone does not, even before an event says so.
    fn is_there(&self) -> bool {
        !self.is_removed && self.device.is_there()
    }

    /// Asks the device how it is on the network; whether it has become usable, and news for people.
    pub fn refresh(&mut self) -> (bool, Option<String>) {
        let was = self.is_usable();
        let news = self.device.refresh();
        (!was && self.is_usable(), news)
    }

    /// What has failed on it.
    pub fn blame(&self) -> &Blame {
        &self.blame
    }

    /// What has failed on it.
    pub fn blame_mut(&mut self) -> &mut Blame {
        &mut self.blame
    }
}

/// Memory that every rail knows.
pub struct Registered<D: Device> {
    view: View,
    region: Option<Arc<Region>>,
    /// Where the bytes of a receive go when all have come, if they come to memory of their own.
    destination: Option<View>,
    /// By rail; none where the device is gone.
    memories: Vec<Option<D::Memory>>,
}

impl<D: Device> std::fmt::Debug for Registered<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} bytes on {} rails",
            self.view.len_bytes(),
            self.memories.len()
        )
    }
}

impl<D: Device> Registered<D> {
    /// Registers a region with every rail.
    pub fn region(
        region: Arc<Region>,
        rails: &[Rail<D>],
        is_relaxed: bool,
    ) -> Result<Registered<D>> {
        Registered::new(region.view(), Some(&region), rails, is_relaxed)
    }

    /// Registers memory for one receive. The registration ends before the receive's completion is
    /// given. Where a device goes on after that, the bytes come to other memory, and
    /// [`Registered::deliver`] copies them.
    pub fn for_receive(view: View, rails: &[Rail<D>], is_relaxed: bool) -> Result<Registered<D>> {
        if rails.iter().all(|rail| rail.device.stops_at_end()) {
            return Registered::new(view, None, rails, is_relaxed);
        }
        let region = Arc::new(Region::private(view.len_bytes())?);
        let mut registered = Registered::region(region, rails, is_relaxed)?;
        registered.destination = Some(view);
        Ok(registered)
    }

    /// All bytes of a receive have come; how many of them this processor has copied.
    pub fn deliver(&self) -> u64 {
        let Some(destination) = self.destination else {
            return 0;
        };
        kernel::copy(self.view, destination);
        destination.len_bytes() as u64
    }

    /// With every rail whose device is there, of which there must be one.
    fn new(
        view: View,
        region: Option<&Arc<Region>>,
        rails: &[Rail<D>],
        is_relaxed: bool,
    ) -> Result<Registered<D>> {
        if view.is_size_only() {
            return Err(Error::invalid("registering memory that has no bytes"));
        }
        let mut refusal = None;
        let mut memories = Vec::with_capacity(rails.len());
        for rail in rails {
            match rail.device.register(view, region, is_relaxed) {
                Ok(memory) => memories.push(Some(memory)),
                Err(error) if rail.is_there() => return Err(error),
                Err(error) => {
                    refusal = Some(error);
                    memories.push(None);
                }
            }
        }
        match refusal {
            Some(error) if memories.iter().all(Option::is_none) => Err(error),
            _ => Ok(Registered {
                view,
                region: region.cloned(),
                destination: None,
                memories,
            }),
        }
    }

    /// The region once more, by keys of its own; none of the memory of a receive.
    pub fn anew(&self, rails: &[Rail<D>], is_relaxed: bool) -> Option<Result<Registered<D>>> {
        let region = Arc::clone(self.region.as_ref()?);
        Some(Registered::region(region, rails, is_relaxed))
    }

    /// All its bytes.
    #[inline]
    pub fn view(&self) -> View {
        self.view
    }

    /// The address by which peers name it, on all rails.
    pub fn address(&self) -> u64 {
        let known = self.memories.iter().flatten().next();
        known.map_or(0, Memory::remote_address)
    }

    /// The keys by which peers name it.
    pub fn keys(&self) -> RailKeys {
        let mut keys = [0; RAILS_MAX];
        for (key, memory) in keys.iter_mut().zip(&self.memories) {
            *key = memory.as_ref().map_or(0, Memory::remote_key);
        }
        keys
    }

    /// Whether a rail knows it.
    #[inline]
    pub fn is_on(&self, rail: usize) -> bool {
        self.memories.get(rail).is_some_and(Option::is_some)
    }

    /// A piece of it, for posts on a rail.
    #[inline]
    pub fn segment(&self, rail: usize, offset: u64, bytes: u64) -> Option<SegmentOf<D>> {
        self.memories.get(rail)?.as_ref()?.segment(offset, bytes)
    }
}
