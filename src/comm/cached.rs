//! [`CachedRegistrations`]: memory of callers that stays registered after a call, so that the next
//! call on it moves it where it lies. Without that it is copied to registered memory in chunks.
//!
//! The caller knows nothing of these registrations and may unmap the memory at any time between
//! calls. [`Unmaps`] tells of it, and the registration ends. A registration also ends when an
//! operation fails ([`crate::engine::Engine::register_cached`]), and to make room for others. A
//! call keeps a share of the registrations that it uses, so none ends under it.

use crate::error::Result;
use crate::memory::{Region, Unmaps, View};
use crate::sync::{Arc, Mutex, PoisonError};
use std::collections::BTreeMap;
use std::ops::Range;

/// Shorter memory is copied: that takes less time than to look whether it is still mapped, and to
/// tell the peers where it lies.
pub(super) const CACHED_BYTES_MIN: usize = 64 << 10;

/// See the module. The communicators of a family share them. An `Owner` has the registrations of
/// one range.
#[derive(Debug)]
pub(super) struct CachedRegistrations<Owner> {
    state: Mutex<State<Owner>>,
}

#[derive(Debug)]
struct State<Owner> {
    /// By the address of the first byte. None overlaps another.
    known: BTreeMap<usize, Known<Owner>>,
    /// Bytes of all.
    bytes: u64,
    /// Number of uses so far.
    uses: u64,
    unmaps: Watching,
    /// Changes of mappings that were taken into account.
    seen: u64,
}

#[derive(Debug)]
struct Known<Owner> {
    bytes: usize,
    owner: Arc<Owner>,
    /// The number of the last use.
    used: u64,
}

#[derive(Debug)]
enum Watching {
    Untried,
    With(Arc<Unmaps>),
    /// The system does not allow it, or the memory cannot be registered: why, until it is told.
    Off(Option<String>),
}

impl<Owner> Default for CachedRegistrations<Owner> {
    fn default() -> CachedRegistrations<Owner> {
        let state = State {
            known: BTreeMap::new(),
            bytes: 0,
            uses: 0,
            unmaps: Watching::Untried,
            seen: 0,
        };
        CachedRegistrations {
            state: Mutex::new(state),
        }
    }
}

impl<Owner> CachedRegistrations<Owner> {
    /// The registered memory in which this memory lies. At its first use `register` registers it,
    /// together with what overlaps it. `None` if the memory cannot be watched or registered, or is
    /// too long for `bytes_max`.
    pub fn find_or(
        &self,
        view: View,
        bytes_max: u64,
        register: impl FnOnce(Arc<Region>) -> Result<Arc<Owner>>,
    ) -> Option<Arc<Owner>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let unmaps = state.watching()?;
        let start = view.as_ptr().addr();
        let bytes = start..start + view.len_bytes();
        let is_watched = unmaps.is_watched(start);
        state.forget_changed(&unmaps);
        match is_watched {
            true => {
                if let Some(owner) = state.find(&bytes) {
                    return Some(owner);
                }
            }
            // Other memory has been mapped here.
            false => state.forget(&bytes),
        }
        let whole = state.around(bytes);
        if whole.len() as u64 > bytes_max || unmaps.watch(&whole).is_err() {
            return None;
        }
        state.forget(&whole);
        state.make_room(bytes_max - whole.len() as u64);
        let registered = register(Arc::new(Region::around(view, whole.clone())));
        match registered {
            Ok(owner) => {
                state.add(whole, owner.clone());
                Some(owner)
            }
            Err(error) => {
                // More memory is locked than the process may lock, for example.
                state.forget(&(0..usize::MAX));
                state.unmaps = Watching::Off(Some(error.to_string()));
                None
            }
        }
    }

    /// Why nothing stays registered any more; once.
    pub fn take_reason(&self) -> Option<String> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut state.unmaps {
            Watching::Off(reason) => reason.take(),
            _ => None,
        }
    }
}

impl<Owner> State<Owner> {
    fn watching(&mut self) -> Option<Arc<Unmaps>> {
        if matches!(self.unmaps, Watching::Untried) {
            self.unmaps = match Unmaps::current() {
                Ok(unmaps) => Watching::With(unmaps),
                Err(error) => Watching::Off(Some(format!("userfaultfd: {error}"))),
            };
        }
        match &self.unmaps {
            Watching::With(unmaps) => Some(unmaps.clone()),
            _ => None,
        }
    }

    /// Forgets what has been unmapped.
    fn forget_changed(&mut self, unmaps: &Unmaps) {
        match unmaps.changes_since(&mut self.seen) {
            Some(changes) => changes.iter().for_each(|change| self.forget(change)),
            None => self.forget(&(0..usize::MAX)),
        }
    }

    /// Forgets all that overlaps these bytes. Calls that use it have shares.
    fn forget(&mut self, bytes: &Range<usize>) {
        while let Some(start) = self.overlapping(bytes) {
            let known = self.known.remove(&start).expect("it was just found");
            self.bytes -= known.bytes as u64;
        }
    }

    /// Where the last registration begins that overlaps these bytes.
    fn overlapping(&self, bytes: &Range<usize>) -> Option<usize> {
        let (&start, known) = self.known.range(..bytes.end).next_back()?;
        (start + known.bytes > bytes.start).then_some(start)
    }

