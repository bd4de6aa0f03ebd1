//! The control sockets of the shm provider: Unix sequenced-packet sockets in the abstract
//! namespace.
//!
//! They carry what memory cannot: descriptors of regions, and the fact that a peer has gone. Only
//! processes of the same user are let in.

use super::fetch::Guard;
use crate::error::{Error, Result};
use crate::limits::BACKLOG;
use crate::prng::mix;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, connect, listen, recvmsg, sendmsg, socket_with,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// One message; at most one descriptor travels with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketMessage {
    /// First message of both sides, with the sender's segment.
    Hello(Hello),
    /// Second message of a side that sleeps on descriptors: an eventfd to wake it by.
    Alarm,
    /// Last message of both sides before the first post: whether the sender reads memory of the
    /// receiver where it lies.
    Reads(bool),
    /// A region, with its memory: (key, bytes, where it begins there).
    Region(u32, u64, u64),
    /// A region is no longer registered.
    Freed(u32),
    /// The sender leaves in good order, with its user's word.
    Bye(u64),
    /// The sender has no descriptor left for the memory that it was sent, and gives the connection
    /// up.
    Exhausted,
    /// The sender could not read a message in memory of the receiver, and gives the connection up.
    Unreadable,
}

/// Who says hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    pub rank: u32,
    pub ranks: u32,
    pub segment_bytes: u64,
    pub guard: Guard,
    /// [`identity_of`] its address: a slot may have had another process.
    pub identity: u64,
}

/// A number by which a hello says which address is that of its sender. Only processes of one user
/// talk to each other here, so that it need not withstand forgers.
pub fn identity_of(name: &[u8]) -> u64 {
    let add = |sum, &byte: &u8| mix(sum ^ u64::from(byte));
    name.iter().fold(name.len() as u64, add)
}

const MESSAGE_BYTES: usize = 48;

impl SocketMessage {
    fn emit(self) -> [u8; MESSAGE_BYTES] {
        let (kind, a, b, longs): (u32, u32, u32, [u64; 4]) = match self {
            SocketMessage::Hello(hello) => {
                let Guard { address, secret } = hello.guard;
                let longs = [hello.segment_bytes, address, secret, hello.identity];
                (1, hello.rank, hello.ranks, longs)
            }
            SocketMessage::Region(key, bytes, offset) => (2, key, 0, [bytes, offset, 0, 0]),
            SocketMessage::Freed(key) => (3, key, 0, [0; 4]),
            SocketMessage::Bye(word) => (4, 0, 0, [word, 0, 0, 0]),
            SocketMessage::Exhausted => (5, 0, 0, [0; 4]),
            SocketMessage::Unreadable => (7, 0, 0, [0; 4]),
            SocketMessage::Reads(reads) => (6, u32::from(reads), 0, [0; 4]),
            SocketMessage::Alarm => (8, 0, 0, [0; 4]),
        };
        let mut out = [0; MESSAGE_BYTES];
        out[0..4].copy_from_slice(b"LRS4");
        for (place, word) in [(4, kind), (8, a), (12, b)] {
            out[place..place + 4].copy_from_slice(&word.to_le_bytes());
        }
        for (place, word) in [16, 24, 32, 40].into_iter().zip(longs) {
            out[place..place + 8].copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    fn parse(bytes: &[u8]) -> Result<SocketMessage> {
        let malformed = || {
            Error::Malformed(format!(
                "a control message of {} bytes that is none of ours",
                bytes.len()
            ))
        };
        if bytes.len() != MESSAGE_BYTES || &bytes[0..4] != b"LRS4" {
            return Err(malformed());
        }
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let guard = Guard {
            address: long(24),
            secret: long(32),
        };
        Ok(match word(4) {
            1 => SocketMessage::Hello(Hello {
                rank: word(8),
                ranks: word(12),
                segment_bytes: long(16),
                guard,
                identity: long(40),
            }),
            2 => SocketMessage::Region(word(8), long(16), long(24)),
            3 => SocketMessage::Freed(word(8)),
            4 => SocketMessage::Bye(long(16)),
            5 => SocketMessage::Exhausted,
            7 => SocketMessage::Unreadable,
            8 => SocketMessage::Alarm,
            6 => SocketMessage::Reads(word(8) == 1),
            _ => return Err(malformed()),
        })
    }
}

/// What a receive gave.
#[derive(Debug)]
pub enum Received {
    /// A message and its descriptor, if one came along.
    Message(SocketMessage, Option<OwnedFd>),
    /// Nothing yet.
    Nothing,
    /// The other side is gone.
    HungUp,
}

/// A listening socket under an abstract name, which no file system shows and which ends with the
/// process.
pub fn listen_on(name: &[u8]) -> Result<OwnedFd> {
    let what = || {
        format!(
            "listening on the abstract socket {}",
            String::from_utf8_lossy(name)
        )
    };
    let fd = new_socket()?;
    let address = SocketAddrUnix::new_abstract_name(name).map_err(|e| Error::os(what(), e))?;
    bind(&fd, &address).map_err(|e| Error::os(what(), e))?;
    listen(&fd, BACKLOG).map_err(|e| Error::os(what(), e))?;
    Ok(fd)
}

/// What an attempt to connect gave.
#[derive(Debug)]
pub enum Connected {
    /// A connection.
    Open(OwnedFd),
    /// The listener's queue is full: the caller tries again.
    Busy,
    /// Nobody listens under this name (any more).
    Nobody,
}

/// Connects without blocking.
pub fn connect_to(name: &[u8]) -> Result<Connected> {
    let what = || {
        format!(
            "connecting to the abstract socket {}",
            String::from_utf8_lossy(name)
        )
    };
    let fd = new_socket()?;
    let address = SocketAddrUnix::new_abstract_name(name).map_err(|e| Error::os(what(), e))?;
    match connect(&fd, &address) {
        Ok(()) => Ok(Connected::Open(fd)),
        Err(rustix::io::Errno::AGAIN) => Ok(Connected::Busy),
        Err(rustix::io::Errno::CONNREFUSED | rustix::io::Errno::NOENT) => Ok(Connected::Nobody),
        Err(e) => Err(Error::os(what(), e)),
    }
}

/// Accepts one waiting connection of the same user; others are closed at once.
pub fn accept_from(listener: BorrowedFd<'_>) -> Result<Option<OwnedFd>> {
    loop {
        match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(fd) if is_same_user(fd.as_fd())? => return Ok(Some(fd)),
            Ok(_other) => continue,
            Err(rustix::io::Errno::AGAIN) => return Ok(None),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => continue,
            Err(e) => return Err(Error::os("accepting a control connection", e)),
        }
    }
}

/// Whether the process at the other end runs as the same user.
pub fn is_same_user(fd: BorrowedFd<'_>) -> Result<bool> {
    let (user, _) = credentials_of(fd).map_err(|e| Error::os("reading a peer's credentials", e))?;
    Ok(user == rustix::process::geteuid().as_raw())
}

/// User and process at the other end of a Unix socket. For a process of another namespace the
/// kernel gives the number 0, for which rustix has no value.
fn credentials_of(fd: BorrowedFd<'_>) -> rustix::io::Result<(u32, Option<Pid>)> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: writes at most as many bytes as it is told, which are those of a live struct of
    // integers.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &mut bytes,
        )
    };
    if result != 0 {
        let error = std::io::Error::last_os_error();
        return Err(rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO));
    }
    Ok((credentials.uid, Pid::from_raw(credentials.pid)))
}

