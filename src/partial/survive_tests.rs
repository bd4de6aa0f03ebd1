//! Random histories in which ranks die at any moment, also while the others recover from an earlier
//! death: every survivor has the same rounds, bits and sums, and every generation of a survivor
//! exactly once.

use super::history::{Checked, Event, check_snapshot, describe, ensure, machines, random_policy};
use super::options::ROUNDS_MAX;
use super::*;
use crate::prng::Prng;
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};

/// What a broken implementation would do. Each must be found.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mutant {
    None,
    /// Nobody says again that it has arrived.
    Mute,
    /// A rank that lacks a result repeats its round alone instead of fetching it.
    Repeats,
}

/// A reduction, since the last death.
#[derive(Default)]
struct Run {
    headers: BTreeMap<u32, Header>,
    sum: Vec<(u32, u64)>,
}

#[derive(Default)]
struct Rank {
    snapshots: BTreeMap<u64, Vec<u64>>,
    copying: Option<(u64, bool)>,
    generations: u64,
    has_finished: bool,
    is_over: bool,
    /// What lies in each place.
    results: BTreeMap<usize, Vec<(u32, u64)>>,
    applied: Vec<(u32, u64)>,
    rounds_taken: u64,
    /// Every round as it ended here.
    ended: Vec<(RoundReport, Vec<(u32, u64)>)>,
}

struct Job {
    ranks: u32,
    steps: u64,
    options: PartialOptions,
    mutant: Mutant,
    machines: Vec<Machine>,
    state: Vec<Rank>,
    live: Vec<u32>,
    /// Deaths to come.
    deaths: u32,
    chance: f64,
    /// The rank that is drawn to begin a round comes last.
    is_adverse: bool,
    /// Somebody has died, and these have noticed.
    is_failing: bool,
    noticed: BTreeSet<u32>,
    runs: BTreeMap<u64, Run>,
    events: Vec<Event>,
    prng: Prng,
    now: Time,
    seen: Seen,
}

/// How often what the tests are about has happened.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    fetched: u64,
    repeated: u64,
    died_in_recovery: u64,
    /// Rounds with a contribution of a rank that is dead in the end.
    of_the_dead: u64,
}

impl Job {
    fn new(ranks: u32, steps: u64, options: PartialOptions, mutant: Mutant, seed: u64) -> Job {
        options.check(ranks).unwrap();
        let mut prng = Prng::new(seed);
        let machines = machines(ranks, &options);
        let deaths = 1 + prng.below(u64::from(ranks - 1).min(4)) as u32;
        Job {
            ranks,
            steps,
            mutant,
            machines,
            options,
            state: (0..ranks).map(|_| Rank::default()).collect(),
            live: (0..ranks).collect(),
            deaths,
            chance: [0.01, 0.002, 0.0005][prng.below(3) as usize],
            is_adverse: false,
            is_failing: false,
            noticed: BTreeSet::new(),
            runs: BTreeMap::new(),
            events: (0..ranks).map(Event::App).collect(),
            prng,
            now: Time(0),
            seen: Seen::default(),
        }
    }

    fn run(self) -> Checked<Seen> {
        self.run_to_end()?.check_end()
    }

    fn run_to_end(mut self) -> Checked<Job> {
        let mut idle = 0;
        while self.live.iter().any(|&r| !self.state[r as usize].is_over) || self.is_failing {
            self.now.0 += 1;
            if self.prng.chance(self.chance) {
                self.maybe_die(1.0);
            }
            if self.is_failing && self.prng.chance(0.1) {
                self.notice()?;
            }
            let index = self.prng.below(self.events.len() as u64) as usize;
            let moved = match self.events[index] {
                Event::App(rank) => !self.noticed.contains(&rank) && self.step_app(rank)?,
                Event::Message { from, to, notice } => {
                    self.events.swap_remove(index);
                    if !self.noticed.contains(&to) {
                        let handled =
                            self.machines[to as usize].handle_notice(from, notice, self.now);
                        handled.map_err(|e| e.to_string())?;
                        self.act(to)?;
                    }
                    true
                }
                Event::Ended { rank, round } => self.end_round(index, rank, round)?,
            };
            idle = if moved { 0 } else { idle + 1 };
            if idle > 300 {
                self.move_anything()?;
                idle = 0;
            }
        }
        Ok(self)
    }

