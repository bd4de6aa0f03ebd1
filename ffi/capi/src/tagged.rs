//! Sends and receives with tags.

use crate::call::{check_kind, hand_out, linerate_operation};
use crate::communicator::linerate_comm;
use crate::memory::adopt;
use crate::objects::{COMMUNICATOR, OPERATION, lock};
use crate::pointers::{Sized64, check_place, read, write};
use crate::queue::linerate_queue;
use crate::status::{LINERATE_DONE, LINERATE_IN_PROGRESS, enter};
use crate::words::dtype_of;
use std::ffi::c_void;
use std::time::Duration;

/// Every rank: a receive from it takes the message that comes first. As a source: not known.
pub const LINERATE_ANY_RANK: u32 = u32::MAX;

/// A send or a receive with a tag, like those of MPI: a receive takes a message only if their tags
/// are equal. Zero everywhere but `size`, `dtype`, `count` and `address` is the default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct linerate_message {
    /// sizeof(linerate_message).
    pub size: u64,
    /// The memory, aligned for its type. NULL with a count of 0.
    pub address: *mut c_void,
    /// Elements, as many on both sides.
    pub count: u64,
    /// LINERATE_F32, ...
    pub dtype: u32,
    /// LINERATE_MEMORY_HOST.
    pub memory_kind: u32,
    /// The rank at the other end; of a receive also LINERATE_ANY_RANK.
    pub peer: u32,
    /// The tag.
    pub tag: u32,
    /// 0: a receive; 1: a send.
    pub is_send: u32,
    /// 0.
    pub reserved: u32,
    /// How long it may make no progress, nanoseconds; 0: as long as the communicator says.
    pub timeout_ns: u64,
    /// A queue that is told of its end, or 0.
    pub queue: linerate_queue,
    /// What the queue tells then.
    pub user: u64,
}

// SAFETY: numbers and addresses, the size first.
unsafe impl Sized64 for linerate_message {
    const NAME: &'static str = "linerate_message";
}

/// Starts a send or a receive with a tag and returns at once. Messages of one rank with one tag are
/// received in the order in which their sends were started, by receives in the order in which those
/// were started. Collectives and groups never meet them. A short send may end before it is
/// received. Up to 48 messages from one rank to another wait for their receives; what is sent after
/// them waits at the sender, whatever its tag. With a queue, `operation` may be NULL.
///
/// Threads, owner and fork: as linerate_start().
///
/// # Safety
/// `message` is a struct whose address holds its elements until the operation has ended;
/// `operation` is writable, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_message_start(
    comm: linerate_comm,
    message: *const linerate_message,
    operation: *mut linerate_operation,
) -> i32 {
    enter(|| {
        // SAFETY: our caller promises it.
        let message = unsafe { read("message", message)? };
        let communicator = COMMUNICATOR.get(comm)?;
        check_kind(message.memory_kind)?;
        let (dtype, count) = (dtype_of(message.dtype)?, message.count);
        // SAFETY: as above.
        let memory = unsafe { adopt("address", &communicator, message.address, count, dtype)? };
        let mut tagged = communicator.tagged(message.tag);
        if message.timeout_ns > 0 {
            tagged = tagged.timeout(Duration::from_nanos(message.timeout_ns));
        }
        let start = || {
            Ok(match (message.is_send, message.peer) {
                (0, LINERATE_ANY_RANK) => tagged.start_recv_any(&memory)?,
                (0, peer) => tagged.start_recv(&memory, peer)?,
                (_, peer) => tagged.start_send(&memory, peer)?,
            })
        };
        // SAFETY: as above.
        unsafe { hand_out(operation, (message.queue, message.user), start) }
    })
}

/// The rank whose message a receive with a tag has met; LINERATE_ANY_RANK: it has met none yet, or
/// the operation is another one. Threads: one at a time for one operation. After fork: as before.
///
/// # Safety
/// `rank` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_source(operation: linerate_operation, rank: *mut u32) -> i32 {
    enter(|| {
        check_place("rank", rank)?;
        let operation = OPERATION.get(operation)?;
        let source = lock("operation", &operation)?.source();
        // SAFETY: our caller promises it.
        unsafe { write("rank", rank, source.unwrap_or(LINERATE_ANY_RANK))? };
        Ok(LINERATE_DONE)
    })
}

/// Ends a receive with a tag that has met no message, alone: its status is
/// LINERATE_ERROR_RECEIVE_CANCELLED then, and the next receive gets the message that it would have
/// got. LINERATE_IN_PROGRESS: there is nothing to cancel; it has met a message and goes on, has
/// ended, or is another operation. Threads: one at a time for one operation. After fork:
/// LINERATE_ERROR_FORKED.
#[unsafe(no_mangle)]
pub extern "C" fn linerate_cancel_receive(operation: linerate_operation) -> i32 {
    enter(|| {
        let operation = OPERATION.get(operation)?;
        let is_cancelled = lock("operation", &operation)?.cancel_receive()?;
        Ok(match is_cancelled {
            true => LINERATE_DONE,
            false => LINERATE_IN_PROGRESS,
        })
    })
}
