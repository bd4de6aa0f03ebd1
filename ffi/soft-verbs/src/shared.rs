//! Registered memory that lies in a memfd: its owner says in which, and peers map it in place of
//! asking the system for every copy. An aligned word of 8 bytes arrives whole then.
//!
//! The size of the memfd is sealed against shrinking, as no store may meet a page that is gone. A
//! registration that cannot be mapped, for whatever reason, is written and read by the system.

use crate::arena::Region;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;

const PAGE: u64 = 4096;

/// The memfd in which all of these bytes lie, and from which of its bytes on.
pub fn file_of(address: u64, bytes: u64) -> Option<(OwnedFd, u64)> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let (device, inode, offset) = maps
        .lines()
        .find_map(|line| place_of(line, address, bytes))?;
    for entry in std::fs::read_dir("/proc/self/fd").ok()?.flatten() {
        let number = entry.file_name().to_str()?.parse().ok()?;
        let is_it = |found: std::fs::Metadata| (found.dev(), found.ino()) == (device, inode);
        let is_it = std::fs::metadata(entry.path()).is_ok_and(is_it);
        // SAFETY: it is open: it is listed, and the program keeps it while this registers. Where it
        // does not, the call below fails.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        if is_it && is_sealed(fd) {
            return Some((fd.try_clone_to_owned().ok()?, offset));
        }
    }
    None
}

/// The device, the file and the offset of these bytes, if this line of `/proc/self/maps` is that of
/// a memfd which has all of them.
fn place_of(line: &str, address: u64, bytes: u64) -> Option<(u64, u64, u64)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = (number(start)?, number(end)?);
    if address < start || address + bytes > end || !words.next()?.ends_with('s') {
        return None;
    }
    let offset = number(words.next()?)?;
    let (major, minor) = words.next()?.split_once(':')?;
    let device = libc::makedev(number(major)? as u32, number(minor)? as u32);
    let inode = words.next()?.parse().ok()?;
    let is_memfd = words.next()?.starts_with("/memfd:");
    is_memfd.then_some((device, inode, offset + address - start))
}

fn is_sealed(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: it only asks; a file that has no seals answers with an error.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}

/// Memory of a peer, mapped here.
#[derive(Debug)]
pub struct Mapped {
    base: *mut u8,
    mapped_bytes: usize,
    /// The registered bytes: their first in the mapping, and their first at the peer.
    first: usize,
    address: u64,
}

// SAFETY: the mapping belongs to the process, and is unmapped once.
unsafe impl Send for Mapped {}

impl Mapped {
    /// Maps what a process has registered; `None` where it cannot be mapped. The caller holds the
    /// lock of a queue pair that reaches the region, so that it stays registered meanwhile.
    pub fn open(process: libc::pid_t, region: &Region) -> Option<Mapped> {
        let fd = region.file.load(Ordering::Relaxed).checked_sub(1)?;
        let at = region.file_at.load(Ordering::Relaxed);
        let path = format!("/proc/{process}/fd/{fd}");
        let file = File::options().read(true).write(true).open(path).ok()?;
        let first = (at % PAGE) as usize;
        let mapped_bytes = first + region.bytes.load(Ordering::Relaxed) as usize;
        // SAFETY: a new mapping of a file that keeps its size.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                (at - first as u64) as libc::off_t,
            )
        };
        (base != libc::MAP_FAILED).then(|| Mapped {
            base: base.cast(),
            mapped_bytes,
            first,
            address: region.address.load(Ordering::Relaxed),
        })
    }

    /// Where bytes lie here that are at this address at the peer. They are inside of the
    /// registration.
    pub fn here(&self, address: u64) -> *mut u8 {
        let offset = self.first + (address - self.address) as usize;
        self.base.wrapping_add(offset)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nothing uses it any more.
        unsafe { libc::munmap(self.base.cast(), self.mapped_bytes) };
    }
}
