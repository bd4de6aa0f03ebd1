//! [`Bound`]: what the steps of a round do, with their memory resolved. For rounds whose steps are whole, one chunk each.
//!
//! To find where a message or the operands of a sum lie took as long as everything else that the engine does for it. A
//! training step repeats its calls on the same memory, so what has been found stays until the round gets other memory.

use super::crew::{SHARED_BYTES_MIN, Work};
use super::plan::{Operands, Place, StepKind, StepPlan};
use super::round::Round;
use crate::memory::View;
use crate::schedule::{Action, StepId};
use crate::types::{Finish, Rank, ReduceOp};

/// Largest piece of a copy or reduction that is done at a time, so that arrivals are looked at in between: about 100 us at
/// 10 GB/s.
pub const PIECE_BYTES: usize = 1 << 20;
const _: () = assert!(
    PIECE_BYTES < SHARED_BYTES_MIN,
    "bound steps are done by one thread"
);

/// What a step does.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// One message.
    Message(Message),
    /// A copy or reduction of this rank's memory.
    Compute(Compute),
    /// The schedule says what: a signal, a wait, or something that reaches peers' memory.
    Other,
}

/// What is sent or received.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    pub view: View,
    pub peer: Rank,
    /// Which message of this pair.
    pub number: u32,
    pub is_send: bool,
}

/// What is done to which views: sources are those numbered `first .. middle`, destinations `middle .. end`.
#[derive(Clone, Copy, Debug)]
pub struct Compute {
    pub work: Work,
    first: u32,
    middle: u32,
    end: u32,
}

/// The steps of a round; none where they are not whole, or run straight.
#[derive(Debug, Default)]
pub struct BoundSteps {
    pub steps: Vec<Bound>,
    views: Vec<View>,
}

impl BoundSteps {
    /// Resolves the steps of a round that has been given its memory.
    pub fn resolve(&mut self, round: &Round, ranks: u32) {
        self.steps.clear();
        self.views.clear();
        let prepared = &round.prepared;
        if prepared.is_straight || !round.progress.is_whole() {
            return;
        }
        for (id, plan) in (0..).zip(&prepared.plan.steps) {
            let bound = match plan.kind {
                StepKind::Other => self.resolve_compute(round, id, plan, ranks),
                _ => Some(Bound::Message(message(round, plan))),
            };
            self.steps.push(bound.unwrap_or(Bound::Other));
        }
    }

    fn resolve_compute(
        &mut self,
        round: &Round,
        id: StepId,
        plan: &StepPlan,
        ranks: u32,
    ) -> Option<Bound> {
        let prepared = &round.prepared;
        let work = work_of(
            round,
            &prepared.schedule.steps[id as usize].action,
            ranks,
            false,
        )?;
        let Operands {
            sources,
            destinations,
        } = &prepared.plan.operands[id as usize];
        let len = round.progress.span(plan.span).len;
        // Whether those that reach buffers write around the caches is asked for each piece.
        if prepared.reaches_buffers || len << round.shift > PIECE_BYTES as u64 {
            return None;
        }
        let first = self.views.len();
        for place in sources.iter().chain(destinations) {
            let Place::Local(buffer, span) = *place else {
                self.views.truncate(first);
                return None;
            };
            let (view, got) = round.locate_at(buffer, round.progress.span(span).start, len);
            if got != len {
                self.views.truncate(first);
                return None;
            }
            self.views.push(view);
        }
        Some(Bound::Compute(Compute {
            work,
            first: first as u32,
            middle: (first + sources.len()) as u32,
            end: self.views.len() as u32,
        }))
    }

    /// Sources and destinations.
    #[inline]
    pub fn operands(&self, compute: &Compute) -> (&[View], &[View]) {
        let views = &self.views[compute.first as usize..compute.end as usize];
        views.split_at((compute.middle - compute.first) as usize)
    }
}

fn message(round: &Round, plan: &StepPlan) -> Message {
    let span = round.progress.span(plan.span);
    let (view, got) = round.locate_at(plan.buffer, span.start, span.len);
    assert_eq!(got, span.len, "messages are contiguous");
    Message {
        view,
        peer: plan.peer,
        number: plan.message,
        is_send: plan.kind == StepKind::Send,
    }
}

/// What a step does to the elements of its operands; `None`: it has none. `streamed`: around the caches.
pub fn work_of(round: &Round, action: &Action, ranks: u32, streamed: bool) -> Option<Work> {
    Some(match action {
        Action::Copy {
            premultiply: true, ..
        } => Work::Scale {
            dtype: round.dtype,
            factor: round.op.factor().unwrap_or(1.0),
        },
        Action::Copy { .. } | Action::Get { .. } | Action::Put { .. } => Work::Copy { streamed },
        Action::Reduce { finish, .. } | Action::ReduceFrom { finish, .. } => Work::Reduce {
            dtype: round.dtype,
            combine: round.op.combine(),
            finish: match round.op {
                ReduceOp::Avg if *finish => Finish::Divide(ranks),
                _ => Finish::None,
            },
            streamed,
        },
        _ => return None,
    })
}
