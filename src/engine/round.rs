//! [`Round`]: one execution of a schedule, bound to a count, a type and memory.

use super::arguments::{Arguments, signature_of};
use super::bound::BoundSteps;
use super::fold::{FOLD_CHUNKS, Fold};
use super::gate::StraightRun;
use super::pool::Lent;
use super::prepared::{Prepared, padded};
use super::progress::Progress;
use super::signature::Signature;
use super::tag::{self, RoundToken};
use crate::limits::CACHE_LINE_BYTES;
use crate::memory::View;
use crate::schedule::{Buffer, BufferId, Count, Extent, Range, StepId};
use crate::time::Time;
use crate::types::{DataType, Rank, ReduceOp};
use std::mem::offset_of;
use std::sync::Arc;

/// Which messages belong to the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundId {
    /// A collective: its number among those of the communicator.
    Collective(u64),
    /// Sends and receives between pairs, numbered per pair (see [`Round::message_bases`]).
    Pairwise,
}

/// Which part of the caller's buffers a round works on: elements `offset ..` of each part of
/// `part_elements` elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Elements of one part of the caller's buffers: the count of the call.
    pub part_elements: u64,
    /// First element of the segment in each part.
    pub offset: u64,
}

/// A peer's buffers, mapped here.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerBuffers {
    pub input: Option<View>,
    pub output: Option<View>,
}

/// Which round of what.
#[derive(Clone, Copy)]
pub struct RoundOf {
    pub id: RoundId,
    pub task: usize,
    pub generation: u32,
    /// How many elements of the call, and from which on.
    pub part: (u64, u64),
}

/// What a round needs of its call.
#[derive(Clone, Copy)]
pub struct RoundCall<'a> {
    pub prepared: &'a Arc<Prepared>,
    pub arguments: &'a Arguments,
    pub slots: &'a [u64],
    pub others: &'a [View],
}

/// One execution of a schedule. What is touched whenever something arrives comes first, together.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Round {
    /// Tells completions of this round from those of others, and of the one that used its place
    /// before.
    pub token: RoundToken,
    pub signature: Signature,
    /// What the tags of all its messages have in common, if it is a collective.
    pub tag: u64,
    /// The number of a collective; of pairs more than any, as each of their messages has to wait
    /// for its turn.
    pub order: u64,
    pub prepared: Arc<Prepared>,
    /// When something of it last ended.
    pub last_moved: Time,
    /// Bytes of an element are 1 << shift.
    pub shift: u32,
    /// Some rank's memory is not registered, so the round is to be repeated by staging.
    pub is_redirected: bool,
    /// It is of sends and receives of pairs, not a collective.
    pub is_pairwise: bool,
    /// The task it belongs to.
    pub task: usize,
    pub progress: Progress,
    /// Its number among the rounds of the engine.
    pub generation: u32,
    /// Steps on lane 0 that have completed.
    pub arrivals: u32,
    pub bound: BoundSteps,
    pub id: RoundId,
    pub count: u64,
    /// Waits whose signals have not all come.
    pub waiting: Vec<StepId>,
    /// Steps that a full queue held up.
    pub stalled: Vec<StepId>,
    /// Where a straight run stands (see `driver/straight.rs`); `None`: `progress` says what may
    /// run.
    pub straight: Option<StraightRun>,
    /// What the call says, as far as `signature` .. `buffers` are made from it.
    arguments: Option<Arguments>,
    /// Whether buffers are to be given their memory again, even if scratch memory is where it was.
    pub needs_memory: bool,
    /// Whether its steps are to be bound again.
    needs_steps: bool,
    /// Elements of a full chunk.
    pub per_chunk: u64,
    pub slots: Vec<u64>,
    pub dtype: DataType,
    pub op: ReduceOp,
    pub segment: Segment,
    /// Per buffer: the elements that it goes around in, 0 if it does not. Empty where none does.
    folded: Vec<u64>,
    /// Elements lie in buffers as they are numbered.
    is_plain: bool,
    /// Per buffer: the caller's whole view, or the buffer's memory.
    pub buffers: Vec<View>,
    /// Per buffer: its place in a window slot.
    pub window_offsets: Vec<usize>,
    pub peers: Vec<PeerBuffers>,
    /// Per peer: numbers of the first send and receive (pairwise rounds).
    pub message_bases: Vec<(u64, u64)>,
    /// Bytes of scratch memory that it needs.
    pub scratch_bytes: usize,
    pub scratch: Option<Lent>,
    /// Where that was when buffers were given their memory.
    scratch_at: View,
    /// Of sends and receives of pairs: the other side of some, which has left. The rest goes on.
    pub lost: Option<Rank>,
}

