//! [`QueuePair`]: one end of a connection.

use crate::address::Route;
use crate::bindings as c;
use crate::completion::CompletionQueue;
use crate::device::Context;
use crate::error::{Error, Result};
use crate::library::Kind;
use crate::memory::Pd;
use crate::post::{Limits, PostError, ReceiveRequest, SendRequest, post_receives, post_sends};
use crate::shared::SharedReceiveQueue;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

/// What a queue pair is made of.
pub struct QueuePairOptions<'a> {
    /// Reliable (`IBV_QPT_RC`), unreliable (`UC`) or datagrams (`UD`).
    pub kind: c::ibv_qp_type,
    /// Where its sends complete.
    pub send_queue: &'a Arc<CompletionQueue>,
    /// Where its receives complete.
    pub receive_queue: &'a Arc<CompletionQueue>,
    /// Where it takes receives from, if not from a queue of its own.
    pub shared_receives: Option<&'a Arc<SharedReceiveQueue>>,
    /// Work requests, segments and inline bytes that it has room for, at least.
    pub capacity: c::ibv_qp_cap,
    /// Whether every send makes a completion.
    pub is_all_signaled: bool,
}

/// What the own end has to know of the peer's to receive.
#[derive(Clone, Copy, Debug)]
pub struct RemoteEnd {
    /// The number of its queue pair.
    pub queue_pair: u32,
    /// The number of the first packet that it sends.
    pub packet_number: u32,
    /// The smaller of both ports' MTUs.
    pub mtu: c::ibv_mtu,
    /// The way there.
    pub route: Route,
    /// Reads and atomics of the peer that this device works on at once.
    pub reads_max: u8,
    /// How long the peer waits when no receive is posted, as the specification codes it (12: 0.64
    /// ms).
    pub no_receive_timer: u8,
}

/// What the own end has to know to send.
#[derive(Clone, Copy, Debug)]
pub struct Sending {
    /// The number of the first packet that it sends.
    pub packet_number: u32,
    /// Reads and atomics under way at once; at most the peer's `reads_max`.
    pub reads_max: u8,
    /// How long it waits for an acknowledgement: 4.096 us * 2^timeout; 0: for ever.
    pub timeout: u8,
    /// How often it sends again, at most 7.
    pub retries: u8,
    /// How often it tries again where no receive is posted; 7: for ever.
    pub no_receive_retries: u8,
}

