//! [`Ranges`]: where the registered buffers of this process lie. Memory that a caller names by its
//! address is looked up there, and used as registered if it lies inside a buffer. [`Owner`]: the
//! memory of a buffer and of all its parts.
//!
//! A buffer is in the list from its allocation until its last share is dropped. It leaves the list
//! before its pages are unmapped, so an address that is found belongs to a living buffer.
//! Communicators that were made from one another share one list. Memory in a [`super::Buffer`] is
//! not looked up.

use crate::memory::{Borrows, ProcessMark, Region, RegionKey, RegionKind, View};
use crate::sync::{Arc, Mutex, PoisonError};
use std::collections::BTreeMap;
use std::sync::Weak;

/// The registered buffers, by address.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    /// From the address of a buffer to its length in bytes and its owner.
    known: Mutex<BTreeMap<usize, (usize, Weak<Owner>)>>,
}

impl Ranges {
    /// Adds a buffer. Memory without addresses (of a size-only simulation) and empty memory are not
    /// added.
    pub fn add(&self, whole: View, owner: &Arc<Owner>) {
        if !whole.is_size_only() && !whole.is_empty() {
            let range = (whole.len_bytes(), Arc::downgrade(owner));
            self.lock().insert(whole.as_ptr().addr(), range);
        }
    }

    /// Removes the buffer of this memory, whose owner is being dropped.
    pub fn forget(&self, whole: View) {
        self.lock().remove(&whole.as_ptr().addr());
    }

    /// The owner of the buffer that contains all of this memory, and the memory's offset in that
    /// buffer, in bytes.
    pub fn find(&self, view: View) -> Option<(Arc<Owner>, usize)> {
        let address = view.as_ptr().addr();
        let known = self.lock();
        let (&start, (bytes, owner)) = known.range(..=address).next_back()?;
        let offset = address - start;
        let is_inside = view.len_bytes() <= bytes.checked_sub(offset)?;
        // The share is made under the lock and dropped outside of it: dropping the last share takes
        // the lock.
        let owner = is_inside.then(|| owner.upgrade()).flatten()?;
        Some((owner, offset))
    }

    fn lock(&self) -> crate::sync::MutexGuard<'_, BTreeMap<usize, (usize, Weak<Owner>)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keys of regions whose memory nothing uses any more. The next caller that holds the engine
/// deregisters them.
#[derive(Debug)]
pub(super) struct Garbage {
    keys: Mutex<Vec<RegionKey>>,
    pub(super) process: ProcessMark,
}

impl Garbage {
    pub fn new(process: ProcessMark) -> Garbage {
        Garbage {
            keys: Mutex::default(),
            process,
        }
    }

    fn add(&self, key: RegionKey) {
        // A forked child has copies of buffers. Their registrations belong to the parent, of which
        // another thread may have held the lock at the fork.
        if !self.process.is_forked() {
            let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
            keys.push(key);
        }
    }

    /// Takes all keys.
    pub fn take(&self) -> Vec<RegionKey> {
        std::mem::take(&mut *self.keys.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The key of a region in one communicator. The garbage tells in which one.
pub(super) type Registration = (RegionKey, Arc<Garbage>);

/// The memory of a buffer and all its parts.
#[derive(Debug)]
pub(super) struct Owner {
    /// `None`: the caller owns the memory.
    pub(super) region: Option<Arc<Region>>,
    /// The registration in the communicator that allocated it.
    pub(super) registration: Option<Registration>,
    /// The list that contains it.
    pub(super) ranges: Option<Arc<Ranges>>,
    /// The registrations in other communicators that have used it.
    pub(super) further: Mutex<Vec<Registration>>,
    /// Which operation, slice or copy uses which of its bytes.
    pub(super) borrows: Arc<Borrows>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        let further = self
            .further
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for (key, garbage) in self.registration.iter().chain(&*further) {
            garbage.add(*key);
        }
        let is_forked = || (self.registration.iter()).any(|(_, home)| home.process.is_forked());
        if let (Some(ranges), Some(region)) = (&self.ranges, &self.region)
            && !is_forked()
        {
            ranges.forget(region.view());
        }
    }
}

impl Owner {
    pub fn new(region: Option<Arc<Region>>) -> Owner {
        Owner {
            region,
            registration: None,
            ranges: None,
            further: Mutex::default(),
            borrows: Arc::default(),
        }
    }

    /// The region, if other communicators can register it, too.
    pub fn shared_region(&self) -> Option<&Arc<Region>> {
        let is_shared = |region: &&Arc<Region>| matches!(region.kind(), RegionKind::Shared(_));
        self.region.as_ref().filter(is_shared)
    }
}
