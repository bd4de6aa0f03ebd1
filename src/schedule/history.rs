//! [`History`]: what the steps so far have read and written in one buffer, and which of them a
//! further access waits for.
//!
//! An edge that others imply is left out, since every edge costs time in each run. Three things
//! imply an edge from an earlier access to the new one:
//! * Between them lies a third access to the same elements, which follows the earlier one and which
//!   the new one follows.
//! * Scratch memory is used again and again for blocks whose lengths differ by at most one element
//!   ([`Range::is_like`]). None of these blocks covers another, so no access would ever be
//!   forgotten. A step that writes such memory for the third time therefore waits for the whole
//!   first use. That costs little, because the two touch nearly the same elements.
//! * A wait's completion implies everything before the signals in front of it (see
//!   [`super::Builder`]).

use super::{Dependency, Extent, Point, Range, Step, StepId};
use std::cmp::Reverse;

/// One step's use of a range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub step: StepId,
    /// Number of the range among the step's.
    pub index: u16,
    pub range: Range,
    pub is_write: bool,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    access: Access,
    /// The memory has been written again since, through a range like this one ([`Range::is_like`]).
    is_past: bool,
}

/// The accesses to one buffer. A ring of a thousand ranks has a thousand blocks, and a step on one
/// of them need not look at the accesses to the others.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    /// The accesses to single blocks of the whole vector, by subdivision.
    divided: Vec<Divided>,
    /// All other accesses, in the order of their steps.
    others: Vec<Known>,
    /// Steps whose completion implies that of all forgotten accesses that are like the range.
    forgotten: Vec<(StepId, Range)>,
}

/// Blocks in all, and how many times the count is subdivided.
type Subdivision = (u32, u32);

/// The accesses to single blocks of one subdivision.
#[derive(Clone, Debug)]
struct Divided {
    by: Subdivision,
    /// By block, in the order of their steps.
    blocks: Vec<Vec<Known>>,
}

impl Divided {
    /// The blocks that a range touches: all if it is of another subdivision.
    fn touched(&self, range: &Range) -> std::ops::Range<usize> {
        let end = self.blocks.len();
        match blocks(range) {
            Some((first, len, by)) if by == self.by => {
                (first as usize).min(end)..((first + len) as usize).min(end)
            }
            _ => 0..end,
        }
    }
}

impl History {
    /// Appends what a new access must wait for, unless that is among `dependencies`; `steps` are
    /// those before it.
    pub fn collect(&self, new: &Access, steps: &[Step], dependencies: &mut Vec<Dependency>) {
        let mut followed: Vec<&Access> = Vec::new();
        let mut past = Vec::new();
        let mut hidden_before = 0;
        let mut latest_first: Vec<&Known> = self.lists(&new.range).flatten().collect();
        latest_first.sort_by_key(|known| Reverse((known.access.step, known.access.index)));
        for Known { access, is_past } in latest_first {
            let is_conflict = new.is_write || access.is_write;
            if !is_conflict || !access.range.may_overlap(&new.range) {
                continue;
            }
            if *is_past && new.is_write && access.range.is_like(&new.range) {
                if !depends(steps, &past, access.step) {
                    past.push(access.step);
                    add(dependencies, full(access.step));
                }
            } else if !followed
                .iter()
                .any(|later| implies(later, access, &new.range))
            {
                let overlap = Some((access.index, new.index));
                let step = access.step;
                add(dependencies, Dependency { step, overlap });
            }
            followed.push(access);
            if access.is_write && access.range.covers(&new.range) {
                hidden_before = access.step;
                break;
            }
        }
        for (step, range) in &self.forgotten {
            let is_implied = !past.is_empty() && range.is_like(&new.range);
            if *step >= hidden_before && !is_implied {
                add(dependencies, full(*step));
            }
        }
    }

    /// Adds an access whose step, the last of `steps`, has the dependencies that were collected for
    /// it.
    pub fn add(&mut self, new: Access, steps: &[Step]) {
        if new.is_write {
            for list in self.lists_mut(&new.range) {
                list.retain(|k| !new.range.covers(&k.access.range));
            }
            self.forget_past(&new, steps);
            for known in self.lists_mut(&new.range).flatten() {
                known.is_past |=
                    known.access.step < new.step && known.access.range.is_like(&new.range);
            }
        }
        let is_past = false;
        self.list_of(&new.range).push(Known {
            access: new,
            is_past,
        });
    }

