//! Runs the steps of rounds: the only place where schedule, transport and kernel meet.

use super::control::{Binding, Line};
use super::links::Links;
use super::pool::Pool;
use super::prepared::Prepared;
use super::round::{Bounced, Round, RoundId};
use super::tag::{self, Token};
use crate::error::{Error, Result};
use crate::kernel;
use crate::limits::{MESSAGES_PER_PEER, OPERATION_SLOTS};
use crate::memory::View;
use crate::schedule::{Action, BufferId, Extent, Lane, Operand, Range, SlotId, StepId};
use crate::transport::{Completion, Outcome, PostError};
use crate::types::{Finish, Rank, ReduceOp};

/// Largest piece of a copy or reduction that is done at a time, so that arrivals are looked at in between:
/// about 100 us at 10 GB/s.
const PIECE_BYTES: usize = 1 << 20;

/// Runs steps on links.
pub struct Driver {
    pub links: Links,
    pub pool: Pool,
    pub chunk_bytes: usize,
    /// Something moved since this was last cleared.
    pub moved: bool,
    sources: Vec<View>,
    destinations: Vec<View>,
}

/// A message step, as its two directions have it in common.
struct Message<'a> {
    peer: Rank,
    number: u32,
    range: &'a Range,
    is_send: bool,
    fills: Option<SlotId>,
}

impl Driver {
    pub fn new(links: Links, pool: Pool, chunk_bytes: usize) -> Driver {
        Driver {
            links,
            pool,
            chunk_bytes,
            moved: false,
            sources: Vec::new(),
            destinations: Vec::new(),
        }
    }

    /// Runs everything in the round that can run now. `is_oldest`: no earlier collective is under way.
    pub fn run(&mut self, place: u32, round: &mut Round, is_oldest: bool) -> Result<()> {
        let prepared = round.prepared.clone();
        for step in std::mem::take(&mut round.stalled) {
            round.progress.enqueue(step);
        }
        self.check_waits(&prepared, round)?;
        while let Some(step) = round.progress.pop_ready() {
            self.execute(place, &prepared, round, step, is_oldest)?;
            if round.is_redirected {
                break;
            }
        }
        Ok(())
    }

    fn execute(
        &mut self,
        place: u32,
        prepared: &Prepared,
        round: &mut Round,
        step: StepId,
        is_oldest: bool,
    ) -> Result<()> {
        let action = &prepared.schedule.steps[step as usize].action;
        if !round.progress.run(step).is_started {
            let len = action
                .extent()
                .map_or(0, |range| range.resolve(&round.counts()).1);
            let run = round.progress.run(step);
            run.is_started = true;
            run.len = len;
        }
        match action {
            Action::Nop => self.finish(prepared, round, step),
            Action::Signal {
                peers,
                lane,
                payload,
            } => self.signal(prepared, round, step, peers, *lane, payload.as_ref())?,
            Action::WaitCount { .. } => {
                if self.is_signalled(prepared, round, step)? {
                    self.finish(prepared, round, step);
                } else {
                    round.waiting.push(step);
                }
            }
            Action::Send {
                peer,
                message,
                source,
            } => {
                let message = Message {
                    peer: *peer,
                    number: *message,
                    range: source,
                    is_send: true,
                    fills: None,
                };
                self.pump(place, prepared, round, step, &message, is_oldest)?;
            }
            Action::Recv {
                peer,
                message,
                destination,
                fills,
            } => {
                let message = Message {
                    peer: *peer,
                    number: *message,
                    range: destination,
                    is_send: false,
                    fills: *fills,
                };
                self.pump(place, prepared, round, step, &message, is_oldest)?;
            }
            _ => self.compute(prepared, round, step)?,
        }
        Ok(())
    }

    fn finish(&mut self, prepared: &Prepared, round: &mut Round, step: StepId) {
        self.moved = true;
        round.progress.process(prepared, step);
    }

    // Signals.

    fn signal(
        &mut self,
        prepared: &Prepared,
        round: &mut Round,
        step: StepId,
        peers: &[Rank],
        lane: Lane,
        payload: Option<&Range>,
    ) -> Result<()> {
        let sequence = round.sequence().expect("pairwise rounds have no signals");
        let binding = self.binding_of(round);
        let words = match payload {
            Some(range) => {
                let len = range.resolve(&round.counts()).1;
                Links::payload_words(round.locate(range, 0, len).0)
            }
            None => binding.emit(),
        };
        let line = Line {
            stamp: sequence + 1,
            signature: round.signature,
            payload: words,
        };
        // `done` counts the peers that have been signalled, so that a full queue repeats none.
        for &peer in &peers[round.progress.run(step).done as usize..] {
            let is_sent = (lane != 0 || !prepared.reaches_buffers || self.export(round, peer)?)
                && self.links.signal(peer, sequence, lane, &line)?;
            if !is_sent {
                round.stalled.push(step);
                return Ok(());
            }
            round.progress.run(step).done += 1;
            self.moved = true;
        }
        if lane == 0 && prepared.reaches_buffers {
            self.arrive(round, binding.is_registered);
        }
        self.finish(prepared, round, step);
        Ok(())
    }

