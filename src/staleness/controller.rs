//! [`Controller`]: the pushes of all workers, and who goes on (Algorithm 1 of the paper).

use super::options::{Reading, Release, Staleness};
use super::predict::{Pace, best_extra};
use crate::error::{Error, Result};
use std::fmt;
use std::time::Duration;

/// What became of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whose push it was.
    pub worker: u32,
    /// Whether the worker has its OK; else it waits, and another decision follows.
    pub is_ok: bool,
    /// Its pushes less the fewest of any living worker, at this time.
    pub drift: u64,
    /// Why.
    pub reason: Reason,
}

/// Why a worker goes on or waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No worker ever waits.
    NoBound,
    /// The drift is at most the lower bound, which is this.
    Within(u64),
    /// It had a grant, of which this is left.
    GrantLeft(u32),
    /// It is granted `pushes`, this one included, after which it is expected to wait for
    /// `expected` for worker `slowest`.
    Granted {
        /// How many OKs the grant has.
        pushes: u32,
        /// Who is waited for.
        slowest: u32,
        /// Until its next push then.
        expected: Duration,
    },
    /// It had waited for the next push of this worker, the slowest, and that has come.
    SlowestPushed(u32),
    /// It waits: another worker has more pushes.
    NotFastest,
    /// It waits: two pushes of itself or of worker `slowest` are not known yet, or came with no
    /// time between them.
    NoPace {
        /// Who is waited for.
        slowest: u32,
    },
    /// It waits: waiting for worker `slowest` now is expected to be the shortest.
    BestNow {
        /// Who is waited for.
        slowest: u32,
    },
    /// It waits: its drift is the upper bound, which is this.
    AtUpper(u64),
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Decision { worker, drift, .. } = self;
        let verb = if self.is_ok { "goes on" } else { "waits" };
        write!(f, "worker {worker} {verb}: ")?;
        match self.reason {
            Reason::NoBound => write!(f, "its drift is {drift}, and nothing bounds it"),
            Reason::Within(bound) => write!(f, "its drift of {drift} is at most {bound}"),
            Reason::GrantLeft(left) => write!(
                f,
                "its drift is {drift}, and {left} pushes of its grant are left"
            ),
            Reason::Granted {
                pushes,
                slowest,
                expected,
            } => write!(
                f,
                "its drift is {drift}, and it is granted {pushes} pushes, after which it should wait {expected:?} for worker {slowest}"
            ),
            Reason::SlowestPushed(slowest) => write!(
                f,
                "its drift is {drift}, and worker {slowest}, the slowest, has pushed"
            ),
            Reason::NotFastest => write!(f, "its drift is {drift}, and others have more pushes"),
            Reason::NoPace { slowest } => write!(
                f,
                "its drift is {drift}, and its pace or that of worker {slowest} is not known yet"
            ),
            Reason::BestNow { slowest } => write!(
                f,
                "its drift is {drift}, and it should wait least for worker {slowest} now"
            ),
            Reason::AtUpper(bound) => write!(f, "its drift of {drift} is the upper bound, {bound}"),
        }
    }
}

/// The numbers of a mode.
#[derive(Clone, Copy, Debug)]
struct Rule {
    s_lower: u64,
    r_max: u32,
    release: Release,
    reading: Reading,
}

impl Rule {
    fn of(staleness: Staleness) -> Rule {
        let plain = |s_lower| Rule {
            s_lower,
            r_max: 0,
            release: Release::Strict,
            reading: Reading::Wait,
        };
        match staleness {
            Staleness::Bsp => plain(0),
            Staleness::Ssp(s_lower) => plain(u64::from(s_lower)),
            Staleness::Asp => plain(u64::MAX),
            Staleness::Dssp {
                s_lower,
                r_max,
                release,
                reading,
            } => Rule {
                s_lower: u64::from(s_lower),
                r_max,
                release,
                reading,
            },
        }
    }

    fn s_upper(&self) -> u64 {
        self.s_lower.saturating_add(u64::from(self.r_max))
    }
}

#[derive(Clone, Copy, Debug)]
struct Worker {
    pushes: u64,
    last: Option<Duration>,
    /// When it last had an OK that it had waited for.
    released: Option<Duration>,
    /// Of its last two pushes; `None`: there were none, or not in this order.
    pace: Option<Pace>,
    /// When it is expected to push next, in nanoseconds; without a pace it may be at any time.
    next_ns: u128,
    /// OKs that are left of its grant.
    granted: u32,
    is_waiting: bool,
}

/// Who is behind and who is ahead.
#[derive(Clone, Copy, Debug)]
struct Front {
    fewest: u64,
    most: u64,
    slowest: u32,
}

/// The pushes of all workers, and who goes on. See the module.
#[derive(Clone, Debug)]
pub struct Controller {
    rule: Rule,
    /// By number; `None`: there is no such worker now.
    workers: Vec<Option<Worker>>,
    /// Of those that are there; `None`: nobody is.
    front: Option<Front>,
    /// How many wait.
    waiting: u32,
}

