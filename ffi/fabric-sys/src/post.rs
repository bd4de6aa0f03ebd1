//! Operations: what is asked of an endpoint, checked here, so that safe code can post it.
//!
//! Nothing is allocated. Each operation takes a context of its completion queue, which holds the
//! region and the peer that it names until its completion is polled.

use crate::address::Peer;
use crate::bindings as c;
use crate::completion::CompletionQueue;
use crate::contexts::{Operation, Pending};
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::later::FI_ADDR_UNSPEC;
use crate::memory::{Mr, Place, Segment};
use crate::raw::{FI_COMPLETION, FI_MORE, FI_READ, FI_REMOTE_CQ_DATA, FI_WRITE};
use libc::ssize_t;
use std::ffi::c_void;
use std::sync::Arc;

/// Bytes of the number that comes with a write.
const DATA_BYTES: usize = size_of::<u32>();

/// What became of an attempt to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a busy endpoint has not taken the operation"]
pub enum Posted {
    /// The operation is under way, and its completion will come.
    Started,
    /// There is no room for it now. Poll the completion queue and try again.
    Busy,
}

/// A write to a peer's memory.
#[derive(Clone, Copy)]
pub struct Write<'a> {
    /// Comes back in the completion.
    pub id: u64,
    /// The bytes, of a region that was registered for `FI_WRITE`. The provider reads them any time
    /// until the completion.
    pub source: Segment<'a>,
    /// The peer.
    pub peer: &'a Arc<Peer>,
    /// Where they go.
    pub place: Place,
    /// With a number the write completes at the peer too. It takes a receive there if the domain
    /// has the [`mode`](crate::Info::mode) `FI_RX_CQ_DATA`.
    pub data: Option<u32>,
    /// Whether another operation follows at once, so that the provider may wait for that before it
    /// tells the device. Operations may not begin before one is posted without this, so a program
    /// that sets it keeps room for the last one: polling gives no room before that one is posted.
    pub is_more: bool,
}

/// A read of a peer's memory.
#[derive(Clone, Copy)]
pub struct Read<'a> {
    /// Comes back in the completion.
    pub id: u64,
    /// Where the bytes go, in a region that was registered for `FI_READ`. The provider writes them
    /// any time until the completion.
    pub destination: Segment<'a>,
    /// The peer.
    pub peer: &'a Arc<Peer>,
    /// Where they are.
    pub place: Place,
    /// As in [`Write`].
    pub is_more: bool,
}

impl Endpoint {
    /// Posts a write. What the provider would not survive is refused as [`Error::Invalid`], with
    /// nothing posted.
    #[inline]
    pub fn post_write(&self, write: &Write<'_>) -> Result<Posted> {
        self.check(Operation::Write, &write.source, write.peer, FI_WRITE)?;
        if write.data.is_some() && self.limits.data_bytes < DATA_BYTES {
            return Err(
                self.wrong("a write with a number of 32 bits: the provider has not as many")
            );
        }
        let ops = self.rma()?;
        let pending = pending(
            write.id,
            Operation::Write,
            write.source.region(),
            write.peer,
        );
        let queue = &self.parts().transmit_queue;
        self.post(queue, pending, |context| {
            let (address, bytes) = (write.source.as_ptr(), write.source.len_bytes());
            let (descriptor, peer) = (write.source.descriptor(), write.peer.number());
            let Place {
                address: remote,
                key,
            } = write.place;
            if write.is_more {
                let (data, with_data) = match write.data {
                    Some(data) => (u64::from(data), FI_REMOTE_CQ_DATA),
                    None => (0, 0),
                };
                let message = Message {
                    local: write.source,
                    peer,
                    place: write.place,
                    data,
                };
                return message.post(self, ops.writemsg, context, with_data);
            }
            let endpoint = self.as_ptr();
            match (write.data, ops.write, ops.writedata) {
                // SAFETY: the endpoint lives. The segment lies inside of a region of its domain,
                // which the context holds, as it holds the peer. What the place names is checked at
                // the peer.
                (None, Some(post), _) => unsafe {
                    post(
                        endpoint, address, bytes, descriptor, peer, remote, key, context,
                    )
                },
                // SAFETY: as above.
                (Some(data), _, Some(post)) => unsafe {
                    let data = u64::from(data);
                    post(
                        endpoint, address, bytes, descriptor, data, peer, remote, key, context,
                    )
                },
                _ => UNKNOWN,
            }
        })
    }

    /// Posts a read, and otherwise as [`post_write`](Endpoint::post_write).
    #[inline]
    pub fn post_read(&self, read: &Read<'_>) -> Result<Posted> {
        self.check(Operation::Read, &read.destination, read.peer, FI_READ)?;
        let ops = self.rma()?;
        let pending = pending(
            read.id,
            Operation::Read,
            read.destination.region(),
            read.peer,
        );
        let queue = &self.parts().transmit_queue;
        self.post(queue, pending, |context| {
            let (local, peer, place) = (read.destination, read.peer.number(), read.place);
            if read.is_more {
                let message = Message {
                    local,
                    peer,
                    place,
                    data: 0,
                };
                return message.post(self, ops.readmsg, context, 0);
            }
            let Some(post) = ops.read else {
                return UNKNOWN;
            };
            let (address, bytes, descriptor) =
                (local.as_ptr(), local.len_bytes(), local.descriptor());
            // SAFETY: as in `post_write`.
            unsafe {
                post(
                    self.as_ptr(),
                    address,
                    bytes,
                    descriptor,
                    peer,
                    place.address,
                    place.key,
                    context,
                )
            }
        })
    }

