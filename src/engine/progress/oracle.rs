//! Compares [`Progress`] with the order rules, followed word by word as `schedule/mod.rs` has them:
//! every edge is looked at each time.
//!
//! Random schedules run in random orders, with several chunks of a step under way at once. Each
//! step that runs may run by the rules, both agree all the time on which steps are complete, and no
//! step is forgotten: when nothing is under way any more, all have run.

use super::*;
use crate::prng::Prng;
use crate::schedule::{Action, BufferId, Builder, Extent, Join, Range, Schedule};

/// The order rules, word by word.
struct Rules<'a> {
    schedule: &'a Schedule,
    count: Count<'a>,
    done: Vec<u64>,
    is_processed: Vec<bool>,
    is_complete: Vec<bool>,
}

impl Rules<'_> {
    fn may_start(&self, step: StepId) -> bool {
        let mut full = self.schedule.steps[step as usize].dependencies.iter();
        full.all(|d| d.overlap.is_some() || self.is_complete[d.step as usize])
    }

    /// How many elements a step may process.
    fn limit(&self, step: StepId) -> u64 {
        let this = &self.schedule.steps[step as usize];
        let len = this.action.extent().map_or(0, |r| r.resolve(&self.count).1);
        let mut limit = len;
        for dependency in &this.dependencies {
            let Some((theirs, ours)) = dependency.overlap else {
                continue;
            };
            if self.is_processed[dependency.step as usize] {
                continue;
            }
            let earlier = &self.schedule.steps[dependency.step as usize].action;
            let (before, before_len) = nth_range(earlier, theirs).resolve(&self.count);
            let (start, _) = nth_range(&this.action, ours).resolve(&self.count);
            let done = before + self.done[dependency.step as usize];
            let held_back =
                |i: u64| start + i >= done.max(before) && start + i < before + before_len;
            limit = (0..len).find(|&i| held_back(i)).unwrap_or(len).min(limit);
        }
        limit
    }

    fn process(&mut self, step: StepId) {
        self.is_processed[step as usize] = true;
        loop {
            let ready = (0..self.schedule.steps.len()).find(|&s| {
                let mut all = self.schedule.steps[s].dependencies.iter();
                let has_all = all.all(|d| self.is_complete[d.step as usize]);
                self.is_processed[s] && !self.is_complete[s] && has_all
            });
            match ready {
                Some(step) => self.is_complete[step] = true,
                None => return,
            }
        }
    }
}

fn nth_range(action: &Action, index: u16) -> Range {
    let mut ranges = Vec::new();
    action.for_each_local_range(|range, _| ranges.push(*range));
    ranges[index as usize]
}

/// A schedule with steps of every kind that has edges, over few blocks, so that they overlap in all
/// ways.
fn random_schedule(random: &mut Prng) -> Schedule {
    let mut b = Builder::new("test", 0, 2, true);
    let scratch = b.scratch(Extent::block(0, 4));
    let mut last = None;
    for _ in 0..3 + random.below(20) {
        let of = 1 + random.below(4) as u32;
        let first = random.below(u64::from(of)) as u32;
        let output = |first| Range::new(BufferId::OUTPUT, Extent::block(first, of));
        let arrived = Range::at_start(scratch, Extent::block(random.below(4) as u32, 4));
        let whole = Range::new(BufferId::OUTPUT, arrived.extent);
        last = Some(match random.below(9) {
            0 | 1 => b.send(1, output(first)),
            2 | 3 => b.recv(1, output(first)),
            4 => b.recv(1, arrived),
            5 | 6 => b.reduce(vec![arrived, whole], whole, false),
            7 => b.send(1, arrived),
            _ => {
                let lane = random.below(3) as u8;
                match random.below(3) {
                    0 => b.signal(vec![1], lane),
                    1 => b.wait(vec![1], lane),
                    _ => {
                        let after: Vec<StepId> = last.into_iter().collect();
                        b.step(
                            Action::Nop,
                            &after,
                            Join::All,
                            crate::schedule::Trigger::None,
                        );
                    }
                }
                continue;
            }
        });
    }
    b.build()
}

/// Runs one schedule in one order, piecewise or whole.
fn run(seed: u64) {
    let random = &mut Prng::new(seed);
    let schedule = random_schedule(random);
    let prepared = Prepared::new(schedule.clone(), 0, false);
    let steps = schedule.steps.len();
    let count = Count {
        count: [0, 1, 3, 7, 64, 101][random.below(6) as usize],
        slots: &[],
    };
    let mut rules = Rules {
        schedule: &schedule,
        count,
        done: vec![0; steps],
        is_processed: vec![false; steps],
        is_complete: vec![false; steps],
    };
    // Whole steps wait for more than the rules ask: for all of each step whose range overlaps
    // theirs at some count, even if not at this one.
    let is_whole = random.chance(0.5);
    let chunks: Vec<u64> = match is_whole {
        true => vec![count.count; steps],
        false => (0..steps).map(|_| 1 + random.below(40)).collect(),
    };
    let mut posted = vec![0; steps];
    let mut under_way: Vec<(StepId, u64)> = Vec::new();
    let mut progress = Progress::default();
    progress.take_up(&prepared, &count, if is_whole { u64::MAX } else { 1 });
    progress.arm(&prepared, true);
    while progress.has_ready() || !under_way.is_empty() {
        if random.chance(0.5) && !under_way.is_empty() {
            let (step, _) = under_way[random.below(under_way.len() as u64) as usize];
            let first = under_way.iter().position(|(s, _)| *s == step);
            let (_, end) = under_way.remove(first.expect("it is among them"));
            rules.done[step as usize] = end;
            if end == progress.run(step).len {
                rules.process(step);
                super::tests::process(&mut progress, &prepared, step);
            } else {
                progress.advance(&prepared, step, end);
                progress.enqueue(step);
            }
        } else if let step @ ..MORE = progress.pop_ready() {
            assert!(
                rules.may_start(step),
                "seed {seed}: step {step} starts early"
            );
            let len = progress.run(step).len;
            let at = &mut posted[step as usize];
            while *at < len && under_way.iter().filter(|(s, _)| *s == step).count() < 4 {
                let end = (*at + chunks[step as usize]).min(len);
                let (limit, rule) = (progress.limit(&prepared, step, end), rules.limit(step));
                assert_eq!(
                    limit >= end,
                    rule >= end,
                    "seed {seed}: step {step}: {limit}, {rule}"
                );
                assert!(limit < end || limit == rule, "seed {seed}: {limit}, {rule}");
                if limit < end {
                    break;
                }
                under_way.push((step, end));
                *at = end;
            }
            if len == 0 {
                rules.process(step);
                super::tests::process(&mut progress, &prepared, step);
            }
        }
        for step in 0..steps {
            assert_eq!(
                progress.is_complete(step as StepId),
                rules.is_complete[step],
                "seed {seed}: step {step} of\n{schedule}"
            );
        }
    }
    assert!(
        progress.is_finished(),
        "seed {seed}: forgotten steps of\n{schedule}"
    );
}

#[test]
fn every_order_of_random_schedules_keeps_the_rules_and_comes_to_an_end() {
    (0..20_000).for_each(run);
}
