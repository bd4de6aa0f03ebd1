//! Signal handlers, kept as they are while a library starts.
//!
//! Debian's libfabric replaces those of SIGSEGV, SIGBUS, SIGILL, SIGABRT, SIGINT and SIGTERM: one
//! of its providers (psm) brings a library that prints backtraces. A runtime's own handlers must
//! survive that (Rust's, for overflowing stacks; Python's, for Ctrl-C).

use std::mem::MaybeUninit;
use std::os::raw::c_int;
use std::sync::{Mutex, PoisonError};

/// The largest number of a signal on Linux.
const SIGNAL_MAX: c_int = 64;

/// What the process does with each signal, at one moment.
struct Actions(Vec<(c_int, libc::sigaction)>);

impl Actions {
    fn now() -> Actions {
        Actions(
            (1..=SIGNAL_MAX)
                .filter_map(|signal| Some((signal, action(signal)?)))
                .collect(),
        )
    }

    /// Puts back what has changed since. Handlers that were not touched are not written, because
    /// another thread may be setting one.
    fn restore(&self) {
        for (signal, before) in &self.0 {
            let is_same = action(*signal).is_some_and(|now| {
                (now.sa_sigaction, now.sa_flags) == (before.sa_sigaction, before.sa_flags)
            });
            if !is_same {
                // SAFETY: the action came from the kernel and its handler is still there, because
                // nothing was unloaded meanwhile.
                unsafe { libc::sigaction(*signal, before, std::ptr::null_mut()) };
            }
        }
    }
}

/// What the process does with a signal; `None` for numbers that the C library keeps to itself.
fn action(signal: c_int) -> Option<libc::sigaction> {
    let mut now = MaybeUninit::zeroed();
    // SAFETY: `now` is writable, and nothing is changed.
    let status = unsafe { libc::sigaction(signal, std::ptr::null(), now.as_mut_ptr()) };
    // SAFETY: the call filled it.
    (status == 0).then(|| unsafe { now.assume_init() })
}

/// One thread at a time: another one would take replaced handlers for those of before.
static KEEPING: Mutex<()> = Mutex::new(());

/// Runs `work`, and then puts the signal handlers back that it has replaced.
pub(crate) fn keeping_handlers<T>(work: impl FnOnce() -> T) -> T {
    let _guard = KEEPING.lock().unwrap_or_else(PoisonError::into_inner);
    let before = Actions::now();
    let result = work();
    before.restore();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn ignore(_: c_int) {}

    #[test]
    fn a_replaced_handler_is_put_back() {
        let handler = |signal| action(signal).unwrap().sa_sigaction;
        let before = handler(libc::SIGUSR2);
        let during = keeping_handlers(|| {
            // SAFETY: the handler does nothing.
            unsafe { libc::signal(libc::SIGUSR2, ignore as *const () as libc::sighandler_t) };
            handler(libc::SIGUSR2)
        });
        assert_ne!(during, before);
        assert_eq!(handler(libc::SIGUSR2), before);
    }
}
