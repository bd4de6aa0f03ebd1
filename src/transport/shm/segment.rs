//! The segment of one rank: bell, indices and rings, in one sealed memfd that all its peers map.
//!
//! ```text
//! 0     magic, ranks
//! 64    bell, sleeping        the owner sleeps on the bell; wakers look at `sleeping` first
//! 72    quota                 how many signals wake it together
//! 128   announced             counts control-socket messages the owner has sent to anybody
//! 4096  head line per sender  written by that sender: ring head, what it has taken back (`recall.rs`)
//! ...   tail line per sender  written by the owner: ring tail, messages matched per class of tags
//! ...   ring per sender
//! ```

use super::ring::RingMemory;
use crate::error::{Error, Result};
use crate::kernel;
use crate::limits::{CACHE_LINE_BYTES, RING_BYTES};
use crate::memory::{Region, View};
use crate::transport::{TAG_CLASSES, WaitSource};
use crate::types::Rank;
use crate::wait::{Bell, Quota};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;

const MAGIC: u64 = u64::from_le_bytes(*b"lnrtshm3");
const BELL: usize = 64;
const SLEEPING: usize = 68;
const QUOTA: usize = 72;
const ANNOUNCED: usize = 128;
const LINES: usize = 4096;

const _: () = assert!(
    8 * (1 + TAG_CLASSES) <= CACHE_LINE_BYTES,
    "a tail line holds the tail and a count per class"
);

/// A segment of this rank or of a peer, with the region that keeps it mapped. Its bell, which every
/// message touches, comes first.
#[derive(Debug)]
#[repr(C)]
pub struct Segment {
    bell: Bell,
    view: View,
    region: Region,
    quota: Quota,
    ranks: u32,
    /// What wakes its owner, if that sleeps on descriptors.
    alarm: Option<OwnedFd>,
}

impl Segment {
    /// Bytes of the segment of a job with this many ranks.
    pub fn bytes(ranks: u32) -> usize {
        LINES + ranks as usize * (2 * CACHE_LINE_BYTES + RING_BYTES)
    }

    /// A new segment of this rank.
    pub fn create(ranks: u32) -> Result<Segment> {
        let region = Region::shared("linerate-segment", Segment::bytes(ranks))?;
        let view = region.view();
        kernel::store(view, 0, MAGIC);
        kernel::store(view, 1, u64::from(ranks));
        Ok(Segment::of(region, ranks))
    }

    /// A peer's segment, after a look at what it says about itself.
    pub fn adopt(region: Region, ranks: u32) -> Result<Segment> {
        let view = region.view();
        if view.len_bytes() != Segment::bytes(ranks)
            || kernel::load::<u64>(view, 0) != MAGIC
            || kernel::load::<u64>(view, 1) != u64::from(ranks)
        {
            return Err(Error::Malformed(format!(
                "a peer's segment of {} bytes is not one of linerate {} for {ranks} ranks: run the same version everywhere",
                view.len_bytes(),
                env!("CARGO_PKG_VERSION"),
            )));
        }
        Ok(Segment::of(region, ranks))
    }

    fn of(region: Region, ranks: u32) -> Segment {
        let view = region.view();
        Segment {
            region,
            view,
            bell: Bell::new(view.part(BELL, 4), view.part(SLEEPING, 4)),
            quota: Quota::new(view.part(QUOTA, 4)),
            ranks,
            alarm: None,
        }
    }

    /// The region, to send its descriptor.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The ring into which `sender` writes for this segment's owner.
    pub fn ring_from(&self, sender: Rank) -> RingMemory {
        let (sender, ranks) = (sender as usize, self.ranks as usize);
        let line = |index: usize| {
            self.view
                .part(LINES + index * CACHE_LINE_BYTES, CACHE_LINE_BYTES)
        };
        RingMemory {
            head: line(sender),
            tail: line(ranks + sender),
            bytes: self.view.part(
                LINES + 2 * ranks * CACHE_LINE_BYTES + sender * RING_BYTES,
                RING_BYTES,
            ),
        }
    }

    /// Empties the ring from `sender` and forgets all that is beside it. Nobody writes there now.
    pub fn clear_from(&self, sender: Rank) {
        let RingMemory { head, tail, .. } = self.ring_from(sender);
        for line in [head, tail] {
            (0..line.len_bytes() / 8).for_each(|at| kernel::store(line, at, 0u64));
        }
    }

    /// A line per sender, in which the head of its ring comes first.
    #[inline]
    pub fn heads(&self) -> View {
        self.view
            .part(LINES, self.ranks as usize * CACHE_LINE_BYTES)
    }

    /// Messages of `sender`, of one class of tags, that the owner has matched with receives.
    pub fn matched_from(&self, sender: Rank, class: usize) -> &AtomicU64 {
        let line = LINES + (self.ranks + sender) as usize * CACHE_LINE_BYTES;
        kernel::word(&self.view, line + 8 * (1 + class))
    }

    /// The word of `recall.rs`: what `sender` has taken back that the owner may read.
    pub fn recalled_by(&self, sender: Rank) -> View {
        let line = LINES + sender as usize * CACHE_LINE_BYTES;
        self.view.part(line + 8, 8)
    }

    /// What the owner sleeps on.
    pub fn wait_source(&self) -> WaitSource {
        WaitSource::Futex {
            bell: self.view.part(BELL, 4),
            sleeping: self.view.part(SLEEPING, 4),
        }
    }

    /// Control-socket messages that the owner has sent, to anybody.
    pub fn announced(&self) -> &AtomicU64 {
        kernel::word(&self.view, ANNOUNCED)
    }

    /// Wakes the owner if it sleeps. The caller has stored what the owner waits for.
    #[inline]
    pub fn wake(&self) {
        self.bell.wake_when(|| true, || self.raise_alarm());
    }

    /// Wakes the owner if the signal that the caller has stored is the last of those that it wants.
    /// The caller has made a sequentially consistent fence since.
    #[inline]
    pub fn wake_by_signal(&self) {
        self.bell
            .wake_after_fence(|| self.quota.count(), || self.raise_alarm());
    }

    /// Wakes the owner for something that the caller has stored and that is no signal, unless the
    /// owner waits for signals only.
    pub fn wake_if_open(&self) {
        self.bell
            .wake_when(|| self.quota.is_open(), || self.raise_alarm());
    }

    /// How many signals wake the owner together: see [`Quota`]. Only the owner sets it.
    pub fn quota(&self) -> Quota {
        self.quota
    }

    fn raise_alarm(&self) {
        if let Some(alarm) = &self.alarm {
            // Only a full counter refuses, and that is readable too.
            let _ = rustix::io::write(alarm, &1u64.to_ne_bytes());
        }
    }

    /// The owner sleeps on this eventfd. It is written before the bell counts: a reader that
    /// sees another count finds it written.
    pub fn wake_through(&mut self, alarm: OwnedFd) {
        self.alarm = Some(alarm);
    }
}
