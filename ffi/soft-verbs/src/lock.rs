//! [`Lock`]: a lock in memory that processes share, which survives the death of its holder.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};

/// A lock that lies in shared memory. If its holder is killed, the next process takes it: what it
/// protects is written in an order that keeps it valid at every step.
#[repr(C)]
pub struct Lock {
    /// 1: it is usable.
    made: AtomicU32,
    raw: UnsafeCell<libc::pthread_mutex_t>,
}

// SAFETY: a process-shared mutex may be used by any thread of any process that maps it.
unsafe impl Sync for Lock {}

/// The lock is held until this is dropped.
pub struct Guard<'a> {
    lock: &'a Lock,
}

impl Lock {
    /// Makes the lock usable, once only: peers that know an earlier object in this place may still
    /// take it.
    pub fn initialise(&self) {
        if self.made.swap(1, Ordering::Relaxed) == 1 {
            return;
        }
        let mut attributes = std::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        let at = attributes.as_mut_ptr();
        // SAFETY: the attributes are initialised before they are used; the mutex is memory of its
        // size that nobody uses yet.
        unsafe {
            libc::pthread_mutexattr_init(at);
            libc::pthread_mutexattr_setpshared(at, libc::PTHREAD_PROCESS_SHARED);
            libc::pthread_mutexattr_setrobust(at, libc::PTHREAD_MUTEX_ROBUST);
            libc::pthread_mutex_init(self.raw.get(), at);
            libc::pthread_mutexattr_destroy(at);
        }
    }

    /// Waits until nobody else has it.
    pub fn lock(&self) -> Guard<'_> {
        // SAFETY: it was initialised by the owner of the memory before anybody could name it.
        unsafe {
            if libc::pthread_mutex_lock(self.raw.get()) == libc::EOWNERDEAD {
                libc::pthread_mutex_consistent(self.raw.get());
            }
        }
        Guard { lock: self }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread holds it.
        unsafe { libc::pthread_mutex_unlock(self.lock.raw.get()) };
    }
}
