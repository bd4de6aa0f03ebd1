//! [`Prepared`]: a schedule with everything about it that does not change from run to run.

use crate::limits::CACHE_LINE_BYTES;
use crate::schedule::{
    Action, Buffer, Count, Join, Operand, Range, Schedule, Step, StepId, Trigger,
};
use crate::types::Rank;

/// A step that waits for another.
#[derive(Clone, Copy, Debug)]
pub struct Successor {
    /// The later step.
    pub step: StepId,
    /// Whether it waits for completion (or for elements that both touch).
    pub is_full: bool,
}

/// What a step waits for at the start of a round.
#[derive(Clone, Copy, Debug, Default)]
pub struct Needs {
    /// Dependencies that must complete before the step can.
    pub pending: u32,
    /// Those (and a trigger) that must come before it starts.
    pub blockers: u32,
}

/// What a copy or a reduction reads and writes.
#[derive(Clone, Debug, Default)]
pub struct Operands {
    /// In the order in which they are combined.
    pub sources: Vec<Operand>,
    /// All that get the result.
    pub destinations: Vec<Operand>,
}

impl Operands {
    /// Those of an action; none for signals, waits and messages. This rank's own memory is local, whatever it is
    /// called.
    fn of(action: &Action, rank: Rank) -> Operands {
        let local = |range: &Range| Operand::Local(*range);
        let at = |peer: Rank, range: &Range| match peer == rank {
            true => Operand::Local(*range),
            false => Operand::Peer(peer, *range),
        };
        let own = |operand: &Operand| match operand {
            Operand::Peer(peer, range) => at(*peer, range),
            other => other.clone(),
        };
        let (sources, destinations) = match action {
            Action::Copy {
                source,
                destination,
                ..
            } => (vec![local(source)], vec![local(destination)]),
            Action::Get {
                peer,
                source,
                destination,
            } => (vec![at(*peer, source)], vec![local(destination)]),
            Action::Put {
                peer,
                source,
                destination,
            } => (vec![local(source)], vec![at(*peer, destination)]),
            Action::Reduce {
                sources,
                destination,
                ..
            } => (
                sources.iter().map(local).collect(),
                vec![local(destination)],
            ),
            Action::ReduceFrom {
                sources,
                destinations,
                ..
            } => (
                sources.iter().map(own).collect(),
                destinations.iter().map(own).collect(),
            ),
            _ => return Operands::default(),
        };
        Operands {
            sources,
            destinations,
        }
    }
}

/// A schedule ready to run any number of times.
#[derive(Debug)]
pub struct Prepared {
    /// The schedule.
    pub schedule: Schedule,
    /// Where the schedule's algorithm stands among those of its collective.
    pub algorithm: u32,
    /// Per step, what it reads and writes.
    pub operands: Vec<Operands>,
    /// Per step, its needs.
    pub needs: Vec<Needs>,
    /// Steps that can start as soon as the schedule is armed.
    pub initial: Vec<StepId>,
    /// Whether flag lines or windows are used.
    pub uses_signals: bool,
    /// Whether ranks reach each other's inputs or outputs, so that all must be registered. A property of the
    /// algorithm: this rank's own part may touch nobody's.
    pub reaches_buffers: bool,
    /// Steps on lane 0: those that tell where memory is, and whether it is registered.
    pub arrivals: u32,
    /// Whether the schedule stages through windows, so that a large call must be cut into segments.
    pub uses_windows: bool,
    /// Whether it has scratch buffers.
    pub uses_scratch: bool,
    /// Whether its steps may run in the order in which they were appended, each to its end: no messages, which
    /// overlap with others chunk by chunk, and nothing that starts out of order.
    pub is_straight: bool,
    successors: Vec<Successor>,
    successor_starts: Vec<u32>,
}

impl Prepared {
    /// Prepares a schedule.
    pub fn new(schedule: Schedule, algorithm: u32, reaches_buffers: bool) -> Prepared {
        let steps = schedule.steps.len();
        let mut lists: Vec<Vec<Successor>> = vec![Vec::new(); steps];
        let mut needs = vec![Needs::default(); steps];
        let mut initial = Vec::new();
        for (id, step) in schedule.steps.iter().enumerate() {
            let full = step
                .dependencies
                .iter()
                .filter(|d| d.overlap.is_none())
                .count() as u32;
            let own = &mut needs[id];
            (own.pending, own.blockers) = match step.join {
                Join::All => (step.dependencies.len() as u32, full),
                Join::Any => (0, u32::from(!step.dependencies.is_empty())),
            };
            if step.trigger == Trigger::Caller && step.join == Join::All {
                own.blockers += 1;
            }
            if own.blockers == 0 {
                initial.push(id as StepId);
            }
            for dependency in &step.dependencies {
                let is_full = dependency.overlap.is_none() || step.join == Join::Any;
                lists[dependency.step as usize].push(Successor {
                    step: id as StepId,
                    is_full,
                });
            }
        }
        let operands = schedule
            .steps
            .iter()
            .map(|step| Operands::of(&step.action, schedule.rank))
            .collect();
        let mut successors = Vec::new();
        let mut successor_starts = vec![0];
        for list in lists {
            successors.extend(list);
            successor_starts.push(successors.len() as u32);
        }
        Prepared {
            algorithm,
            operands,
            needs,
            initial,
            uses_signals: schedule.uses_signals(),
            uses_windows: schedule
                .buffers
                .iter()
                .any(|b| matches!(b, Buffer::Window(_))),
            uses_scratch: schedule
                .buffers
                .iter()
                .any(|b| matches!(b, Buffer::Scratch(_))),
            is_straight: !schedule.persistent && schedule.steps.iter().all(is_straight),
            reaches_buffers,
            arrivals: schedule
                .steps
                .iter()
                .filter(|s| is_arrival(&s.action))
                .count() as u32,
            successors,
            successor_starts,
            schedule,
        }
    }

    /// Whether it has buffers that are the engine's: each round may get others.
    pub fn uses_engine_memory(&self) -> bool {
        self.uses_windows || self.uses_scratch
    }

    /// The steps that wait for this one.
    pub fn successors_of(&self, step: StepId) -> &[Successor] {
        let range = self.successor_starts[step as usize]..self.successor_starts[step as usize + 1];
        &self.successors[range.start as usize..range.end as usize]
    }

    /// Bytes of window memory, and of scratch memory, that a round of this count needs.
    pub fn memory_bytes(&self, count: &Count<'_>, element_bytes: usize) -> (u64, u64) {
        let (mut window, mut scratch) = (0, 0);
        for buffer in &self.schedule.buffers {
            match buffer {
                Buffer::Window(extent) => window += padded(extent.length_max(count), element_bytes),
                Buffer::Scratch(extent) => {
                    scratch += padded(extent.length_max(count), element_bytes)
                }
                Buffer::Input | Buffer::Output | Buffer::Caller(_) => {}
            }
        }
        (window, scratch)
    }
}

fn is_straight(step: &Step) -> bool {
    let is_message = matches!(step.action, Action::Send { .. } | Action::Recv { .. });
    !is_message && step.join == Join::All && step.trigger == Trigger::None
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
