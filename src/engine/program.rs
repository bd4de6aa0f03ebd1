//! [`Program`]: what the steps of a round do, resolved once for a call: on which elements, of which
//! type, by which operator.
//!
//! A training step repeats its calls, so the program of a round stays while calls are alike, and
//! the views of its memory (`memory.rs`) while calls are on the same memory.

use super::arguments::{Arguments, RoundCall, signature_of};
use super::chunk_ring::{ChunkRing, RING_CHUNKS};
use super::prepared::{Place, Prepared, PreparedStep, StepKind, padded};
use super::progress::Progress;
use super::signature::Signature;
use super::step_state::NONE;
use super::thread_pool::{SHARED_BYTES_MIN, Work};
use crate::kernel::BoundReduction;
use crate::limits::CACHE_LINE_BYTES;
use crate::schedule::{Action, Buffer, BufferId, Count, Extent, Lane, Range, StepId};
use crate::types::{DataType, Finish, Rank, ReduceOp};
use std::sync::Arc;

/// Largest piece of a copy or reduction that runs at a time, about 100 us at 10 GB/s. Between
/// pieces the engine looks at what has arrived.
pub const PIECE_BYTES: usize = 1 << 20;

/// Longest copy or reduction that is done at once, by one thread.
const AT_ONCE_BYTES_MAX: usize = 256 << 10;
const _: () = assert!(AT_ONCE_BYTES_MAX < SHARED_BYTES_MIN);

/// Which elements of the caller's buffers a round works on: those from `offset` on of each part of
/// `part_elements` elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Elements of one part of the caller's buffers: the count of the call.
    pub part_elements: u64,
    /// First element of the segment in each part.
    pub offset: u64,
}

/// What a step does, in a cache line of its own.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub enum What {
    /// One message to a peer.
    Send(Message),
    /// One message from a peer.
    Receive(Message),
    /// A message that is several chunks, or whose step follows earlier steps chunk by chunk.
    Chunks,
    /// A copy or reduction that runs at once.
    Compute(Compute),
    /// A copy or reduction that runs piece by piece, or in a peer's memory.
    Pieces,
    /// Signals. `payload`: the number of the view of their payload, or [`NONE`].
    Signal { to: Signals, payload: u32 },
    /// A wait until `count` of these signals have come.
    Wait { from: Signals, count: u32 },
    /// Nothing.
    Nop,
}

const _: () = assert!(size_of::<What>() == CACHE_LINE_BYTES);

/// The signals that a step sends or waits for.
#[derive(Clone, Copy, Debug)]
pub struct Signals {
    /// Their peers in [`Program::peers`]: the first, and the end.
    pub first: u32,
    pub end: u32,
    pub lane: Lane,
    /// They tell where the memory of a rank lies.
    pub have_binding: bool,
}

/// A message that is sent or received.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// The number of its view.
    pub view: u32,
    pub peer: Rank,
    /// Which message of this pair.
    pub number: u32,
}

/// A copy or reduction of views: the sources have the numbers `first .. middle`, the destinations
/// `middle .. end`.
#[derive(Clone, Copy, Debug)]
pub struct Compute {
    pub work: Work,
    pub first: u32,
    pub middle: u32,
    pub end: u32,
    /// Some source is the payload of a signal, which lies elsewhere in each round.
    pub has_mail: bool,
}

/// The memory of a view, before it is known where it lies.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// Bytes `start ..` of a buffer.
    Local {
        buffer: BufferId,
        start: usize,
        bytes: usize,
    },
    /// The payload of a signal.
    Mail {
        peer: Rank,
        lane: Lane,
        bytes: usize,
    },
}

/// The program of a round.
#[derive(Debug)]
pub struct Program {
    pub steps: Vec<What>,
    /// Whether some step counts its elements.
    pub has_counts: bool,
    /// Bytes of an element are 1 << shift.
    pub shift: u32,
    pub prepared: Arc<Prepared>,
    pub signature: Signature,
    pub count: u64,
    /// Elements of a full chunk.
    pub per_chunk: u64,
    pub slots: Vec<u64>,
    pub dtype: DataType,
    pub op: ReduceOp,
    pub segment: Segment,
    /// What steps read and write. The view of a part has the number of that part.
    pub parts: Vec<Part>,
    /// The peers of all signals.
    peers: Vec<Rank>,
    /// Bytes of scratch memory that it needs.
    pub scratch_bytes: usize,
    /// The number of the `AtOnce` call that has these arguments; 0: none is known to have them.
    pub call_number: u64,
    /// The arguments from which the rest was resolved.
    arguments: Option<Arguments>,
    /// Elements of each buffer that is a ring of chunks, 0 for the others. Empty where none is.
    rings: Vec<u64>,
    /// Element i of a buffer lies at place i of its memory: the round does the whole call, and no
    /// buffer is a ring.
    is_plain: bool,
}