    /// Everything before this step has completed when any later access starts.
    pub fn forget_before(&mut self, step: StepId) {
        let divided = self
            .divided
            .iter_mut()
            .flat_map(|divided| &mut divided.blocks);
        for list in divided.chain([&mut self.others]) {
            list.retain(|k| k.access.step >= step);
        }
        self.forgotten.retain(|(last, _)| *last >= step);
    }

    /// Forgets the past accesses that the new one waits for as a whole.
    fn forget_past(&mut self, new: &Access, steps: &[Step]) {
        let is_like = |k: &Known| k.is_past && k.access.range.is_like(&new.range);
        let awaited: Vec<StepId> = (steps[new.step as usize].dependencies.iter())
            .filter(|d| d.overlap.is_none())
            .map(|d| d.step)
            .filter(|step| {
                let mut known = self.lists(&new.range).flatten();
                known.any(|k| is_like(k) && k.access.step == *step)
            })
            .collect();
        if awaited.is_empty() {
            return;
        }
        for list in self.lists_mut(&new.range) {
            list.retain(|k| {
                let step = k.access.step;
                !is_like(k) || !(awaited.contains(&step) || depends(steps, &awaited, step))
            });
        }
        // The accesses that were forgotten earlier have completed when these have: the first of
        // these was a write, which waited for them.
        self.forgotten.retain(|(_, r)| !r.is_like(&new.range));
        let ranges = awaited.into_iter().map(|step| (step, new.range));
        self.forgotten.extend(ranges);
    }

    /// The accesses that may share elements with a range, or be like it.
    fn lists(&self, range: &Range) -> impl Iterator<Item = &Vec<Known>> {
        let divided = self.divided.iter();
        let touched = divided.flat_map(|divided| &divided.blocks[divided.touched(range)]);
        touched.chain([&self.others])
    }

    fn lists_mut(&mut self, range: &Range) -> impl Iterator<Item = &mut Vec<Known>> {
        let touched = self.divided.iter_mut().flat_map(|divided| {
            let touched = divided.touched(range);
            &mut divided.blocks[touched]
        });
        touched.chain([&mut self.others])
    }

    /// The list to which an access belongs.
    fn list_of(&mut self, range: &Range) -> &mut Vec<Known> {
        let Some((block, 1, by)) = blocks(range) else {
            return &mut self.others;
        };
        let at = match self.divided.iter().position(|divided| divided.by == by) {
            Some(at) => at,
            None => {
                let blocks = Vec::new();
                self.divided.push(Divided { by, blocks });
                self.divided.len() - 1
            }
        };
        let (blocks, block) = (&mut self.divided[at].blocks, block as usize);
        if blocks.len() <= block {
            blocks.resize_with(block + 1, Vec::new);
        }
        &mut blocks[block]
    }
}

/// The first block of a range of a whole vector, how many they are, and of which subdivision. A
/// scratch buffer begins elsewhere with each block, and holds few.
fn blocks(range: &Range) -> Option<(u32, u32, Subdivision)> {
    match range.extent {
        Extent::Blocks {
            first,
            len,
            of,
            times,
        } if range.origin == Point::ZERO => Some((first, len, (of, times))),
        _ => None,
    }
}

/// Whether an access to `range` that follows `later` therefore follows `earlier`, too.
fn implies(later: &Access, earlier: &Access, range: &Range) -> bool {
    if later.step == earlier.step {
        return later.range == earlier.range;
    }
    (later.is_write || earlier.is_write)
        && (later.range.covers(range) || later.range.covers(&earlier.range))
}

/// Whether one of `later` depends on a step directly.
fn depends(steps: &[Step], later: &[StepId], earlier: StepId) -> bool {
    let mut all = later.iter().flat_map(|&l| &steps[l as usize].dependencies);
    all.any(|d| d.step == earlier)
}

fn add(dependencies: &mut Vec<Dependency>, new: Dependency) {
    if !dependencies.contains(&new) {
        dependencies.push(new);
    }
}