    /// Whether a rank waits until all others have submitted, because it is the one to begin the
    /// round.
    fn is_held_back(&self, rank: u32) -> bool {
        let own = self.machines[rank as usize].submitted();
        let Policy::RandomInitiator { seed } = self.options.policy else {
            return false;
        };
        let is_drawn = initiator(seed, own, 0, self.ranks) == rank && own < self.steps;
        self.is_adverse && is_drawn && {
            let mut others = (0..self.ranks).filter(|&other| other != rank);
            !others.all(|other| self.machines[other as usize].submitted() > own)
        }
    }

    fn move_anything(&mut self) -> Checked<()> {
        let mut moved = self.events.len() > self.live.len() || self.is_failing;
        for rank in self.live.clone() {
            moved |= self.step_app(rank)?;
            if let Some(deadline) = self.machines[rank as usize].next_deadline() {
                self.now = self.now.max(deadline);
                self.machines[rank as usize].handle_time(self.now);
                self.act(rank)?;
                moved = true;
            }
        }
        let live = || self.live.iter().map(|&rank| &self.machines[rank as usize]);
        ensure(moved, || describe(live()))
    }

    /// Lets a rank die, unless enough have died. Returns whether one did.
    fn maybe_die(&mut self, chance: f64) -> bool {
        if self.deaths == 0 || self.live.len() < 2 || !self.prng.chance(chance) {
            return false;
        }
        self.deaths -= 1;
        let index = self.prng.below(self.live.len() as u64) as usize;
        let dead = self.live.remove(index);
        self.noticed.remove(&dead);
        self.is_failing = true;
        // What it had said and sent may have come anywhere or nowhere.
        let prng = &mut self.prng;
        self.events.retain(|event| match event {
            Event::App(rank) => *rank != dead,
            Event::Message { from, to, .. } => *to != dead && (*from != dead || prng.chance(0.5)),
            Event::Ended { rank, .. } => *rank != dead && prng.chance(0.5),
        });
        true
    }

    /// Lets a rank notice a death. When all have noticed it, they recover.
    fn notice(&mut self) -> Checked<()> {
        let deaf = self.live.iter().find(|rank| !self.noticed.contains(rank));
        if let Some(&rank) = deaf {
            // Before it notices, some rounds may still end on this rank.
            while self.prng.chance(0.7) {
                let next = self.machines[rank as usize].completed();
                let is_next = |event: &Event| matches!(event, Event::Ended { rank: r, round } if (*r, *round) == (rank, next));
                let Some(index) = self.events.iter().position(is_next) else {
                    break;
                };
                self.end_round(index, rank, next)?;
            }
            self.noticed.insert(rank);
            return Ok(());
        }
        while !self.recover()? {
            self.seen.died_in_recovery += 1;
        }
        self.noticed.clear();
        Ok(())
    }

