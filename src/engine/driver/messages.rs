//! Sends and receives: chunks, credits, copies of memory that is not registered.

use super::{Driver, Ran};
use crate::engine::pool::Bounced;
use crate::engine::prepared::StepKind;
use crate::engine::program::{Message, What};
use crate::engine::round::{Round, RoundId};
use crate::engine::step_state::NONE;
use crate::engine::tag::{self, Token};
use crate::error::{Error, Result};
use crate::kernel;
use crate::limits::{MESSAGES_PER_PEER, TAGGED_UNMATCHED};
use crate::memory::View;
use crate::schedule::{Action, StepId};
use crate::transport::{Completion, Outcome, PostError};
use crate::types::Rank;
use crate::wait::Activity;

impl Driver {
    /// Posts as many chunks of a message as may be posted now.
    #[inline(never)]
    pub(super) fn post_chunks(&mut self, round: &mut Round, step: StepId) -> Result<Ran> {
        let plan = round.program.prepared.steps[step as usize];
        let per_chunk = round.program.per_chunk;
        let mut limit = 0;
        loop {
            if round.lost.is_some() && round.progress.is_complete(step) {
                return Ok(Ran::Part);
            }
            let run = round.progress.run(step);
            let (len, chunk, chunks_done) = (run.len, run.chunks_posted, run.chunks_done);
            let is_all = chunk == plan.chunks(len, per_chunk);
            if is_all || !run.has_chunk_credit(self.chunks_in_flight) {
                return Ok(Ran::Part);
            }
            let is_send = plan.kind == StepKind::Send;
            if is_send && round.is_tagged() && chunk > 0 && chunks_done == 0 {
                // The first chunk waits at the peer for a receive; the others are sent after that.
                return Ok(Ran::Part);
            }
            let start = u64::from(chunk) * per_chunk;
            let end = (start + per_chunk).min(len);
            if !(round.program).has_room(&round.progress, step, plan.buffer, end) {
                return Ok(Ran::Part);
            }
            if end > limit {
                limit = round.progress.limit(&round.program.prepared, step, end);
                if end > limit {
                    return Ok(Ran::Part);
                }
            }
            let at = round.progress.span(plan.span).start + start;
            let (memory, program) = (&round.memory, &round.program);
            let (view, got) = memory.locate(program, plan.buffer, (at, end - start));
            assert_eq!(got, end - start, "messages are contiguous");
            let (peer, number) = (plan.peer, plan.message);
            let posted = match is_send {
                true => self.send(round, (step, chunk), (peer, number, &view)),
                false => {
                    (self.receive(round, (step, chunk), (peer, number, &view))).map(|()| Ran::Part)
                }
            };
            let ran = match posted {
                Ok(ran) => ran,
                Err(error) => return self.refuse(round, peer, error),
            };
            self.moved = true;
            round.progress.run(step).chunks_posted = chunk + 1;
            let is_last = chunk + 1 == plan.chunks(len, per_chunk);
            let is_noted = if round.is_tagged() {
                chunk == 0
            } else {
                is_last
            };
            if is_send && is_noted {
                self.note_sent(round, peer);
            }
            if ran == Ran::Whole && self.end_chunk(round, step, chunk) {
                return Ok(Ran::Whole);
            }
        }
    }

    /// Notes that a whole message has been posted, or the first chunk of one with a tag. Messages
    /// of pairs are sent one after another, so the next one may be sent now.
    #[inline(always)]
    pub(super) fn note_sent(&mut self, round: &Round, peer: Rank) {
        match round.id {
            RoundId::Collective(_) => {}
            RoundId::Pairwise => self.pair_heads[peer as usize] += 1,
            RoundId::Tagged(_) => self.tagged_heads[peer as usize] += 1,
        }
    }

    /// A post was not accepted: the step is tried again, or it has failed because the peer is gone.
    #[cold]
    pub(super) fn refuse(
        &mut self,
        round: &mut Round,
        peer: Rank,
        error: PostError,
    ) -> Result<Ran> {
        match self.links.refused(peer, error) {
            Ok(()) => Ok(Ran::NotYet),
            Err(error) => self.do_without(round, error).map(|()| Ran::Whole),
        }
    }

