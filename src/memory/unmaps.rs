//! [`Unmaps`]: notices when watched memory of a caller is unmapped, moved or given back to the
//! kernel. A registration holds the pages that were there before, so it must not be used after
//! that.
//!
//! The kernel tells it through a `userfaultfd`, as libfabric's monitor of that name has it do. The
//! watched pages are registered for write protection and never protected, so no access to them
//! faults. Some systems forbid the call (containers with seccomp); then nothing can be watched.
//!
//! A thread that unmaps watched memory is held by the kernel until the event is read, which a
//! thread of its own does. This thread takes no lock and allocates nothing: the thread that is held
//! may be inside the allocator or hold any lock. While an event is not read yet, another thread may
//! already map other memory at the address; the kernel refuses calls on the descriptor meanwhile,
//! and [`Unmaps::is_watched`] waits for that to end.

use super::{ProcessMark, ProcessOwned};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::mm::{UserfaultfdFlags, userfaultfd};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError, Weak};

/// Changes that are remembered. Who has missed more takes it that everything has changed.
const CHANGES_KEPT: usize = 64;
/// Turns of a wait for another thread, which needs a few system calls.
const TURNS_MAX: u32 = 100_000;
/// Events read at once.
const EVENTS_AT_ONCE: usize = 16;

/// The numbers of `linux/userfaultfd.h`.
mod uffd {
    pub const API: u64 = 0xaa;
    pub const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
    pub const FEATURE_EVENT_REMAP: u64 = 1 << 2;
    pub const FEATURE_EVENT_REMOVE: u64 = 1 << 3;
    pub const FEATURE_EVENT_UNMAP: u64 = 1 << 6;
    pub const REGISTER_MODE_WP: u64 = 1 << 1;
    pub const WRITEPROTECT_MODE_DONTWAKE: u64 = 1 << 1;
    pub const EVENT_REMAP: u8 = 0x14;
    pub const EVENT_REMOVE: u8 = 0x15;
    pub const EVENT_UNMAP: u8 = 0x16;
    pub const IOCTL_API: libc::Ioctl = 0xc018_aa3f;
    pub const IOCTL_REGISTER: libc::Ioctl = 0xc020_aa00;
    pub const IOCTL_WRITEPROTECT: libc::Ioctl = 0xc018_aa06;
    /// Words of an event: its kind in the first byte, two addresses and perhaps a length.
    pub const EVENT_WORDS: usize = 4;
}

/// See the module.
#[derive(Debug)]
pub struct Unmaps {
    // Dropped before the thread ends, so that the thread closes the descriptor: while it is open,
    // the thread must not unmap anything, and at its end it unmaps its stacks and those of others.
    shared: Arc<Shared>,
    process: ProcessMark,
    _thread: ProcessOwned<Reader>,
}

