//! [`CompletionQueue`], and what comes out of it.

use crate::bindings as c;
use crate::contexts::{Contexts, Operation, Pending};
use crate::domain::Domain;
use crate::error::{Error, Result};
use crate::later::{ErrorEntry, FI_ADDR_UNSPEC, FI_EAVAIL};
use crate::library::{Kind, text_of};
use crate::raw::{FI_RECV, FI_REMOTE_CQ_DATA, FI_REMOTE_WRITE, FI_SOURCE};
use libc::ssize_t;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// Entries that are read by one call. 16 are 768 bytes of stack.
const BATCH: usize = 16;
/// Bytes of a provider's data about an error that are kept for its text.
const ERROR_BYTES_MAX: usize = 256;

/// What one can do until a completion arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Nothing but polling. Every provider has this, and EFA has nothing else.
    Poll,
    /// Wait for a descriptor, or in [`CompletionQueue::wait`].
    Descriptor,
}

/// Where completions of operations arrive, and the contexts of those operations.
pub struct CompletionQueue {
    domain: Arc<Domain>,
    raw: NonNull<c::fid_cq>,
    contexts: Contexts,
    descriptor: Option<RawFd>,
    has_source: bool,
}

// SAFETY: objects of the library belong to the process, not to a thread.
unsafe impl Send for CompletionQueue {}
// SAFETY: the domain's guard is held during each call, and contexts may be shared.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// A queue of at least `entries` entries. At most `contexts` operations that complete in it are
    /// under way at once; completions of peers' writes may take entries too, so there should be
    /// more entries than contexts. A provider that has no descriptors refuses [`Wait::Descriptor`].
    pub fn open(
        domain: &Arc<Domain>,
        entries: usize,
        contexts: u32,
        wait: Wait,
    ) -> Result<Arc<CompletionQueue>> {
        let mut attributes = c::fi_cq_attr {
            size: entries,
            format: c::fi_cq_format::FI_CQ_FORMAT_DATA,
            wait_obj: match wait {
                Wait::Poll => c::fi_wait_obj::FI_WAIT_NONE,
                Wait::Descriptor => c::fi_wait_obj::FI_WAIT_FD,
            },
            ..Default::default()
        };
        let what = || {
            let name = domain.name();
            format!(
                "a completion queue of {entries} entries in {name}, to be waited for by {wait:?}"
            )
        };
        // SAFETY: an open domain has its table.
        let open = unsafe { (*(*domain.as_ptr()).ops).cq_open }.expect("every domain has cq_open");
        let guard = domain.guard();
        let raw = domain.library().made(Kind::CompletionQueue, what, |raw| {
            // SAFETY: the domain lives, and the attributes are complete.
            unsafe { open(domain.as_ptr(), &mut attributes, raw, std::ptr::null_mut()) }
        })?;
        drop(guard);
        let mut queue = CompletionQueue {
            domain: Arc::clone(domain),
            raw,
            contexts: Contexts::new(contexts),
            descriptor: None,
            has_source: domain.info().caps() & FI_SOURCE != 0,
        };
        if wait == Wait::Descriptor {
            queue.descriptor = Some(queue.ask_for_descriptor()?);
        }
        Ok(Arc::new(queue))
    }

    /// The domain it is in.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// How many operations that complete in it can be under way at once.
    pub fn contexts(&self) -> usize {
        self.contexts.len()
    }

    pub(crate) fn as_ptr(&self) -> *mut c::fid_cq {
        self.raw.as_ptr()
    }

    #[inline]
    pub(crate) fn start(&self, pending: Pending) -> Option<*mut c_void> {
        self.contexts.start(pending)
    }

    #[inline]
    pub(crate) fn end(&self, context: *mut c_void) -> Option<Pending> {
        self.contexts.end(context)
    }

    #[inline]
    fn ops(&self) -> &c::fi_ops_cq {
        // SAFETY: an open queue has its table, which never changes.
        unsafe { &*(*self.raw.as_ptr()).ops }
    }

    /// Moves completions into `room`, from its beginning, and says how many. If `room` was not
    /// filled, the queue is empty, or the next completion is a failure. With providers whose
    /// progress is manual this is also what moves data on.
    #[inline]
    pub fn poll(&self, room: &mut [Completion]) -> std::result::Result<usize, PollError> {
        let mut found = 0;
        while found < room.len() {
            let rest = &mut room[found..];
            let asked = rest.len().min(BATCH);
            let count = self.read(&mut rest[..asked], None);
            match count {
                Ok(count) => found += count,
                // It is reported by the next call, after the completions before it.
                Err(code) if code == FI_EAVAIL && found > 0 => break,
                Err(code) if code == FI_EAVAIL => return self.failure(),
                Err(code) => return Err(PollError::Queue(self.refused("polling", code))),
            }
            if count.unwrap_or(0) < asked {
                break;
            }
        }
        Ok(found)
    }

    /// As [`poll`](CompletionQueue::poll), but waits up to `timeout` for the first completion. At
    /// most 16 are read. Only for queues with [`Wait::Descriptor`] of thread-safe providers.
    pub fn wait(
        &self,
        room: &mut [Completion],
        timeout: Duration,
    ) -> std::result::Result<usize, PollError> {
        if self.descriptor.is_none() || !self.domain.is_thread_safe() {
            let name = self.domain.name();
            let why = format!("waiting for completions in {name}: the queue can only be polled");
            return Err(PollError::Queue(Error::Invalid(why)));
        }
        if room.is_empty() {
            return Ok(0);
        }
        let timeout_ms = c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX);
        let asked = room.len().min(BATCH);
        match self.read(&mut room[..asked], Some(timeout_ms)) {
            Ok(count) => Ok(count),
            Err(FI_EAVAIL) => self.failure(),
            Err(code) => Err(PollError::Queue(self.refused("waiting for", code))),
        }
    }

    /// Readable when a completion has arrived, if [`may_sleep`](CompletionQueue::may_sleep) has
    /// said yes before; `None` of queues that can only be polled.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the descriptor is open until the queue is closed.
        self.descriptor
            .map(|number| unsafe { BorrowedFd::borrow_raw(number) })
    }

    /// Asks for the descriptor's number. Some providers make such queues and have none.
    fn ask_for_descriptor(&self) -> Result<RawFd> {
        let fid: *mut c::fid = self.raw.as_ptr().cast();
        let mut number: RawFd = -1;
        let _guard = self.domain.guard();
        // SAFETY: an open queue has its table.
        let control = unsafe { (*(*fid).ops).control }.expect("every queue has control");
        // SAFETY: the queue lives; this command writes a descriptor's number.
        match unsafe { control(fid, c::FI_GETWAIT.0 as c_int, (&raw mut number).cast()) } {
            0 if number >= 0 => Ok(number),
            0 => Err(self.refused("asking for the descriptor of", libc::ENOSYS)),
            code => Err(self.refused("asking for the descriptor of", code)),
        }
    }

    /// Whether one may wait for the descriptor now. If not, there is something to poll.
    pub fn may_sleep(&self) -> Result<bool> {
        let fabric = self.domain.fabric().as_ptr();
        let mut fids: [*mut c::fid; 1] = [self.raw.as_ptr().cast()];
        // SAFETY: an open fabric has its table.
        let call = unsafe { (*(*fabric).ops).trywait }.expect("every fabric has trywait");
        let _guard = self.domain.guard();
        // SAFETY: the fabric and the queue live.
        match unsafe { call(fabric, fids.as_mut_ptr(), 1) } {
            0 => Ok(true),
            code if code == -libc::EAGAIN => Ok(false),
            code => Err(self.refused("preparing to wait for", code)),
        }
    }

    /// Reads up to [`BATCH`] completions, after waiting for the first one if there is a timeout;
    /// gives how many, or an error number.
    #[inline]
    fn read(
        &self,
        room: &mut [Completion],
        timeout_ms: Option<c_int>,
    ) -> std::result::Result<usize, c_int> {
        debug_assert!(room.len() <= BATCH);
        let mut entries = [const { MaybeUninit::<c::fi_cq_data_entry>::uninit() }; BATCH];
        let mut sources = [FI_ADDR_UNSPEC; BATCH];
        let raw = self.raw.as_ptr();
        let (buffer, count) = (entries.as_mut_ptr().cast(), room.len());
        let (ops, none) = (self.ops(), std::ptr::null());
        let guard = self.domain.guard();
        // SAFETY: the queue lives; both arrays are writable for `count` elements, and the entries
        // are of the queue's format.
        let status: ssize_t = unsafe {
            match (timeout_ms, self.has_source) {
                (None, false) => ops.read.expect("every queue has read")(raw, buffer, count),
                (None, true) => {
                    let read = ops.readfrom.expect("every queue has readfrom");
                    read(raw, buffer, count, sources.as_mut_ptr())
                }
                (Some(timeout), false) => ops.sread.map_or(-(libc::ENOSYS as ssize_t), |read| {
                    read(raw, buffer, count, none, timeout)
                }),
                (Some(timeout), true) => ops.sreadfrom.map_or(-(libc::ENOSYS as ssize_t), |read| {
                    read(raw, buffer, count, sources.as_mut_ptr(), none, timeout)
                }),
            }
        };
        // What is pending may be dropped below, which calls the library again.
        drop(guard);
        let count = match usize::try_from(status) {
            Ok(count) => count.min(room.len()),
            Err(_) if [-libc::EAGAIN, -libc::EINTR].contains(&(status as c_int)) => return Ok(0),
            Err(_) => return Err(-(status as c_int)),
        };
        for (index, completion) in room[..count].iter_mut().enumerate() {
            // SAFETY: the call filled `count` entries.
            let entry = unsafe { entries[index].assume_init_ref() };
            let pending = self.contexts.end(entry.op_context);
            *completion = Completion {
                id: pending.as_ref().map(|pending| pending.id),
                flags: entry.flags,
                bytes: entry.len,
                data: entry.data,
                source: sources[index],
            };
        }
        Ok(count)
    }

    /// The failure that is next in the queue; 0 if another thread has got it.
    #[cold]
    fn failure(&self) -> std::result::Result<usize, PollError> {
        let mut details = [0u8; ERROR_BYTES_MAX];
        let mut entry = ErrorEntry::default();
        entry.base.err_data = details.as_mut_ptr().cast();
        entry.base.err_data_size = details.len();
        let readerr = self.ops().readerr.expect("every queue has readerr");
        let guard = self.domain.guard();
        // SAFETY: the queue lives, and the entry is writable, also in the longer form.
        let status = unsafe { readerr(self.raw.as_ptr(), &mut entry.base, 0) };
        let text = if status > 0 {
            self.text_of(&entry, &details)
        } else {
            String::new()
        };
        drop(guard);
        match status {
            status if status == -(libc::EAGAIN as ssize_t) || status == 0 => return Ok(0),
            status if status < 0 => {
                let refused = self.refused("reading an error of", -(status as c_int));
                return Err(PollError::Queue(refused));
            }
            _ => {}
        }
        let pending = self.contexts.end(entry.base.op_context);
        Err(PollError::Operation(Box::new(Failure {
            id: pending.as_ref().map(|pending| pending.id),
            operation: pending.as_ref().map(|pending| pending.operation),
            name: self.domain.name().to_owned(),
            code: entry.base.err,
            text: self.domain.library().error_text(entry.base.err),
            provider_code: entry.base.prov_errno,
            provider_text: text,
        })))
    }

    /// What the provider calls an error of its own.
    fn text_of(&self, entry: &ErrorEntry, details: &[u8; ERROR_BYTES_MAX]) -> String {
        let Some(strerror) = self.ops().strerror else {
            return String::new();
        };
        // Providers of old interfaces point into their own memory instead of copying.
        let is_copied = entry.base.err_data.cast_const() == details.as_ptr().cast();
        let data = if is_copied {
            entry.base.err_data
        } else {
            std::ptr::null_mut()
        };
        // SAFETY: the queue lives, and the data are this thread's or none. The text is the
        // provider's constant.
        text_of(unsafe {
            strerror(
                self.raw.as_ptr(),
                entry.base.prov_errno,
                data,
                std::ptr::null_mut(),
                0,
            )
        })
    }

    fn refused(&self, doing: &str, code: c_int) -> Error {
        let what = format!("{doing} a completion queue of {}", self.domain.name());
        self.domain.library().refused(what, code)
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once; its endpoints held it and are gone. The contexts of
        // operations that never completed were theirs.
        unsafe {
            self.domain
                .close(Kind::CompletionQueue, self.raw.as_ptr().cast())
        };
    }
}

