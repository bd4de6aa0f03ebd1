//! [`Region`]: pages that a transport can reach, owned by this process or mapped from a peer.
//!
//! The region of a buffer has its pages before the first operation, next to its owner's core and
//! huge where the kernel allows it. Its size is compared with what the machine, the control groups
//! and the process may have (`available.rs`) before a page is touched.
//!
//! A view of a peer's region stays valid whatever that peer does: a region that its owner frees
//! stays mapped here until every round that may have a view of it has ended. Pages that a stopped
//! peer could still write are never given to another region.

use super::available::{self, Pages};
use super::{Element, View, pages};
use crate::error::{Error, Result};
use memmap2::{MmapMut, MmapRaw};
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::mm::munmap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Where the pages of a region come from.
#[derive(Debug)]
pub enum RegionKind {
    /// A sealed memfd that peers on this host can map.
    Shared(OwnedFd),
    /// Anonymous pages of this process only.
    Private {
        /// Unmaps them when it is dropped.
        _mapping: MmapRaw,
    },
    /// Pages of a peer, mapped here.
    Peer,
    /// Memory of a device that its driver shares through this dma-buf, mapped here.
    Dmabuf(OwnedFd),
    /// Memory that a caller owns. If the caller has given one: the memfd in which it lies, and the
    /// byte at which it begins there.
    Caller(Option<(OwnedFd, u64)>),
    /// Memory of a `Vec`, given back by this function of address, length and capacity in elements.
    Heap(HeapFree),
    /// No pages: only the length exists.
    SizeOnly,
}

/// How memory of a `Vec` is given back.
pub struct HeapFree {
    free: unsafe fn(*mut u8, usize, usize),
    len: usize,
    capacity: usize,
}

impl std::fmt::Debug for HeapFree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} elements", self.len)
    }
}

/// Pages with one owner, unmapped when it is dropped.
///
/// The pages of a `Shared` region live on as long as any peer maps them; they are never given to
/// another region, so that a peer that was stopped in the middle of a store does no harm later.
#[derive(Debug)]
pub struct Region {
    address: *mut u8,
    bytes: usize,
    mapped_bytes: usize,
    kind: RegionKind,
}

// SAFETY: the mapping belongs to the process, not to a thread; unmapping happens once, in Drop.
unsafe impl Send for Region {}
// SAFETY: shared access only yields views, whose access is raw or atomic.
unsafe impl Sync for Region {}

