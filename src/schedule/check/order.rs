//! What happens before what in one run, and whether every two conflicting accesses are ordered.
//!
//! Every step has three events: it *starts* (its full dependencies have completed), its elements
//! are *processed*, it *completes* (rule 2 of the module [`crate::schedule`]). Between steps,
//! overlap edges and messages order element by element; full edges and signals order whole steps.
//! An order that is found is real. An order that exists only through a combination of edges that
//! this file does not follow is reported as missing.

use super::fault::{CheckError, Fault};
use super::run::Trace;
use super::world::{GlobalStep, Touch, World};
use crate::schedule::{Action, BufferId, Join};
use crate::types::{Collective, Rank};
use std::collections::HashSet;

const START: usize = 0;
const PROCESSED: usize = 1;
const COMPLETE: usize = 2;

struct Order<'w, 'a> {
    world: &'w World<'a>,
    trace: &'w Trace,
    /// For each event, the events before it as bits; computed when first asked for.
    before: Vec<Option<Box<[u64]>>>,
}

/// Elements that two steps share: element `a_index + i` of `a` and `c_index + i` of `c`, for `i`
/// below `len`.
#[derive(Clone, Copy)]
struct Shared {
    a: GlobalStep,
    a_index: u64,
    c: GlobalStep,
    c_index: u64,
    len: u64,
}

/// Checks every pair of accesses of the run.
pub(super) fn check_order(world: &World<'_>, trace: &Trace) -> Result<(), CheckError> {
    let mut order = Order {
        world,
        trace,
        before: vec![None; 3 * world.steps() + world.ranks() as usize],
    };
    let mut accesses: Vec<Vec<(GlobalStep, Touch)>> = vec![Vec::new(); world.storage_lens.len()];
    for global in 0..world.steps() {
        for touch in trace.resolved[global].touches().filter(|t| t.len > 0) {
            accesses[touch.storage].push((global, *touch));
        }
    }
    for (storage, mut list) in accesses.into_iter().enumerate() {
        let (owner, buffer) = world.owner(storage);
        let is_reached = |of| order.world.reached(owner, of) == buffer;
        if is_reached(BufferId::INPUT) || is_reached(BufferId::OUTPUT) {
            order.check_lifetimes(owner, &list)?;
        }
        list.sort_by_key(|(_, touch)| touch.start);
        for (index, first) in list.iter().enumerate() {
            let end = first.1.start + first.1.len;
            for second in list[index + 1..].iter().take_while(|(_, t)| t.start < end) {
                if first.1.is_write || second.1.is_write {
                    order.check_pair(*first, *second)?;
                }
            }
        }
    }
    order.check_mail()?;
    if world.spec.collective == Collective::Barrier {
        order.check_barrier()?;
    }
    Ok(())
}

impl Order<'_, '_> {
    /// Peers touch a caller's memory only between its arrival and its end.
    fn check_lifetimes(
        &mut self,
        owner: Rank,
        list: &[(GlobalStep, Touch)],
    ) -> Result<(), CheckError> {
        let signals: Vec<_> = (self.world.global_steps(owner))
            .filter(|&g| {
                matches!(
                    self.world.step(g).action,
                    Action::Signal { payload: None, .. }
                )
            })
            .collect();
        let end = 3 * self.world.steps() + owner as usize;
        for &(global, touch) in list {
            let (rank, _) = self.world.place(global);
            if rank == owner {
                continue;
            }
            if !signals
                .iter()
                .any(|&s| self.is_before(3 * s + COMPLETE, 3 * global + START))
            {
                let text = format!("nothing tells it that rank {owner} has arrived");
                return Err(self.error(Fault::Lifetime, global, &touch, text));
            }
            if !self.is_before(3 * global + PROCESSED, end) {
                let text = format!("rank {owner} may have left: nothing tells it to wait");
                return Err(self.error(Fault::Lifetime, global, &touch, text));
            }
        }
        Ok(())
    }

    fn check_mail(&mut self) -> Result<(), CheckError> {
        for global in 0..self.world.steps() {
            let Action::ReduceFrom { sources, .. } = &self.world.step(global).action else {
                continue;
            };
            let (rank, step) = self.world.place(global);
            for source in sources {
                if let crate::schedule::Operand::Mail(from, lane) = source {
                    let sent = self.trace.sent.get(&(*from, rank, *lane)).copied();
                    if !sent.is_some_and(|s| self.is_before(3 * s + COMPLETE, 3 * global + START)) {
                        let text = format!("reads {source} without waiting for it");
                        return Err(CheckError::new(Fault::Signal, rank, Some(step), text));
                    }
                }
            }
        }
        Ok(())
    }

