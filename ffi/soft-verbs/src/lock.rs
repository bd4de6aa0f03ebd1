//! [`Lock`]: a lock in memory that processes share, which survives that its holder dies or is
//! stopped.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};

/// After this long a holder is looked at: no process that runs holds a lock for so long.
const WAIT_NS: libc::c_long = 20_000_000;
/// How often, and how many microseconds apart, a waiter looks whether a holder that goes on has let
/// go.
const MOVING_ON_LOOKS_MAX: u32 = 10_000;
const MOVING_ON_LOOK_US: libc::c_uint = 1;

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
        let mut taken = unsafe { libc::pthread_mutex_trylock(self.raw.get()) };
        while taken == libc::EBUSY || taken == libc::ETIMEDOUT {
            if taken == libc::ETIMEDOUT {
                self.move_on();
            }
            // SAFETY: as above, and the time is one.
            taken = unsafe { libc::pthread_mutex_timedlock(self.raw.get(), &in_a_while()) };
        }
        if taken == libc::EOWNERDEAD {
            // SAFETY: this thread holds it.
            unsafe { libc::pthread_mutex_consistent(self.raw.get()) };
        }
        Guard { lock: self }
    }

    /// A process that was stopped while it holds the lock goes on until it has let go, and stops
    /// again: the NIC that it stands for would not stop with its process.
    fn move_on(&self) {
        let holder = self.holder();
        if holder == 0 || !is_stopped(holder) {
            return;
        }
        // SAFETY: signals to a process that runs this library.
        unsafe {
            libc::kill(holder, libc::SIGCONT);
            for _ in 0..MOVING_ON_LOOKS_MAX {
                if self.holder() != holder {
                    break;
                }
                libc::usleep(MOVING_ON_LOOK_US);
            }
            libc::kill(holder, libc::SIGSTOP);
        }
    }

    /// The thread that holds the lock, 0 for none. The first word of a robust mutex has its number,
    /// because the kernel looks there when the thread ends (set_robust_list(2)).
    fn holder(&self) -> libc::pid_t {
        // SAFETY: the word is part of the mutex, and is only changed atomically.
        let word = unsafe { &*self.raw.get().cast::<AtomicU32>() };
        (word.load(Ordering::Relaxed) & libc::FUTEX_TID_MASK) as libc::pid_t
    }
}

/// The time until which a lock is waited for before its holder is looked at.
fn in_a_while() -> libc::timespec {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the clock writes its time there.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut time) };
    time.tv_nsec += WAIT_NS;
    if time.tv_nsec >= 1_000_000_000 {
        time.tv_sec += 1;
        time.tv_nsec -= 1_000_000_000;
    }
    time
}

/// Whether a signal has stopped this thread's process.
fn is_stopped(thread: libc::pid_t) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{thread}/stat")).unwrap_or_default();
    // The state follows the name, which is in parentheses.
    let state = stat.rsplit(')').next().unwrap_or_default();
    state.trim_start().starts_with('T')
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread holds it.
        unsafe { libc::pthread_mutex_unlock(self.lock.raw.get()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lock in memory that a forked process shares.
    fn shared() -> &'static Lock {
        let (bytes, protection) = (size_of::<Lock>(), libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: new memory, all zero, which is never unmapped.
        let lock = unsafe {
            let memory = libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0);
            assert_ne!(memory, libc::MAP_FAILED);
            &*memory.cast::<Lock>()
        };
        lock.initialise();
        lock
    }

    /// Forks a process that takes the lock, and waits until it has stopped itself. It lets go when
    /// it goes on.
    fn stopped_holder(lock: &Lock) -> libc::pid_t {
        // SAFETY: the child takes a lock that nobody has, stops and ends: it allocates nothing.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let guard = lock.lock();
                libc::raise(libc::SIGSTOP);
                drop(guard);
                loop {
                    libc::pause();
                }
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, libc::WUNTRACED), child);
            assert!(libc::WIFSTOPPED(status));
            child
        }
    }

    fn end(child: libc::pid_t) {
        // SAFETY: a child of this process.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
    }

    #[test]
    fn a_stopped_holder_lets_go_and_is_stopped_again() {
        let lock = shared();
        let child = stopped_holder(lock);
        drop(lock.lock());
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !is_stopped(child) {
            assert!(std::time::Instant::now() < deadline, "it runs");
            std::thread::yield_now();
        }
        end(child);
    }

    #[test]
    fn the_lock_of_a_dead_holder_is_taken() {
        let lock = shared();
        let child = stopped_holder(lock);
        end(child);
        drop(lock.lock());
        drop(lock.lock());
    }
}