    fn binding_of(&self, round: &Round) -> Binding {
        let (input, output) = (round.buffers[0], round.buffers[1]);
        Binding {
            input_key: input.key(),
            output_key: output.key(),
            input_offset: input.offset(),
            output_offset: output.offset(),
            is_registered: [input, output]
                .iter()
                .all(|view| view.is_empty() || view.key().is_some()),
        }
    }

    /// Makes this rank's registered buffers known to a peer; false: no room now.
    fn export(&mut self, round: &Round, peer: Rank) -> Result<bool> {
        for view in &round.buffers[..2] {
            if view.key().is_some() {
                match self.links.transport.export(peer, view.key()) {
                    Ok(()) => {}
                    Err(PostError::WouldBlock) => return Ok(false),
                    Err(error) => return Err(self.links.post_error(peer, error)),
                }
            }
        }
        Ok(true)
    }

    fn check_waits(&mut self, prepared: &Prepared, round: &mut Round) -> Result<()> {
        let mut index = 0;
        while index < round.waiting.len() {
            let step = round.waiting[index];
            if self.is_signalled(prepared, round, step)? {
                round.waiting.swap_remove(index);
                self.finish(prepared, round, step);
            } else {
                index += 1;
            }
        }
        Ok(())
    }

    /// Whether enough signals of a wait have come; the first of the round also brings everyone's registration.
    fn is_signalled(
        &mut self,
        prepared: &Prepared,
        round: &mut Round,
        step: StepId,
    ) -> Result<bool> {
        let Action::WaitCount { peers, lane, count } =
            &prepared.schedule.steps[step as usize].action
        else {
            unreachable!("only waits wait");
        };
        let sequence = round.sequence().expect("pairwise rounds have no signals");
        let mut arrived = 0;
        // Where all are needed, those counted before need not be looked at again.
        let skip = if *count as usize == peers.len() {
            round.progress.run(step).done as usize
        } else {
            0
        };
        for &peer in &peers[skip..] {
            match self.links.arrived(peer, sequence, *lane) {
                Some(signature) if signature == round.signature => arrived += 1,
                Some(signature) => return Err(self.mismatch(round, signature.0, peer)),
                None if skip + arrived < *count as usize && *count as usize == peers.len() => break,
                None => {}
            }
        }
        if *count as usize == peers.len() {
            round.progress.run(step).done = (skip + arrived) as u64;
        }
        let is_signalled = skip + arrived >= *count as usize;
        if is_signalled && prepared.reaches_buffers && *lane == 0 {
            let is_registered = |peer: &Rank| self.links.binding(*peer, sequence).is_registered;
            self.arrive(round, peers.iter().all(is_registered));
        }
        Ok(is_signalled)
    }

    /// A step on lane 0 has completed. If memory that peers would reach is not registered, everyone who takes part
    /// learns it there: its owner by sending the signal, the others by waiting for it.
    fn arrive(&self, round: &mut Round, is_registered: bool) {
        round.arrivals += 1;
        round.is_redirected |= !is_registered;
    }

    fn mismatch(&self, round: &Round, theirs: u64, peer: Rank) -> Error {
        let detail = round.signature.describe_difference(
            self.links.rank,
            super::signature::Signature(theirs),
            peer,
        );
        Error::Mismatch {
            sequence: round.sequence().unwrap_or(0),
            detail,
        }
    }

    // Messages.

