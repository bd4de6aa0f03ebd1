//! [`RegionKey`]: how ranks name a region.

/// Name of a region among those of one rank. Never reused, so that a stale key cannot reach new
/// memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionKey(pub u32);

impl RegionKey {
    /// Part of no region.
    pub const NONE: RegionKey = RegionKey(0);

    /// Whether this names a region.
    pub fn is_some(self) -> bool {
        self != RegionKey::NONE
    }
}
