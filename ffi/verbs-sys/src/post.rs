//! Work requests: what is asked of a queue pair, checked and linked here, so that safe code can
//! post it.
//!
//! Nothing is allocated: lists of up to [`BATCH`] requests are built on the stack, and each costs
//! one doorbell.

use crate::address::AddressHandle;
use crate::bindings as c;
use crate::memory::{Pd, Place, Segment};
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// The most requests that are linked into one list. 32 are 4 KiB of stack, and a doorbell for 32
/// costs each of them little.
pub const BATCH: usize = 32;

/// Bytes of an atomic operation.
const ATOMIC_BYTES: u32 = 8;

/// The bytes of a request on this side.
#[derive(Clone, Copy, Debug)]
pub enum Local<'a> {
    /// No bytes.
    Empty,
    /// One piece of registered memory. The device reads or writes it any time until the completion.
    One(Segment),
    /// One piece of memory, copied when posted, with the limits of [`Local::Inline`]: for memory
    /// that other threads or devices may change, which no slice can name.
    InlineOne(Segment),
    /// Several pieces, which follow one another in the message.
    Many(&'a [Segment]),
    /// These bytes, copied when posted; they need no registration. For sends and writes, at most
    /// [`inline_bytes_max`](crate::QueuePair::inline_bytes_max).
    Inline(&'a [u8]),
}

/// What a request does.
#[derive(Clone, Copy)]
pub enum Operation<'a> {
    /// A message to a posted receive, with an immediate number if one is given.
    Send(Option<u32>),
    /// A write to the peer's memory. With an immediate number it also takes a posted receive and
    /// completes there.
    Write(Place, Option<u32>),
    /// A read of the peer's memory.
    Read(Place),
    /// Puts `swap` where `compare` is; 8 bytes, aligned. The local 8 bytes get what was there, in
    /// host order.
    CompareAndSwap {
        /// Where.
        place: Place,
        /// What must be there.
        compare: u64,
        /// What comes there.
        swap: u64,
    },
    /// Adds to 8 aligned bytes, and otherwise as [`Operation::CompareAndSwap`].
    FetchAndAdd {
        /// Where.
        place: Place,
        /// What is added, wrapping.
        add: u64,
    },
    /// A message from a datagram queue pair.
    Datagram {
        /// The way there.
        to: &'a AddressHandle,
        /// The number of the peer's queue pair.
        queue_pair: u32,
        /// The peer's Q_Key.
        key: u32,
        /// Goes along.
        immediate: Option<u32>,
    },
}

/// What a queue pair is asked to do.
#[derive(Clone, Copy)]
pub struct SendRequest<'a> {
    /// Comes back in the completion.
    pub id: u64,
    /// What.
    pub operation: Operation<'a>,
    /// With which bytes.
    pub local: Local<'a>,
    /// Whether success makes a completion; failure always does. Places in the queue come back with
    /// the completion of this or a later request, so every queue needs one now and then.
    pub is_signaled: bool,
    /// Whether the peer's completion wakes it where it waits for solicited ones only.
    pub is_solicited: bool,
    /// Whether it waits for the reads and atomics posted before.
    pub is_fenced: bool,
}

/// Room for one message.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveRequest<'a> {
    /// Comes back in the completion.
    pub id: u64,
    /// Where its bytes go; none is enough for what comes with an immediate number only.
    pub segments: &'a [Segment],
}

/// A list of which not everything was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostError {
    /// How many were posted, from its beginning. The others had no effect.
    pub posted: usize,
    /// Why the next one was not posted.
    pub errno: i32,
}

impl PostError {
    /// Whether the queue has no room now.
    pub fn is_full(&self) -> bool {
        matches!(self.errno, libc::ENOMEM | libc::EAGAIN)
    }
}

impl std::fmt::Display for PostError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cause = std::io::Error::from_raw_os_error(self.errno);
        write!(
            f,
            "posting a work request: {cause} ({} before it were posted)",
            self.posted
        )
    }
}

impl std::error::Error for PostError {}

/// What a queue pair takes.
pub(crate) struct Limits<'a> {
    pub pd: &'a Arc<Pd>,
    pub is_datagram: bool,
    pub segments_max: u32,
    pub inline_bytes_max: u32,
}