    fn check_barrier(&mut self) -> Result<(), CheckError> {
        for rank in 0..self.world.ranks() {
            let end = 3 * self.world.steps() + rank as usize;
            for peer in (0..self.world.ranks()).filter(|&p| p != rank) {
                let has_come = |o: &mut Self, g| o.is_before(3 * g + START, end);
                if !(self.world.global_steps(peer)).any(|g| has_come(self, g)) {
                    let text = format!("may leave before rank {peer} has come");
                    return Err(CheckError::new(Fault::Barrier, rank, None, text));
                }
            }
        }
        Ok(())
    }

    fn check_pair(
        &mut self,
        first: (GlobalStep, Touch),
        second: (GlobalStep, Touch),
    ) -> Result<(), CheckError> {
        let (lo, hi) = (
            first.1.start.max(second.1.start),
            (first.1.start + first.1.len).min(second.1.start + second.1.len),
        );
        if first.0 == second.0 {
            // Reading an element and writing the result to it is one act.
            if first.1.start == second.1.start && !(first.1.is_write && second.1.is_write) {
                return Ok(());
            }
            let text = "reads and writes, or writes twice, an element that it processes at different times";
            return Err(self.error(Fault::Unordered, first.0, &first.1, text.into()));
        }
        let (a, c) = if first.0 < second.0 {
            (first, second)
        } else {
            (second, first)
        };
        let shared = Shared {
            a: a.0,
            a_index: lo - a.1.start,
            c: c.0,
            c_index: lo - c.1.start,
            len: hi - lo,
        };
        let is_one_rank = self.world.place(a.0).0 == self.world.place(c.0).0;
        let is_ordered =
            self.is_ordered(shared) || (!is_one_rank && self.is_ordered(shared.reversed()));
        if is_ordered {
            return Ok(());
        }
        let (rank, step) = self.world.place(a.0);
        let verb = |t: &Touch| if t.is_write { "writes" } else { "reads" };
        let text = format!(
            "{} it, and step {step} of rank {rank} ({}) {} it; nothing orders them",
            verb(&c.1),
            self.world.step(a.0).action,
            verb(&a.1)
        );
        let at = Touch { start: lo, ..c.1 };
        Err(self.error(Fault::Unordered, c.0, &at, text))
    }

    /// Tries the cheapest first: edges between elements, then whole steps, then both, element by
    /// element.
    fn is_ordered(&mut self, shared: Shared) -> bool {
        self.is_chained(shared, false, &mut HashSet::new())
            || self.is_before(3 * shared.a + PROCESSED, 3 * shared.c + START)
            || (0..shared.len).all(|i| {
                let one = Shared {
                    a_index: shared.a_index + i,
                    c_index: shared.c_index + i,
                    len: 1,
                    ..shared
                };
                self.is_chained(one, true, &mut HashSet::new())
            })
    }

    /// Whether a path of overlap edges (and messages, if `mixed`) leads from the elements of `a` to
    /// those of `c`; with `mixed` also a path that leaves `a` as a whole.
    fn is_chained(
        &mut self,
        shared: Shared,
        mixed: bool,
        visited: &mut HashSet<(GlobalStep, u64)>,
    ) -> bool {
        let Shared { c, c_index, .. } = shared;
        if !visited.insert((c, c_index)) {
            return false;
        }
        let (rank, _) = self.world.place(c);
        let step = self.world.step(c);
        let mut earlier = Vec::new();
        if step.join == Join::All {
            for dependency in &step.dependencies {
                let Some((i, j)) = dependency.overlap else {
                    continue;
                };
                let x = self.world.global(rank, dependency.step);
                let (Some(from), Some(to)) = (
                    self.trace.resolved[x].local(i),
                    self.trace.resolved[c].local(j),
                ) else {
                    continue;
                };
                let place = to.start + c_index;
                let is_inside = from.storage == to.storage
                    && place >= from.start
                    && place + shared.len <= from.start + from.len;
                if is_inside {
                    earlier.push((x, place - from.start));
                }
            }
        }
        if mixed && matches!(step.action, Action::Recv { .. }) {
            earlier.extend(self.world.partner(c).map(|send| (send, c_index)));
        }
        let is_one_rank = self.world.place(shared.a).0 == rank;
        earlier.into_iter().any(|(x, x_index)| {
            if (x, x_index) == (shared.a, shared.a_index) {
                return true;
            }
            if mixed && self.is_before(3 * shared.a + PROCESSED, 3 * x + START) {
                return true;
            }
            let further = Shared {
                c: x,
                c_index: x_index,
                ..shared
            };
            (mixed || !is_one_rank || x > shared.a) && self.is_chained(further, mixed, visited)
        })
    }

