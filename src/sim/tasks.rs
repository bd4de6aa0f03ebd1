//! [`Tasks`]: what all ranks do for one collective, as one graph: a task for each chunk of a step
//! of a schedule, and what it waits for.
//!
//! The rules of order are those of `engine/progress.rs`: a chunk waits for the chunks of earlier
//! steps that end where it needs them; chunks of a message are posted one after another, a few at a
//! time; a chunk that goes through a ring of chunks waits for its place. A call that the engine
//! cuts is several parts.

use crate::engine::{RING_CHUNKS, rings_of};
use crate::error::{Error, Result};
use crate::limits::{CHUNKS_IN_FLIGHT, OPERATION_SLOTS, shared_bytes};
use crate::schedule::{Action, Count, Schedule, Step, StepId};
use crate::types::Rank;
use std::ops::Range;

/// Tasks of one run, at most: 4 GiB of memory.
const TASKS_MAX: usize = 50_000_000;
/// After this many ranks the number of all tasks is estimated.
const RANKS_TRIED: usize = 8;
/// Bytes of an element: those of an f32.
pub(super) const ELEMENT_BYTES: u64 = 4;
/// No task.
pub(super) const NONE: u32 = u32::MAX;

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Send,
    Receive,
    Copy,
    /// A vector is added to another; longer sums are several additions.
    Add,
    Nothing,
}

/// A chunk of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    /// Its first successor in [`Tasks::edges`]; the next task's first one is behind its last.
    first_edge: u32,
    /// How many things it waits for.
    pub(super) holds: u32,
    /// Of a message: the task of the other side.
    pub(super) partner: u32,
    pub(super) bytes: u32,
    pub(super) rank: u16,
    pub(super) kind: Kind,
    /// Additions of a sum.
    pub(super) additions: u8,
    /// The task behind it is the next chunk of its step.
    pub(super) has_next_chunk: bool,
    /// Every step of its rank is one chunk.
    pub(super) is_whole: bool,
}

/// The graph.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    pub(super) all: Vec<Task>,
    edges: Vec<u32>,
    sends: Vec<Message>,
    receives: Vec<Message>,
}

/// A chunk of a message: the sender, the receiver, the part of the call, the number of the message
/// among those of the pair, the chunk; and its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Message {
    from: u16,
    to: u16,
    part: u32,
    number: u32,
    chunk: u32,
    task: u32,
}

impl Message {
    fn is_of(&self, other: &Message) -> bool {
        let named = |of: &Message| (of.from, of.to, of.part, of.number, of.chunk);
        named(self) == named(other)
    }
}

impl Tasks {
    /// Those of schedules of all ranks, by rank, for a count and for run-time lengths.
    pub(super) fn new(
        schedules: impl Iterator<Item = Schedule>,
        (count, slots): (u64, &[u64]),
        chunk_bytes: u64,
    ) -> Result<Tasks> {
        let mut tasks = Tasks::default();
        let per_chunk = (chunk_bytes / ELEMENT_BYTES).max(1);
        for (rank, schedule) in schedules.enumerate() {
            let first = tasks.all.len();
            let mut edges = Vec::new();
            let mut parts: Vec<Part> = Vec::new();
            for (number, count) in (0..).zip(parts_of(&schedule, count)) {
                let count = Count { count, slots };
                let before = edges.len();
                let tasks = tasks.add((&schedule, number), &count, per_chunk, &mut edges);
                parts.push(Part {
                    tasks,
                    edges: before..edges.len(),
                });
            }
            // The engine has a few parts of a call under way.
            for (earlier, later) in parts
                .iter()
                .zip(parts.iter().skip(OPERATION_SLOTS as usize))
            {
                let ends = earlier.ends(&edges);
                let begins = later.begins(&edges);
                let gate = tasks.add_gate(&schedule);
                edges.extend(ends.into_iter().map(|end| (end, gate)));
                edges.extend(begins.into_iter().map(|begin| (gate, begin)));
            }
            tasks.add_edges(first, edges);
            let ranks = schedule.ranks as usize;
            let all = match rank + 1 == RANKS_TRIED {
                true => tasks.all.len() / RANKS_TRIED * ranks,
                false => tasks.all.len(),
            };
            if all > TASKS_MAX {
                return Err(Error::invalid(format!(
                    "{} of {ranks} ranks has more than {TASKS_MAX} chunks of messages and sums: take an algorithm with fewer, such as hierarchical, or longer chunks",
                    schedule.name
                )));
            }
        }
        tasks.join();
        Ok(tasks)
    }

