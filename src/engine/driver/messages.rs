//! Sends and receives: chunks, credits, copies of memory that is not registered.

use super::Driver;
use crate::engine::plan::{StepKind, StepPlan};
use crate::engine::pool::Lent;
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
    #[inline(always)]
    pub(super) fn pump(
        &mut self,
        round: &mut Round,
        step: StepId,
        plan: &StepPlan,
        is_oldest: bool,
    ) -> Result<()> {
        if round.progress.is_whole() {
            let len = round.progress.run(step).len;
            self.post(round, plan, (step, 0), (0, len), is_oldest)?;
            return Ok(());
        }
        self.pump_piecewise(round, step, plan, is_oldest)
    }

    #[inline(never)]
    fn pump_piecewise(
        &mut self,
        round: &mut Round,
        step: StepId,
        plan: &StepPlan,
        is_oldest: bool,
    ) -> Result<()> {
        let per_chunk = round.per_chunk;
        let mut limit = 0;
        loop {
            let run = round.progress.run(step);
            let (len, chunk) = (run.len, run.chunks_posted);
            // The length of one chunk says whether there is another, where only the sender knows it.
            let waits_for_length = plan.fills.is_some() && chunk > run.chunks_done;
            let is_all = chunk == plan.chunks(len, per_chunk);
            if is_all || !run.has_chunk_credit() || waits_for_length {
                return Ok(());
            }
            let start = u64::from(chunk) * per_chunk;
            let end = (start + per_chunk).min(len);
            if end > limit {
                limit = round.progress.limit(&round.prepared, step, end);
                if end > limit {
                    return Ok(());
                }
            }
            if !self.post(round, plan, (step, chunk), (start, end - start), is_oldest)? {
                return Ok(());
            }
        }
    }

    /// Posts one chunk; false: no room now, and the step is looked at again.
    #[inline(always)]
    fn post(
        &mut self,
        round: &mut Round,
        plan: &StepPlan,
        (step, chunk): (StepId, u32),
        (start, len): (u64, u64),
        is_oldest: bool,
    ) -> Result<bool> {
        match self.post_chunk(round, plan, (step, chunk), (start, len), is_oldest) {
            Ok(()) => {
                let run = round.progress.run(step);
                run.chunks_posted = chunk + 1;
                round.outstanding += 1;
                self.moved = true;
                let is_pairwise_send = plan.kind == StepKind::Send && round.id == RoundId::Pairwise;
                if is_pairwise_send && chunk + 1 == plan.chunks(run.len, round.per_chunk) {
                    self.pair_heads[plan.peer as usize] += 1;
                }
                Ok(true)
            }
            Err(PostError::WouldBlock) => {
                round.stalled.push(step);
                Ok(false)
            }
            Err(error) => Err(self.links.post_error(plan.peer, error)),
        }
    }

    /// Posts elements `start .. start + len` of a message, which are one of its chunks.
    #[inline(always)]
    fn post_chunk(
        &mut self,
        round: &mut Round,
        plan: &StepPlan,
        (step, chunk): (StepId, u32),
        (start, len): (u64, u64),
        is_oldest: bool,
    ) -> std::result::Result<(), PostError> {
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
        let token = round.token.chunk(step, chunk);
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

    #[inline(always)]
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
        self.send_copy(round, post)
    }

    /// Sends a chunk from memory that is not registered: from a copy in memory that is.
    #[inline(never)]
    fn send_copy(&mut self, round: &mut Round, post: &Post) -> std::result::Result<(), PostError> {
        let (view, header) = (post.view, round.signature.0);
        let transport = self.links.transport.as_mut();
        let lent = self
            .pool
            .lend(view.len_bytes(), transport)
            .map_err(|e| PostError::Invalid(e.to_string()))?;
        let copy = lent.view.part(0, view.len_bytes());
        copy.copy_from(view);
        let posted = transport.post_send(post.peer, post.tag, header, copy, post.token);
        let (step, chunk) = (post.step, post.chunk);
        match posted {
            Ok(()) => round.bounced.push(Bounced { step, chunk, lent }),
            Err(_) => self.pool.give(lent),
        }
        posted
    }

    /// Takes back every receive of a round, whose memory may end with its caller.
    pub fn cancel_receives(&mut self, round: &mut Round) {
        let prepared = round.prepared.clone();
        for (step, action) in (0..).zip(prepared.schedule.steps.iter().map(|s| &s.action)) {
            let Action::Recv { peer, .. } = action else {
                continue;
            };
            let run = round.progress.run(step);
            for chunk in run.chunks_done..run.chunks_posted {
                let token = round.token.chunk(step, chunk);
                self.links.transport.cancel(*peer, token);
            }
        }
    }

    /// A chunk has been sent or received.
    #[inline(always)]
    pub fn handle_completion(
        &mut self,
        round: &mut Round,
        step: StepId,
        chunk: u32,
        completion: &Completion,
    ) -> Result<()> {
        let plan = &round.prepared.plan.steps[step as usize];
        let is_whole = round.progress.is_whole();
        let run = round.progress.run(step);
        let chunk = Token::full_chunk(chunk, run.chunks_done);
        if !round.bounced.is_empty()
            && let Some(lent) = take_bounced(&mut round.bounced, step, chunk)
        {
            self.pool.give(lent);
        }
        let is_receive = plan.kind == StepKind::Receive;
        if completion.outcome != Outcome::Done
            || is_receive && completion.header != round.signature.0
        {
            return Err(self.wrong_message(round, step, chunk, completion));
        }
        self.moved = true;
        if is_whole {
            if is_receive && completion.bytes != run.len << round.shift {
                return Err(self.wrong_length(round, step, chunk, completion));
            }
            run.chunks_done = 1;
            round.progress.process(&round.prepared, step);
            return Ok(());
        }
        self.complete_chunk(round, step, chunk, completion)
    }

    /// A chunk of several has been sent or received.
    #[inline(never)]
    fn complete_chunk(
        &mut self,
        round: &mut Round,
        step: StepId,
        chunk: u32,
        completion: &Completion,
    ) -> Result<()> {
        if round.prepared.plan.steps[step as usize].kind == StepKind::Receive {
            self.check_length(round, step, chunk, completion)?;
        }
        let plan = &round.prepared.plan.steps[step as usize];
        let run = round.progress.run(step);
        let (completed, len) = (run.complete_chunk(chunk), run.len);
        let (posted, chunks) = (run.chunks_posted, plan.chunks(len, round.per_chunk));
        if completed == chunks {
            round.progress.process(&round.prepared, step);
            return Ok(());
        }
        let done = (u64::from(completed) * round.per_chunk).min(len);
        round.progress.advance(&round.prepared, step, done);
        if posted < chunks {
            round.progress.enqueue(step);
        }
        Ok(())
    }

    /// Checks how long a chunk is that has arrived. One that is not full may say how long the message is.
    fn check_length(
        &self,
        round: &mut Round,
        step: StepId,
        chunk: u32,
        completion: &Completion,
    ) -> Result<()> {
        let (shift, per_chunk) = (round.shift, round.per_chunk);
        let fills = round.prepared.plan.steps[step as usize].fills;
        let run = round.progress.run(step);
        let start = u64::from(chunk) * per_chunk;
        let is_right = match fills {
            Some(_) => completion.bytes & ((1 << shift) - 1) == 0,
            None => completion.bytes == run.len.saturating_sub(start).min(per_chunk) << shift,
        };
        if !is_right {
            return Err(self.wrong_length(round, step, chunk, completion));
        }
        if let Some(slot) = fills
            && completion.bytes < per_chunk << shift
        {
            let len = start + (completion.bytes >> shift);
            run.len = len;
            round.fill(slot, len);
        }
        Ok(())
    }

    /// The error of a message that did not arrive, or belongs to another operation.
    #[cold]
    fn wrong_message(
        &self,
        round: &mut Round,
        step: StepId,
        chunk: u32,
        completion: &Completion,
    ) -> Error {
        match completion.outcome {
            Outcome::Done | Outcome::Truncated if completion.header != round.signature.0 => {
                // What does not fit may be part of another operation, which says more.
                self.mismatch(round, completion.header, completion.peer)
            }
            Outcome::Truncated => self.wrong_length(round, step, chunk, completion),
            _ => self.links.peer_failed(completion.peer),
        }
    }

    #[cold]
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

/// Takes the bounce buffer of a chunk, if it had one.
fn take_bounced(bounced: &mut Vec<Bounced>, step: StepId, chunk: u32) -> Option<Lent> {
    let index = (bounced.iter()).position(|b| b.step == step && b.chunk == chunk)?;
    Some(bounced.swap_remove(index).lent)
}
