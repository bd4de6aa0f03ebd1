//! [`Communicator::adopt`]: a [`Buffer`] of memory that the caller owns.
#![allow(unsafe_code)]

use super::Communicator;
use super::buffer::Buffer;
use super::raw::RawBuffer;
use crate::error::{Error, Result};
use crate::memory::{Element, View};

impl Communicator {
    /// Makes a [`Buffer`] of `count` elements at `address`, in memory that the caller owns. It
    /// serves C, Python, and trainers that allocate by themselves.
    ///
    /// If the memory lies inside a registered buffer of this communicator, or of one that it was
    /// made from or that was made from it, the result is that part of the buffer: it is registered
    /// and shares the buffer's borrows. Otherwise operations stage the memory.
    ///
    /// # Safety
    /// The caller keeps `count` elements at `address` mapped, readable and writable, until the last
    /// clone and the last range of the buffer are dropped and the last operation on them has ended,
    /// with or without success. While an operation or a slice uses the elements, no reference to
    /// them exists that would conflict with that use (the rules of
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
        // SAFETY: our caller promises what `View::new` asks for: it keeps the range mapped and
        // holds no conflicting references.
        let view = unsafe { View::new(address.cast(), bytes) };
        let raw = RawBuffer::at(view, &self.inner.ranges);
        Ok(Buffer::of(raw))
    }
}