    /// What `comm/partial/recovery.rs` does on every rank; false: another one has died on the way.
    fn recover(&mut self) -> Checked<bool> {
        self.events.retain(|event| matches!(event, Event::App(_)));
        self.runs.clear();
        self.is_failing = false;
        let live = self.live.clone();
        let standings: Vec<Standing> = (live.iter())
            .map(|&rank| self.machines[rank as usize].standing())
            .map(|standing| Standing::parse(standing.emit()))
            .collect();
        let recovery = Recovery::of(&live, &standings, &self.options).map_err(|e| e.to_string())?;
        for round in recovery.fetches() {
            let source = recovery.source() as usize;
            let words = self.machines[source].emit_round(round);
            let words = words.ok_or("a result was let go of too early")?;
            let place = self.machines[source].place_of(round).expect("it is kept");
            let sum = self.state[source].results[&place].clone();
            for &rank in &live {
                if self.maybe_die(0.1) {
                    return Ok(false);
                }
                if self.machines[rank as usize].completed() != round {
                    continue;
                }
                self.seen.fetched += 1;
                let place = self.machines[rank as usize].place_of(round);
                let place = place.expect("it is under way");
                let mut sum = sum.clone();
                if self.mutant == Mutant::Repeats {
                    sum.retain(|(of, _)| live.contains(of));
                }
                let fetched = self.machines[rank as usize].handle_fetched(&words);
                let (settled, report) = fetched.map_err(|e| e.to_string())?;
                self.settle(rank, place, settled, report, sum);
            }
        }
        let mut order = live.clone();
        order.rotate_left(self.prng.below(live.len() as u64) as usize);
        for rank in order {
            if self.maybe_die(0.1) {
                return Ok(false);
            }
            let machine = &mut self.machines[rank as usize];
            self.seen.repeated += machine.begun() - machine.completed();
            machine.handle_survived(&recovery, self.now);
            let mut dropped = Vec::new();
            if self.mutant == Mutant::Mute {
                while let Some(action) = machine.poll_action() {
                    dropped.push(action);
                }
                dropped.retain(|action| matches!(action, Action::Begin { .. }));
            }
            for action in dropped {
                self.do_action(rank, action)?;
            }
            self.act(rank)?;
            while self.prng.chance(0.3) {
                self.step_app(rank)?;
            }
        }
        Ok(true)
    }

    fn step_app(&mut self, rank: u32) -> Checked<bool> {
        let machine = &mut self.machines[rank as usize];
        let state = &mut self.state[rank as usize];
        if let Some((target, is_first)) = state.copying.take() {
            let held = state.snapshots.entry(target).or_default();
            ensure(held.is_empty() == is_first, || {
                format!("{held:?} is not first")
            })?;
            held.push(state.generations);
            state.generations += 1;
            machine.handle_submitted(self.now);
            self.act(rank)?;
            return Ok(true);
        }
        if let Next::Taken(report, place) = machine.take() {
            let sum = state.results.get(&place).cloned().unwrap_or_default();
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
            if self.is_held_back(rank) {
                return Ok(false);
            }
            let machine = &mut self.machines[rank as usize];
            let state = &mut self.state[rank as usize];
            state.copying = machine.begin_submit();
            let moved = state.copying.is_some();
            self.act(rank)?;
            return Ok(moved);
        }
        if !state.has_finished {
            let finished = machine.handle_finish().map_err(|e| e.to_string())?;
            state.has_finished = finished;
            self.act(rank)?;
            return Ok(finished);
        }
        let is_over = machine.completed() == self.steps + 1
            && machine.take() == Next::Nothing
            && machine.is_everywhere(self.steps);
        let moved = is_over && !state.is_over;
        state.is_over |= is_over;
        Ok(moved)
    }

    fn act(&mut self, rank: u32) -> Checked<()> {
        while let Some(action) = self.machines[rank as usize].poll_action() {
            self.do_action(rank, action)?;
        }
        Ok(())
    }

    fn do_action(&mut self, rank: u32, action: Action) -> Checked<()> {
        match action {
            Action::Tell { to, notice } => self.send(rank, to, notice),
            Action::Begin { header, .. } => self.enter(rank, header)?,
        }
        Ok(())
    }

    fn send(&mut self, from: u32, to: u32, notice: Notice) {
        if self.live.contains(&to) {
            self.events.push(Event::Message { from, to, notice });
        }
    }