pub(super) fn full(step: StepId) -> Dependency {
    let overlap = None;
    Dependency { step, overlap }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;
    use crate::schedule::{BufferId, Builder, Count, Extent, Schedule};
    use std::collections::HashSet;

    /// Random accesses to two blocks of scratch memory and the output, and fences.
    fn random_schedule(random: &mut Prng) -> Schedule {
        let mut b = Builder::new("test", 0, 2, true);
        let scratch = [b.scratch(Extent::block(0, 3)), b.scratch(Extent::all(1))];
        for _ in 0..4 + random.below(12) {
            let mut range = || {
                let buffer = scratch[random.below(2) as usize];
                let of = [1, 2, 3, 3, 3][random.below(5) as usize];
                let extent = Extent::block(random.below(u64::from(of)) as u32, of);
                match random.below(4) {
                    0 => Range::new(BufferId::OUTPUT, extent),
                    1 => Range::new(scratch[1], extent),
                    _ => Range::at_start(buffer, extent),
                }
            };
            let (one, other) = (range(), range());
            match random.below(12) {
                0..=4 => b.recv(1, one),
                5..=8 => b.send(1, one),
                9 => b.reduce(vec![one], one, false),
                10 if one.extent == other.extent => b.reduce(vec![one], other, false),
                _ if random.chance(0.3) => {
                    b.signal(vec![1], 0);
                    b.wait(vec![1], 0);
                    continue;
                }
                _ => continue,
            };
        }
        b.build()
    }

    #[derive(Clone, Copy, PartialEq, Eq, Hash)]
    enum Event {
        Element(StepId, u64),
        Completion(StepId),
    }

    fn ranges(step: &Step) -> Vec<(Range, bool)> {
        let mut ranges = Vec::new();
        (step.action).for_each_local_range(|range, is_write| ranges.push((*range, is_write)));
        ranges
    }

    /// Everything that comes before a step processes an element, by the rules of the module.
    fn before(schedule: &Schedule, count: &Count<'_>, last: Event) -> HashSet<Event> {
        let (mut found, mut open) = (HashSet::new(), vec![last]);
        while let Some(event) = open.pop() {
            let (Event::Element(step, _) | Event::Completion(step)) = event;
            let this = &schedule.steps[step as usize];
            for dependency in &this.dependencies {
                let earlier = match (dependency.overlap, event) {
                    (Some((theirs, ours)), Event::Element(_, index)) => {
                        let steps = &schedule.steps;
                        let from = ranges(&steps[dependency.step as usize])[theirs as usize].0;
                        let (start, len) = from.resolve(count);
                        let at = ranges(this)[ours as usize].0.resolve(count).0 + index;
                        if at < start || at >= start + len {
                            continue;
                        }
                        Event::Element(dependency.step, at - start)
                    }
                    _ => Event::Completion(dependency.step),
                };
                if found.insert(earlier) {
                    open.push(earlier);
                }
            }
        }
        found
    }

    #[test]
    fn whatever_is_left_out_follows_from_what_is_there() {
        for seed in 0..3000 {
            let random = &mut Prng::new(seed);
            let schedule = random_schedule(random);
            let count = Count {
                count: [1, 2, 4, 7][random.below(4) as usize],
                slots: &[],
            };
            for (later, step) in (0..).zip(&schedule.steps) {
                for (range, is_write) in ranges(step) {
                    let (start, len) = range.resolve(&count);
                    for index in 0..len {
                        let found = before(&schedule, &count, Event::Element(later, index));
                        for earlier in 0..later {
                            for (other, writes) in ranges(&schedule.steps[earlier as usize]) {
                                let (from, size) = other.resolve(&count);
                                let at = start + index;
                                let is_conflict = range.buffer == other.buffer
                                    && (is_write || writes)
                                    && (from..from + size).contains(&at);
                                assert!(
                                    !is_conflict
                                        || found.contains(&Event::Completion(earlier))
                                        || found.contains(&Event::Element(earlier, at - from)),
                                    "seed {seed}, count {}: step {later} does not follow {earlier} in\n{schedule}",
                                    count.count
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}
