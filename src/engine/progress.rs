//! [`Progress`]: which steps of one round are done, which may run, and how far. Pure bookkeeping of the
//! order rules in [`crate::schedule`]; it knows no transport and no memory.
//!
//! A step that cannot go on waits for one earlier step at a time: the first on its list of edges that holds it back, until
//! that one has processed as many elements as it needs, or has completed. Only then does it look at the rest of its
//! edges. So an edge is looked at about once, and a step that moves touches only those that wait for just that.
//! (Counters of open edges would touch every later step at each move; whole lists were scanned each time before, which
//! was nine tenths of a ring of 64 ranks.)

use super::plan::{Edge, NONE, Span, StepPlan};
use super::prepared::Prepared;
use super::round::StraightRun;
use crate::limits::CHUNKS_IN_FLIGHT;
use crate::schedule::{Count, StepId};
use std::collections::VecDeque;

/// How far a step has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// Something that must complete before it starts has not.
    #[default]
    Blocked,
    /// It may process elements, as far as its overlap edges let it.
    Open,
    /// All elements are processed, but something that it depends on has not completed.
    Processed,
    Complete,
}

/// Where one step stands. Elements are counted from the start of the step's ranges.
#[derive(Clone, Copy, Debug)]
pub struct StepRun {
    /// Elements that it processes; known once it has started.
    pub len: u64,
    /// Elements processed, without gaps.
    pub done: u64,
    /// Elements that the step that it waits for must have processed, or [`StepRun::COMPLETION`].
    need: u64,
    /// Chunks handed to the transport, and of those completed without gaps.
    pub chunks_posted: u32,
    /// Completed chunks without gaps.
    pub chunks_done: u32,
    /// The first edge that may not have been met.
    pub(super) cursor: u32,
    /// The first of the steps that wait for this one, and the next of those that wait for the same as this one.
    waiter: StepId,
    next_waiter: StepId,
    /// Bit i: chunk `chunks_done + i` has completed.
    pub out_of_order: u8,
    stage: Stage,
    /// Whether `len` is known.
    is_started: bool,
    is_waiting: bool,
    pub(super) is_queued: bool,
    pub(super) needs_caller: bool,
}

impl Default for StepRun {
    fn default() -> StepRun {
        StepRun {
            len: 0,
            done: 0,
            need: 0,
            chunks_posted: 0,
            chunks_done: 0,
            cursor: 0,
            waiter: NONE,
            next_waiter: NONE,
            out_of_order: 0,
            stage: Stage::Blocked,
            is_started: false,
            is_waiting: false,
            is_queued: false,
            needs_caller: false,
        }
    }
}

/// The steps of one round.
#[derive(Debug, Default)]
pub struct Progress {
    runs: Vec<StepRun>,
    ready: VecDeque<StepId>,
    incomplete: u32,
    /// Per range of the plan, where it lies for the count of this round.
    spans: Vec<Span>,
    /// Steps that have all they need to complete.
    completing: Vec<StepId>,
}

impl Progress {
    /// Takes up a schedule: makes room for its steps, so that no later operation allocates, and resolves its ranges.
    pub fn take_up(&mut self, prepared: &Prepared, count: &Count<'_>) {
        let steps = prepared.plan.steps.len();
        self.runs.clear();
        self.runs.reserve(steps);
        self.ready.clear();
        self.ready.reserve(steps);
        self.completing.reserve(steps);
        self.resolve(prepared, count);
    }

    /// Resolves all ranges: whenever a count or a slot has changed.
    pub fn resolve(&mut self, prepared: &Prepared, count: &Count<'_>) {
        self.spans.clear();
        let ranges = prepared.plan.ranges.iter();
        self.spans.extend(ranges.map(|range| {
            let (start, len) = range.resolve(count);
            Span { start, len }
        }));
    }

    /// Where a range lies.
    #[inline]
    pub fn span(&self, number: u32) -> Span {
        self.spans[number as usize]
    }

    /// Arms the schedule: every step may run once, those without needs are ready.
    pub fn arm(&mut self, prepared: &Prepared) {
        self.runs.clone_from(&prepared.plan.armed);
        self.ready.clear();
        self.ready.extend(&prepared.plan.initial);
        self.incomplete = self.runs.len() as u32;
    }

    /// Arms the schedule where a straight run has left off.
    pub fn resume(&mut self, prepared: &Prepared, run: StraightRun) {
        self.arm(prepared);
        (0..run.step).for_each(|step| self.process(prepared, step));
        let runs = &self.runs;
        self.ready
            .retain(|&step| runs[step as usize].stage < Stage::Processed);
        if let Some(next) = self.runs.get_mut(run.step as usize) {
            next.done = run.done;
        }
    }