    /// The tasks that wait for one.
    pub(super) fn successors(&self, task: u32) -> Range<usize> {
        let at = task as usize;
        let end = self
            .all
            .get(at + 1)
            .map_or(self.edges.len(), |next| next.first_edge as usize);
        self.all[at].first_edge as usize..end
    }

    pub(super) fn edge(&self, at: usize) -> u32 {
        self.edges[at]
    }

    /// Adds the tasks of a part of a call, and what they wait for.
    fn add(
        &mut self,
        (schedule, part): (&Schedule, u32),
        count: &Count<'_>,
        per_chunk: u64,
        edges: &mut Vec<Edge>,
    ) -> Range<u32> {
        let first = self.all.len();
        let elements = |step: &Step| match step.action.extent() {
            Some(range) => range.resolve(count).1,
            None => 0,
        };
        let is_whole = (schedule.steps.iter()).all(|step| elements(step) <= per_chunk);
        let mut order = Order {
            is_whole,
            schedule,
            count,
            per_chunk,
            places: Vec::with_capacity(schedule.steps.len()),
            edges,
        };
        for step in &schedule.steps {
            let place = order.place(step, self.all.len() as u32, elements(step));
            self.add_step((schedule.rank, part), step, &place);
            order.add_step(step, place);
        }
        order.add_rings();
        for task in &mut self.all[first..] {
            task.is_whole = is_whole;
        }
        first as u32..self.all.len() as u32
    }

    /// Adds a task that does nothing, and joins two parts of a call.
    fn add_gate(&mut self, schedule: &Schedule) -> u32 {
        self.all.push(Task {
            first_edge: 0,
            holds: 0,
            partner: NONE,
            bytes: 0,
            rank: schedule.rank as u16,
            kind: Kind::Nothing,
            additions: 0,
            has_next_chunk: false,
            is_whole: false,
        });
        (self.all.len() - 1) as u32
    }

    /// Adds the tasks of a step.
    fn add_step(&mut self, (rank, part): (Rank, u32), step: &Step, place: &Place) {
        let (kind, additions, pair) = match &step.action {
            Action::Send { peer, message, .. } => (Kind::Send, 0, Some((*peer, *message))),
            Action::Recv { peer, message, .. } => (Kind::Receive, 0, Some((*peer, *message))),
            Action::Copy { .. } => (Kind::Copy, 0, None),
            Action::Reduce { sources, .. } => (Kind::Add, sources.len() - 1, None),
            _ => (Kind::Nothing, 0, None),
        };
        for chunk in 0..place.chunks() {
            let task = self.all.len() as u32;
            let has_next_chunk = chunk + 1 < place.chunks();
            self.all.push(Task {
                first_edge: 0,
                // Chunks of a message are posted one after another.
                holds: u32::from(pair.is_some() && chunk > 0),
                partner: NONE,
                bytes: (place.elements_of(chunk) * ELEMENT_BYTES) as u32,
                rank: rank as u16,
                kind,
                additions: additions.min(usize::from(u8::MAX)) as u8,
                has_next_chunk,
                is_whole: false,
            });
            let Some((peer, number)) = pair else {
                continue;
            };
            let (all, from, to) = match kind {
                Kind::Send => (&mut self.sends, rank, peer),
                _ => (&mut self.receives, peer, rank),
            };
            all.push(Message {
                from: from as u16,
                to: to as u16,
                part,
                number,
                chunk,
                task,
            });
        }
    }