// What a message touches lies in four cache lines: this, the beginnings of `progress` and `bound`,
// and what is held up.
const _: () = assert!(
    offset_of!(Round, progress) == CACHE_LINE_BYTES
        && offset_of!(Round, bound).is_multiple_of(CACHE_LINE_BYTES)
        && offset_of!(Round, waiting).is_multiple_of(CACHE_LINE_BYTES)
);

impl Round {
    /// A round of nothing, to be filled in when it starts.
    pub fn new(prepared: Arc<Prepared>) -> Round {
        Round {
            id: RoundId::Pairwise,
            is_pairwise: true,
            order: u64::MAX,
            tag: 0,
            task: 0,
            generation: 0,
            token: RoundToken::default(),
            prepared,
            progress: Progress::default(),
            waiting: Vec::new(),
            stalled: Vec::new(),
            arguments: None,
            needs_memory: true,
            needs_steps: true,
            signature: Signature(0),
            count: 0,
            per_chunk: 0,
            shift: 0,
            slots: Vec::new(),
            dtype: DataType::U8,
            op: ReduceOp::Sum,
            segment: Segment::default(),
            folded: Vec::new(),
            is_plain: false,
            buffers: Vec::new(),
            window_offsets: Vec::new(),
            bound: BoundSteps::default(),
            peers: Vec::new(),
            message_bases: Vec::new(),
            scratch_bytes: 0,
            scratch: None,
            scratch_at: View::empty(),
            is_redirected: false,
            lost: None,
            last_moved: Time::default(),
            arrivals: 0,
            straight: None,
        }
    }

    /// Takes up a part of a call. Everything else is as in a new round.
    pub fn begin(&mut self, of: RoundOf, call: &RoundCall<'_>, ranks: u32, chunk_bytes: usize) {
        (self.task, self.generation) = (of.task, of.generation);
        self.identify(of.id);
        self.bind(of, call, chunk_bytes);
        self.peers.clear();
        if call.prepared.reaches_buffers {
            self.peers.resize(ranks as usize, PeerBuffers::default());
        }
        self.waiting.clear();
        self.stalled.clear();
        (self.is_redirected, self.arrivals, self.lost) = (false, 0, None);
        self.straight = call.prepared.is_straight.then(StraightRun::default);
    }

    fn identify(&mut self, id: RoundId) {
        (self.id, self.is_pairwise) = (id, id == RoundId::Pairwise);
        (self.order, self.tag) = match id {
            RoundId::Collective(sequence) => (sequence, tag::collective(sequence, 0, 0)),
            RoundId::Pairwise => (u64::MAX, 0),
        };
    }

    /// Takes up the same call once more, on the same memory of the caller's.
    pub fn again(&mut self, sequence: u64, ranks: u32) {
        self.identify(RoundId::Collective(sequence));
        if self.prepared.reaches_buffers {
            self.peers.clear();
            self.peers.resize(ranks as usize, PeerBuffers::default());
        }
        (self.is_redirected, self.arrivals) = (false, 0);
        self.straight = Some(StraightRun::default());
    }

    /// Whether some of its memory of the caller is not registered, so that peers may read it where
    /// it lies.
    pub fn is_unregistered(&self) -> bool {
        let is_bare = |view: &View| !view.is_empty() && !view.key().is_some();
        self.buffers.iter().any(is_bare)
    }

    /// Whether every step has completed.
    pub fn is_finished(&self) -> bool {
        match self.straight {
            Some(run) => run.step as usize == self.prepared.schedule.steps.len(),
            None => self.progress.is_finished(),
        }
    }

