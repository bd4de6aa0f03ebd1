//! [`Buffer`]: typed memory for operations, with shared ownership.

use super::raw::RawBuffer;
use crate::error::{Error, Result};
use crate::kernel;
use crate::memory::{Access, BufferMut, BufferRef, Condition, Element, Region};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

/// `len` elements of memory for operations. [`Communicator::alloc`](super::Communicator::alloc)
/// makes a registered buffer, zeroed, which operations use where it lies. [`Buffer::from_vec`]
/// makes one that is not registered, which operations stage.
///
/// Clones and ranges share the elements. The elements live until the last clone and the last
/// operation on them are gone.
///
/// An operation borrows the elements that it uses from its start until it has ended: those that it
/// only reads are shared, the others are exclusive. Slices and copies do the same while they live.
/// A use that conflicts with another one returns an [`Error::InUse`] that names the other. So
/// several threads and operations can use different ranges of one buffer at the same time.
///
/// After an operation has failed, a peer may still write its registered memory: that peer may be
/// only stopped, and go on later. Such elements can be copied in and out ([`Buffer::read`],
/// [`Buffer::write`]), but no slice and no other operation can use them.
///
/// ```
/// use linerate::{Communicator, Config, ReduceOp};
/// let communicator = Communicator::join(0, 1, "a job with buffers", Config::default())?;
/// let gradients = communicator.alloc::<f32>(1024)?;
/// gradients.as_mut_slice()?.fill(1.0);
/// let (first, second) = (gradients.range(..512), gradients.range(512..));
/// let operation = communicator.start_all_reduce(&first, ReduceOp::Sum)?;
/// let mut slice = second.as_mut_slice()?;
/// slice[0] = 2.0; // while the first half is reduced
/// assert!(communicator.start_all_reduce(&second, ReduceOp::Sum).is_err()); // it names the slice
/// operation.wait()?;
/// assert_eq!(first.as_slice()?[0], 1.0);
/// # Ok::<(), linerate::Error>(())
/// ```
pub struct Buffer<T: Element> {
    raw: RawBuffer,
    elements: PhantomData<T>,
}

impl<T: Element> Clone for Buffer<T> {
    fn clone(&self) -> Self {
        Buffer::of(self.raw.clone())
    }
}

impl<T: Element> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("dtype", &T::DTYPE)
            .field("len", &self.len())
            .field("is_registered", &self.is_registered())
            .finish_non_exhaustive()
    }
}

impl<T: Element> Buffer<T> {
    /// A buffer of all of this memory, whose length is a whole number of elements.
    pub(super) fn of(raw: RawBuffer) -> Self {
        debug_assert!(raw.len_bytes().is_multiple_of(size_of::<T>()));
        Buffer {
            raw,
            elements: PhantomData,
        }
    }

    /// Takes the memory of a `Vec` without copying it. The buffer is not registered: operations
    /// stage it.
    pub fn from_vec(elements: Vec<T>) -> Self {
        Buffer::of(RawBuffer::of_region(Region::of_vec(elements)))
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.raw.len_bytes() / size_of::<T>()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether operations use it where it lies, without staging.
    pub fn is_registered(&self) -> bool {
        self.raw.is_registered()
    }

    /// The elements of this range, shared with this buffer. Panics if the range is not inside the
    /// buffer, as slicing a slice does.
    pub fn range(&self, range: impl RangeBounds<usize>) -> Self {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&end) => end.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.len(),
        };
        assert!(
            start <= end && end <= self.len(),
            "elements {start}..{end} of a buffer of {}",
            self.len()
        );
        let size = size_of::<T>();
        Buffer::of(self.raw.part(start * size, (end - start) * size))
    }

    /// This buffer's bytes, seen as elements of type `U`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: the length is not a whole number of elements of `U`, or they
    /// would not be aligned.
    pub fn cast<U: Element>(&self) -> Result<Buffer<U>> {
        let (bytes, address) = (self.raw.len_bytes(), self.raw.view().as_ptr().addr());
        let is_aligned = bytes == 0 || address.is_multiple_of(align_of::<U>());
        if !bytes.is_multiple_of(size_of::<U>()) || !is_aligned {
            return Err(Error::invalid(format!(
                "{bytes} bytes at address {address:#x} as {}: the length must be a multiple of {} and the address of {}",
                U::DTYPE,
                size_of::<U>(),
                align_of::<U>()
            )));
        }
        Ok(Buffer::of(self.raw.clone()))
    }

    /// A slice of its elements, to read.
    ///
    /// # Errors
    /// [`Error::InUse`]: a slice or an operation writes some of the elements, or a peer may still
    /// write them; [`Error::InvalidArgument`]: the buffer belongs to a size-only simulation;
    /// [`Error::Forked`].
    pub fn as_slice(&self) -> Result<BufferRef<'_, T>> {
        let (borrows, place) = self.raw.borrows()?;
        BufferRef::new(self.raw.view(), borrows, place)
    }

    /// A slice of its elements, to read and write. While it lives, no other slice of these elements
    /// can be made.
    ///
    /// # Errors
    /// [`Error::InUse`]: a slice or an operation uses some of the elements, or a peer may still
    /// write them; [`Error::InvalidArgument`]: the buffer belongs to a size-only simulation;
    /// [`Error::Forked`].
    pub fn as_mut_slice(&self) -> Result<BufferMut<'_, T>> {
        let (borrows, place) = self.raw.borrows()?;
        BufferMut::new(self.raw.view(), borrows, place)
    }

    /// Copies `target.len()` elements, from element `index` on, to `target`. Panics if the buffer
    /// has fewer. Elements of a size-only simulation read as zeros.
    ///
    /// # Errors
    /// [`Error::InUse`]: a slice or an operation writes some of the elements; [`Error::Forked`].
    pub fn read(&self, index: usize, target: &mut [T]) -> Result<()> {
        let part = self.range(index..index + target.len());
        let (borrows, place) = part.raw.borrows()?;
        let (_held, condition) = borrows.borrow_copy(place, Access::Shared)?;
        let target = bytemuck::cast_slice_mut(target);
        match condition {
            Condition::Sound => kernel::read(part.raw.view(), 0, target),
            Condition::Failed => kernel::read_contended(part.raw.view(), 0, target),
        }
        Ok(())
    }

    /// Copies `source` to the elements from element `index` on. Panics if they do not fit.
    ///
    /// # Errors
    /// [`Error::InUse`]: a slice or an operation uses some of the elements, or other ranks may
    /// still read them because an operation could not end after a rank had left; [`Error::Forked`].
    pub fn write(&self, index: usize, source: &[T]) -> Result<()> {
        let part = self.range(index..index + source.len());
        let (borrows, place) = part.raw.borrows()?;
        let (_held, condition) = borrows.borrow_copy(place, Access::Exclusive)?;
        let source = bytemuck::cast_slice(source);
        match condition {
            Condition::Sound => kernel::write(part.raw.view(), 0, source),
            Condition::Failed => kernel::write_contended(part.raw.view(), 0, source),
        }
        Ok(())
    }

    /// A copy of all elements. Errors: as [`Buffer::read`].
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut all = vec![T::zeroed(); self.len()];
        self.read(0, &mut all)?;
        Ok(all)
    }

    /// The memory without its type.
    #[inline]
    pub(super) fn raw(&self) -> &RawBuffer {
        &self.raw
    }
}