    /// The caller has arrived: internal activation.
    pub fn activate(&mut self, prepared: &Prepared) {
        for &step in &prepared.plan.triggered {
            let run = &mut self.runs[step as usize];
            run.needs_caller = false;
            if run.stage == Stage::Blocked && !run.is_waiting {
                run.open();
                self.enqueue(step);
            }
        }
    }

    /// Whether every step has completed.
    #[inline]
    pub fn is_finished(&self) -> bool {
        self.incomplete == 0
    }

    /// Whether some step may have something to do.
    #[inline]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next step that may have something to do.
    #[inline]
    pub fn pop_ready(&mut self) -> Option<StepId> {
        let step = self.ready.pop_front()?;
        self.runs[step as usize].is_queued = false;
        Some(step)
    }

    /// One step.
    #[inline]
    pub fn run(&mut self, step: StepId) -> &mut StepRun {
        &mut self.runs[step as usize]
    }

    /// One step that is about to process something: its length is known from here on.
    #[inline]
    pub fn start(&mut self, step: StepId, plan: &StepPlan) -> &mut StepRun {
        let run = &mut self.runs[step as usize];
        if !run.is_started {
            run.is_started = true;
            if plan.span != NONE {
                run.len = self.spans[plan.span as usize].len;
            }
        }
        run
    }

    /// Whether a step has completed.
    pub fn is_complete(&self, step: StepId) -> bool {
        self.runs[step as usize].stage == Stage::Complete
    }

    /// Whether a step waits for the transport.
    pub fn is_posted(&self, step: StepId) -> bool {
        let run = &self.runs[step as usize];
        run.chunks_posted > run.chunks_done
    }

    /// Looks at a step again later.
    #[inline]
    pub fn enqueue(&mut self, step: StepId) {
        let run = &mut self.runs[step as usize];
        if !run.is_queued && run.stage < Stage::Processed {
            run.is_queued = true;
            self.ready.push_back(step);
        }
    }

    /// How many elements a started step may process now, by the elements that it shares with earlier steps. If they are
    /// fewer than `least`, it is looked at again once it may process that many.
    #[inline]
    pub fn limit(&mut self, prepared: &Prepared, step: StepId, least: u64) -> u64 {
        let run = &self.runs[step as usize];
        let end = prepared.plan.steps[step as usize].edges_end;
        if run.cursor == end || least == 0 {
            return run.len;
        }
        if run.is_waiting {
            return least - 1;
        }
        let (mut met, mut limit) = (run.cursor as usize, run.len);
        let mut is_prefix = true;
        for edge in &prepared.plan.edges[met..end as usize] {
            match self.limit_of(edge) {
                // Edges that were met at the beginning of the list are not looked at again.
                None => met += usize::from(is_prefix),
                Some(may) => {
                    is_prefix = false;
                    limit = limit.min(may);
                    if may < least {
                        self.wait_for_elements(step, edge, least);
                        break;
                    }
                }
            }
        }
        self.runs[step as usize].cursor = met as u32;
        limit
    }

    /// Makes a step wait until an overlap edge lets it process `least` elements.
    fn wait_for_elements(&mut self, step: StepId, edge: &Edge, least: u64) {
        let (theirs, ours) = (self.span(edge.theirs), self.span(edge.ours));
        let place = (ours.start + least).min(theirs.start + theirs.len);
        StepRun::wait(&mut self.runs, step, edge.earlier, place - theirs.start);
    }

    /// How many elements an overlap edge lets its step process; `None`: all.
    #[inline]
    fn limit_of(&self, edge: &Edge) -> Option<u64> {
        let earlier = &self.runs[edge.earlier as usize];
        // An earlier step that has processed everything but waits for its own dependencies holds nobody back.
        if earlier.stage >= Stage::Processed {
            return None;
        }
        let (theirs, ours) = (self.span(edge.theirs), self.span(edge.ours));
        let end = theirs.start + theirs.len;
        let done = theirs.start + earlier.done;
        if ours.start >= end || done >= end.min(ours.start + ours.len) {
            return None;
        }
        Some(done.saturating_sub(ours.start))
    }

    /// The step has processed its first `done` elements; [`Progress::process`] says that those are all.
    #[inline]
    pub fn advance(&mut self, step: StepId, done: u64) {
        let run = &mut self.runs[step as usize];
        debug_assert!(done >= run.done && done <= run.len);
        if done > run.done {
            run.done = done;
            if run.waiter != NONE {
                self.wake(step, done);
            }
        }
    }

    /// The step has processed everything.
    #[inline]
    pub fn process(&mut self, prepared: &Prepared, step: StepId) {
        let run = &mut self.runs[step as usize];
        if run.stage >= Stage::Processed {
            return;
        }
        debug_assert!(!run.is_waiting, "what it waits for holds it back");
        run.stage = Stage::Processed;
        run.cursor = prepared.plan.steps[step as usize].overlaps;
        if self.is_settled(prepared, step) {
            self.complete(prepared, step);
        } else {
            self.wake(step, StepRun::COMPLETION - 1);
        }
    }

