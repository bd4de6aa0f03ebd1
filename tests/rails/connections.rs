//! Connections of a process, taken out of it (pidfd_getfd) to be broken.

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

/// One end of a connection.
pub struct Connection {
    /// A descriptor of the same socket.
    pub socket: OwnedFd,
    /// Where it ends in that process.
    pub own: SocketAddr,
    /// And on the other side.
    pub peer: SocketAddr,
}

/// Those that a process has now; none if it has ended.
pub fn of_process(pid: u32) -> Vec<Connection> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
        return Vec::new();
    };
    let names = entries.flatten().map(|e| e.file_name().into_string());
    let numbers: Vec<i32> = names.filter_map(|name| name.ok()?.parse().ok()).collect();
    let Ok(process) = pidfd_open(Pid::from_raw(pid as i32).unwrap(), PidfdFlags::empty()) else {
        return Vec::new();
    };
    let connection = |number: i32| {
        // It may be closed by now, or no connection.
        let socket = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok()?;
        let own = SocketAddr::try_from(rustix::net::getsockname(&socket).ok()?).ok()?;
        let peer = SocketAddr::try_from(rustix::net::getpeername(&socket).ok()??).ok()?;
        Some(Connection { socket, own, peer })
    };
    numbers.into_iter().filter_map(connection).collect()
}

/// Breaks a connection: what is under way on it is lost (`is_abrupt`), or comes before its end.
pub fn cut(socket: &OwnedFd, is_abrupt: bool) {
    // It may be broken already.
    let _ = match is_abrupt {
        true => rustix::net::connect_unspec(socket),
        false => rustix::net::shutdown(socket, rustix::net::Shutdown::Both),
    };
}
