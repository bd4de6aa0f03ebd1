//! [`Patience`]: how a thread waits. It spins only where the host's ranks are not more than its cores, then
//! yields for a bounded time, then sleeps; oversubscribed ranks never burn each other's time.

use crate::time::Time;
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

/// Spinning longer than a cache miss takes a few hundred times over gains nothing: 20 us.
const SPIN_TIME: Duration = Duration::from_micros(20);
/// A scheduling quantum is milliseconds; after this long of yielding the peer is busy with something else.
const YIELD_TIME: Duration = Duration::from_micros(200);
/// First and longest sleep. The longest bounds how late a hang-up or a timeout is noticed.
const SLEEP_MIN: Duration = Duration::from_millis(1);
const SLEEP_MAX: Duration = Duration::from_millis(20);

/// The patience of one wait.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    may_spin: bool,
    idle_since: Option<Time>,
    sleep: Duration,
}

impl Patience {
    /// `ranks` of this host share `cores` cores.
    pub fn new(ranks: usize, cores: usize) -> Patience {
        Patience {
            may_spin: ranks <= cores,
            idle_since: None,
            sleep: SLEEP_MIN,
        }
    }

    /// Whether there is a core for every rank, so that looking again costs nobody else.
    pub fn may_spin(&self) -> bool {
        self.may_spin
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
        if self.may_spin && idle < SPIN_TIME {
            Step::Spin
        } else if idle < YIELD_TIME {
            Step::Yield
        } else {
            let sleep = self.sleep;
            self.sleep = (2 * sleep).min(SLEEP_MAX);
            Step::Sleep(sleep)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_with_a_core_spins_then_yields_then_sleeps_longer_each_time() {
        let mut patience = Patience::new(2, 2);
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
    fn a_rank_without_a_core_never_spins() {
        assert_eq!(Patience::new(3, 2).next(Time(0)), Step::Yield);
    }
}
