//! [`Patience`]: how a thread waits. It spins only where the host's ranks are not more than its
//! cores, then yields for a bounded time, then sleeps; oversubscribed ranks never burn each other's
//! time.
//!
//! Having a core for every rank does not mean having it to oneself: the kernel may keep two ranks
//! on one core, or another program may want it. Spinning then holds up the very peer that is waited
//! for. So the time to spin is learned ([`SpinTime`]): waits that end while spinning lengthen it,
//! waits that end after yielding shorten it. Two ranks on one core that spin 20 us each take 54 us
//! for 8 bytes; with the learned time, 7 us.

use crate::time::Time;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Look again at once.
    Spin,
    /// Give the core away, then look again.
    Yield,
    /// Sleep on the wait source, at most this long.
    Sleep(Duration),
}

/// Spinning longer than a cache miss takes a few hundred times over gains nothing.
const SPIN_NS_MAX: u32 = 20_000;
/// Less than a yield costs.
const SPIN_NS_MIN: u32 = 300;
/// A scheduling quantum is milliseconds; after this long of yielding the peer is busy with
/// something else.
const YIELD_TIME: Duration = Duration::from_micros(200);
/// First and longest sleep. The longest bounds how late a hang-up or a timeout is noticed.
const SLEEP_MIN: Duration = Duration::from_millis(1);
const SLEEP_MAX: Duration = Duration::from_millis(20);
/// The longest sleep of a wait that is not expected to be short.
const SLEEP_LONG: Duration = Duration::from_millis(50);

/// How long waits of this process spin, as the latest waits have taught.
#[derive(Debug)]
pub struct SpinTime(AtomicU32);

impl SpinTime {
    /// `ranks` of this host share `cores` cores; without a core for each, waits never spin.
    pub fn new(ranks: usize, cores: usize) -> SpinTime {
        SpinTime(AtomicU32::new(if ranks <= cores { SPIN_NS_MAX } else { 0 }))
    }

    /// Polls between two looks at the clock: a look costs as much as several polls. Few where each
    /// poll holds up a peer on the same core.
    pub fn polls_per_look(&self) -> u32 {
        if self.get().as_nanos() as u32 > SPIN_NS_MAX / 4 {
            32
        } else {
            4
        }
    }

    /// Looks of a call at a signal before it becomes an operation under way: as many as take as
    /// long as that does, half a microsecond. Where looking holds up a peer on the same core, few;
    /// for one on another core, as many as take as long as it takes that core to turn to it. With 4
    /// ranks on 2 cores 8 bytes took 6.7 us when every wait gave the core away at once and became
    /// an operation under way; with `waits_for_core` and turns they take 4.4.
    pub fn looks_at_once(&self) -> Looks {
        if self.get().as_nanos() as u32 > SPIN_NS_MAX / 4 {
            Looks {
                beside: 400,
                elsewhere: 400,
                turns: 0,
            }
        } else {
            Looks {
                beside: 4,
                elsewhere: 1500,
                turns: 8,
            }
        }
    }

    fn get(&self) -> Duration {
        // Relaxed: a hint, which orders nothing.
        Duration::from_nanos(u64::from(self.0.load(Ordering::Relaxed)))
    }

    /// A wait has ended, and this is how it had waited last.
    pub fn learn(&self, last: Step) {
        let now = self.0.load(Ordering::Relaxed);
        if now > 0 {
            let next = match last {
                Step::Spin => (now * 2).min(SPIN_NS_MAX),
                Step::Yield => (now / 2).max(SPIN_NS_MIN),
                // The peer was not there at all: that says nothing of who shares the core.
                Step::Sleep(_) => now,
            };
            self.0.store(next, Ordering::Relaxed);
        }
    }
}

/// How often a wait looks for what a peer stores, before it does something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looks {
    /// While the peer was last seen on this very core.
    pub beside: u32,
    /// While it was somewhere else, or nobody knows where.
    pub elsewhere: u32,
    /// How often a call at once gives its core away and looks again.
    pub turns: u32,
}

impl Looks {
    /// A look in passing.
    pub const ONCE: Looks = Looks {
        beside: 1,
        elsewhere: 1,
        turns: 0,
    };

