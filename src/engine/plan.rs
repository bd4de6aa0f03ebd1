//! [`Plan`]: a schedule's edges, ranges and messages, laid out flat as [`super::progress`] and the driver follow them.
//!
//! A [`Action`] is large and its ranges are fractions of a count that is not known yet. Here every range has a number, so
//! that a round resolves each one once ([`Span`]); every step has its edges in one run of a list, full ones first; and a
//! message is a few words. How a round begins is worked out once as well: arming is copying.

use super::progress::StepRun;
use crate::schedule::{
    Action, BufferId, Dependency, Extent, Join, Operand, Range, Schedule, SlotId, StepId, Trigger,
};
use crate::types::Rank;

/// No step, no span.
pub const NONE: u32 = u32::MAX;

/// A range, resolved for the count of a round: first element inside its buffer, and number of elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub start: u64,
    pub len: u64,
}

/// A dependency.
#[derive(Clone, Copy, Debug)]
pub struct Edge {
    /// The earlier step.
    pub earlier: StepId,
    /// Numbers of the ranges that overlap, of the earlier step and of this one; not used by full edges.
    pub theirs: u32,
    pub ours: u32,
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
    /// Of a message: whether only one side knows its length, so that a chunk that is not full ends it.
    pub is_open_ended: bool,
    /// Of a message: the slot that gets its length.
    pub fills: Option<SlotId>,
    /// Of a message: where its range lies.
    pub buffer: BufferId,
    pub peer: Rank,
    /// Which message of this pair.
    pub message: u32,
    /// The span whose length is the step's; [`NONE`]: it has no elements of its own. Of a message: its only one.
    pub span: u32,
    /// Its full edges, and behind them its overlap edges.
    pub edges: u32,
    pub overlaps: u32,
    pub edges_end: u32,
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
    /// Every range of every step; a span has the number of its range.
    pub ranges: Vec<Range>,
    /// Per step, what it reads and writes.
    pub operands: Vec<Operands>,
    /// The steps of a round that begins.
    pub armed: Vec<StepRun>,
    /// Steps to look at first.
    pub initial: Vec<StepId>,
    /// Steps that the caller's arrival starts.
    pub triggered: Vec<StepId>,
    /// Earlier steps with a step that the first of several starts ([`Join::Any`]).
    pub alternatives: Vec<(StepId, StepId)>,
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
            let mut overlaps = edges;
            if step.join == Join::All {
                // Latest first: when that has completed, so have most of the others.
                let all = || step.dependencies.iter().rev();
                let full = all().filter(|d| d.overlap.is_none());
                plan.edges.extend(full.map(|d| edge(d, &firsts, id)));
                overlaps = plan.edges.len() as u32;
                let partial = all().filter(|d| d.overlap.is_some());
                plan.edges.extend(partial.map(|d| edge(d, &firsts, id)));
            } else {
                let pairs = step.dependencies.iter().map(|d| (d.step, id));
                plan.alternatives.extend(pairs);
            }
            let edges = (edges, overlaps, plan.edges.len() as u32);
            plan.add_step(&step.action, firsts[id as usize], edges);
            if step.trigger == Trigger::Caller {
                plan.triggered.push(id);
            }
        }
        plan.prepare_start(schedule);
        plan
    }

    /// The steps that this one starts if nothing has started them yet.
    pub fn alternatives_after(&self, earlier: StepId) -> impl Iterator<Item = StepId> + use<'_> {
        let pairs = self.alternatives.iter();
        pairs
            .filter(move |(first, _)| *first == earlier)
            .map(|(_, step)| *step)
    }

    fn add_step(&mut self, action: &Action, first: u32, edges: (u32, u32, u32)) {
        let (kind, peer, message, fills) = match action {
            Action::Send { peer, message, .. } => (StepKind::Send, *peer, *message, None),
            Action::Recv {
                peer,
                message,
                fills,
                ..
            } => (StepKind::Receive, *peer, *message, *fills),
            _ => (StepKind::Other, 0, 0, None),
        };
        let extent = action.extent();
        self.steps.push(StepPlan {
            kind,
            is_open_ended: extent.is_some_and(|r| matches!(r.extent, Extent::Slots { .. })),
            fills,
            buffer: extent.map_or(BufferId::INPUT, |range| range.buffer),
            peer,
            message,
            span: extent.map_or(NONE, |range| number(&mut self.ranges, first, range)),
            edges: edges.0,
            overlaps: edges.1,
            edges_end: edges.2,
        });
    }

    /// Those of an action; none for signals, waits and messages. This rank's own memory is local, whatever it is
    /// called.
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

    /// Works out how a round begins: which steps may run, and what each of the others waits for first.
    fn prepare_start(&mut self, schedule: &Schedule) {
        self.armed = vec![StepRun::default(); self.steps.len()];
        for (id, step) in (0..).zip(&schedule.steps) {
            let plan = self.steps[id as usize];
            let needs_caller = step.trigger == Trigger::Caller && step.join == Join::All;
            let is_blocked_by_any = step.join == Join::Any && !step.dependencies.is_empty();
            let run = &mut self.armed[id as usize];
            run.cursor = plan.edges;
            run.needs_caller = needs_caller;
            if plan.edges < plan.overlaps {
                let earlier = self.edges[plan.edges as usize].earlier;
                StepRun::wait(&mut self.armed, id, earlier, StepRun::COMPLETION);
            } else if !needs_caller && !is_blocked_by_any {
                run.open();
                // Where the first elements of both are the same, there is nothing to look at before.
                match self.edges[plan.edges as usize..plan.edges_end as usize].first() {
                    Some(edge) if self.begins_alike(edge) => {
                        StepRun::wait(&mut self.armed, id, edge.earlier, 1);
                    }
                    _ => {
                        self.armed[id as usize].is_queued = true;
                        self.initial.push(id);
                    }
                }
            }
        }
    }

    fn begins_alike(&self, edge: &Edge) -> bool {
        let [theirs, ours] = [edge.theirs, edge.ours].map(|at| &self.ranges[at as usize]);
        theirs == ours || theirs.begins_its_buffer() && ours.begins_its_buffer()
    }
}

fn edge(dependency: &Dependency, firsts: &[u32], step: StepId) -> Edge {
    let earlier = dependency.step;
    let (theirs, ours) = dependency.overlap.unwrap_or_default();
    Edge {
        earlier,
        theirs: firsts[earlier as usize] + u32::from(theirs),
        ours: firsts[step as usize] + u32::from(ours),
    }
}

/// The number of a range among those of a step, which begin at `first`; a new one if it is not there.
fn number(ranges: &mut Vec<Range>, first: u32, range: &Range) -> u32 {
    let known = ranges[first as usize..].iter().position(|r| r == range);
    let at = known.map_or(ranges.len(), |at| first as usize + at);
    if at == ranges.len() {
        ranges.push(*range);
    }
    at as u32
}
