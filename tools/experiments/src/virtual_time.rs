//! A partial allreduce of many ranks in virtual time: the decisions are those of the library's own
//! machines ([`linerate::unstable::partial::Machine`]), and the times of messages and reductions
//! are given. Results are exact and repeat.

use linerate::reports::RoundReport;
use linerate::transport::Time;
use linerate::unstable::partial::{Action, Header, Machine, Next, Notice};
use linerate::{PartialOptions, Rank};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

/// How long signals and reductions take.
#[derive(Clone, Copy, Debug)]
pub struct Fabric {
    /// A signal from rank to rank.
    pub signal: Duration,
    /// A reduction, once all have entered it.
    pub reduction: Duration,
}

/// A job to simulate.
#[derive(Clone, Debug)]
pub struct Job {
    pub ranks: u32,
    /// Own steps of each rank.
    pub steps: u64,
    pub options: PartialOptions,
    pub fabric: Fabric,
    /// Whether all ranks begin each step together, once the last one has its result.
    pub has_barrier: bool,
}

/// What came of a job.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub rounds: Vec<RoundReport>,
    /// From each submit to its result: by rank, then by step.
    pub waits: Vec<Vec<Duration>>,
    /// When the last rank had its last result.
    pub end: Time,
}

impl History {
    /// The mean wait, in milliseconds.
    pub fn mean_wait_ms(&self) -> f64 {
        let total: Duration = self.waits.iter().flatten().sum();
        let count: usize = self.waits.iter().map(Vec::len).sum();
        total.as_secs_f64() * 1e3 / count as f64
    }

    /// The mean number of ranks whose gradient was there in time.
    pub fn mean_active(&self) -> f64 {
        let total: u32 = self.rounds.iter().map(RoundReport::active_count).sum();
        f64::from(total) / self.rounds.len() as f64
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A rank has computed its gradient.
    Computed(Rank),
    Told {
        from: Rank,
        to: Rank,
        is_arrival: bool,
        round: u64,
    },
    Reduced {
        rank: Rank,
        round: u64,
    },
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    step: u64,
    submitted_at: Time,
    is_waiting: bool,
}

/// A round that ranks enter.
#[derive(Clone, Debug)]
struct Entered {
    headers: Vec<Header>,
    count: u32,
}

struct World<'a, F> {
    job: &'a Job,
    compute: F,
    machines: Vec<Machine>,
    places: Vec<Place>,
    rounds: BTreeMap<u64, Entered>,
    /// By time, then in the order in which they were made.
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    made: u64,
    now: Time,
    history: History,
}

/// Runs a job; `compute` says how long a step of a rank takes.
///
/// # Errors
/// The options are refused, or a machine refuses what another one says.
pub fn run(job: &Job, compute: impl Fn(Rank, u64) -> Duration) -> linerate::Result<History> {
    job.options.check(job.ranks)?;
    let machine = |rank| Machine::new(rank, job.ranks, job.options.clone());
    let mut world = World {
        job,
        compute,
        machines: (0..job.ranks).map(machine).collect(),
        places: vec![Place::default(); job.ranks as usize],
        rounds: BTreeMap::new(),
        events: BinaryHeap::new(),
        made: 0,
        now: Time(0),
        history: History {
            waits: vec![Vec::new(); job.ranks as usize],
            ..History::default()
        },
    };
    (0..job.ranks).for_each(|rank| world.begin_step(rank));
    while let Some(Reverse((at, _, event))) = world.events.pop() {
        world.now = at;
        world.handle(event)?;
    }
    Ok(world.history)
}