impl Region {
    /// `bytes` zeroed bytes in a memfd whose size is sealed, so that no peer can shrink it under
    /// us.
    pub fn shared(name: &str, bytes: usize) -> Result<Region> {
        let mapped_bytes = page_multiple(bytes)?;
        let what = || format!("{bytes} bytes of shared memory for {name}");
        available::check(name, mapped_bytes as u64, Pages::Shared)?;
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|e| Error::os(format!("memfd_create for {}", what()), e))?;
        ftruncate(&fd, mapped_bytes as u64).map_err(|e| Error::os(what(), e))?;
        fcntl_add_seals(&fd, SEALS).map_err(|e| Error::os(format!("sealing {}", what()), e))?;
        let address = pages::map_shared(fd.as_fd(), 0, mapped_bytes)
            .map_err(|e| refused(what(), mapped_bytes, Pages::Shared, e.into()))?;
        available::note_reserved(mapped_bytes);
        Ok(Region {
            address,
            bytes,
            mapped_bytes,
            kind: RegionKind::Shared(fd),
        })
    }

    /// `bytes` zeroed bytes of this process only.
    pub fn private(bytes: usize) -> Result<Region> {
        let mapped_bytes = page_multiple(bytes)?;
        available::check("private pages", mapped_bytes as u64, Pages::Private)?;
        let mapping = MmapMut::map_anon(mapped_bytes)
            .map(MmapRaw::from)
            .map_err(|e| {
                refused(
                    format!("mapping {bytes} bytes"),
                    mapped_bytes,
                    Pages::Private,
                    e,
                )
            })?;
        available::note_reserved(mapped_bytes);
        Ok(Region {
            address: mapping.as_mut_ptr(),
            bytes,
            mapped_bytes,
            kind: RegionKind::Private { _mapping: mapping },
        })
    }

    /// The elements of a `Vec`, where they lie.
    pub fn of_vec<T: Element>(vec: Vec<T>) -> Region {
        unsafe fn free<T>(address: *mut u8, len: usize, capacity: usize) {
            // SAFETY: `of_vec` has taken exactly this `Vec` apart, and Region's Drop calls this
            // once.
            drop(unsafe { Vec::<T>::from_raw_parts(address.cast(), len, capacity) });
        }
        let mut vec = std::mem::ManuallyDrop::new(vec);
        let (len, capacity) = (vec.len(), vec.capacity());
        Region {
            address: vec.as_mut_ptr().cast(),
            bytes: size_of_val(&vec[..]),
            mapped_bytes: 0,
            kind: RegionKind::Heap(HeapFree {
                free: free::<T>,
                len,
                capacity,
            }),
        }
    }

    /// Memory of a device, from the dma-buf that its driver gives for it (CUDA:
    /// `cuMemGetHandleForAddressRange`), from its beginning. Processors must be able to map it,
    /// because short messages are copied by them; NICs reach it without that.
    pub fn from_dmabuf(fd: OwnedFd, bytes: usize) -> Result<Region> {
        let name = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let link =
            std::fs::read_link(&name).map_err(|e| Error::os(format!("reading {name}"), e))?;
        if !link.starts_with("/dmabuf:") {
            return Err(Error::invalid(format!(
                "{bytes} bytes of a dma-buf: the descriptor is of {}, and not of one",
                link.display()
            )));
        }
        Region::of_dmabuf(fd, bytes)
    }

    /// [`Region::from_dmabuf`] of a descriptor that is known to be of a dma-buf.
    pub(crate) fn of_dmabuf(fd: OwnedFd, bytes: usize) -> Result<Region> {
        let mapped_bytes = page_multiple(bytes)?;
        let address = pages::map_shared(fd.as_fd(), 0, mapped_bytes).map_err(|e| {
            let what = "that only its device can reach is not built yet: memory that processors can map is";
            Error::os(format!("mapping {bytes} bytes of a dma-buf ({what})"), e)
        })?;
        Ok(Region {
            address,
            bytes,
            mapped_bytes,
            kind: RegionKind::Dmabuf(fd),
        })
    }

    /// Memory that a caller owns, and keeps for as long as anything uses the region. `file`: the
    /// memfd that it lies in, and from which byte on, so that peers can map it. The size of the
    /// memfd is sealed here.
    pub(crate) fn of_caller(view: View, file: Option<(OwnedFd, u64)>) -> Result<Region> {
        let bytes = view.len_bytes();
        if let Some((fd, offset)) = &file {
            // A file that cannot be sealed is refused below, by the check that peers make.
            let _ = fcntl_add_seals(fd, SEALS);
            Region::map_peer(fd.as_fd(), *offset, bytes).map_err(|error| {
                Error::invalid(format!(
                    "{bytes} bytes from byte {offset} of descriptor {} cannot be mapped by peers: {error}; it must be a memfd of small pages with MFD_ALLOW_SEALING that has its last size, and the offset a multiple of {}",
                    fd.as_raw_fd(),
                    rustix::param::page_size()
                ))
            })?;
        }
        Ok(Region {
            address: view.as_ptr(),
            bytes,
            mapped_bytes: 0,
            kind: RegionKind::Caller(file),
        })
    }

    /// The bytes at these addresses, of which `part` is a part. Their callers keep what a call uses
    /// mapped until it has ended, and nothing else of it is touched.
    pub(crate) fn around(part: View, bytes: std::ops::Range<usize>) -> Region {
        Region {
            address: part
                .as_ptr()
                .wrapping_sub(part.as_ptr().addr() - bytes.start),
            bytes: bytes.len(),
            mapped_bytes: 0,
            kind: RegionKind::Caller(None),
        }
    }

    /// A length without bytes, for simulations.
    pub fn size_only(bytes: usize) -> Region {
        Region {
            address: std::ptr::null_mut(),
            bytes,
            mapped_bytes: 0,
            kind: RegionKind::SizeOnly,
        }
    }

    /// Maps `bytes` bytes of a peer's memfd from byte `offset` on, after checking that it is that
    /// long and sealed: a file that its owner could shrink would kill us with SIGBUS.
    pub fn map_peer(fd: BorrowedFd<'_>, offset: u64, bytes: usize) -> Result<Region> {
        let mapped_bytes = page_multiple(bytes)?;
        let seals = fcntl_get_seals(fd)
            .map_err(|e| Error::os("reading the seals of a peer's memory", e))?;
        if !seals.contains(SEALS) {
            return Err(Error::Malformed(format!(
                "a peer's memory is not sealed against resizing (seals {seals:?}, needed {SEALS:?}): refused"
            )));
        }
        let stat = fstat(fd).map_err(|e| Error::os("sizing a peer's memory", e))?;
        let end = offset.checked_add(bytes as u64);
        if end.is_none_or(|end| stat.st_size < 0 || (stat.st_size as u64) < end) {
            return Err(Error::Malformed(format!(
                "a peer announced {bytes} bytes of memory from byte {offset} on and sent {}: refused",
                stat.st_size
            )));
        }
        let address = pages::map_shared(fd, offset, mapped_bytes)
            .map_err(|e| Error::os(format!("mapping {bytes} bytes of a peer"), e))?;
        Ok(Region {
            address,
            bytes,
            mapped_bytes,
            kind: RegionKind::Peer,
        })
    }

    /// Gives it all its pages now, from the memory next to the calling thread's core (the kernel's
    /// first touch), so that no operation has to wait for them; in huge pages if they are wanted
    /// and can be had.
    ///
    /// Best effort: pages that cannot be had now are looked for again at their first use. Windows
    /// and control memory are not populated, because most jobs touch a part of their 4 MiB.
    pub fn populate(&self, use_huge_pages: bool) {
        if self.mapped_bytes > 0 {
            pages::populate(self.address, self.mapped_bytes, use_huge_pages);
        }
    }

    /// All its bytes, not yet named by a key.
    #[inline]
    pub fn view(&self) -> View {
        if self.address.is_null() {
            return View::size_only(self.bytes);
        }
        // SAFETY: mapped until the region is dropped; a holder of the view keeps the region
        // (the engine holds an `Arc<Region>` per operation). A caller keeps its memory mapped until
        // the registration has ended, which no operation outlives.
        unsafe { View::new(self.address, self.bytes) }
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.bytes
    }

    /// The memfd by which peers on this host map it, and where it begins there, if there is one.
    pub(crate) fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        match &self.kind {
            RegionKind::Shared(fd) => Some((fd.as_fd(), 0)),
            RegionKind::Caller(Some((fd, offset))) => Some((fd.as_fd(), *offset)),
            _ => None,
        }
    }

    /// Where its pages come from.
    pub(crate) fn kind(&self) -> &RegionKind {
        &self.kind
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        match &self.kind {
            // SAFETY: the parts of the `Vec` that `of_vec` took, given back once; no view of it is
            // used any more.
            RegionKind::Heap(heap) => unsafe { (heap.free)(self.address, heap.len, heap.capacity) },
            // The mapping unmaps itself, is the caller's, or does not exist.
            RegionKind::Private { .. } | RegionKind::SizeOnly | RegionKind::Caller(_) => (),
            RegionKind::Shared(_) | RegionKind::Peer | RegionKind::Dmabuf(_) => {
                // SAFETY: exactly the range that was mapped; no view of it is used after the last
                // owner is gone. A failure would mean that the range was unmapped already, and
                // nothing can be done here.
                let _ = unsafe { munmap(self.address.cast(), self.mapped_bytes) };
            }
        }
        if matches!(
            self.kind,
            RegionKind::Shared(_) | RegionKind::Private { .. }
        ) {
            available::note_freed(self.mapped_bytes);
        }
    }
}

