//! [`Ranges`]: where the registered buffers of this process lie, so that memory which a caller
//! names by its address is used as registered where it is.
//!
//! A range is here from the allocation of its buffer until the last share of it is dropped, which
//! comes before its pages are given back: an address that is found belongs to a buffer that lives.
//! Communicators made from one another know each other's buffers. It is asked only where memory
//! comes without a [`super::Buffer`].

use super::raw::Owner;
use crate::memory::View;
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
