//! [`PeerRegions`]: regions of one peer, as they are mapped here.

use crate::memory::{Region, RegionKey, View};
use std::collections::BTreeMap;

/// See the module.
#[derive(Debug, Default)]
pub struct PeerRegions {
    /// Those that it has made known, mapped here at first use.
    mapped: BTreeMap<RegionKey, Region>,
    /// Those that are used until the end of the connection.
    pinned: Vec<RegionKey>,
    /// Regions that it has freed since the last [`PeerRegions::release_freed`], and those freed
    /// between that call and the one before. They are still mapped, because operations may have
    /// views of them.
    freed: [Vec<Region>; 2],
}

impl PeerRegions {
    /// A region of the peer, if it has been made known.
    #[inline]
    pub fn get(&self, key: RegionKey) -> Option<View> {
        self.mapped.get(&key).map(|r| r.view().in_region(key, 0))
    }

    /// A region has been made known.
    pub fn insert(&mut self, key: RegionKey, region: Region) {
        self.mapped.insert(key, region);
    }

    /// A region is used until the end of the connection.
    pub fn pin(&mut self, key: RegionKey) {
        if !self.pinned.contains(&key) {
            self.pinned.push(key);
        }
    }

    /// The peer has freed a region: nobody gets a view of it any more.
    pub fn free(&mut self, key: RegionKey) -> Result<(), String> {
        if self.pinned.contains(&key) {
            return Err(format!(
                "it freed region {}, which holds its control memory",
                key.0
            ));
        }
        self.freed[0].extend(self.mapped.remove(&key));
        Ok(())
    }

    /// The connection has ended: nobody gets a view any more.
    pub fn end(&mut self) {
        self.freed[0].extend(std::mem::take(&mut self.mapped).into_values());
        self.pinned.clear();
    }

    /// Unmaps what had been freed before the last call.
    pub fn release_freed(&mut self) {
        self.freed[1].clear();
        self.freed.swap(0, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel;

    #[test]
    fn freed_memory_stays_mapped_for_the_operations_that_had_views_of_it() {
        let mut regions = PeerRegions::default();
        let region = Region::private(4096).unwrap();
        let view = region.view();
        regions.insert(RegionKey(3), region);
        regions.free(RegionKey(3)).unwrap();
        assert!(regions.get(RegionKey(3)).is_none());
        regions.release_freed();
        kernel::store(view, 0, 7u64);
        assert_eq!(kernel::load::<u64>(view, 0), 7);
        assert_eq!([regions.freed[0].len(), regions.freed[1].len()], [0, 1]);
        regions.release_freed();
        assert_eq!([regions.freed[0].len(), regions.freed[1].len()], [0, 0]);
    }

    #[test]
    fn control_memory_cannot_be_freed() {
        let mut regions = PeerRegions::default();
        let region = Region::private(4096).unwrap();
        let view = region.view();
        regions.insert(RegionKey(1), region);
        regions.pin(RegionKey(1));
        let text = regions.free(RegionKey(1)).unwrap_err();
        assert!(text.contains("region 1"), "{text}");
        regions.release_freed();
        regions.release_freed();
        kernel::store(view, 0, 7u64);
        assert!(regions.get(RegionKey(1)).is_some());
    }
}
