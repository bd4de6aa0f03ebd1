//! [`RawBuffer`]: a range of memory without an element type, as operations use it. Users hold a
//! [`super::Buffer`].

use super::ranges::{Garbage, Owner, Ranges, Registration};
use crate::error::Result;
use crate::kernel;
use crate::memory::{Access, Borrows, Element, Held, Kept, Region, RegionKey, View};
use crate::sync::{Arc, Mutex};
use std::ops::Range;

/// A range of bytes of an allocation, and how an operation uses it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Use {
    bytes: Range<usize>,
    access: Access,
}

impl Use {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Appends another use, if it has the same access and begins where this one ends. Returns
    /// whether it did.
    pub fn take_up(&mut self, next: &Use) -> bool {
        let follows = self.access == next.access && self.bytes.end == next.bytes.start;
        if follows {
            self.bytes.end = next.bytes.end;
        }
        follows
    }

    /// The smallest range that contains both, used exclusively.
    pub fn union(&self, other: &Use) -> Use {
        let start = self.bytes.start.min(other.bytes.start);
        Use {
            bytes: start..self.bytes.end.max(other.bytes.end),
            access: Access::Exclusive,
        }
    }
}

/// A range of memory, registered or not. Clones and parts share the bytes, which live until the
/// last clone and the last operation on them are gone. A slice that a caller lends to a blocking
/// call has no owner here: the caller keeps it.
#[derive(Clone, Debug)]
pub struct RawBuffer {
    owner: Option<Arc<Owner>>,
    view: View,
    /// If the library has registered the memory by itself: what has the registration, and where
    /// the bytes begin in their own allocation.
    cached: Option<(Arc<Owner>, usize)>,
}

/// Memory in which short collectives of a batch travel together, kept between batches.
pub(super) type Staging = Arc<Mutex<Vec<RawBuffer>>>;

impl RawBuffer {
    /// Memory of this process that is not registered.
    pub fn of_region(region: Region) -> RawBuffer {
        let view = region.view();
        RawBuffer {
            owner: Some(Arc::new(Owner::new(Some(Arc::new(region))))),
            view,
            cached: None,
        }
    }

    /// `bytes` zeroed bytes of this process that are not registered.
    pub fn plain(bytes: usize) -> Result<RawBuffer> {
        Ok(RawBuffer::of_region(Region::private(bytes)?))
    }

    /// Memory that a communicator has allocated and registered.
    pub(super) fn registered(
        region: Arc<Region>,
        (key, garbage): Registration,
        ranges: &Arc<Ranges>,
    ) -> RawBuffer {
        let whole = region.view();
        let mut owner = Owner::new(Some(region));
        owner.registration = Some((key, garbage));
        owner.ranges = Some(ranges.clone());
        let owner = Arc::new(owner);
        ranges.add(whole, &owner);
        RawBuffer {
            owner: Some(owner),
            view: whole.in_region(key, 0),
            cached: None,
        }
    }

    /// Memory that the caller owns and a communicator has registered. If the registration has no
    /// key, operations stage the memory. If some of the memory is registered already, this is an
    /// error, and the new registration ends.
    pub(super) fn of_caller(
        region: Arc<Region>,
        (key, garbage): Registration,
        ranges: &Ranges,
    ) -> Result<RawBuffer> {
        let whole = region.view();
        let mut owner = Owner::new(Some(region));
        owner.registration = Some((key, garbage));
        let owner = Arc::new(owner);
        (ranges.keep(whole, &owner)).inspect_err(|_| owner.end_registrations())?;
        Ok(RawBuffer {
            owner: Some(owner),
            view: whole.in_region(key, 0),
            cached: None,
        })
    }

    /// Memory that the caller owns. If it lies inside a registered buffer of `ranges`, it is that
    /// part of the buffer.
    pub(super) fn at(view: View, ranges: &Ranges) -> RawBuffer {
        RawBuffer::inside(view.as_ptr().addr(), view.len_bytes(), ranges).unwrap_or_else(|| {
            RawBuffer {
                owner: Some(Arc::new(Owner::new(None))),
                view: view.in_region(RegionKey::NONE, 0),
                cached: None,
            }
        })
    }

