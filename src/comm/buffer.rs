//! [`Buffer`]: typed memory that operations can use, with shared ownership.

use super::raw::RawBuffer;
use crate::error::{Error, Result};
use crate::kernel;
use crate::memory::{Access, BufferMut, BufferRef, Condition, Element, Region};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

/// `len` elements of memory that operations can use: registered
/// ([`Communicator::alloc`](super::Communicator::alloc), used where it lies) or not
/// ([`Buffer::from_vec`], staged). Zeroed when allocated.
///
/// Clones and ranges share the elements, which live until the last clone and the last operation on
/// them are gone. An operation that is started borrows what it uses until it has ended, elements
/// that it reads for reading, others exclusively; slices and copies do the same while they live.
/// What meets another use is an [`Error::InUse`] that names it. So different ranges of one buffer
/// can be used at the same time, by several threads and operations.
///
/// After an operation has failed, a peer that is only stopped may still write its registered
/// memory. Those elements can be copied in and out ([`Buffer::read`], [`Buffer::write`]), but not
/// be a slice or used by another operation.
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
    /// A buffer of memory whose length is whole elements.
    pub(super) fn of(raw: RawBuffer) -> Self {
        debug_assert!(raw.len_bytes().is_multiple_of(size_of::<T>()));
        Buffer {
            raw,
            elements: PhantomData,
        }
    }

    /// The memory of a `Vec`, where it lies. It is not registered: operations stage it.
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

    /// These elements, shared with this buffer. Panics if they are not inside, as a range of a
    /// slice does.
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

    /// This buffer's bytes as elements of another type.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: the length is no whole number of them, or they would not be
    /// aligned.
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

    /// Its elements, to read.
    ///
    /// # Errors
    /// [`Error::InUse`]: something writes some of them, or a peer may; [`Error::InvalidArgument`]:
    /// it belongs to a size-only simulation; [`Error::Forked`].
    pub fn as_slice(&self) -> Result<BufferRef<'_, T>> {
        let (borrows, place) = self.raw.borrows()?;
        BufferRef::new(self.raw.view(), borrows, place)
    }

    /// Its elements, to read and write. Other handles of the same elements get no slice meanwhile.
    ///
    /// # Errors
    /// [`Error::InUse`]: something uses some of them, or a peer may write them;
    /// [`Error::InvalidArgument`]: it belongs to a size-only simulation; [`Error::Forked`].
    pub fn as_mut_slice(&self) -> Result<BufferMut<'_, T>> {
        let (borrows, place) = self.raw.borrows()?;
        BufferMut::new(self.raw.view(), borrows, place)
    }

    /// Copies elements to `target`, from element `index` on. Panics if there are not as many.
    /// Elements of a size-only simulation are zeros.
    ///
    /// # Errors
    /// [`Error::InUse`]: something writes some of them; [`Error::Forked`].
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
    /// [`Error::InUse`]: something uses some of them, or other ranks may still read them, because
    /// an operation could not end after a rank had left; [`Error::Forked`].
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

    /// All elements, copied. Errors: as [`Buffer::read`].
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut all = vec![T::zeroed(); self.len()];
        self.read(0, &mut all)?;
        Ok(all)
    }

    /// The memory, for operations.
    #[inline]
    pub(super) fn raw(&self) -> &RawBuffer {
        &self.raw
    }
}
