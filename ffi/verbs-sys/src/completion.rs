//! [`CompletionQueue`], what comes out of it, and the [`CompletionChannel`] to sleep on.

use crate::bindings as c;
use crate::device::{Context, set_nonblocking};
use crate::error::{Error, Result, last_errno};
use crate::library::Kind;
use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// Tells which completion queues have new completions.
pub struct CompletionChannel {
    context: Arc<Context>,
    raw: NonNull<c::ibv_comp_channel>,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for CompletionChannel {}
// SAFETY: events are read from a descriptor, by several threads at once if need be.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    /// A new channel, whose descriptor does not block.
    pub fn create(context: &Arc<Context>) -> Result<Arc<CompletionChannel>> {
        let library = &context.library;
        // SAFETY: the context is open.
        let raw = unsafe { (library.functions.create_comp_channel)(context.as_ptr()) };
        let raw = NonNull::new(raw)
            .ok_or_else(|| Error::last(format!("a completion channel of {}", context.name())))?;
        library.note_made(Kind::Channel);
        let channel = Arc::new(CompletionChannel {
            context: Arc::clone(context),
            raw,
        });
        set_nonblocking(channel.raw_fd(), context.name())?;
        Ok(channel)
    }

    fn raw_fd(&self) -> c_int {
        // SAFETY: lives until Drop; the field never changes.
        unsafe { (&raw const (*self.raw.as_ptr()).fd).read() }
    }

    /// Readable when [`poll_event`](CompletionChannel::poll_event) has something.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open until Drop.
        unsafe { BorrowedFd::borrow_raw(self.raw_fd()) }
    }

    /// The token of the next queue that got a completion after its
    /// [`request_event`](CompletionQueue::request_event); `None` if there is none now.
    pub fn poll_event(&self) -> Result<Option<u64>> {
        let functions = &self.context.library.functions;
        let (mut queue, mut token) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: both are writable. The descriptor does not block, see `create`.
        let status = unsafe { (functions.get_cq_event)(self.raw.as_ptr(), &mut queue, &mut token) };
        if status != 0 {
            return match last_errno() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                errno => {
                    let what = format!("reading completion events of {}", self.context.name());
                    Err(Error::refused(what, errno))
                }
            };
        }
        // SAFETY: the queue lives, because destroying it waits until its events are acknowledged.
        // This one is acknowledged once, here.
        unsafe { (functions.ack_cq_events)(queue, 1) };
        Ok(Some(token as u64))
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        let library = &self.context.library;
        library.destroy(Kind::Channel, self.context.name(), || {
            // SAFETY: made once, destroyed once; its queues held it and are gone.
            unsafe { (library.functions.destroy_comp_channel)(self.raw.as_ptr()) }
        });
    }
}

/// Where completions of work requests arrive.
pub struct CompletionQueue {
    context: Arc<Context>,
    raw: NonNull<c::ibv_cq>,
    _channel: Option<Arc<CompletionChannel>>,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for CompletionQueue {}
// SAFETY: the device's part of the library has a lock for each queue (the manual of libibverbs).
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// A queue of at least `entries` entries, which must never be full: a completion too many
    /// breaks it and every queue pair that uses it. Its events go to `channel` and carry `token`;
    /// `vector` is below [`completion_vectors`](Context::completion_vectors).
    pub fn create(
        context: &Arc<Context>,
        entries: u32,
        channel: Option<&Arc<CompletionChannel>>,
        vector: u32,
        token: u64,
    ) -> Result<Arc<CompletionQueue>> {
        let what = || {
            format!(
                "a completion queue of {entries} entries of {}",
                context.name()
            )
        };
        if channel.is_some_and(|channel| !Arc::ptr_eq(&channel.context, context)) {
            return Err(Error::Invalid(format!(
                "{}: its channel is another device's",
                what()
            )));
        }
        let to_int =
            |number: u32| c_int::try_from(number).map_err(|_| Error::refused(what(), libc::EINVAL));
        let (entries_c, vector_c) = (to_int(entries)?, to_int(vector)?);
        let channel_raw = channel.map_or(std::ptr::null_mut(), |channel| channel.raw.as_ptr());
        let library = &context.library;
        // SAFETY: context and channel live; the token is never followed.
        let raw = unsafe {
            (library.functions.create_cq)(
                context.as_ptr(),
                entries_c,
                token as *mut c_void,
                channel_raw,
                vector_c,
            )
        };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(what()))?;
        library.note_made(Kind::CompletionQueue);
        Ok(Arc::new(CompletionQueue {
            context: Arc::clone(context),
            raw,
            _channel: channel.map(Arc::clone),
        }))
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn as_ptr(&self) -> *mut c::ibv_cq {
        self.raw.as_ptr()
    }

