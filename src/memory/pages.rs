//! Where the pages of a mapping lie and how large they are.
//!
//! A file of shared memory gets huge pages only if an administrator allows it, except by
//! `MADV_COLLAPSE` (Linux 6.1), which asks for them on a range that is already mapped. It fills
//! holes with zeros, but needs one page to be present in each huge page; so one is touched. That is
//! also the fastest way to get memory: 128 MiB take 17 ms, and 190 ms with small pages. An
//! allreduce of 16 MiB took 237 us with huge pages and 605 with small ones. Kernels that refuse
//! leave small pages.
//!
//! `memmap2` maps private memory, but not shared memory, because it cannot ask for an address.
//!
//! Source: madvise(2); `collapse_file` in mm/khugepaged.c.

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::os::fd::BorrowedFd;

/// Bytes of a huge page on x86-64 and on aarch64 with pages of 4 KiB. Where huge pages have another
/// size, collapsing fails and changes nothing.
const HUGE_BYTES: usize = 2 << 20;

/// From <asm-generic/mman-common.h>, equal on every architecture that has it.
const MADV_COLLAPSE: i32 = 25;

/// Maps `bytes` bytes of a file, whole pages, from byte `offset` on, at an address that is aligned
/// to huge pages if it holds one: only then can they be mapped as such.
pub(super) fn map_shared(
    fd: BorrowedFd<'_>,
    offset: u64,
    bytes: usize,
) -> rustix::io::Result<*mut u8> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    if bytes < HUGE_BYTES {
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                MapFlags::SHARED,
                fd,
                offset,
            )
        }?;
        return Ok(address.cast());
    }
    let reserved_bytes = bytes + HUGE_BYTES;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: as above; nothing can be read or written there, so it takes no memory.
    let reserved = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            reserved_bytes,
            ProtFlags::empty(),
            flags,
        )
    }?;
    let skipped = reserved.cast::<u8>().align_offset(HUGE_BYTES);
    let address = reserved.wrapping_byte_add(skipped);
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: replaces only pages that were reserved above and that nobody else knows.
    let mapped = unsafe { mmap(address, bytes, protection, flags, fd, offset) };
    let ends = match mapped {
        Ok(_) => [
            (reserved, skipped),
            (address.wrapping_byte_add(bytes), HUGE_BYTES - skipped),
        ],
        Err(_) => [(reserved, reserved_bytes), (reserved, 0)],
    };
    for (start, bytes) in ends.into_iter().filter(|&(_, bytes)| bytes > 0) {
        // SAFETY: what is left of the reservation, in which nothing lies.
        let _ = unsafe { munmap(start, bytes) };
    }
    mapped.map(|address| address.cast())
}

/// Gives a shared mapping of whole pages all its pages, huge ones if they are wanted and can be
/// had.
pub(super) fn populate(address: *mut u8, bytes: usize, use_huge_pages: bool) {
    let advise = |start: usize, bytes, advice| {
        // SAFETY: inside the mapping, and none of the advice given here changes bytes that are
        // there. Advice that cannot be followed leaves everything as it was, to be done at the
        // first use.
        unsafe { libc::madvise(address.wrapping_add(start).cast(), bytes, advice) };
    };
    if use_huge_pages && address.align_offset(HUGE_BYTES) == 0 {
        for start in (0..bytes - bytes % HUGE_BYTES).step_by(HUGE_BYTES) {
            advise(start, 1, libc::MADV_POPULATE_WRITE);
            advise(start, HUGE_BYTES, MADV_COLLAPSE);
        }
    }
    advise(0, bytes, libc::MADV_POPULATE_WRITE);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Region, RegionKind};
    use std::os::fd::AsFd;

    /// How many pages of a region are in memory.
    fn resident_count(region: &Region) -> usize {
        let pages = region.len_bytes().div_ceil(rustix::param::page_size());
        let mut flags = vec![0u8; pages];
        let (address, bytes) = (region.view().as_ptr(), region.len_bytes());
        // SAFETY: one flag per page of a live mapping.
        let status = unsafe { libc::mincore(address.cast(), bytes, flags.as_mut_ptr()) };
        assert_eq!(status, 0, "mincore of a mapping");
        flags.iter().filter(|&&flag| flag & 1 != 0).count()
    }

    #[test]
    fn populated_memory_is_there_and_zero_and_shared() {
        for (bytes, huge) in [
            (10_000, true),
            (HUGE_BYTES, true),
            (2 * HUGE_BYTES + 5000, true),
            (2 * HUGE_BYTES + 5000, false),
        ] {
            let region = Region::shared("linerate-test", bytes).unwrap();
            assert_eq!(resident_count(&region), 0, "untouched memory takes none");
            region.populate(huge);
            let pages = bytes.div_ceil(rustix::param::page_size());
            assert_eq!(
                resident_count(&region),
                pages,
                "{bytes} bytes, huge pages {huge}"
            );
            let RegionKind::Shared(fd) = region.kind() else {
                panic!("not shared")
            };
            let peer = Region::map_peer(fd.as_fd(), 0, bytes).unwrap();
            let mut seen = vec![1u8; bytes];
            // SAFETY: both regions live here, and nobody else uses them.
            unsafe { peer.view().read(0, &mut seen) };
            assert!(seen.iter().all(|&byte| byte == 0));
            // SAFETY: as above.
            unsafe { peer.view().write(bytes - 1, &[7]) };
            // SAFETY: as above.
            let last = unsafe { region.view().load::<u8>(bytes - 1) };
            assert_eq!(last, 7);
        }
    }

    #[test]
    fn large_shared_mappings_begin_at_a_huge_page() {
        for bytes in [HUGE_BYTES, HUGE_BYTES + 1, 3 * HUGE_BYTES] {
            let region = Region::shared("linerate-test", bytes).unwrap();
            assert_eq!(region.view().as_ptr().align_offset(HUGE_BYTES), 0);
        }
    }
}
