//! [`Buffer`]: memory that operations can use, with shared ownership.

use crate::error::Result;
use crate::memory::{Element, ProcessMark, Region, RegionKey, View};
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

/// The memory of a buffer and all its parts.
#[derive(Debug)]
pub(super) struct Owner {
    _region: Arc<Region>,
    registration: Option<(RegionKey, Arc<Garbage>)>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some((key, garbage)) = &self.registration {
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
                _region: Arc::new(region),
                registration: None,
            }),
            view,
        })
    }

    pub(super) fn registered(region: Arc<Region>, key: RegionKey, garbage: Arc<Garbage>) -> Buffer {
        let view = region.view().in_region(key, 0);
        Buffer {
            owner: Arc::new(Owner {
                _region: region,
                registration: Some((key, garbage)),
            }),
            view,
        }
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
