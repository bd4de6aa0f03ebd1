//! [`Regions`]: which regions of a peer this rank knows, and which of its own the peer was told.

use super::device::{Device, Place};
use super::rail::{Rail, Registered};
use super::record::RailKeys;
use crate::error::Result;
use crate::memory::RegionKey;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A place in the peer's memory, by the keys of all rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub address: u64,
    pub keys: RailKeys,
}

impl Target {
    /// The place `offset` bytes on, as a rail names it.
    #[inline]
    pub fn place(&self, rail: usize, offset: u64) -> Place {
        Place {
            address: self.address.wrapping_add(offset),
            key: self.keys[rail],
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Regions<D: Device> {
    /// The peer's, as far as it has told: where they begin, and their lengths.
    known: BTreeMap<RegionKey, (Target, u64)>,
    exported: BTreeSet<RegionKey>,
    /// What the peer has told to forget, and was not told to be forgotten.
    ending: BTreeSet<RegionKey>,
    /// Regions of this rank, registered for this peer alone. Where queues are not connected, the
    /// end of a registration is all that stops a peer; others go on with theirs.
    exposed: BTreeMap<RegionKey, Arc<Registered<D>>>,
}

impl<D: Device> Regions<D> {
    pub fn new() -> Regions<D> {
        Regions {
            known: BTreeMap::new(),
            exported: BTreeSet::new(),
            ending: BTreeSet::new(),
            exposed: BTreeMap::new(),
        }
    }

    /// The registration by which the peer reaches a region, which is registered for all.
    pub fn expose(
        &mut self,
        key: RegionKey,
        for_all: &Arc<Registered<D>>,
        rails: &[Rail<D>],
        is_relaxed: bool,
    ) -> Result<Arc<Registered<D>>> {
        if D::IS_CONNECTED {
            return Ok(Arc::clone(for_all));
        }
        if let Some(known) = self.exposed.get(&key) {
            return Ok(Arc::clone(known));
        }
        let anew = for_all.anew(rails, is_relaxed).expect("it is a region")?;
        let anew = Arc::new(anew);
        self.exposed.insert(key, Arc::clone(&anew));
        Ok(anew)
    }

    /// Nothing of the peer is under way to a region that has ended.
    pub fn handle_forgotten(&mut self, key: RegionKey) {
        self.exposed.remove(&key);
    }

    /// The peer tells where a region begins, and its length.
    pub fn learn(&mut self, key: RegionKey, target: Target, bytes: u64) {
        self.known.insert(key, (target, bytes));
    }

    /// A region of the peer is known no more.
    pub fn forget(&mut self, key: RegionKey) {
        self.known.remove(&key);
    }

    /// The peer is to hear when nothing is under way to this region.
    pub fn end(&mut self, key: RegionKey) {
        self.known.remove(&key);
        self.ending.insert(key);
    }

    /// Whether the peer waits to hear of some region that nothing is under way there.
    pub fn has_ending(&self) -> bool {
        !self.ending.is_empty()
    }

    /// Takes those to which nothing is under way.
    pub fn take_ended(&mut self, is_used: impl Fn(RegionKey) -> bool) -> Vec<RegionKey> {
        let ended = self.ending.iter().copied().filter(|&key| !is_used(key));
        let ended: Vec<RegionKey> = ended.collect();
        self.ending.retain(|key| !ended.contains(key));
        ended
    }

    pub fn is_known(&self, key: RegionKey) -> bool {
        self.known.contains_key(&key)
    }

    /// Where a range is, if its region is known and it is inside.
    #[inline]
    pub fn target(&self, (key, offset): (RegionKey, u64), bytes: u64) -> Option<Target> {
        let (target, len_bytes) = self.known.get(&key)?;
        let is_inside = offset <= *len_bytes && bytes <= len_bytes - offset;
        is_inside.then(|| Target {
            address: target.address + offset,
            ..*target
        })
    }

    /// The peer is told of a region of this rank.
    pub fn note_exported(&mut self, key: RegionKey) {
        self.exported.insert(key);
    }

    pub fn is_exported(&self, key: RegionKey) -> bool {
        self.exported.contains(&key)
    }

    /// A region of this rank is no more; true where the peer was told of it, which may be writing
    /// there.
    pub fn end_export(&mut self, key: RegionKey) -> bool {
        let is_exported = self.exported.remove(&key);
        if !is_exported {
            self.exposed.remove(&key);
        }
        is_exported
    }

    /// The peer is gone.
    pub fn clear(&mut self) {
        self.known.clear();
        self.exported.clear();
        self.ending.clear();
        self.exposed.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::rdma::record::RAILS_MAX;
    use crate::transport::rdma::simulated::SimDevice;

    #[test]
    fn ranges_are_found_inside_known_regions_only() {
        let mut regions = Regions::<SimDevice<true>>::new();
        let target = Target {
            address: 100,
            keys: [7; RAILS_MAX],
        };
        regions.learn(RegionKey(1), target, 16);
        let at = |regions: &Regions<SimDevice<true>>, offset, bytes| {
            let found = regions.target((RegionKey(1), offset), bytes);
            found.map(|target| target.address)
        };
        assert_eq!(at(&regions, 8, 8), Some(108));
        assert_eq!(at(&regions, 16, 0), Some(116));
        for (offset, bytes) in [(8, 9), (17, 0), (u64::MAX, 1), (1, u64::MAX)] {
            assert_eq!(at(&regions, offset, bytes), None);
        }
        regions.forget(RegionKey(1));
        assert_eq!(
            (at(&regions, 0, 1), regions.is_known(RegionKey(1))),
            (None, false)
        );
    }
}