    /// The `bytes` bytes at this address, as a part of the registered buffer that contains them, if
    /// there is one.
    pub(super) fn inside(address: usize, bytes: usize, ranges: &Ranges) -> Option<RawBuffer> {
        let (owner, offset) = ranges.find(address, bytes)?;
        let key = owner.registration.as_ref()?.0;
        let view = owner.region.as_ref()?.view().part(offset, bytes);
        Some(RawBuffer {
            owner: Some(owner),
            view: view.in_region(key, offset as u64),
            cached: None,
        })
    }

    /// A slice that the caller of a blocking call lends; nothing else uses it.
    pub(super) fn lent(view: View) -> RawBuffer {
        RawBuffer {
            owner: None,
            view,
            cached: None,
        }
    }

    /// Whether it is a slice that a caller lends.
    pub(super) fn is_lent(&self) -> bool {
        self.owner.is_none()
    }

    /// Whether its key belongs to the communicator that has this garbage, or it has no key.
    #[inline]
    pub(super) fn is_at_home(&self, garbage: &Arc<Garbage>) -> bool {
        let own = (self.owner.as_ref()).and_then(|owner| owner.registration.as_ref());
        own.is_none_or(|(_, home)| Arc::ptr_eq(home, garbage))
    }

    /// These bytes with a key of the communicator that has this garbage. At the first use,
    /// `register` makes the key. If it makes none, or the memory was deregistered, the result
    /// counts as not registered.
    pub(super) fn moved_to(
        &self,
        garbage: &Arc<Garbage>,
        register: impl FnOnce(Arc<Region>) -> Result<RegionKey>,
    ) -> Result<RawBuffer> {
        let Some(owner) = &self.owner else {
            return Ok(self.clone());
        };
        // A child may have made the communicator, while the memory belongs to its parent.
        self.check_process()?;
        let key = owner.key_in(garbage, register)?;
        Ok(RawBuffer {
            owner: self.owner.clone(),
            view: self.view.in_region(key, self.view.offset()),
            cached: None,
        })
    }

    /// These bytes, which are not registered, as a part of memory that `owner` has registered under
    /// this key. An operation that uses the result keeps the registration.
    pub(super) fn cached_in(&self, owner: Arc<Owner>, key: RegionKey) -> RawBuffer {
        let region = owner.region.as_ref().expect("it has registered a region");
        let offset = self.view.as_ptr().addr() - region.view().as_ptr().addr();
        RawBuffer {
            owner: self.owner.clone(),
            view: self.view.in_region(key, offset as u64),
            cached: Some((owner, self.start())),
        }
    }

    /// The `bytes` bytes from byte `start` on. Panics if they are not inside.
    pub fn part(&self, start: usize, bytes: usize) -> RawBuffer {
        RawBuffer {
            owner: self.owner.clone(),
            view: self.view.part(start, bytes),
            cached: (self.cached.as_ref()).map(|(owner, first)| (owner.clone(), first + start)),
        }
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.view.len_bytes()
    }

    /// Where it begins in its allocation, in bytes.
    fn start(&self) -> usize {
        match &self.cached {
            Some((_, start)) => *start,
            None => self.view.offset() as usize,
        }
    }

    /// Whether collectives use it without staging.
    pub fn is_registered(&self) -> bool {
        self.view.key().is_some()
    }

    /// Whether peers may still reach it after an operation has failed.
    pub(super) fn is_reachable(&self) -> bool {
        self.is_registered() && self.cached.is_none()
    }

    /// The raw range.
    pub fn view(&self) -> View {
        self.view
    }

    /// The raw range, by reference.
    #[inline]
    pub(super) fn view_ref(&self) -> &View {
        &self.view
    }

    /// An error if this process was forked from the one that registered the memory.
    fn check_process(&self) -> Result<()> {
        let own = (self.owner.as_ref()).and_then(|owner| owner.registration.as_ref());
        own.map_or(Ok(()), |(_, home)| home.process.check())
    }

    /// The borrows of its allocation, and its own range of bytes there. Panics for a slice that a
    /// caller lends: the caller has borrowed it.
    pub(super) fn borrows(&self) -> Result<(&Borrows, Range<usize>)> {
        self.check_process()?;
        let owner = self
            .owner
            .as_ref()
            .expect("a buffer of a user has an owner");
        let start = self.start();
        Ok((&owner.borrows, start..start + self.view.len_bytes()))
    }

