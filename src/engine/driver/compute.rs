//! Copies and reductions, local and over mapped memory, piece by piece.

use super::Driver;
use crate::engine::crew::{SHARED_BYTES_MIN, Work};
use crate::engine::prepared::Prepared;
use crate::engine::round::Round;
use crate::error::{Error, Result};
use crate::memory::View;
use crate::schedule::{Action, BufferId, Lane, Operand, Range, StepId};
use crate::types::{Finish, Rank, ReduceOp};

/// Largest piece of a copy or reduction that is done at a time, so that arrivals are looked at in between:
/// about 100 us at 10 GB/s.
const PIECE_BYTES: usize = 1 << 20;

/// The same where threads share it: to wake them must cost little of it, and together they are faster.
const PIECE_BYTES_SHARED: usize = 8 << 20;
const _: () = assert!(PIECE_BYTES_SHARED >= SHARED_BYTES_MIN);

impl Driver {
    pub(super) fn compute(
        &mut self,
        prepared: &Prepared,
        round: &mut Round,
        step: StepId,
    ) -> Result<()> {
        let action = &prepared.schedule.steps[step as usize].action;
        let piece_bytes = match self.crew.threads_max() {
            1 => PIECE_BYTES,
            _ => PIECE_BYTES_SHARED,
        };
        let piece = (piece_bytes / round.dtype.size_bytes()) as u64;
        loop {
            let (from, len) = (round.progress.run(step).done, round.progress.run(step).len);
            if from == len {
                self.finish(prepared, round, step);
                return Ok(());
            }
            let limit = round.progress.limit(prepared, step, &round.counts());
            if from >= limit {
                return Ok(());
            }
            let want = (limit - from).min(piece);
            let Some(got) = self.gather(round, action, from, want)? else {
                round.stalled.push(step);
                return Ok(());
            };
            self.apply(round, action);
            self.moved = true;
            round.progress.advance(prepared, step, from + got);
        }
    }

    /// Fills `sources` and `destinations` with elements `from ..` of the step's ranges: at most `want`, and as
    /// many as are contiguous everywhere. `None`: a peer's memory is not known yet.
    fn gather(
        &mut self,
        round: &mut Round,
        action: &Action,
        from: u64,
        want: u64,
    ) -> Result<Option<u64>> {
        let mut sources = std::mem::take(&mut self.sources);
        let mut destinations = std::mem::take(&mut self.destinations);
        sources.clear();
        destinations.clear();
        let (mut got, mut is_known) = (want, true);
        let gathered = for_each_operand(action, |operand, is_destination| {
            match self.view_of(round, operand, from, got)? {
                Some((view, len)) => {
                    got = got.min(len);
                    if is_destination {
                        &mut destinations
                    } else {
                        &mut sources
                    }
                    .push(view);
                }
                None => is_known = false,
            }
            Ok(())
        });
        let bytes = got as usize * round.dtype.size_bytes();
        for view in sources.iter_mut().chain(&mut destinations) {
            *view = view.part(0, bytes);
        }
        (self.sources, self.destinations) = (sources, destinations);
        gathered.map(|()| is_known.then_some(got))
    }

    fn apply(&mut self, round: &Round, action: &Action) {
        let finish_for = |finish: bool| match round.op {
            ReduceOp::Avg if finish => Finish::Divide(self.links.ranks),
            _ => Finish::None,
        };
        let streamed = self.is_streamed(round);
        let work = match action {
            Action::Copy {
                premultiply: true, ..
            } => Work::Scale {
                dtype: round.dtype,
                factor: round.op.factor().unwrap_or(1.0),
            },
            Action::Copy { .. } | Action::Get { .. } | Action::Put { .. } => {
                Work::Copy { streamed }
            }
            Action::Reduce { finish, .. } | Action::ReduceFrom { finish, .. } => Work::Reduce {
                dtype: round.dtype,
                combine: round.op.combine(),
                finish: finish_for(*finish),
                streamed,
            },
            _ => unreachable!("not a step with elements of its own"),
        };
        self.crew.run(work, &self.sources, &self.destinations);
    }

    /// Whether results are written around the caches: the buffers of all ranks together fill the last one, and what
    /// is written is the result itself, not a window or scratch memory that somebody reads next.
    ///
    /// With 2 ranks and a cache of 32 MiB that made operations of 8 to 128 MiB out of place, and all-gather in place, 1.2
    /// to 2.4 times as fast in most runs (benches/README.md). Reductions in place write what they read and
    /// stay as they are.
    fn is_streamed(&self, round: &Round) -> bool {
        let [input, output] =
            [BufferId::INPUT, BufferId::OUTPUT].map(|id| round.buffers[id.0 as usize]);
        let bytes = match input.overlaps(&output) {
            true => input.len_bytes().max(output.len_bytes()),
            false => input.len_bytes() + output.len_bytes(),
        };
        round.prepared.reaches_buffers
            && bytes.saturating_mul(self.links.ranks as usize) >= self.cache_bytes
    }

