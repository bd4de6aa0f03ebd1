//! [`Memory`]: where the buffers of a round lie, its own and those of its peers.

use super::links::Links;
use super::pool::Lent;
use super::prepared::padded;
use super::program::{Compute, Part, Program};
use crate::memory::View;
use crate::schedule::{Buffer, BufferId};

/// The memory of a call.
#[derive(Clone, Copy)]
pub struct CallViews<'a> {
    pub input: &'a View,
    pub output: &'a View,
    pub others: &'a [View],
}

/// A peer's buffers, mapped here.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerBuffers {
    pub input: Option<View>,
    pub output: Option<View>,
}

/// The memory of a round.
#[derive(Debug)]
pub struct Memory {
    /// What steps read and write: a view for each part of the program.
    views: Vec<View>,
    /// Per buffer: the caller's whole view, or the buffer's memory.
    pub buffers: Vec<View>,
    /// Per buffer: its place in a window slot.
    window_offsets: Vec<usize>,
    pub peers: Vec<PeerBuffers>,
    pub scratch: Option<Lent>,
    /// The part of `scratch` that peers reach instead of input and output; empty if there is none.
    pub shared: View,
    /// Where `scratch` was when the buffers last got their memory.
    scratch_at: View,
}

impl Memory {
    /// The memory of no round yet.
    pub fn new() -> Memory {
        Memory {
            views: Vec::new(),
            buffers: Vec::new(),
            window_offsets: Vec::new(),
            peers: Vec::new(),
            scratch: None,
            shared: View::empty(),
            scratch_at: View::empty(),
        }
    }

    /// Forgets where the buffers of the peers lie, and makes room for those of `ranks` ranks.
    pub fn forget_peers(&mut self, ranks: u32) {
        self.peers.clear();
        self.peers.resize(ranks as usize, PeerBuffers::default());
    }

    /// Gives every buffer its memory: the caller's views, the window slot, scratch memory. It does
    /// nothing if all of that is as it was. `is_new`: the call or its window is another one.
    #[inline]
    pub fn equip(&mut self, program: &Program, call: CallViews<'_>, window: View, is_new: bool) {
        let scratch = self.scratch.map_or(View::empty(), |lent| lent.view);
        if is_new || scratch != self.scratch_at {
            self.equip_anew(program, call, window, scratch);
        }
    }

    #[inline(never)]
    fn equip_anew(&mut self, program: &Program, call: CallViews<'_>, window: View, scratch: View) {
        self.scratch_at = scratch;
        self.place_buffers(program, call, window, scratch);
        self.views.clear();
        let (buffers, parts) = (&self.buffers, program.parts.iter());
        self.views.extend(parts.map(|part| match *part {
            Part::Local {
                buffer,
                start,
                bytes,
            } => buffers[buffer.0 as usize].part(start, bytes),
            Part::Mail { .. } => View::empty(),
        }));
    }

    fn place_buffers(
        &mut self,
        program: &Program,
        call: CallViews<'_>,
        window_slot: View,
        scratch: View,
    ) {
        let element = program.dtype.size_bytes();
        let counts = program.counts();
        let (mut window_at, mut scratch_at) = (0usize, 0usize);
        self.buffers.clear();
        self.window_offsets.clear();
        self.shared = View::empty();
        for buffer in &program.prepared.schedule.buffers {
            let mut offset = 0;
            let view = match buffer {
                Buffer::Input => *call.input,
                Buffer::Output => *call.output,
                Buffer::Caller(number) => call.others[*number as usize],
                Buffer::Window(extent) => {
                    let bytes = padded(extent.length_max(&counts), element) as usize;
                    offset = window_at;
                    window_at += bytes;
                    window_slot.part(offset, bytes)
                }
                Buffer::Scratch(extent) | Buffer::Shared(extent) => {
                    let elements = program.scratch_elements(self.buffers.len(), extent);
                    let bytes = padded(elements, element) as usize;
                    let view = scratch.part(scratch_at, bytes);
                    scratch_at += bytes;
                    if matches!(buffer, Buffer::Shared(_)) {
                        self.shared = view;
                    }
                    view
                }
            };
            self.buffers.push(view);
            self.window_offsets.push(offset);
        }
    }

    /// The view with this number.
    #[inline(always)]
    pub fn view(&self, number: u32) -> &View {
        &self.views[number as usize]
    }

    /// The sources and the destinations of a step.
    #[inline]
    pub fn operands(&self, compute: &Compute) -> (&[View], &[View]) {
        let views = &self.views[compute.first as usize..compute.end as usize];
        views.split_at((compute.middle - compute.first) as usize)
    }

    /// Finds where the payloads of signals lie that a step reads. The signals have arrived.
    #[inline]
    pub fn find_mail(
        &mut self,
        program: &Program,
        compute: &Compute,
        links: &Links,
        sequence: u64,
    ) {
        let sources = compute.first as usize..compute.middle as usize;
        let parts = &program.parts[sources.clone()];
        for (view, part) in self.views[sources].iter_mut().zip(parts) {
            if let Part::Mail { peer, lane, bytes } = *part {
                *view = links.mail(peer, sequence, lane).part(0, bytes);
            }
        }
    }

    /// The memory of elements `start ..` of a buffer, and how many are contiguous there, at most
    /// `want`.
    #[inline(always)]
    pub fn locate(
        &self,
        program: &Program,
        buffer: BufferId,
        (start, want): (u64, u64),
    ) -> (View, u64) {
        let (position, got) = program.position_of(buffer, start, want);
        let (position, bytes) = (position << program.shift, got << program.shift);
        let view = self.buffers[buffer.0 as usize];
        (view.part(position as usize, bytes as usize), got)
    }

    /// A range of a peer's copy of a window, given that peer's window slot.
    pub fn in_window(&self, slot: View, buffer: BufferId, (start, bytes): (usize, usize)) -> View {
        slot.part(self.window_offsets[buffer.0 as usize] + start, bytes)
    }

    /// Whether some of the caller's memory is not registered. A transport may let peers read such
    /// memory where it lies.
    pub fn is_unregistered(&self) -> bool {
        let is_bare = |view: &View| !view.is_empty() && !view.key().is_some();
        self.buffers.iter().any(is_bare)
    }
}
