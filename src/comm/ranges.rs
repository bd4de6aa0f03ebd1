//! [`Ranges`]: where the registered buffers of this process lie. Memory that a caller names by its
//! address is looked up there, and used as registered if it lies inside a buffer. [`Owner`]: the
//! memory of a buffer and of all its parts.
//!
//! A buffer is in the list from its allocation until its last share is dropped. It leaves the list
//! before its pages are unmapped, so an address that is found belongs to a living buffer. Memory
//! that a caller owns and has registered is in the list until it is deregistered, and the list
//! keeps its share. Communicators that were made from one another share one list. Memory in a
//! [`super::Buffer`] is not looked up.

use super::cached::CachedRegistrations;
use crate::error::{Error, Result};
use crate::memory::{Borrows, ProcessMark, Region, RegionKey, View};
use crate::sync::{Arc, Mutex, PoisonError};
use std::collections::BTreeMap;
use std::sync::Weak;

/// The registered buffers, by address.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    /// The key is the address of the first byte.
    known: Mutex<BTreeMap<usize, Known>>,
    /// Memory of callers that the library has registered by itself.
    pub cached: CachedRegistrations<Owner>,
}

/// A registered buffer.
#[derive(Debug)]
struct Known {
    bytes: usize,
    owner: Weak<Owner>,
    /// The list's own share, if it is memory of the caller.
    kept: Option<Arc<Owner>>,
}

impl Ranges {
    /// Adds a buffer. Memory without addresses (of a size-only simulation) and empty memory are not
    /// added.
    pub fn add(&self, whole: View, owner: &Arc<Owner>) {
        if !whole.is_size_only() && !whole.is_empty() {
            let known = Known {
                bytes: whole.len_bytes(),
                owner: Arc::downgrade(owner),
                kept: None,
            };
            self.lock().insert(whole.as_ptr().addr(), known);
        }
    }

    /// Adds memory of a caller, and keeps it until [`Ranges::release`]. An error if some of it is
    /// registered already.
    pub fn keep(&self, whole: View, owner: &Arc<Owner>) -> Result<()> {
        let (start, bytes) = (whole.as_ptr().addr(), whole.len_bytes());
        let end = start + bytes;
        let mut known = self.lock();
        let last = known.range(..end).next_back();
        if let Some((&other, range)) = last.filter(|(other, range)| *other + range.bytes > start) {
            return Err(Error::invalid(format!(
                "registering {bytes} bytes at {start:#x}: {} bytes at {other:#x} are registered already; use Communicator::buffer_at for what lies inside, or deregister or drop the other first",
                range.bytes
            )));
        }
        let kept = Known {
            bytes,
            owner: Arc::downgrade(owner),
            kept: Some(owner.clone()),
        };
        known.insert(start, kept);
        Ok(())
    }

    /// Removes the memory of a caller that begins at this address. From now on every use of it is
    /// an error. Fails, and changes nothing, if something uses it now.
    pub fn release(&self, address: usize) -> Result<Arc<Owner>> {
        let mut known = self.lock();
        let kept = known.get(&address).and_then(|range| range.kept.as_ref());
        let Some(owner) = kept else {
            let mut before = known.range(..=address);
            let inside = before
                .next_back()
                .filter(|(start, range)| address - **start < range.bytes);
            let what = match inside {
                Some((&start, range)) if range.kept.is_some() => format!(
                    "the registered memory around it is {} bytes from {start:#x} on, and ends as a whole",
                    range.bytes
                ),
                Some(_) => "it lies in a buffer that was allocated, which ends when its last share is dropped".into(),
                None => "it is not registered, or not any more".into(),
            };
            return Err(Error::invalid(format!(
                "deregistering the memory at {address:#x}: {what}; name the address at which a registration begins"
            )));
        };
        // Without another share nothing uses it, and none can be made while this lock is held.
        if Arc::strong_count(owner) > 1 {
            owner.borrows.end(0..known[&address].bytes)?;
        }
        let released = known.remove(&address).and_then(|range| range.kept);
        Ok(released.expect("it was looked up under this lock"))
    }

    /// Removes the buffer of this memory, whose owner is being dropped.
    pub fn forget(&self, whole: View) {
        self.lock().remove(&whole.as_ptr().addr());
    }