    /// How many entries it has, at least as many as were asked for.
    pub fn entries(&self) -> u32 {
        // SAFETY: lives until Drop; nobody resizes it.
        let entries = unsafe { (&raw const (*self.raw.as_ptr()).cqe).read() };
        u32::try_from(entries).unwrap_or(0)
    }

    /// Moves completions into `room`, from its beginning, and says how many. If `room` was not
    /// filled, the queue is empty.
    #[inline]
    pub fn poll(&self, room: &mut [Completion]) -> Result<usize> {
        let count = c_int::try_from(room.len()).unwrap_or(c_int::MAX);
        let poll = self
            .context
            .raw()
            .ops
            .poll_cq
            .expect("every device has poll_cq");
        // SAFETY: the queue lives, and `room` is writable for `count` completions, which have
        // ibv_wc's layout.
        let found = unsafe { poll(self.raw.as_ptr(), count, room.as_mut_ptr().cast()) };
        usize::try_from(found).map_err(|_| {
            let what = format!("polling a completion queue of {}", self.context.name());
            Error::refused(what, -found)
        })
    }

    /// The next completion that arrives makes one event on the channel; with `solicited_only` the
    /// next whose sender asked for it, or that failed. What arrived before makes none: poll once
    /// more before sleeping.
    #[inline]
    pub fn request_event(&self, solicited_only: bool) -> Result<()> {
        let ops = &self.context.raw().ops;
        let request = ops.req_notify_cq.expect("every device has req_notify_cq");
        // SAFETY: the queue lives.
        match unsafe { request(self.raw.as_ptr(), c_int::from(solicited_only)) } {
            0 => Ok(()),
            errno => {
                let what = format!("asking for completion events of {}", self.context.name());
                Err(Error::refused(what, errno.abs()))
            }
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        let library = &self.context.library;
        library.destroy(Kind::CompletionQueue, self.context.name(), || {
            // SAFETY: made once, destroyed once; queue pairs that used it held it and are gone, and
            // every event that was read is acknowledged, so it does not wait.
            unsafe { (library.functions.destroy_cq)(self.raw.as_ptr()) }
        });
    }
}

/// What became of a work request.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Completion(c::ibv_wc);

impl Completion {
    /// The number that the request carried.
    #[inline]
    pub fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// Whether it was carried out.
    #[inline]
    pub fn is_success(&self) -> bool {
        self.0.status == c::ibv_wc_status::IBV_WC_SUCCESS
    }

    /// How it ended. Of a failed request only this, the number, the queue pair and the vendor's
    /// error are known.
    #[inline]
    pub fn status(&self) -> c::ibv_wc_status {
        self.0.status
    }

    /// Whether it was not tried, because its queue pair had failed before: a consequence and no
    /// cause.
    #[inline]
    pub fn is_flushed(&self) -> bool {
        self.0.status == c::ibv_wc_status::IBV_WC_WR_FLUSH_ERR
    }

    /// What it was.
    #[inline]
    pub fn opcode(&self) -> c::ibv_wc_opcode {
        self.0.opcode
    }

    /// Bytes received or read.
    #[inline]
    pub fn len_bytes(&self) -> u32 {
        self.0.byte_len
    }

    /// The immediate number that came with a message or a write.
    #[inline]
    pub fn immediate(&self) -> Option<u32> {
        let has = self.0.wc_flags & c::ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
        // SAFETY: both members are numbers of 32 bits, and the flag says which it is.
        has.then(|| u32::from_be(unsafe { self.0.__bindgen_anon_1.imm_data }))
    }

    /// The number of the own queue pair.
    #[inline]
    pub fn queue_pair(&self) -> u32 {
        self.0.qp_num
    }

    /// The number of the sender's queue pair, of a received datagram.
    pub fn source_queue_pair(&self) -> u32 {
        self.0.src_qp
    }

    /// What the device's maker says about a failure.
    pub fn vendor_error(&self) -> u32 {
        self.0.vendor_err
    }
}

impl std::fmt::Debug for Completion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Completion")
            .field("id", &self.id())
            .field("status", &self.status())
            .field("opcode", &self.opcode())
            .field("len_bytes", &self.len_bytes())
            .field("immediate", &self.immediate())
            .field("queue_pair", &self.queue_pair())
            .field("vendor_error", &self.vendor_error())
            .finish()
    }
}
