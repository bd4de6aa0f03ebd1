//! Copies and reductions, local and over mapped memory, piece by piece.

use super::{Driver, Ran};
use crate::engine::links::Links;
use crate::engine::memory::Memory;
use crate::engine::prepared::Place;
use crate::engine::program::{PIECE_BYTES, Program};
use crate::engine::round::Round;
use crate::engine::streaming::Streaming;
use crate::engine::thread_pool::{SHARED_BYTES_MIN, ThreadPool, Work};
use crate::error::{Error, Result};
use crate::kernel::is_for_streaming;
use crate::memory::View;
use crate::schedule::{BufferId, StepId};
use crate::types::Rank;

/// Takes the place of [`PIECE_BYTES`] where threads share a piece: they are faster together, and
/// waking them must take little of the time of a piece.
const PIECE_BYTES_SHARED: usize = 8 << 20;
const _: () = assert!(PIECE_BYTES_SHARED >= SHARED_BYTES_MIN);

/// The shortest piece that is streamed. A shorter one belongs to an operation that fits a cache, or
/// is the end of a longer one.
const PIECE_BYTES_STREAMED_MIN: usize = 4 << 10;

/// Pieces of a step that run in a row, about 10 ms. Then the engine looks at its transport, however
/// long the step is.
pub(super) const PIECES_MAX: usize = 64;

impl Driver {
    /// Runs a copy or reduction as far as it can go now.
    #[inline(never)]
    pub(super) fn compute(&mut self, round: &mut Round, step: StepId) -> Result<Ran> {
        for _ in 0..PIECES_MAX {
            let run = round.progress.run(step);
            let (from, len) = (run.done, run.len);
            if from == len {
                return Ok(Ran::Whole);
            }
            let limit = (round.progress).limit(&round.program.prepared, step, from + 1);
            if from >= limit {
                return Ok(Ran::Part);
            }
            let Some(got) = self.compute_piece(round, step, (from, limit))? else {
                return Ok(Ran::NotYet);
            };
            self.moved = true;
            (round.progress).advance(&round.program.prepared, step, from + got);
            if let Some(receive) = round.program.waiting_receive(step) {
                round.progress.enqueue(receive);
            }
        }
        Ok(Ran::NotYet)
    }

    /// Processes some of the elements `from .. limit`; returns how many. `None`: this rank does not
    /// know yet where a peer's memory lies, or the peer has taken it back.
    fn compute_piece(
        &mut self,
        round: &mut Round,
        step: StepId,
        (from, limit): (u64, u64),
    ) -> Result<Option<u64>> {
        let piece_bytes = match self.threads.threads_max() {
            1 => PIECE_BYTES,
            _ => PIECE_BYTES_SHARED,
        };
        let piece = (piece_bytes >> round.program.shift) as u64;
        let reaches_buffers = round.program.prepared.reaches_buffers;
        // Nothing is written to the memory of a rank that has taken it back.
        if reaches_buffers && self.has_withdrawn(&round.program, step) {
            return Ok(None);
        }
        let got = self.gather(round, step, from, (limit - from).min(piece))?;
        if got.is_some() {
            self.apply(round, step);
            if reaches_buffers && self.has_withdrawn(&round.program, step) {
                return Ok(None);
            }
        }
        Ok(got)
    }

    /// Whether a peer whose buffers a step reaches has taken them back. Its caller may then have
    /// changed them before this rank read them. The driver asks before a piece counts as done. If
    /// the answer is yes, the step stays where it is until the cause of the failure comes, so no
    /// later step sends on what was computed. (Threads that shared the piece have ended their parts
    /// under a lock, so all their reads came before this question.) Windows belong to no caller and
    /// are not taken back.
    fn has_withdrawn(&self, program: &Program, step: StepId) -> bool {
        let (sources, destinations) = program.prepared.operands_of(step);
        let mut places = sources.iter().chain(destinations);
        places.any(|place| match *place {
            Place::Peer(peer, buffer, _) => {
                !program.is_window(buffer) && self.links.transport.has_withdrawn(peer)
            }
            _ => false,
        })
    }

    /// Fills `sources` and `destinations` with views of elements `from ..` of the step's operands.
    /// Returns how many elements: at most `want`, and only those that are contiguous in every
    /// operand. `None`: this rank does not know yet where a peer's memory lies.
    fn gather(
        &mut self,
        round: &mut Round,
        step: StepId,
        from: u64,
        want: u64,
    ) -> Result<Option<u64>> {
        let sequence = round.sequence();
        let Round {
            program,
            memory,
            progress,
            ..
        } = round;
        let (sources, destinations) = program.prepared.operands_of(step);
        self.sources.clear();
        self.destinations.clear();
        let mut got = want;
        for (places, views) in [
            (sources, &mut self.sources),
            (destinations, &mut self.destinations),
        ] {
            for place in places {
                let view = match *place {
                    Place::Local(buffer, span) => {
                        let start = progress.span(span).start + from;
                        let (view, contiguous) = memory.locate(program, buffer, (start, got));
                        got = contiguous;
                        view
                    }
                    Place::Mail(..) => {
                        unreachable!("payloads are short: steps on them run at once")
                    }
                    Place::Peer(peer, buffer, span) => {
                        let sequence = sequence.expect("mapped buffers belong to collectives");
                        let start = progress.span(span).start + from;
                        let range = (
                            (start << program.shift) as usize,
                            (got << program.shift) as usize,
                        );
                        let of = (peer, buffer, sequence);
                        match at_peer(&mut self.links, (program, memory), of, range)? {
                            Some(view) => view,
                            None => return Ok(None),
                        }
                    }
                };
                views.push(view);
            }
        }
        if got < want {
            let bytes = (got << program.shift) as usize;
            for view in self.sources.iter_mut().chain(&mut self.destinations) {
                *view = view.part(0, bytes);
            }
        }
        Ok(Some(got))
    }