impl Controller {
    /// For workers with numbers below `capacity`, of which none is there yet.
    ///
    /// # Errors
    /// [`Staleness::check`].
    pub fn new(staleness: Staleness, capacity: u32) -> Result<Controller> {
        staleness.check()?;
        Ok(Controller {
            rule: Rule::of(staleness),
            workers: vec![None; capacity as usize],
            front: None,
            waiting: 0,
        })
    }

    /// A worker comes. It begins with as many pushes as the slowest one that lives has; gives that
    /// number.
    ///
    /// # Errors
    /// The number is not below the capacity, or this worker is there.
    pub fn attach(&mut self, worker: u32) -> Result<u64> {
        let pushes = self.front.map_or(0, |front| front.fewest);
        self.attach_with(worker, pushes, None)?;
        Ok(pushes)
    }

    /// As [`Controller::attach`], of a worker that has pushed as often, and has had its OK for that
    /// at this time.
    ///
    /// # Errors
    /// As of [`Controller::attach`].
    pub fn attach_with(&mut self, worker: u32, pushes: u64, ok: Option<Duration>) -> Result<()> {
        let capacity = self.workers.len();
        let place = self.workers.get_mut(worker as usize).ok_or_else(|| {
            Error::invalid(format!(
                "worker {worker} cannot come: there is room for {capacity}, numbered from 0 on"
            ))
        })?;
        if place.is_some() {
            return Err(Error::invalid(format!("worker {worker} is there already")));
        }
        *place = Some(Worker {
            pushes,
            last: None,
            released: ok,
            pace: None,
            next_ns: u128::MAX,
            granted: 0,
            is_waiting: false,
        });
        self.front = self.look();
        Ok(())
    }

    /// A worker has gone or died; gives the decisions on those that need not wait for it any more.
    pub fn detach(&mut self, worker: u32, time: Duration) -> Vec<Decision> {
        let mut decisions = Vec::new();
        if let Some(gone) = self.workers.get_mut(worker as usize).and_then(Option::take) {
            self.waiting -= u32::from(gone.is_waiting);
            self.front = self.look();
            self.release(None, time, &mut decisions);
        }
        decisions
    }

    /// A worker has pushed for the `clock`-th time, counted from 1 on (from the number that
    /// [`Controller::attach`] gave, plus one). `time` is when, by a clock that all pushes are
    /// measured by. Gives the decision on it, then those on others that had waited.
    ///
    /// # Errors
    /// The worker is not there, it waits for the OK of its last push, or `clock` is another number
    /// than the next.
    pub fn push(&mut self, worker: u32, clock: u64, time: Duration) -> Result<Vec<Decision>> {
        let slowest = self.slowest();
        let found = self.workers.get_mut(worker as usize);
        let Some(own) = found.and_then(Option::as_mut) else {
            return Err(Error::invalid(format!(
                "a push of worker {worker}, which is not there"
            )));
        };
        if clock != own.pushes + 1 {
            return Err(Error::invalid(format!(
                "push {clock} of worker {worker}, whose next push is number {}",
                own.pushes + 1
            )));
        }
        if own.is_waiting {
            return Err(Error::invalid(format!(
                "push {clock} of worker {worker}, which waits for the OK of its last push"
            )));
        }
        own.pushes = clock;
        own.pace = own.last.and_then(|last| pace_of(last, time));
        own.next_ns = own.pace.map_or(u128::MAX, |pace| pace.after(1));
        own.last = Some(time);
        self.front = self.look();
        let mut decisions = vec![self.decide(worker)];
        let pushed = slowest.filter(|&slowest| slowest == worker);
        self.release(pushed, time, &mut decisions);
        Ok(decisions)
    }

    /// How many times a worker has pushed.
    pub fn pushes(&self, worker: u32) -> Option<u64> {
        self.worker(worker).map(|found| found.pushes)
    }

    /// Whether a worker waits for its OK.
    pub fn is_waiting(&self, worker: u32) -> bool {
        self.worker(worker).is_some_and(|found| found.is_waiting)
    }

    /// The worker that others wait for; `None`: there is no worker.
    pub fn slowest(&self) -> Option<u32> {
        self.front.map(|front| front.slowest)
    }

    /// The worker that others wait for, if they have waited, and it could have pushed and has not,
    /// for longer than `patience`.
    pub fn overdue(&self, now: Duration, patience: Duration) -> Option<u32> {
        let waiting = self.living().filter(|(_, worker)| worker.is_waiting);
        let since = waiting.filter_map(|(_, worker)| worker.last).min()?;
        let slowest = self.slowest()?;
        let slowest_worker = self.worker(slowest)?;
        let since = [slowest_worker.last, slowest_worker.released]
            .into_iter()
            .flatten()
            .fold(since, Duration::max);
        (now.saturating_sub(since) > patience).then_some(slowest)
    }

