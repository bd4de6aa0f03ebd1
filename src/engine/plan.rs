//! [`Plan`]: a schedule's edges, ranges and messages, laid out flat as `progress.rs` and the driver
//! follow them.
//!
//! A [`Action`] is large and its ranges are fractions of a count that is not known yet. Here every
//! range has a number, so that a round resolves each one once ([`Span`]); every step has its
//! overlap edges, and the steps that depend on it, in one run of a list each; and a message is a
//! few words. How a round begins is worked out once as well: arming is copying.

use super::gate::{Followers, Gate, MORE, NONE, StepRun};
use crate::schedule::{
    Action, BufferId, Dependency, Extent, Join, Operand, Range, Schedule, Step, StepId, Trigger,
};
use crate::types::Rank;

/// A range, resolved for the count of a round: first element inside its buffer, and number of
/// elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub start: u64,
    pub len: u64,
}

/// An overlap edge, as the later step sees it.
#[derive(Clone, Copy, Debug)]
pub struct Edge {
    /// The earlier step.
    pub earlier: StepId,
    /// Numbers of the ranges that overlap, of the earlier step and of this one.
    pub theirs: u32,
    pub ours: u32,
}

/// An edge of either kind, as the earlier step sees it.
#[derive(Clone, Copy, Debug)]
pub struct Successor {
    pub step: StepId,
    pub is_overlap: bool,
}

/// How a round begins.
#[derive(Clone, Debug, Default)]
pub struct Start {
    pub(super) gates: Vec<Gate>,
    /// Steps to look at first.
    pub ready: Vec<StepId>,
}

/// What the driver does with a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    Send,
    Receive,
    /// Everything but messages: the schedule's action says what.
    Other,
}

/// One step.
#[derive(Clone, Copy, Debug)]
pub struct StepPlan {
    pub kind: StepKind,
    /// Of a message: whether only one side knows its length, so that a chunk that is not full ends
    /// it.
    pub is_open_ended: bool,
    /// Of a message: where its range lies.
    pub buffer: BufferId,
    pub peer: Rank,
    /// Which message of this pair.
    pub message: u32,
    /// The span whose length is the step's; [`NONE`]: it has no elements of its own. Of a message:
    /// its only one.
    pub span: u32,
    /// Its overlap edges.
    pub edges: (u32, u32),
    /// The steps that depend on it.
    pub successors: (u32, u32),
}

impl StepPlan {
    /// Messages that a step of `len` elements becomes. A length that only one side knows is ended
    /// by a chunk that is not full.
    #[inline]
    pub fn chunks(&self, len: u64, per_chunk: u64) -> u32 {
        if len < per_chunk {
            1
        } else if self.is_open_ended {
            (len / per_chunk) as u32 + 1
        } else if len == per_chunk {
            1
        } else {
            len.div_ceil(per_chunk) as u32
        }
    }
}

/// A range that a copy or a reduction reads or writes.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// In one of this rank's buffers.
    Local(BufferId, u32),
    /// In a peer's.
    Peer(Rank, BufferId, u32),
    /// The payload of a signal.
    Mail(Rank, crate::schedule::Lane),
}

/// What a copy or a reduction reads and writes.
#[derive(Clone, Debug, Default)]
pub struct Operands {
    /// In the order in which they are combined.
    pub sources: Vec<Place>,
    /// All that get the result.
    pub destinations: Vec<Place>,
}

/// All steps.
#[derive(Debug, Default)]
pub struct Plan {
    pub steps: Vec<StepPlan>,
    pub edges: Vec<Edge>,
    pub successors: Vec<Successor>,
    /// Every range of every step; a span has the number of its range.
    pub ranges: Vec<Range>,
    /// Per step, what it reads and writes.
    pub operands: Vec<Operands>,
    /// Per step, what its end releases where steps are whole.
    pub followers: Vec<Followers>,
    /// How far steps have come at the beginning; a round adds their lengths.
    pub runs: Vec<StepRun>,
    /// How a round begins whose steps are whole: each waits until what it overlaps has been
    /// processed.
    pub whole: Start,
    /// How others begin: steps follow those that they overlap piece by piece.
    pub piecewise: Start,
}

impl Plan {
    /// The plan of a schedule.
    pub fn new(schedule: &Schedule) -> Plan {
        let mut plan = Plan::default();
        let mut firsts = Vec::with_capacity(schedule.steps.len());
        for (id, step) in (0..).zip(&schedule.steps) {
            firsts.push(plan.ranges.len() as u32);
            (step.action).for_each_local_range(|range, _| plan.ranges.push(*range));
            let operands = plan.operands_of(&step.action, schedule.rank, firsts[id as usize]);
            plan.operands.push(operands);
            let edges = plan.edges.len() as u32;
            assert!(
                step.join == Join::All && step.trigger == Trigger::None,
                "step {id} of {} is for those who follow a schedule by themselves",
                schedule.name
            );
            // Latest first: when that has been processed, so have most of the others.
            let overlaps = step.dependencies.iter().rev();
            let overlaps = overlaps.filter_map(|d| edge(d, &firsts, id));
            plan.edges.extend(overlaps);
            let edges = (edges, plan.edges.len() as u32);
            plan.add_step(&step.action, firsts[id as usize], edges);
        }
        plan.add_successors(schedule);
        let steps = 0..plan.steps.len() as StepId;
        plan.followers = steps.map(|step| plan.followers_of(step)).collect();
        plan.runs = schedule.steps.iter().map(run_of).collect();
        plan.whole = plan.start(schedule, |_| true);
        plan.piecewise = plan.start(schedule, |dependency| dependency.overlap.is_none());
        plan
    }