    /// The owner of the buffer that contains all of the `bytes` bytes at this address, and their
    /// offset in that buffer, in bytes.
    pub fn find(&self, address: usize, bytes: usize) -> Option<(Arc<Owner>, usize)> {
        let known = self.lock();
        let (&start, range) = known.range(..=address).next_back()?;
        let offset = address - start;
        let is_inside = bytes <= range.bytes.checked_sub(offset)?;
        // The share is made under the lock and dropped outside of it: dropping the last share takes
        // the lock.
        let owner = is_inside.then(|| range.owner.upgrade()).flatten()?;
        Some((owner, offset))
    }

    fn lock(&self) -> crate::sync::MutexGuard<'_, BTreeMap<usize, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keys of regions whose memory nothing uses any more. The next caller that holds the engine
/// deregisters them.
pub(super) struct Garbage {
    keys: Mutex<Vec<RegionKey>>,
    pub(super) process: ProcessMark,
    /// Locks the communicator's engine, if that is still there, and deregisters all keys.
    collect: Box<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Garbage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Garbage")
            .field("keys", &self.keys)
            .finish_non_exhaustive()
    }
}

impl Garbage {
    pub fn new(process: ProcessMark, collect: impl Fn() + Send + Sync + 'static) -> Garbage {
        Garbage {
            keys: Mutex::default(),
            process,
            collect: Box::new(collect),
        }
    }

    fn add(&self, key: RegionKey) {
        // A forked child has copies of buffers. Their registrations belong to the parent, and
        // another thread of the parent may have held the lock at the fork.
        if key.is_some() && !self.process.is_forked() {
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
    /// The registration in the communicator that allocated or registered it.
    pub(super) registration: Option<Registration>,
    /// The list that it leaves when it is dropped, if there is one.
    pub(super) ranges: Option<Arc<Ranges>>,
    /// The registrations in other communicators that have used it. `None`: all registrations have
    /// ended, and no further one is made.
    pub(super) further: Mutex<Option<Vec<Registration>>>,
    /// Which operation, slice or copy uses which of its bytes.
    pub(super) borrows: Arc<Borrows>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        // This takes no lock: in a forked child, one that was held at the fork is never released.
        let further = self
            .further
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        give_up(&self.registration, further);
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
            further: Mutex::new(Some(Vec::new())),
            borrows: Arc::default(),
        }
    }

    /// Memory of a caller that the library registers by itself.
    pub fn of_cached(region: Arc<Region>, registration: Registration) -> Arc<Owner> {
        let mut owner = Owner::new(Some(region));
        owner.registration = Some(registration);
        Arc::new(owner)
    }

    /// Its key in the communicator that has this garbage. At the first use there, `register` makes
    /// it, unless the memory was deregistered.
    pub fn key_in(
        &self,
        garbage: &Arc<Garbage>,
        register: impl FnOnce(Arc<Region>) -> Result<RegionKey>,
    ) -> Result<RegionKey> {
        if let Some((key, _)) =
            (self.registration.iter()).find(|(_, home)| Arc::ptr_eq(home, garbage))
        {
            return Ok(*key);
        }
        let mut further = self.further.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(further), Some(region)) = (further.as_mut(), &self.region) else {
            return Ok(RegionKey::NONE);
        };
        let known = further.iter().find(|(_, home)| Arc::ptr_eq(home, garbage));
        if let Some((key, _)) = known {
            return Ok(*key);
        }
        // Forgets communicators that are gone: their registrations have ended with them.
        further.retain(|(_, home)| Arc::strong_count(home) > 1);
        let key = register(region.clone())?;
        further.push((key, garbage.clone()));
        Ok(key)
    }

    /// Ends its registrations in all communicators before it returns. Locks their engines.
    pub fn end_registrations(&self) {
        let further = {
            let mut further = self.further.lock().unwrap_or_else(PoisonError::into_inner);
            give_up(&self.registration, &mut further).unwrap_or_default()
        };
        for (_, garbage) in self.registration.iter().chain(&further) {
            (garbage.collect)();
        }
    }
}

/// Makes garbage of the registrations of an owner, which has none from then on. Returns those of
/// other communicators; `None` if that was done already.
fn give_up(
    own: &Option<Registration>,
    further: &mut Option<Vec<Registration>>,
) -> Option<Vec<Registration>> {
    let further = further.take()?;
    let all = own.iter().chain(&further);
    all.for_each(|(key, garbage)| garbage.add(*key));
    Some(further)
}
