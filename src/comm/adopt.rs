//! [`Communicator::adopt`]: memory that the caller keeps, as a buffer.
#![allow(unsafe_code)]

use super::Communicator;
use super::buffer::Buffer;
use super::raw::RawBuffer;
use crate::error::{Error, Result};
use crate::memory::{Element, View};

impl Communicator {
    /// Memory that the caller keeps, named by its address, as a [`Buffer`]: for C, Python and
    /// trainers that allocate by themselves. Where it lies inside a buffer that this communicator
    /// has allocated, or one that either was made from the other, it is that part of it, is
    /// registered and shares its borrows; else operations stage it.
    ///
    /// # Safety
    /// Until the last clone and range of the buffer is dropped, and the last operation on them has
    /// ended, with or without success, the caller keeps `count` elements at `address` mapped,
    /// readable and writable; and whenever an operation or a slice uses them, no reference to them
    /// exists that the slice or the operation may not meet (as for
    /// [`std::slice::from_raw_parts_mut`]).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: the address is null or not aligned for `T`, unless `count` is 0,
    /// for which it is not looked at; [`Error::Forked`].
    pub unsafe fn adopt<T: Element>(&self, address: *mut T, count: usize) -> Result<Buffer<T>> {
        self.driving()?;
        if address.is_null() && count > 0 {
            return Err(Error::invalid(format!(
                "{count} elements of {} at a null address: give their address, or a count of 0",
                T::DTYPE
            )));
        }
        let bytes = count
            .checked_mul(size_of::<T>())
            .filter(|&bytes| bytes == 0 || address.is_aligned());
        let Some(bytes) = bytes else {
            return Err(Error::invalid(format!(
                "{count} elements of {} at {address:p}: they must be aligned and fit an address space",
                T::DTYPE
            )));
        };
        // SAFETY: the caller keeps the range mapped as long as `View::new` asks for, and its
        // references apart.
        let view = unsafe { View::new(address.cast(), bytes) };
        let raw = RawBuffer::at(view, &self.inner.ranges);
        Ok(Buffer::of(raw))
    }
}
