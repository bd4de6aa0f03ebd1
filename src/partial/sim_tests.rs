//! Random histories of whole jobs of machines: every delivery order, ranks of very different
//! speeds, and every identity of partial allreduce asserted in each. A failure names its seed;
//! `LINERATE_TEST_SEEDS` sets how many are tried.

use super::history::{Checked, Event, check_snapshot, describe, ensure, machines, random_policy};
use super::options::ROUNDS_MAX;
use super::*;
use crate::prng::Prng;
use crate::time::Time;
use std::collections::BTreeMap;

/// What a broken implementation would do. Each must be found.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mutant {
    None,
    /// A late gradient replaces what waits, as in the published optimizer.
    Overwrites,
    /// An arrival is counted for somebody else.
    CountsTwice,
    /// One activation signal in fifty is lost.
    LosesSignals,
    /// The round may begin while a gradient is being copied.
    Tears,
}

#[derive(Default)]
struct Round {
    headers: Vec<Option<Header>>,
    /// (rank, generation) of everything in the sum.
    sum: Vec<(u32, u64)>,
    begun: u32,
    signals: u32,
    report: Option<RoundReport>,
}

#[derive(Default)]
struct Rank {
    speed: f64,
    /// Generations that lie in the snapshot of a round, and whether one is being added.
    snapshots: BTreeMap<u64, (Vec<u64>, bool)>,
    copying: Option<(u64, bool)>,
    generations: u64,
    has_finished: bool,
    places: BTreeMap<u64, usize>,
    results: BTreeMap<usize, Vec<(u32, u64)>>,
    applied: Vec<(u32, u64)>,
    rounds_taken: u64,
    lag_max: u64,
    is_over: bool,
}

struct Job {
    ranks: u32,
    steps: u64,
    options: PartialOptions,
    mutant: Mutant,
    machines: Vec<Machine>,
    state: Vec<Rank>,
    rounds: Vec<Round>,
    events: Vec<Event>,
    prng: Prng,
    now: Time,
}

#[derive(Debug, Default)]
struct Seen {
    rounds: u64,
    staleness_max: usize,
    lag_max: u64,
    held: u64,
}

impl Job {
    fn new(ranks: u32, steps: u64, options: PartialOptions, mutant: Mutant, seed: u64) -> Job {
        options.check(ranks).unwrap();
        let mut prng = Prng::new(seed);
        let machines = machines(ranks, &options);
        let state = (0..ranks).map(|_| Rank {
            speed: [1.0, 1.0, 0.1, 0.01][prng.below(4) as usize],
            ..Rank::default()
        });
        Job {
            ranks,
            steps,
            mutant,
            machines,
            state: state.collect(),
            options,
            rounds: Vec::new(),
            events: (0..ranks).map(Event::App).collect(),
            prng,
            now: Time(0),
        }
    }

    fn run(mut self) -> Checked<Seen> {
        let mut idle = 0;
        while self.state.iter().any(|rank| !rank.is_over) {
            self.now.0 += 1;
            let index = self.prng.below(self.events.len() as u64) as usize;
            let moved = match self.events[index] {
                Event::App(rank) => {
                    let is_lazy = !self.prng.chance(self.state[rank as usize].speed);
                    if self.prng.chance(0.001) {
                        self.state[rank as usize].speed =
                            [1.0, 0.1, 0.003][self.prng.below(3) as usize];
                    }
                    is_lazy || self.step_app(rank)?
                }
                Event::Message { from, to, notice } => {
                    self.events.swap_remove(index);
                    let machine = &mut self.machines[to as usize];
                    machine
                        .handle_notice(from, notice, self.now)
                        .map_err(|e| e.to_string())?;
                    self.act(to)?;
                    true
                }
                Event::Ended { rank, round } => self.end_round(index, rank, round)?,
            };
            idle = if moved { 0 } else { idle + 1 };
            if idle > 200 {
                self.move_anything()?;
                idle = 0;
            }
        }
        self.check_end()
    }