    /// The run-time numbers for ranges.
    pub fn counts(&self) -> Count<'_> {
        Count {
            count: self.count,
            slots: &self.slots,
        }
    }

    /// Whether a message waits for the transport, which has taken it.
    pub fn is_posted(&self, step: StepId) -> bool {
        let is_refused = || self.progress.is_whole() && self.stalled.contains(&step);
        self.progress.is_under_way(step) && !is_refused()
    }

    /// Whether there is something to run, to look at or to end.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.straight.is_some()
            || self.progress.has_ready()
            || self.is_stopped()
            || self.has_ended()
    }

    /// Whether a step waits for a signal, for room or for its turn, or the round is to be repeated.
    #[inline]
    pub fn is_stopped(&self) -> bool {
        self.waiting.len() + self.stalled.len() > 0 || self.is_redirected
    }

    /// Whether a step waits for nothing but to be tried again, or the round to be ended.
    pub fn has_runnable(&self) -> bool {
        self.progress.has_ready() && self.straight.is_none()
            || !self.stalled.is_empty()
            || self.has_ended()
    }

    /// Whether it leaves the engine: all is done, which a message is when its completion has been
    /// reported, or it is to be repeated.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.is_redirected || self.is_finished()
    }

    /// The sequence number of a collective.
    pub fn sequence(&self) -> Option<u64> {
        match self.id {
            RoundId::Collective(sequence) => Some(sequence),
            RoundId::Pairwise => None,
        }
    }

    /// Elements `from ..` of a range of this rank's own buffers: memory, and how many elements are
    /// contiguous there, at most `want`.
    #[inline]
    pub fn locate(&self, range: &Range, from: u64, want: u64) -> (View, u64) {
        self.locate_at(range.buffer, range.start(&self.counts()) + from, want)
    }

    /// The same, from an element of a buffer on.
    #[inline(always)]
    pub fn locate_at(&self, buffer: BufferId, start: u64, want: u64) -> (View, u64) {
        let (position, got) = self.position_of(buffer, start, want);
        let (position, bytes) = (position << self.shift, got << self.shift);
        let view = self.buffers[buffer.0 as usize];
        (view.part(position as usize, bytes as usize), got)
    }

    /// Where an element lies in its buffer, and how many of the wanted ones follow it there.
    #[inline(always)]
    pub fn position_of(&self, buffer: BufferId, start: u64, want: u64) -> (u64, u64) {
        match self.is_plain {
            true => (start, want),
            false => self.place_of(buffer, start, want),
        }
    }

    /// The same, of a segment, or of a buffer that goes around.
    #[inline(never)]
    fn place_of(&self, buffer: BufferId, start: u64, want: u64) -> (u64, u64) {
        if let Some(around @ 1..) = self.folded.get(buffer.0 as usize).copied() {
            let position = start % around;
            return (position, want.min(around - position));
        }
        if !self.is_callers(buffer) {
            return (start, want);
        }
        let part = start / self.count.max(1);
        let inside = start - part * self.count;
        let position = part * self.segment.part_elements + self.segment.offset + inside;
        (position, want.min(self.count - inside))
    }

    /// The same in a peer's copy of a window, given that peer's window slot.
    pub fn locate_in_window(&self, slot: View, buffer: BufferId, start: u64, want: u64) -> View {
        let element = self.dtype.size_bytes();
        let offset = self.window_offsets[buffer.0 as usize] + start as usize * element;
        slot.part(offset, want as usize * element)
    }

    /// Whether a buffer is the input or the output, of which a round may do a segment only.
    fn is_callers(&self, buffer: BufferId) -> bool {
        matches!(
            self.prepared.schedule.buffers[buffer.0 as usize],
            Buffer::Input | Buffer::Output
        )
    }

    /// Whether a buffer lies in the window.
    pub fn is_window(&self, buffer: BufferId) -> bool {
        matches!(
            self.prepared.schedule.buffers[buffer.0 as usize],
            Buffer::Window(_)
        )
    }

    /// Takes over what the call says. A training step repeats its calls, so what is there already
    /// is left alone.
    fn bind(&mut self, of: RoundOf, call: &RoundCall<'_>, chunk_bytes: usize) {
        let arguments = call.arguments;
        let segment = Segment {
            part_elements: arguments.count,
            offset: of.part.1,
        };
        let is_repeated = Arc::ptr_eq(&self.prepared, call.prepared)
            && self.arguments.as_ref() == Some(arguments)
            && (self.count, self.segment) == (of.part.0, segment)
            && self.slots == call.slots
            && call.others.is_empty();
        self.needs_memory = !is_repeated || call.prepared.uses_windows;
        if is_repeated {
            return;
        }
        let has_same_spans = Arc::ptr_eq(&self.prepared, call.prepared)
            && self.arguments.is_some()
            && (self.count, self.dtype) == (of.part.0, arguments.dtype)
            && self.slots == call.slots;
        self.needs_steps |= !has_same_spans || (self.op, self.segment) != (arguments.op, segment);
        // Room for everything now, so that no later round of the call allocates.
        let steps = call.prepared.schedule.steps.len();
        self.waiting.reserve(steps);
        self.stalled.reserve(steps);
        self.prepared = call.prepared.clone();
        self.arguments = Some(*arguments);
        self.signature = signature_of(arguments, call.prepared, call.slots);
        (self.count, self.dtype, self.op) = (of.part.0, arguments.dtype, arguments.op);
        self.slots.clear();
        self.slots.extend_from_slice(call.slots);
        self.segment = segment;
        // Sizes of elements are powers of two, and a division takes as long as the rest of a step.
        self.shift = self.dtype.size_bytes().trailing_zeros();
        self.per_chunk = (chunk_bytes >> self.shift) as u64;
        if !has_same_spans {
            let (count, slots) = (self.count, &self.slots[..]);
            let counts = Count { count, slots };
            (self.progress).take_up(&self.prepared, &counts, self.per_chunk);
            self.fold();
        }
        self.is_plain = self.segment.part_elements == self.count && self.folded.is_empty();
        self.scratch_bytes = self.measure_scratch() as usize;
    }

    /// Decides which scratch buffers go around.
    fn fold(&mut self) {
        self.folded.clear();
        let around = FOLD_CHUNKS * self.per_chunk;
        for fold in &self.prepared.folds {
            let plan = &self.prepared.plan.steps[fold.receive as usize];
            let span = self.progress.span(plan.span);
            if span.start == 0 && span.len > around {
                self.folded.resize(self.prepared.schedule.buffers.len(), 0);
                self.folded[fold.buffer.0 as usize] = around;
            }
        }
    }

    /// Whether elements before `end` of a message have a place: always, unless its buffer goes
    /// around and what lies there is still to be reduced.
    #[inline]
    pub fn has_room(&mut self, step: StepId, buffer: BufferId, end: u64) -> bool {
        let Some(around @ 1..) = self.folded.get(buffer.0 as usize).copied() else {
            return true;
        };
        let mut folds = self.prepared.folds.iter();
        let reduce = folds.find(|fold| fold.receive == step).map(|f| f.reduce);
        reduce.is_none_or(|reduce| end <= self.progress.run(reduce).done + around)
    }

    /// The receive that gets room when this step has reduced something.
    #[inline]
    pub fn folded_receive(&self, step: StepId) -> Option<StepId> {
        if self.folded.is_empty() {
            return None;
        }
        let is_it = |fold: &&Fold| fold.reduce == step;
        self.prepared
            .folds
            .iter()
            .find(is_it)
            .map(|fold| fold.receive)
    }

    fn measure_scratch(&self) -> u64 {
        let element = self.dtype.size_bytes();
        let buffers = self.prepared.schedule.buffers.iter().enumerate();
        let bytes = buffers.map(|(number, buffer)| match buffer {
            Buffer::Scratch(extent) => padded(self.scratch_elements(number, extent), element),
            _ => 0,
        });
        bytes.sum()
    }

    fn scratch_elements(&self, number: usize, extent: &Extent) -> u64 {
        match self.folded.get(number) {
            Some(&around @ 1..) => around,
            _ => extent.length_max(&self.counts()),
        }
    }

    /// Gives every buffer its memory, the caller's views, the window slot and scratch memory,
    /// unless it has that.
    pub fn equip(&mut self, call: &RoundCall<'_>, window_slot: View, ranks: u32) {
        let scratch = self.scratch.map_or(View::empty(), |lent| lent.view);
        if !self.needs_memory && scratch == self.scratch_at {
            return;
        }
        self.scratch_at = scratch;
        self.place_buffers(call, window_slot, scratch);
        if self.needs_steps {
            self.needs_steps = false;
            let mut bound = std::mem::take(&mut self.bound);
            bound.resolve(self, ranks);
            self.bound = bound;
        }
        self.bound.give_memory(&self.buffers);
    }

    fn place_buffers(&mut self, call: &RoundCall<'_>, window_slot: View, scratch: View) {
        let prepared = &self.prepared;
        let element = self.dtype.size_bytes();
        let counts = Count {
            count: self.count,
            slots: &self.slots,
        };
        let (mut window_at, mut scratch_at) = (0usize, 0usize);
        self.buffers.clear();
        self.window_offsets.clear();
        for buffer in &prepared.schedule.buffers {
            let mut offset = 0;
            let view = match buffer {
                Buffer::Input => call.arguments.input,
                Buffer::Output => call.arguments.output,
                Buffer::Caller(number) => call.others[*number as usize],
                Buffer::Window(extent) => {
                    let bytes = padded(extent.length_max(&counts), element) as usize;
                    offset = window_at;
                    window_at += bytes;
                    window_slot.part(offset, bytes)
                }
                Buffer::Scratch(extent) => {
                    let elements = self.scratch_elements(self.buffers.len(), extent);
                    let bytes = padded(elements, element) as usize;
                    let view = scratch.part(scratch_at, bytes);
                    scratch_at += bytes;
                    view
                }
            };
            self.buffers.push(view);
            self.window_offsets.push(offset);
        }
    }

    /// Whether everyone's registration that matters here is known.
    pub fn is_decided(&self) -> bool {
        self.is_redirected
            || !self.prepared.reaches_buffers
            || self.arrivals == self.prepared.arrivals
    }

    /// The number of a message of this round to or from a peer.
    pub fn message_number(&self, peer: Rank, message: u32, is_send: bool) -> u64 {
        let (sends, receives) = self.message_bases[peer as usize];
        u64::from(message) + if is_send { sends } else { receives }
    }
}