    /// Memory of an operand, and how many of the wanted elements are contiguous there.
    fn view_of(
        &mut self,
        round: &mut Round,
        operand: OperandRef<'_>,
        from: u64,
        want: u64,
    ) -> Result<Option<(View, u64)>> {
        let element = round.dtype.size_bytes();
        match operand {
            OperandRef::Local(range) => Ok(Some(round.locate(range, from, want))),
            OperandRef::Peer(peer, range) if peer == self.links.rank => {
                Ok(Some(round.locate(range, from, want)))
            }
            OperandRef::Peer(peer, range) if round.is_window(range.buffer) => {
                let slot = self.links.window_slot(
                    peer,
                    round.sequence().expect("windows belong to collectives"),
                );
                Ok(Some((
                    round.locate_in_window(slot, range, from, want),
                    want,
                )))
            }
            OperandRef::Peer(peer, range) => {
                let Some(buffer) = self.peer_buffer(round, peer, range.buffer)? else {
                    return Ok(None);
                };
                let start = (range.resolve(&round.counts()).0 + from) as usize * element;
                let bytes = want as usize * element;
                if start
                    .checked_add(bytes)
                    .is_none_or(|end| end > buffer.len_bytes())
                {
                    return Err(Error::Malformed(format!(
                        "rank {peer} announced a buffer of {} bytes for {}, which needs {} at {start}",
                        buffer.len_bytes(),
                        round.signature.describe(),
                        bytes
                    )));
                }
                Ok(Some((buffer.part(start, bytes), want)))
            }
            OperandRef::Mail(peer, lane) => {
                let sequence = round.sequence().expect("signals belong to collectives");
                let mail = self.links.mail(peer, sequence, lane);
                Ok(Some((
                    mail.part(from as usize * element, want as usize * element),
                    want,
                )))
            }
        }
    }

    /// A peer's input or output, mapped at its first use.
    fn peer_buffer(
        &mut self,
        round: &mut Round,
        peer: Rank,
        buffer: BufferId,
    ) -> Result<Option<View>> {
        let is_input = buffer == BufferId::INPUT;
        let known = &round.peers[peer as usize];
        if let Some(view) = if is_input { known.input } else { known.output } {
            return Ok(Some(view));
        }
        let sequence = round
            .sequence()
            .expect("mapped buffers belong to collectives");
        let binding = self.links.binding(peer, sequence);
        let (key, offset) = if is_input {
            (binding.input_key, binding.input_offset)
        } else {
            (binding.output_key, binding.output_offset)
        };
        let Some(region) = self.links.transport.mapped(peer, key)? else {
            return Ok(None);
        };
        let offset = usize::try_from(offset)
            .ok()
            .filter(|&o| o <= region.len_bytes())
            .ok_or_else(|| {
                Error::Malformed(format!(
                    "rank {peer} announced offset {offset} in a region of {} bytes",
                    region.len_bytes()
                ))
            })?;
        let view = region.part(offset, region.len_bytes() - offset);
        let known = &mut round.peers[peer as usize];
        *(if is_input {
            &mut known.input
        } else {
            &mut known.output
        }) = Some(view);
        Ok(Some(view))
    }
}

/// Calls `visit(operand, is_destination)` for everything that a copy or a reduction reads, then for what it writes.
fn for_each_operand<'a>(
    action: &'a Action,
    mut visit: impl FnMut(OperandRef<'a>, bool) -> Result<()>,
) -> Result<()> {
    match action {
        Action::Copy {
            source,
            destination,
            ..
        } => {
            visit(OperandRef::Local(source), false)?;
            visit(OperandRef::Local(destination), true)
        }
        Action::Get {
            peer,
            source,
            destination,
        } => {
            visit(OperandRef::Peer(*peer, source), false)?;
            visit(OperandRef::Local(destination), true)
        }
        Action::Put {
            peer,
            source,
            destination,
        } => {
            visit(OperandRef::Local(source), false)?;
            visit(OperandRef::Peer(*peer, destination), true)
        }
        Action::Reduce {
            sources,
            destination,
            ..
        } => {
            sources
                .iter()
                .try_for_each(|source| visit(OperandRef::Local(source), false))?;
            visit(OperandRef::Local(destination), true)
        }
        Action::ReduceFrom {
            sources,
            destinations,
            ..
        } => {
            sources
                .iter()
                .try_for_each(|source| visit(source.into(), false))?;
            destinations
                .iter()
                .try_for_each(|destination| visit(destination.into(), true))
        }
        _ => unreachable!("not a step with elements of its own"),
    }
}

/// An operand without its allocation.
enum OperandRef<'a> {
    Local(&'a Range),
    Peer(Rank, &'a Range),
    Mail(Rank, Lane),
}

impl<'a> From<&'a Operand> for OperandRef<'a> {
    fn from(operand: &'a Operand) -> OperandRef<'a> {
        match operand {
            Operand::Local(range) => OperandRef::Local(range),
            Operand::Peer(peer, range) => OperandRef::Peer(*peer, range),
            Operand::Mail(peer, lane) => OperandRef::Mail(*peer, *lane),
        }
    }
}