    /// Something must be able to move; deadlines may have to pass.
    fn move_anything(&mut self) -> Checked<()> {
        let mut moved = self.events.len() > self.ranks as usize;
        for rank in 0..self.ranks {
            moved |= self.step_app(rank)?;
            if let Some(deadline) = self.machines[rank as usize].next_deadline() {
                self.now = self.now.max(deadline);
                self.machines[rank as usize].handle_time(self.now);
                self.act(rank)?;
                moved = true;
            }
        }
        ensure(moved, || describe(self.machines.iter()))
    }

    /// Does one thing that an application does. Returns whether there was one.
    fn step_app(&mut self, rank: u32) -> Checked<bool> {
        let machine = &mut self.machines[rank as usize];
        let state = &mut self.state[rank as usize];
        if let Some((target, is_first)) = state.copying.take() {
            let (held, is_torn) = state.snapshots.entry(target).or_default();
            if is_first || self.mutant == Mutant::Overwrites {
                held.clear();
            }
            held.push(state.generations);
            *is_torn = false;
            state.generations += 1;
            if self.mutant != Mutant::Tears {
                machine.handle_submitted(self.now);
            }
            self.act(rank)?;
            return Ok(true);
        }
        if let Next::Taken(report, place) = machine.take() {
            let sum = state.results.remove(&place).unwrap_or_default();
            state.applied.extend(sum);
            state.rounds_taken += report.rounds;
            let is_next = report.round + 1 == state.rounds_taken;
            machine.give_back(place);
            self.act(rank)?;
            return ensure(is_next, || {
                format!("rank {rank} got {report:?} out of order")
            })
            .map(|()| true);
        }
        if state.generations < self.steps {
            let Some((target, is_first)) = machine.begin_submit() else {
                self.act(rank)?;
                return Ok(false);
            };
            state.copying = Some((target, is_first));
            state.snapshots.entry(target).or_default().1 = true;
            if self.mutant == Mutant::Tears {
                machine.handle_submitted(self.now);
            }
            self.act(rank)?;
            return Ok(true);
        }
        if !state.has_finished {
            state.has_finished = machine.handle_finish().map_err(|e| e.to_string())?;
            let moved = state.has_finished;
            self.act(rank)?;
            return Ok(moved);
        }
        self.act(rank)?;
        let machine = &mut self.machines[rank as usize];
        let state = &mut self.state[rank as usize];
        let is_over = machine.completed() == self.steps + 1 && machine.take() == Next::Nothing;
        let moved = is_over && !state.is_over;
        state.is_over |= is_over;
        Ok(moved)
    }

    /// Does what a machine says.
    fn act(&mut self, rank: u32) -> Checked<()> {
        while let Some(action) = self.machines[rank as usize].poll_action() {
            match action {
                Action::Tell { to, notice } => self.send(rank, to, notice),
                Action::Begin { header, place } => self.begin(rank, header, place)?,
            }
        }
        let lag = self.machines[rank as usize].lag();
        let state = &mut self.state[rank as usize];
        state.lag_max = state.lag_max.max(lag);
        Ok(())
    }

    fn send(&mut self, from: u32, to: u32, notice: Notice) {
        let mut seen_from = from;
        match notice {
            Notice::Activate(round) => {
                self.round(round).signals += 1;
                if self.mutant == Mutant::LosesSignals && self.prng.chance(0.02) {
                    return;
                }
            }
            Notice::Arrived(_) if self.mutant == Mutant::CountsTwice => {
                seen_from = (from + 1) % self.ranks;
                self.events.push(Event::Message { from, to, notice });
            }
            Notice::Completed(_) => {}
            Notice::Arrived(_) => {
                if self.prng.chance(0.05) {
                    // As after the counting rank has moved: everyone announces again.
                    self.events.push(Event::Message { from, to, notice });
                }
            }
        }
        self.events.push(Event::Message {
            from: seen_from,
            to,
            notice,
        });
    }

    fn round(&mut self, round: u64) -> &mut Round {
        while self.rounds.len() <= round as usize {
            let headers = vec![None; self.ranks as usize];
            self.rounds.push(Round {
                headers,
                ..Round::default()
            });
        }
        &mut self.rounds[round as usize]
    }