impl Program {
    /// The program of no call yet.
    pub fn new(prepared: Arc<Prepared>) -> Program {
        Program {
            steps: Vec::new(),
            has_counts: true,
            shift: 0,
            prepared,
            signature: Signature(0),
            count: 0,
            per_chunk: 0,
            slots: Vec::new(),
            dtype: DataType::U8,
            op: ReduceOp::Sum,
            segment: Segment::default(),
            parts: Vec::new(),
            peers: Vec::new(),
            scratch_bytes: 0,
            call_number: 0,
            arguments: None,
            rings: Vec::new(),
            is_plain: false,
        }
    }

    /// Takes up a part of a call: how many elements, and from which on. Returns false if that is
    /// what the program did last, on the same memory of the caller.
    #[inline]
    pub fn take_up(
        &mut self,
        progress: &mut Progress,
        call: &RoundCall<'_>,
        part: (u64, u64),
        sizes: (u32, usize),
    ) -> bool {
        let (count, offset) = part;
        let segment = Segment {
            part_elements: call.arguments.count,
            offset,
        };
        // Empty slices are not compared, because the C library takes 70 ns to compare no bytes.
        let has_same_slots = match call.slots {
            [] => self.slots.is_empty(),
            slots => self.slots == slots,
        };
        let is_known = Arc::ptr_eq(&self.prepared, call.prepared) && has_same_slots;
        let is_same_part = (self.count, self.segment) == (count, segment);
        if is_known && is_same_part && self.arguments.as_ref() == Some(call.arguments) {
            return false;
        }
        self.take_up_other(
            progress,
            call,
            (count, segment),
            (is_known, is_same_part),
            sizes,
        );
        true
    }

    /// As [`Program::take_up`], where something differs. `is_known`: the schedule and the slots do
    /// not. `is_same_part`: the part does not.
    #[inline(never)]
    fn take_up_other(
        &mut self,
        progress: &mut Progress,
        call: &RoundCall<'_>,
        (count, segment): (u64, Segment),
        (is_known, is_same_part): (bool, bool),
        (ranks, chunk_bytes): (u32, usize),
    ) {
        let (prepared, arguments, slots) = (call.prepared, call.arguments, call.slots);
        let is_known = is_known && self.arguments.is_some();
        let has_same_spans = is_known && (self.count, self.dtype) == (count, arguments.dtype);
        let has_same_steps = has_same_spans && is_same_part && self.op == arguments.op;
        self.prepared = prepared.clone();
        self.call_number = 0;
        self.arguments = Some(*arguments);
        self.signature = signature_of(arguments, prepared, slots);
        (self.count, self.dtype, self.op) = (count, arguments.dtype, arguments.op);
        self.slots.clear();
        self.slots.extend_from_slice(slots);
        self.segment = segment;
        // Sizes of elements are powers of two, and a division takes as long as the rest of a step.
        self.shift = self.dtype.size_bytes().trailing_zeros();
        self.per_chunk = (chunk_bytes >> self.shift) as u64;
        if !has_same_spans {
            progress.take_up(prepared, &self.counts(), self.per_chunk);
            self.find_rings(progress);
        }
        self.is_plain = self.segment.part_elements == self.count && self.rings.is_empty();
        self.scratch_bytes = self.measure_scratch() as usize;
        if !has_same_steps {
            self.resolve(progress, ranks);
        }
    }