    /// Borrows all of it for as long as the result lives. Errors of conflicting uses show `name`.
    pub(super) fn borrow_all(
        &self,
        access: Access,
        name: &'static str,
    ) -> Result<Option<Held<'_>>> {
        self.check_process()?;
        self.borrow(&self.part_used(self.len_bytes(), access), name)
    }

    /// Borrows all of it until the result ends or is dropped. After that no peer may reach the
    /// bytes by this operation: its receives have ended or are cancelled.
    pub(super) fn keep_all(&self, access: Access, name: &'static str) -> Result<Option<Kept>> {
        let held = self.borrow_all(access, name)?;
        Ok(self
            .owner
            .as_ref()
            .zip(held)
            .map(|(owner, held)| held.keep(&owner.borrows, owner.clone(), false)))
    }

    /// As [`RawBuffer::keep_all`], for bytes that peers may reach until the result ends.
    pub(super) fn keep_reachable(
        &self,
        access: Access,
        name: &'static str,
    ) -> Result<Option<Kept>> {
        let held = self.borrow_all(access, name)?;
        Ok(self.keep(held))
    }

    /// Writes elements, from element `index` on. Nothing else may use the memory. Panics if they do
    /// not fit.
    pub fn write<T: Element>(&self, index: usize, source: &[T]) {
        let start = index * size_of::<T>();
        kernel::write(self.view, start, bytemuck::cast_slice(source));
    }

    /// A copy of all elements. Nothing may write the memory meanwhile.
    pub fn to_vec<T: Element>(&self) -> Vec<T> {
        let mut all = vec![T::zeroed(); self.len_bytes() / size_of::<T>()];
        kernel::read(self.view, 0, bytemuck::cast_slice_mut(&mut all));
        all
    }

    /// The first `bytes` bytes of it, with this access.
    pub(super) fn part_used(&self, bytes: usize, access: Access) -> Use {
        let start = self.start();
        Use {
            bytes: start..start + bytes,
            access,
        }
    }

    /// Whether both are parts of one allocation.
    pub(super) fn has_owner_of(&self, other: &RawBuffer) -> bool {
        match (&self.owner, &other.owner) {
            (Some(own), Some(others)) => Arc::ptr_eq(own, others),
            _ => false,
        }
    }

    /// Borrows bytes for an operation of this name. `None` for a lent slice.
    #[inline]
    pub(super) fn borrow(&self, used: &Use, name: &'static str) -> Result<Option<Held<'_>>> {
        let Some(owner) = &self.owner else {
            return Ok(None);
        };
        let bytes = used.bytes.clone();
        let held = owner.borrows.borrow_operation(bytes, used.access, name);
        held.map(Some)
    }

    /// What an operation that goes on without its caller keeps: the memory, and the borrow if there
    /// is one.
    pub(super) fn keep(&self, held: Option<Held<'_>>) -> Option<Kept> {
        if let Some((cached, _)) = &self.cached {
            // An operation that fails ends the registration, so that no peer reaches the bytes.
            let both = Arc::new((self.owner.clone(), cached.clone()));
            return Some(match (held, &self.owner) {
                (Some(held), Some(owner)) => held.keep(&owner.borrows, both, false),
                _ => Kept::owner_only(both),
            });
        }
        let owner = self.owner.as_ref()?;
        Some(match held {
            Some(held) => held.keep(&owner.borrows, owner.clone(), self.is_reachable()),
            None => Kept::owner_only(owner.clone()),
        })
    }

    /// Where `other` begins relative to this buffer, in bytes; `None` if both cannot be compared.
    pub(super) fn distance_to(&self, other: &RawBuffer) -> Option<isize> {
        let (own, others) = (self.view.as_ptr().addr(), other.view.as_ptr().addr());
        if own != 0 && others != 0 {
            // Addresses tell it: memory that was adopted twice has two owners.
            return Some(others.wrapping_sub(own) as isize);
        }
        self.has_owner_of(other)
            .then(|| other.view.offset() as isize - self.view.offset() as isize)
    }
}
