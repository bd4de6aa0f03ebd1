//! [`Mr`]: memory that a provider and peers may read and write, and [`Segment`], a piece of it that
//! can be posted.

use crate::bindings as c;
use crate::domain::Domain;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::later::{DmaBuf, FI_KEY_NOTAVAIL, FI_MR_DMABUF, MrAttributes};
use crate::library::{Kind, Version};
use crate::raw::{
    FI_MR_ENDPOINT, FI_MR_PROV_KEY, FI_MR_RAW, FI_MR_VIRT_ADDR, FI_REMOTE_READ, FI_REMOTE_WRITE,
};
use std::any::Any;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes that providers, devices and peers read and write behind the program's back.
///
/// # Safety
/// The implementor promises, for as long as the value lives, that
/// * `address` and `len_bytes` always give the same answers;
/// * the range is mapped, readable, and writable unless it is only ever registered for `FI_WRITE`
///   and `FI_REMOTE_READ`;
/// * while it is registered nobody has a Rust reference to its bytes (a `&` or `&mut` to anything
///   but atomics), except a shared one if it is registered for those two only: access is raw or
///   atomic, because any byte may change at any time.
pub unsafe trait Memory: Send + Sync {
    /// The first byte.
    fn address(&self) -> *mut u8;
    /// Length in bytes.
    fn len_bytes(&self) -> usize;
}

/// Memory of a GPU, as CUDA exports it.
#[derive(Clone, Copy, Debug)]
pub struct DeviceMemory<'a> {
    /// The dma-buf that it is in.
    pub dmabuf: BorrowedFd<'a>,
    /// Where it begins there, in bytes.
    pub offset: u64,
    /// The address of its first byte, as the GPU's driver counts.
    pub address: u64,
    /// Length in bytes.
    pub bytes: usize,
    /// CUDA's number of the GPU.
    pub device: i32,
}

