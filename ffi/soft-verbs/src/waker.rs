//! [`Waker`]: a descriptor that is readable when a datagram or a point in time has come.

use crate::socket::Socket;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A descriptor on which C waits.
#[derive(Debug)]
pub struct Waker {
    /// Readable where one of the others is.
    epoll: OwnedFd,
    timer: OwnedFd,
    pub socket: Socket,
}

impl Waker {
    pub fn new() -> io::Result<Waker> {
        let socket = Socket::new()?;
        // SAFETY: take numbers, and give new descriptors that nobody else has, or -1.
        let made = unsafe {
            [
                libc::epoll_create1(libc::EPOLL_CLOEXEC),
                libc::timerfd_create(
                    libc::CLOCK_MONOTONIC,
                    libc::TFD_CLOEXEC | libc::TFD_NONBLOCK,
                ),
            ]
        };
        if made.iter().any(|fd| *fd < 0) {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above.
        let [epoll, timer] = made.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        for fd in [socket.raw_fd(), timer.as_raw_fd()] {
            let mut event = libc::epoll_event {
                events: libc::EPOLLIN as u32,
                u64: 0,
            };
            // SAFETY: three descriptors that are open, and a structure that is complete.
            unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
        }
        Ok(Waker {
            epoll,
            timer,
            socket,
        })
    }

    pub fn raw_fd(&self) -> i32 {
        self.epoll.as_raw_fd()
    }

    /// Waits until it is readable. EAGAIN if C has made the descriptor non-blocking.
    pub fn wait(&self) -> Result<(), i32> {
        // SAFETY: an open descriptor.
        let flags = unsafe { libc::fcntl(self.raw_fd(), libc::F_GETFL) };
        if flags & libc::O_NONBLOCK != 0 {
            return Err(libc::EAGAIN);
        }
        let mut wanted = libc::pollfd {
            fd: self.raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one structure.
        match unsafe { libc::poll(&mut wanted, 1, -1) } {
            -1 => Err(io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EINTR)),
            _ => Ok(()),
        }
    }

    /// Makes it readable at this time, in nanoseconds of the clock; `u64::MAX`: never.
    pub fn set_timer(&self, time: u64) {
        let zero = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let value = match time {
            u64::MAX => zero,
            time => libc::timespec {
                tv_sec: (time / 1_000_000_000) as libc::time_t,
                tv_nsec: (time % 1_000_000_000) as libc::c_long,
            },
        };
        let setting = libc::itimerspec {
            it_interval: zero,
            it_value: value,
        };
        // SAFETY: an open timer and a structure that is complete. Setting it forgets its expiries.
        unsafe {
            libc::timerfd_settime(
                self.timer.as_raw_fd(),
                libc::TFD_TIMER_ABSTIME,
                &setting,
                std::ptr::null_mut(),
            )
        };
    }
}
