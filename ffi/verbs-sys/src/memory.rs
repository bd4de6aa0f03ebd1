//! [`Pd`] and [`Mr`]: memory that a device may read and write, and [`Segment`], a piece of it that
//! can be posted.

use crate::bindings as c;
use crate::device::Context;
use crate::error::{Error, Result};
use crate::library::Kind;
use std::any::Any;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes that devices, and through them peers, read and write behind the program's back.
///
/// # Safety
/// The implementor promises, for as long as the value lives, that
/// * `address` and `len_bytes` always give the same answers;
/// * the range is mapped, readable, and writable unless it is only ever registered without write
///   access;
/// * while it is registered nobody has a Rust reference to its bytes (a `&` or `&mut` to anything
///   but atomics), except a shared one if it is registered without write access and no request
///   writes to it: access is raw or atomic, because a device may change any byte at any time.
pub unsafe trait Memory: Send + Sync {
    /// The first byte.
    fn address(&self) -> *mut u8;
    /// Length in bytes.
    fn len_bytes(&self) -> usize;
}

/// A protection domain: queue pairs reach only the regions of their own domain.
pub struct Pd {
    pub(crate) context: Arc<Context>,
    raw: NonNull<c::ibv_pd>,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for Pd {}
// SAFETY: it is only a name for the library; verbs of one domain may be called by several threads
// at once.
unsafe impl Sync for Pd {}

impl Pd {
    /// A new domain of this device.
    pub fn allocate(context: &Arc<Context>) -> Result<Arc<Pd>> {
        let library = &context.library;
        // SAFETY: the context is open.
        let raw = unsafe { (library.functions.alloc_pd)(context.as_ptr()) };
        let raw = NonNull::new(raw)
            .ok_or_else(|| Error::last(format!("a protection domain of {}", context.name())))?;
        library.note_made(Kind::Pd);
        Ok(Arc::new(Pd {
            context: Arc::clone(context),
            raw,
        }))
    }

    /// Its device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn as_ptr(&self) -> *mut c::ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        let library = &self.context.library;
        library.destroy(Kind::Pd, self.context.name(), || {
            // SAFETY: made once, destroyed once; all that was made in it held it and is gone.
            unsafe { (library.functions.dealloc_pd)(self.raw.as_ptr()) }
        });
    }
}

/// A registered region. Dropping it first ends the device's access and then lets go of the memory.
pub struct Mr {
    pd: Arc<Pd>,
    raw: NonNull<c::ibv_mr>,
    /// The address of the first byte, as requests and peers name it.
    address: u64,
    bytes: usize,
    /// `None` only in Drop.
    owner: Option<Owner>,
}