    /// The run-time numbers for ranges.
    pub fn counts(&self) -> Count<'_> {
        Count {
            count: self.count,
            slots: &self.slots,
        }
    }

    /// The first byte of the caller's buffers that the round is for.
    pub fn segment_at(&self) -> u64 {
        self.segment.offset << self.shift
    }

    /// The action of a step.
    pub fn action(&self, step: StepId) -> &Action {
        &self.prepared.schedule.steps[step as usize].action
    }

    /// Finds what each step does.
    fn resolve(&mut self, progress: &Progress, ranks: u32) {
        self.steps.clear();
        self.parts.clear();
        self.peers.clear();
        self.has_counts = false;
        let prepared = self.prepared.clone();
        self.steps.reserve_exact(prepared.steps.len());
        let actions = prepared.schedule.steps.iter().map(|step| &step.action);
        for ((id, step), action) in (0..).zip(&prepared.steps).zip(actions) {
            let what = self.resolve_step(progress, (id, step, action), ranks);
            self.has_counts |= matches!(what, What::Chunks | What::Pieces);
            self.steps.push(what);
        }
    }

    fn resolve_step(
        &mut self,
        progress: &Progress,
        (id, step, action): (StepId, &PreparedStep, &Action),
        ranks: u32,
    ) -> What {
        match step.kind {
            StepKind::Send | StepKind::Receive if !progress.is_whole() => What::Chunks,
            StepKind::Send => What::Send(self.resolve_message(progress, step)),
            StepKind::Receive => What::Receive(self.resolve_message(progress, step)),
            StepKind::Other => match action {
                Action::Nop => What::Nop,
                Action::WaitCount { peers, lane, count } => What::Wait {
                    from: self.add_signals(peers, *lane),
                    count: *count,
                },
                Action::Signal {
                    peers,
                    lane,
                    payload,
                } => {
                    let payload = payload.map(|range| self.add_payload(&range));
                    What::Signal {
                        to: self.add_signals(peers, *lane),
                        payload: payload.unwrap_or(NONE),
                    }
                }
                _ => {
                    let compute = self.resolve_compute(progress, (id, step), ranks);
                    compute.map_or(What::Pieces, What::Compute)
                }
            },
        }
    }

    fn add_signals(&mut self, peers: &[Rank], lane: Lane) -> Signals {
        let first = self.peers.len() as u32;
        self.peers.extend_from_slice(peers);
        Signals {
            first,
            end: self.peers.len() as u32,
            lane,
            have_binding: lane == 0 && self.prepared.reaches_buffers,
        }
    }

    /// The peers of signals.
    #[inline]
    pub fn peers_of(&self, signals: Signals) -> &[Rank] {
        &self.peers[signals.first as usize..signals.end as usize]
    }

    fn add_payload(&mut self, range: &Range) -> u32 {
        let (start, len) = range.resolve(&self.counts());
        let (position, got) = self.position_of(range.buffer, start, len);
        self.add_part(Part::Local {
            buffer: range.buffer,
            start: (position << self.shift) as usize,
            bytes: (got << self.shift) as usize,
        })
    }

    fn add_part(&mut self, part: Part) -> u32 {
        self.parts.push(part);
        self.parts.len() as u32 - 1
    }

    fn resolve_message(&mut self, progress: &Progress, step: &PreparedStep) -> Message {
        let span = progress.span(step.span);
        let part = self.part_of(step.buffer, span.start, span.len);
        Message {
            view: self.add_part(part.expect("messages are contiguous")),
            peer: step.peer,
            number: step.message,
        }
    }

    /// What a copy or reduction does at once; `None`: it runs piece by piece.
    fn resolve_compute(
        &mut self,
        progress: &Progress,
        (id, step): (StepId, &PreparedStep),
        ranks: u32,
    ) -> Option<Compute> {
        let prepared = self.prepared.clone();
        let work = self.work_of(self.action(id), ranks, false)?;
        let (sources, destinations) = prepared.operands_of(id);
        let len = progress.span(step.span).len;
        // Steps that reach buffers decide for each piece whether to use streaming stores.
        let is_long = len << self.shift > AT_ONCE_BYTES_MAX as u64;
        if prepared.reaches_buffers || is_long || !progress.is_whole() {
            return None;
        }
        let first = self.parts.len();
        let mut has_mail = false;
        for place in sources.iter().chain(destinations) {
            let part = match *place {
                Place::Local(buffer, span) => self.part_of(buffer, progress.span(span).start, len),
                Place::Mail(peer, lane) => {
                    has_mail = true;
                    let bytes = (len << self.shift) as usize;
                    Some(Part::Mail { peer, lane, bytes })
                }
                Place::Peer(..) => None,
            };
            let Some(part) = part else {
                self.parts.truncate(first);
                return None;
            };
            self.parts.push(part);
        }
        Some(Compute {
            work,
            first: first as u32,
            middle: (first + sources.len()) as u32,
            end: self.parts.len() as u32,
            has_mail,
        })
    }

    /// Elements `start ..` of a buffer, if all `len` are contiguous.
    fn part_of(&self, buffer: BufferId, start: u64, len: u64) -> Option<Part> {
        let (position, got) = self.position_of(buffer, start, len);
        (got == len).then_some(Part::Local {
            buffer,
            start: (position << self.shift) as usize,
            bytes: (len << self.shift) as usize,
        })
    }

    /// What a step does to the elements of its operands; `None`: it has no operands. `streamed`: by
    /// streaming stores.
    pub fn work_of(&self, action: &Action, ranks: u32, streamed: bool) -> Option<Work> {
        Some(match action {
            Action::Copy {
                premultiply: true, ..
            } => Work::Scale {
                dtype: self.dtype,
                factor: self.op.factor().unwrap_or(1.0),
            },
            Action::Copy { .. } | Action::Get { .. } | Action::Put { .. } => {
                Work::Copy { streamed }
            }
            Action::Reduce { finish, .. } | Action::ReduceFrom { finish, .. } => {
                let finish = match self.op {
                    ReduceOp::Avg if *finish => Finish::Divide(ranks),
                    _ => Finish::None,
                };
                let (dtype, combine) = (self.dtype, self.op.combine());
                Work::Reduce(match streamed {
                    true => BoundReduction::streaming(dtype, combine, finish),
                    false => BoundReduction::new(dtype, combine, finish),
                })
            }
            _ => return None,
        })
    }

    /// Where element `start` lies in its buffer, and how many of the `want` elements from it on are
    /// contiguous there.
    #[inline(always)]
    pub fn position_of(&self, buffer: BufferId, start: u64, want: u64) -> (u64, u64) {
        match self.is_plain {
            true => (start, want),
            false => self.place_of(buffer, start, want),
        }
    }

    /// As [`Program::position_of`], in a segment or in a ring of chunks.
    #[inline(never)]
    fn place_of(&self, buffer: BufferId, start: u64, want: u64) -> (u64, u64) {
        if let Some(ring @ 1..) = self.rings.get(buffer.0 as usize).copied() {
            let position = start % ring;
            return (position, want.min(ring - position));
        }
        if !self.is_callers(buffer) {
            return (start, want);
        }
        let part = start / self.count.max(1);
        let inside = start - part * self.count;
        let position = part * self.segment.part_elements + self.segment.offset + inside;
        (position, want.min(self.count - inside))
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

    /// Decides which scratch buffers are rings: those whose message is longer than a ring.
    fn find_rings(&mut self, progress: &Progress) {
        self.rings.clear();
        let elements = RING_CHUNKS * self.per_chunk;
        for ring in &self.prepared.rings {
            let receive = &self.prepared.steps[ring.receive as usize];
            let span = progress.span(receive.span);
            if span.start == 0 && span.len > elements {
                self.rings.resize(self.prepared.schedule.buffers.len(), 0);
                self.rings[ring.buffer.0 as usize] = elements;
            }
        }
    }

    /// Whether there is room for the elements of a message before `end`. There is, unless its
    /// buffer is a ring whose chunks are still to be reduced.
    #[inline]
    pub fn has_room(&self, progress: &Progress, step: StepId, buffer: BufferId, end: u64) -> bool {
        let Some(elements @ 1..) = self.rings.get(buffer.0 as usize).copied() else {
            return true;
        };
        let mut rings = self.prepared.rings.iter();
        let reduce = rings
            .find(|ring| ring.receive == step)
            .map(|ring| ring.reduce);
        reduce.is_none_or(|reduce| end <= progress.done(reduce) + elements)
    }

    /// The receive that gets room when this step has reduced something.
    #[inline]
    pub fn waiting_receive(&self, step: StepId) -> Option<StepId> {
        if self.rings.is_empty() {
            return None;
        }
        let is_it = |ring: &&ChunkRing| ring.reduce == step;
        let mut rings = self.prepared.rings.iter();
        rings.find(is_it).map(|ring| ring.receive)
    }

    fn measure_scratch(&self) -> u64 {
        let element = self.dtype.size_bytes();
        let buffers = self.prepared.schedule.buffers.iter().enumerate();
        let bytes = buffers.map(|(number, buffer)| match buffer {
            Buffer::Scratch(extent) | Buffer::Shared(extent) => {
                padded(self.scratch_elements(number, extent), element)
            }
            _ => 0,
        });
        bytes.sum()
    }

    /// Elements of a scratch buffer.
    pub fn scratch_elements(&self, number: usize, extent: &Extent) -> u64 {
        match self.rings.get(number) {
            Some(&elements @ 1..) => elements,
            _ => extent.length_max(&self.counts()),
        }
    }
}
