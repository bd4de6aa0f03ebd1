//! [`ProcessMark`]: tells a forked child from the process that made something, without a system
//! call; [`ProcessOwned`]: what only that process may use.
//!
//! One page of the process is wiped by the kernel in every child (`MADV_WIPEONFORK`, Linux 4.14).
//! It holds the number of the process; a child that makes something itself writes a larger one. So
//! a mark of the parent never fits a child, and whatever the child makes is its own.

use crate::error::{Error, Result};
use memmap2::MmapMut;
use rustix::mm::{Advice, madvise};
use std::mem::ManuallyDrop;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The page; mapped once and never unmapped.
static PAGE: AtomicPtr<u8> = AtomicPtr::new(null_mut());
/// The largest number given so far here and in the processes that this one descends from.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// The process in which something was made.
#[derive(Clone, Copy, Debug)]
pub struct ProcessMark {
    word: &'static AtomicU64,
    number: u64,
}

impl ProcessMark {
    /// This process.
    pub fn current() -> Result<ProcessMark> {
        let word = page()?;
        // Relaxed throughout: the numbers order nothing, and a child begins with one thread.
        let fresh = match word.load(Ordering::Relaxed) {
            0 => NUMBERS.fetch_add(1, Ordering::Relaxed) + 1,
            number => return Ok(ProcessMark { word, number }),
        };
        let set = word.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed);
        let number = set.map_or_else(|others| others, |_| fresh);
        Ok(ProcessMark { word, number })
    }

    /// Whether the calling process is a child, of any generation, of the process of the mark.
    #[inline]
    pub fn is_forked(&self) -> bool {
        self.word.load(Ordering::Relaxed) != self.number
    }

    /// The error of a call that only the process of the mark may make.
    #[inline]
    pub fn check(&self) -> Result<()> {
        match self.is_forked() {
            false => Ok(()),
            true => Err(Error::Forked),
        }
    }
}

/// What only the process that made it may use. A forked child gets an error instead of it, and
/// never drops it: its locks may be held by threads that the child does not have, and its sockets
/// speak in the parent's name.
///
/// What is inside is reached through [`ProcessOwned::get`] alone, so that no function can forget to
/// look.
#[derive(Debug)]
pub struct ProcessOwned<T> {
    process: ProcessMark,
    value: ManuallyDrop<T>,
}

impl<T> ProcessOwned<T> {
    /// A value that belongs to the process of this mark.
    pub fn new(process: ProcessMark, value: T) -> ProcessOwned<T> {
        ProcessOwned {
            process,
            value: ManuallyDrop::new(value),
        }
    }

    /// The value; [`Error::Forked`] in a forked child.
    #[inline]
    pub fn get(&self) -> Result<&T> {
        self.process.check()?;
        Ok(&self.value)
    }

    /// As [`ProcessOwned::get`], to change it.
    #[inline]
    pub fn get_mut(&mut self) -> Result<&mut T> {
        self.process.check()?;
        Ok(&mut self.value)
    }

    /// The process that owns it.
    pub fn process(&self) -> ProcessMark {
        self.process
    }
}

impl<T> Drop for ProcessOwned<T> {
    fn drop(&mut self) {
        if !self.process.is_forked() {
            // SAFETY: dropped here alone, and this value is never used again.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}

/// The first word of the page that children find empty.
fn page() -> Result<&'static AtomicU64> {
    let bytes = rustix::param::page_size();
    // Acquire pairs with the exchange below, which publishes the page after it was advised.
    let mut address = PAGE.load(Ordering::Acquire);
    if address.is_null() {
        let mut fresh = map_page(bytes).map_err(|e| {
            Error::os(
                "making a page that a fork wipes (needs Linux 4.14 or later)",
                e,
            )
        })?;
        let own = fresh.as_mut_ptr();
        let set = PAGE.compare_exchange(null_mut(), own, Ordering::AcqRel, Ordering::Acquire);
        address = set.map_or_else(
            |others| others,
            |_| {
                std::mem::forget(fresh);
                own
            },
        );
    }
    // SAFETY: the start of a page that is never unmapped, so aligned and valid for ever, and only
    // accessed as atomics.
    Ok(unsafe { AtomicU64::from_ptr(address.cast()) })
}

fn map_page(bytes: usize) -> std::io::Result<MmapMut> {
    let mut fresh = MmapMut::map_anon(bytes)?;
    // SAFETY: the range was mapped just now; the advice changes what children see, and nothing
    // here.
    unsafe { madvise(fresh.as_mut_ptr().cast(), bytes, Advice::LinuxWipeOnFork) }?;
    Ok(fresh)
}

/// Forked processes, for tests.
#[cfg(test)]
pub(crate) mod child {
    /// A child that runs `run` and ends with its result, without running anything else of this
    /// program.
    ///
    /// Only the calling thread exists in the child: `run` must not wait for another one.
    pub(crate) fn spawn(run: impl FnOnce() -> i32) -> i32 {
        // SAFETY: libc makes its own locks usable in the child; others are the caller's affair.
        match unsafe { libc::fork() } {
            // SAFETY: ends the child without running anything of the parent's.
            0 => unsafe { libc::_exit(run()) },
            pid => {
                assert!(pid > 0, "{}", std::io::Error::last_os_error());
                pid
            }
        }
    }

    /// Its exit code, once it has ended; `None` if a signal has ended it.
    pub(crate) fn wait(pid: i32) -> Option<i32> {
        let mut status = 0;
        // SAFETY: waits for a child of this process; the status is a live integer.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
    }

    /// Kills a child of this process, or a process that a child has made.
    pub(crate) fn kill(pid: i32) {
        // SAFETY: sends a signal, which touches no memory of this process.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::child::{spawn, wait};
    use super::*;

    #[test]
    fn a_child_is_forked_and_what_it_makes_is_its_own() {
        let mark = ProcessMark::current().unwrap();
        assert!(!mark.is_forked());
        let child = spawn(|| {
            let before = mark.is_forked();
            let own = ProcessMark::current().unwrap();
            let grandchild = wait(spawn(|| i32::from(mark.is_forked() && own.is_forked())));
            i32::from(before && mark.is_forked() && !own.is_forked() && grandchild == Some(1))
        });
        assert_eq!(wait(child), Some(1));
        assert!(!mark.is_forked(), "the parent goes on");
        assert_eq!(ProcessMark::current().unwrap().number, mark.number);
    }

    #[test]
    fn a_child_neither_gets_nor_drops_what_is_the_parents() {
        let mark = ProcessMark::current().unwrap();
        let value = std::sync::Arc::new(7);
        let mut owned = Some(ProcessOwned::new(mark, value.clone()));
        let child = spawn(|| {
            let mut owned = owned.take().unwrap();
            let is_refused = owned.get() == Err(Error::Forked);
            let is_refused = is_refused && owned.get_mut() == Err(Error::Forked);
            drop(owned);
            i32::from(is_refused && std::sync::Arc::strong_count(&value) == 2)
        });
        assert_eq!(wait(child), Some(1));
        assert_eq!(owned.as_mut().unwrap().get_mut().map(|it| **it), Ok(7));
        drop(owned);
        assert_eq!(std::sync::Arc::strong_count(&value), 1);
    }
}