/// What keeps the bytes of a region.
enum Owner {
    Host(#[allow(dead_code)] Arc<dyn Memory>),
    Device(#[allow(dead_code)] Arc<dyn Any + Send + Sync>),
}

// SAFETY: verbs may be called from any thread, and the owner is Send and Sync.
unsafe impl Send for Mr {}
// SAFETY: shared access reads what never changes.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers all of `memory`. Access flags of the optional range (relaxed ordering) are ignored
    /// where the library or the kernel does not know them.
    pub fn register(
        pd: &Arc<Pd>,
        memory: Arc<dyn Memory>,
        access: c::ibv_access_flags,
    ) -> Result<Mr> {
        let (start, bytes) = (memory.address(), memory.len_bytes());
        let access = checked(access)?;
        let functions = &pd.context.library.functions;
        let basic = access & !OPTIONAL_ACCESS;
        let raw = match functions.reg_mr_iova2.filter(|_| access != basic) {
            // SAFETY: the domain lives; the memory is mapped for its length and its owner outlives
            // the region. Its name for peers is its address.
            Some(register) => unsafe {
                register(pd.as_ptr(), start.cast(), bytes as _, start as u64, access)
            },
            // SAFETY: as above.
            None => unsafe {
                (functions.reg_mr)(pd.as_ptr(), start.cast(), bytes as _, basic as i32)
            },
        };
        Mr::made(pd, raw, start as u64, bytes, Owner::Host(memory), "memory")
    }

    /// Registers `bytes` bytes of a device's memory (a GPU's) from `offset` of the dma-buf `fd`.
    /// Peers and requests name them from `address` on. `owner` keeps the device's memory.
    pub fn register_dmabuf(
        pd: &Arc<Pd>,
        fd: BorrowedFd<'_>,
        offset: u64,
        (address, bytes): (u64, usize),
        access: c::ibv_access_flags,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Mr> {
        let access = checked(access)?;
        let register = pd.context.library.functions.reg_dmabuf_mr.ok_or_else(|| {
            let what = format!(
                "registering a dma-buf: {} is too old",
                pd.context.library.name()
            );
            Error::refused(what, libc::EOPNOTSUPP)
        })?;
        // SAFETY: the domain lives and the descriptor is open. The kernel checks the range and
        // keeps the dma-buf.
        let raw = unsafe {
            register(
                pd.as_ptr(),
                offset,
                bytes as _,
                address,
                fd.as_raw_fd(),
                access as i32,
            )
        };
        Mr::made(
            pd,
            raw,
            address,
            bytes,
            Owner::Device(owner),
            "device memory",
        )
    }

    fn made(
        pd: &Arc<Pd>,
        raw: *mut c::ibv_mr,
        address: u64,
        bytes: usize,
        owner: Owner,
        what: &str,
    ) -> Result<Mr> {
        let raw = NonNull::new(raw).ok_or_else(|| {
            let name = pd.context.name();
            Error::last(format!("registering {bytes} bytes of {what} on {name}"))
        })?;
        pd.context.library.note_made(Kind::Mr);
        Ok(Mr {
            pd: Arc::clone(pd),
            raw,
            address,
            bytes,
            owner: Some(owner),
        })
    }

    /// The domain it is in.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Its first byte, as requests and peers name it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.bytes
    }

    /// What requests of this process name it by.
    pub fn local_key(&self) -> u32 {
        // SAFETY: registered until Drop; the key never changes.
        unsafe { (&raw const (*self.raw.as_ptr()).lkey).read() }
    }

    /// What peers name it by.
    pub fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (&raw const (*self.raw.as_ptr()).rkey).read() }
    }

    /// The `bytes` bytes from `offset`, as something to post; `None` if they do not lie inside.
    #[inline]
    pub fn segment(&self, offset: usize, bytes: u32) -> Option<Segment> {
        let is_inside = offset <= self.bytes && bytes as usize <= self.bytes - offset;
        is_inside.then(|| {
            Segment(c::ibv_sge {
                addr: self.address + offset as u64,
                length: bytes,
                lkey: self.local_key(),
            })
        })
    }

    /// The place `offset` bytes into it, as a peer's requests name it; `None` if it is not inside
    /// or just behind.
    pub fn place(&self, offset: usize) -> Option<Place> {
        (offset <= self.bytes).then(|| Place {
            address: self.address + offset as u64,
            key: self.remote_key(),
        })
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        let library = &self.pd.context.library;
        let owner = self.owner.take();
        let mut is_ended = true;
        library.destroy(Kind::Mr, self.pd.context.name(), || {
            // SAFETY: registered once, deregistered once. After it returns 0 the device touches the
            // memory no more; requests that name it fail.
            let status = unsafe { (library.functions.dereg_mr)(self.raw.as_ptr()) };
            is_ended = status == 0;
            status
        });
        if !is_ended {
            // The device may still write the memory, so it is never freed.
            std::mem::forget(owner);
        }
    }
}

/// A piece of a registered region, as a work request names it.
///
/// It does not keep its region: the device checks every access against the regions that are
/// registered when it happens, so a request that names a region which is gone ends with a local
/// protection error and touches nothing, or touches bytes of another region that has got the same
/// key since, whose owner allows that ([`Memory`]).
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Segment(pub(crate) c::ibv_sge);

impl Segment {
    /// Length in bytes.
    #[inline]
    pub fn len_bytes(&self) -> u32 {
        self.0.length
    }

    /// Its first byte, as requests name it.
    pub fn address(&self) -> u64 {
        self.0.addr
    }

    /// The `bytes` bytes from `offset`; `None` if they do not lie inside.
    #[inline]
    pub fn part(&self, offset: u32, bytes: u32) -> Option<Segment> {
        let is_inside = offset <= self.0.length && bytes <= self.0.length - offset;
        is_inside.then(|| {
            Segment(c::ibv_sge {
                addr: self.0.addr + u64::from(offset),
                length: bytes,
                lkey: self.0.lkey,
            })
        })
    }
}

/// A place in a peer's registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The address, as the peer's region counts it.
    pub address: u64,
    /// The peer's key.
    pub key: u32,
}

impl Place {
    /// The place `bytes` bytes on.
    pub fn after(self, bytes: u64) -> Place {
        Place {
            address: self.address.wrapping_add(bytes),
            ..self
        }
    }
}

/// `IBV_ACCESS_OPTIONAL_RANGE`: flags that a library or kernel may ignore.
const OPTIONAL_ACCESS: u32 = 0x3ff0_0000;

const _: () = assert!(c::ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0 & OPTIONAL_ACCESS != 0);

/// Refuses a region that counts from zero, because a [`Segment`] names bytes by their addresses.
fn checked(access: c::ibv_access_flags) -> Result<u32> {
    if access.0 & c::ibv_access_flags::IBV_ACCESS_ZERO_BASED.0 != 0 {
        return Err(Error::Invalid(
            "IBV_ACCESS_ZERO_BASED: regions are named by their addresses".to_owned(),
        ));
    }
    Ok(access.0)
}