    /// A step has failed. If it is a send or receive of a pair whose other side has left, it counts
    /// as done and the rest of its round goes on, because other peers wait for that. Every other
    /// failure is returned.
    #[cold]
    fn do_without(&mut self, round: &mut Round, error: Error) -> Result<()> {
        let Error::Left { rank, .. } = error else {
            return Err(error);
        };
        if round.sequence().is_some() {
            return Err(error);
        }
        round.lost.get_or_insert(rank);
        self.has_work = true;
        Ok(())
    }

    /// Posts the receive of a chunk.
    #[inline(always)]
    pub(super) fn receive(
        &mut self,
        round: &Round,
        (step, chunk): (StepId, u32),
        (peer, number, view): (Rank, u32, &View),
    ) -> std::result::Result<(), PostError> {
        let tag = match round.is_pairwise() {
            false => tag::of_message(round.tag, number, chunk),
            true => tag::pairwise(round.message_number(peer, number, false), chunk),
        };
        let token = round.token.chunk(step, chunk);
        self.links.post_recv(peer, tag, *view, token)
    }

    /// Sends a chunk. [`Ran::Part`]: a completion tells when it has been sent.
    #[inline(always)]
    pub(super) fn send(
        &mut self,
        round: &Round,
        (step, chunk): (StepId, u32),
        (peer, number, view): (Rank, u32, &View),
    ) -> std::result::Result<Ran, PostError> {
        match self.try_send(round, (step, chunk), (peer, number, view)) {
            Err(PostError::PeerFailed) if self.links.has_done(peer, round.sequence()) => {
                Ok(Ran::Whole)
            }
            sent => sent,
        }
    }

    #[inline(always)]
    fn try_send(
        &mut self,
        round: &Round,
        (step, chunk): (StepId, u32),
        (peer, number, view): (Rank, u32, &View),
    ) -> std::result::Result<Ran, PostError> {
        let mut tag = tag::of_message(round.tag, number, chunk);
        if round.order > self.retired {
            tag = match self.turn_of(round, chunk, (peer, number)) {
                Some(tag) => tag,
                // The peer takes nothing any more, so this message never gets its turn.
                None if self.links.gone(peer).is_some() => return Err(PostError::PeerFailed),
                None => return Err(PostError::WouldBlock),
            };
        }
        let header = round.program.signature.0;
        let is_short = view.len_bytes() <= self.inline_bytes;
        if is_short && self.links.inject(peer, (tag, header), *view)? {
            return Ok(Ran::Whole);
        }
        let token = round.token.chunk(step, chunk);
        (self.post_send(peer, (tag, header, token), *view)).map(|()| Ran::Part)
    }

    /// The tag of a message that may have to wait for its turn although there is room; `None`: it
    /// has to wait. Messages of pairs have places of their own and take them in order. Half of the
    /// places of collectives are kept for the oldest one: whatever later ones have sent, the
    /// messages that the peer needs first always find room.
    #[inline(never)]
    fn turn_of(&mut self, round: &Round, chunk: u32, (peer, number): (Rank, u32)) -> Option<u64> {
        if round.is_pairwise() {
            let number = round.message_number(peer, number, true);
            let is_next = number == self.pair_heads[peer as usize];
            return is_next.then(|| tag::pairwise(number, chunk));
        }
        let tag = tag::of_message(round.tag, number, chunk);
        if round.is_tagged() {
            // Messages with tags begin in order. They leave room for the later chunks of those that
            // have begun.
            let head = self.tagged_heads[peer as usize];
            let may_begin = tag::tagged_distance(tag, head) == 0
                && self.links.transport.backlog(peer, tag) < TAGGED_UNMATCHED;
            return (chunk > 0 || may_begin).then_some(tag);
        }
        let is_full = self.links.transport.backlog(peer, tag) >= MESSAGES_PER_PEER / 2;
        (!is_full).then_some(tag)
    }