    /// Lays out the edges between the tasks from `first` on.
    fn add_edges(&mut self, first: usize, mut edges: Vec<Edge>) {
        edges.sort_unstable();
        edges.dedup();
        let mut next = edges.iter().peekable();
        for task in first..self.all.len() {
            self.all[task].first_edge = self.edges.len() as u32;
            while let Some((_, later)) = next.next_if(|edge| edge.0 as usize == task) {
                self.edges.push(*later);
                self.all[*later as usize].holds += 1;
            }
        }
    }

    /// Joins the two sides of all messages.
    fn join(&mut self) {
        let (mut sends, mut receives) = (
            std::mem::take(&mut self.sends),
            std::mem::take(&mut self.receives),
        );
        sends.sort_unstable();
        receives.sort_unstable();
        let is_whole = sends.len() == receives.len()
            && (sends.iter().zip(&receives)).all(|(send, receive)| send.is_of(receive));
        assert!(is_whole, "every message of a schedule has two sides");
        for (send, receive) in sends.iter().zip(&receives) {
            self.all[send.task as usize].partner = receive.task;
            self.all[receive.task as usize].partner = send.task;
        }
    }
}

/// The earlier task, and the later one, which waits for it.
type Edge = (u32, u32);

/// First element of a range, and number of elements.
type Span = (u64, u64);

/// The tasks of a step: the first, and where the elements of each end.
#[derive(Clone, Debug)]
struct Place {
    first: u32,
    ends: Vec<u64>,
}

impl Place {
    fn chunks(&self) -> u32 {
        self.ends.len() as u32
    }

    fn elements(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    fn elements_of(&self, chunk: u32) -> u64 {
        let before = (chunk as usize)
            .checked_sub(1)
            .map_or(0, |at| self.ends[at]);
        self.ends[chunk as usize] - before
    }

    fn last(&self) -> u32 {
        self.first + self.chunks() - 1
    }

    /// The task whose end says that this many elements are processed.
    fn task_of(&self, elements: u64) -> u32 {
        let at = self.ends.partition_point(|&end| end < elements) as u32;
        self.first + at.min(self.chunks() - 1)
    }
}

/// A part of a call on one rank.
struct Part {
    tasks: Range<u32>,
    /// Places of the edges between them.
    edges: Range<usize>,
}

impl Part {
    /// The tasks that wait for no other.
    fn begins(&self, edges: &[Edge]) -> Vec<u32> {
        self.without(edges, |edge| edge.1)
    }

    /// The tasks for which no other waits.
    fn ends(&self, edges: &[Edge]) -> Vec<u32> {
        self.without(edges, |edge| edge.0)
    }

    fn without(&self, edges: &[Edge], end: impl Fn(&Edge) -> u32) -> Vec<u32> {
        let (first, tasks) = (self.tasks.start, self.tasks.clone());
        let mut has = vec![false; self.tasks.len()];
        for edge in &edges[self.edges.clone()] {
            has[(end(edge) - first) as usize] = true;
        }
        let without = tasks.zip(has).filter(|(_, has)| !has);
        without.map(|(task, _)| task).collect()
    }
}

/// The counts of the parts of a call: where some rank may stage it in shared memory, the engine
/// cuts it.
fn parts_of(schedule: &Schedule, count: u64) -> Vec<u64> {
    let most = match schedule.is_cut {
        true => (shared_bytes(schedule.ranks) / ELEMENT_BYTES).max(1),
        false => count.max(1),
    };
    let parts = count.div_ceil(most).max(1);
    (0..parts).map(|at| (count - at * most).min(most)).collect()
}

/// Which task of a rank waits for which.
struct Order<'s> {
    schedule: &'s Schedule,
    count: &'s Count<'s>,
    per_chunk: u64,
    /// Every step is one chunk, and starts when all that it depends on is done.
    is_whole: bool,
    places: Vec<Place>,
    edges: &'s mut Vec<Edge>,
}

