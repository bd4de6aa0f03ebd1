//! Sends and receives: chunks, credits, copies of memory that is not registered.

use super::Driver;
use crate::engine::plan::{StepKind, StepPlan};
use crate::engine::round::{Bounced, Round, RoundId};
use crate::engine::tag::{self, Token};
use crate::error::{Error, Result};
use crate::limits::MESSAGES_PER_PEER;
use crate::memory::View;
use crate::schedule::{Action, StepId};
use crate::transport::{Completion, Outcome, PostError};
use crate::types::Rank;

/// A chunk to be sent.
struct Post {
    step: StepId,
    chunk: u32,
    peer: Rank,
    tag: u64,
    token: u64,
    view: View,
}

impl Driver {
    /// Posts as many chunks of a message as may be posted now.
    pub(super) fn pump(
        &mut self,
        place: u32,
        round: &mut Round,
        step: StepId,
        plan: &StepPlan,
        is_oldest: bool,
    ) -> Result<()> {
        let per_chunk = self.elements_per_chunk(round);
        let mut limit = 0;
        loop {
            let run = round.progress.run(step);
            let (len, chunk) = (run.len, run.chunks_posted);
            // The length of one chunk says whether there is another, where only the sender knows it.
            let waits_for_length = plan.fills.is_some() && chunk > run.chunks_done;
            let chunks = chunks_of(plan, len, per_chunk);
            if chunk == chunks || !run.has_chunk_credit() || waits_for_length {
                return Ok(());
            }
            let start = (u64::from(chunk) * per_chunk).min(len);
            let end = (start + per_chunk).min(len);
            if end > limit {
                limit = round.progress.limit(&round.prepared, step, end);
                if end > limit {
                    return Ok(());
                }
            }
            let token = Token::Step {
                round: place,
                generation: round.generation,
                step,
                chunk,
            };
            match self.post_chunk(round, plan, token, (start, end - start), is_oldest) {
                Ok(()) => {
                    round.progress.run(step).chunks_posted += 1;
                    round.outstanding += 1;
                    self.moved = true;
                    let is_pairwise_send =
                        plan.kind == StepKind::Send && round.id == RoundId::Pairwise;
                    if is_pairwise_send && chunk + 1 == chunks {
                        self.pair_heads[plan.peer as usize] += 1;
                    }
                }
                Err(PostError::WouldBlock) => {
                    round.stalled.push(step);
                    return Ok(());
                }
                Err(error) => return Err(self.links.post_error(plan.peer, error)),
            }
        }
    }

    /// Posts elements `start .. start + len` of a message, which are one of its chunks.
    #[inline]
    fn post_chunk(
        &mut self,
        round: &mut Round,
        plan: &StepPlan,
        token: Token,
        (start, len): (u64, u64),
        is_oldest: bool,
    ) -> std::result::Result<(), PostError> {
        let Token::Step { step, chunk, .. } = token else {
            unreachable!("chunks have tokens of steps");
        };
        let (peer, is_send) = (plan.peer, plan.kind == StepKind::Send);
        let tag = match round.id {
            RoundId::Collective(sequence) => tag::collective(sequence, plan.message, chunk),
            RoundId::Pairwise => {
                let number = round.message_number(peer, plan.message, is_send);
                if is_send && number != self.pair_heads[peer as usize] {
                    return Err(PostError::WouldBlock);
                }
                tag::pairwise(number, chunk)
            }
        };
        let at = round.progress.span(plan.span).start + start;
        let (view, got) = round.locate_at(plan.buffer, at, len);
        assert_eq!(got, len, "messages are contiguous");
        let token = token.emit();
        if !is_send {
            return self.links.transport.post_recv(peer, tag, view, token);
        }
        let post = Post {
            step,
            chunk,
            peer,
            tag,
            token,
            view,
        };
        self.send_chunk(round, &post, is_oldest)
    }

    #[inline]
    fn send_chunk(
        &mut self,
        round: &mut Round,
        post: &Post,
        is_oldest: bool,
    ) -> std::result::Result<(), PostError> {
        let (view, header) = (post.view, round.signature.0);
        let transport = self.links.transport.as_mut();
        // The second half of a peer's places is kept for the oldest collective: whatever later ones have
        // sent, the messages that the peer needs first always find room. (Messages of pairs have places of
        // their own, and take them in order.)
        let is_later = !is_oldest && round.sequence().is_some();
        if is_later && transport.backlog(post.peer, post.tag) >= MESSAGES_PER_PEER / 2 {
            return Err(PostError::WouldBlock);
        }
        let bytes = view.len_bytes();
        let is_taken = view.key().is_some() || bytes <= self.inline_bytes;
        if is_taken || transport.fetches(post.peer, bytes) {
            return transport.post_send(post.peer, post.tag, header, view, post.token);
        }
        let lent = self
            .pool
            .lend(bytes, transport)
            .map_err(|e| PostError::Invalid(e.to_string()))?;
        let copy = lent.view.part(0, bytes);
        copy.copy_from(view);
        let posted = transport.post_send(post.peer, post.tag, header, copy, post.token);
        let (step, chunk) = (post.step, post.chunk);
        match posted {
            Ok(()) => round.bounced.push(Bounced { step, chunk, lent }),
            Err(_) => self.pool.give(lent),
        }
        posted
    }

    /// Elements of a full chunk. Sizes of elements are powers of two, and a division takes as long as all else here.
    #[inline]
    fn elements_per_chunk(&self, round: &Round) -> u64 {
        (self.chunk_bytes >> round.dtype.size_bytes().trailing_zeros()) as u64
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
        let plan = round.prepared.plan.steps[step as usize];
        let run = *round.progress.run(step);
        let chunk = Token::full_chunk(chunk, run.chunks_done);
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
        let per_chunk = self.elements_per_chunk(round);
        let start = u64::from(chunk) * per_chunk;
        if plan.kind == StepKind::Receive {
            if completion.header != round.signature.0 {
                return Err(self.mismatch(round, completion.header, completion.peer));
            }
            let whole = run.len.saturating_sub(start).min(per_chunk) * element;
            let is_right = match plan.fills {
                // Sizes of elements are powers of two.
                Some(_) => completion.bytes & (element - 1) == 0,
                None => completion.bytes == whole,
            };
            if !is_right {
                return Err(self.wrong_length(round, step, chunk, completion));
            }
        }
        if let Some(slot) = plan.fills
            && completion.bytes < per_chunk * element
        {
            let len = start + completion.bytes / element;
            round.fill(slot, len);
            round.progress.run(step).len = len;
        }
        let run = round.progress.run(step);
        let completed = run.complete_chunk(chunk);
        let (len, posted) = (run.len, run.chunks_posted);
        let chunks = chunks_of(&plan, len, per_chunk);
        self.moved = true;
        if completed == chunks {
            round.progress.process(&round.prepared, step);
            return Ok(());
        }
        let done = (u64::from(completed) * per_chunk).min(len);
        round.progress.advance(step, done);
        if posted < chunks {
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

/// Messages that a step becomes. A length that only one side knows is ended by a chunk that is not full.
#[inline]
fn chunks_of(plan: &StepPlan, len: u64, per_chunk: u64) -> u32 {
    if plan.is_open_ended {
        (len / per_chunk) as u32 + 1
    } else if len <= per_chunk {
        1
    } else {
        len.div_ceil(per_chunk) as u32
    }
}