/// What keeps the bytes of a region.
pub(crate) enum Owner {
    Host(#[allow(dead_code)] Arc<dyn Memory>),
    Device(#[allow(dead_code)] Arc<dyn Any + Send + Sync>),
}

/// A registered region. Dropping its last owner first ends the access of the provider and of peers,
/// and then lets go of the memory. Operations that are under way hold the regions that they name.
pub struct Mr {
    domain: Arc<Domain>,
    raw: NonNull<c::fid_mr>,
    /// The address of the first byte in this process.
    address: u64,
    /// What peers call the first byte.
    remote_address: u64,
    bytes: usize,
    key: u64,
    descriptor: *mut c_void,
    access: u64,
    /// `None` only in Drop.
    owner: Option<Owner>,
    /// Of providers whose regions belong to endpoints.
    _endpoint: Option<Arc<Endpoint>>,
}

// SAFETY: objects of the library belong to the process, not to a thread, and the owner is Send.
unsafe impl Send for Mr {}
// SAFETY: shared access reads what never changes; the descriptor is only handed to the library.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers all of `memory`. `access` is made of `FI_WRITE` (it is the source of writes),
    /// `FI_READ` (the destination of reads), `FI_REMOTE_WRITE` and `FI_REMOTE_READ` (what peers may
    /// do).
    ///
    /// If the domain has `FI_MR_ENDPOINT` in its [`mr_mode`](crate::Info::mr_mode), regions belong
    /// to an endpoint, which the region then holds: an operation that is under way holds its
    /// region, which holds the endpoint, so such an endpoint lives until its operations are
    /// complete and polled. Other domains ignore `endpoint`.
    pub fn register(
        domain: &Arc<Domain>,
        memory: Arc<dyn Memory>,
        access: u64,
        endpoint: Option<&Arc<Endpoint>>,
    ) -> Result<Arc<Mr>> {
        let (start, bytes) = (memory.address(), memory.len_bytes());
        let piece = libc::iovec {
            iov_base: start.cast(),
            iov_len: bytes,
        };
        let attributes = MrAttributes {
            base: c::fi_mr_attr {
                mr_iov: &piece,
                iov_count: 1,
                access,
                ..Default::default()
            },
            ..Default::default()
        };
        let range = (start as u64, bytes);
        Mr::make(domain, attributes, 0, range, Owner::Host(memory), endpoint)
    }

    /// Registers memory of a GPU. `owner` keeps it. Needs the capability `FI_HMEM` and a library
    /// from [`Version::DMABUF`] on, and is otherwise as [`register`](Mr::register).
    pub fn register_device(
        domain: &Arc<Domain>,
        memory: &DeviceMemory<'_>,
        owner: Arc<dyn Any + Send + Sync>,
        access: u64,
        endpoint: Option<&Arc<Endpoint>>,
    ) -> Result<Arc<Mr>> {
        let library = domain.library();
        if library.version() < Version::DMABUF {
            return Err(Error::Invalid(format!(
                "registering a dma-buf: {} is version {}, at least {} is needed",
                library.name(),
                library.version(),
                Version::DMABUF
            )));
        }
        let start = memory.address.wrapping_sub(memory.offset) as usize;
        let piece = DmaBuf {
            fd: memory.dmabuf.as_raw_fd(),
            offset: memory.offset,
            len: memory.bytes,
            base_addr: std::ptr::without_provenance_mut(start),
        };
        let attributes = MrAttributes {
            base: c::fi_mr_attr {
                // A union since 1.20; the flag says which member it is.
                mr_iov: (&raw const piece).cast(),
                iov_count: 1,
                access,
                iface: c::fi_hmem_iface::FI_HMEM_CUDA,
                device: c::fi_mr_attr__bindgen_ty_1 {
                    cuda: memory.device,
                },
                ..Default::default()
            },
            ..Default::default()
        };
        let range = (memory.address, memory.bytes);
        let owner = Owner::Device(owner);
        Mr::make(domain, attributes, FI_MR_DMABUF, range, owner, endpoint)
    }

    fn make(
        domain: &Arc<Domain>,
        mut attributes: MrAttributes,
        flags: u64,
        (address, bytes): (u64, usize),
        owner: Owner,
        endpoint: Option<&Arc<Endpoint>>,
    ) -> Result<Arc<Mr>> {
        let (mode, access) = (domain.info().mr_mode(), attributes.base.access);
        let what = || {
            format!(
                "registering {bytes} bytes (access {access:#x}) in {}",
                domain.name()
            )
        };
        let has = |bit: i32| mode & bit != 0;
        if has(FI_MR_RAW) {
            return Err(Error::Invalid(format!(
                "{}: its keys have no fixed size",
                what()
            )));
        }
        let endpoint = endpoint.filter(|_| has(FI_MR_ENDPOINT));
        let is_own = endpoint.is_some_and(|endpoint| Arc::ptr_eq(endpoint.domain(), domain));
        if has(FI_MR_ENDPOINT) && !is_own {
            return Err(Error::Invalid(format!(
                "{}: it needs an endpoint of the domain",
                what()
            )));
        }
        if !has(FI_MR_PROV_KEY) {
            attributes.base.requested_key = domain.take_key();
            let key_bytes = domain.info().mr_key_bytes().min(size_of::<u64>());
            if key_bytes < 8 && attributes.base.requested_key >> (8 * key_bytes) != 0 {
                return Err(Error::Invalid(format!("{}: keys are used up", what())));
            }
        }
        // SAFETY: an open domain has its tables.
        let register = unsafe { (*(*domain.as_ptr()).mr).regattr };
        let register = register.expect("every domain has regattr");
        let guard = domain.guard();
        let raw = domain.library().made(Kind::Mr, what, |raw| {
            // SAFETY: the domain lives, and the attributes are complete, also in the longer form.
            // The memory is mapped for its length and its owner outlives the region.
            unsafe { register(domain.as_ptr().cast(), &attributes.base, flags, raw) }
        })?;
        drop(guard);
        let mut region = Mr {
            domain: Arc::clone(domain),
            raw,
            address,
            remote_address: if has(FI_MR_VIRT_ADDR) { address } else { 0 },
            bytes,
            key: FI_KEY_NOTAVAIL,
            descriptor: std::ptr::null_mut(),
            access,
            owner: Some(owner),
            _endpoint: endpoint.cloned(),
        };
        if let Some(endpoint) = endpoint {
            let status = region.enable(endpoint);
            if status != 0 {
                return Err(domain
                    .library()
                    .refused(format!("{}: enabling it", what()), status));
            }
        }
        // SAFETY: registered until Drop; neither changes any more.
        (region.key, region.descriptor) =
            unsafe { ((*raw.as_ptr()).key, (*raw.as_ptr()).mem_desc) };
        if region.key == FI_KEY_NOTAVAIL && region.is_remote() {
            return Err(Error::Invalid(format!(
                "{}: the provider gave it no key",
                what()
            )));
        }
        Ok(Arc::new(region))
    }

    /// Binds a new region to its endpoint and enables it; gives an error number.
    fn enable(&self, endpoint: &Endpoint) -> c_int {
        let fid: *mut c::fid = self.raw.as_ptr().cast();
        let _guard = self.domain.guard();
        // SAFETY: a registered region has its table.
        let ops = unsafe { &*(*fid).ops };
        let (Some(bind), Some(control)) = (ops.bind, ops.control) else {
            return libc::ENOSYS;
        };
        // SAFETY: both objects live.
        let status = unsafe { bind(fid, endpoint.as_ptr().cast(), 0) };
        if status != 0 {
            return status;
        }
        // SAFETY: the region lives; this command takes no argument.
        unsafe { control(fid, c::FI_ENABLE.0 as c_int, std::ptr::null_mut()) }
    }

    /// The domain it is in.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Its first byte in this process.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.bytes
    }

