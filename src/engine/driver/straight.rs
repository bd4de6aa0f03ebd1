//! Straight runs: the steps of a round one after another, as long as each can run to its end at
//! once.
//!
//! A schedule's steps are in an order that meets all dependencies, so nothing has to be counted
//! while no step must wait: a small operation whose peers are there costs its stores, loads and
//! arithmetic only. The first step that must wait for long ends the straight run, and `progress.rs`
//! takes over from there.

use super::Driver;
use super::compute::PIECES_MAX;
use crate::engine::gate::NONE;
use crate::engine::plan::Operands;
use crate::engine::prepared::Prepared;
use crate::engine::round::Round;
use crate::error::Result;
use crate::schedule::Action;

impl Driver {
    /// Goes on with a straight run; true when all steps have completed. Otherwise it may be called
    /// again.
    pub fn run_straight(&mut self, prepared: &Prepared, round: &mut Round) -> Result<bool> {
        let mut run = round.straight.unwrap_or_default();
        let steps = &prepared.schedule.steps;
        while let Some(step) = steps.get(run.step as usize)
            && !round.is_redirected
        {
            let operands = &prepared.plan.operands[run.step as usize];
            let span = prepared.plan.steps[run.step as usize].span;
            let parts = (operands, span);
            let is_complete = self.complete(round, &step.action, parts, &mut run.done);
            round.straight = Some(run);
            if !is_complete? {
                return Ok(false);
            }
            self.moved = true;
            (run.step, run.done) = (run.step + 1, 0);
            round.straight = Some(run);
        }
        Ok(!round.is_redirected)
    }

    /// Runs one step to its end, or as far as it can; `done` is how far.
    fn complete(
        &mut self,
        round: &mut Round,
        action: &Action,
        (operands, span): (&Operands, u32),
        done: &mut u64,
    ) -> Result<bool> {
        match action {
            Action::Nop => Ok(true),
            Action::Signal {
                peers,
                lane,
                payload,
            } => self.signal(round, peers, *lane, payload.as_ref(), done),
            Action::WaitCount { peers, lane, count } => {
                self.is_signalled(round, peers, *lane, *count, done)
            }
            _ => {
                let len = match span {
                    NONE => 0,
                    span => round.progress.span(span).len,
                };
                for _ in 0..PIECES_MAX {
                    if *done == len {
                        break;
                    }
                    match self.compute_piece(round, action, operands, (*done, len))? {
                        Some(got) => *done += got,
                        None => break,
                    }
                }
                Ok(*done == len)
            }
        }
    }
}
