//! Futex system calls: a thread sleeps on 32-bit words that processes share, and another wakes it.

use rustix::thread::futex::{Flags, Wait, WaitFlags, WaitPtr, WaitvFlags, wait, waitv, wake};
use rustix::time::{ClockId, Timespec};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Most words that [`futex_wait_any`] takes; the kernel's FUTEX_WAITV_MAX.
pub const FUTEX_WORDS_MAX: usize = 128;

/// Not private: the sleeper and the waker are different processes.
const SHARED: Flags = Flags::empty();

/// Sleeps while `word` equals `expected`, for `timeout` at most. It may end early, on a signal or
/// without a reason.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout: Duration) {
    // The caller looks again in any case: after a change of the word, the timeout or a signal.
    let _ = wait(word, SHARED, expected, Some(&timespec(timeout)));
}

/// Wakes every thread that sleeps on `word`.
pub fn futex_wake_all(word: &AtomicU32) {
    // It fails only if the address is not mapped, but a reference always is.
    let _ = wake(word, SHARED, i32::MAX as u32);
}

/// A time in the form of the kernel; at most thirty years, which no wait reaches.
pub(super) fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs().min(1 << 30) as i64,
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// Sleeps while every word equals the value beside it, until `deadline_ns` on CLOCK_MONOTONIC at
/// most. It may end early, on a signal or without a reason. Returns false if it did not sleep
/// because the kernel is older than 5.16 or forbids the call.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    /// Thirty years after the start of the machine. A test that sleeps until then has failed.
    const FAR_NS: u64 = 1_000_000_000_000_000_000;

    #[test]
    fn a_sleep_on_several_words_ends_with_a_wake_of_any() {
        let words: Vec<AtomicU32> = (0..FUTEX_WORDS_MAX as u32).map(AtomicU32::new).collect();
        let is_known = futex_wait_any(&[(&words[0], 1)], FAR_NS);
        if !is_known {
            println!("skipped: this kernel has no futex_waitv");
            return;
        }
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                let expected = words.iter().zip(0..);
                futex_wait_any(&expected.collect::<Vec<_>>(), FAR_NS)
            });
            // After the store no sleep begins, so the wake may also come before the sleep.
            words[FUTEX_WORDS_MAX - 1].store(0, Ordering::SeqCst);
            futex_wake_all(&words[FUTEX_WORDS_MAX - 1]);
            assert!(sleeper.join().unwrap());
        });
    }

    #[test]
    fn a_sleep_ends_at_its_deadline() {
        let word = AtomicU32::new(3);
        futex_wait_any(&[(&word, 3)], 1);
        futex_wait(&word, 3, Duration::from_millis(1));
    }
}
