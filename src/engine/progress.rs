//! [`Progress`]: which steps of one round are done, which may run, and how far. Pure bookkeeping of
//! the order rules in [`crate::schedule`]; it knows no transport and no memory.
//!
//! Each step counts what keeps it from starting, and what keeps it from completing; a step
//! that completes counts down for those that depend on it. Where steps are *whole*, one chunk each,
//! that is all: a step starts when what it overlaps has been processed. Longer steps follow those
//! that they overlap *piecewise*: a step that cannot go on waits for one earlier step at a time,
//! until that one has processed as many elements as it needs.
//!
//! The builder leaves out edges that others imply, so there are few edges to look at.

use super::prepared::{Edge, Prepared, PreparedStep, Span};
use super::step_state::{MORE, NONE, Stage, StepProgress, StepState};
use crate::schedule::{Count, StepId};
use ready::Ready;

/// The steps of one round.
#[derive(Debug, Default)]
pub struct Progress {
    states: Vec<StepState>,
    ready: Ready,
    incomplete: u32,
    /// Whether every step is one chunk at most.
    is_whole: bool,
    /// How far each step has come. Rounds whose steps count no elements do not have it: of a ring
    /// of a thousand ranks it is half a megabyte.
    runs: Vec<StepProgress>,
    /// What `runs` is at the beginning of a round of this count. Empty until it is needed.
    armed: Vec<StepProgress>,
    /// What `states` is at the beginning of a round.
    armed_states: Vec<StepState>,
    /// Per range of the prepared schedule, where it lies for the count of this round.
    spans: Vec<Span>,
    /// Steps that have all they need to complete.
    completing: Vec<StepId>,
}

impl Progress {
    /// Takes up a schedule: makes room for its steps, so that no later operation allocates, and
    /// resolves its ranges.
    pub fn take_up(&mut self, prepared: &Prepared, count: &Count<'_>, per_chunk: u64) {
        let steps = prepared.steps.len();
        self.ready.reserve(steps);
        self.completing.reserve(steps);
        self.resolve(prepared, count);
        let is_one_chunk = |step: &PreparedStep| step.chunks(self.len_of(step), per_chunk) == 1;
        // Steps of a schedule without messages wait for nothing that comes in chunks.
        self.is_whole = !prepared.has_messages || prepared.steps.iter().all(is_one_chunk);
        self.armed.clear();
        let start = match self.is_whole {
            true => &prepared.whole,
            false => &prepared.piecewise,
        };
        self.armed_states.clone_from(&start.states);
        self.states.clone_from(&start.states);
    }

