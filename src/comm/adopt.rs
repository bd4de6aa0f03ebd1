//! A [`Buffer`] of memory that the caller owns: for a time ([`Communicator::adopt`]), or registered
//! until the caller says otherwise ([`Communicator::register`]).
#![allow(unsafe_code)]

use super::Communicator;
use super::buffer::Buffer;
use super::builder::CollectiveBuilder;
use super::call::Call;
use super::check::lengths_of;
use super::raw::RawBuffer;
use crate::error::{Error, Result};
use crate::limits::LINE_PAYLOAD_BYTES;
use crate::memory::{Element, Region, View};
use crate::types::DataType;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

impl Communicator {
    /// Makes a [`Buffer`] of `count` elements at `address`, in memory that the caller owns. It
    /// serves C, Python, and trainers that allocate by themselves.
    ///
    /// If the memory lies inside a registered buffer of this communicator or of another of its
    /// family (split, duplicate, sibling, rebuild), the result is that part of the buffer: it is
    /// registered and shares the buffer's borrows. Otherwise operations stage the memory.
    ///
    /// # Safety
    /// The caller keeps `count` elements at `address` mapped, readable and writable, until the last
    /// clone and the last range of the buffer are dropped and the last operation on them has ended,
    /// with or without success. While an operation or a slice uses the elements, no reference to
    /// them exists that would conflict with that use (the rules of
    /// [`std::slice::from_raw_parts_mut`]).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: the elements do not fit an address space, or the address is null
    /// or not aligned for `T` (it is not checked if `count` is 0); [`Error::Forked`].
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

    /// Registers `bytes` bytes at `address`, in memory that the caller owns, so that operations use
    /// them where they lie. The transport of this communicator registers them now; that of another
    /// communicator of the family (split, duplicate, sibling, rebuild) does so at its first
    /// operation on them. Not collective: other ranks learn of the memory by the operations that
    /// use it, as with memory of [`Communicator::alloc`].
    ///
    /// The memory stays registered when the result is dropped, until [`Communicator::deregister`]
    /// or the end of the family. [`Communicator::buffer_at`] and [`Communicator::adopt`] find it by
    /// address, on every communicator of the family. [`Buffer::cast`] gives it a type.
    ///
    /// Over shared memory alone, peers can map only what lies in a memfd, for which there is
    /// [`Communicator::register_memfd`]. Other memory is found by address there too, and is moved
    /// as memory that is not registered: peers fetch it ([`Config::cma`]), or it is staged.
    ///
    /// [`Config::cma`]: crate::Config::cma
    ///
    /// # Safety
    /// The caller keeps the memory mapped, readable and writable, until its deregistration has
    /// succeeded, or until all communicators of the family, all their operations, and all clones
    /// and ranges of its buffers are gone. While an operation or a slice uses some of the bytes, no
    /// reference to these exists that would conflict with that use.
    ///
    /// # Examples
    /// ```
    /// use linerate::{Communicator, Config, ReduceOp};
    /// let communicator = Communicator::join(0, 1, "its own memory", Config::default())?;
    /// let mut gradients = vec![1f32; 1024];
    /// let (address, bytes) = (gradients.as_mut_ptr().cast(), 4 * gradients.len());
    /// // SAFETY: the vector lives until the deregistration, and nothing refers to it before.
    /// let buffer = unsafe { communicator.register(address, bytes) }?.cast::<f32>()?;
    /// communicator.all_reduce(&buffer, ReduceOp::Sum)?;
    /// let second_half = communicator.buffer_at(address.wrapping_add(2048), 2048)?;
    /// assert_eq!(second_half.unwrap().cast::<f32>()?.as_slice()?[0], 1.0);
    /// communicator.deregister(address)?;
    /// assert!(communicator.all_reduce(&buffer, ReduceOp::Sum).is_err());
    /// assert!(communicator.buffer_at(address, bytes)?.is_none());
    /// gradients.push(2.0);
    /// # Ok::<(), linerate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: the address is null, there are no bytes or more than an address
    /// space holds, or some of them are registered or allocated here already. [`Error::Exhausted`]
    /// and [`Error::Os`]: a device cannot register them; [`Error::Forked`]. Nothing is registered
    /// then.
    pub unsafe fn register(&self, address: *mut u8, bytes: usize) -> Result<Buffer<u8>> {
        // SAFETY: our caller promises it.
        unsafe { self.register_at((address, bytes), None) }
    }

