//! [`Registry`]: the regions that a rank has registered, by keys of which none is given twice.

use super::posts::Accepted;
use super::{Atomic, PostError, RemoteRange};
use crate::error::{Error, Result};
use crate::limits::INLINE_BYTES_MAX;
use crate::memory::{RegionKey, View};
use std::collections::BTreeMap;

/// Registered regions, with what a provider keeps of each.
#[derive(Debug)]
pub(super) struct Registry<T> {
    known: BTreeMap<RegionKey, (View, T)>,
    /// The next key.
    next: u32,
}

impl<T> Registry<T> {
    pub fn new() -> Registry<T> {
        Registry {
            known: BTreeMap::new(),
            next: 1,
        }
    }

    /// Gives a region of these bytes a key that no region has had.
    pub fn add(&mut self, view: View, kept: T) -> Result<RegionKey> {
        if self.next == u32::MAX {
            return Err(Error::Exhausted {
                what: "a registration".into(),
                limit: format!("{} keys were used, and keys are never reused", u32::MAX - 1),
                remedy: "register larger regions and keep them".into(),
            });
        }
        let key = RegionKey(self.next);
        self.next += 1;
        self.known.insert(key, (view.in_region(key, 0), kept));
        Ok(key)
    }

    /// How many regions were registered so far, as [`Diagnostics::counts`] names it.
    ///
    /// [`Diagnostics::counts`]: super::Diagnostics::counts
    pub fn count(&self) -> (&'static str, u64) {
        ("regions registered", u64::from(self.next) - 1)
    }

    /// Ends a registration.
    pub fn remove(&mut self, key: RegionKey) -> Result<T> {
        let found = self.known.remove(&key).map(|(_, kept)| kept);
        found.ok_or_else(|| Error::invalid(format!("region {} is not registered", key.0)))
    }

    /// Ends all registrations. Their keys are not given again.
    pub fn remove_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        let known = std::mem::take(&mut self.known).into_values();
        known.map(|(_, kept)| kept)
    }

    #[inline]
    pub fn get(&self, key: RegionKey) -> Option<&T> {
        self.known.get(&key).map(|(_, kept)| kept)
    }

    pub fn get_mut(&mut self, key: RegionKey) -> Option<&mut T> {
        self.known.get_mut(&key).map(|(_, kept)| kept)
    }

    /// What is kept of every region.
    pub fn all_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.known.values_mut().map(|(_, kept)| kept)
    }

    #[inline]
    pub fn is_known(&self, key: RegionKey) -> bool {
        self.known.contains_key(&key)
    }

    /// All bytes of a region.
    pub fn view(&self, key: RegionKey) -> Option<View> {
        self.known.get(&key).map(|&(view, _)| view)
    }

    /// A range of a region; `None` if there is no such range.
    pub fn range(&self, range: RemoteRange, bytes: u64) -> Option<View> {
        part_of(self.view(range.key)?, range.offset, bytes)
    }

    /// Changes a word of a region; what was there, or `None` if there is no such word.
    pub fn change(&self, word: RemoteRange, what: Atomic) -> Option<u64> {
        let word = self
            .range(word, 8)
            .filter(|_| word.offset.is_multiple_of(8))?;
        Some(what.apply(&word))
    }

    /// Checks memory that is read or written after the post (clause 10).
    #[inline]
    pub fn check_source(&self, view: View) -> Accepted {
        let bytes = view.len_bytes();
        if bytes > INLINE_BYTES_MAX && !self.is_known(view.key()) {
            return Err(PostError::invalid(format!(
                "{bytes} bytes of memory that is not registered; {INLINE_BYTES_MAX} at most"
            )));
        }
        Ok(())
    }
}

/// A range of a region; `None` if it is not inside.
pub(super) fn part_of(region: View, offset: u64, bytes: u64) -> Option<View> {
    let (offset, bytes) = (usize::try_from(offset).ok()?, usize::try_from(bytes).ok()?);
    let end = offset.checked_add(bytes)?;
    (end <= region.len_bytes()).then(|| region.part(offset, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Region;

    #[test]
    fn names_end_before_they_begin_anew() {
        let mut registry = Registry::new();
        registry.next = u32::MAX - 1;
        let last = registry.add(View::empty(), ()).unwrap();
        assert_eq!(last, RegionKey(u32::MAX - 1));
        for _ in 0..2 {
            let text = registry.add(View::empty(), ()).unwrap_err().to_string();
            assert!(text.contains("never reused"), "{text}");
        }
        let first = Registry::new().add(View::empty(), ()).unwrap();
        assert_eq!(first, RegionKey(1));
    }

    #[test]
    fn ranges_end_inside_their_region() {
        let region = Region::private(64).unwrap();
        let mut registry = Registry::new();
        let key = registry.add(region.view().part(0, 64), 7).unwrap();
        let has = |registry: &Registry<i32>, offset, bytes| {
            registry.range(RemoteRange { key, offset }, bytes).is_some()
        };
        for (offset, bytes, is_inside) in [
            (0, 64, true),
            (64, 0, true),
            (60, 5, false),
            (u64::MAX, 1, false),
            (1, u64::MAX, false),
        ] {
            assert_eq!(has(&registry, offset, bytes), is_inside, "{offset} {bytes}");
        }
        let add = |offset| (RemoteRange { key, offset }, Atomic::FetchAdd(3));
        let changed = [8, 8, 4, 64].map(|offset| {
            let (word, what) = add(offset);
            registry.change(word, what)
        });
        assert_eq!(changed, [Some(0), Some(3), None, None]);
        assert_eq!(registry.remove(key).unwrap(), 7);
        assert!(!has(&registry, 0, 1) && registry.remove(key).is_err());
    }
}