impl Order<'_> {
    /// The tasks of a step from this one on. Messages are cut into chunks; all else also goes as
    /// far as the steps before it have come.
    fn place(&self, step: &Step, first: u32, elements: u64) -> Place {
        let chunks = elements.div_ceil(self.per_chunk).max(1);
        let own = (1..=chunks).map(|chunk| (chunk * self.per_chunk).min(elements));
        let mut ends: Vec<u64> = own.collect();
        if !self.is_whole && !is_message(step) {
            for dependency in &step.dependencies {
                let Some(ranges) = dependency.overlap else {
                    continue;
                };
                let (theirs, ours) = self.spans(step, dependency.step, ranges);
                let earlier = &self.places[dependency.step as usize];
                let come = earlier.ends.iter();
                let come = come.filter_map(|end| (theirs.0 + end).checked_sub(ours.0));
                ends.extend(come.filter(|&end| 0 < end && end < elements));
            }
            ends.sort_unstable();
            ends.dedup();
        }
        Place { first, ends }
    }

    /// Adds what the tasks of a step wait for.
    fn add_step(&mut self, step: &Step, place: Place) {
        // Messages have a few chunks under way; all else is done chunk after chunk.
        let apart = if is_message(step) {
            CHUNKS_IN_FLIGHT
        } else {
            1
        };
        for chunk in apart..place.chunks() {
            let later = place.first + chunk;
            self.edges.push((later - apart, later));
        }
        for dependency in &step.dependencies {
            match dependency.overlap.filter(|_| !self.is_whole) {
                None => {
                    let earlier = &self.places[dependency.step as usize];
                    self.edges.push((earlier.last(), place.first));
                }
                Some(ranges) => self.add_overlap(step, &place, dependency.step, ranges),
            }
        }
        self.places.push(place);
    }

    /// Each chunk waits until the earlier step has processed what both touch.
    fn add_overlap(&mut self, step: &Step, place: &Place, earlier: StepId, ranges: (u16, u16)) {
        let (theirs, ours) = self.spans(step, earlier, ranges);
        let end_of_theirs = theirs.0 + theirs.1;
        if ours.0 >= end_of_theirs {
            return;
        }
        let mut before = NONE;
        for (later, end) in (place.first..).zip(&place.ends) {
            let needed = (ours.0 + end).min(end_of_theirs).saturating_sub(theirs.0);
            let task = self.places[earlier as usize].task_of(needed);
            // The chunk before it waits for all up to there.
            if needed > 0 && task != before {
                self.edges.push((task, later));
                before = task;
            }
        }
    }

    /// Where the ranges of an edge lie: that of the earlier step, and that of this one.
    fn spans(&self, step: &Step, earlier: StepId, ranges: (u16, u16)) -> (Span, Span) {
        let theirs = self.span(&self.schedule.steps[earlier as usize], ranges.0);
        (theirs, self.span(step, ranges.1))
    }

    /// First element and number of elements of a range of a step, by its place in the order of
    /// [`Action::for_each_local_range`].
    fn span(&self, step: &Step, at: u16) -> Span {
        let mut found = None;
        let mut place = 0;
        step.action.for_each_local_range(|range, _| {
            if place == at {
                found = Some(*range);
            }
            place += 1;
        });
        found.map_or((0, 0), |range| range.resolve(self.count))
    }

    /// A long message that is only reduced goes through a few chunks of memory.
    fn add_rings(&mut self) {
        let room = RING_CHUNKS * self.per_chunk;
        for ring in rings_of(self.schedule) {
            let receive = &self.places[ring.receive as usize];
            let reduce = &self.places[ring.reduce as usize];
            let starts_it = self.span(&self.schedule.steps[ring.receive as usize], 0).0 == 0;
            if !starts_it || receive.elements() <= room {
                continue;
            }
            for (later, end) in (receive.first..).zip(&receive.ends) {
                if *end > room {
                    self.edges.push((reduce.task_of(end - room), later));
                }
            }
        }
    }
}

fn is_message(step: &Step) -> bool {
    matches!(step.action, Action::Send { .. } | Action::Recv { .. })
}
