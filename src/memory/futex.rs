//! Sleeping on a 32-bit word that processes share.

use rustix::thread::futex::{Wait, WaitFlags, WaitPtr, WaitvFlags, waitv};
use rustix::time::{ClockId, Timespec};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Words that [`futex_wait_any`] takes at most: the kernel's FUTEX_WAITV_MAX.
pub const FUTEX_WORDS_MAX: usize = 128;

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

/// Sleeps while every word equals what is expected of it, until `deadline_ns` of CLOCK_MONOTONIC at most. Wakes early on
/// signals and for no reason. False: nothing slept, because the kernel is older than 5.16 or forbids the call.
pub fn futex_wait_any(words: &[(&AtomicU32, u32)], deadline_ns: u64) -> bool {
    assert!(
        words.len() <= FUTEX_WORDS_MAX,
        "a sleep on {} words",
        words.len()
    );
    let mut waits = [Wait::new(); FUTEX_WORDS_MAX];
    for (wait, &(word, expected)) in waits.iter_mut().zip(words) {
        wait.val = u64::from(expected);
        wait.uaddr = WaitPtr::new(word.as_ptr().cast());
        // Not private: the sleeper and the waker are different processes.
        wait.flags = WaitFlags::SIZE_U32;
    }
    let deadline = Timespec {
        tv_sec: (deadline_ns / 1_000_000_000) as i64,
        tv_nsec: (deadline_ns % 1_000_000_000) as _,
    };
    let waits = &waits[..words.len()];
    let woken = waitv(
        waits,
        WaitvFlags::empty(),
        Some(&deadline),
        ClockId::Monotonic,
    );
    !matches!(
        woken,
        Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM | rustix::io::Errno::INVAL)
    )
}
