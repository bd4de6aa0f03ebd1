//! [`Patience`]: says how a thread waits. The thread first spins, then yields for a bounded time,
//! then sleeps. It spins only if the host has a core for each of its ranks, so ranks that share
//! cores do not take time from each other.
//!
//! Even if there is a core for each rank, a rank may have to share its core: the kernel may run two
//! ranks on one core, or another program may use it. A rank that spins then holds up the peer that
//! it waits for. So the time to spin is learned ([`SpinTime`]): a wait that ends while spinning
//! doubles it, and a wait that ends while yielding halves it. Two ranks on one core that each spin
//! for 20 us take 54 us to exchange 8 bytes; with the learned time they take 7 us.

use crate::time::Time;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// What a wait does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Look again at once.
    Spin,
    /// Give the core away, then look again.
    Yield,
    /// Sleep on the wait source, at most this long.
    Sleep(Duration),
}

/// Longest time to spin, a few hundred times that of a cache miss. Longer spinning gains nothing.
const SPIN_NS_MAX: u32 = 20_000;
/// Shortest time to spin; less than a yield costs.
const SPIN_NS_MIN: u32 = 300;
/// How long an idle wait spins and yields together before it sleeps. A peer that has not come by
/// then is busy with something else.
const YIELD_TIME: Duration = Duration::from_micros(200);
/// First and longest sleep. The longest sleep bounds how late a hang-up or a timeout is noticed.
const SLEEP_MIN: Duration = Duration::from_millis(1);
const SLEEP_MAX: Duration = Duration::from_millis(20);
/// The longest sleep of a wait that is not expected to be short.
const SLEEP_LONG: Duration = Duration::from_millis(50);

/// How long waits of this process spin, as learned from the latest waits.
#[derive(Debug)]
pub struct SpinTime(AtomicU32);

impl SpinTime {
    /// The time to spin of a host with `ranks` ranks on `cores` cores. If there are fewer cores
    /// than ranks, waits never spin.
    pub fn new(ranks: usize, cores: usize) -> SpinTime {
        SpinTime(AtomicU32::new(if ranks <= cores { SPIN_NS_MAX } else { 0 }))
    }

    /// Number of polls between two looks at the clock, since a look costs as much as several polls.
    /// It is 1 if ranks seem to share cores, because each poll then may hold up a peer: with 4, an
    /// allreduce of 8 bytes by 32 ranks on 2 cores takes a quarter longer.
    pub fn polls_per_look(&self) -> u32 {
        match self.get().as_nanos() as u32 > SPIN_NS_MAX / 4 {
            true => 32,
            false => 1,
        }
    }

    /// How often a call looks for a peer's signal before it becomes an operation under way.
    ///
    /// If each rank has a core, the looks take half a microsecond, as long as becoming an operation
    /// under way. If ranks share cores, a call looks only few times for a peer on its own core,
    /// since it holds that peer up; it looks longer for a peer on another core, until that core may
    /// have switched to the peer. 4 ranks on 2 cores take 4.4 us for 8 bytes with these looks and
    /// turns, and 6.7 us if every wait becomes an operation under way at once.
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

    /// Learns from a wait that has ended. `last` is what the wait did last.
    pub fn learn(&self, last: Step) {
        let now = self.0.load(Ordering::Relaxed);
        if now > 0 {
            let next = match last {
                Step::Spin => (now * 2).min(SPIN_NS_MAX),
                Step::Yield => (now / 2).max(SPIN_NS_MIN),
                // The peer was busy with something else, so the wait does not tell whether ranks
                // share a core.
                Step::Sleep(_) => now,
            };
            self.0.store(next, Ordering::Relaxed);
        }
    }
}

/// How often a wait looks for a peer's signal before it does something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looks {
    /// Number of looks for a peer that was last seen on this rank's core.
    pub beside: u32,
    /// Number of looks for a peer that was last seen on another core, or that was not seen yet.
    pub elsewhere: u32,
    /// How often a call gives its core away and looks again, before it becomes an operation under
    /// way.
    pub turns: u32,
}

impl Looks {
    /// One look, for a thread that does not wait.
    pub const ONCE: Looks = Looks {
        beside: 1,
        elsewhere: 1,
        turns: 0,
    };

    /// Whether the number of looks depends on the peer's core, as it does if ranks share cores.
    pub fn is_crowded(self) -> bool {
        self.beside != self.elsewhere
    }
}

/// What one wait has done so far, and what it does next.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    spin: Duration,
    yields: Duration,
    idle_since: Option<Time>,
    sleep: Duration,
    last: Step,
}

impl Patience {
    /// A wait that spins for the learned time.
    pub fn new(spin: &SpinTime) -> Patience {
        Patience {
            spin: spin.get(),
            yields: YIELD_TIME,
            idle_since: None,
            sleep: SLEEP_MIN,
            last: Step::Spin,
        }
    }

    /// A wait that is probably long. If ranks share cores, it sleeps at once, and longer each time.
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

    /// Number of polls between two looks at the clock.
    pub fn polls_per_look(&self, spin: &SpinTime) -> u32 {
        match self.yields.is_zero() {
            // The thread is to sleep at once, so it polls only once more.
            true => 1,
            false => spin.polls_per_look(),
        }
    }

    /// What the wait did last.
    pub fn last(&self) -> Step {
        self.last
    }

    /// Begins again with spinning, because something has moved.
    pub fn reset(&mut self) {
        self.idle_since = None;
        self.sleep = SLEEP_MIN;
    }

    /// What to do next, because nothing has moved.
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
