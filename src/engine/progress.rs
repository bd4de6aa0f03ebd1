//! [`Progress`]: which steps of one round are done, which may run, and how far. Pure bookkeeping of the
//! order rules in [`crate::schedule`]; it knows no transport and no memory.

use super::prepared::Prepared;
use super::round::StraightRun;
use crate::limits::CHUNKS_IN_FLIGHT;
use crate::schedule::{Count, Range, StepId, Trigger};
use std::collections::VecDeque;

/// Where one step stands. Elements are counted from the start of the step's ranges.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepRun {
    /// Dependencies that have not completed.
    pending: u32,
    /// Those that keep it from starting.
    blockers: u32,
    /// Elements that it processes; known once it has started.
    pub len: u64,
    /// Elements processed, without gaps.
    pub done: u64,
    /// Chunks handed to the transport, and of those completed without gaps.
    pub chunks_posted: u32,
    /// Completed chunks without gaps.
    pub chunks_done: u32,
    /// Bit i: chunk `chunks_done + i` has completed.
    pub out_of_order: u8,
    /// Whether `len` is known.
    pub is_started: bool,
    /// Whether all elements are processed (it completes when `pending` is 0, too).
    is_processed: bool,
    is_complete: bool,
    is_queued: bool,
}

/// The steps of one round.
#[derive(Debug, Default)]
pub struct Progress {
    runs: Vec<StepRun>,
    ready: VecDeque<StepId>,
    incomplete: u32,
}

impl Progress {
    /// Makes room for a schedule of this many steps.
    pub fn reserve(&mut self, steps: usize) {
        self.runs.clear();
        self.runs.reserve(steps);
        self.ready.clear();
        self.ready.reserve(steps);
    }

    /// Arms the schedule: every step may run once, those without needs are ready.
    pub fn arm(&mut self, prepared: &Prepared) {
        self.runs.clear();
        self.runs.extend(prepared.needs.iter().map(|n| StepRun {
            pending: n.pending,
            blockers: n.blockers,
            ..StepRun::default()
        }));
        self.ready.clear();
        self.incomplete = self.runs.len() as u32;
        for &step in &prepared.initial {
            self.enqueue(step);
        }
    }

    /// Arms the schedule where a straight run has left off.
    pub fn resume(&mut self, prepared: &Prepared, run: StraightRun) {
        self.arm(prepared);
        (0..run.step).for_each(|step| self.process(prepared, step));
        self.ready
            .retain(|&step| !self.runs[step as usize].is_processed);
        if let Some(next) = self.runs.get_mut(run.step as usize) {
            next.done = run.done;
        }
    }

    /// The caller has arrived: internal activation.
    pub fn activate(&mut self, prepared: &Prepared) {
        for (id, step) in prepared.schedule.steps.iter().enumerate() {
            if step.trigger == Trigger::Caller {
                self.unblock(id as StepId);
            }
        }
    }

