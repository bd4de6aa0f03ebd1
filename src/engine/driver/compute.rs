//! Copies and reductions, local and over mapped memory, piece by piece.

use super::Driver;
use crate::engine::prepared::Prepared;
use crate::engine::round::Round;
use crate::error::{Error, Result};
use crate::kernel;
use crate::memory::View;
use crate::schedule::{Action, BufferId, Lane, Operand, Range, StepId};
use crate::types::{Finish, Rank, ReduceOp};

/// Largest piece of a copy or reduction that is done at a time, so that arrivals are looked at in between:
/// about 100 us at 10 GB/s.
const PIECE_BYTES: usize = 1 << 20;

impl Driver {
    pub(super) fn compute(
        &mut self,
        prepared: &Prepared,
        round: &mut Round,
        step: StepId,
    ) -> Result<()> {
        let action = &prepared.schedule.steps[step as usize].action;
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
            let Some(got) = self.compute_piece(round, action, from, limit)? else {
                round.stalled.push(step);
                return Ok(());
            };
            self.moved = true;
            round.progress.advance(prepared, step, from + got);
        }
    }

    /// Processes some of the elements `from .. limit`; returns how many. `None`: a peer's memory is not known yet.
    pub(super) fn compute_piece(
        &mut self,
        round: &mut Round,
        action: &Action,
        from: u64,
        limit: u64,
    ) -> Result<Option<u64>> {
        // Sizes are powers of two, and a division costs as much as the sum of a short vector.
        let piece = (PIECE_BYTES >> round.dtype.size_bytes().trailing_zeros()) as u64;
        let got = self.gather(round, action, from, (limit - from).min(piece))?;
        if got.is_some() {
            self.apply(round, action);
        }
        Ok(got)
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
        let mut got = want;
        let gathered = for_each_operand(action, |operand, is_destination| {
            let Some((view, len)) = self.view_of(round, operand, from, got)? else {
                return Ok(false);
            };
            got = got.min(len);
            let views = if is_destination {
                &mut destinations
            } else {
                &mut sources
            };
            views.push(view);
            Ok(true)
        });
        if got < want {
            let bytes = got as usize * round.dtype.size_bytes();
            for view in sources.iter_mut().chain(&mut destinations) {
                *view = view.part(0, bytes);
            }
        }
        (self.sources, self.destinations) = (sources, destinations);
        gathered.map(|is_known| is_known.then_some(got))
    }

    fn apply(&mut self, round: &Round, action: &Action) {
        let finish_for = |finish: bool| match round.op {
            ReduceOp::Avg if finish => Finish::Divide(self.links.ranks),
            _ => Finish::None,
        };
        match action {
            Action::Copy {
                premultiply: true, ..
            } => {
                let factor = round.op.factor().unwrap_or(1.0);
                kernel::scale(round.dtype, factor, self.sources[0], self.destinations[0]);
            }
            Action::Copy { .. } | Action::Get { .. } | Action::Put { .. } => {
                self.destinations[0].copy_from(self.sources[0])
            }
            Action::Reduce { finish, .. } | Action::ReduceFrom { finish, .. } => {
                kernel::reduce(
                    round.dtype,
                    round.op.combine(),
                    finish_for(*finish),
                    &self.sources,
                    &self.destinations,
                );
            }
            _ => unreachable!("not a step with elements of its own"),
        }
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
                let start = (range.start(&round.counts()) + from) as usize * element;
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

/// Calls `visit(operand, is_destination)` for everything that a copy or a reduction reads, then for what it writes, as
/// long as it says that the operand is known.
#[inline]
fn for_each_operand<'a>(
    action: &'a Action,
    mut visit: impl FnMut(OperandRef<'a>, bool) -> Result<bool>,
) -> Result<bool> {
    let (source, destination) = match action {
        Action::Copy {
            source,
            destination,
            ..
        } => (OperandRef::Local(source), OperandRef::Local(destination)),
        Action::Get {
            peer,
            source,
            destination,
        } => (
            OperandRef::Peer(*peer, source),
            OperandRef::Local(destination),
        ),
        Action::Put {
            peer,
            source,
            destination,
        } => (
            OperandRef::Local(source),
            OperandRef::Peer(*peer, destination),
        ),
        Action::Reduce {
            sources,
            destination,
            ..
        } => {
            for source in sources {
                if !visit(OperandRef::Local(source), false)? {
                    return Ok(false);
                }
            }
            return visit(OperandRef::Local(destination), true);
        }
        Action::ReduceFrom {
            sources,
            destinations,
            ..
        } => {
            for (operands, is_destination) in [(sources, false), (destinations, true)] {
                for operand in operands {
                    if !visit(operand.into(), is_destination)? {
                        return Ok(false);
                    }
                }
            }
            return Ok(true);
        }
        _ => unreachable!("not a step with elements of its own"),
    };
    Ok(visit(source, false)? && visit(destination, true)?)
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