    /// Posts the send of a chunk, whose end a completion tells. It is not inlined, because most
    /// small messages are injected and do not need it.
    #[inline(never)]
    fn post_send(
        &mut self,
        peer: Rank,
        (tag, header, token): (u64, u64, u64),
        view: View,
    ) -> std::result::Result<(), PostError> {
        let bytes = view.len_bytes();
        let is_reachable =
            bytes <= self.inline_bytes || self.links.transport.sends_in_place(peer, &view);
        match is_reachable {
            true => self.links.post_send(peer, (tag, header), view, token),
            false => self.send_copy(peer, (tag, header, token), view),
        }
    }

    /// Copies a chunk from memory that is not registered into memory that is, and sends the copy.
    #[inline(never)]
    fn send_copy(
        &mut self,
        peer: Rank,
        (tag, header, token): (u64, u64, u64),
        view: View,
    ) -> std::result::Result<(), PostError> {
        let transport = self.links.transport.as_mut();
        let lent = self.pool.lend(view.len_bytes(), transport)?;
        let copy = lent.view.part(0, view.len_bytes());
        self.note(Activity::Posting);
        kernel::copy(view, copy);
        self.note(Activity::Copying);
        match (self.links).post_send(peer, (tag, header), copy, token) {
            Ok(()) => {
                self.bounced.push(Bounced { token, lent });
                Ok(())
            }
            Err(error) => {
                self.pool.give(lent);
                Err(error)
            }
        }
    }

    /// Cancels every receive of a round, because the caller may free the round's memory next.
    pub fn cancel_receives(&mut self, round: &mut Round) {
        let prepared = round.program.prepared.clone();
        for (step, action) in (0..).zip(prepared.schedule.steps.iter().map(|s| &s.action)) {
            let Action::Recv { peer, .. } = action else {
                continue;
            };
            let is_posted = round.is_posted(step);
            for chunk in round.progress.chunks_posted(step).filter(|_| is_posted) {
                let token = round.token.chunk(step, chunk);
                self.links.transport.cancel(*peer, token);
            }
        }
    }

    /// A chunk has been sent or received. The steps that may start now run.
    #[inline(always)]
    pub fn end_message(
        &mut self,
        round: &mut Round,
        (step, chunk): (StepId, u32),
        completion: &Completion,
    ) -> std::result::Result<(), Box<Error>> {
        self.moved = true;
        let (is_receive, view) = match round.program.steps[step as usize] {
            What::Receive(Message { view, .. }) => (true, view),
            What::Send(Message { view, .. }) => (false, view),
            _ => {
                let has_ended = self.complete_chunk(round, (step, chunk), completion)?;
                let next = match has_ended {
                    true => round.end_step(step),
                    false => NONE,
                };
                return self.run_ready(round, next);
            }
        };
        let is_right = match is_receive {
            true => {
                completion.header == round.program.signature.0
                    && completion.bytes == round.memory.view(view).len_bytes() as u64
            }
            false => {
                self.take_back_copy(completion.token);
                true
            }
        };
        let is_done = completion.outcome == Outcome::Done && is_right;
        if !is_done && (is_receive || !self.is_excused(round, completion)) {
            let error = self.wrong_message(round, step, 0, completion);
            self.do_without(round, error)?;
        }
        let next = round.end_step(step);
        self.run_ready(round, next)
    }

    /// A send has ended. If it was sent from a copy, the copy's memory goes back to the pool.
    #[inline]
    fn take_back_copy(&mut self, token: u64) {
        if !self.bounced.is_empty() {
            self.find_copy(token);
        }
    }

    #[inline(never)]
    fn find_copy(&mut self, token: u64) {
        if let Some(index) = self.bounced.iter().position(|b| b.token == token) {
            self.pool.give(self.bounced.swap_remove(index).lent);
        }
    }

