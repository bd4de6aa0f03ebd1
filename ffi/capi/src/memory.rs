//! Registered memory, and memory of the caller by its address.

use crate::communicator::linerate_comm;
use crate::objects::{COMMUNICATOR, MEMORY, Object, insert};
use crate::pointers::{bytes_of, check_place, write};
use crate::status::{Fault, LINERATE_DONE, enter, invalid};
use linerate::{Buffer, Communicator, DataType};
use std::ffi::c_void;
use std::os::fd::BorrowedFd;

/// A handle of registered memory.
#[allow(non_camel_case_types)]
pub type linerate_memory = u64;

/// Memory of this process: the one kind that there is.
pub const LINERATE_MEMORY_HOST: u32 = 0;

/// Memory of the caller as operations use it; a part of a registered buffer if it lies in one.
///
/// # Safety
/// Unless the address is not aligned, `count` elements lie there until the operation on them has
/// ended; nothing else uses what the operation writes, or writes what it reads.
pub(crate) unsafe fn adopt(
    name: &str,
    communicator: &Communicator,
    address: *const c_void,
    count: u64,
    dtype: DataType,
) -> Result<Buffer<u8>, Fault> {
    let bytes = match count {
        0 => 0,
        _ => bytes_of(name, address.addr(), count, dtype)?,
    };
    // SAFETY: our caller promises it; of an input nothing is written.
    Ok(unsafe { communicator.adopt(address.cast_mut().cast::<u8>(), bytes)? })
}

/// Allocates zeroed memory that operations use where it lies, in place of copying it. A call takes
/// any address inside it; a part that lies in registered memory is found by its address. Not
/// collective. `address` is aligned for every type.
///
/// Threads: any. The memory belongs to the caller until linerate_memory_free(); operations that use
/// it then keep it until they have ended. While an operation is under way on elements, the caller
/// does not write those that it reads, and neither reads nor writes those that it writes. After
/// fork: LINERATE_ERROR_FORKED.
///
/// # Safety
/// `memory` and `address` are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_alloc(
    comm: linerate_comm,
    bytes: u64,
    memory: *mut linerate_memory,
    address: *mut *mut c_void,
) -> i32 {
    enter(|| {
        check_place("memory", memory)?;
        check_place("address", address)?;
        let buffer = COMMUNICATOR.get(comm)?.alloc::<u8>(length(bytes)?)?;
        let start = start_of(&buffer)?;
        let handle = insert(Object::Memory(buffer))?;
        // SAFETY: our caller promises it.
        unsafe {
            write("memory", memory, handle)?;
            write("address", address, start)?;
        }
        Ok(LINERATE_DONE)
    })
}

fn length(bytes: u64) -> Result<usize, Fault> {
    let known = usize::try_from(bytes)
        .ok()
        .filter(|&bytes| bytes <= isize::MAX as usize);
    known.ok_or_else(|| invalid(format!("{bytes} bytes do not fit an address space")))
}

fn start_of(buffer: &Buffer<u8>) -> Result<*mut c_void, Fault> {
    let mut elements = buffer.as_mut_slice()?;
    Ok(elements.as_mut_ptr().cast())
}

/// Registers memory of the caller, once: calls on addresses inside it then use it where it lies,
/// without registering anything again. Not collective. Ranks of the same host copy it where they
/// cannot map it: see linerate_register_memfd().
///
/// Threads: any. The memory stays mapped, readable and writable, until linerate_deregister() has
/// succeeded, or every communicator of the family and every operation is gone. After fork:
/// LINERATE_ERROR_FORKED.
///
/// # Safety
/// `address` has `bytes` bytes of the caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_register(
    comm: linerate_comm,
    address: *mut c_void,
    bytes: u64,
) -> i32 {
    enter(|| {
        let communicator = COMMUNICATOR.get(comm)?;
        // SAFETY: our caller promises it. The list of the family keeps the registration.
        drop(unsafe { communicator.register(address.cast(), length(bytes)?)? });
        Ok(LINERATE_DONE)
    })
}

/// As linerate_register(), of memory that is mapped, shared, from a memfd, from byte `offset` of it
/// on: ranks of the same host map it too. The descriptor is duplicated. The memfd has small pages
/// and allows sealing; its size is sealed, for good.
///
/// # Safety
/// As linerate_register(); the memory is a shared mapping of that part of the memfd.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_register_memfd(
    comm: linerate_comm,
    address: *mut c_void,
    bytes: u64,
    fd: i32,
    offset: u64,
) -> i32 {
    enter(|| {
        let communicator = COMMUNICATOR.get(comm)?;
        if fd < 0 {
            return Err(invalid(format!(
                "a memfd of number {fd}: give an open descriptor"
            )));
        }
        // SAFETY: our caller promises that it is open during this call.
        let memfd = unsafe { BorrowedFd::borrow_raw(fd) };
        let bytes = length(bytes)?;
        // SAFETY: our caller promises it.
        drop(unsafe { communicator.register_memfd(address.cast(), bytes, memfd, offset)? });
        Ok(LINERATE_DONE)
    })
}

/// Ends the registration that begins at `address`, in all communicators of the family. When it has
/// succeeded, nothing of the library uses the memory. LINERATE_ERROR_IN_USE: an operation uses some
/// of it, or other ranks may still read it; it stays registered then. Not collective.
///
/// Threads: any. After fork: LINERATE_ERROR_FORKED.
#[unsafe(no_mangle)]
pub extern "C" fn linerate_deregister(comm: linerate_comm, address: *mut c_void) -> i32 {
    enter(|| {
        COMMUNICATOR.get(comm)?.deregister(address.cast())?;
        Ok(LINERATE_DONE)
    })
}

/// How many bytes the memory has. Threads: any. After fork: as before.
///
/// # Safety
/// `bytes` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_memory_bytes(memory: linerate_memory, bytes: *mut u64) -> i32 {
    enter(|| {
        let length = MEMORY.get(memory)?.len() as u64;
        // SAFETY: our caller promises it.
        unsafe { write("bytes", bytes, length)? };
        Ok(LINERATE_DONE)
    })
}

/// Frees memory; 0 is allowed and does nothing. The address must not be used any more.
///
/// Threads: any. After fork: the child's handle ends, and the parent keeps its memory.
#[unsafe(no_mangle)]
pub extern "C" fn linerate_memory_free(memory: linerate_memory) -> i32 {
    enter(|| MEMORY.free(memory).map(|()| LINERATE_DONE))
}