    fn is_before(&mut self, event: usize, later: usize) -> bool {
        if self.before[later].is_none() {
            self.before[later] = Some(self.find_before(later));
        }
        let bits = self.before[later].as_ref().expect("just found");
        bits[event / 64] >> (event % 64) & 1 == 1
    }

    /// Everything before an event, by search backward.
    fn find_before(&self, later: usize) -> Box<[u64]> {
        let mut bits = vec![0u64; self.before.len().div_ceil(64)].into_boxed_slice();
        let mut open = vec![later];
        while let Some(event) = open.pop() {
            self.for_each_just_before(event, |earlier| {
                let (word, bit) = (earlier / 64, 1 << (earlier % 64));
                if bits[word] & bit == 0 {
                    bits[word] |= bit;
                    open.push(earlier);
                }
            });
        }
        bits
    }

    fn for_each_just_before(&self, event: usize, mut visit: impl FnMut(usize)) {
        if event >= 3 * self.world.steps() {
            let rank = (event - 3 * self.world.steps()) as Rank;
            self.world
                .global_steps(rank)
                .for_each(|g| visit(3 * g + COMPLETE));
            return;
        }
        let (global, kind) = (event / 3, event % 3);
        let (rank, _) = self.world.place(global);
        let step = self.world.step(global);
        match kind {
            PROCESSED => {
                visit(3 * global + START);
                self.for_each_overlapped(global, |x, is_whole| {
                    visit(3 * x + START);
                    if is_whole {
                        visit(3 * x + PROCESSED);
                    }
                });
                match step.action {
                    // An empty message may never be sent.
                    Action::Recv { .. } if self.trace.resolved[global].len > 0 => {
                        let send = self.world.partner(global).expect("messages are paired");
                        visit(3 * send + PROCESSED);
                    }
                    Action::WaitCount { .. } => {
                        let signals = self.trace.signals.get(&global).into_iter().flatten();
                        signals.for_each(|s| visit(3 * s + COMPLETE));
                    }
                    _ => {}
                }
            }
            _ => {
                if kind == COMPLETE {
                    visit(3 * global + PROCESSED);
                }
                if step.join == Join::Any {
                    let by = self.trace.started_by[global];
                    by.into_iter().for_each(|g| visit(3 * g + COMPLETE));
                } else {
                    for dependency in &step.dependencies {
                        if kind == COMPLETE || dependency.overlap.is_none() {
                            visit(3 * self.world.global(rank, dependency.step) + COMPLETE);
                        }
                    }
                }
            }
        }
    }

    /// The steps that an overlap edge leads from, and whether all their elements are among this
    /// step's.
    fn for_each_overlapped(&self, global: GlobalStep, mut visit: impl FnMut(GlobalStep, bool)) {
        let (rank, _) = self.world.place(global);
        let step = self.world.step(global);
        for dependency in step.dependencies.iter().filter(|_| step.join == Join::All) {
            let Some((i, j)) = dependency.overlap else {
                continue;
            };
            let x = self.world.global(rank, dependency.step);
            let (from, to) = (
                self.trace.resolved[x].local(i),
                self.trace.resolved[global].local(j),
            );
            if let (Some(from), Some(to)) = (from, to) {
                let (start, end) = (
                    from.start.max(to.start),
                    (from.start + from.len).min(to.start + to.len),
                );
                if from.storage == to.storage && start < end {
                    visit(x, end - start == from.len);
                }
            }
        }
    }

    fn error(&self, fault: Fault, global: GlobalStep, touch: &Touch, text: String) -> CheckError {
        let (rank, step) = self.world.place(global);
        let (owner, BufferId(buffer)) = self.world.owner(touch.storage);
        let action = &self.world.step(global).action;
        let text = format!("{action} (buffer {buffer} of rank {owner}): {text}");
        CheckError::new(fault, rank, Some(step), text).at(touch.start)
    }
}

impl Shared {
    fn reversed(self) -> Shared {
        Shared {
            a: self.c,
            a_index: self.c_index,
            c: self.a,
            c_index: self.a_index,
            len: self.len,
        }
    }
}