    /// One of several chunks of a message has been sent or received; returns whether the whole
    /// message has.
    #[inline(never)]
    fn complete_chunk(
        &mut self,
        round: &mut Round,
        (step, chunk): (StepId, u32),
        completion: &Completion,
    ) -> Result<bool> {
        if round.lost.is_some() && round.progress.is_complete(step) {
            return Ok(false);
        }
        let run = round.progress.run(step);
        let chunk = Token::full_chunk(chunk, run.chunks_done);
        let is_receive = round.program.prepared.steps[step as usize].kind == StepKind::Receive;
        if !is_receive {
            self.take_back_copy(completion.token);
        }
        let is_right = completion.outcome == Outcome::Done
            && (!is_receive || completion.header == round.program.signature.0);
        if !is_right && (is_receive || !self.is_excused(round, completion)) {
            let error = self.wrong_message(round, step, chunk, completion);
            return self.do_without(round, error).map(|()| true);
        }
        if is_receive {
            self.check_length(round, step, chunk, completion)?;
        }
        Ok(self.end_chunk(round, step, chunk))
    }

    /// One of several chunks of a message has ended as it should; returns whether all have.
    fn end_chunk(&mut self, round: &mut Round, step: StepId, chunk: u32) -> bool {
        let plan = &round.program.prepared.steps[step as usize];
        let run = round.progress.run(step);
        let per_chunk = round.program.per_chunk;
        let (completed, len) = (run.complete_chunk(chunk), run.len);
        let (posted, chunks) = (run.chunks_posted, plan.chunks(len, per_chunk));
        if completed == chunks {
            return true;
        }
        let done = (u64::from(completed) * per_chunk).min(len);
        (round.progress).advance(&round.program.prepared, step, done);
        if posted < chunks {
            round.progress.enqueue(step);
        }
        false
    }

    /// Checks the length of a chunk that has arrived.
    fn check_length(
        &self,
        round: &mut Round,
        step: StepId,
        chunk: u32,
        completion: &Completion,
    ) -> Result<()> {
        let (shift, per_chunk) = (round.program.shift, round.program.per_chunk);
        let run = round.progress.run(step);
        let start = u64::from(chunk) * per_chunk;
        match completion.bytes == run.len.saturating_sub(start).min(per_chunk) << shift {
            true => Ok(()),
            false => Err(self.wrong_length(round, step, chunk, completion)),
        }
    }

    /// Whether a flushed send counts as arrived: its receiver has done the operation and has left.
    #[cold]
    fn is_excused(&self, round: &Round, completion: &Completion) -> bool {
        completion.outcome == Outcome::Flushed
            && self.links.has_done(completion.peer, round.sequence())
    }

    /// The error of a message that did not arrive, has another length, or belongs to another
    /// operation.
    #[cold]
    fn wrong_message(
        &self,
        round: &mut Round,
        step: StepId,
        chunk: u32,
        completion: &Completion,
    ) -> Error {
        match completion.outcome {
            Outcome::Done | Outcome::Truncated
                if completion.header != round.program.signature.0 =>
            {
                // A message that is too long may belong to another operation: then that error says
                // more.
                self.mismatch(round, completion.header, completion.peer)
            }
            Outcome::Done | Outcome::Truncated => self.wrong_length(round, step, chunk, completion),
            _ => self.links.peer_failed(completion.peer),
        }
    }

    #[cold]
    fn wrong_length(
        &self,
        round: &Round,
        step: StepId,
        chunk: u32,
        completion: &Completion,
    ) -> Error {
        let element = round.program.dtype.size_bytes() as u64;
        let before = u64::from(chunk) * self.chunk_bytes as u64;
        let len = (round.progress).len_of(&round.program.prepared.steps[step as usize]);
        let (sent, expected) = (before + completion.bytes, len * element);
        // A full chunk may be followed by others.
        let is_more = completion.bytes == self.chunk_bytes as u64;
        Error::Mismatch {
            sequence: round.sequence().unwrap_or(0),
            detail: format!(
                "rank {} sent {sent} bytes{} to rank {}, which expects {expected} (step {step} of {}); make the counts of both equal",
                completion.peer,
                if is_more { " or more" } else { "" },
                self.links.rank,
                round.program.signature.describe(),
            ),
        }
    }
}
