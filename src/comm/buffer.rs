//! [`Buffer`]: memory that operations can use, with shared ownership.

use crate::error::Result;
use crate::memory::{Element, Region, View};
use std::sync::Arc;

/// A range of registered or plain memory, zeroed when made. Clones share the bytes; they live until the last clone and
/// the last operation on them are gone.
///
/// Reading or writing while an operation uses the bytes is allowed and gives unspecified bytes.
#[derive(Clone, Debug)]
pub struct Buffer {
    region: Arc<Region>,
    view: View,
}

impl Buffer {
    /// Plain memory of this process (the caller's own, not registered): operations stage it.
    pub fn plain(bytes: usize) -> Result<Buffer> {
        let region = Arc::new(Region::private(bytes)?);
        let view = region.view();
        Ok(Buffer { region, view })
    }

    /// The `bytes` bytes from `start`. Panics if they are not inside.
    pub fn part(&self, start: usize, bytes: usize) -> Buffer {
        Buffer {
            region: self.region.clone(),
            view: self.view.part(start, bytes),
        }
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.view.len_bytes()
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
}
