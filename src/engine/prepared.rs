//! [`Prepared`]: a schedule with everything about it that does not change from run to run.

use super::fold::{Fold, folds_of};
use super::plan::Plan;
use crate::limits::CACHE_LINE_BYTES;
use crate::schedule::{Action, Buffer, Count, Schedule, Step};

/// A schedule ready to run any number of times.
#[derive(Debug)]
pub struct Prepared {
    /// The schedule.
    pub schedule: Schedule,
    /// Where the schedule's algorithm stands among those of its collective.
    pub algorithm: u32,
    /// Its edges, ranges and messages.
    pub plan: Plan,
    /// Whether flag lines or windows are used.
    pub uses_signals: bool,
    /// Whether ranks reach each other's inputs or outputs, so that all must be registered. A
    /// property of the algorithm: this rank's own part may touch nobody's.
    pub reaches_buffers: bool,
    /// Steps on lane 0: those that tell where memory is, and whether it is registered.
    pub arrivals: u32,
    /// Whether the schedule stages through windows, so that a large call must be cut into segments.
    pub uses_windows: bool,
    /// Whether it has scratch buffers.
    pub uses_scratch: bool,
    /// Scratch buffers that long messages go through a few chunks at a time.
    pub folds: Vec<Fold>,
    /// Whether its steps may run in the order in which they were appended, each to its end: no
    /// messages, which overlap with others chunk by chunk.
    pub is_straight: bool,
}

impl Prepared {
    /// Prepares a schedule.
    pub fn new(schedule: Schedule, algorithm: u32, reaches_buffers: bool) -> Prepared {
        Prepared {
            algorithm,
            plan: Plan::new(&schedule),
            uses_signals: schedule.uses_signals(),
            uses_windows: schedule
                .buffers
                .iter()
                .any(|b| matches!(b, Buffer::Window(_))),
            uses_scratch: schedule
                .buffers
                .iter()
                .any(|b| matches!(b, Buffer::Scratch(_))),
            is_straight: !schedule.steps.iter().any(is_message),
            folds: folds_of(&schedule),
            reaches_buffers,
            arrivals: schedule
                .steps
                .iter()
                .filter(|s| is_arrival(&s.action))
                .count() as u32,
            schedule,
        }
    }

    /// Whether it has buffers that are the engine's: each round may get others.
    pub fn uses_engine_memory(&self) -> bool {
        self.uses_windows || self.uses_scratch
    }

    /// Bytes of window memory that a round of this count needs.
    pub fn window_bytes(&self, count: &Count<'_>, element_bytes: usize) -> u64 {
        let buffers = self.schedule.buffers.iter();
        let bytes = buffers.map(|buffer| match buffer {
            Buffer::Window(extent) => padded(extent.length_max(count), element_bytes),
            _ => 0,
        });
        bytes.sum()
    }
}

fn is_message(step: &Step) -> bool {
    matches!(step.action, Action::Send { .. } | Action::Recv { .. })
}

fn is_arrival(action: &Action) -> bool {
    matches!(
        action,
        Action::Signal { lane: 0, .. } | Action::WaitCount { lane: 0, .. }
    )
}

/// Bytes of a buffer in an arena: whole cache lines.
pub fn padded(elements: u64, element_bytes: usize) -> u64 {
    (elements * element_bytes as u64).next_multiple_of(CACHE_LINE_BYTES as u64)
}