    /// Whether peers may reach it.
    fn is_remote(&self) -> bool {
        self.access & (FI_REMOTE_READ | FI_REMOTE_WRITE) != 0
    }

    /// Whether it was registered for all of `access`.
    #[inline]
    pub(crate) fn allows(&self, access: u64) -> bool {
        self.access & access == access
    }

    /// The `bytes` bytes from `offset`, as something to post; `None` if they do not lie inside.
    #[inline]
    pub fn segment(self: &Arc<Mr>, offset: usize, bytes: usize) -> Option<Segment<'_>> {
        let is_inside = offset <= self.bytes && bytes <= self.bytes - offset;
        is_inside.then_some(Segment {
            region: self,
            offset,
            bytes,
        })
    }

    /// The place `offset` bytes into it, as a peer's operations name it; `None` if it is not inside
    /// or just behind, or peers may not reach the region.
    pub fn place(&self, offset: usize) -> Option<Place> {
        (offset <= self.bytes && self.is_remote()).then(|| Place {
            address: self.remote_address + offset as u64,
            key: self.key,
        })
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: registered once, closed once; operations that name it hold it and are complete.
        let is_left = unsafe { self.domain.close(Kind::Mr, self.raw.as_ptr().cast()) };
        let Some(owner) = self.owner.take() else {
            return;
        };
        if is_left {
            // The provider may still write the memory, so it is never freed.
            std::mem::forget(owner);
        } else if self.is_remote() {
            self.domain.retire(owner, self.bytes);
        }
    }
}

/// A piece of a registered region, as an operation names it.
#[derive(Clone, Copy)]
pub struct Segment<'a> {
    region: &'a Arc<Mr>,
    offset: usize,
    bytes: usize,
}

impl<'a> Segment<'a> {
    /// Length in bytes.
    #[inline]
    pub fn len_bytes(&self) -> usize {
        self.bytes
    }

    /// The `bytes` bytes from `offset`; `None` if they do not lie inside.
    #[inline]
    pub fn part(&self, offset: usize, bytes: usize) -> Option<Segment<'a>> {
        let is_inside = offset <= self.bytes && bytes <= self.bytes - offset;
        is_inside.then_some(Segment {
            region: self.region,
            offset: self.offset + offset,
            bytes,
        })
    }

    pub(crate) fn region(&self) -> &'a Arc<Mr> {
        self.region
    }

    pub(crate) fn as_ptr(&self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.region.address as usize + self.offset)
    }

    pub(crate) fn descriptor(&self) -> *mut c_void {
        self.region.descriptor
    }
}

/// A place in a peer's registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The address, as the peer's region counts it.
    pub address: u64,
    /// The peer's key.
    pub key: u64,
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
