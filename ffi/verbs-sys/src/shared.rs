//! [`SharedReceiveQueue`]: receives that several queue pairs take from.

use crate::bindings as c;
use crate::error::{Error, Result};
use crate::library::Kind;
use crate::memory::Pd;
use crate::post::{PostError, ReceiveRequest, post_receives};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

/// Receives that several queue pairs take from.
pub struct SharedReceiveQueue {
    pd: Arc<Pd>,
    raw: NonNull<c::ibv_srq>,
    requests_max: u32,
    segments_max: u32,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for SharedReceiveQueue {}
// SAFETY: the device's part of the library has a lock for each queue.
unsafe impl Sync for SharedReceiveQueue {}

impl SharedReceiveQueue {
    /// Room for `requests` receives of `segments` segments each. Its events carry `token`.
    pub fn create(
        pd: &Arc<Pd>,
        requests: u32,
        segments: u32,
        token: u64,
    ) -> Result<Arc<SharedReceiveQueue>> {
        let library = &pd.context().library;
        let mut attributes = c::ibv_srq_init_attr {
            srq_context: token as *mut c_void,
            attr: c::ibv_srq_attr {
                max_wr: requests,
                max_sge: segments,
                srq_limit: 0,
            },
        };
        // SAFETY: the domain lives, `attributes` is complete and writable; the token is never
        // followed.
        let raw = unsafe { (library.functions.create_srq)(pd.as_ptr(), &mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(|| {
            Error::last(format!(
                "a shared receive queue of {requests} receives of {segments} segments of {}",
                pd.context().name()
            ))
        })?;
        library.note_made(Kind::SharedReceiveQueue);
        Ok(Arc::new(SharedReceiveQueue {
            pd: Arc::clone(pd),
            raw,
            requests_max: attributes.attr.max_wr.max(requests),
            segments_max: attributes.attr.max_sge.max(segments),
        }))
    }

    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    pub(crate) fn as_ptr(&self) -> *mut c::ibv_srq {
        self.raw.as_ptr()
    }

    /// How many receives it has room for, at least as many as were asked for.
    pub fn requests_max(&self) -> u32 {
        self.requests_max
    }

    /// One event `IBV_EVENT_SRQ_LIMIT_REACHED` when fewer than `limit` receives are left; 0: none.
    pub fn set_limit(&self, limit: u32) -> Result<()> {
        let mut attributes = c::ibv_srq_attr {
            srq_limit: limit,
            ..Default::default()
        };
        let mask = c::ibv_srq_attr_mask::IBV_SRQ_LIMIT.0 as i32;
        let modify = self.pd.context().library.functions.modify_srq;
        // SAFETY: the queue lives, and the mask names the one attribute that is set.
        match unsafe { modify(self.raw.as_ptr(), &mut attributes, mask) } {
            0 => Ok(()),
            errno => {
                let name = self.pd.context().name();
                let what = format!("setting a shared receive queue's limit to {limit} on {name}");
                Err(Error::refused(what, errno.abs()))
            }
        }
    }

    /// Posts receives, in this order, with one doorbell for each [`BATCH`](crate::BATCH).
    #[inline]
    pub fn post(&self, requests: &[ReceiveRequest<'_>]) -> std::result::Result<(), PostError> {
        let ops = &self.pd.context().raw().ops;
        let post = ops.post_srq_recv.expect("every device has post_srq_recv");
        post_receives(requests, self.segments_max, |first, bad| {
            // SAFETY: the queue lives; the list is complete, see `post_receives`.
            unsafe { post(self.raw.as_ptr(), first, bad) }
        })
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        let library = &self.pd.context().library;
        library.destroy(Kind::SharedReceiveQueue, self.pd.context().name(), || {
            // SAFETY: made once, destroyed once; queue pairs that took from it held it and are
            // gone.
            unsafe { (library.functions.destroy_srq)(self.raw.as_ptr()) }
        });
    }
}