    /// Whether every step has completed.
    pub fn is_finished(&self) -> bool {
        self.incomplete == 0
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

    /// Whether a step has completed.
    pub fn is_complete(&self, step: StepId) -> bool {
        self.runs[step as usize].is_complete
    }

    /// Whether a step waits for the transport.
    pub fn is_posted(&self, step: StepId) -> bool {
        let run = &self.runs[step as usize];
        run.chunks_posted > run.chunks_done
    }

    /// Looks at a step again later.
    pub fn enqueue(&mut self, step: StepId) {
        let run = &mut self.runs[step as usize];
        if !run.is_queued && !run.is_processed {
            run.is_queued = true;
            self.ready.push_back(step);
        }
    }

    /// How many elements a started step may process now, by the elements that it shares with earlier steps.
    pub fn limit(&self, prepared: &Prepared, step: StepId, count: &Count<'_>) -> u64 {
        let run = &self.runs[step as usize];
        let mut limit = run.len;
        if run.pending == 0 {
            return limit;
        }
        let this = &prepared.schedule.steps[step as usize];
        for dependency in &this.dependencies {
            let Some((theirs, ours)) = dependency.overlap else {
                continue;
            };
            let earlier = &self.runs[dependency.step as usize];
            if earlier.is_complete {
                continue;
            }
            let before = nth_range(prepared, dependency.step, theirs).resolve(count);
            let (start, len) = nth_range(prepared, step, ours).resolve(count);
            let (before_start, before_end) = (before.0, before.0 + before.1);
            // An earlier step that has processed everything but waits for its own dependencies holds nobody back.
            let done = if earlier.is_processed {
                before_end
            } else {
                before_start + earlier.done
            };
            if start >= before_end || done >= before_end.min(start + len) {
                continue;
            }
            limit = limit.min(done.saturating_sub(start));
        }
        limit
    }

    /// The step has processed its first `done` elements; [`Progress::process`] says that those are all.
    pub fn advance(&mut self, prepared: &Prepared, step: StepId, done: u64) {
        let run = &mut self.runs[step as usize];
        debug_assert!(done >= run.done && done <= run.len);
        if done > run.done {
            run.done = done;
            self.wake_overlapping(prepared, step);
        }
    }

    /// The step has processed everything.
    pub fn process(&mut self, prepared: &Prepared, step: StepId) {
        let run = &mut self.runs[step as usize];
        if run.is_processed {
            return;
        }
        run.is_processed = true;
        if run.pending == 0 {
            self.complete(prepared, step);
        } else {
            self.wake_overlapping(prepared, step);
        }
    }

    fn wake_overlapping(&mut self, prepared: &Prepared, step: StepId) {
        for successor in prepared.successors_of(step) {
            if !successor.is_full && self.runs[successor.step as usize].blockers == 0 {
                self.enqueue(successor.step);
            }
        }
    }

    fn complete(&mut self, prepared: &Prepared, step: StepId) {
        let run = &mut self.runs[step as usize];
        run.is_complete = true;
        self.incomplete -= 1;
        for index in 0..prepared.successors_of(step).len() {
            let successor = prepared.successors_of(step)[index];
            let id = successor.step;
            if successor.is_full {
                self.unblock(id);
            }
            let next = &mut self.runs[id as usize];
            // A step with `Join::Any` has no pending dependencies from the start.
            next.pending = next.pending.saturating_sub(1);
            if next.is_processed && next.pending == 0 && !next.is_complete {
                // Depth is bounded by chains of processed steps, which are short: a step is processed
                // before its predecessor completes only across overlap edges.
                self.complete(prepared, id);
            } else if !successor.is_full && next.blockers == 0 {
                self.enqueue(id);
            }
        }
    }

    fn unblock(&mut self, step: StepId) {
        let run = &mut self.runs[step as usize];
        if run.blockers > 0 {
            run.blockers -= 1;
            if run.blockers == 0 {
                self.enqueue(step);
            }
        }
    }
}

impl StepRun {
    /// Whether another chunk may be posted.
    pub fn has_chunk_credit(&self) -> bool {
        self.chunks_posted - self.chunks_done < CHUNKS_IN_FLIGHT
    }

    /// Chunk `chunk` has completed; returns how many have without gaps.
    pub fn complete_chunk(&mut self, chunk: u32) -> u32 {
        self.out_of_order |= 1 << (chunk - self.chunks_done);
        while self.out_of_order & 1 == 1 {
            self.out_of_order >>= 1;
            self.chunks_done += 1;
        }
        self.chunks_done
    }
}

fn nth_range(prepared: &Prepared, step: StepId, index: u16) -> Range {
    let mut at = 0;
    let mut found = None;
    prepared.schedule.steps[step as usize]
        .action
        .for_each_local_range(|range, _| {
            if at == index {
                found = Some(*range);
            }
            at += 1;
        });
    found.expect("the builder numbers ranges as the action lists them")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Action, BufferId, Builder, Extent, Join};

