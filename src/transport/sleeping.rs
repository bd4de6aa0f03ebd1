//! Descriptors that a rank sleeps on.

use crate::error::{Error, Result};
use rustix::event::{EventfdFlags, epoll, eventfd};
use std::os::fd::{BorrowedFd, OwnedFd};

/// A descriptor that is readable while one of these is. Their events carry `token`, and errors say
/// that `what` is waited for.
pub(super) fn readable_with<'a>(
    descriptors: impl IntoIterator<Item = BorrowedFd<'a>>,
    token: u64,
    what: &str,
) -> Result<OwnedFd> {
    let all = epoll::create(epoll::CreateFlags::CLOEXEC)
        .map_err(|e| Error::os("making an epoll descriptor", e))?;
    for descriptor in descriptors {
        let token = epoll::EventData::new_u64(token);
        epoll::add(&all, descriptor, token, epoll::EventFlags::IN)
            .map_err(|e| Error::os(format!("waiting for {what}"), e))?;
    }
    Ok(all)
}

/// An eventfd that never blocks.
pub(super) fn new_eventfd() -> Result<OwnedFd> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    eventfd(0, flags).map_err(|e| Error::os("making an eventfd", e))
}