    fn begin(&mut self, rank: u32, header: Header, place: usize) -> Checked<()> {
        let state = &mut self.state[rank as usize];
        state.places.insert(header.round, place);
        let (held, is_torn) = state.snapshots.remove(&header.round).unwrap_or_default();
        ensure(!is_torn, || format!("rank {rank} begins {header:?} torn"))?;
        check_snapshot(rank, &header, &held)?;
        let ranks = self.ranks;
        let round = self.round(header.round);
        ensure(round.headers[rank as usize].is_none(), || {
            "a round begun twice".into()
        })?;
        round.headers[rank as usize] = Some(header);
        round
            .sum
            .extend(held.iter().map(|&generation| (rank, generation)));
        round.begun += 1;
        if round.begun == ranks {
            let round = header.round;
            self.events
                .extend((0..ranks).map(|rank| Event::Ended { rank, round }));
        }
        Ok(())
    }

    fn end_round(&mut self, index: usize, rank: u32, number: u64) -> Checked<bool> {
        let machine = &self.machines[rank as usize];
        if machine.completed() != number || machine.begun() <= number {
            return Ok(false);
        }
        self.events.swap_remove(index);
        let round = &mut self.rounds[number as usize];
        let headers: Vec<Header> = round
            .headers
            .iter()
            .map(|h| h.expect("all have begun"))
            .collect();
        let completed = self.machines[rank as usize].handle_completed(&headers);
        let (settled, report) = completed.map_err(|e| e.to_string())?;
        let known = round.report.get_or_insert_with(|| report.clone());
        ensure(*known == report, || {
            format!("ranks differ: {known:?} and {report:?}")
        })?;
        let state = &mut self.state[rank as usize];
        let place = state.places.remove(&number).expect("it has begun");
        let to = match settled {
            Settled::Kept => {
                state.results.remove(&place);
                place
            }
            Settled::Add { to } => to,
            Settled::Copy { .. } => return Err("nobody survives here".into()),
        };
        state.results.entry(to).or_default().extend(&round.sum);
        self.act(rank)?;
        Ok(true)
    }

    /// What must hold of the whole history.
    fn check_end(self) -> Checked<Seen> {
        let quorum = self.options.quorum(self.ranks);
        let most = self.ranks * self.ranks.next_power_of_two().ilog2();
        let mut seen = Seen::default();
        let mut all: Vec<(u32, u64)> = Vec::new();
        for (number, round) in self.rounds.iter().enumerate() {
            let Some(report) = &round.report else {
                return Err(format!("round {number} was never reduced"));
            };
            let text = || format!("round {number}: {report:?}, {} signals", round.signals);
            all.extend(&round.sum);
            ensure(round.signals <= most, text)?;
            if report.waited == Waited::Full {
                let active = if report.is_last { 0 } else { self.ranks };
                ensure(report.active.count() == active && round.signals == 0, text)?;
            } else {
                ensure(round.signals + 1 >= self.ranks, text)?;
                ensure(report.active.count() >= quorum, text)?;
            }
            let limiter = self.options.limiter.map_or(u64::MAX, u64::from);
            let is_limited = limiter != u64::MAX && (number as u64 + 1).is_multiple_of(limiter + 1);
            ensure(!is_limited || report.waited == Waited::Full, text)?;
            let bound = self
                .options
                .staleness_max
                .map_or(usize::MAX, |bound| bound as usize);
            ensure(report.staleness.len().saturating_sub(1) <= bound, text)?;
            seen.staleness_max = seen
                .staleness_max
                .max(report.staleness.len().saturating_sub(1));
            seen.held += u64::from(report.held.count());
        }
        all.sort_unstable();
        let every = (0..self.ranks).flat_map(|rank| (0..self.steps).map(move |step| (rank, step)));
        ensure(all.iter().copied().eq(every), || {
            "generations were lost or counted twice".into()
        })?;
        for (rank, state) in self.state.into_iter().enumerate() {
            let mut applied = state.applied;
            applied.sort_unstable();
            let has_all = self.options.delivery == Delivery::Latest || applied == all;
            ensure(has_all, || {
                format!("rank {rank} did not get what was reduced")
            })?;
            ensure(state.rounds_taken == self.rounds.len() as u64, || {
                format!("rank {rank} missed rounds")
            })?;
            seen.lag_max = seen.lag_max.max(state.lag_max);
        }
        seen.rounds = self.rounds.len() as u64;
        Ok(seen)
    }
}