    fn resolve(&mut self, prepared: &Prepared, count: &Count<'_>) {
        self.spans.clear();
        let ranges = prepared.ranges.iter();
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

    /// Arms the schedule: every step may run once, and those that nothing holds back are ready.
    /// `counts`: some step counts its elements.
    #[inline]
    pub fn arm(&mut self, prepared: &Prepared, counts: bool) {
        if counts {
            self.arm_runs(prepared);
        }
        let start = match self.is_whole {
            true => &prepared.whole,
            false => &prepared.piecewise,
        };
        self.states.copy_from_slice(&self.armed_states);
        self.ready.begin(&start.ready);
        self.incomplete = self.states.len() as u32;
    }

    #[inline(never)]
    fn arm_runs(&mut self, prepared: &Prepared) {
        if self.armed.is_empty() {
            let mut armed = std::mem::take(&mut self.armed);
            armed.extend(prepared.steps.iter().map(|step| StepProgress {
                len: self.len_of(step),
                ..StepProgress::default()
            }));
            for successor in &prepared.successors {
                armed[successor.step as usize].unsettled += 1;
            }
            self.armed = armed;
        }
        self.runs.clone_from(&self.armed);
    }

    /// Elements that a step processes.
    pub fn len_of(&self, step: &PreparedStep) -> u64 {
        match step.span {
            NONE => 0,
            span => self.spans[span as usize].len,
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

    /// Takes the next step from the queue; [`NONE`]: the queue is empty, or that step has nothing
    /// to do any more.
    #[inline]
    pub fn pop_ready(&mut self) -> StepId {
        let Some(step) = self.ready.pop() else {
            return NONE;
        };
        let state = &mut self.states[step as usize];
        state.is_queued = false;
        // A message that goes through a ring of chunks may have ended meanwhile.
        match state.stage {
            Stage::Pending => step,
            _ => NONE,
        }
    }

    /// The next step that has something to do; [`NONE`]: there is none.
    #[inline(always)]
    pub fn next_ready(&mut self) -> StepId {
        while self.has_ready() {
            let step = self.pop_ready();
            if step != NONE {
                return step;
            }
        }
        NONE
    }

    /// Whether every step is one chunk at most, and starts when what it overlaps has been
    /// processed.
    #[inline]
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// How far a step has come.
    #[inline]
    pub fn run(&mut self, step: StepId) -> &mut StepProgress {
        &mut self.runs[step as usize]
    }

    /// With how many peers a signal or wait is done.
    #[inline]
    pub fn peers_done(&mut self, step: StepId) -> &mut u16 {
        &mut self.states[step as usize].peers_done
    }

    /// Elements that a step has processed.
    pub fn done(&self, step: StepId) -> u64 {
        self.runs[step as usize].done
    }

    /// Whether a step has completed.
    pub fn is_complete(&self, step: StepId) -> bool {
        self.states[step as usize].stage == Stage::Complete
    }

    /// Whether a message has begun and waits for the transport, which may have refused it.
    pub fn is_under_way(&self, step: StepId) -> bool {
        let state = &self.states[step as usize];
        let has_begun = match self.is_whole {
            // A step that may start and is not queued has been run.
            true => state.holds == 0 && !state.is_queued,
            false => {
                let run = &self.runs[step as usize];
                run.chunks_posted > run.chunks_done
            }
        };
        has_begun && state.stage == Stage::Pending
    }

    /// The chunks of a message that the transport has.
    pub fn chunks_posted(&self, step: StepId) -> std::ops::Range<u32> {
        match self.is_under_way(step) {
            true if self.is_whole => 0..1,
            true => {
                let run = &self.runs[step as usize];
                run.chunks_done..run.chunks_posted
            }
            false => 0..0,
        }
    }

    /// Queues a step, so that it is looked at again.
    #[inline]
    pub fn enqueue(&mut self, step: StepId) {
        let state = &mut self.states[step as usize];
        if !state.is_queued && state.stage < Stage::Processed {
            state.is_queued = true;
            self.ready.push(step);
        }
    }

    /// How many elements a started step may process now, given how far the earlier steps are whose
    /// elements it shares. If they are fewer than `least`, the step is looked at again once it may
    /// process that many.
    #[inline(always)]
    pub fn limit(&mut self, prepared: &Prepared, step: StepId, least: u64) -> u64 {
        if self.is_whole || least == 0 {
            return self.runs[step as usize].len;
        }
        self.limit_piecewise(prepared, step, least)
    }

    #[inline(never)]
    fn limit_piecewise(&mut self, prepared: &Prepared, step: StepId, least: u64) -> u64 {
        let run = &self.runs[step as usize];
        if run.waits_for != NONE {
            return least - 1;
        }
        let (first, end) = prepared.steps[step as usize].edges;
        let (mut met, mut limit) = (run.met, run.len);
        let mut is_prefix = true;
        for edge in &prepared.edges[(first + met) as usize..end as usize] {
            match self.limit_of(edge) {
                // An edge that is met is not looked at again, if all before it are met, too.
                None => met += u32::from(is_prefix),
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
        self.runs[step as usize].met = met;
        limit
    }

    /// Makes a step wait until an overlap edge lets it process `least` elements.
    fn wait_for_elements(&mut self, step: StepId, edge: &Edge, least: u64) {
        let (theirs, ours) = (self.span(edge.theirs), self.span(edge.ours));
        let place = (ours.start + least).min(theirs.start + theirs.len);
        let run = &mut self.runs[step as usize];
        (run.waits_for, run.need) = (edge.earlier, place - theirs.start);
    }

    /// How many elements an overlap edge lets its step process; `None`: all.
    #[inline]
    fn limit_of(&self, edge: &Edge) -> Option<u64> {
        // An earlier step that has processed everything but waits for its own dependencies holds no
        // step back.
        if self.states[edge.earlier as usize].stage >= Stage::Processed {
            return None;
        }
        let earlier = &self.runs[edge.earlier as usize];
        let (theirs, ours) = (self.span(edge.theirs), self.span(edge.ours));
        let end = theirs.start + theirs.len;
        let done = theirs.start + earlier.done;
        if ours.start >= end || done >= end.min(ours.start + ours.len) {
            return None;
        }
        Some(done.saturating_sub(ours.start))
    }

    /// The step has processed its first `done` elements; [`Progress::process`] says that those are
    /// all.
    #[inline]
    pub fn advance(&mut self, prepared: &Prepared, step: StepId, done: u64) {
        let run = &mut self.runs[step as usize];
        debug_assert!(done >= run.done && done <= run.len);
        run.done = done;
        if !self.is_whole {
            self.wake(prepared, step, done);
        }
    }

    /// The step has processed everything. The steps that may start now are queued. Where steps are
    /// whole, the first of them is returned instead, to be run next; [`NONE`]: there is none.
    #[inline(always)]
    pub fn process(&mut self, prepared: &Prepared, step: StepId) -> StepId {
        if self.is_whole {
            return self.process_whole(prepared, step);
        }
        self.process_piecewise(prepared, step);
        NONE
    }

    #[inline(always)]
    fn process_whole(&mut self, prepared: &Prepared, step: StepId) -> StepId {
        let [first, second] = prepared.followers[step as usize];
        // A slice, because a store to an element of a `Vec` may change the `Vec` itself, as far as
        // the compiler knows.
        let states = &mut self.states[..];
        // It has started after all that it depends on had completed, so it completes.
        let state = &mut states[step as usize];
        debug_assert!(state.holds == 0 && state.stage == Stage::Pending);
        state.stage = Stage::Complete;
        self.incomplete -= 1;
        let mut next = NONE;
        if first != NONE {
            let state = &mut states[first as usize];
            state.holds -= 1;
            if state.holds == 0 {
                next = first;
            }
        }
        match second {
            NONE => {}
            MORE => self.release_others(prepared, step),
            second => self.release(second),
        }
        next
    }

    /// Releases all followers of a step but the first, where there are more than two.
    #[inline(never)]
    fn release_others(&mut self, prepared: &Prepared, step: StepId) {
        if let [_, others @ ..] = prepared.successors_of(step) {
            others.iter().for_each(|other| self.release(other.step));
        }
    }

    #[inline(never)]
    fn process_piecewise(&mut self, prepared: &Prepared, step: StepId) {
        let state = &mut self.states[step as usize];
        if state.stage >= Stage::Processed {
            return;
        }
        debug_assert!(state.holds == 0, "what it waits for holds it back");
        state.stage = Stage::Processed;
        self.wake(prepared, step, u64::MAX);
        if self.runs[step as usize].unsettled == 0 {
            self.complete(prepared, step);
        }
    }

    /// Queues the steps that wait for no more than `done` elements of this step.
    fn wake(&mut self, prepared: &Prepared, step: StepId, done: u64) {
        for successor in prepared.successors_of(step) {
            let run = &mut self.runs[successor.step as usize];
            if run.waits_for == step && run.need <= done {
                run.waits_for = NONE;
                self.enqueue(successor.step);
            }
        }
    }

    /// One thing fewer keeps a step from starting; after the last one the step is queued.
    fn release(&mut self, step: StepId) {
        let state = &mut self.states[step as usize];
        state.holds -= 1;
        if state.holds == 0 {
            state.is_queued = true;
            self.ready.push(step);
        }
    }

    /// Completes a processed step, and the steps that waited only for that.
    fn complete(&mut self, prepared: &Prepared, step: StepId) {
        let mut completed = step;
        loop {
            self.states[completed as usize].stage = Stage::Complete;
            self.incomplete -= 1;
            for successor in prepared.successors_of(completed) {
                let later = &mut self.runs[successor.step as usize];
                later.unsettled -= 1;
                let stage = self.states[successor.step as usize].stage;
                if later.unsettled == 0 && stage == Stage::Processed {
                    self.completing.push(successor.step);
                } else if !successor.is_overlap {
                    self.release(successor.step);
                }
            }
            match self.completing.pop() {
                Some(next) => completed = next,
                None => return,
            }
        }
    }
}

mod ready;

#[cfg(test)]
mod oracle;
#[cfg(test)]
mod tests;
