//! Completion queues.

use crate::communicator::linerate_comm;
use crate::objects::{COMMUNICATOR, Object, QUEUE, insert};
use crate::pointers::{Sized64, Structs, check_place, write, write_back};
use crate::status::{Fault, LINERATE_DONE, LINERATE_IN_PROGRESS, enter, invalid, remember};
use crate::tagged::LINERATE_ANY_RANK;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// A handle of a completion queue.
#[allow(non_camel_case_types)]
pub type linerate_queue = u64;

/// An operation that has ended.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct linerate_completion {
    /// sizeof(linerate_completion).
    pub size: u64,
    /// The number that the operation was started with.
    pub user: u64,
    /// What waiting for it would have returned.
    pub status: i32,
    /// Of a receive with a tag: the rank whose message it has met; else LINERATE_ANY_RANK.
    pub source: u32,
}

// SAFETY: numbers, the size first.
unsafe impl Sized64 for linerate_completion {
    const NAME: &'static str = "linerate_completion";
}

/// Makes a queue for operations of a communicator and of those made of it. Not collective.
///
/// Threads: any. The caller frees it; it counts as a handle of the communicator until then. After
/// fork: LINERATE_ERROR_FORKED.
///
/// # Safety
/// `queue` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_queue_create(
    comm: linerate_comm,
    queue: *mut linerate_queue,
) -> i32 {
    enter(|| {
        check_place("queue", queue)?;
        let made = COMMUNICATOR.get(comm)?.completion_queue()?;
        let handle = insert(Object::Queue(made))?;
        // SAFETY: our caller promises it.
        unsafe { write("queue", queue, handle)? };
        Ok(LINERATE_DONE)
    })
}

/// Waits until operations of the queue have ended, at most `limit_ns` nanoseconds (0: drives once
/// and looks), and takes at most `capacity` of them, first the one that has ended first. Writes how
/// many to `count`. Returns LINERATE_IN_PROGRESS if there is none. Set `size` of the first
/// completion; the library sets it in the others that it writes. Where one has failed, the text of
/// the last failed one is the last error of the calling thread.
///
/// Threads: any, also several at once: each completion goes to one of them. After fork:
/// LINERATE_ERROR_FORKED.
///
/// # Safety
/// `completions` are `capacity` structs, `count` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_queue_wait(
    queue: linerate_queue,
    completions: *mut linerate_completion,
    capacity: u64,
    limit_ns: u64,
    count: *mut u64,
) -> i32 {
    enter(|| {
        check_place("count", count)?;
        if capacity == 0 {
            return Err(invalid(
                "a queue is waited for with room for 0 completions: 1 or more",
            ));
        }
        // SAFETY: our caller promises it.
        let places = unsafe { Structs::new("completions", completions.cast_const(), capacity)? };
        let (queue, mut ended) = (QUEUE.get(queue)?, Vec::new());
        queue.wait_into(
            &mut ended,
            capacity as usize,
            Duration::from_nanos(limit_ns),
        )?;
        // SAFETY: our caller promises it.
        unsafe { write("count", count, ended.len() as u64)? };
        let is_empty = ended.is_empty();
        for (number, completion) in ended.into_iter().enumerate() {
            let written = linerate_completion {
                size: places.size(),
                user: completion.user,
                status: match completion.result {
                    Ok(()) => LINERATE_DONE,
                    Err(error) => remember(Fault::Library(error)),
                },
                source: completion.source.unwrap_or(LINERATE_ANY_RANK),
            };
            let place = places.place(number as u64).cast_mut();
            // SAFETY: as above; there are at most as many as the caller has room for, and a
            // completion begins with its size.
            unsafe {
                write("completions", place.cast::<u64>(), places.size())?;
                write_back("completions", place, &written)?;
            }
        }
        Ok(if is_empty {
            LINERATE_IN_PROGRESS
        } else {
            LINERATE_DONE
        })
    })
}

/// A descriptor for poll, epoll or select that is readable exactly while completions wait to be
/// taken. Only poll it: it belongs to the queue and is closed with it. From the first call on, a
/// thread of the library moves the operations; with LINERATE_PROGRESS=inline it is an error.
///
/// Threads: any. After fork: LINERATE_ERROR_FORKED.
///
/// # Safety
/// `fd` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_queue_fd(queue: linerate_queue, fd: *mut i32) -> i32 {
    enter(|| {
        check_place("fd", fd)?;
        let queue = QUEUE.get(queue)?;
        let descriptor = queue.descriptor()?.as_raw_fd();
        // SAFETY: our caller promises it.
        unsafe { write("fd", fd, descriptor)? };
        Ok(LINERATE_DONE)
    })
}

/// How many operations of the queue have not ended. Threads: any. After fork: 0 operations.
///
/// # Safety
/// `count` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_queue_running(queue: linerate_queue, count: *mut u64) -> i32 {
    enter(|| {
        let running = QUEUE.get(queue)?.running_count() as u64;
        // SAFETY: our caller promises it.
        unsafe { write("count", count, running)? };
        Ok(LINERATE_DONE)
    })
}

/// Frees a queue; 0 is allowed and does nothing. Operations in it go on, and their ends are told
/// nobody.
///
/// Threads: any. After fork: the child's handle ends, and the parent's queue goes on.
#[unsafe(no_mangle)]
pub extern "C" fn linerate_queue_free(queue: linerate_queue) -> i32 {
    enter(|| QUEUE.free(queue).map(|()| LINERATE_DONE))
}
