//! [`Arena`]: the memory that messages come from and go to, and the data that is checked. Messages
//! rotate over slots that are together larger than the caches, so that they are read from and
//! written to memory.

use super::args::{Test, Verb};
use super::options::Options;
use linerate::transport::{Region, RegionKey, RemoteRange, View};
use linerate::unstable::limits;
use linerate::unstable::prng::mix;
use linerate::{Rank, Result};
use linerate_job::access;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Slots begin at a cache line.
const ALIGNMENT: u64 = limits::CACHE_LINE_BYTES as u64;
/// Bounds what is touched before the first timed message of a small size.
const SLOTS_MAX: u64 = 16 * 1024;
/// Bytes and messages per stream that are compared for each size.
const CHECKED_BYTES: u64 = 32 << 20;
const CHECKED_MESSAGES: u64 = 64;
/// Targets are filled with this ahead of a checked run. Only by chance is it what is expected
/// there.
const POISON: u8 = 0xa5;
/// Bytes of two words on cache lines of their own: one that the other side puts, and the one that
/// this side puts from.
pub const FLAG_BYTES: usize = 2 * limits::CACHE_LINE_BYTES;

/// Where messages of one size lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// Bytes of a message.
    pub bytes: u64,
    stride: u64,
    /// Their number.
    pub count: u64,
}

impl Slots {
    /// Slots for messages of `bytes` bytes, rotating over at least `rotation_bytes` unless that is
    /// 0.
    pub fn new(bytes: u64, streams: u32, rotation_bytes: u64) -> Slots {
        let stride = bytes.next_multiple_of(ALIGNMENT);
        let count = match rotation_bytes {
            0 => 1,
            wanted => wanted.div_ceil(stride).clamp(2, SLOTS_MAX),
        };
        Slots {
            bytes,
            stride,
            // Each stream checks a slot of its own.
            count: count.max(u64::from(streams)),
        }
    }

    /// Bytes of all.
    pub fn len_bytes(&self) -> u64 {
        self.stride * self.count
    }

    /// Where message `index` lies.
    #[inline]
    pub fn offset(&self, index: u64) -> u64 {
        index % self.count * self.stride
    }

    /// Messages that are compared: none is overwritten by a later one, and each stream has as many
    /// as the others.
    pub fn checked(&self, streams: u32) -> u64 {
        let streams = u64::from(streams);
        let fits = (CHECKED_BYTES / self.bytes).min(self.count);
        (fits / streams).clamp(1, CHECKED_MESSAGES) * streams
    }
}

/// Registered memory.
pub struct Memory {
    /// Its pages.
    pub region: Arc<Region>,
    /// Its key, once it is registered.
    pub key: RegionKey,
}

impl Memory {
    fn new(bytes: u64) -> Result<Memory> {
        let region = Region::shared("linerate-perf", bytes as usize)?;
        // It gets all pages now, so that no message waits for one.
        region.populate(true);
        Ok(Memory {
            region: Arc::new(region),
            key: RegionKey::NONE,
        })
    }

    /// A part of it, with the key of the region.
    pub fn part(&self, offset: u64, bytes: u64) -> View {
        let whole = self.region.view().in_region(self.key, 0);
        whole.part(offset as usize, bytes as usize)
    }
}

/// The keys of a side's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keys {
    source: u32,
    target: u32,
    flags: u32,
}

impl Keys {
    /// All of them.
    pub fn all(self) -> [RegionKey; 3] {
        [self.source, self.target, self.flags].map(RegionKey)
    }

    /// A place in the memory that the other side's messages come from.
    pub fn source(self, offset: u64) -> RemoteRange {
        let key = RegionKey(self.source);
        RemoteRange { key, offset }
    }

    /// A place in the memory that this side's messages go to.
    pub fn target(self, offset: u64) -> RemoteRange {
        let key = RegionKey(self.target);
        RemoteRange { key, offset }
    }

    /// The word that says how many messages have been put.
    pub fn flag(self) -> RemoteRange {
        let key = RegionKey(self.flags);
        RemoteRange { key, offset: 0 }
    }
}

/// One side's memory.
pub struct Arena {
    /// What messages are made of.
    pub source: Memory,
    /// Where they arrive.
    pub target: Memory,
    /// A word that the other side puts, and one to put from.
    pub flags: Memory,
}

impl Arena {
    /// Memory for messages of all sizes, as far as this side has any.
    pub fn new(options: &Options, rank: Rank, rotation_bytes: u64) -> Result<Arena> {
        let bytes = bytes_needed(options, rotation_bytes);
        let (has_source, has_target) = uses(options, rank);
        let of = |is_used| if is_used { bytes } else { ALIGNMENT };
        Ok(Arena {
            source: Memory::new(of(has_source))?,
            target: Memory::new(of(has_target))?,
            flags: Memory::new(FLAG_BYTES as u64)?,
        })
    }

    /// What has to be registered.
    pub fn memories(&mut self) -> [&mut Memory; 3] {
        [&mut self.source, &mut self.target, &mut self.flags]
    }

