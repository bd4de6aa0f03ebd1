//! [`Socket`]: a datagram socket whose name any process of the machine can send to.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

/// A datagram socket with a name that the kernel has chosen.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    /// Five bytes of text in the kernel's list of names; 0 is none.
    pub name: u64,
}

/// Where the name begins in an address: after the family, and the zero of names without a file.
const NAME_AT: usize = 3;
const NAME_BYTES: usize = 5;

impl Socket {
    pub fn new() -> io::Result<Socket> {
        let fd = open()?;
        let family = libc::AF_UNIX as libc::sa_family_t;
        let mut address = [0u8; 110];
        address[..2].copy_from_slice(&family.to_ne_bytes());
        // With the family alone, the kernel chooses a name.
        // SAFETY: the address is readable for its length.
        if unsafe { libc::bind(fd.as_raw_fd(), address.as_ptr().cast(), 2) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut bytes = address.len() as libc::socklen_t;
        // SAFETY: the address is writable for its length.
        let status =
            unsafe { libc::getsockname(fd.as_raw_fd(), address.as_mut_ptr().cast(), &mut bytes) };
        if status != 0 || bytes as usize != NAME_AT + NAME_BYTES {
            return Err(io::Error::last_os_error());
        }
        let mut name = [0; 8];
        name[..NAME_BYTES].copy_from_slice(&address[NAME_AT..NAME_AT + NAME_BYTES]);
        Ok(Socket {
            fd,
            name: u64::from_le_bytes(name),
        })
    }

    pub fn raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Takes a datagram; false: there is none.
    pub fn receive(&self, into: &mut [u8]) -> bool {
        let at = into.as_mut_ptr().cast();
        // SAFETY: writable for its length.
        unsafe { libc::recv(self.raw_fd(), at, into.len(), libc::MSG_DONTWAIT) >= 0 }
    }

    /// Throws away what has come.
    pub fn drain(&self) {
        while self.receive(&mut [0]) {}
    }
}

fn open() -> io::Result<OwnedFd> {
    // SAFETY: takes numbers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends to a name. If the receiver's queue is full, it has been woken already; if nobody has the
/// name any more, nobody waits.
pub fn send(name: u64, bytes: &[u8]) {
    static SENDER: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let Some(sender) = SENDER.get_or_init(|| open().ok()) else {
        return;
    };
    if name == 0 {
        return;
    }
    let mut address = [0u8; NAME_AT + NAME_BYTES];
    address[..2].copy_from_slice(&(libc::AF_UNIX as libc::sa_family_t).to_ne_bytes());
    address[NAME_AT..].copy_from_slice(&name.to_le_bytes()[..NAME_BYTES]);
    // SAFETY: both are readable for their lengths.
    unsafe {
        libc::sendto(
            sender.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            address.as_ptr().cast(),
            address.len() as libc::socklen_t,
        )
    };
}