    fn enter(&mut self, rank: u32, header: Header) -> Checked<()> {
        let state = &self.state[rank as usize];
        let held = state
            .snapshots
            .get(&header.round)
            .cloned()
            .unwrap_or_default();
        check_snapshot(rank, &header, &held)?;
        let run = self.runs.entry(header.round).or_default();
        let is_new = run.headers.insert(rank, header).is_none();
        ensure(is_new, || "a round entered twice".into())?;
        run.sum
            .extend(held.iter().map(|&generation| (rank, generation)));
        // All ranks that this one takes for living must have entered. A dead one never does.
        if run.headers.len() as u32 == self.machines[rank as usize].live.len() as u32 {
            let round = header.round;
            let prng = &mut self.prng;
            let is_whole = !self.is_failing;
            let ends = self.live.iter().filter(|_| is_whole || prng.chance(0.5));
            self.events
                .extend(ends.map(|&rank| Event::Ended { rank, round }));
        }
        Ok(())
    }

    fn end_round(&mut self, index: usize, rank: u32, number: u64) -> Checked<bool> {
        let machine = &self.machines[rank as usize];
        if machine.completed() != number
            || machine.begun() <= number
            || self.noticed.contains(&rank)
        {
            return Ok(false);
        }
        self.events.swap_remove(index);
        let run = &self.runs[&number];
        let headers: Vec<Header> = run.headers.values().copied().collect();
        let sum = run.sum.clone();
        let place = self.machines[rank as usize]
            .place_of(number)
            .expect("it has begun");
        let completed = self.machines[rank as usize].handle_completed(&headers);
        let (settled, report) = completed.map_err(|e| e.to_string())?;
        self.settle(rank, place, settled, report, sum);
        self.act(rank)?;
        Ok(true)
    }

    fn settle(
        &mut self,
        rank: u32,
        place: usize,
        settled: Settled,
        report: RoundReport,
        mut sum: Vec<(u32, u64)>,
    ) {
        let state = &mut self.state[rank as usize];
        state.snapshots.remove(&report.round);
        state.results.insert(place, sum.clone());
        match settled {
            Settled::Kept => {}
            Settled::Copy { to } => drop(state.results.insert(to, sum.clone())),
            Settled::Add { to } => state.results.entry(to).or_default().extend(&sum),
        }
        sum.sort_unstable();
        state.ended.push((report, sum));
    }

    fn check_end(mut self) -> Checked<Seen> {
        let first = self.live[0] as usize;
        for &rank in &self.live {
            let (own, other) = (&self.state[rank as usize].ended, &self.state[first].ended);
            let differ = own.iter().zip(other).find(|(a, b)| a != b);
            ensure(differ.is_none() && own.len() == other.len(), || {
                format!("ranks {first} and {rank} differ: {differ:?}")
            })?;
        }
        let mut all: Vec<(u32, u64)> = Vec::new();
        for (report, sum) in &self.state[first].ended {
            self.check_round(report, sum)?;
            let is_of_dead = |(rank, _): &(u32, u64)| !self.live.contains(rank);
            self.seen.of_the_dead += u64::from(sum.iter().any(is_of_dead));
            all.extend(sum);
        }
        ensure(
            self.state[first].ended.len() as u64 == self.steps + 1,
            || "rounds are missing".into(),
        )?;
        all.sort_unstable();
        let is_once = all.windows(2).all(|pair| pair[0] != pair[1]);
        ensure(is_once, || format!("counted twice: {all:?}"))?;
        for &rank in &self.live {
            let own = all.iter().filter(|(of, _)| *of == rank);
            let is_whole = own.map(|(_, generation)| *generation).eq(0..self.steps);
            ensure(is_whole, || format!("rank {rank} lost something: {all:?}"))?;
            let state = &mut self.state[rank as usize];
            state.applied.sort_unstable();
            let has_all = self.options.delivery == Delivery::Latest || state.applied == all;
            ensure(has_all, || {
                format!("rank {rank} did not get what was reduced")
            })?;
            ensure(state.rounds_taken == self.steps + 1, || {
                format!("rank {rank} missed rounds")
            })?;
        }
        Ok(self.seen)
    }