    /// [`Communicator::register`] of memory that is mapped from a memfd, from byte `offset` of it
    /// on, so that ranks on this host map it too. The descriptor is duplicated.
    ///
    /// The memfd has small pages and [`MFD_ALLOW_SEALING`]. Its size is sealed for good: a peer
    /// that uses pages which were cut off would die. After a failure, a rank that was stopped in
    /// the middle of a store may still write there when it goes on, even after a deregistration,
    /// because it has the pages mapped.
    ///
    /// [`MFD_ALLOW_SEALING`]: https://man7.org/linux/man-pages/man2/memfd_create.2.html
    ///
    /// # Safety
    /// As for [`Communicator::register`]. The memory is a shared mapping of that part of the memfd.
    ///
    /// # Errors
    /// Those of [`Communicator::register`]. [`Error::InvalidArgument`]: the size cannot be sealed,
    /// the memfd is shorter, or the offset is no multiple of a page. [`Error::Os`]: no descriptor
    /// is left.
    pub unsafe fn register_memfd(
        &self,
        address: *mut u8,
        bytes: usize,
        memfd: BorrowedFd<'_>,
        offset: u64,
    ) -> Result<Buffer<u8>> {
        self.driving()?;
        let memfd = memfd
            .try_clone_to_owned()
            .map_err(|e| Error::os("duplicating the descriptor of a memfd", e))?;
        // SAFETY: our caller promises it.
        unsafe { self.register_at((address, bytes), Some((memfd, offset))) }
    }

    /// Registers memory with this communicator's transport, and keeps it in the list of the family.
    ///
    /// # Safety
    /// [`Communicator::register`].
    unsafe fn register_at(
        &self,
        (address, bytes): (*mut u8, usize),
        memfd: Option<(OwnedFd, u64)>,
    ) -> Result<Buffer<u8>> {
        let driving = self.driving()?;
        let end = (address.addr())
            .checked_add(bytes)
            .filter(|_| isize::try_from(bytes).is_ok());
        if address.is_null() || bytes == 0 || end.is_none() {
            return Err(Error::invalid(format!(
                "registering {bytes} bytes at {address:p}: give an address that is not null, and 1 byte to all that the address space has from there on"
            )));
        }
        // SAFETY: our caller promises what `View::new` asks for.
        let view = unsafe { View::new(address, bytes) };
        let region = Arc::new(Region::of_caller(view, memfd)?);
        let key = driving.register(region.clone())?;
        let registration = (key, driving.garbage.clone());
        let raw = RawBuffer::of_caller(region, registration, &self.inner.ranges)?;
        Ok(Buffer::of(raw))
    }

    /// The `bytes` bytes at `address`, if they all lie in one registered buffer: one that this
    /// communicator or another of the family has allocated or registered. They share its borrows.
    /// The address is only compared.
    ///
    /// ```
    /// use linerate::{Communicator, Config};
    /// let communicator = Communicator::join(0, 1, "a job that looks", Config::default())?;
    /// let buffer = communicator.alloc::<u8>(64)?;
    /// let address = buffer.as_mut_slice()?.as_mut_ptr();
    /// assert_eq!(communicator.buffer_at(address, 64)?.map(|all| all.len()), Some(64));
    /// assert!(communicator.buffer_at(address, 65)?.is_none());
    /// # Ok::<(), linerate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn buffer_at(&self, address: *mut u8, bytes: usize) -> Result<Option<Buffer<u8>>> {
        self.driving()?;
        let found = RawBuffer::inside(address.addr(), bytes, &self.inner.ranges);
        Ok(found.map(Buffer::of))
    }

    /// Ends the registration that begins at `address`, in all communicators of the family. When
    /// this has succeeded, nothing of linerate uses the memory, and its owner may unmap it. Buffers
    /// of it that are left stay safe: every use of their elements is an [`Error::InUse`]. Not
    /// collective; any communicator of the family can do it.
    ///
    /// It does not wait for an operation that has not ended: this is an error, and the memory stays
    /// registered. Memory of an operation that has failed can be deregistered, and registered anew
    /// for a communicator that was rebuilt. If an operation could not end because a rank had left,
    /// others may still read the memory, so it stays registered until the family ends.
    ///
    /// # Errors
    /// [`Error::InUse`]: an operation or a slice uses some of the memory, or other ranks may still
    /// read it. [`Error::InvalidArgument`]: no registration begins there, for example because it
    /// has been ended already; [`Error::Forked`].
    pub fn deregister(&self, address: *mut u8) -> Result<()> {
        self.driving()?;
        self.inner
            .ranges
            .release(address.addr())?
            .end_registrations();
        Ok(())
    }
}