impl<F: Fn(Rank, u64) -> Duration> World<'_, F> {
    fn after(&mut self, delay: Duration, event: Event) {
        self.made += 1;
        self.events
            .push(Reverse((self.now.after(delay), self.made, event)));
    }

    fn begin_step(&mut self, rank: Rank) {
        let delay = (self.compute)(rank, self.places[rank as usize].step);
        self.after(delay, Event::Computed(rank));
    }

    fn handle(&mut self, event: Event) -> linerate::Result<()> {
        match event {
            Event::Computed(rank) => {
                let machine = &mut self.machines[rank as usize];
                let begun = machine.begin_submit();
                assert!(
                    begun.is_some(),
                    "a rank has taken the result of its last step"
                );
                machine.handle_submitted(self.now);
                let place = &mut self.places[rank as usize];
                (place.submitted_at, place.is_waiting) = (self.now, true);
                self.act(rank)
            }
            Event::Told {
                from,
                to,
                is_arrival,
                round,
            } => {
                let notice = match is_arrival {
                    true => Notice::Arrived(round),
                    false => Notice::Activate(round),
                };
                self.machines[to as usize].handle_notice(from, notice, self.now)?;
                self.act(to)
            }
            Event::Reduced { rank, round } => {
                let headers = &self.rounds[&round].headers;
                let (_, report) = self.machines[rank as usize].handle_completed(headers)?;
                if self.history.rounds.len() as u64 == round {
                    self.history.rounds.push(report);
                }
                self.act(rank)
            }
        }
    }

    /// Does what a rank's machine says, and takes the result that the rank waits for.
    fn act(&mut self, rank: Rank) -> linerate::Result<()> {
        while let Some(action) = self.machines[rank as usize].poll_action() {
            match action {
                Action::Tell { to, notice } => {
                    let (is_arrival, round) = match notice {
                        Notice::Arrived(round) => (true, round),
                        Notice::Activate(round) => (false, round),
                        // Ranks tell of completed rounds only where ranks may die, and here none
                        // does.
                        Notice::Completed(_) => continue,
                    };
                    let told = Event::Told {
                        from: rank,
                        to,
                        is_arrival,
                        round,
                    };
                    self.after(self.job.fabric.signal, told);
                }
                Action::Begin { header, .. } => self.enter(rank, header),
            }
        }
        let place = &mut self.places[rank as usize];
        if place.is_waiting
            && let Next::Taken(_, at) = self.machines[rank as usize].take()
        {
            self.machines[rank as usize].give_back(at);
            place.is_waiting = false;
            place.step += 1;
            let wait = self.now.since(place.submitted_at);
            self.history.waits[rank as usize].push(wait);
            self.history.end = self.now;
            self.end_step(rank);
            // A place for a result is free again, so the machine may begin a round.
            return self.act(rank);
        }
        Ok(())
    }

    fn end_step(&mut self, rank: Rank) {
        let step = self.places[rank as usize].step;
        let is_together = self.places.iter().all(|place| place.step == step);
        if step == self.job.steps || (self.job.has_barrier && !is_together) {
            return;
        }
        match self.job.has_barrier {
            true => (0..self.job.ranks).for_each(|rank| self.begin_step(rank)),
            false => self.begin_step(rank),
        }
    }

    fn enter(&mut self, rank: Rank, header: Header) {
        let ranks = self.job.ranks;
        let entered = self.rounds.entry(header.round).or_insert_with(|| Entered {
            headers: vec![Header::default(); ranks as usize],
            count: 0,
        });
        entered.headers[rank as usize] = header;
        entered.count += 1;
        if entered.count == ranks {
            let round = header.round;
            let reduction = self.job.fabric.reduction;
            (0..ranks).for_each(|rank| self.after(reduction, Event::Reduced { rank, round }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate::Policy;

    const MS: Duration = Duration::from_millis(1);

    /// Ranks arrive a millisecond after each other, and a reduction takes `t`.
    fn skewed(ranks: u32, policy: Policy, t: Duration, steps: u64) -> History {
        let job = Job {
            ranks,
            steps,
            options: PartialOptions {
                policy,
                ..PartialOptions::default()
            },
            fabric: Fabric {
                signal: Duration::ZERO,
                reduction: t,
            },
            has_barrier: true,
        };
        run(&job, |rank, _| MS * rank).unwrap()
    }

    #[test]
    fn the_published_identities_are_exact() {
        let t = Duration::from_micros(300);
        let ms = t.as_secs_f64() * 1e3;
        for ranks in [2u32, 5, 8, 32] {
            let p = f64::from(ranks);
            let close = |found: f64, wanted: f64| {
                assert!(
                    (found - wanted).abs() < 1e-6,
                    "{ranks} ranks: {found}, {wanted}"
                );
            };
            let full = skewed(ranks, Policy::Full, t, 4);
            close(full.mean_wait_ms(), (p - 1.0) / 2.0 + ms);
            close(full.mean_active(), p);
            for quorum in 1..=ranks {
                let q = f64::from(quorum);
                let found = skewed(ranks, Policy::Quorum(quorum), t, 4);
                close(found.mean_wait_ms(), q * (q - 1.0) / (2.0 * p) + q / p * ms);
                close(found.mean_active(), q);
            }
        }
    }

    #[test]
    fn a_random_initiator_waits_as_long_as_its_draws_say() {
        let t = Duration::from_micros(296);
        let found = skewed(32, Policy::RandomInitiator { seed: 1 }, t, 4000);
        let mean = found.mean_active();
        assert!((mean - 16.5).abs() < 0.5, "{mean}");
        let wanted = (32f64.powi(2) - 1.0) / (6.0 * 32.0) + mean / 32.0 * 0.296;
        assert!((found.mean_wait_ms() - wanted).abs() < 0.3, "{found:?}");
    }

    #[test]
    fn without_a_barrier_a_rank_pays_for_its_own_delays_only() {
        let job = |policy| Job {
            ranks: 8,
            steps: 200,
            options: PartialOptions {
                policy,
                ..PartialOptions::default()
            },
            fabric: Fabric {
                signal: Duration::ZERO,
                reduction: Duration::ZERO,
            },
            has_barrier: false,
        };
        // Rank r is delayed in every eighth step.
        let compute = |rank: Rank, step: u64| match (step + u64::from(rank)) % 8 {
            0 => MS * 10,
            _ => MS * 6,
        };
        let full = run(&job(Policy::Full), compute).unwrap();
        let solo = run(&job(Policy::Solo), compute).unwrap();
        assert_eq!(full.end, Time(0).after(MS * 2000));
        let speedup = full.end.0 as f64 / solo.end.0 as f64;
        assert!((speedup / (10.0 / 6.5) - 1.0).abs() < 0.02, "{speedup}");
        assert!(solo.waits.iter().all(|waits| waits.len() == 200));
        assert_eq!(solo.rounds.len(), 200);
    }
}