fn random_options(ranks: u32, prng: &mut Prng) -> PartialOptions {
    let policy = random_policy(ranks, prng);
    let delivery = [Delivery::Ordered, Delivery::Merged, Delivery::Latest][prng.below(3) as usize];
    let bounds = [Some(0), Some(1), Some(3), Some(8), None];
    let is_ordered = u64::from(delivery == Delivery::Ordered);
    PartialOptions {
        policy,
        limiter: prng.chance(0.3).then(|| 1 + prng.below(5) as u32),
        staleness_max: bounds[prng.below(5 - is_ordered) as usize],
        rounds_in_flight: 1 + prng.below(u64::from(ROUNDS_MAX)) as u32,
        delivery,
        divisor: Divisor::One,
        survive: false,
    }
}

fn run_seeds(seeds: std::ops::Range<u64>, steps: u64) {
    for seed in seeds {
        let mut prng = Prng::new(seed);
        let ranks = 1 + prng.below(40) as u32;
        let options = random_options(ranks, &mut prng);
        let job = Job::new(ranks, steps, options.clone(), Mutant::None, seed);
        let seen = job
            .run()
            .unwrap_or_else(|text| panic!("seed {seed}, {ranks} ranks, {options:?}: {text}"));
        assert_eq!(seen.rounds, steps + 1);
    }
}

fn seeds_count(default: u64) -> u64 {
    let given = std::env::var("LINERATE_TEST_SEEDS").ok();
    given.map_or(default, |text| text.parse().unwrap())
}

#[test]
fn nothing_is_lost_or_counted_twice_in_random_histories() {
    run_seeds(0..seeds_count(2_500), 20);
}

#[test]
fn nothing_is_lost_or_counted_twice_in_long_histories() {
    run_seeds(1_000_000..1_000_000 + seeds_count(10).min(10), 1000);
}

fn find(mutant: Mutant, options: &PartialOptions) -> Option<(u64, String)> {
    (0..200).find_map(|seed| {
        let job = Job::new(5, 20, options.clone(), mutant, seed);
        job.run().err().map(|text| (seed, text))
    })
}

#[test]
fn broken_implementations_are_found() {
    // With solo, a rank that a lost signal would have woken wakes itself when it arrives.
    for (mutant, policy, text) in [
        (Mutant::Overwrites, Policy::Solo, "with"),
        (Mutant::Tears, Policy::Solo, "torn"),
        (Mutant::LosesSignals, Policy::Majority, "nothing can move"),
        (Mutant::CountsTwice, Policy::Majority, "active"),
    ] {
        let options = PartialOptions {
            policy,
            ..PartialOptions::default()
        };
        assert_eq!(find(Mutant::None, &options), None);
        let (seed, found) =
            find(mutant, &options).unwrap_or_else(|| panic!("{mutant:?} is not found"));
        assert!(found.contains(text), "seed {seed}: {found}");
    }
}

#[test]
fn a_rank_that_is_always_slowest_reaches_the_bound_of_staleness_and_no_more() {
    let options = PartialOptions {
        policy: Policy::Solo,
        staleness_max: Some(3),
        ..PartialOptions::default()
    };
    let mut job = Job::new(8, 200, options, Mutant::None, 1);
    job.state.iter_mut().for_each(|rank| rank.speed = 1.0);
    job.state[5].speed = 0.003;
    let seen = job.run().unwrap();
    assert_eq!(seen.staleness_max, 3);
    assert!(seen.held > 0);
}

#[test]
fn without_a_bound_a_slow_rank_falls_behind_without_limit_and_loses_nothing() {
    let lag = |steps| {
        let options = PartialOptions {
            policy: Policy::Solo,
            staleness_max: None,
            delivery: Delivery::Merged,
            ..PartialOptions::default()
        };
        let mut job = Job::new(4, steps, options, Mutant::None, 3);
        job.state.iter_mut().for_each(|rank| rank.speed = 1.0);
        job.state[2].speed = 0.0;
        job.run().unwrap().lag_max
    };
    let (short, long) = (lag(20), lag(200));
    assert!(short >= 15 && long >= 150, "{short} and {long}");
}
