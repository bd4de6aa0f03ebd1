//! Sleeping on a 32-bit word that processes share.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps while `word` equals `expected`, at most `timeout`. Wakes early on signals and for no reason.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout: Duration) {
    let spec = libc::timespec {
        tv_sec: timeout.as_secs().min(1 << 30) as libc::time_t,
        tv_nsec: timeout.subsec_nanos() as libc::c_long,
    };
    // SAFETY: the word is a live aligned u32 and the timespec lives through the call. FUTEX_WAIT without
    // the private flag, because the sleeper and the waker are different processes.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            &spec,
        );
    }
}

/// Wakes everyone who sleeps on `word`.
pub fn futex_wake_all(word: &AtomicU32) {
    // SAFETY: the word is a live aligned u32; waking has no other effect on memory.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
    }
}