impl Limits<'_> {
    /// Checks what the code of devices relies on without checking it: it follows the pointers that
    /// the kind of queue pair implies, and copies inline bytes into places of fixed size.
    #[inline]
    fn allow(&self, request: &SendRequest<'_>) -> bool {
        let operation = match request.operation {
            Operation::Datagram { to, .. } => self.is_datagram && Arc::ptr_eq(to.pd(), self.pd),
            _ => !self.is_datagram,
        };
        let is_atomic = matches!(
            request.operation,
            Operation::CompareAndSwap { .. } | Operation::FetchAndAdd { .. }
        );
        let local = match request.local {
            Local::Empty => !is_atomic,
            Local::One(segment) => !is_atomic || segment.len_bytes() == ATOMIC_BYTES,
            Local::Many(segments) => !is_atomic && segments.len() <= self.segments_max as usize,
            Local::InlineOne(segment) => {
                self.allow_inline(request, is_atomic, segment.len_bytes() as usize)
            }
            Local::Inline(bytes) => self.allow_inline(request, is_atomic, bytes.len()),
        };
        operation && local
    }

    #[inline]
    fn allow_inline(&self, request: &SendRequest<'_>, is_atomic: bool, bytes: usize) -> bool {
        let is_read = is_atomic || matches!(request.operation, Operation::Read(_));
        !is_read && bytes <= self.inline_bytes_max as usize
    }
}

