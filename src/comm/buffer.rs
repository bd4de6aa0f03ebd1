//! [`Buffer`]: memory that operations can use, with shared ownership.

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
    region: Arc<Region>,
    /// With the communicator that allocated it.
    registration: Option<Registration>,
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
                region: Arc::new(region),
                registration: None,
                further: Mutex::default(),
            }),
            view,
        })
    }

    pub(super) fn registered(region: Arc<Region>, key: RegionKey, garbage: Arc<Garbage>) -> Buffer {
        let view = region.view().in_region(key, 0);
        Buffer {
            owner: Arc::new(Owner {
                region,
                registration: Some((key, garbage)),
                further: Mutex::default(),
            }),
            view,
        }
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
        let key = match known {
            Some((key, _)) => *key,
            None if matches!(self.owner.region.kind(), RegionKind::Shared(_)) => {
                // A communicator that is gone has ended its registrations with itself.
                further.retain(|(_, home)| Arc::strong_count(home) > 1);
                let key = register(self.owner.region.clone())?;
                further.push((key, garbage.clone()));
                key
            }
            None => RegionKey::NONE,
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
        let is_same = Arc::ptr_eq(&self.owner, &other.owner);
        is_same.then(|| other.view.offset() as isize - self.view.offset() as isize)
    }
}
