//! Sends and receives: chunks, credits, copies of memory that is not registered.

use super::Driver;
use crate::engine::prepared::Prepared;
use crate::engine::round::{Bounced, Round, RoundId};
use crate::engine::tag::{self, Token};
use crate::error::{Error, Result};
use crate::limits::MESSAGES_PER_PEER;
use crate::memory::View;
use crate::schedule::{Action, Extent, Range, SlotId, StepId};
use crate::transport::{Completion, Outcome, PostError};
use crate::types::Rank;

/// A message step, as its two directions have it in common.
pub(super) struct Message<'a> {
    pub peer: Rank,
    pub number: u32,
    pub range: &'a Range,
    pub is_send: bool,
    pub fills: Option<SlotId>,
}

impl Driver {
    pub(super) fn pump(
        &mut self,
        place: u32,
        prepared: &Prepared,
        round: &mut Round,
        step: StepId,
        message: &Message<'_>,
        is_oldest: bool,
    ) -> Result<()> {
        let counts = round.counts();
        let limit = round.progress.limit(prepared, step, &counts);
        let element = round.dtype.size_bytes();
        let per_chunk = (self.chunk_bytes / element) as u64;
        let len = round.progress.run(step).len;
        let chunks = chunks_of(message.range, len, per_chunk);
        loop {
            let run = *round.progress.run(step);
            if run.chunks_posted == chunks || !run.has_chunk_credit() {
                return Ok(());
            }
            if message.fills.is_some() && run.chunks_posted > run.chunks_done {
                return Ok(()); // The length of one chunk says whether there is another.
            }
            let start = (u64::from(run.chunks_posted) * per_chunk).min(len);
            let end = (start + per_chunk).min(len);
            if end > limit {
                return Ok(());
            }
            let (view, got) = round.locate(message.range, start, end - start);
            assert_eq!(got, end - start, "messages are contiguous");
            let tag = match round.id {
                RoundId::Collective(sequence) => {
                    tag::collective(sequence, message.number, run.chunks_posted)
                }
                RoundId::Pairwise => tag::pairwise(
                    round.message_number(message.peer, message.number, message.is_send),
                    run.chunks_posted,
                ),
            };
            let token = Token::Step {
                round: place,
                generation: round.generation,
                step,
                chunk: run.chunks_posted,
            };
            let pair_number = (round.id == RoundId::Pairwise && message.is_send)
                .then(|| round.message_number(message.peer, message.number, true));
            let is_turn = pair_number.is_none_or(|n| n == self.pair_heads[message.peer as usize]);
            let posted = if !is_turn {
                Err(PostError::WouldBlock)
            } else if message.is_send {
                self.send_chunk(
                    round,
                    step,
                    run.chunks_posted,
                    message.peer,
                    tag,
                    view,
                    token,
                    is_oldest,
                )
            } else {
                self.links
                    .transport
                    .post_recv(message.peer, tag, view, token.emit())
            };
            match posted {
                Ok(()) => {
                    round.progress.run(step).chunks_posted += 1;
                    round.outstanding += 1;
                    self.moved = true;
                    if pair_number.is_some() && run.chunks_posted + 1 == chunks {
                        self.pair_heads[message.peer as usize] += 1;
                    }
                }
                Err(PostError::WouldBlock) => {
                    round.stalled.push(step);
                    return Ok(());
                }
                Err(error) => return Err(self.links.post_error(message.peer, error)),
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn send_chunk(
        &mut self,
        round: &mut Round,
        step: StepId,
        chunk: u32,
        peer: Rank,
        tag: u64,
        view: View,
        token: Token,
        is_oldest: bool,
    ) -> std::result::Result<(), PostError> {
        let transport = self.links.transport.as_mut();
        // The second half of a peer's places is kept for the oldest collective: whatever later ones have
        // sent, the messages that the peer needs first always find room. (Messages of pairs have places of
        // their own, and take them in order.)
        let is_later = round.sequence().is_some() && !is_oldest;
        if is_later && transport.backlog(peer, tag) >= MESSAGES_PER_PEER / 2 {
            return Err(PostError::WouldBlock);
        }
        if view.key().is_some() || view.len_bytes() <= transport.capabilities().inline_bytes {
            return transport.post_send(peer, tag, round.signature.0, view, token.emit());
        }
        let lent = self
            .pool
            .lend(view.len_bytes(), transport)
            .map_err(|e| PostError::Invalid(e.to_string()))?;
        let copy = lent.view.part(0, view.len_bytes());
        copy.copy_from(view);
        let posted = transport.post_send(peer, tag, round.signature.0, copy, token.emit());
        match posted {
            Ok(()) => round.bounced.push(Bounced { step, chunk, lent }),
            Err(_) => self.pool.give(lent),
        }
        posted
    }

    /// Takes back every receive of a round, whose memory may end with its caller.
    pub fn cancel_receives(&mut self, place: u32, round: &mut Round) {
        let prepared = round.prepared.clone();
        for (step, action) in (0..).zip(prepared.schedule.steps.iter().map(|s| &s.action)) {
            let Action::Recv { peer, .. } = action else {
                continue;
            };
            let run = round.progress.run(step);
            for chunk in run.chunks_done..run.chunks_posted {
                let token = Token::Step {
                    round: place,
                    generation: round.generation,
                    step,
                    chunk,
                };
                self.links.transport.cancel(*peer, token.emit());
            }
        }
    }

    /// A chunk has been sent or received.
    pub fn handle_completion(
        &mut self,
        round: &mut Round,
        step: StepId,
        chunk: u32,
        completion: &Completion,
    ) -> Result<()> {
        let prepared = round.prepared.clone();
        let chunk = Token::full_chunk(chunk, round.progress.run(step).chunks_done);
        if let Some(lent) = round.take_bounced(step, chunk) {
            self.pool.give(lent);
        }
        match completion.outcome {
            Outcome::Done => {}
            // What does not fit may be part of another operation, which says more.
            Outcome::Truncated if completion.header != round.signature.0 => {
                return Err(self.mismatch(round, completion.header, completion.peer));
            }
            Outcome::Truncated => return Err(self.wrong_length(round, step, chunk, completion)),
            _ => return Err(self.links.peer_failed(completion.peer)),
        }
        let element = round.dtype.size_bytes() as u64;
        let per_chunk = self.chunk_bytes as u64 / element;
        let (range, fills) = match &prepared.schedule.steps[step as usize].action {
            Action::Send { source, .. } => (source, None),
            Action::Recv {
                destination, fills, ..
            } => {
                if completion.header != round.signature.0 {
                    return Err(self.mismatch(round, completion.header, completion.peer));
                }
                let start = u64::from(chunk) * per_chunk;
                let whole =
                    (round.progress.run(step).len.saturating_sub(start)).min(per_chunk) * element;
                if fills.is_none() && completion.bytes != whole
                    || !completion.bytes.is_multiple_of(element)
                {
                    return Err(self.wrong_length(round, step, chunk, completion));
                }
                (destination, *fills)
            }
            _ => unreachable!("only messages complete in chunks"),
        };
        if let Some(slot) = fills
            && completion.bytes < per_chunk * element
        {
            let len = u64::from(chunk) * per_chunk + completion.bytes / element;
            round.slots[slot as usize] = len;
            round.progress.run(step).len = len;
        }
        let run = round.progress.run(step);
        let completed = u64::from(run.complete_chunk(chunk));
        let len = run.len;
        self.moved = true;
        if completed == u64::from(chunks_of(range, len, per_chunk)) {
            round.progress.process(&prepared, step);
        } else {
            round
                .progress
                .advance(&prepared, step, (completed * per_chunk).min(len));
            round.progress.enqueue(step);
        }
        Ok(())
    }

    fn wrong_length(
        &self,
        round: &mut Round,
        step: StepId,
        chunk: u32,
        completion: &Completion,
    ) -> Error {
        let element = round.dtype.size_bytes() as u64;
        let before = u64::from(chunk) * self.chunk_bytes as u64;
        let (sent, expected) = (
            before + completion.bytes,
            round.progress.run(step).len * element,
        );
        // A full chunk may be followed by others.
        let is_more = completion.bytes == self.chunk_bytes as u64;
        Error::Mismatch {
            sequence: round.sequence().unwrap_or(0),
            detail: format!(
                "rank {} sent {sent} bytes{} to rank {}, which expects {expected} (step {step} of {}); make the counts of both equal",
                completion.peer,
                if is_more { " or more" } else { "" },
                self.links.rank,
                round.signature.describe(),
            ),
        }
    }
}

/// Messages that a range becomes. A length that only one side knows is ended by a chunk that is not full.
fn chunks_of(range: &Range, len: u64, per_chunk: u64) -> u32 {
    match range.extent {
        Extent::Blocks { .. } => len.div_ceil(per_chunk).max(1) as u32,
        Extent::Slots { .. } => (len / per_chunk) as u32 + 1,
    }
}