    fn worker(&self, worker: u32) -> Option<&Worker> {
        self.workers.get(worker as usize)?.as_ref()
    }

    fn living(&self) -> impl Iterator<Item = (u32, &Worker)> {
        let all = (0..).zip(&self.workers);
        all.filter_map(|(number, worker)| Some((number, worker.as_ref()?)))
    }

    fn look(&self) -> Option<Front> {
        let mut all = self.living();
        let (slowest, first) = all.next()?;
        let mut front = Front {
            fewest: first.pushes,
            most: first.pushes,
            slowest,
        };
        let mut latest_ns = first.next_ns;
        for (number, worker) in all {
            front.most = front.most.max(worker.pushes);
            let is_behind = worker.pushes < front.fewest;
            if is_behind || (worker.pushes == front.fewest && worker.next_ns > latest_ns) {
                (front.fewest, front.slowest) = (worker.pushes, number);
                latest_ns = worker.next_ns;
            }
        }
        Some(front)
    }

    /// Decides on the push that a worker has just made.
    fn decide(&mut self, worker: u32) -> Decision {
        let own = *self.worker(worker).expect("it has pushed");
        let front = self.front.expect("it is there");
        let drift = own.pushes - front.fewest;
        let (is_ok, reason, granted) = match own.granted.checked_sub(1) {
            Some(left) => (true, Reason::GrantLeft(left), left),
            None if self.rule.s_lower == u64::MAX => (true, Reason::NoBound, 0),
            None if drift <= self.rule.s_lower => (true, Reason::Within(self.rule.s_lower), 0),
            None => match self.look_ahead(&own, front) {
                reason @ Reason::Granted { pushes, .. } => (true, reason, pushes - 1),
                reason => (false, reason, 0),
            },
        };
        let own = self.workers[worker as usize].as_mut().expect("as above");
        own.granted = granted;
        own.is_waiting = !is_ok;
        self.waiting += u32::from(!is_ok);
        Decision {
            worker,
            is_ok,
            drift,
            reason,
        }
    }

    /// Beyond the lower bound: a grant, or why there is none.
    fn look_ahead(&self, own: &Worker, front: Front) -> Reason {
        if own.pushes < front.most {
            return Reason::NotFastest;
        }
        let (slowest, drift) = (front.slowest, own.pushes - front.fewest);
        let left = match self.rule.release {
            Release::Strict => self.rule.s_upper().saturating_sub(drift),
            Release::Literal | Release::Paper => u64::from(self.rule.r_max),
        };
        if left == 0 {
            return Reason::AtUpper(self.rule.s_upper());
        }
        let paces = own
            .pace
            .zip(self.worker(slowest).and_then(|slow| slow.pace));
        let Some((fast, slow)) = paces else {
            return Reason::NoPace { slowest };
        };
        let best = best_extra(fast, slow, self.rule.r_max, self.rule.reading);
        match best.filter(|best| best.r > 0) {
            Some(best) => Reason::Granted {
                pushes: best.r.min(left.min(u64::from(u32::MAX)) as u32),
                slowest,
                expected: Duration::from_nanos(best.apart_ns.min(u64::MAX.into()) as u64),
            },
            None => Reason::BestNow { slowest },
        }
    }

    /// Lets those go on that have waited long enough. `pushed`: the slowest worker, if it has just
    /// pushed.
    fn release(&mut self, pushed: Option<u32>, time: Duration, decisions: &mut Vec<Decision>) {
        let Some(front) = self.front.filter(|_| self.waiting > 0) else {
            return;
        };
        let rule = self.rule;
        for (number, worker) in (0..).zip(&mut self.workers) {
            // The one that has just pushed waits for a later push than its own.
            let is_other = Some(number) != pushed;
            let Some(worker) = worker.as_mut().filter(|one| one.is_waiting && is_other) else {
                continue;
            };
            let drift = worker.pushes - front.fewest;
            let goes_with_slowest = match rule.release {
                Release::Strict => drift < rule.s_upper(),
                Release::Literal => false,
                Release::Paper => true,
            };
            let reason = match pushed.filter(|_| goes_with_slowest) {
                _ if drift <= rule.s_lower => Reason::Within(rule.s_lower),
                Some(slowest) => Reason::SlowestPushed(slowest),
                None => continue,
            };
            worker.is_waiting = false;
            worker.released = Some(time);
            self.waiting -= 1;
            decisions.push(Decision {
                worker: number,
                is_ok: true,
                drift,
                reason,
            });
        }
    }
}

/// The pace of two pushes; `None`: no time lies between them, or the clock went backwards.
fn pace_of(last: Duration, time: Duration) -> Option<Pace> {
    let nanoseconds = |time: Duration| time.as_nanos().min(u64::MAX.into()) as u64;
    let interval_ns = nanoseconds(time).checked_sub(nanoseconds(last))?;
    (interval_ns > 0).then_some(Pace {
        last_ns: nanoseconds(time),
        interval_ns,
    })
}
