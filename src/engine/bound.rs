//! [`Bound`]: what the steps of a round do, and the memory that they do it to. For rounds whose
//! steps are whole, one chunk each.
//!
//! To find where a message or the operands of a sum lie took as long as everything else that the
//! engine does for it. A training step repeats its calls, so what steps do stays while calls are
//! alike, and their views while calls are on the same memory.

use super::crew::{SHARED_BYTES_MIN, Work};
use super::gate::Followers;
use super::plan::{Operands, Place, StepKind, StepPlan};
use super::round::Round;
use crate::kernel::BoundReduction;
use crate::limits::CACHE_LINE_BYTES;
use crate::memory::View;
use crate::schedule::{Action, BufferId, StepId};
use crate::types::{Finish, Rank, ReduceOp};

/// Largest piece of a copy or reduction that is done at a time, so that arrivals are looked at in
/// between: about 100 us at 10 GB/s.
pub const PIECE_BYTES: usize = 1 << 20;
const _: () = assert!(
    PIECE_BYTES < SHARED_BYTES_MIN,
    "bound steps are done by one thread"
);

/// A step: to post a message, and to end any step, touches no other memory of the schedule, and one
/// cache line of this.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub struct BoundStep {
    pub bound: Bound,
    pub followers: Followers,
}

const _: () = assert!(size_of::<BoundStep>() == CACHE_LINE_BYTES);

/// What a step does, with the memory of a message.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// One message to a peer.
    Send(Message),
    /// One message from a peer.
    Receive(Message),
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
}

/// What is done to which views: sources are those numbered `first .. middle`, destinations
/// `middle .. end`.
#[derive(Clone, Copy, Debug)]
pub struct Compute {
    pub work: Work,
    first: u32,
    middle: u32,
    end: u32,
}

/// Bytes `start ..` of a buffer.
#[derive(Clone, Copy, Debug)]
struct Part {
    buffer: BufferId,
    start: usize,
    bytes: usize,
}

/// The steps of a round; none where they are not whole, or run straight.
#[derive(Debug, Default)]
#[repr(C)]
pub struct BoundSteps {
    pub steps: Vec<BoundStep>,
    /// Where what steps read and write lies in the memory of this round.
    views: Vec<View>,
    /// The same in its buffers.
    parts: Vec<Part>,
    /// The part of each message, and its step.
    messages: Vec<(u32, StepId)>,
    /// Whether the schedule is asked about some step.
    pub has_others: bool,
}

impl BoundSteps {
    /// Finds what the steps of a round do that has taken up a call.
    pub fn resolve(&mut self, round: &Round, ranks: u32) {
        self.steps.clear();
        self.parts.clear();
        self.messages.clear();
        self.has_others = true;
        let prepared = &round.prepared;
        if prepared.is_straight || !round.progress.is_whole() {
            return;
        }
        self.has_others = false;
        for (id, plan) in (0..).zip(&prepared.plan.steps) {
            let bound = match plan.kind {
                StepKind::Other => self.resolve_compute(round, id, plan, ranks),
                StepKind::Send => Some(Bound::Send(self.resolve_message(round, id, plan))),
                StepKind::Receive => Some(Bound::Receive(self.resolve_message(round, id, plan))),
            };
            self.has_others |= bound.is_none();
            self.steps.push(BoundStep {
                bound: bound.unwrap_or(Bound::Other),
                followers: prepared.plan.followers[id as usize],
            });
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
        let first = self.parts.len();
        for place in sources.iter().chain(destinations) {
            let part = match *place {
                Place::Local(buffer, span) => {
                    part_of(round, buffer, round.progress.span(span).start, len)
                }
                _ => None,
            };
            let Some(part) = part else {
                self.parts.truncate(first);
                return None;
            };
            self.parts.push(part);
        }
        Some(Bound::Compute(Compute {
            work,
            first: first as u32,
            middle: (first + sources.len()) as u32,
            end: self.parts.len() as u32,
        }))
    }

    fn resolve_message(&mut self, round: &Round, id: StepId, plan: &StepPlan) -> Message {
        let span = round.progress.span(plan.span);
        let part = part_of(round, plan.buffer, span.start, span.len);
        let part = part.expect("messages are contiguous");
        self.messages.push((self.parts.len() as u32, id));
        self.parts.push(part);
        Message {
            view: View::size_only(part.bytes),
            peer: plan.peer,
            number: plan.message,
        }
    }

    /// Takes up the memory of a round.
    pub fn give_memory(&mut self, buffers: &[View]) {
        self.views.clear();
        let parts = self.parts.iter();
        (self.views).extend(parts.map(|p| buffers[p.buffer.0 as usize].part(p.start, p.bytes)));
        for &(part, step) in &self.messages {
            let bound = &mut self.steps[step as usize].bound;
            if let Bound::Send(message) | Bound::Receive(message) = bound {
                message.view = self.views[part as usize];
            }
        }
    }

    /// Sources and destinations.
    #[inline]
    pub fn operands(&self, compute: &Compute) -> (&[View], &[View]) {
        let views = &self.views[compute.first as usize..compute.end as usize];
        views.split_at((compute.middle - compute.first) as usize)
    }
}

/// Elements `start ..` of a buffer, if all `len` are contiguous.
fn part_of(round: &Round, buffer: BufferId, start: u64, len: u64) -> Option<Part> {
    let (position, got) = round.position_of(buffer, start, len);
    (got == len).then_some(Part {
        buffer,
        start: (position << round.shift) as usize,
        bytes: (len << round.shift) as usize,
    })
}

/// What a step does to the elements of its operands; `None`: it has none. `streamed`: around the
/// caches.
pub fn work_of(round: &Round, action: &Action, ranks: u32, streamed: bool) -> Option<Work> {
    Some(match action {
        Action::Copy {
            premultiply: true, ..
        } => Work::Scale {
            dtype: round.dtype,
            factor: round.op.factor().unwrap_or(1.0),
        },
        Action::Copy { .. } | Action::Get { .. } | Action::Put { .. } => Work::Copy { streamed },
        Action::Reduce { finish, .. } | Action::ReduceFrom { finish, .. } => {
            let finish = match round.op {
                ReduceOp::Avg if *finish => Finish::Divide(ranks),
                _ => Finish::None,
            };
            let (dtype, combine) = (round.dtype, round.op.combine());
            Work::Reduce(match streamed {
                true => BoundReduction::streaming(dtype, combine, finish),
                false => BoundReduction::new(dtype, combine, finish),
            })
        }
        _ => return None,
    })
}