    /// The keys, once the memory is registered.
    pub fn keys(&self) -> Keys {
        Keys {
            source: self.source.key.0,
            target: self.target.key.0,
            flags: self.flags.key.0,
        }
    }
}

/// Bytes of the source, and of the target, of a side that has them.
pub fn bytes_needed(options: &Options, rotation_bytes: u64) -> u64 {
    let of = |bytes| Slots::new(bytes, options.streams, rotation_bytes).len_bytes();
    options.sizes().into_iter().map(of).max().unwrap_or(0)
}

/// Whether a side has a source and a target: rank 1 is the client, which posts; the server too if
/// both directions are used.
pub fn uses(options: &Options, rank: Rank) -> (bool, bool) {
    let both = options.bidirectional || matches!(options.test, Test::WriteLat | Test::SendLat);
    let is_client = rank == 1;
    match options.test.verb() {
        // The words of atomic operations are in the source, and their old values come to the
        // target.
        Verb::Read | Verb::Atomic => (both || !is_client, both || is_client),
        Verb::Write | Verb::Send => (both || is_client, both || !is_client),
    }
}

/// The bytes of one slot of `rank`'s source.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// Seed of the run.
    pub seed: u64,
    /// The rank whose source it is.
    pub rank: Rank,
}

impl Pattern {
    fn word(&self, slot: u64, index: u64) -> u64 {
        let of_slot = mix(self.seed ^ u64::from(self.rank) << 60) ^ mix(slot);
        mix(of_slot.wrapping_add(index))
    }

    /// Writes a slot.
    pub fn fill(&self, view: View, slot: u64) {
        for (index, at) in (0..view.len_bytes()).step_by(8).enumerate() {
            let bytes = self.word(slot, index as u64).to_le_bytes();
            access::write(view, at, &bytes[..(view.len_bytes() - at).min(8)]);
        }
    }

    /// Bytes of a slot that differ from the pattern.
    pub fn count_wrong(&self, view: View, slot: u64) -> u64 {
        let mut wrong = 0;
        for (index, at) in (0..view.len_bytes()).step_by(8).enumerate() {
            let expected = self.word(slot, index as u64).to_le_bytes();
            let mut found = [0; 8];
            let bytes = (view.len_bytes() - at).min(8);
            access::read(view, at, &mut found[..bytes]);
            let pairs = found.iter().zip(&expected).take(bytes);
            wrong += pairs.filter(|(a, b)| a != b).count() as u64;
        }
        wrong
    }
}

/// Fills a target, so that nearly every byte that is not written later is wrong.
pub fn poison(view: View) {
    access::fill(view, POISON);
}

#[cfg(test)]
mod tests {
    use super::super::options::tests::options;
    use super::*;

    #[test]
    fn slots_are_more_than_the_rotation_and_never_share_a_line() {
        let slots = Slots::new(100, 1, 1 << 20);
        assert_eq!((slots.count, slots.offset(1)), (8192, 128));
        assert!(slots.len_bytes() >= 1 << 20);
        assert_eq!(slots.offset(8192), 0);
        assert_eq!(Slots::new(8 << 20, 1, 1 << 20).count, 2);
        assert_eq!(Slots::new(1, 1, 1 << 30).count, SLOTS_MAX);
    }

    #[test]
    fn without_rotation_there_is_one_slot_for_each_stream() {
        assert_eq!(Slots::new(8, 1, 0).count, 1);
        assert_eq!(Slots::new(8, 4, 0).count, 4);
    }

    #[test]
    fn what_is_checked_is_never_overwritten() {
        for (bytes, streams, rotation) in [(1, 1, 0), (1, 3, 1 << 20), (8 << 20, 7, 1 << 20)] {
            let slots = Slots::new(bytes, streams, rotation);
            let checked = slots.checked(streams);
            assert!(
                checked <= slots.count && checked.is_multiple_of(u64::from(streams)) && checked > 0
            );
        }
    }

    #[test]
    fn only_sides_that_need_memory_have_it() {
        let uses = |line: &str| {
            (0..2)
                .map(|r| uses(&options(line).unwrap(), r))
                .collect::<Vec<_>>()
        };
        assert_eq!(uses("write_bw"), [(false, true), (true, false)]);
        assert_eq!(uses("read_lat"), [(true, false), (false, true)]);
        assert_eq!(uses("send_lat"), [(true, true); 2]);
        assert_eq!(uses("read_bw -b"), [(true, true); 2]);
    }

    #[test]
    fn one_wrong_byte_is_found_in_any_place() {
        let pattern = Pattern { seed: 1, rank: 1 };
        for bytes in [1usize, 7, 8, 9, 64] {
            let region = Region::private(bytes).unwrap();
            let view = region.view();
            pattern.fill(view, 5);
            assert_eq!(pattern.count_wrong(view, 5), 0);
            assert!(pattern.count_wrong(view, 6) > 0, "{bytes}: another slot");
            for at in 0..bytes {
                let before = access::load::<u8>(view, at);
                access::store(view, at, before ^ 1);
                assert_eq!(pattern.count_wrong(view, 5), 1);
                access::store(view, at, before);
            }
        }
    }
}
