//! Sending without a copy (MSG_ZEROCOPY, Linux `Documentation/networking/msg_zerocopy.rst`): the
//! kernel keeps the pages of a chunk until the other side has them, and says so in the error queue
//! of the socket.
//!
//! No operation waits for these notices: a chunk ends with the peer's acknowledgement, after which
//! the peer reads nothing more of it, even if the kernel sends it again. The notices tell whether
//! the kernel has made a copy after all, as it does for loopback, where that costs more than an
//! ordinary one; then the rail sends its chunks with copies. They also tell which rails have to be
//! cut where memory is taken back (`peer/withdrawal.rs`).

use std::os::fd::{AsRawFd, BorrowedFd};

/// Pinning pages costs more than copying what is shorter (the kernel's documentation says 10 KB;
/// chunks are cut longer).
pub const BYTES_MIN: usize = 32 * 1024;
/// Notices read at once; each may stand for many sends.
const NOTICES_MAX: usize = 16;
/// SO_EE_ORIGIN_ZEROCOPY and SO_EE_CODE_ZEROCOPY_COPIED of linux/errqueue.h.
const ORIGIN_ZEROCOPY: u8 = 5;
const CODE_COPIED: u8 = 1;

/// How a rail sends the bytes of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zerocopy {
    is_on: bool,
    /// Sends of which no notice has come.
    pending: u32,
}

/// What the kernel has said of sends without a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Notices {
    sends: u32,
    is_copied: bool,
}

impl Zerocopy {
    /// Sends without a copy, if the kernel can do that.
    pub fn new(socket: BorrowedFd<'_>) -> Zerocopy {
        let on: libc::c_int = 1;
        // SAFETY: reads one integer, which is live.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ZEROCOPY,
                (&raw const on).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        Zerocopy {
            is_on: result == 0,
            pending: 0,
        }
    }

    /// Never sends without a copy.
    pub fn off() -> Zerocopy {
        Zerocopy {
            is_on: false,
            pending: 0,
        }
    }

    /// Whether this many bytes go without a copy.
    #[inline]
    pub fn is_for(&self, bytes: usize) -> bool {
        self.is_on && bytes >= BYTES_MIN
    }

    /// The kernel has taken bytes without a copy.
    pub fn note_sent(&mut self) {
        self.pending += 1;
    }

    /// Reads what the kernel says; true if the rail copies from now on.
    #[inline]
    pub fn look(&mut self, socket: BorrowedFd<'_>) -> bool {
        self.pending > 0 && self.look_now(socket)
    }

    /// Whether the kernel still has pages that it was given. Reads all that it says.
    pub fn is_holding(&mut self, socket: BorrowedFd<'_>) -> bool {
        let mut before = self.pending + 1;
        while self.pending < before {
            before = self.pending;
            self.look(socket);
        }
        self.pending > 0
    }

    fn look_now(&mut self, socket: BorrowedFd<'_>) -> bool {
        let notices = read_notices(socket);
        self.pending = self.pending.saturating_sub(notices.sends);
        notices.is_copied && std::mem::take(&mut self.is_on)
    }
}

fn read_notices(socket: BorrowedFd<'_>) -> Notices {
    let mut notices = Notices::default();
    for _ in 0..NOTICES_MAX {
        // Room for one notice and the address that comes with it, aligned as control messages are.
        let mut control = [0u64; 16];
        // SAFETY: an all-zero msghdr is a valid empty one.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: there is no buffer for data, and the one for control messages is live and as long
        // as it says.
        if unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, flags) } < 0 {
            break;
        }
        // SAFETY: the kernel has filled the control buffer, and its length is that of what is
        // valid.
        let first = unsafe { libc::CMSG_FIRSTHDR(&message) };
        if first.is_null() {
            break;
        }
        // SAFETY: a header that CMSG_FIRSTHDR gives lies whole inside the control buffer.
        let header = unsafe { first.read_unaligned() };
        let kind = (header.cmsg_level, header.cmsg_type);
        let is_error = kind == (libc::SOL_IP, libc::IP_RECVERR)
            || kind == (libc::SOL_IPV6, libc::IPV6_RECVERR);
        let bytes = size_of::<libc::cmsghdr>() + size_of::<libc::sock_extended_err>();
        if !is_error || (header.cmsg_len as usize) < bytes {
            continue;
        }
        // SAFETY: the length of the message says that the error is there; it need not be aligned.
        let error: libc::sock_extended_err = unsafe {
            libc::CMSG_DATA(first)
                .cast::<libc::sock_extended_err>()
                .read_unaligned()
        };
        if error.ee_origin == ORIGIN_ZEROCOPY {
            // The first and the last send that it is about.
            notices.sends += error.ee_data.wrapping_sub(error.ee_info).wrapping_add(1);
            notices.is_copied |= error.ee_code & CODE_COPIED != 0;
        }
    }
    notices
}

#[cfg(test)]
mod tests {
    use super::super::socket;
    use super::*;
    use crate::kernel;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    #[test]
    fn a_rail_over_loopback_finds_that_its_bytes_are_copied_and_goes_on_as_ever() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut into, _) = listener.accept().unwrap();
        let mut zerocopy = Zerocopy::new(out.as_fd());
        if !zerocopy.is_for(BYTES_MIN) {
            return println!("skipped: this kernel has no SO_ZEROCOPY");
        }
        assert!(!zerocopy.is_for(BYTES_MIN - 1));
        let region = crate::memory::Region::private(BYTES_MIN).unwrap();
        kernel::fill(region.view(), 0xab);
        let mut got = vec![0u8; BYTES_MIN];
        let sent = socket::send_zerocopy(out.as_fd(), region.view());
        zerocopy.note_sent();
        into.read_exact(&mut got[..sent.unwrap()]).unwrap();
        assert!(got.iter().take(100).all(|&byte| byte == 0xab));
        (&out).write_all(b"more").unwrap();
        let mut looks = 0..1_000_000;
        assert!(looks.any(|_| zerocopy.look(out.as_fd())), "no notice");
        assert!(!zerocopy.is_for(1 << 20));
        assert!(!zerocopy.look(out.as_fd()));
    }
}
