//! Messages that lie in memory of the sender which is not registered: the receiver fetches them out
//! of the sender's address space (`process_vm_readv`, "cross-memory attach"), so that nobody copies
//! them into registered memory first.
//!
//! The kernel names a process by a number, and numbers are used again. So every process that lets
//! itself be read keeps a [`Guard`], a word that its peers know, and each fetch reads that
//! word behind the message in the same call: one call reads one address space. Whether a peer may
//! be read at all is found out by reading its guard when it connects.
//!
//! A sender may take its memory back before it was fetched
//! ([`crate::transport::Transport::withdraw`]), without asking: `recall.rs` says how, for messages
//! in regions too.

use crate::memory::View;
use std::io::{Error, Result};

/// Shorter messages are copied: the call alone takes as long as copying this much.
pub const FETCH_BYTES_MIN: usize = 32 * 1024;

/// Bytes of one call; the kernel reads no more than 2 GiB at once.
const CALL_BYTES_MAX: usize = 1 << 30;

/// Where a process keeps a word that its peers know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    /// Its address there; 0: the process is not to be read.
    pub address: u64,
    pub secret: u64,
}

impl Guard {
    /// This word as the guard of this process, for as long as the word lives.
    pub fn of(word: &u64) -> Guard {
        Guard {
            address: std::ptr::from_ref(word).addr() as u64,
            secret: *word,
        }
    }
}

/// A process whose memory this one may read.
#[derive(Clone, Copy, Debug)]
pub struct Readable {
    process: i32,
    pub(super) guard: Guard,
}

impl Readable {
    /// The process with this number, if it is the one with this guard and may be read.
    pub fn probe(process: i32, guard: Guard) -> Option<Readable> {
        let readable = Readable { process, guard };
        (guard.address != 0 && readable.fetch(0, View::empty()).is_ok()).then_some(readable)
    }

    /// Reads what lies at `address` there.
    pub fn fetch(&self, address: u64, destination: View) -> Result<()> {
        let bytes = destination.len_bytes();
        if address.checked_add(bytes as u64).is_none() {
            return Err(Error::from_raw_os_error(libc::EFAULT));
        }
        let mut done = 0;
        loop {
            let part = destination.part(done, (bytes - done).min(CALL_BYTES_MAX));
            self.fetch_once(address + done as u64, part)?;
            done += part.len_bytes();
            if done == bytes {
                return Ok(());
            }
        }
    }

    fn fetch_once(&self, address: u64, destination: View) -> Result<()> {
        let (bytes, mut secret) = (destination.len_bytes(), 0u64);
        let there = |address: u64, bytes| libc::iovec {
            iov_base: std::ptr::without_provenance_mut(address as usize),
            iov_len: bytes,
        };
        let here = [
            libc::iovec {
                iov_base: destination.as_ptr().cast(),
                iov_len: bytes,
            },
            libc::iovec {
                iov_base: (&raw mut secret).cast(),
                iov_len: size_of::<u64>(),
            },
        ];
        let there = [
            there(address, bytes),
            there(self.guard.address, size_of::<u64>()),
        ];
        // SAFETY: what is written is the destination, mapped for its length (contract of
        // `View::new`), and `secret`. What is read is another process's, or this one's through the
        // kernel, which checks every address.
        let got =
            unsafe { libc::process_vm_readv(self.process, here.as_ptr(), 2, there.as_ptr(), 2, 0) };
        match usize::try_from(got) {
            Err(_) => Err(Error::last_os_error()),
            Ok(got) if got < bytes + size_of::<u64>() => {
                Err(Error::from_raw_os_error(libc::EFAULT))
            }
            // Another process has the number now.
            Ok(_) if secret != self.guard.secret => Err(Error::from_raw_os_error(libc::ESRCH)),
            Ok(_) => Ok(()),
        }
    }
}

/// Reads memory of this process as a peer's would be read, to measure how long that takes.
pub fn fetch_own(source: View, destination: View) -> Result<()> {
    let word = 0x6c69_6e65;
    let readable = Readable {
        process: own_process(),
        guard: Guard::of(&word),
    };
    readable.fetch(source.as_ptr().addr() as u64, destination)
}

pub fn own_process() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// A message in the sender's memory.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub address: u64,
    pub bytes: u64,
    /// Its number among the messages to this rank that lie in the sender's memory.
    pub id: u64,
}