/// An operation that was carried out, or a peer's write with a number that has arrived.
#[derive(Clone, Copy)]
pub struct Completion {
    id: Option<u64>,
    flags: u64,
    bytes: usize,
    data: u64,
    source: u64,
}

impl Default for Completion {
    fn default() -> Completion {
        Completion {
            id: None,
            flags: 0,
            bytes: 0,
            data: 0,
            source: FI_ADDR_UNSPEC,
        }
    }
}

impl Completion {
    /// The number that the operation carried; `None` of a peer's write that took no receive.
    #[inline]
    pub fn id(&self) -> Option<u64> {
        self.id
    }

    /// What it was: `FI_RMA | FI_WRITE`, `FI_RMA | FI_READ`, `FI_RMA | FI_REMOTE_WRITE`, ...
    #[inline]
    pub fn flags(&self) -> u64 {
        self.flags
    }

    /// The number that came with a peer's write.
    #[inline]
    pub fn data(&self) -> Option<u32> {
        let has = self.flags & FI_REMOTE_CQ_DATA != 0;
        has.then_some(self.data as u32)
    }

    /// Bytes that a peer wrote; of other operations it is not known.
    #[inline]
    pub fn len_bytes(&self) -> usize {
        self.bytes
    }

    /// The [`number`](crate::Peer::number) of the peer that sent or wrote, where the capability
    /// `FI_SOURCE` was asked for and the peer is in the vector.
    #[inline]
    pub fn source(&self) -> Option<u64> {
        let is_peers = self.flags & (FI_REMOTE_WRITE | FI_RECV) != 0;
        (is_peers && self.source != FI_ADDR_UNSPEC).then_some(self.source)
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion")
            .field("id", &self.id)
            .field("flags", &format_args!("{:#x}", self.flags))
            .field("bytes", &self.bytes)
            .field("data", &self.data())
            .field("source", &self.source())
            .finish()
    }
}

/// Why polling gave no completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PollError {
    /// An operation was not carried out.
    Operation(Box<Failure>),
    /// The queue cannot be read.
    Queue(Error),
}

impl fmt::Display for PollError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PollError::Operation(failure) => failure.fmt(f),
            PollError::Queue(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for PollError {}

/// An operation that was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The number that the operation carried; `None` of what a peer has begun.
    pub id: Option<u64>,
    /// What it was to do; `None` of what a peer has begun.
    pub operation: Option<Operation>,
    /// The domain and its provider.
    pub name: String,
    /// The error number, as in [`Error::code`].
    pub code: i32,
    /// What the library calls it.
    pub text: String,
    /// The provider's own number for it.
    pub provider_code: i32,
    /// What the provider calls that.
    pub provider_text: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.operation, self.id) {
            (Some(operation), Some(id)) => write!(f, "{operation:?} {id} of {}", self.name)?,
            _ => write!(f, "what a peer did to {}", self.name)?,
        }
        write!(
            f,
            " failed: {} (code {}; the provider's {}: {})",
            self.text, self.code, self.provider_code, self.provider_text
        )
    }
}

impl std::error::Error for Failure {}