/// Posts by `post`, which takes a list and where to say which element failed, and gives an error
/// number.
#[inline]
pub(crate) fn post_sends(
    requests: &[SendRequest<'_>],
    limits: &Limits<'_>,
    post: impl FnMut(*mut c::ibv_send_wr, *mut *mut c::ibv_send_wr) -> c_int,
) -> Result<(), PostError> {
    if !requests.iter().all(|request| limits.allow(request)) {
        return Err(PostError {
            posted: 0,
            errno: libc::EINVAL,
        });
    }
    match requests {
        // A single request is urgent: it is posted without loops, and without stack for others.
        [one] => post_batches::<1>(std::slice::from_ref(one), post),
        _ => post_batches::<BATCH>(requests, post),
    }
}

#[inline]
fn post_batches<const MOST: usize>(
    requests: &[SendRequest<'_>],
    mut post: impl FnMut(*mut c::ibv_send_wr, *mut *mut c::ibv_send_wr) -> c_int,
) -> Result<(), PostError> {
    let mut list = [const { MaybeUninit::<c::ibv_send_wr>::uninit() }; MOST];
    let mut inline = [const { MaybeUninit::<c::ibv_sge>::uninit() }; MOST];
    let mut posted = 0;
    for batch in requests.chunks(MOST) {
        let first = list.as_mut_ptr().cast::<c::ibv_send_wr>();
        for (index, request) in batch.iter().enumerate() {
            // Filled in its place, because copying its 128 bytes would delay a short message.
            list[index] = MaybeUninit::zeroed();
            // SAFETY: numbers and pointers, of which all may be zero.
            let raw = unsafe { list[index].assume_init_mut() };
            fill(raw, request, &mut inline[index]);
            if index + 1 < batch.len() {
                // Inside the array: the index is below the batch's length. Filled in the next turn.
                raw.next = first.wrapping_add(index + 1);
            }
        }
        let mut bad = std::ptr::null_mut();
        let errno = post(first, &mut bad);
        if errno != 0 {
            return Err(failed(posted, index_of(bad, first, batch.len()), errno));
        }
        posted += batch.len();
    }
    Ok(())
}

/// As [`post_sends`], for receives.
#[inline]
pub(crate) fn post_receives(
    requests: &[ReceiveRequest<'_>],
    segments_max: u32,
    mut post: impl FnMut(*mut c::ibv_recv_wr, *mut *mut c::ibv_recv_wr) -> c_int,
) -> Result<(), PostError> {
    let is_allowed = |request: &ReceiveRequest<'_>| request.segments.len() <= segments_max as usize;
    if !requests.iter().all(is_allowed) {
        return Err(PostError {
            posted: 0,
            errno: libc::EINVAL,
        });
    }
    let mut list = [const { MaybeUninit::<c::ibv_recv_wr>::uninit() }; BATCH];
    let mut posted = 0;
    for batch in requests.chunks(BATCH) {
        let first = list.as_mut_ptr().cast::<c::ibv_recv_wr>();
        for (index, request) in batch.iter().enumerate() {
            let is_last = index + 1 == batch.len();
            let next = if is_last {
                std::ptr::null_mut()
            } else {
                first.wrapping_add(index + 1)
            };
            let (sg_list, num_sge) = raw_segments(request.segments);
            list[index].write(c::ibv_recv_wr {
                wr_id: request.id,
                next,
                sg_list,
                num_sge,
            });
        }
        let mut bad = std::ptr::null_mut();
        let errno = post(first, &mut bad);
        if errno != 0 {
            return Err(failed(posted, index_of(bad, first, batch.len()), errno));
        }
        posted += batch.len();
    }
    Ok(())
}

/// Writes the request as C has it. It points to the request's own segments, or to `inline` for
/// inline bytes.
#[inline]
fn fill(raw: &mut c::ibv_send_wr, request: &SendRequest<'_>, inline: &mut MaybeUninit<c::ibv_sge>) {
    use c::ibv_send_flags as flag;
    let mut flags = 0;
    for (is_set, bit) in [
        (request.is_signaled, flag::IBV_SEND_SIGNALED),
        (request.is_solicited, flag::IBV_SEND_SOLICITED),
        (request.is_fenced, flag::IBV_SEND_FENCE),
    ] {
        flags |= u32::from(is_set) * bit.0;
    }
    let (sg_list, num_sge) = match &request.local {
        Local::Empty => (std::ptr::null_mut(), 0),
        Local::One(segment) => raw_segments(std::slice::from_ref(segment)),
        Local::InlineOne(segment) => {
            flags |= flag::IBV_SEND_INLINE.0;
            raw_segments(std::slice::from_ref(segment))
        }
        Local::Many(segments) => raw_segments(segments),
        Local::Inline(bytes) => {
            flags |= flag::IBV_SEND_INLINE.0;
            let segment = inline.write(c::ibv_sge {
                addr: bytes.as_ptr() as u64,
                // At most `inline_bytes_max`.
                length: bytes.len() as u32,
                lkey: 0,
            });
            (&raw mut *segment, 1)
        }
    };
    raw.wr_id = request.id;
    raw.sg_list = sg_list;
    raw.num_sge = num_sge;
    raw.send_flags = flags;
    fill_operation(raw, &request.operation);
}

#[inline]
fn fill_operation(raw: &mut c::ibv_send_wr, operation: &Operation<'_>) {
    use c::ibv_wr_opcode as code;
    let rdma = |place: Place| c::ibv_send_wr__bindgen_ty_2 {
        rdma: c::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
            remote_addr: place.address,
            rkey: place.key,
        },
    };
    let atomic = |place: Place, compare_add, swap| c::ibv_send_wr__bindgen_ty_2 {
        atomic: c::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
            remote_addr: place.address,
            compare_add,
            swap,
            rkey: place.key,
        },
    };
    let mut immediate = None;
    match *operation {
        Operation::Send(number) => {
            immediate = number;
            raw.opcode = number.map_or(code::IBV_WR_SEND, |_| code::IBV_WR_SEND_WITH_IMM);
        }
        Operation::Write(place, number) => {
            immediate = number;
            raw.opcode = number.map_or(code::IBV_WR_RDMA_WRITE, |_| {
                code::IBV_WR_RDMA_WRITE_WITH_IMM
            });
            raw.wr = rdma(place);
        }
        Operation::Read(place) => {
            raw.opcode = code::IBV_WR_RDMA_READ;
            raw.wr = rdma(place);
        }
        Operation::CompareAndSwap {
            place,
            compare,
            swap,
        } => {
            raw.opcode = code::IBV_WR_ATOMIC_CMP_AND_SWP;
            raw.wr = atomic(place, compare, swap);
        }
        Operation::FetchAndAdd { place, add } => {
            raw.opcode = code::IBV_WR_ATOMIC_FETCH_AND_ADD;
            raw.wr = atomic(place, add, 0);
        }
        Operation::Datagram {
            to,
            queue_pair,
            key,
            immediate: number,
        } => {
            immediate = number;
            raw.opcode = number.map_or(code::IBV_WR_SEND, |_| code::IBV_WR_SEND_WITH_IMM);
            raw.wr = c::ibv_send_wr__bindgen_ty_2 {
                ud: c::ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
                    ah: to.as_ptr(),
                    remote_qpn: queue_pair,
                    remote_qkey: key,
                },
            };
        }
    }
    if let Some(number) = immediate {
        raw.__bindgen_anon_1.imm_data = number.to_be();
    }
}

/// Segments have the layout of C's, and are only read.
#[inline]
fn raw_segments(segments: &[Segment]) -> (*mut c::ibv_sge, c_int) {
    // Their number is at most the queue's, which is an int.
    (segments.as_ptr().cast_mut().cast(), segments.len() as c_int)
}

/// The index of the element, in a list of `count`, that the library has named as the first that
/// failed.
fn index_of<T>(bad: *mut T, first: *mut T, count: usize) -> usize {
    let distance = (bad as usize).wrapping_sub(first as usize);
    let index = distance / size_of::<T>();
    // A library that names none has posted none.
    if index < count { index } else { 0 }
}

fn failed(before: usize, index: usize, errno: c_int) -> PostError {
    PostError {
        posted: before + index,
        // The manual says positive; some devices' code says negative.
        errno: errno.abs(),
    }
}
