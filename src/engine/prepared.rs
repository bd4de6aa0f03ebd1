//! [`Prepared`]: a schedule with all that does not change from round to round: its edges, ranges
//! and messages, in flat lists for `progress.rs` and the driver.
//!
//! An [`Action`] is large and its ranges are fractions of a count that is not known yet. Here every
//! range has a number, so that a round resolves each one once ([`Span`]). The overlap edges of a
//! step lie together in one list, and the steps that depend on it in another. A message is a few
//! words. The state of a round at its beginning is worked out once, too, so that arming a round
//! only copies it.

use super::chunk_ring::{ChunkRing, rings_of};
use super::step_state::{Followers, MORE, NONE, StepState};
use crate::limits::CACHE_LINE_BYTES;
use crate::schedule::{
    Action, Buffer, BufferId, Count, Dependency, Extent, Join, Operand, Range, Schedule, Step,
    StepId, Trigger,
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
    /// The number of the earlier step's range.
    pub theirs: u32,
    /// The number of the range of the later step that it overlaps.
    pub ours: u32,
}

/// An edge of either kind, as the earlier step sees it.
#[derive(Clone, Copy, Debug)]
pub struct Successor {
    pub step: StepId,
    pub is_overlap: bool,
}

/// The state of a round at its beginning.
#[derive(Clone, Debug, Default)]
pub struct Start {
    pub(super) states: Vec<StepState>,
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
pub struct PreparedStep {
    pub kind: StepKind,
    /// Of a message: whether only one side knows its length, so that a chunk that is not full ends
    /// it.
    pub is_open_ended: bool,
    /// Of a message: the buffer of its range.
    pub buffer: BufferId,
    pub peer: Rank,
    /// Which message of this pair.
    pub message: u32,
    /// The span whose length is the step's; [`NONE`]: it has no elements of its own. Of a message:
    /// its only one.
    pub span: u32,
    /// Its overlap edges in [`Prepared::edges`]: the first, and the end.
    pub edges: (u32, u32),
    /// The steps that depend on it in [`Prepared::successors`]: the first, and the end.
    pub successors: (u32, u32),
}

impl PreparedStep {
    /// Messages that a step of `len` elements becomes. A message whose length only one side knows
    /// ends with a chunk that is not full.
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
    /// In one of this rank's buffers, at this span.
    Local(BufferId, u32),
    /// In one of this peer's buffers, at this span.
    Peer(Rank, BufferId, u32),
    /// The payload of a signal.
    Mail(Rank, crate::schedule::Lane),
}

/// What steps read and write.
#[derive(Debug, Default)]
struct Operands {
    /// Those of all steps.
    places: Vec<Place>,
    /// Per step, three of these: the sources, in the order in which they are combined, lie between
    /// the first two, and all places that get the result between the last two.
    bounds: Vec<[u32; 3]>,
}

/// A schedule ready to run any number of times.
#[derive(Debug)]
pub struct Prepared {
    /// The schedule. Its steps have no dependencies any more: the edges and successors below do, in
    /// a quarter of the memory.
    pub schedule: Schedule,
    /// Where the schedule's algorithm stands among those of its collective.
    pub algorithm: u32,
    /// Whether flag lines or windows are used.
    pub uses_signals: bool,
    /// Whether all inputs and outputs must be registered. It is a property of the algorithm: this
    /// rank itself may reach no peer's.
    pub needs_registered: bool,
    /// Whether ranks reach each other's inputs or outputs, or what stands in for them.
    pub reaches_buffers: bool,
    /// How many steps are on lane 0: these tell where memory is, and whether it is registered.
    pub arrivals: u32,
    /// Whether the schedule stages through windows.
    pub uses_windows: bool,
    /// Whether it has scratch buffers, of either kind.
    pub uses_scratch: bool,
    /// Whether it sends or receives.
    pub has_messages: bool,
    /// Whether some buffers are the caller's besides input and output: peers reach none of them.
    pub has_others: bool,
    /// Whether a repeated call may find some of its buffers elsewhere: windows, scratch buffers and
    /// the caller's besides input and output.
    pub moves_memory: bool,
    /// Scratch buffers through which long messages go a few chunks at a time.
    pub(super) rings: Vec<ChunkRing>,
    /// Its steps.
    pub(super) steps: Vec<PreparedStep>,
    pub(super) edges: Vec<Edge>,
    pub(super) successors: Vec<Successor>,
    /// Every range of every step; a span has the number of its range.
    pub(super) ranges: Vec<Range>,
    operands: Operands,
    /// Per step, the steps that its end releases where steps are whole.
    pub(super) followers: Vec<Followers>,
    /// How a round with whole steps begins: a step waits until all steps that it depends on have
    /// been processed.
    pub(super) whole: Start,
    /// How every other round begins: a step follows the steps that it overlaps piece by piece.
    pub(super) piecewise: Start,
}

impl Prepared {
    /// Prepares a schedule.
    pub fn new(schedule: Schedule, algorithm: u32, needs_registered: bool) -> Prepared {
        let steps = &schedule.steps;
        let has = |is_it: fn(&Buffer) -> bool| schedule.buffers.iter().any(is_it);
        let mut prepared = Prepared {
            algorithm,
            uses_signals: schedule.uses_signals(),
            uses_windows: has(|buffer| matches!(buffer, Buffer::Window(_))),
            uses_scratch: has(|b| matches!(b, Buffer::Scratch(_) | Buffer::Shared(_))),
            has_messages: steps.iter().any(is_message),
            has_others: has(|buffer| matches!(buffer, Buffer::Caller(_))),
            moves_memory: has(|buffer| !matches!(buffer, Buffer::Input | Buffer::Output)),
            rings: rings_of(&schedule),
            needs_registered,
            reaches_buffers: needs_registered || steps.iter().any(reaches_a_peer),
            arrivals: steps.iter().filter(|s| is_arrival(&s.action)).count() as u32,
            whole: start(&schedule, |_| true),
            piecewise: start(&schedule, |dependency| dependency.overlap.is_none()),
            steps: Vec::new(),
            edges: Vec::new(),
            successors: Vec::new(),
            ranges: Vec::new(),
            operands: Operands::default(),
            followers: Vec::new(),
            schedule,
        };
        prepared.lay_out();
        prepared
    }

