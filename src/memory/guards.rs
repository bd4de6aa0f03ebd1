//! [`BufferRef`] and [`BufferMut`]: slices of a buffer, while nothing else uses the elements.

use super::{Access, Borrows, Element, Held, View};
use crate::error::{Error, Result};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;

/// Elements of a buffer, to read: a `&[T]`. While it lives, no operation may write them. A forked
/// child does not use one that its parent had: the parent goes on writing there.
#[derive(Debug)]
pub struct BufferRef<'a, T: Element> {
    address: NonNull<T>,
    len: usize,
    _held: Held<'a>,
    _slice: PhantomData<&'a [T]>,
}

/// Elements of a buffer, to read and write: a `&mut [T]`. While it lives, no operation may use
/// them. A forked child does not use one that its parent had.
#[derive(Debug)]
pub struct BufferMut<'a, T: Element> {
    address: NonNull<T>,
    len: usize,
    _held: Held<'a>,
    _slice: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&[T]`, and elements may be read by any thread; the borrow ends under a lock.
unsafe impl<T: Element> Send for BufferRef<'_, T> {}
// SAFETY: as for Send.
unsafe impl<T: Element> Sync for BufferRef<'_, T> {}
// SAFETY: it is a `&mut [T]`, and elements may go to any thread; the borrow ends under a lock.
unsafe impl<T: Element> Send for BufferMut<'_, T> {}
// SAFETY: shared access to it gives a `&[T]`.
unsafe impl<T: Element> Sync for BufferMut<'_, T> {}

impl<'a, T: Element> BufferRef<'a, T> {
    /// The elements of `view`, which are the bytes `place` of the allocation of these borrows. The
    /// allocation lives as long as they do: both are in one owner.
    pub(crate) fn new(view: View, borrows: &'a Borrows, place: Range<usize>) -> Result<Self> {
        let held = borrows.borrow_slice(place, Access::Shared)?;
        let (address, len) = elements_of(view)?;
        Ok(BufferRef {
            address,
            len,
            _held: held,
            _slice: PhantomData,
        })
    }
}

impl<'a, T: Element> BufferMut<'a, T> {
    /// As [`BufferRef::new`].
    pub(crate) fn new(view: View, borrows: &'a Borrows, place: Range<usize>) -> Result<Self> {
        let held = borrows.borrow_slice(place, Access::Exclusive)?;
        let (address, len) = elements_of(view)?;
        Ok(BufferMut {
            address,
            len,
            _held: held,
            _slice: PhantomData,
        })
    }
}

/// Where the elements of a view begin, and how many they are.
fn elements_of<T: Element>(view: View) -> Result<(NonNull<T>, usize)> {
    let len = view.len_bytes() / size_of::<T>();
    let address = match NonNull::new(view.as_ptr().cast::<T>()) {
        _ if len == 0 => NonNull::dangling(),
        Some(address) if address.is_aligned() => address,
        Some(address) => {
            return Err(Error::invalid(format!(
                "a slice of {} at address {address:p}: its elements must lie at multiples of {} bytes",
                T::DTYPE,
                align_of::<T>()
            )));
        }
        None => {
            return Err(Error::invalid(
                "a slice of a buffer of a size-only simulation, which has no elements",
            ));
        }
    };
    Ok((address, len))
}

impl<T: Element> Deref for BufferRef<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `new` found the elements mapped and aligned, and the owner of the allocation
        // outlives `'a`; the borrow keeps writers away; every bit pattern is a `T: Pod`.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len) }
    }
}

impl<T: Element> Deref for BufferMut<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: as for `BufferRef`; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len) }
    }
}

impl<T: Element> DerefMut for BufferMut<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`; the borrow is exclusive, and so is `self`.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.len) }
    }
}
