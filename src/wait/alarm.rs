//! [`Alarm`]: what the threads of a rank sleep on, for every kind of transport, and [`sleep_on`].
//!
//! Peers ring a [`Bell`] by themselves. A descriptor tells only that something has come, so the
//! thread that handles it has to wake the threads whose operations it has ended:
//! [`Alarm::wake_others`].

use super::clock::Clock;
use super::futex::timespec;
use super::{Bell, FUTEX_WORDS_MAX, futex_wait, futex_wait_any};
use crate::kernel;
use crate::memory::View;
use crate::sync::{Arc, AtomicBool, AtomicU32, Mutex, Ordering, PoisonError, fence};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// How long a sleep lasts that cannot hear all its alarms.
const DEAF_SLEEP: Duration = Duration::from_millis(1);

/// What a waiting thread sleeps on, as a transport tells it.
///
/// A provider over both memory and descriptors gives its descriptor and `sleeping`, and peers that
/// share memory with it make the descriptor readable while that says so: then one thread sleeps on
/// everything at once.
#[derive(Clone, Debug)]
pub enum WaitSource {
    /// Two 32-bit words. Announce the sleep by adding 1 to `sleeping` (and a full fence), check
    /// once more that there is nothing to do, sleep while `bell` has the value read before,
    /// subtract 1.
    Futex {
        /// Changes with every wake-up.
        bell: View,
        /// Not zero: wakers must ring the bell.
        sleeping: View,
    },
    /// For poll(2).
    Descriptor {
        /// Readable while something has arrived that no poll has seen, and while `ring` is.
        ready: Arc<OwnedFd>,
        /// An eventfd for the caller's own threads: the provider neither writes nor reads it.
        ring: Arc<OwnedFd>,
        /// As that of [`WaitSource::Futex`], where some peers look at it.
        sleeping: Option<View>,
    },
    /// Time is virtual: the caller who steps the simulation decides.
    Virtual,
}

/// See the module.
#[derive(Debug)]
pub enum Alarm {
    /// Peers ring it.
    Bell(Bell),
    /// The kernel tells what has come.
    Descriptor(Doorbell),
}

/// A descriptor to sleep on, and how threads of this process wake those that do.
#[derive(Debug)]
pub struct Doorbell {
    ready: Arc<OwnedFd>,
    /// Makes `ready` readable.
    ring: Arc<OwnedFd>,
    /// Threads that sleep or are about to.
    sleeping: AtomicU32,
    /// The number of `sleeping`, where peers look at it.
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

    /// The caller has handled what has come. Peers that ring have woken every sleeper by that; a
    /// descriptor may be readable no more. `own`: how many of the threads counted as sleepers the
    /// caller is.
    #[inline]
    pub fn wake_others(&self, own: u32) {
        if let Alarm::Descriptor(doorbell) = self {
            doorbell.wake_if_more(own);
        }
    }

    /// Counts the caller as a sleeper; what [`Bell::enter`] says.
    fn enter(&self) -> u32 {
        match self {
            Alarm::Bell(bell) => bell.enter(),
            Alarm::Descriptor(doorbell) => {
                doorbell.enter();
                0
            }
        }
    }

    fn leave(&self) {
        match self {
            Alarm::Bell(bell) => bell.leave(),
            Alarm::Descriptor(doorbell) => doorbell.leave(),
        }
    }
}

/// Sleeps until one of the alarms wakes it, at most `time`, unless `has_news`: it is asked once the
/// thread is counted as a sleeper of each, so what it does not see wakes the thread.
pub fn sleep_on(alarms: &[&Alarm], time: Duration, has_news: impl FnOnce() -> bool) {
    if let [Alarm::Bell(bell)] = alarms {
        return bell.sleep(time, has_news);
    }
    let before: Vec<u32> = alarms.iter().map(|alarm| alarm.enter()).collect();
    if !has_news() {
        let (mut words, mut descriptors) = (Vec::new(), Vec::new());
        for (alarm, before) in alarms.iter().zip(before) {
            match alarm {
                Alarm::Bell(bell) => words.push((bell.count(), before)),
                Alarm::Descriptor(doorbell) => descriptors.push(&*doorbell.ready),
            }
        }
        match (&words[..], &descriptors[..]) {
            (_, []) => wait_for_words(&words, time),
            ([], _) => wait_for_descriptors(&descriptors, time),
            // No system call waits for both.
            _ => wait_for_descriptors(&descriptors, time.min(DEAF_SLEEP)),
        }
    }
    alarms.iter().for_each(|alarm| alarm.leave());
}

fn wait_for_words(words: &[(View, u32)], time: Duration) {
    let words: Vec<_> = (words.iter())
        .map(|(word, before)| (kernel::word32(word, 0), *before))
        .collect();
    let is_heard =
        words.len() <= FUTEX_WORDS_MAX && futex_wait_any(&words, Clock::wake_up_ns(time));
    if let (false, Some(&(word, before))) = (is_heard, words.first()) {
        futex_wait(word, before, time.min(DEAF_SLEEP));
    }
}

fn wait_for_descriptors(descriptors: &[&OwnedFd], time: Duration) {
    let mut set: Vec<PollFd<'_>> = (descriptors.iter())
        .map(|descriptor| PollFd::new(*descriptor, PollFlags::IN))
        .collect();
    // Ends early on signals, like any sleep.
    let _ = poll(&mut set, Some(&timespec(time)));
}

impl Doorbell {
    fn wake_if_more(&self, own: u32) {
        // The other side of the fence in `enter`: at least one of the two sees the other's store.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) > own {
            // Only a full counter refuses, and that is readable too.
            let _ = rustix::io::write(&*self.ring, &1u64.to_ne_bytes());
            // After the write: a thread that takes it back too early finds nothing, and the next
            // one takes it.
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
        fence(Ordering::SeqCst);
    }

    fn leave(&self) {
        if let Some(seen) = &self.seen {
            kernel::word32(seen, 0).fetch_sub(1, Ordering::Relaxed);
        }
        self.sleeping.fetch_sub(1, Ordering::Relaxed);
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
                .map(|_| scope.spawn(|| sleep_on(&[&alarm], LONG, || false)))
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
            assert_eq!(poll(&mut set, Some(&timespec(Duration::ZERO))), Ok(0));
        });
    }

    #[test]
    fn a_sleep_on_several_ends_with_what_comes_to_any() {
        let (first, _first_other) = alarm();
        let (second, other) = alarm();
        rustix::io::write(&*other, &1u64.to_ne_bytes()).unwrap();
        sleep_on(&[&first, &second], LONG, || false);
        // News, and nobody sleeps at all.
        let (third, _third_other) = alarm();
        sleep_on(&[&third], LONG, || true);
    }
}
