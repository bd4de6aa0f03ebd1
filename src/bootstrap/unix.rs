//! Unix sockets in the abstract namespace, between processes of one user. They do not block, and
//! nothing stays on any file system.

use crate::limits::BACKLOG;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

/// Listens by this name.
pub(super) fn listen_at(name: &str) -> std::io::Result<UnixListener> {
    let socket = new_socket()?;
    bind(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Connects to the process that listens by this name. Fails where its queue is full: the caller
/// tries again.
pub(super) fn connect_to(name: &str) -> std::io::Result<UnixStream> {
    let socket = new_socket()?;
    connect(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    Ok(socket.into())
}

/// Whether the process at the other end is this user's.
pub(super) fn is_same_user(stream: &UnixStream) -> bool {
    crate::transport::shm::is_same_user(stream.as_fd()).unwrap_or(false)
}

fn new_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}
