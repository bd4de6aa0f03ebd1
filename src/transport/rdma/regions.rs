//! [`Regions`]: which regions of a peer this rank knows, and which of its own the peer was told.

use super::device::Place;
use super::record::RailKeys;
use crate::memory::RegionKey;
use std::collections::{BTreeMap, BTreeSet};

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
#[derive(Debug, Default)]
pub struct Regions {
    /// The peer's, as far as it has told: where they begin, and their lengths.
    known: BTreeMap<RegionKey, (Target, u64)>,
    exported: BTreeSet<RegionKey>,
}

impl Regions {
    /// The peer tells where a region begins, and its length.
    pub fn learn(&mut self, key: RegionKey, target: Target, bytes: u64) {
        self.known.insert(key, (target, bytes));
    }

    /// A region of the peer is known no more.
    pub fn forget(&mut self, key: RegionKey) {
        self.known.remove(&key);
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

    /// A region of this rank is no more; true where the peer was told of it.
    pub fn end_export(&mut self, key: RegionKey) -> bool {
        self.exported.remove(&key)
    }

    /// The peer is gone.
    pub fn clear(&mut self) {
        self.known.clear();
        self.exported.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::rdma::record::RAILS_MAX;

    #[test]
    fn ranges_are_found_inside_known_regions_only() {
        let mut regions = Regions::default();
        let target = Target {
            address: 100,
            keys: [7; RAILS_MAX],
        };
        regions.learn(RegionKey(1), target, 16);
        let at = |regions: &Regions, offset, bytes| {
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
