//! The system calls of the `tcp` provider: non-blocking, vectored, straight between sockets and
//! registered memory.

use crate::error::{Error, Result};
use crate::limits::BACKLOG;
use crate::memory::View;
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, send, socket_with};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The kernel probes a connection that is idle for this long, and then this often. It is lost after
/// this many probes in vain.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(2);
const KEEPALIVE_LOOKS: u32 = 3;

/// Where received bytes go first.
#[derive(Debug)]
pub enum Target<'a> {
    /// Straight into the memory of a receive, a put or a get.
    View(View),
    /// Into a buffer of the provider.
    Bytes(&'a mut [u8]),
}

/// Listens on a free port of this address.
pub fn listen(ip: IpAddr) -> Result<TcpListener> {
    let what = || format!("listening for ranks on {ip}");
    let listener = TcpListener::bind((ip, 0)).map_err(|e| match Errno::from_io_error(&e) {
        Some(Errno::ADDRINUSE) => Error::Exhausted {
            what: what(),
            limit: e.to_string(),
            remedy: "every port that the system gives out is in use: widen net.ipv4.ip_local_port_range, or end what holds them (`ss -tan`)".into(),
        },
        _ => Error::os(what(), e),
    })?;
    listener
        .set_nonblocking(true)
        .map_err(|e| Error::os(what(), e))?;
    // The standard library listens with 128 places, and all ranks may come at once.
    rustix::net::listen(&listener, BACKLOG).map_err(|e| Error::os(what(), e))?;
    Ok(listener)
}

/// Options of sockets that the kernel has refused. They are told once, since rails work without.
#[derive(Debug, Default)]
pub struct Refused {
    found: Vec<(&'static str, Errno)>,
    is_told: bool,
}

impl Refused {
    fn note(&mut self, name: &'static str, outcome: rustix::io::Result<()>) {
        self.found.extend(outcome.err().map(|error| (name, error)));
    }

    /// The text about options that were refused, once.
    pub fn take_text(&mut self) -> Option<String> {
        let found = std::mem::take(&mut self.found);
        if found.is_empty() || std::mem::replace(&mut self.is_told, true) {
            return None;
        }
        let found = found
            .iter()
            .map(|(name, error)| format!("{name} ({error})"));
        let found: Vec<String> = found.collect();
        Some(format!(
            "the kernel refuses options of connections, which work without: {}",
            found.join(", ")
        ))
    }
}

/// Begins to connect; the socket becomes writable when that is over.
pub fn connect(
    to: SocketAddr,
    timeout: Duration,
    refused: &mut Refused,
) -> rustix::io::Result<OwnedFd> {
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    prepare(socket.as_fd(), to.ip(), timeout, refused);
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// Whether this is an address of this host, by the route to it. To a second address in one network
/// the kernel sends from the first, and the answer is no.
pub fn is_own(ip: IpAddr) -> bool {
    let any: IpAddr = match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Connecting a socket of UDP sends nothing; it chooses the source address.
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((ip, 1))?;
        socket.local_addr()
    });
    ip.is_loopback() || source.is_ok_and(|source| source.ip() == ip)
}

/// Sets what a rail needs: small frames leave at once, and the kernel finds out about a peer that
/// is gone without a word. Buffers are left to the kernel (net.ipv4.tcp_rmem, tcp_wmem), which lets
/// them grow with the path. With 4 MiB each, 1 MiB both ways over loopback takes more than twice as
/// long, because the bytes leave the caches on their way. A rail works without any of the options.
pub fn prepare(socket: BorrowedFd<'_>, peer: IpAddr, timeout: Duration, refused: &mut Refused) {
    if peer.is_loopback() {
        // Nothing is congested there, and a kernel that paces packets (bbr) waits for timers.
        let congestion = sockopt::set_tcp_congestion(socket, "reno");
        refused.note("TCP_CONGESTION=reno", congestion);
    }
    let silence_ms = timeout.as_millis().min(1 << 30) as u32;
    let keepidle = sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE);
    let keepintvl = sockopt::set_tcp_keepintvl(socket, KEEPALIVE_EVERY);
    let keepcnt = sockopt::set_tcp_keepcnt(socket, KEEPALIVE_LOOKS);
    let user_timeout = sockopt::set_tcp_user_timeout(socket, silence_ms);
    for (name, outcome) in [
        ("TCP_NODELAY", sockopt::set_tcp_nodelay(socket, true)),
        ("SO_KEEPALIVE", sockopt::set_socket_keepalive(socket, true)),
        ("TCP_KEEPIDLE", keepidle),
        ("TCP_KEEPINTVL", keepintvl),
        ("TCP_KEEPCNT", keepcnt),
        ("TCP_USER_TIMEOUT", user_timeout),
    ] {
        refused.note(name, outcome);
    }
}