    const COUNT: Count<'static> = Count {
        count: 100,
        slots: &[],
    };

    fn drain(progress: &mut Progress) -> Vec<StepId> {
        std::iter::from_fn(|| progress.pop_ready()).collect()
    }

    fn block(index: u32, of: u32) -> Range {
        Range::new(BufferId::OUTPUT, Extent::block(index, of))
    }

    #[test]
    fn an_overlapping_step_follows_element_by_element() {
        let mut b = Builder::new("test", 0, 2, true);
        let recv = b.recv(1, block(0, 1));
        let send = b.send(1, block(1, 2));
        let prepared = Prepared::new(b.build(), 0, false);
        let mut progress = Progress::default();
        progress.arm(&prepared);
        assert_eq!(drain(&mut progress), [recv, send]);
        progress.run(recv).len = 100;
        progress.run(send).len = 50;
        assert_eq!(progress.limit(&prepared, send, &COUNT), 0);
        progress.advance(&prepared, recv, 70);
        assert_eq!(drain(&mut progress), [send]);
        assert_eq!(progress.limit(&prepared, send, &COUNT), 20);
        progress.advance(&prepared, send, 20);
        progress.process(&prepared, recv);
        assert_eq!(progress.limit(&prepared, send, &COUNT), 50);
        progress.process(&prepared, send);
        assert!(progress.is_finished());
    }

    #[test]
    fn a_step_completes_only_after_everything_it_depends_on() {
        let mut b = Builder::new("test", 0, 2, true);
        let recv = b.recv(1, block(0, 1));
        let send = b.send(1, block(0, 2));
        b.signal(vec![1], 0);
        let prepared = Prepared::new(b.build(), 0, false);
        let mut progress = Progress::default();
        progress.arm(&prepared);
        drain(&mut progress);
        progress.run(recv).len = 100;
        progress.run(send).len = 50;
        progress.advance(&prepared, recv, 60);
        progress.process(&prepared, send);
        assert!(!progress.is_complete(send));
        drain(&mut progress);
        progress.process(&prepared, recv);
        assert!(progress.is_complete(send));
        assert_eq!(drain(&mut progress), [2], "the signal follows both");
    }

    #[test]
    fn the_first_of_two_starts_an_or_step_once() {
        let mut b = Builder::new("test", 0, 2, true);
        let caller = b.step(Action::Nop, &[], Join::All, Trigger::Caller);
        let wait = Action::WaitCount {
            peers: vec![1],
            lane: 3,
            count: 1,
        };
        let external = b.step(wait, &[], Join::All, Trigger::None);
        let go = b.step(Action::Nop, &[caller, external], Join::Any, Trigger::None);
        b.persistent();
        let prepared = Prepared::new(b.build(), 0, false);
        let mut progress = Progress::default();
        for caller_is_first in [true, false, true] {
            progress.arm(&prepared);
            assert_eq!(
                drain(&mut progress),
                [external],
                "armed: it waits for either activation"
            );
            let order = if caller_is_first {
                [caller, external]
            } else {
                [external, caller]
            };
            let mut starts = 0;
            for step in order {
                if step == caller {
                    progress.activate(&prepared);
                    assert_eq!(drain(&mut progress), [caller]);
                }
                progress.process(&prepared, step);
                for ready in drain(&mut progress) {
                    assert_eq!(ready, go);
                    starts += 1;
                    progress.process(&prepared, go);
                }
            }
            assert_eq!(starts, 1, "consumable: at most once per activation");
            assert!(progress.is_finished());
        }
    }

    #[test]
    fn chunks_complete_in_any_order_and_count_without_gaps() {
        let mut run = StepRun {
            chunks_posted: 4,
            ..StepRun::default()
        };
        assert!(!run.has_chunk_credit());
        assert_eq!(run.complete_chunk(2), 0);
        assert_eq!(run.complete_chunk(0), 1);
        assert_eq!(run.complete_chunk(1), 3);
        assert_eq!(run.complete_chunk(3), 4);
    }
}