    fn pump(
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
            let posted = if message.is_send {
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
    fn send_chunk(
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
        // sent, the messages that the peer needs first always find room.
        if !is_oldest && transport.backlog(peer) >= MESSAGES_PER_PEER / 2 {
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
            Outcome::Truncated => return Err(self.wrong_length(round, step, completion)),
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
                if fills.is_none() && completion.bytes != whole || completion.bytes % element != 0 {
                    return Err(self.wrong_length(round, step, completion));
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

    fn wrong_length(&self, round: &Round, step: StepId, completion: &Completion) -> Error {
        Error::Mismatch {
            sequence: round.sequence().unwrap_or(0),
            detail: format!(
                "rank {} sent {} bytes for step {step} of {} on rank {}, which expects another length; check the counts on both",
                completion.peer,
                completion.bytes,
                round.signature.describe(),
                self.links.rank
            ),
        }
    }

    // Copies and reductions.

    fn compute(&mut self, prepared: &Prepared, round: &mut Round, step: StepId) -> Result<()> {
        let action = &prepared.schedule.steps[step as usize].action;
        let piece = (PIECE_BYTES / round.dtype.size_bytes()) as u64;
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
        self.sources.clear();
        self.destinations.clear();
        let mut got = want;
        let (mut sources, mut destinations) = (
            std::mem::take(&mut self.sources),
            std::mem::take(&mut self.destinations),
        );
        let mut is_known = true;
        {
            let mut place = |driver: &mut Driver,
                             round: &mut Round,
                             operand: OperandRef<'_>,
                             views: &mut Vec<View>|
             -> Result<()> {
                match driver.view_of(round, operand, from, got)? {
                    Some((view, len)) => {
                        got = got.min(len);
                        views.push(view);
                    }
                    None => is_known = false,
                }
                Ok(())
            };
            match action {
                Action::Copy {
                    source,
                    destination,
                    ..
                } => {
                    place(self, round, OperandRef::Local(source), &mut sources)?;
                    place(
                        self,
                        round,
                        OperandRef::Local(destination),
                        &mut destinations,
                    )?;
                }
                Action::Get {
                    peer,
                    source,
                    destination,
                } => {
                    place(self, round, OperandRef::Peer(*peer, source), &mut sources)?;
                    place(
                        self,
                        round,
                        OperandRef::Local(destination),
                        &mut destinations,
                    )?;
                }
                Action::Put {
                    peer,
                    source,
                    destination,
                } => {
                    place(self, round, OperandRef::Local(source), &mut sources)?;
                    place(
                        self,
                        round,
                        OperandRef::Peer(*peer, destination),
                        &mut destinations,
                    )?;
                }
                Action::Reduce {
                    sources: from,
                    destination,
                    ..
                } => {
                    for source in from {
                        place(self, round, OperandRef::Local(source), &mut sources)?;
                    }
                    place(
                        self,
                        round,
                        OperandRef::Local(destination),
                        &mut destinations,
                    )?;
                }
                Action::ReduceFrom {
                    sources: from,
                    destinations: to,
                    ..
                } => {
                    for source in from {
                        place(self, round, OperandRef::from(source), &mut sources)?;
                    }
                    for destination in to {
                        place(
                            self,
                            round,
                            OperandRef::from(destination),
                            &mut destinations,
                        )?;
                    }
                }
                _ => unreachable!("not a step with elements of its own"),
            }
        }
        (self.sources, self.destinations) = (sources, destinations);
        let bytes = got as usize * round.dtype.size_bytes();
        for view in self.sources.iter_mut().chain(&mut self.destinations) {
            *view = view.part(0, bytes);
        }
        Ok(is_known.then_some(got))
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

    /// The peers that a round waits for, for the text of an error: those of waits and of receives.
    pub fn awaited(&self, round: &Round) -> Vec<Rank> {
        let mut ranks = Vec::new();
        for (id, step) in round.prepared.schedule.steps.iter().enumerate() {
            if round.progress.is_complete(id as StepId) {
                continue;
            }
            match &step.action {
                Action::WaitCount { peers, lane, .. }
                    if round.waiting.contains(&(id as StepId)) =>
                {
                    let sequence = round.sequence().unwrap_or(0);
                    ranks.extend(
                        peers
                            .iter()
                            .filter(|&&p| self.links.arrived(p, sequence, *lane).is_none()),
                    );
                }
                Action::Recv { peer, .. } | Action::Send { peer, .. }
                    if round.progress.is_posted(id as StepId) =>
                {
                    ranks.push(*peer)
                }
                _ => {}
            }
        }
        ranks.sort_unstable();
        ranks.dedup();
        ranks
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

/// Messages that a range becomes. A length that only one side knows is ended by a chunk that is not full.
fn chunks_of(range: &Range, len: u64, per_chunk: u64) -> u32 {
    match range.extent {
        Extent::Blocks { .. } => len.div_ceil(per_chunk).max(1) as u32,
        Extent::Slots { .. } => (len / per_chunk) as u32 + 1,
    }
}

const _: () = assert!(OPERATION_SLOTS > 1);