    /// The steps that depend on this one.
    #[inline]
    pub fn successors_of(&self, step: StepId) -> &[Successor] {
        let (first, end) = self.steps[step as usize].successors;
        &self.successors[first as usize..end as usize]
    }

    fn followers_of(&self, step: StepId) -> Followers {
        match *self.successors_of(step) {
            [] => [NONE; 2],
            [first] => [first.step, NONE],
            [first, second] => [first.step, second.step],
            [first, ..] => [first.step, MORE],
        }
    }

    fn add_step(&mut self, action: &Action, first: u32, edges: (u32, u32)) {
        let (kind, peer, message) = match action {
            Action::Send { peer, message, .. } => (StepKind::Send, *peer, *message),
            Action::Recv { peer, message, .. } => (StepKind::Receive, *peer, *message),
            _ => (StepKind::Other, 0, 0),
        };
        let extent = action.extent();
        self.steps.push(StepPlan {
            kind,
            is_open_ended: extent.is_some_and(|r| matches!(r.extent, Extent::Slots { .. })),
            buffer: extent.map_or(BufferId::INPUT, |range| range.buffer),
            peer,
            message,
            span: extent.map_or(NONE, |range| number(&mut self.ranges, first, range)),
            edges,
            successors: (0, 0),
        });
    }

    /// Those of an action; none for signals, waits and messages. This rank's own memory is local,
    /// whatever it is called.
    fn operands_of(&mut self, action: &Action, rank: Rank, first: u32) -> Operands {
        let ranges = &mut self.ranges;
        let mut at = |peer: Rank, range: &Range| {
            let span = number(ranges, first, range);
            match peer == rank {
                true => Place::Local(range.buffer, span),
                false => Place::Peer(peer, range.buffer, span),
            }
        };
        let (sources, destinations) = match action {
            Action::Copy {
                source,
                destination,
                ..
            } => (vec![at(rank, source)], vec![at(rank, destination)]),
            Action::Get {
                peer,
                source,
                destination,
            } => (vec![at(*peer, source)], vec![at(rank, destination)]),
            Action::Put {
                peer,
                source,
                destination,
            } => (vec![at(rank, source)], vec![at(*peer, destination)]),
            Action::Reduce {
                sources,
                destination,
                ..
            } => (
                sources.iter().map(|range| at(rank, range)).collect(),
                vec![at(rank, destination)],
            ),
            Action::ReduceFrom {
                sources,
                destinations,
                ..
            } => {
                let mut place = |operand: &Operand| match operand {
                    Operand::Local(range) => at(rank, range),
                    Operand::Peer(peer, range) => at(*peer, range),
                    Operand::Mail(peer, lane) => Place::Mail(*peer, *lane),
                };
                (
                    sources.iter().map(&mut place).collect(),
                    destinations.iter().map(&mut place).collect(),
                )
            }
            _ => return Operands::default(),
        };
        Operands {
            sources,
            destinations,
        }
    }

    fn add_successors(&mut self, schedule: &Schedule) {
        let mut successors = vec![Vec::new(); self.steps.len()];
        for (id, step) in (0..).zip(&schedule.steps) {
            for dependency in &step.dependencies {
                let is_overlap = dependency.overlap.is_some();
                successors[dependency.step as usize].push(Successor {
                    step: id,
                    is_overlap,
                });
            }
        }
        for (step, successors) in self.steps.iter_mut().zip(successors) {
            let first = self.successors.len() as u32;
            self.successors.extend(successors);
            step.successors = (first, self.successors.len() as u32);
        }
    }

    /// How a round begins: which steps may run, and what keeps the others from starting:
    /// dependencies for which `holds`.
    fn start(&self, schedule: &Schedule, holds: impl Fn(&Dependency) -> bool) -> Start {
        let mut start = Start::default();
        for (id, step) in (0..).zip(&schedule.steps) {
            let held = step.dependencies.iter().filter(|d| holds(d)).count();
            let mut gate = Gate {
                holds: held as u32,
                ..Gate::default()
            };
            if gate.holds == 0 {
                gate.is_queued = true;
                start.ready.push(id);
            }
            start.gates.push(gate);
        }
        start
    }
}

fn run_of(step: &Step) -> StepRun {
    StepRun {
        unsettled: step.dependencies.len() as u32,
        ..StepRun::default()
    }
}

fn edge(dependency: &Dependency, firsts: &[u32], step: StepId) -> Option<Edge> {
    let earlier = dependency.step;
    let (theirs, ours) = dependency.overlap?;
    Some(Edge {
        earlier,
        theirs: firsts[earlier as usize] + u32::from(theirs),
        ours: firsts[step as usize] + u32::from(ours),
    })
}

/// The number of a range among those of a step, which begin at `first`; a new one if it is not
/// there.
fn number(ranges: &mut Vec<Range>, first: u32, range: &Range) -> u32 {
    let known = ranges[first as usize..].iter().position(|r| r == range);
    let at = known.map_or(ranges.len(), |at| first as usize + at);
    if at == ranges.len() {
        ranges.push(*range);
    }
    at as u32
}
