//! Status codes, and what is remembered of the last error of a thread.

use crate::pointers::{write, write_text};
use linerate::{Error, Rank};
use std::cell::RefCell;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// It is done.
pub const LINERATE_DONE: i32 = 0;
/// It has not ended: no error.
pub const LINERATE_IN_PROGRESS: i32 = 1;
/// An argument does not exist or does not fit.
pub const LINERATE_ERROR_INVALID_ARGUMENT: i32 = -1;
/// Nothing moved for the whole timeout. The ranks of the error are those that are missing.
pub const LINERATE_ERROR_TIMEOUT: i32 = -2;
/// Two ranks called different operations at one place of their programs.
pub const LINERATE_ERROR_MISMATCH: i32 = -3;
/// A peer or its link died.
pub const LINERATE_ERROR_PEER_FAILED: i32 = -4;
/// A peer has left in good order, and the operation needs it.
pub const LINERATE_ERROR_LEFT: i32 = -5;
/// The operation was cancelled.
pub const LINERATE_ERROR_CANCELLED: i32 = -6;
/// A rank aborted the communicator.
pub const LINERATE_ERROR_ABORTED: i32 = -7;
/// The communicator failed earlier; linerate_last_error_cause() has the status of the first cause.
pub const LINERATE_ERROR_COMMUNICATOR_FAILED: i32 = -8;
/// The communicator belongs to the process that forked this one.
pub const LINERATE_ERROR_FORKED: i32 = -9;
/// Another operation uses the memory.
pub const LINERATE_ERROR_IN_USE: i32 = -10;
/// Memory, descriptors, handles or another bounded resource is used up.
pub const LINERATE_ERROR_EXHAUSTED: i32 = -11;
/// A transport cannot be used on this machine.
pub const LINERATE_ERROR_UNAVAILABLE: i32 = -12;
/// The ranks could not find each other.
pub const LINERATE_ERROR_BOOTSTRAP: i32 = -13;
/// The operating system refused a call.
pub const LINERATE_ERROR_OS: i32 = -14;
/// Values of a sparse allreduce are not finite.
pub const LINERATE_ERROR_NOT_FINITE: i32 = -15;
/// Bytes of a peer or a file do not have the right form.
pub const LINERATE_ERROR_MALFORMED: i32 = -16;
/// A defect of the library, found by a check.
pub const LINERATE_ERROR_INTERNAL: i32 = -17;
/// A receive with a tag was cancelled before it met a message; nothing else has failed.
pub const LINERATE_ERROR_RECEIVE_CANCELLED: i32 = -19;
/// An error that has no number of its own in this version of the interface.
pub const LINERATE_ERROR_OTHER: i32 = -18;
/// A defect of the library: its code panicked. The process goes on; destroy what the call named.
pub const LINERATE_ERROR_PANIC: i32 = -64;
/// A handle is 0, was freed, was never made, or names an object of another kind.
pub const LINERATE_ERROR_BAD_HANDLE: i32 = -65;

/// Why a call fails.
#[derive(Debug)]
pub(crate) enum Fault {
    Library(Error),
    Handle(String),
    Panic(String),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Library(error)
    }
}

/// An argument is wrong.
pub(crate) fn invalid(what: impl Into<String>) -> Fault {
    Fault::Library(Error::invalid(what))
}

#[derive(Default)]
struct LastError {
    cause: i32,
    text: String,
    ranks: Vec<Rank>,
}

thread_local! {
    static LAST: RefCell<LastError> = RefCell::default();
}

/// Runs the body of an entry of the library; no panic leaves it.
pub(crate) fn enter(body: impl FnOnce() -> Result<i32, Fault>) -> i32 {
    let fault = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => return status,
        Ok(Err(fault)) => fault,
        Err(payload) => {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
            Fault::Panic(text.unwrap_or("a panic without a text").into())
        }
    };
    remember(fault)
}