/// The thread. It ends when this is dropped.
#[derive(Debug)]
struct Reader {
    end: Arc<OwnedFd>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// What the thread uses.
#[derive(Debug)]
struct Shared {
    descriptor: OwnedFd,
    /// The thread reads events, so the last ones may not be among the changes yet; or it has not
    /// begun.
    is_reading: AtomicBool,
    /// Number of changes so far.
    count: AtomicU64,
    /// The latest changes: first byte, and the one behind the last.
    changes: [[AtomicUsize; 2]; CHANGES_KEPT],
}

/// What this process has, if something in it uses it.
static CURRENT: Mutex<Weak<Unmaps>> = Mutex::new(Weak::new());

impl Unmaps {
    /// What all users in this process share; an error if the system does not allow it.
    pub fn current() -> std::io::Result<Arc<Unmaps>> {
        // In a forked child another thread of the parent may have held the lock for good.
        let mut turns = 0;
        let mut current = loop {
            match CURRENT.try_lock() {
                Ok(current) => break current,
                Err(TryLockError::Poisoned(error)) => break error.into_inner(),
                Err(TryLockError::WouldBlock) if turns == TURNS_MAX => {
                    return Err(std::io::ErrorKind::WouldBlock.into());
                }
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
            turns += 1;
        };
        let known = current.upgrade().filter(|all| !all.process.is_forked());
        if let Some(known) = known {
            return Ok(known);
        }
        let new = Arc::new(Unmaps::new()?);
        *current = Arc::downgrade(&new);
        Ok(new)
    }

    fn new() -> std::io::Result<Unmaps> {
        let process = ProcessMark::current().map_err(std::io::Error::other)?;
        /// Faults of the kernel's own accesses need a privilege, and there are no faults.
        const USER_MODE_ONLY: UserfaultfdFlags = UserfaultfdFlags::from_bits_retain(1);
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | USER_MODE_ONLY;
        // SAFETY: no page is ever protected, so no access waits for an answer.
        let descriptor = unsafe { userfaultfd(flags) }?;
        let features = uffd::FEATURE_PAGEFAULT_FLAG_WP
            | uffd::FEATURE_EVENT_REMAP
            | uffd::FEATURE_EVENT_REMOVE
            | uffd::FEATURE_EVENT_UNMAP;
        control(
            &descriptor,
            uffd::IOCTL_API,
            &mut [uffd::API, features, 0, 0],
        )?;
        let shared = Arc::new(Shared {
            descriptor,
            is_reading: AtomicBool::new(true),
            count: AtomicU64::new(0),
            changes: std::array::from_fn(|_| Default::default()),
        });
        let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let (of_thread, end_of_thread) = (shared.clone(), end.clone());
        let thread = std::thread::Builder::new()
            .name("linerate-unmaps".into())
            .stack_size(128 << 10)
            .spawn(move || of_thread.run(&end_of_thread))?;
        // A thread that begins allocates.
        while shared.is_reading.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let reader = Reader {
            end,
            thread: Some(thread),
        };
        Ok(Unmaps {
            shared,
            process,
            _thread: ProcessOwned::new(process, reader),
        })
    }

    /// Watches the pages of these bytes from now on. An error if they are not mapped, or are pages
    /// of a file that the kernel does not watch.
    pub fn watch(&self, bytes: &Range<usize>) -> std::io::Result<()> {
        let page = rustix::param::page_size();
        let start = bytes.start / page * page;
        let pages = (bytes.end - start).next_multiple_of(page);
        let mut request = [start as u64, pages as u64, uffd::REGISTER_MODE_WP, 0];
        control(&self.shared.descriptor, uffd::IOCTL_REGISTER, &mut request)
    }

    /// Whether the page of this address is watched. Every unmapping that has begun before this call
    /// is among the changes when it returns. False too if a thread that unmaps does not go on.
    pub fn is_watched(&self, address: usize) -> bool {
        let page = rustix::param::page_size();
        let start = (address / page * page) as u64;
        let shared = &*self.shared;
        let mode = uffd::WRITEPROTECT_MODE_DONTWAKE;
        for _ in 0..TURNS_MAX {
            let mut request = [start, page as u64, mode, 0];
            let checked = control(&shared.descriptor, uffd::IOCTL_WRITEPROTECT, &mut request);
            let code = checked
                .as_ref()
                .err()
                .and_then(std::io::Error::raw_os_error);
            if code != Some(libc::EAGAIN) && !shared.is_reading.load(Ordering::SeqCst) {
                return checked.is_ok();
            }
            std::thread::yield_now();
        }
        false
    }

    /// The changes after the first `seen`, which is set to the number of all. `None`: they are more
    /// than are remembered.
    pub fn changes_since(&self, seen: &mut u64) -> Option<Vec<Range<usize>>> {
        let shared = &*self.shared;
        let count = shared.count.load(Ordering::Acquire);
        let first = std::mem::replace(seen, count);
        let load = |number: u64| {
            let [start, end] = &shared.changes[number as usize % CHANGES_KEPT];
            start.load(Ordering::Relaxed)..end.load(Ordering::Relaxed)
        };
        let is_kept = |count: u64| count - first < CHANGES_KEPT as u64;
        let changes = (is_kept(count)).then(|| (first..count).map(load).collect());
        // Those that came meanwhile may have replaced some.
        std::sync::atomic::fence(Ordering::Acquire);
        changes.filter(|_| is_kept(shared.count.load(Ordering::Relaxed)))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // It cannot fail: the counter is far from its end.
        let _ = rustix::io::write(&*self.end, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Until `end` is readable.
    fn run(&self, end: &OwnedFd) {
        block_signals();
        self.is_reading.store(false, Ordering::SeqCst);
        loop {
            let of = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
            let mut both = [of(self.descriptor.as_fd()), of(end.as_fd())];
            let found = poll(&mut both, None);
            if found.is_ok() && !both[1].revents().is_empty() {
                return;
            }
            self.is_reading.store(true, Ordering::SeqCst);
            self.read();
            self.is_reading.store(false, Ordering::SeqCst);
        }
    }

    fn read(&self) {
        const EVENT_BYTES: usize = 8 * uffd::EVENT_WORDS;
        let mut events = [0u8; EVENT_BYTES * EVENTS_AT_ONCE];
        let bytes = rustix::io::read(&self.descriptor, &mut events).unwrap_or(0);
        for event in events[..bytes].chunks_exact(EVENT_BYTES) {
            let word = |at: usize| {
                let bytes = event[8 * at..8 * at + 8].try_into();
                u64::from_ne_bytes(bytes.expect("8 bytes")) as usize
            };
            let change = match event[0] {
                uffd::EVENT_REMAP => word(1)..word(1) + word(3),
                uffd::EVENT_REMOVE | uffd::EVENT_UNMAP => word(1)..word(2),
                _ => continue,
            };
            let count = self.count.load(Ordering::Relaxed);
            let [start, end] = &self.changes[count as usize % CHANGES_KEPT];
            start.store(change.start, Ordering::Relaxed);
            end.store(change.end, Ordering::Relaxed);
            self.count.store(count + 1, Ordering::Release);
        }
    }
}

/// Lets no handler of the program run on this thread: it could unmap watched memory.
fn block_signals() {
    // SAFETY: the set is filled before it is used, and only this thread's mask changes.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
    }
}

/// A call on the descriptor with this request.
fn control(
    descriptor: &OwnedFd,
    request: libc::Ioctl,
    words: &mut [u64; 4],
) -> std::io::Result<()> {
    // SAFETY: the structs of the three requests are at most these four words, and hold addresses
    // as numbers only. No request changes bytes of the memory that it names.
    let result = unsafe { libc::ioctl(descriptor.as_raw_fd(), request, words.as_mut_ptr()) };
    match result {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use memmap2::MmapMut;
    use std::sync::{MutexGuard, PoisonError};

    const BYTES: usize = 1 << 20;

    /// Lets one test at a time watch memory: another could map and watch the same addresses.
    /// `None`, said aloud: this system forbids it.
    pub(crate) fn alone() -> Option<(Arc<Unmaps>, MutexGuard<'static, ()>)> {
        static ALONE: Mutex<()> = Mutex::new(());
        let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let unmaps = Unmaps::current();
        let unmaps = unmaps.inspect_err(|error| println!("skipped: userfaultfd: {error}"));
        Some((unmaps.ok()?, guard))
    }

    fn mapped() -> (MmapMut, Range<usize>) {
        let mut map = MmapMut::map_anon(BYTES).unwrap();
        map[0] = 1;
        let start = map.as_ptr().addr();
        (map, start..start + BYTES)
    }

    #[test]
    fn memory_that_is_unmapped_or_given_back_is_among_the_changes() {
        let Some((unmaps, _guard)) = alone() else {
            return;
        };
        let (mut map, bytes) = mapped();
        assert!(!unmaps.is_watched(bytes.start));
        unmaps.watch(&bytes).unwrap();
        assert!(unmaps.is_watched(bytes.start) && unmaps.is_watched(bytes.end - 1));
        map.fill(2);
        let mut seen = 0;
        unmaps.changes_since(&mut seen);
        // Other tests of this process may unmap, too.
        let has_changed = |seen: &mut u64, bytes: &Range<usize>| {
            let changes = unmaps.changes_since(seen);
            changes.is_none_or(|changes| changes.contains(bytes))
        };
        let half = bytes.start..bytes.start + BYTES / 2;
        // SAFETY: it is anonymous memory, of which zeros are as good as any bytes.
        unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, 0, BYTES / 2) }
            .unwrap();
        assert!(unmaps.is_watched(bytes.start));
        assert!(has_changed(&mut seen, &half));
        drop(map);
        assert!(!unmaps.is_watched(bytes.start));
        assert!(has_changed(&mut seen, &bytes));
    }

    #[test]
    fn memory_that_another_thread_maps_at_an_address_just_unmapped_is_not_taken_for_the_old() {
        let Some((unmaps, _guard)) = alone() else {
            return;
        };
        for _ in 0..200 {
            let (map, bytes) = mapped();
            unmaps.watch(&bytes).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| drop(map));
                scope.spawn(|| {
                    // Until the address is free, or something else has it.
                    for _ in 0..100 {
                        let (other, at) = mapped();
                        if at.start == bytes.start {
                            assert!(!unmaps.is_watched(at.start));
                            return;
                        }
                        drop(other);
                    }
                });
            });
        }
    }

    #[test]
    fn who_has_missed_too_many_changes_is_told_so() {
        let Some((unmaps, _guard)) = alone() else {
            return;
        };
        let mut seen = unmaps.shared.count.load(Ordering::Acquire);
        for _ in 0..2 * CHANGES_KEPT {
            let (map, bytes) = mapped();
            unmaps.watch(&bytes).unwrap();
            drop(map);
        }
        assert_eq!(unmaps.changes_since(&mut seen), None);
        assert_eq!(
            unmaps
                .changes_since(&mut seen)
                .map(|c| c.len() < CHANGES_KEPT),
            Some(true)
        );
    }
}
