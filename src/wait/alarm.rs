//! [`Alarm`]: what the threads of a rank sleep on, for every kind of transport, and [`sleep_on`],
//! which sleeps on one or several alarms.
//!
//! A peer that stores something for this rank rings its [`Bell`], which wakes all threads that
//! sleep on it. A descriptor only says that something has come. So the thread that handles what has
//! come wakes the other threads, whose operations may have ended by that ([`Alarm::wake_others`]).

use super::clock::Clock;
use super::futex::timespec;
use super::{Bell, FUTEX_WORDS_MAX, futex_wait, futex_wait_any};
use crate::kernel;
use crate::memory::View;
use crate::sync::{Arc, AtomicBool, AtomicU32, Mutex, Ordering, PoisonError, fence};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Longest sleep if no system call can wait for all alarms of the sleep.
const DEAF_SLEEP: Duration = Duration::from_millis(1);

/// What the threads of a rank sleep on, as the transport's provider says.
///
/// A provider that uses both shared memory and descriptors gives a descriptor with `sleeping`.
/// While `sleeping` is not zero, peers that share memory with this rank make the descriptor
/// readable when they store something. So a thread can wait for everything at once.
#[derive(Clone, Debug)]
pub enum WaitSource {
    /// Two 32-bit words. A thread that wants to sleep reads `bell`, adds 1 to `sleeping`, makes a
    /// full fence, and checks once more that there is nothing to do. Then it sleeps while `bell`
    /// still has the value that it read. After the sleep it subtracts 1 from `sleeping`.
    Futex {
        /// Changes with every wake-up.
        bell: View,
        /// Number of threads that sleep or are about to. If it is not zero, a waker has to ring the
        /// bell.
        sleeping: View,
    },
    /// A descriptor for poll(2).
    Descriptor {
        /// Readable while something has arrived that the provider's poll has not taken, and while
        /// `ring` is readable.
        ready: Arc<OwnedFd>,
        /// An eventfd by which the threads of this rank wake each other. The provider neither
        /// writes nor reads it.
        ring: Arc<OwnedFd>,
        /// As `sleeping` of [`WaitSource::Futex`]; `None` if no peer looks at it.
        sleeping: Option<View>,
    },
    /// Nothing: time is virtual, and the simulation's caller steps it, so no thread sleeps.
    Virtual,
}

/// See the module.
#[derive(Debug)]
pub enum Alarm {
    /// A bell, which peers ring.
    Bell(Bell),
    /// A descriptor, which the kernel makes readable when something has come.
    Descriptor(Doorbell),
}

/// A descriptor to sleep on, and the means by which a thread of this process wakes the sleepers.
#[derive(Debug)]
pub struct Doorbell {
    ready: Arc<OwnedFd>,
    /// Makes `ready` readable.
    ring: Arc<OwnedFd>,
    /// Threads that sleep or are about to.
    sleeping: AtomicU32,
    /// That number in memory that peers look at, if some do.
    seen: Option<View>,
    /// Whether `ring` has been written since it was last read.
    has_rung: AtomicBool,
    /// Held while a thread is counted as a sleeper. The first sleeper empties `ring`; with this
    /// lock it cannot take a wake-up that is meant for another sleeper.
    entering: Mutex<()>,
}

impl Alarm {
    /// The alarm of this source. `None` in a simulation, where no thread sleeps.
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

    /// Wakes the sleepers of a descriptor after the caller has handled what has come, because the
    /// descriptor may not be readable any more. The sleepers of a bell need nothing: the peer that
    /// rang has woken all of them. It wakes only if more than `own` threads are counted as
    /// sleepers; `own` is 1 if the caller is counted itself, else 0.
    #[inline]
    pub fn wake_others(&self, own: u32) {
        if let Alarm::Descriptor(doorbell) = self {
            doorbell.wake_if_more(own);
        }
    }

    /// Counts the caller as a sleeper. Returns what [`Bell::enter`] returns; 0 for a descriptor.
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

/// Sleeps until one of the alarms wakes the thread, for `time` at most. It does not sleep if
/// `has_news` returns true. `has_news` is called after the thread has been counted as a sleeper of
/// every alarm, so anything that comes too late for it wakes the thread.
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
            // No system call waits for futex words and descriptors together.
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
    // A signal may end it early, like any sleep.
    let _ = poll(&mut set, Some(&timespec(time)));
}

impl Doorbell {
    fn wake_if_more(&self, own: u32) {
        // The other side of the fence in `enter`: at least one of the two sees the other's store.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) > own {
            // The write fails only if the counter is full, and then `ring` is readable too.
            let _ = rustix::io::write(&*self.ring, &1u64.to_ne_bytes());
            // Stored after the write, and Release publishes the write to `enter`. If it were stored
            // earlier, `enter` could read `ring` too early, and `ring` would stay readable.
            self.has_rung.store(true, Ordering::Release);
        }
    }

    fn enter(&self) {
        let _entering = self.entering.lock().unwrap_or_else(PoisonError::into_inner);
        if self.sleeping.load(Ordering::Relaxed) == 0
            && self.has_rung.load(Ordering::Relaxed)
            && self.has_rung.swap(false, Ordering::Acquire)
        {
            // No thread sleeps, so the wake-up in `ring` is for none.
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

    /// Thirty years. A test that sleeps this long has failed.
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
            // No thread sleeps, so `wake` writes nothing, and `enter` empties `ring`.
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
        // There is news, so the thread does not sleep.
        let (third, _third_other) = alarm();
        sleep_on(&[&third], LONG, || true);
    }
}
