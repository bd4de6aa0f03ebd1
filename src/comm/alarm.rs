//! [`Alarm`]: what the threads of a rank sleep on, whatever its transport waits for.
//!
//! Words that peers ring are a [`Bell`]. A descriptor tells only that something has come, and
//! anyone who handles that has to wake the threads whose operations it has ended:
//! [`Alarm::wake_others`].

use crate::kernel;
use crate::memory::{Bell, View};
use crate::sync::{Arc, AtomicBool, AtomicU32, Mutex, Ordering, PoisonError, fence};
use crate::transport::WaitSource;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// See the module.
#[derive(Debug)]
pub(crate) enum Alarm {
    /// Peers ring it.
    Bell(Bell),
    /// The kernel tells what has come.
    Descriptor(Doorbell),
}

/// A descriptor to sleep on, and how threads of this process wake those who do.
#[derive(Debug)]
pub(crate) struct Doorbell {
    ready: Arc<OwnedFd>,
    /// Makes `ready` readable.
    ring: Arc<OwnedFd>,
    /// Threads that sleep or are about to.
    sleeping: AtomicU32,
    /// The same number, where peers look at it.
    seen: Option<View>,
    /// `ring` has been written since it was last read.
    has_rung: AtomicBool,
    /// Held where the first sleeper takes back what woke the last ones, so that it takes nothing
    /// that is for the next.
    entering: Mutex<()>,
}

impl Alarm {
    /// `None` in a simulation, where nobody sleeps.
    pub fn new(source: WaitSource) -> Option<Alarm> {
        match source {
            WaitSource::Futex { bell, sleeping } => Some(Alarm::Bell(Bell::new(bell, sleeping))),
            WaitSource::Descriptor {
                ready,
                ring,
                sleeping: seen,
            } => Some(Alarm::Descriptor(Doorbell {
                ready,
                ring,
                seen,
                sleeping: AtomicU32::new(0),
                has_rung: AtomicBool::new(false),
                entering: Mutex::new(()),
            })),
            WaitSource::Virtual => None,
        }
    }

    /// Wakes every thread of this rank that sleeps. The caller has stored what they wait for.
    pub fn wake(&self) {
        match self {
            Alarm::Bell(bell) => bell.wake(),
            Alarm::Descriptor(doorbell) => doorbell.wake_if_more(0),
        }
    }

    /// The caller has handled what has come. Where peers ring, they have woken everybody by that; a
    /// descriptor may be readable no more. `own`: how many of those counted as sleepers the caller
    /// is.
    #[inline]
    pub fn wake_others(&self, own: u32) {
        if let Alarm::Descriptor(doorbell) = self {
            doorbell.wake_if_more(own);
        }
    }

    /// Sleeps until woken, at most `time`, unless `has_news`: it is asked after this thread was
    /// counted, so whatever it does not see wakes it.
    pub fn sleep(&self, time: Duration, has_news: impl FnOnce() -> bool) {
        match self {
            Alarm::Bell(bell) => bell.sleep(time, has_news),
            Alarm::Descriptor(doorbell) => {
                Doorbell::sleep_on(&[doorbell], time, has_news);
            }
        }
    }
}