/// The process at the other end, as a descriptor that becomes readable when it ends. `None` where
/// that cannot be had (an old kernel, another namespace of processes, no descriptor left) or the
/// other end is this process.
pub fn process_of(fd: BorrowedFd<'_>) -> Option<OwnedFd> {
    let pid = process_id_of(fd)?;
    if pid == rustix::process::getpid() {
        return None;
    }
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// The process id of the other end; `None` if it has none in this namespace.
pub fn process_id_of(fd: BorrowedFd<'_>) -> Option<Pid> {
    credentials_of(fd).ok()?.1
}

/// Sends one message; `Ok(false)`: the socket is full, try again. A peer that is gone is found by
/// `receive`.
pub fn send(
    fd: BorrowedFd<'_>,
    message: SocketMessage,
    attached: Option<BorrowedFd<'_>>,
) -> Result<bool> {
    let bytes = message.emit();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let attachments: Vec<BorrowedFd<'_>> = attached.into_iter().collect();
    if !attachments.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&attachments));
    }
    match sendmsg(
        fd,
        &[IoSlice::new(&bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    ) {
        Ok(_) => Ok(true),
        Err(
            rustix::io::Errno::AGAIN | rustix::io::Errno::NOBUFS | rustix::io::Errno::TOOMANYREFS,
        ) => Ok(false),
        Err(
            rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET | rustix::io::Errno::NOTCONN,
        ) => Ok(true),
        Err(e) => Err(Error::os(format!("sending {message:?} to a peer"), e)),
    }
}

/// Receives one message without blocking.
pub fn receive(fd: BorrowedFd<'_>) -> Result<Received> {
    let mut bytes = [0u8; MESSAGE_BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut receive = || {
        recvmsg(
            fd,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    };
    // A peer that closes before it has read everything resets the connection, and the kernel tells
    // that before it gives what the peer had sent.
    let received = match receive() {
        Err(rustix::io::Errno::CONNRESET) => receive(),
        received => received,
    };
    let (got, is_cut) = match received {
        Ok(got) => (got.bytes, got.flags.contains(ReturnFlags::CTRUNC)),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(Received::Nothing),
        Err(rustix::io::Errno::CONNRESET) => return Ok(Received::HungUp),
        Err(e) => return Err(Error::os("receiving from a peer's control socket", e)),
    };
    if got == 0 {
        return Ok(Received::HungUp);
    }
    let mut attached = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            attached = fds.into_iter().next();
        }
    }
    if is_cut && attached.is_none() {
        // The kernel delivers the message and closes a descriptor for which this process has no
        // place.
        let what = "taking a descriptor that a peer has sent";
        return Err(Error::os(what, rustix::io::Errno::MFILE));
    }
    Ok(Received::Message(
        SocketMessage::parse(&bytes[..got])?,
        attached,
    ))
}

fn new_socket() -> Result<OwnedFd> {
    socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(|e| Error::os("opening a Unix socket", e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::Watch;

    fn open(connected: Result<Connected>) -> OwnedFd {
        match connected {
            Ok(Connected::Open(fd)) => fd,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn messages_survive_the_wire_and_nothing_else_does() {
        for message in [
            SocketMessage::Hello(Hello {
                rank: 3,
                ranks: 8,
                segment_bytes: 1 << 40,
                guard: Guard {
                    address: 1 << 46,
                    secret: u64::MAX,
                },
                identity: identity_of(b"a name"),
            }),
            SocketMessage::Unreadable,
            SocketMessage::Reads(true),
            SocketMessage::Reads(false),
            SocketMessage::Region(7, 4096, 1 << 40),
            SocketMessage::Freed(9),
            SocketMessage::Bye(u64::MAX),
            SocketMessage::Exhausted,
        ] {
            assert_eq!(SocketMessage::parse(&message.emit()).unwrap(), message);
        }
        let mut bad = SocketMessage::Bye(1).emit();
        bad[4] = 77;
        assert!(SocketMessage::parse(&bad).is_err());
        assert!(SocketMessage::parse(&bad[..10]).is_err());
        assert!(SocketMessage::parse(b"").is_err());
    }

    #[test]
    fn a_descriptor_travels_and_a_close_is_seen() {
        let name = format!("linerate-test-{}-socket", std::process::id());
        let listener = listen_on(name.as_bytes()).unwrap();
        let client = open(connect_to(name.as_bytes()));
        let server = accept_from(listener.as_fd()).unwrap().unwrap();
        assert!(matches!(
            receive(server.as_fd()).unwrap(),
            Received::Nothing
        ));
        assert!(
            send(
                client.as_fd(),
                SocketMessage::Region(1, 2, 3),
                Some(listener.as_fd())
            )
            .unwrap()
        );
        let Received::Message(message, attached) = receive(server.as_fd()).unwrap() else {
            panic!("no message")
        };
        assert_eq!(message, SocketMessage::Region(1, 2, 3));
        assert!(attached.is_some());
        drop(client);
        assert!(matches!(receive(server.as_fd()).unwrap(), Received::HungUp));
    }

    #[test]
    fn what_a_peer_said_before_it_closed_is_heard() {
        let name = format!("linerate-test-{}-reset", std::process::id());
        let listener = listen_on(name.as_bytes()).unwrap();
        let client = open(connect_to(name.as_bytes()));
        let server = accept_from(listener.as_fd()).unwrap().unwrap();
        send(server.as_fd(), SocketMessage::Freed(3), None).unwrap();
        send(client.as_fd(), SocketMessage::Bye(7), None).unwrap();
        drop(client);
        let first = receive(server.as_fd()).unwrap();
        assert!(
            matches!(first, Received::Message(SocketMessage::Bye(7), None)),
            "{first:?}"
        );
        assert!(matches!(receive(server.as_fd()).unwrap(), Received::HungUp));
    }

    #[test]
    fn a_name_that_nobody_listens_under_is_told_from_a_full_queue() {
        let nobody = connect_to(b"linerate-test-nobody-listens-here").unwrap();
        assert!(matches!(nobody, Connected::Nobody), "{nobody:?}");
    }

    #[test]
    fn the_end_of_a_process_is_seen_although_a_copy_of_its_socket_lives() {
        let name = format!("linerate-test-{}-ended", std::process::id());
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let mut watch = Watch::new().unwrap();
        watch.add(&process, 0).unwrap();
        assert_eq!(watch.look(), 0);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(watch.look(), 1);
        let listener = listen_on(name.as_bytes()).unwrap();
        let client = open(connect_to(name.as_bytes()));
        assert!(
            process_of(client.as_fd()).is_none(),
            "this process needs no watch"
        );
        drop(listener);
    }
}