    /// Whether it matters where peers are.
    pub fn is_crowded(self) -> bool {
        self.beside != self.elsewhere
    }
}

/// The patience of one wait.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    spin: Duration,
    yields: Duration,
    idle_since: Option<Time>,
    sleep: Duration,
    last: Step,
}

impl Patience {
    /// A wait that spins as long as has been learned.
    pub fn new(spin: &SpinTime) -> Patience {
        Patience {
            spin: spin.get(),
            yields: YIELD_TIME,
            idle_since: None,
            sleep: SLEEP_MIN,
            last: Step::Spin,
        }
    }

    /// A wait of which nobody expects that it is short: without a core for each rank it sleeps at
    /// once, and long.
    pub fn sleeping(spin: &SpinTime) -> Patience {
        let patience = Patience::new(spin);
        match patience.spin.is_zero() {
            true => Patience {
                yields: Duration::ZERO,
                sleep: SLEEP_LONG,
                ..patience
            },
            false => patience,
        }
    }

    /// Polls between two looks at the clock.
    pub fn polls_per_look(&self, spin: &SpinTime) -> u32 {
        match self.yields.is_zero() {
            // A thread that goes to sleep polls once more.
            true => 1,
            false => spin.polls_per_look(),
        }
    }

    /// How it has waited last.
    pub fn last(&self) -> Step {
        self.last
    }

    /// Something moved.
    pub fn reset(&mut self) {
        self.idle_since = None;
        self.sleep = SLEEP_MIN;
    }

    /// Nothing moved: what to do.
    pub fn next(&mut self, now: Time) -> Step {
        let since = *self.idle_since.get_or_insert(now);
        let idle = now.since(since);
        self.last = if idle < self.spin {
            Step::Spin
        } else if idle < self.yields {
            Step::Yield
        } else {
            let sleep = self.sleep;
            self.sleep = (2 * sleep).min(SLEEP_MAX).max(sleep);
            Step::Sleep(sleep)
        };
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_with_a_core_spins_then_yields_then_sleeps_longer_each_time() {
        let mut patience = Patience::new(&SpinTime::new(2, 2));
        let at = |us: u64| Time(us * 1000);
        assert_eq!(patience.next(at(0)), Step::Spin);
        assert_eq!(patience.next(at(19)), Step::Spin);
        assert_eq!(patience.next(at(20)), Step::Yield);
        assert_eq!(patience.next(at(200)), Step::Sleep(SLEEP_MIN));
        assert_eq!(patience.next(at(201)), Step::Sleep(2 * SLEEP_MIN));
        for _ in 0..10 {
            patience.next(at(300));
        }
        assert_eq!(patience.next(at(400)), Step::Sleep(SLEEP_MAX));
        patience.reset();
        assert_eq!(patience.next(at(500)), Step::Spin);
    }

    #[test]
    fn a_wait_that_is_not_short_sleeps_at_once_where_ranks_share_cores() {
        let mut patience = Patience::sleeping(&SpinTime::new(3, 2));
        for at in [0, 1, 100_000_000] {
            assert_eq!(patience.next(Time(at)), Step::Sleep(SLEEP_LONG));
        }
        let mut alone = Patience::sleeping(&SpinTime::new(2, 2));
        assert_eq!(alone.next(Time(0)), Step::Spin);
    }

    #[test]
    fn a_rank_without_a_core_never_spins() {
        let crowded = SpinTime::new(3, 2);
        assert_eq!(Patience::new(&crowded).next(Time(0)), Step::Yield);
        crowded.learn(Step::Spin);
        assert_eq!(Patience::new(&crowded).next(Time(0)), Step::Yield);
    }

    #[test]
    fn spinning_that_does_not_help_is_unlearned_and_learned_again() {
        let spin = SpinTime::new(2, 2);
        let time = |spin: &SpinTime| spin.get().as_nanos() as u32;
        (0..20).for_each(|_| spin.learn(Step::Yield));
        assert_eq!(time(&spin), SPIN_NS_MIN);
        spin.learn(Step::Sleep(SLEEP_MIN));
        assert_eq!(time(&spin), SPIN_NS_MIN);
        (0..20).for_each(|_| spin.learn(Step::Spin));
        assert_eq!(time(&spin), SPIN_NS_MAX);
    }
}