    fn check_round(&self, report: &RoundReport, sum: &[(u32, u64)]) -> Checked<()> {
        let text = || format!("{report:?} of {sum:?}");
        for rank in 0..self.ranks {
            let own: Vec<u64> = (sum.iter())
                .filter(|(of, _)| *of == rank)
                .map(|(_, generation)| *generation)
                .collect();
            ensure(report.included.contains(rank) != own.is_empty(), text)?;
            ensure(
                report.active.contains(rank) == own.contains(&report.round),
                text,
            )?;
            ensure(!report.dead.contains(rank) || own.is_empty(), text)?;
        }
        ensure(report.generations() == sum.len() as u64, text)?;
        let live = self.ranks - report.dead.count();
        if self.options.divisor == Divisor::Live {
            ensure(report.divisor == u64::from(live), text)?;
        }
        // Ranks that had arrived before they died are missing from a round that is repeated.
        let quorum = self.options.quorum(live);
        let fewest = quorum.saturating_sub(report.dead.count());
        ensure(report.is_last || report.active.count() >= fewest, text)
    }
}

fn random_options(ranks: u32, prng: &mut Prng) -> PartialOptions {
    PartialOptions {
        policy: random_policy(ranks, prng),
        limiter: prng.chance(0.3).then(|| 1 + prng.below(5) as u32),
        staleness_max: [Some(0), Some(1), Some(3), Some(8)][prng.below(4) as usize],
        rounds_in_flight: 1 + prng.below(u64::from(ROUNDS_MAX)) as u32,
        delivery: [Delivery::Ordered, Delivery::Merged, Delivery::Latest][prng.below(3) as usize],
        divisor: Divisor::Live,
        survive: true,
    }
}

fn run_seed(seed: u64, mutant: Mutant) -> (PartialOptions, Checked<Seen>) {
    let mut prng = Prng::new(seed);
    let ranks = 2 + prng.below(11) as u32;
    let options = random_options(ranks, &mut prng);
    let job = Job::new(ranks, 20, options.clone(), mutant, seed);
    (options, job.run())
}

#[test]
fn survivors_have_the_same_rounds_and_lose_nothing_whenever_ranks_die() {
    let given = std::env::var("LINERATE_TEST_SEEDS").ok();
    let seeds = given.map_or(2_500, |text| text.parse().unwrap());
    let mut all = Seen::default();
    for seed in 0..seeds {
        let (options, seen) = run_seed(seed, Mutant::None);
        let seen = seen.unwrap_or_else(|text| panic!("seed {seed}, {options:?}: {text}"));
        all.fetched += seen.fetched;
        all.repeated += seen.repeated;
        all.died_in_recovery += seen.died_in_recovery;
        all.of_the_dead += seen.of_the_dead;
    }
    let rarest = (all.fetched.min(all.repeated)).min(all.died_in_recovery.min(all.of_the_dead));
    assert!(
        rarest > seeds / 20,
        "what the test is about is rare: {all:?}"
    );
}

#[test]
fn broken_recoveries_are_found() {
    for (mutant, text) in [
        (Mutant::Mute, "nothing can move"),
        (Mutant::Repeats, "differ"),
    ] {
        let found = (0..1000).find_map(|seed| run_seed(seed, mutant).1.err());
        let found = found.unwrap_or_else(|| panic!("{mutant:?} is not found"));
        assert!(found.contains(text), "{found}");
    }
}

#[test]
fn an_initiator_that_is_always_the_slowest_makes_every_round_synchronous_and_no_deadlock() {
    let options = PartialOptions {
        policy: Policy::RandomInitiator { seed: 9 },
        survive: true,
        ..PartialOptions::default()
    };
    let mut job = Job::new(6, 20, options, Mutant::None, 1);
    (job.deaths, job.is_adverse) = (0, true);
    let all = job.run_to_end().unwrap();
    for (report, _) in &all.state[0].ended[..20] {
        assert_eq!(report.active.count(), 6, "{report:?}");
    }
}