/// One end of a connection, or an end for datagrams, which have no connection.
pub struct QueuePair {
    pd: Arc<Pd>,
    raw: NonNull<c::ibv_qp>,
    is_datagram: bool,
    capacity: c::ibv_qp_cap,
    _send_queue: Arc<CompletionQueue>,
    _receive_queue: Arc<CompletionQueue>,
    shared_receives: Option<Arc<SharedReceiveQueue>>,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for QueuePair {}
// SAFETY: the device's part of the library has a lock for each of its queues.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// A new pair, in the state RESET.
    pub fn create(pd: &Arc<Pd>, options: &QueuePairOptions<'_>) -> Result<QueuePair> {
        use c::ibv_qp_type as kind;
        let asked = options.capacity;
        let what = || format!("a queue pair of {} with {asked:?}", pd.context().name());
        let kinds = [kind::IBV_QPT_RC, kind::IBV_QPT_UC, kind::IBV_QPT_UD];
        if !kinds.contains(&options.kind) {
            return Err(Error::Invalid(format!("{}: only RC, UC and UD", what())));
        }
        let is_own = |other: &Arc<Context>| Arc::ptr_eq(other, pd.context());
        let shared = options.shared_receives;
        if !is_own(options.send_queue.context())
            || !is_own(options.receive_queue.context())
            || shared.is_some_and(|shared| !Arc::ptr_eq(shared.pd(), pd))
        {
            return Err(Error::Invalid(format!(
                "{}: its queues belong to another device or domain",
                what()
            )));
        }
        let mut attributes = c::ibv_qp_init_attr {
            qp_context: std::ptr::null_mut::<c_void>(),
            send_cq: options.send_queue.as_ptr(),
            recv_cq: options.receive_queue.as_ptr(),
            srq: shared.map_or(std::ptr::null_mut(), |shared| shared.as_ptr()),
            cap: asked,
            qp_type: options.kind,
            sq_sig_all: i32::from(options.is_all_signaled),
        };
        let library = &pd.context().library;
        // SAFETY: the domain and the queues live and belong together, and `attributes` is complete
        // and writable.
        let raw = unsafe { (library.functions.create_qp)(pd.as_ptr(), &mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(what()))?;
        library.note_made(Kind::QueuePair);
        Ok(QueuePair {
            pd: Arc::clone(pd),
            raw,
            is_datagram: options.kind == kind::IBV_QPT_UD,
            capacity: attributes.cap,
            _send_queue: Arc::clone(options.send_queue),
            _receive_queue: Arc::clone(options.receive_queue),
            shared_receives: shared.map(Arc::clone),
        })
    }

    /// Its number, which peers and completions name it by.
    pub fn number(&self) -> u32 {
        // SAFETY: lives until Drop; the number never changes.
        unsafe { (&raw const (*self.raw.as_ptr()).qp_num).read() }
    }

    /// Its capacity, at least what was asked for.
    pub fn capacity(&self) -> &c::ibv_qp_cap {
        &self.capacity
    }

    /// How many bytes may be inline.
    pub fn inline_bytes_max(&self) -> u32 {
        self.capacity.max_inline_data
    }

    /// RESET to INIT: `port` is counted from 1, and `access` says what peers may do in registered
    /// memory through it.
    pub fn to_init(&self, port: u8, access: c::ibv_access_flags) -> Result<()> {
        use c::ibv_qp_attr_mask as mask;
        let attributes = c::ibv_qp_attr {
            qp_state: c::ibv_qp_state::IBV_QPS_INIT,
            pkey_index: 0,
            port_num: port,
            qp_access_flags: access.0,
            ..Default::default()
        };
        let which = mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT;
        let kind = if self.is_datagram {
            mask::IBV_QP_QKEY
        } else {
            mask::IBV_QP_ACCESS_FLAGS
        };
        self.modify(attributes, which | kind)
    }

    /// INIT to ready-to-receive, of a reliable connection.
    pub fn to_receive(&self, remote: &RemoteEnd) -> Result<()> {
        use c::ibv_qp_attr_mask as mask;
        let attributes = c::ibv_qp_attr {
            qp_state: c::ibv_qp_state::IBV_QPS_RTR,
            path_mtu: remote.mtu,
            dest_qp_num: remote.queue_pair,
            rq_psn: remote.packet_number,
            max_dest_rd_atomic: remote.reads_max,
            min_rnr_timer: remote.no_receive_timer,
            ah_attr: remote.route.to_raw(),
            ..Default::default()
        };
        let which = mask::IBV_QP_STATE
            | mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_DEST_QPN
            | mask::IBV_QP_RQ_PSN
            | mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(attributes, which)
    }

    /// Ready-to-receive to ready-to-send, of a reliable connection.
    pub fn to_send(&self, sending: &Sending) -> Result<()> {
        use c::ibv_qp_attr_mask as mask;
        let attributes = c::ibv_qp_attr {
            qp_state: c::ibv_qp_state::IBV_QPS_RTS,
            sq_psn: sending.packet_number,
            timeout: sending.timeout,
            retry_cnt: sending.retries,
            rnr_retry: sending.no_receive_retries,
            max_rd_atomic: sending.reads_max,
            ..Default::default()
        };
        let which = mask::IBV_QP_STATE
            | mask::IBV_QP_SQ_PSN
            | mask::IBV_QP_TIMEOUT
            | mask::IBV_QP_RETRY_CNT
            | mask::IBV_QP_RNR_RETRY
            | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(attributes, which)
    }

    /// Into ERROR: everything outstanding completes as flushed, and so does what is posted later.
    pub fn to_error(&self) -> Result<()> {
        self.to_state(c::ibv_qp_state::IBV_QPS_ERR)
    }

    /// Into RESET: what is outstanding is forgotten without completions.
    pub fn to_reset(&self) -> Result<()> {
        self.to_state(c::ibv_qp_state::IBV_QPS_RESET)
    }

    fn to_state(&self, state: c::ibv_qp_state) -> Result<()> {
        let attributes = c::ibv_qp_attr {
            qp_state: state,
            ..Default::default()
        };
        self.modify(attributes, c::ibv_qp_attr_mask::IBV_QP_STATE)
    }

    /// Changes the attributes that `which` names.
    pub fn modify(&self, mut attributes: c::ibv_qp_attr, which: c::ibv_qp_attr_mask) -> Result<()> {
        let modify = self.pd.context().library.functions.modify_qp;
        // SAFETY: the pair lives, and `attributes` is complete and has no pointers.
        match unsafe { modify(self.raw.as_ptr(), &mut attributes, which.0 as i32) } {
            0 => Ok(()),
            errno => Err(Error::refused(
                format!(
                    "bringing queue pair {} of {} to {:?} (attributes {:#x})",
                    self.number(),
                    self.pd.context().name(),
                    attributes.qp_state,
                    which.0
                ),
                errno.abs(),
            )),
        }
    }

    /// The attributes that `which` names; the others are not meaningful.
    pub fn query(&self, which: c::ibv_qp_attr_mask) -> Result<c::ibv_qp_attr> {
        let (mut attributes, mut initial) = Default::default();
        let query = self.pd.context().library.functions.query_qp;
        // SAFETY: the pair lives, and both structures are writable.
        match unsafe {
            query(
                self.raw.as_ptr(),
                &mut attributes,
                which.0 as i32,
                &mut initial,
            )
        } {
            0 => Ok(attributes),
            errno => {
                let name = self.pd.context().name();
                let what = format!("asking queue pair {} of {name}", self.number());
                Err(Error::refused(what, errno.abs()))
            }
        }
    }

    /// Its state, asked of the kernel.
    pub fn state(&self) -> Result<c::ibv_qp_state> {
        let attributes = self.query(c::ibv_qp_attr_mask::IBV_QP_STATE)?;
        Ok(attributes.qp_state)
    }

    /// Posts sends, writes, reads and atomics, in this order, linked, with one doorbell for each
    /// [`BATCH`](crate::BATCH). Requests of the wrong kind or size are refused with EINVAL, before
    /// anything is posted.
    #[inline]
    pub fn post_send(&self, requests: &[SendRequest<'_>]) -> std::result::Result<(), PostError> {
        let limits = Limits {
            pd: &self.pd,
            is_datagram: self.is_datagram,
            segments_max: self.capacity.max_send_sge,
            inline_bytes_max: self.capacity.max_inline_data,
        };
        let post = self.pd.context().raw().ops.post_send;
        let post = post.expect("every device has post_send");
        post_sends(requests, &limits, |first, bad| {
            // SAFETY: the pair lives; the list is complete, its segments were checked against their
            // regions when they were made, its inline bytes are borrowed, and all requests are of
            // the pair's kind.
            unsafe { post(self.raw.as_ptr(), first, bad) }
        })
    }

    /// Posts receives, in this order. Not for a pair that takes them from a shared queue: EINVAL.
    #[inline]
    pub fn post_receive(
        &self,
        requests: &[ReceiveRequest<'_>],
    ) -> std::result::Result<(), PostError> {
        if self.shared_receives.is_some() {
            return Err(PostError {
                posted: 0,
                errno: libc::EINVAL,
            });
        }
        let post = self.pd.context().raw().ops.post_recv;
        let post = post.expect("every device has post_recv");
        post_receives(requests, self.capacity.max_recv_sge, |first, bad| {
            // SAFETY: the pair lives; the list is complete, and its segments were checked when they
            // were made.
            unsafe { post(self.raw.as_ptr(), first, bad) }
        })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let library = &self.pd.context().library;
        library.destroy(Kind::QueuePair, self.pd.context().name(), || {
            // SAFETY: made once, destroyed once. Its outstanding requests end; their completions
            // are gone.
            unsafe { (library.functions.destroy_qp)(self.raw.as_ptr()) }
        });
    }
}