    /// Looks again at those that wait for no more than `done` elements of this step.
    fn wake(&mut self, step: StepId, done: u64) {
        let mut at = std::mem::replace(&mut self.runs[step as usize].waiter, NONE);
        let mut kept = NONE;
        while at != NONE {
            let run = &mut self.runs[at as usize];
            let next = run.next_waiter;
            if run.need <= done {
                run.is_waiting = false;
                self.enqueue(at);
            } else {
                run.next_waiter = kept;
                kept = at;
            }
            at = next;
        }
        self.runs[step as usize].waiter = kept;
    }

    /// Whether everything that a processed step depends on has completed; else it waits for the first that has not.
    fn is_settled(&mut self, prepared: &Prepared, step: StepId) -> bool {
        let end = prepared.plan.steps[step as usize].edges_end;
        self.follow(prepared, step, end)
    }

    /// Goes on to the first edge before `end` whose step has not completed, and waits for that; true if there is none.
    fn follow(&mut self, prepared: &Prepared, step: StepId, end: u32) -> bool {
        let first = self.runs[step as usize].cursor;
        if first >= end {
            return true;
        }
        for (at, edge) in (first..end).zip(&prepared.plan.edges[first as usize..end as usize]) {
            if self.runs[edge.earlier as usize].stage != Stage::Complete {
                self.runs[step as usize].cursor = at;
                StepRun::wait(&mut self.runs, step, edge.earlier, StepRun::COMPLETION);
                return false;
            }
        }
        self.runs[step as usize].cursor = end;
        true
    }

    fn complete(&mut self, prepared: &Prepared, step: StepId) {
        let mut completed = step;
        loop {
            let run = &mut self.runs[completed as usize];
            run.stage = Stage::Complete;
            self.incomplete -= 1;
            let mut at = std::mem::replace(&mut run.waiter, NONE);
            while at != NONE {
                let run = &mut self.runs[at as usize];
                let next = run.next_waiter;
                run.is_waiting = false;
                match run.stage {
                    Stage::Blocked => self.unblock(prepared, at),
                    Stage::Open => self.enqueue(at),
                    Stage::Processed => {
                        if self.is_settled(prepared, at) {
                            self.completing.push(at);
                        }
                    }
                    Stage::Complete => unreachable!("who has completed waits for nobody"),
                }
                at = next;
            }
            if !prepared.plan.alternatives.is_empty() {
                self.start_alternatives(prepared, completed);
            }
            match self.completing.pop() {
                Some(next) => completed = next,
                None => return,
            }
        }
    }

    /// The first of several has completed: what waits for any of them starts.
    fn start_alternatives(&mut self, prepared: &Prepared, completed: StepId) {
        for step in prepared.plan.alternatives_after(completed) {
            let run = &mut self.runs[step as usize];
            if run.stage == Stage::Blocked {
                run.open();
                self.enqueue(step);
            }
        }
    }

    /// Something that a blocked step waited for has completed.
    fn unblock(&mut self, prepared: &Prepared, step: StepId) {
        let overlaps = prepared.plan.steps[step as usize].overlaps;
        if self.follow(prepared, step, overlaps) && !self.runs[step as usize].needs_caller {
            self.runs[step as usize].open();
            self.enqueue(step);
        }
    }
}

impl StepRun {
    /// The need of a step that waits for the completion of another.
    pub(super) const COMPLETION: u64 = u64::MAX;

    /// Nothing keeps it from starting.
    pub(super) fn open(&mut self) {
        self.stage = Stage::Open;
    }

    /// Makes a step wait until an earlier one has processed `need` elements.
    #[inline]
    pub(super) fn wait(runs: &mut [StepRun], step: StepId, earlier: StepId, need: u64) {
        let first = std::mem::replace(&mut runs[earlier as usize].waiter, step);
        let run = &mut runs[step as usize];
        debug_assert!(!run.is_waiting, "a step waits for one other at a time");
        run.next_waiter = first;
        run.need = need;
        run.is_waiting = true;
    }

    /// Whether another chunk may be posted.
    #[inline]
    pub fn has_chunk_credit(&self) -> bool {
        self.chunks_posted - self.chunks_done < CHUNKS_IN_FLIGHT
    }

    /// Chunk `chunk` has completed; returns how many have without gaps.
    #[inline]
    pub fn complete_chunk(&mut self, chunk: u32) -> u32 {
        self.out_of_order |= 1 << (chunk - self.chunks_done);
        while self.out_of_order & 1 == 1 {
            self.out_of_order >>= 1;
            self.chunks_done += 1;
        }
        self.chunks_done
    }
}

#[cfg(test)]
mod oracle;
#[cfg(test)]
mod tests;