    /// These bytes together with the registrations that overlap them, and with those that overlap
    /// these.
    fn around(&self, bytes: Range<usize>) -> Range<usize> {
        let all = self.known.range(..bytes.end);
        let overlapping =
            |(start, known): &(&usize, &Known<Owner>)| **start + known.bytes > bytes.start;
        let all = all.rev().take_while(overlapping);
        all.fold(bytes.clone(), |around, (&start, known)| {
            around.start.min(start)..around.end.max(start + known.bytes)
        })
    }

    fn find(&mut self, bytes: &Range<usize>) -> Option<Arc<Owner>> {
        self.uses += 1;
        let (&start, known) = self.known.range_mut(..=bytes.start).next_back()?;
        if bytes.end > start + known.bytes {
            return None;
        }
        known.used = self.uses;
        Some(known.owner.clone())
    }

    /// Forgets those that were used longest ago, until the others are at most this many bytes.
    fn make_room(&mut self, bytes_max: u64) {
        while self.bytes > bytes_max {
            let oldest = self.known.iter().min_by_key(|(_, known)| known.used);
            let Some((&start, known)) = oldest else {
                return;
            };
            let oldest = start..start + known.bytes;
            self.forget(&oldest);
        }
    }

    fn add(&mut self, bytes: Range<usize>, owner: Arc<Owner>) {
        self.bytes += bytes.len() as u64;
        let known = Known {
            bytes: bytes.len(),
            owner,
            used: self.uses,
        };
        self.known.insert(bytes.start, known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::alone;
    use std::cell::RefCell;

    const LONG: u64 = 1 << 30;
    const PAGE: usize = 4096;

    /// The ranges that were registered.
    #[derive(Default)]
    struct Registered(RefCell<Vec<(usize, usize)>>);

    impl Registered {
        fn find(
            &self,
            cached: &CachedRegistrations<Region>,
            view: View,
            bytes_max: u64,
        ) -> Option<Arc<Region>> {
            cached.find_or(view, bytes_max, |region| {
                let all = region.view();
                self.0
                    .borrow_mut()
                    .push((all.as_ptr().addr(), all.len_bytes()));
                Ok(region)
            })
        }

        fn count(&self) -> usize {
            self.0.borrow().len()
        }
    }

    fn mapped(pages: usize) -> Region {
        Region::private(pages * PAGE).unwrap()
    }

    #[test]
    fn memory_is_registered_once_with_what_overlaps_it() {
        let Some(_alone) = alone() else { return };
        let (cached, registered) = (CachedRegistrations::default(), Registered::default());
        let memory = mapped(100);
        let all = memory.view();
        let part = |first: usize, pages: usize| all.part(first * PAGE, pages * PAGE);
        let find = |view| registered.find(&cached, view, LONG).unwrap();
        let first = find(part(10, 10));
        for view in [part(10, 10), part(12, 3), part(19, 1)] {
            assert!(Arc::ptr_eq(&first, &find(view)));
        }
        find(part(30, 10));
        assert_eq!(registered.count(), 2);
        // It overlaps both, and all three become one.
        let joined = find(part(15, 20));
        let start = all.as_ptr().addr() + 10 * PAGE;
        assert_eq!(registered.0.borrow().last(), Some(&(start, 30 * PAGE)));
        for view in [part(10, 30), part(12, 3), part(33, 2)] {
            assert!(Arc::ptr_eq(&joined, &find(view)));
        }
        assert_eq!((registered.count(), Arc::strong_count(&first)), (3, 1));
    }

    #[test]
    fn memory_that_was_mapped_anew_is_registered_anew() {
        let Some(_alone) = alone() else { return };
        let (cached, registered) = (CachedRegistrations::default(), Registered::default());
        let memory = mapped(8);
        let kept = registered.find(&cached, memory.view(), LONG).unwrap();
        assert_eq!(Arc::strong_count(&kept), 2);
        drop(memory);
        for _ in 0..100 {
            let other = mapped(8);
            let before = registered.count();
            registered.find(&cached, other.view(), LONG).unwrap();
            assert_eq!(registered.count(), before + 1);
        }
        assert_eq!(Arc::strong_count(&kept), 1);
    }

    #[test]
    fn what_was_used_longest_ago_makes_room() {
        let Some(_alone) = alone() else { return };
        let (cached, registered) = (CachedRegistrations::default(), Registered::default());
        let maps = [mapped(10), mapped(10), mapped(10)];
        let most = 25 * PAGE as u64;
        let find = |number: usize| registered.find(&cached, maps[number].view(), most);
        for number in [0, 1, 0, 1, 0] {
            find(number).unwrap();
        }
        assert_eq!(registered.count(), 2);
        find(2).unwrap();
        find(0).unwrap();
        assert_eq!(registered.count(), 3);
        find(1).unwrap();
        assert_eq!(registered.count(), 4);
        let long = mapped(26);
        assert!(registered.find(&cached, long.view(), most).is_none());
    }

    #[test]
    fn memory_that_a_device_refuses_is_not_tried_again() {
        let Some(_alone) = alone() else { return };
        let cached = CachedRegistrations::<Region>::default();
        let memory = mapped(2);
        let tried = std::cell::Cell::new(0);
        let refuse = |_| {
            tried.set(tried.get() + 1);
            Err(crate::error::Error::invalid("no locked memory is left"))
        };
        for _ in 0..3 {
            assert!(cached.find_or(memory.view(), LONG, refuse).is_none());
        }
        assert_eq!(tried.get(), 1);
        assert!(
            cached
                .take_reason()
                .unwrap()
                .contains("no locked memory is left")
        );
        assert_eq!(cached.take_reason(), None);
    }
}