/// Makes it the last error of this thread; returns its status.
pub(crate) fn remember(fault: Fault) -> i32 {
    let (status, last) = match fault {
        Fault::Library(error) => {
            let last = LastError {
                cause: status_of(error.first_cause()),
                text: error.to_string(),
                ranks: ranks_of(error.first_cause()),
            };
            (status_of(&error), last)
        }
        Fault::Handle(text) => (
            LINERATE_ERROR_BAD_HANDLE,
            own(LINERATE_ERROR_BAD_HANDLE, text),
        ),
        Fault::Panic(text) => {
            let text = format!(
                "the library panicked: {text}; please report it with what all ranks printed"
            );
            (LINERATE_ERROR_PANIC, own(LINERATE_ERROR_PANIC, text))
        }
    };
    // A thread that ends has no place for it any more.
    let _ = LAST.try_with(|place| place.replace(last));
    status
}

fn own(cause: i32, text: String) -> LastError {
    LastError {
        cause,
        text,
        ranks: Vec::new(),
    }
}

pub(crate) fn status_of(error: &Error) -> i32 {
    match error {
        Error::InvalidArgument(_) => LINERATE_ERROR_INVALID_ARGUMENT,
        Error::Timeout { .. } => LINERATE_ERROR_TIMEOUT,
        Error::Mismatch { .. } => LINERATE_ERROR_MISMATCH,
        Error::PeerFailed { .. } => LINERATE_ERROR_PEER_FAILED,
        Error::Left { .. } => LINERATE_ERROR_LEFT,
        Error::Cancelled { .. } => LINERATE_ERROR_CANCELLED,
        Error::ReceiveCancelled { .. } => LINERATE_ERROR_RECEIVE_CANCELLED,
        Error::Aborted { .. } => LINERATE_ERROR_ABORTED,
        Error::CommunicatorFailed(_) => LINERATE_ERROR_COMMUNICATOR_FAILED,
        Error::Forked => LINERATE_ERROR_FORKED,
        Error::InUse { .. } => LINERATE_ERROR_IN_USE,
        Error::Exhausted { .. } => LINERATE_ERROR_EXHAUSTED,
        Error::Unavailable { .. } => LINERATE_ERROR_UNAVAILABLE,
        Error::Bootstrap(_) => LINERATE_ERROR_BOOTSTRAP,
        Error::Os { .. } => LINERATE_ERROR_OS,
        Error::NotFinite { .. } => LINERATE_ERROR_NOT_FINITE,
        Error::Malformed(_) => LINERATE_ERROR_MALFORMED,
        Error::Internal(_) => LINERATE_ERROR_INTERNAL,
        _ => LINERATE_ERROR_OTHER,
    }
}

fn ranks_of(error: &Error) -> Vec<Rank> {
    match error {
        Error::Timeout { missing, .. } => missing.clone(),
        Error::PeerFailed { rank, .. } | Error::Left { rank, .. } => vec![*rank],
        Error::Cancelled { by, .. } | Error::Aborted { by, .. } => vec![*by],
        _ => Vec::new(),
    }
}

/// The constant of a status, as a text that ends with a 0.
macro_rules! names {
    ($status:ident: $($name:ident)*) => {
        match $status {
            $($name => {
                const NAME: &CStr =
                    match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!("a name has no 0"),
                    };
                NAME
            })*
            _ => c"unknown status",
        }
    };
}

/// The name of a status, such as LINERATE_ERROR_TIMEOUT; of a number that is none, "unknown
/// status". The text is constant and never freed. Threads: any. After fork: as before.
#[unsafe(no_mangle)]
pub extern "C" fn linerate_status_text(status: i32) -> *const c_char {
    let text = names! {
        status:
        LINERATE_DONE
        LINERATE_IN_PROGRESS
        LINERATE_ERROR_INVALID_ARGUMENT
        LINERATE_ERROR_TIMEOUT
        LINERATE_ERROR_MISMATCH
        LINERATE_ERROR_PEER_FAILED
        LINERATE_ERROR_LEFT
        LINERATE_ERROR_CANCELLED
        LINERATE_ERROR_RECEIVE_CANCELLED
        LINERATE_ERROR_ABORTED
        LINERATE_ERROR_COMMUNICATOR_FAILED
        LINERATE_ERROR_FORKED
        LINERATE_ERROR_IN_USE
        LINERATE_ERROR_EXHAUSTED
        LINERATE_ERROR_UNAVAILABLE
        LINERATE_ERROR_BOOTSTRAP
        LINERATE_ERROR_OS
        LINERATE_ERROR_NOT_FINITE
        LINERATE_ERROR_MALFORMED
        LINERATE_ERROR_INTERNAL
        LINERATE_ERROR_OTHER
        LINERATE_ERROR_PANIC
        LINERATE_ERROR_BAD_HANDLE
    };
    text.as_ptr()
}