    /// Posts a receive without memory: one peer's write with a number takes it, if the domain has
    /// the [`mode`](crate::Info::mode) `FI_RX_CQ_DATA`. `id` comes back in the completion.
    #[inline]
    pub fn post_receive(&self, id: u64) -> Result<Posted> {
        // SAFETY: an open endpoint has its tables, or null.
        let ops = unsafe { (*self.as_ptr()).msg.as_ref() };
        let receive = ops.and_then(|ops| ops.recv);
        let receive = receive.ok_or_else(|| self.wrong("a receive: there are none"))?;
        let pending = Pending {
            id,
            operation: Operation::Receive,
            _region: None,
            _peer: None,
        };
        let queue = &self.parts().receive_queue;
        self.post(queue, pending, |context| {
            let nothing = std::ptr::null_mut();
            // SAFETY: the endpoint lives, and the receive has no memory.
            unsafe { receive(self.as_ptr(), nothing, 0, nothing, FI_ADDR_UNSPEC, context) }
        })
    }

    /// Checks what providers rely on without checking it: they follow the pointers behind regions
    /// and peers.
    #[inline]
    fn check(
        &self,
        operation: Operation,
        local: &Segment<'_>,
        peer: &Peer,
        access: u64,
    ) -> Result<()> {
        let region = local.region();
        let is_own =
            Arc::ptr_eq(region.domain(), self.domain()) && peer.is_of(&self.parts().addresses);
        let is_allowed = region.allows(access);
        let is_short = local.len_bytes() <= self.limits.message_bytes_max;
        if is_own && is_allowed && is_short {
            return Ok(());
        }
        let why = match (is_own, is_allowed) {
            (false, _) => "its region or peer belongs to another domain or vector".to_owned(),
            (_, false) => "its region was not registered for that".to_owned(),
            _ => format!("at most {} bytes", self.limits.message_bytes_max),
        };
        let bytes = local.len_bytes();
        Err(self.wrong(&format!("a {operation:?} of {bytes} bytes: {why}")))
    }

    #[cold]
    fn wrong(&self, what: &str) -> Error {
        Error::Invalid(format!("{}: {what}", self.domain().name()))
    }

    #[inline]
    fn rma(&self) -> Result<&c::fi_ops_rma> {
        // SAFETY: an open endpoint has its tables, or null.
        let ops = unsafe { (*self.as_ptr()).rma.as_ref() };
        ops.ok_or_else(|| self.wrong("a write or read: there are none"))
    }

    /// Takes a context and posts with it by `post`, which gives an error number.
    #[inline]
    fn post(
        &self,
        queue: &CompletionQueue,
        pending: Pending,
        post: impl FnOnce(*mut c_void) -> ssize_t,
    ) -> Result<Posted> {
        let operation = pending.operation;
        let Some(context) = queue.start(pending) else {
            return Ok(Posted::Busy);
        };
        let guard = self.domain().guard();
        let status = post(context);
        drop(guard);
        if status == 0 {
            return Ok(Posted::Started);
        }
        // The provider has not taken it, so no completion will come.
        let _pending = queue.end(context);
        match -status as i32 {
            libc::EAGAIN => Ok(Posted::Busy),
            code => {
                let what = format!("posting a {operation:?} of {}", self.domain().name());
                Err(self.domain().library().refused(what, code))
            }
        }
    }
}

/// What a table without the function answers.
const UNKNOWN: ssize_t = -(libc::ENOSYS as ssize_t);

/// A function of an endpoint's table.
type PostMessage = unsafe extern "C" fn(*mut c::fid_ep, *const c::fi_msg_rma, u64) -> ssize_t;

#[inline]
fn pending(id: u64, operation: Operation, region: &Arc<Mr>, peer: &Arc<Peer>) -> Pending {
    Pending {
        id,
        operation,
        _region: Some(Arc::clone(region)),
        _peer: Some(Arc::clone(peer)),
    }
}

/// An operation in the form that takes flags.
struct Message<'a> {
    local: Segment<'a>,
    peer: u64,
    place: Place,
    data: u64,
}

impl Message<'_> {
    /// Posts it as one that another follows; gives an error number.
    #[inline]
    fn post(
        &self,
        endpoint: &Endpoint,
        post: Option<PostMessage>,
        context: *mut c_void,
        flags: u64,
    ) -> ssize_t {
        let Some(post) = post else {
            return UNKNOWN;
        };
        let piece = libc::iovec {
            iov_base: self.local.as_ptr(),
            iov_len: self.local.len_bytes(),
        };
        let mut descriptor = self.local.descriptor();
        let remote = c::fi_rma_iov {
            addr: self.place.address,
            len: self.local.len_bytes(),
            key: self.place.key,
        };
        let message = c::fi_msg_rma {
            msg_iov: &piece,
            desc: &mut descriptor,
            iov_count: 1,
            addr: self.peer,
            rma_iov: &remote,
            rma_iov_count: 1,
            context,
            data: self.data,
        };
        // These flags stand in the place of the endpoint's.
        let flags = flags | FI_MORE | FI_COMPLETION | endpoint.limits.op_flags;
        // SAFETY: as in `post_write`; the lists are borrowed for the call.
        unsafe { post(endpoint.as_ptr(), &message, flags) }
    }
}
