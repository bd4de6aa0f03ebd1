//! [`Buffer`]: memory that operations can use, with shared ownership.

use super::ranges::Ranges;
use crate::error::Result;
use crate::memory::{Element, ProcessMark, Region, RegionKey, RegionKind, View};
use crate::sync::{Arc, Mutex, PoisonError};

/// Keys whose memory nobody uses any more, to be deregistered by the next caller that has the engine.
#[derive(Debug)]
pub(super) struct Garbage {
    keys: Mutex<Vec<RegionKey>>,
    process: ProcessMark,
}

impl Garbage {
    pub fn new(process: ProcessMark) -> Garbage {
        Garbage {
            keys: Mutex::default(),
            process,
        }
    }

    fn add(&self, key: RegionKey) {
        // A forked child has copies of buffers; what is registered is the parent's, and so may be the lock.
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
type Registration = (RegionKey, Arc<Garbage>);

/// The memory of a buffer and all its parts.
#[derive(Debug)]
pub(super) struct Owner {
    /// `None`: memory of the caller, who keeps it.
    region: Option<Arc<Region>>,
    /// With the communicator that allocated it.
    registration: Option<Registration>,
    /// That know where it lies.
    ranges: Option<Arc<Ranges>>,
    /// With others that have used it.
    further: Mutex<Vec<Registration>>,
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
    /// The region, if other communicators can register it too.
    fn shared_region(&self) -> Option<&Arc<Region>> {
        let is_shared = |region: &&Arc<Region>| matches!(region.kind(), RegionKind::Shared(_));
        self.region.as_ref().filter(is_shared)
    }
}

/// A range of registered or plain memory, zeroed when made. Clones share the bytes; they live until the last clone and
/// the last operation on them are gone.
///
/// Reading or writing while an operation uses the bytes is allowed and gives unspecified bytes.
#[derive(Clone, Debug)]
pub struct Buffer {
    owner: Arc<Owner>,
    view: View,
}

impl Buffer {
    /// Plain memory of this process (the caller's own, not registered): operations stage it.
    pub fn plain(bytes: usize) -> Result<Buffer> {
        let region = Region::private(bytes)?;
        let view = region.view();
        Ok(Buffer {
            owner: Arc::new(Owner {
                region: Some(Arc::new(region)),
                registration: None,
                ranges: None,
                further: Mutex::default(),
            }),
            view,
        })
    }

    pub(super) fn registered(
        region: Arc<Region>,
        key: RegionKey,
        garbage: Arc<Garbage>,
        ranges: &Arc<Ranges>,
    ) -> Buffer {
        let whole = region.view();
        let owner = Arc::new(Owner {
            region: Some(region),
            registration: Some((key, garbage)),
            ranges: Some(ranges.clone()),
            further: Mutex::default(),
        });
        ranges.add(whole, &owner);
        Buffer {
            owner,
            view: whole.in_region(key, 0),
        }
    }

    /// Memory that the caller keeps: the part of a registered buffer that it is, if these ranges know it.
    pub(super) fn at(view: View, ranges: &Ranges) -> Buffer {
        Buffer::inside(view, ranges).unwrap_or_else(|| Buffer {
            owner: Arc::new(Owner {
                region: None,
                registration: None,
                ranges: None,
                further: Mutex::default(),
            }),
            view: view.in_region(RegionKey::NONE, 0),
        })
    }

    /// The part of a registered buffer that this memory is. Its address stays the caller's, so that memory which was lent
    /// is reached through the loan.
    pub(super) fn inside(view: View, ranges: &Ranges) -> Option<Buffer> {
        let (owner, offset) = ranges.find(view)?;
        let key = owner.registration.as_ref()?.0;
        let view = view.in_region(key, offset as u64);
        Some(Buffer { owner, view })
    }

    /// Whether its key is one of the communicator with this garbage, or it has none.
    #[inline]
    pub(super) fn is_at_home(&self, garbage: &Arc<Garbage>) -> bool {
        let own = self.owner.registration.as_ref();
        own.is_none_or(|(_, home)| Arc::ptr_eq(home, garbage))
    }

    /// The same bytes with the key of another communicator, which `register` asks for at the first use. A region that it
    /// cannot reach counts as the caller's own memory.
    pub(super) fn moved_to(
        &self,
        garbage: &Arc<Garbage>,
        register: impl FnOnce(Arc<Region>) -> Result<RegionKey>,
    ) -> Result<Buffer> {
        let mut further = self
            .owner
            .further
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let known = further.iter().find(|(_, home)| Arc::ptr_eq(home, garbage));
        let key = match (known, self.owner.shared_region()) {
            (Some((key, _)), _) => *key,
            (None, Some(region)) => {
                // A communicator that is gone has ended its registrations with itself.
                further.retain(|(_, home)| Arc::strong_count(home) > 1);
                let key = register(region.clone())?;
                further.push((key, garbage.clone()));
                key
            }
            (None, None) => RegionKey::NONE,
        };
        Ok(Buffer {
            owner: self.owner.clone(),
            view: self.view.in_region(key, self.view.offset()),
        })
    }

    /// The `bytes` bytes from `start`. Panics if they are not inside.
    pub fn part(&self, start: usize, bytes: usize) -> Buffer {
        Buffer {
            owner: self.owner.clone(),
            view: self.view.part(start, bytes),
        }
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.view.len_bytes()
    }

    /// Whether collectives use it without staging.
    pub fn is_registered(&self) -> bool {
        self.view.key().is_some()
    }

    /// The raw range.
    pub fn view(&self) -> View {
        self.view
    }

    /// The same, where it is kept.
    #[inline]
    pub(super) fn view_ref(&self) -> &View {
        &self.view
    }

    /// Writes elements from element `index` on. Panics if they do not fit.
    pub fn write<T: Element>(&self, index: usize, source: &[T]) {
        self.view
            .write(index * size_of::<T>(), bytemuck::cast_slice(source));
    }

    /// Reads elements from element `index` on. Panics if there are not as many.
    pub fn read<T: Element>(&self, index: usize, target: &mut [T]) {
        self.view
            .read(index * size_of::<T>(), bytemuck::cast_slice_mut(target));
    }

    /// All elements, copied.
    pub fn to_vec<T: Element>(&self) -> Vec<T> {
        let mut all = vec![T::zeroed(); self.len_bytes() / size_of::<T>()];
        self.read(0, &mut all);
        all
    }

    pub(super) fn owner(&self) -> &Arc<Owner> {
        &self.owner
    }

    /// Where `other` begins relative to this buffer, in bytes, if both are parts of one memory.
    pub(super) fn distance_to(&self, other: &Buffer) -> Option<isize> {
        let (own, others) = (self.view.as_ptr().addr(), other.view.as_ptr().addr());
        if own != 0 && others != 0 {
            // Memory that callers keep has an owner for each time that it was named.
            return Some(others.wrapping_sub(own) as isize);
        }
        let is_same = Arc::ptr_eq(&self.owner, &other.owner);
        is_same.then(|| other.view.offset() as isize - self.view.offset() as isize)
    }
}