    fn lay_out(&mut self) {
        let mut all = std::mem::take(&mut self.schedule.steps);
        let (rank, name) = (self.schedule.rank, self.schedule.name);
        let mut firsts = Vec::with_capacity(all.len());
        self.steps.reserve_exact(all.len());
        self.operands.bounds.reserve_exact(all.len());
        for (id, step) in (0..).zip(&all) {
            firsts.push(self.ranges.len() as u32);
            (step.action).for_each_local_range(|range, _| self.ranges.push(*range));
            self.add_operands(&step.action, rank, firsts[id as usize]);
            let edges = self.edges.len() as u32;
            assert!(
                step.join == Join::All && step.trigger == Trigger::None,
                "step {id} of {name} is for those who follow a schedule by themselves"
            );
            // The latest edge comes first: when its earlier step has been processed, so have most
            // of the others.
            let overlaps = step.dependencies.iter().rev();
            let overlaps = overlaps.filter_map(|d| edge(d, &firsts, id));
            self.edges.extend(overlaps);
            let edges = (edges, self.edges.len() as u32);
            self.add_step(&step.action, firsts[id as usize], edges);
        }
        self.add_successors(&all);
        let steps = 0..self.steps.len() as StepId;
        self.followers = steps.map(|step| self.followers_of(step)).collect();
        all.iter_mut()
            .for_each(|step| step.dependencies = Vec::new());
        self.schedule.steps = all;
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
        self.steps.push(PreparedStep {
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

    /// Adds the operands of an action; none for signals, waits and messages. This rank's memory is
    /// local, also where the action names this rank as a peer.
    fn add_operands(&mut self, action: &Action, rank: Rank, first: u32) {
        let (ranges, places) = (&mut self.ranges, &mut self.operands.places);
        let mut at = |peer: Rank, range: &Range| {
            let span = number(ranges, first, range);
            match peer == rank {
                true => Place::Local(range.buffer, span),
                false => Place::Peer(peer, range.buffer, span),
            }
        };
        let first = places.len() as u32;
        let mut middle = first + 1;
        match action {
            Action::Copy {
                source,
                destination,
                ..
            } => places.extend([at(rank, source), at(rank, destination)]),
            Action::Get {
                peer,
                source,
                destination,
            } => places.extend([at(*peer, source), at(rank, destination)]),
            Action::Put {
                peer,
                source,
                destination,
            } => places.extend([at(rank, source), at(*peer, destination)]),
            Action::Reduce {
                sources,
                destination,
                ..
            } => {
                places.extend(sources.iter().map(|range| at(rank, range)));
                middle = places.len() as u32;
                places.push(at(rank, destination));
            }
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
                places.extend(sources.iter().map(&mut place));
                middle = places.len() as u32;
                places.extend(destinations.iter().map(&mut place));
            }
            _ => middle = first,
        }
        let end = places.len() as u32;
        self.operands.bounds.push([first, middle, end]);
    }

    /// What a copy or a reduction reads, in the order in which it is combined, and all places that
    /// get the result.
    pub fn operands_of(&self, step: StepId) -> (&[Place], &[Place]) {
        let bounds = self.operands.bounds[step as usize];
        let [first, middle, end] = bounds.map(|bound| bound as usize);
        let places = &self.operands.places;
        (&places[first..middle], &places[middle..end])
    }

    fn add_successors(&mut self, all: &[Step]) {
        // First only their number; then where they begin, with an end that grows as they are added.
        for dependency in all.iter().flat_map(|step| &step.dependencies) {
            self.steps[dependency.step as usize].successors.1 += 1;
        }
        let mut end = 0;
        for step in &mut self.steps {
            let first = end;
            end += step.successors.1;
            step.successors = (first, first);
        }
        let none = Successor {
            step: NONE,
            is_overlap: false,
        };
        self.successors = vec![none; end as usize];
        for (id, step) in (0..).zip(all) {
            for dependency in &step.dependencies {
                let end = &mut self.steps[dependency.step as usize].successors.1;
                self.successors[*end as usize] = Successor {
                    step: id,
                    is_overlap: dependency.overlap.is_some(),
                };
                *end += 1;
            }
        }
    }

    /// Whether a large call must be cut into segments, because some rank may stage it.
    pub fn is_cut(&self) -> bool {
        self.uses_windows || self.schedule.is_cut
    }

    /// Bytes that a round of this count needs: of window memory, and of shared memory on ranks that
    /// have some.
    pub fn staging_bytes(&self, count: &Count<'_>, element_bytes: usize) -> [u64; 2] {
        let buffers = self.schedule.buffers.iter();
        let windows = buffers.map(|buffer| match buffer {
            Buffer::Window(extent) => padded(extent.length_max(count), element_bytes),
            _ => 0,
        });
        let shared = match self.schedule.is_cut {
            true => padded(count.count, element_bytes),
            false => 0,
        };
        [windows.sum(), shared]
    }
}

/// Whether a step reaches a peer's input or output.
fn reaches_a_peer(step: &Step) -> bool {
    let is_callers = |range: &Range| [BufferId::INPUT, BufferId::OUTPUT].contains(&range.buffer);
    match &step.action {
        Action::Get { source, .. } => is_callers(source),
        Action::Put { destination, .. } => is_callers(destination),
        Action::ReduceFrom {
            sources,
            destinations,
            ..
        } => sources
            .iter()
            .chain(destinations)
            .any(|operand| matches!(operand, Operand::Peer(_, range) if is_callers(range))),
        _ => false,
    }
}

/// How a round begins: which steps may run, and how many dependencies keep each of the others from
/// starting. `holds`: whether a dependency keeps its step from starting.
fn start(schedule: &Schedule, holds: impl Fn(&Dependency) -> bool) -> Start {
    let mut start = Start::default();
    start.states.reserve_exact(schedule.steps.len());
    for (id, step) in (0..).zip(&schedule.steps) {
        let held = step.dependencies.iter().filter(|d| holds(d)).count();
        let mut state = StepState {
            holds: held as u32,
            ..StepState::default()
        };
        if state.holds == 0 {
            state.is_queued = true;
            start.ready.push(id);
        }
        start.states.push(state);
    }
    start
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
