//! [`Ranges`]: where the registered buffers of this process lie, so that memory which a caller
//! names by its address is used as registered where it is; and the [`Owner`] of each.
//!
//! A range is here from the allocation of its buffer until the last share of it is dropped, which
//! comes before its pages are given back: an address that is found belongs to a buffer that lives.
//! Communicators made from one another know each other's buffers. It is asked only where memory
//! comes without a [`super::Buffer`].

use crate::memory::{Borrows, ProcessMark, Region, RegionKey, RegionKind, View};
use crate::sync::{Arc, Mutex, PoisonError};
use std::collections::BTreeMap;
use std::sync::Weak;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    /// From the address of a buffer to its length in bytes and its owner.
    known: Mutex<BTreeMap<usize, (usize, Weak<Owner>)>>,
}

impl Ranges {
    /// Knows a buffer from now on. Memory without addresses is not known.
    pub fn add(&self, whole: View, owner: &Arc<Owner>) {
        if !whole.is_size_only() && !whole.is_empty() {
            let range = (whole.len_bytes(), Arc::downgrade(owner));
            self.lock().insert(whole.as_ptr().addr(), range);
        }
    }

    /// The owner of this memory is about to end.
    pub fn forget(&self, whole: View) {
        self.lock().remove(&whole.as_ptr().addr());
    }

    /// The owner of the buffer in which all of this memory lies, and where it begins there, in
    /// bytes.
    pub fn find(&self, view: View) -> Option<(Arc<Owner>, usize)> {
        let address = view.as_ptr().addr();
        let known = self.lock();
        let (&start, (bytes, owner)) = known.range(..=address).next_back()?;
        let offset = address - start;
        let is_inside = view.len_bytes() <= bytes.checked_sub(offset)?;
        // Upgraded under the lock, dropped outside of it: the last share takes it.
        let owner = is_inside.then(|| owner.upgrade()).flatten()?;
        Some((owner, offset))
    }

    fn lock(&self) -> crate::sync::MutexGuard<'_, BTreeMap<usize, (usize, Weak<Owner>)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keys whose memory nobody uses any more, to be deregistered by the next caller that has the
/// engine.
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
        // A forked child has copies of buffers; what is registered is the parent's, and so may be
        // the lock.
        if !self.process.is_forked() {
            let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
            keys.push(key);
        }
    }

    /// All of them.
    pub fn take(&self) -> Vec<RegionKey> {
        std::mem::take(&mut *self.keys.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A region's name in one communicator, which is told apart by its garbage.
pub(super) type Registration = (RegionKey, Arc<Garbage>);

/// The memory of a buffer and all its parts.
#[derive(Debug)]
pub(super) struct Owner {
    /// `None`: memory of the caller, who keeps it.
    pub(super) region: Option<Arc<Region>>,
    /// With the communicator that allocated it.
    pub(super) registration: Option<Registration>,
    /// That know where it lies.
    pub(super) ranges: Option<Arc<Ranges>>,
    /// With others that have used it.
    pub(super) further: Mutex<Vec<Registration>>,
    /// Who uses which of its bytes.
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

    /// The region, if other communicators can register it too.
    pub fn shared_region(&self) -> Option<&Arc<Region>> {
        let is_shared = |region: &&Arc<Region>| matches!(region.kind(), RegionKind::Shared(_));
        self.region.as_ref().filter(is_shared)
    }
}