    fn apply(&mut self, round: &Round, step: StepId) {
        let (streamed, program) = (self.is_streamed(round), &round.program);
        let work = program.work_of(program.action(step), self.links.ranks, streamed);
        let work = work.expect("a step with elements of its own");
        let (threads, streaming) = (&mut self.threads, &mut self.streaming);
        run(threads, streaming, work, &self.sources, &self.destinations);
    }

    /// Copies a piece of `bytes_together` bytes, all of which are copied before a rank reads any of
    /// them. It uses threads and streaming stores as a step of a schedule does.
    pub fn copy(&mut self, source: View, destination: View, bytes_together: usize) {
        let ranks = self.links.ranks as usize;
        let streamed = source.len_bytes() >= PIECE_BYTES_STREAMED_MIN
            && bytes_together.saturating_mul(2 * ranks) >= self.cache_bytes;
        let (threads, streaming) = (&mut self.threads, &mut self.streaming);
        let work = Work::Copy { streamed };
        run(threads, streaming, work, &[source], &[destination]);
    }

    /// Whether a step may write its result by streaming stores; a copy then does so only if that is
    /// faster ([`Streaming`]). It may if the buffers of all ranks together fill the last-level
    /// cache and it writes the result itself, not a window or scratch memory that is read next.
    ///
    /// With 2 ranks and a cache of 32 MiB, streaming makes operations of 8 to 128 MiB out of place,
    /// and all-gather in place, 1.2 to 2.4 times as fast in most runs (Zen 4). The kernel does not
    /// stream reductions in place, which write what they have just read.
    fn is_streamed(&self, round: &Round) -> bool {
        // Elsewhere results are read next, by messages or by peers.
        let needs_registered = round.program.prepared.needs_registered;
        if self.sources[0].len_bytes() < PIECE_BYTES_STREAMED_MIN || !needs_registered {
            return false;
        }
        let [input, output] =
            [BufferId::INPUT, BufferId::OUTPUT].map(|id| round.memory.buffers[id.0 as usize]);
        let bytes = match input.overlaps(&output) {
            true => input.len_bytes().max(output.len_bytes()),
            false => input.len_bytes() + output.len_bytes(),
        };
        let bytes = bytes.saturating_mul(self.links.ranks as usize);
        is_for_streaming(bytes, self.cache_bytes)
    }
}

/// Does the work. A copy that may use streaming stores does so if that is faster.
fn run(
    threads: &mut ThreadPool,
    streaming: &mut Streaming,
    work: Work,
    sources: &[View],
    destinations: &[View],
) {
    match work {
        Work::Copy { streamed: true } => streaming.copy(sources[0].len_bytes(), |streamed| {
            threads.run(Work::Copy { streamed }, sources, destinations);
        }),
        _ => threads.run(work, sources, destinations),
    }
}

/// Bytes `start ..` of a peer's buffer; `None`: this rank does not know yet where the buffer lies.
fn at_peer(
    links: &mut Links,
    (program, memory): (&Program, &mut Memory),
    (peer, buffer, sequence): (Rank, BufferId, u64),
    (start, bytes): (usize, usize),
) -> Result<Option<View>> {
    if program.is_window(buffer) {
        let slot = links.window_slot(peer, sequence);
        return Ok(Some(memory.in_window(slot, buffer, (start, bytes))));
    }
    let Some(buffer) = peer_buffer(links, memory, (peer, buffer, sequence))? else {
        return Ok(None);
    };
    let end = start.checked_add(bytes);
    if end.is_none_or(|end| end > buffer.len_bytes()) {
        return Err(Error::Malformed(format!(
            "rank {peer} announced a buffer of {} bytes for {}, which needs {} at {start}",
            buffer.len_bytes(),
            program.signature.describe(),
            bytes
        )));
    }
    Ok(Some(buffer.part(start, bytes)))
}

/// A peer's input or output, or what stands in for them, mapped at its first use; `None`: this rank
/// does not know yet where it lies.
fn peer_buffer(
    links: &mut Links,
    memory: &mut Memory,
    (peer, buffer, sequence): (Rank, BufferId, u64),
) -> Result<Option<View>> {
    let known = &mut memory.peers[peer as usize];
    let is_input = buffer == BufferId::INPUT;
    let known = if is_input {
        &mut known.input
    } else {
        &mut known.output
    };
    if known.is_some() {
        return Ok(*known);
    }
    let binding = links.binding(peer, sequence);
    let (key, offset) = if is_input {
        (binding.input_key, binding.input_offset)
    } else {
        (binding.output_key, binding.output_offset)
    };
    let Some(region) = links.transport.mapped(peer, key)? else {
        return Ok(None);
    };
    let is_inside = |o: &usize| *o <= region.len_bytes();
    let inside = usize::try_from(offset).ok().filter(is_inside);
    let offset = inside.ok_or_else(|| {
        Error::Malformed(format!(
            "rank {peer} announced offset {offset} in a region of {} bytes",
            region.len_bytes()
        ))
    })?;
    *known = Some(region.part(offset, region.len_bytes() - offset));
    Ok(*known)
}