impl Doorbell {
    fn wake_if_more(&self, own: u32) {
        // The other side of the fence in `enter`: at least one of the two sees the other's store.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) > own {
            // Only a full counter refuses, and that is readable too.
            let _ = rustix::io::write(&*self.ring, &1u64.to_ne_bytes());
            // After the write: anyone who takes back first finds nothing, and the next one does.
            self.has_rung.store(true, Ordering::Release);
        }
    }

    fn enter(&self) {
        let _entering = self.entering.lock().unwrap_or_else(PoisonError::into_inner);
        if self.sleeping.load(Ordering::Relaxed) == 0
            && self.has_rung.load(Ordering::Relaxed)
            && self.has_rung.swap(false, Ordering::Acquire)
        {
            // Nobody sleeps, so nobody is woken by it any more.
            let _ = rustix::io::read(&*self.ring, &mut [0; 8]);
        }
        self.sleeping.fetch_add(1, Ordering::Relaxed);
        if let Some(seen) = &self.seen {
            kernel::word32(seen, 0).fetch_add(1, Ordering::Relaxed);
        }
    }

    fn leave(&self) {
        if let Some(seen) = &self.seen {
            kernel::word32(seen, 0).fetch_sub(1, Ordering::Relaxed);
        }
        self.sleeping.fetch_sub(1, Ordering::Relaxed);
    }

    /// The same as [`Alarm::sleep`], on several.
    pub fn sleep_on(doorbells: &[&Doorbell], time: Duration, has_news: impl FnOnce() -> bool) {
        doorbells.iter().for_each(|doorbell| doorbell.enter());
        fence(Ordering::SeqCst);
        if !has_news() {
            let of = |doorbell: &&Doorbell| doorbell.ready.clone();
            let descriptors: Vec<Arc<OwnedFd>> = doorbells.iter().map(of).collect();
            let wanted = |d| PollFd::new(d, PollFlags::IN);
            let mut set: Vec<PollFd<'_>> = descriptors.iter().map(|d| wanted(&**d)).collect();
            let limit = Timespec {
                tv_sec: time.as_secs().min(1 << 30) as i64,
                tv_nsec: time.subsec_nanos().into(),
            };
            // Ends early on signals, like any sleep.
            let _ = poll(&mut set, Some(&limit));
        }
        doorbells.iter().for_each(|doorbell| doorbell.leave());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, epoll, eventfd};

    /// Thirty years: a test that sleeps so long has failed.
    const LONG: Duration = Duration::from_secs(1_000_000_000);

    fn alarm() -> (Alarm, Arc<OwnedFd>) {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let ring = Arc::new(eventfd(0, flags).unwrap());
        let ready = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
        let token = epoll::EventData::new_u64(0);
        epoll::add(&*ready, &*ring, token, epoll::EventFlags::IN).unwrap();
        let other = Arc::new(eventfd(0, flags).unwrap());
        epoll::add(&*ready, &*other, token, epoll::EventFlags::IN).unwrap();
        let source = WaitSource::Descriptor {
            ready,
            ring,
            sleeping: None,
        };
        (Alarm::new(source).unwrap(), other)
    }

    #[test]
    fn whoever_is_counted_is_woken_and_the_next_sleep_is_not_cut_short_by_it() {
        let (alarm, _) = alarm();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|_| scope.spawn(|| alarm.sleep(LONG, || false)))
                .collect();
            let Alarm::Descriptor(doorbell) = &alarm else {
                unreachable!("made of descriptors")
            };
            while doorbell.sleeping.load(Ordering::SeqCst) < 3 {
                std::thread::yield_now();
            }
            alarm.wake_others(2);
            threads.into_iter().for_each(|t| t.join().unwrap());
            // Nobody sleeps: nothing is written, and what was written is taken back.
            alarm.wake();
            doorbell.enter();
            let mut set = [PollFd::new(&*doorbell.ready, PollFlags::IN)];
            let at_once = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            assert_eq!(poll(&mut set, Some(&at_once)), Ok(0));
        });
    }

    #[test]
    fn a_sleep_on_several_ends_with_what_comes_to_any() {
        let (first, _first_other) = alarm();
        let (second, other) = alarm();
        let (Alarm::Descriptor(first), Alarm::Descriptor(second)) = (&first, &second) else {
            unreachable!("made of descriptors")
        };
        rustix::io::write(&*other, &1u64.to_ne_bytes()).unwrap();
        Doorbell::sleep_on(&[first, second], LONG, || false);
        // News, and nobody sleeps at all.
        let (third, _third_other) = alarm();
        third.sleep(LONG, || true);
    }
}