const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// The error of a mapping that the kernel has refused: by the limit that is in the way, if one is
/// found.
fn refused(what: String, bytes: usize, pages: Pages, cause: std::io::Error) -> Error {
    match available::check_all(&what, bytes as u64, pages) {
        Err(exhausted) if cause.raw_os_error() == Some(libc::ENOMEM) => exhausted,
        _ => Error::os(what, cause),
    }
}

/// Rounded up to whole pages, at least one: a mapping cannot be empty.
fn page_multiple(bytes: usize) -> Result<usize> {
    let page = rustix::param::page_size();
    bytes
        .max(1)
        .checked_next_multiple_of(page)
        .filter(|&rounded| rounded <= isize::MAX as usize)
        .ok_or_else(|| {
            Error::invalid(format!(
                "{bytes} bytes are more than an address space holds"
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_sees_what_the_owner_writes() {
        let owner = Region::shared("linerate-test", 10_000).unwrap();
        let RegionKind::Shared(fd) = owner.kind() else {
            panic!("not shared")
        };
        let peer = Region::map_peer(fd.as_fd(), 0, 10_000).unwrap();
        // SAFETY: both regions live here, and nobody else uses them.
        unsafe { owner.view().store(1000, 42u64) };
        // SAFETY: as above.
        let load = || unsafe { peer.view().load::<u64>(1000) };
        assert_eq!(load(), 42);
        drop(owner);
        assert_eq!(load(), 42, "pages live as long as a mapper");
    }

    #[test]
    fn an_unsealed_or_short_file_is_refused() {
        let fd = memfd_create(
            "linerate-test",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )
        .unwrap();
        ftruncate(&fd, 4096).unwrap();
        let text = Region::map_peer(fd.as_fd(), 0, 4096)
            .unwrap_err()
            .to_string();
        assert!(text.contains("not sealed"), "{text}");
        fcntl_add_seals(&fd, SEALS).unwrap();
        let text = Region::map_peer(fd.as_fd(), 0, 4097)
            .unwrap_err()
            .to_string();
        assert!(text.contains("4097"), "{text}");
        for offset in [1, 4096, u64::MAX] {
            assert!(
                Region::map_peer(fd.as_fd(), offset, 4096).is_err(),
                "{offset}"
            );
        }
        Region::map_peer(fd.as_fd(), 0, 4096).unwrap();
    }

    #[test]
    fn memory_of_a_caller_is_mapped_by_peers_from_its_offset_on_and_stays_the_callers() {
        let name = "linerate-caller";
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, 20_000).unwrap();
        // Stands for the mapping of a caller.
        let address = pages::map_shared(fd.as_fd(), 8192, 11_808).unwrap();
        // SAFETY: nobody unmaps it.
        let view = unsafe { View::new(address, 11_808) };
        let of_caller = |offset| {
            let fd = fd.try_clone().unwrap();
            Region::of_caller(view, Some((fd, offset)))
        };
        for offset in [4095, 8193, 12_288] {
            let text = of_caller(offset).unwrap_err().to_string();
            assert!(text.contains("MFD_ALLOW_SEALING"), "{text}");
        }
        let region = of_caller(8192).unwrap();
        assert!(ftruncate(&fd, 0).is_err(), "its size is sealed");
        let (file, offset) = region.file().unwrap();
        let peer = Region::map_peer(file, offset, 11_808).unwrap();
        // SAFETY: both mappings live here, and nobody else uses them.
        unsafe { region.view().store(1475, 42u64) };
        // SAFETY: as above.
        assert_eq!(unsafe { peer.view().load::<u64>(1475) }, 42);
        drop(region);
        // SAFETY: as above.
        assert_eq!(unsafe { view.load::<u64>(1475) }, 42);
        let closed = memfd_create(name, MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&closed, 20_000).unwrap();
        let text = Region::of_caller(view, Some((closed, 0))).unwrap_err();
        assert!(text.to_string().contains("not sealed"), "{text}");
    }

    #[test]
    fn the_owner_cannot_shrink_it() {
        let owner = Region::shared("linerate-test", 8192).unwrap();
        let RegionKind::Shared(fd) = owner.kind() else {
            panic!("not shared")
        };
        assert!(ftruncate(fd, 0).is_err());
    }

    #[test]
    fn what_is_no_dmabuf_is_refused_with_what_it_is() {
        let fd = memfd_create("linerate-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 4096).unwrap();
        let text = Region::from_dmabuf(fd, 4096).unwrap_err().to_string();
        assert!(text.contains("memfd:linerate-test"), "{text}");
    }

    #[test]
    fn empty_regions_exist() {
        assert_eq!(
            Region::shared("linerate-test", 0)
                .unwrap()
                .view()
                .len_bytes(),
            0
        );
        assert_eq!(Region::size_only(5).view().len_bytes(), 5);
        assert!(Region::private(usize::MAX).is_err());
    }
}