impl CollectiveBuilder<'_> {
    /// Gives it memory that the caller owns: what this rank reads lies at `input`, and what it
    /// writes at `output`. Each is as long as the collective says, and may be null where this rank
    /// has none. Equal addresses run in place. [`Communicator::adopt`] says how the memory is used.
    ///
    /// ```
    /// use linerate::{Collective, Communicator, Config, DataType, ReduceOp};
    /// let comm = Communicator::join(0, 1, "a job with addresses", Config::default())?;
    /// let mut sum = [1.0f32, 2.0];
    /// let address = sum.as_mut_ptr().cast::<u8>();
    /// let of = comm.collective(Collective::AllReduce, DataType::F32, 2).op(ReduceOp::Sum);
    /// // SAFETY: the array lives until the operation has ended, and nothing else uses it.
    /// unsafe { of.clone().at(address, address)? }.start()?.wait()?;
    /// // SAFETY: as above.
    /// unsafe { of.run_at(address, address)? };
    /// # Ok::<(), linerate::Error>(())
    /// ```
    ///
    /// # Safety
    /// As [`Communicator::adopt`], for both addresses; nothing is written to the input.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: an address is not aligned for the type, or the collective's
    /// arguments do not fit; [`Error::Forked`].
    pub unsafe fn at(mut self, input: *const u8, output: *mut u8) -> Result<Self> {
        let ranges = &self.communicator.inner.ranges;
        let [read, written] = self.bytes_at(&self.call()?, input, output)?;
        let of = |address: *mut u8, bytes: usize| {
            // SAFETY: our caller promises what `View::new` asks for.
            let view = unsafe { View::new(address, bytes) };
            (bytes > 0).then(|| (RawBuffer::at(view, ranges), DataType::U8))
        };
        self.input = of(input.cast_mut(), read);
        self.output = match input == output && read == written {
            // One look-up, and one borrow.
            true => self.input.clone(),
            false => of(output, written),
        };
        Ok(self)
    }

    /// Runs it on memory that the caller owns, as [`CollectiveBuilder::at`] and
    /// [`CollectiveBuilder::run`] do. A call of a few bytes is faster, because it does not look up
    /// registered memory: nothing then notices if something else uses these bytes.
    ///
    /// # Safety
    /// As [`CollectiveBuilder::at`].
    ///
    /// # Errors
    /// As [`CollectiveBuilder::at`] and [`CollectiveBuilder::run`].
    pub unsafe fn run_at(&self, input: *const u8, output: *mut u8) -> Result<()> {
        let comm = self.communicator;
        let mut call = self.call()?;
        let [read, written] = self.bytes_at(&call, input, output)?;
        // A simulated rank cannot wait on lent memory.
        let is_short = read.max(written) <= LINE_PAYLOAD_BYTES;
        let is_lent = is_short && !comm.driving()?.clock.is_virtual();
        let of = |address: *mut u8, bytes: usize| {
            // SAFETY: our caller promises what `View::new` asks for.
            let view = || unsafe { View::new(address, bytes) };
            match (bytes, is_lent) {
                (0, _) => None,
                (_, true) => Some(RawBuffer::lent(view())),
                (_, false) => Some(RawBuffer::at(view(), &comm.inner.ranges)),
            }
        };
        let is_in_place = input == output && read == written;
        let read = of(input.cast_mut(), read);
        let written = match is_in_place {
            true => None,
            false => of(output, written),
        };
        call.input = read.as_ref();
        call.output = match is_in_place {
            true => read.as_ref(),
            false => written.as_ref(),
        };
        comm.run_lent(&call)
    }

    /// How many bytes of input and output this rank has at these addresses; 0: none.
    #[inline]
    fn bytes_at(&self, call: &Call<'_>, input: *const u8, output: *const u8) -> Result<[usize; 2]> {
        let comm = self.communicator;
        comm.driving()?;
        let [read, written] = lengths_of(call, comm.rank(), comm.ranks())?;
        let (size, align) = (self.dtype.size_bytes(), self.dtype.align_bytes());
        let bytes_of = |name: &str, address: *const u8, elements: u64| {
            if address.is_null() || elements == 0 {
                return Ok(0);
            }
            let fits = |bytes: &usize| {
                *bytes <= isize::MAX as usize && address.addr().checked_add(*bytes).is_some()
            };
            let bytes = (elements as usize).checked_mul(size).filter(fits);
            match bytes.filter(|_| address.addr().is_multiple_of(align)) {
                Some(bytes) => Ok(bytes),
                None => Err(self.misplaced(name, address, elements)),
            }
        };
        Ok([
            bytes_of("input", input, read)?,
            bytes_of("output", output, written)?,
        ])
    }

    /// The error of memory that cannot be this rank's input or output.
    #[cold]
    fn misplaced(&self, name: &str, address: *const u8, elements: u64) -> Error {
        let (dtype, align) = (self.dtype, self.dtype.align_bytes());
        Error::invalid(match address.addr().is_multiple_of(align) {
            false => format!(
                "the {name} at {address:p} is not aligned: the address of {dtype} must be a multiple of {align}"
            ),
            true => format!(
                "the {name}, {elements} elements of {dtype} at {address:p}, does not fit an address space"
            ),
        })
    }
}