/// The text of the last error of the calling thread: what was tried, with which values, and what to
/// do. It is empty if no call of this thread has failed; a call that succeeds leaves it as it is.
///
/// Writes at most `capacity` bytes to `buffer`, the last of them 0, and the length of the whole
/// text with its 0 to `needed`. Either may be NULL, `buffer` with a capacity of 0.
///
/// Threads: any; each has its own error. After fork: as before.
///
/// # Safety
/// `buffer` has `capacity` bytes; `needed` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_last_error_text(
    buffer: *mut c_char,
    capacity: u64,
    needed: *mut u64,
) -> i32 {
    let text = LAST.try_with(|last| last.borrow().text.clone());
    let text = text.unwrap_or_default();
    // SAFETY: our caller promises it.
    enter(|| unsafe { write_text(&text, buffer, capacity, needed) })
}

/// The status of the first cause of the last error of the calling thread; 0 if no call of it has
/// failed. Where the error is LINERATE_ERROR_COMMUNICATOR_FAILED, it is what failed the
/// communicator; else it is the status that the call has returned.
///
/// Threads: any; each has its own error. After fork: as before.
#[unsafe(no_mangle)]
pub extern "C" fn linerate_last_error_cause() -> i32 {
    LAST.try_with(|last| last.borrow().cause)
        .unwrap_or_default()
}

/// The ranks that the first cause of the last error of the calling thread names: those missing
/// after a timeout, the one that failed, left, cancelled or aborted. Writes at most `capacity` of
/// them to `ranks`, and how many there are to `count`.
///
/// Threads: any; each has its own error. After fork: as before.
///
/// # Safety
/// `ranks` has room for `capacity` numbers; `count` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_last_error_ranks(
    ranks: *mut u32,
    capacity: u64,
    count: *mut u64,
) -> i32 {
    let known = LAST.try_with(|last| last.borrow().ranks.clone());
    let known = known.unwrap_or_default();
    enter(|| {
        // SAFETY: our caller promises it.
        unsafe { write("count", count, known.len() as u64)? };
        for (index, rank) in known.iter().enumerate().take(capacity as usize) {
            // SAFETY: as above; the index is below the capacity.
            unsafe { write("ranks", ranks.wrapping_add(index), *rank)? };
        }
        Ok(LINERATE_DONE)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_status_with_its_text() {
        let status = enter(|| panic!("number {}", 7));
        assert_eq!(status, LINERATE_ERROR_PANIC);
        assert!(LAST.with(|last| last.borrow().text.contains("number 7")));
        assert_eq!(linerate_last_error_cause(), LINERATE_ERROR_PANIC);
    }

    #[test]
    fn the_first_cause_and_its_ranks_are_kept() {
        let failed = Error::Left {
            rank: 5,
            operation: "a barrier".into(),
        };
        let error = Error::CommunicatorFailed(Box::new(failed));
        let status = enter(|| Err(Fault::Library(error)));
        assert_eq!(status, LINERATE_ERROR_COMMUNICATOR_FAILED);
        assert_eq!(linerate_last_error_cause(), LINERATE_ERROR_LEFT);
        let (mut ranks, mut count) = ([0; 2], 0);
        // SAFETY: both are places of this test.
        unsafe { linerate_last_error_ranks(ranks.as_mut_ptr(), 2, &mut count) };
        assert_eq!((ranks, count), ([5, 0], 1));
    }
}