/// Sends these bytes, one after the other, as far as there is room.
#[inline]
pub fn send_parts(
    socket: BorrowedFd<'_>,
    first: &[u8],
    second: &[u8],
    view: View,
) -> rustix::io::Result<usize> {
    let part = |bytes: &[u8]| libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut parts = [
        part(first),
        part(second),
        libc::iovec {
            iov_base: view.as_ptr().cast(),
            iov_len: view.len_bytes(),
        },
    ];
    // SAFETY: an all-zero msghdr is a valid empty one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the parts are live slices and a view, which is mapped until its operation ends; the
    // call only reads them.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &message, flags) };
    checked(sent)
}

/// Sends bytes of a chunk that the kernel keeps instead of copying them.
pub fn send_zerocopy(socket: BorrowedFd<'_>, view: View) -> rustix::io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_ZEROCOPY;
    // SAFETY: the view is mapped until its operation ends, which is not before the peer has all of
    // it; the kernel holds the pages themselves for as long as it needs them, and reads only.
    let sent = unsafe {
        libc::send(
            socket.as_raw_fd(),
            view.as_ptr().cast(),
            view.len_bytes(),
            flags,
        )
    };
    checked(sent)
}

/// Receives into the target and, what is more than fits there, into `buffer`.
pub fn receive(
    socket: BorrowedFd<'_>,
    target: Target<'_>,
    buffer: &mut [u8],
) -> rustix::io::Result<usize> {
    let (address, bytes) = match target {
        Target::View(view) => (view.as_ptr(), view.len_bytes()),
        Target::Bytes(bytes) => (bytes.as_mut_ptr(), bytes.len()),
    };
    let parts = [
        libc::iovec {
            iov_base: address.cast(),
            iov_len: bytes,
        },
        libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        },
    ];
    // SAFETY: a live slice or a view that is mapped until its operation ends, and a live slice;
    // both are written up to their lengths only, and no reference to a view's bytes exists
    // (contract of `View::new`).
    let received = unsafe { libc::readv(socket.as_raw_fd(), parts.as_ptr(), 2) };
    checked(received)
}

/// Receives into a buffer.
#[inline]
pub fn receive_plain(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> rustix::io::Result<usize> {
    recv(socket, buffer, RecvFlags::DONTWAIT).map(|(received, _)| received)
}

/// Sends as much of this as there is room for.
pub fn send_some(socket: BorrowedFd<'_>, bytes: &[u8]) -> rustix::io::Result<usize> {
    let flags = rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT;
    send(socket, bytes, flags)
}

/// Sends a short message whole, or not at all.
pub fn send_whole(socket: BorrowedFd<'_>, bytes: &[u8]) -> rustix::io::Result<()> {
    match send_some(socket, bytes)? {
        sent if sent == bytes.len() => Ok(()),
        _ => Err(Errno::NOBUFS),
    }
}

/// Bytes that the peer's kernel has not acknowledged.
pub fn unacknowledged_bytes(socket: BorrowedFd<'_>) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: writes one integer, which is live.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &mut bytes) };
    if result == 0 { bytes as usize } else { 0 }
}

fn checked(result: isize) -> rustix::io::Result<usize> {
    usize::try_from(result).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_host_are_known_from_others() {
        for own in ["127.0.0.1", "127.1.2.3", "::1"] {
            assert!(is_own(own.parse().unwrap()), "{own}");
        }
        for other in ["192.0.2.1", "2001:db8::1"] {
            assert!(!is_own(other.parse().unwrap()), "{other}");
        }
    }

    #[test]
    fn options_that_the_kernel_refuses_are_told_once_by_name() {
        let mut refused = Refused::default();
        let place = IpAddr::from([127, 0, 0, 1]);
        let tcp = TcpListener::bind((place, 0)).unwrap();
        prepare(tcp.as_fd(), place, Duration::from_secs(20), &mut refused);
        // A kernel may have no reno.
        let text = refused.take_text().unwrap_or_default();
        assert!(!text.contains("TCP_NODELAY"), "{text}");
        let mut refused = Refused::default();
        assert_eq!(refused.take_text(), None);
        let other = std::net::UdpSocket::bind((place, 0)).unwrap();
        prepare(other.as_fd(), place, Duration::from_secs(20), &mut refused);
        let text = refused.take_text().unwrap();
        let named = [
            "TCP_CONGESTION=reno (",
            "TCP_NODELAY (",
            "TCP_USER_TIMEOUT (",
        ];
        assert!(named.iter().all(|name| text.contains(name)), "{text}");
        assert!(!text.contains("SO_KEEPALIVE"), "{text}");
        prepare(other.as_fd(), place, Duration::from_secs(20), &mut refused);
        assert_eq!(refused.take_text(), None);
    }
}
