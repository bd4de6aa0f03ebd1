//! What comes: bytes of a rail become frames, and the bytes of chunks go where they belong as they
//! are read.

use super::peer::{Fate, Incoming, Loss, Outgoing, OutgoingKind, Peer};
use super::rail::{Body, RX_BYTES, Rail};
use super::secure;
use super::shared::Shared;
use super::socket::Target;
use crate::kernel;
use crate::memory::View;
use crate::transport::{Atomic, Outcome};
use crate::wire::{Frame, FrameHeader, HEADER_BYTES};
use rustix::io::Errno;
use std::os::fd::AsFd;

/// System calls per rail and look.
const READS_MAX: usize = 8;
/// Bytes read behind a chunk: the next header and a few short frames. More would mostly be the
/// begin of the next chunk, which is copied twice then.
const AFTER_BODY_BYTES: usize = 1024;
/// What a sender believes of the bytes that wait here may be older than what this rank has told.
const STAGED_SLACK_BYTES: u64 = 1 << 20;

/// Where the rest of a chunk goes.
enum Place {
    /// Where it belongs.
    Here(View),
    /// Into the body's own buffer.
    Staged,
    /// Nowhere.
    Void,
}

impl Peer {
    /// Reads what a rail has; whether anything came.
    pub fn receive(&mut self, at: usize, shared: &mut Shared) -> Result<bool, Loss> {
        let mut has_moved = false;
        if let Some(poll) = self.rails[at].parked {
            if poll == shared.polls {
                return Ok(false);
            }
            self.handle_buffer(at, shared)?;
        }
        for look in 0.. {
            // No descriptor tells of what has been decrypted.
            let is_enough = look >= READS_MAX && !self.rails[at].holds_opened();
            if self.rails[at].parked.is_some() || is_enough {
                break;
            }
            let (received, wanted) = match self.read(at, shared) {
                Ok(read) => read,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(Loss::Rail(self.rails[at].explain(error))),
            };
            if received == 0 {
                return Err(Loss::Rail("the other side closed it".into()));
            }
            has_moved = true;
            self.handle_received(at, received, shared)?;
            if received < wanted && self.rails[at].is_drained() {
                break;
            }
        }
        Ok(has_moved)
    }

    /// One system call: bytes received and asked for.
    fn read(&mut self, at: usize, shared: &mut Shared) -> rustix::io::Result<(usize, usize)> {
        let place = self.place_of_body(at, shared);
        let rail = &mut self.rails[at];
        let Some(body) = &mut rail.body else {
            if rail.rx_start == rail.rx_end {
                (rail.rx_start, rail.rx_end) = (0, 0);
            } else if rail.rx_start > 0 {
                rail.rx.copy_within(rail.rx_start..rail.rx_end, 0);
                (rail.rx_start, rail.rx_end) = (0, rail.rx_end - rail.rx_start);
            }
            let wanted = RX_BYTES - rail.rx_end;
            let (socket, buffer) = (rail.socket.as_fd(), &mut rail.rx[rail.rx_end..]);
            let received = secure::receive_plain(&mut rail.secure, socket, buffer)?;
            return Ok((received, wanted));
        };
        // Whatever the buffer held is part of the body already.
        (rail.rx_start, rail.rx_end) = (0, 0);
        let left = body.header.frame.payload_bytes() as usize - body.done;
        let (target, wanted) = match (place, &mut body.staged) {
            (Place::Here(view), _) => (Target::View(view), left),
            (Place::Staged, Some(staged)) => (Target::Bytes(&mut staged[body.done..]), left),
            _ => {
                let bytes = left.min(shared.void.len());
                (Target::Bytes(&mut shared.void[..bytes]), bytes)
            }
        };
        // Only a whole body is followed by the next header, and what comes after that may be a body
        // again.
        let buffer = match wanted == left {
            true => &mut rail.rx[..AFTER_BODY_BYTES],
            false => &mut [],
        };
        let asked = wanted + buffer.len();
        let received = secure::receive(&mut rail.secure, rail.socket.as_fd(), target, buffer)?;
        Ok((received, asked))
    }

    /// Where what is left of the body belongs now: it may have been cancelled, or deregistered,
    /// since it began.
    fn place_of_body(&mut self, at: usize, shared: &Shared) -> Place {
        let Some(body) = &self.rails[at].body else {
            return Place::Void;
        };
        if body.staged.is_some() {
            return Place::Staged;
        }
        let left = |view: View| view.part(body.done, view.len_bytes() - body.done);
        self.memory_of(&body.header.frame, shared)
            .map_or(Place::Void, |view| Place::Here(left(view)))
    }

    /// The memory that a chunk is for, if there is any.
    fn memory_of(&self, frame: &Frame, shared: &Shared) -> Option<View> {
        let (view, offset, bytes) = match *frame {
            Frame::Chunk {
                transfer,
                offset,
                total,
                bytes,
            } => match self.incoming.get(&transfer)? {
                // A peer may end a transfer while a chunk of it comes, and begin another of its
                // number: see `note_chunk`.
                incoming if incoming.total != total => return None,
                Incoming {
                    fate: Fate::Into(view, ..),
                    ..
                } => (*view, offset, bytes),
                _ => return None,
            },
            Frame::PutChunk {
                key,
                base,
                total,
                offset,
                bytes,
                ..
            } => (shared.range(key, base, total)?, offset, bytes),
            Frame::GetChunk {
                id, offset, bytes, ..
            } => (self.gets.get(&id)?.0, offset, bytes),
            _ => return None,
        };
        Some(view.part(offset as usize, bytes as usize))
    }

    /// Handles bytes that have come: first those of the body, then the buffer.
    fn handle_received(
        &mut self,
        at: usize,
        received: usize,
        shared: &mut Shared,
    ) -> Result<(), Loss> {
        let rail = &mut self.rails[at];
        match &mut rail.body {
            None => rail.rx_end += received,
            Some(body) => {
                let left = body.header.frame.payload_bytes() as usize - body.done;
                body.done += received.min(left);
                rail.rx_end = received.saturating_sub(left);
                if received < left {
                    return Ok(());
                }
                self.end_body(at, shared)?;
            }
        }
        self.handle_buffer(at, shared)
    }

    /// Handles every frame of the buffer that is whole.
    fn handle_buffer(&mut self, at: usize, shared: &mut Shared) -> Result<(), Loss> {
        while self.left.is_none() && self.handle_next(at, shared)? {}
        Ok(())
    }

    /// Handles the next frame of the buffer; false: it is not whole.
    fn handle_next(&mut self, at: usize, shared: &mut Shared) -> Result<bool, Loss> {
        let rail = &self.rails[at];
        let bytes = &rail.rx[rail.rx_start..rail.rx_end];
        let Some(head) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Ok(false);
        };
        let header = FrameHeader::parse(head, &shared.limits)
            .map_err(|error| Loss::Peer(format!("it sent {error}")))?;
        let payload = header.frame.payload_bytes() as usize;
        if header.frame.is_chunk() {
            if self.is_to_park(at, &header.frame, shared) {
                self.rails[at].parked = Some(shared.polls);
                return Ok(false);
            }
            self.rails[at].parked = None;
            self.rails[at].rx_start += HEADER_BYTES;
            self.begin_body(at, header, shared)?;
            return Ok(self.rails[at].body.is_none());
        }
        if bytes.len() < HEADER_BYTES + payload {
            return Ok(false);
        }
        // Taken out, so that the frame's bytes can be handed on while the peer changes.
        let rx = std::mem::take(&mut self.rails[at].rx);
        let start = self.rails[at].rx_start + HEADER_BYTES;
        let handled = self.handle_ordered(&header, &rx[start..start + payload], shared);
        // Whatever the frame said, this rail is where it was: losses are handled by the caller.
        self.rails[at].rx = rx;
        self.rails[at].rx_start = start + payload;
        handled.map(|()| true)
    }

    /// Whether a chunk without a place stays in the kernel until the next poll: this poll has news,
    /// and anyone who hears them may post the receive. In place, an allreduce's second half comes
    /// right behind the acknowledgement that makes room for it. Copied twice, through memory that
    /// was new each time, 1 MiB took 411 us; now 209.
    fn is_to_park(&self, at: usize, frame: &Frame, shared: &Shared) -> bool {
        let Frame::Chunk { transfer, .. } = *frame else {
            return false;
        };
        let fate = self.incoming.get(&transfer).map(|incoming| incoming.fate);
        self.rails[at].parked.is_none()
            && !shared.ends.is_empty()
            && matches!(fate, None | Some(Fate::Unmatched))
    }

    /// A frame of the peer's stream.
    fn handle_ordered(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
        shared: &mut Shared,
    ) -> Result<(), Loss> {
        if header.crc.is_some() {
            let crc = crc32c::crc32c_append(header.crc_of_header(), payload);
            check_crc(header, crc, self.rank)?;
        }
        if header.position != self.expected {
            // A lead rail that was lost may have left it here already.
            if header.position < self.expected {
                shared.counts.frames_twice += 1;
                return Ok(());
            }
            return Err(Loss::Peer(format!(
                "it sent a frame at {} of its stream, of which {} bytes have come",
                header.position, self.expected
            )));
        }
        self.handle_frame(header, payload, shared)?;
        self.expected += (HEADER_BYTES + payload.len()) as u64;
        self.owes_soon |= header.is_urgent;
        self.owes_later |= !matches!(header.frame, Frame::Ack { .. });
        self.handle_credits(header, shared)
    }

    /// What every header says of this rank's own stream and messages.
    fn handle_credits(&mut self, header: &FrameHeader, shared: &mut Shared) -> Result<(), Loss> {
        self.stream
            .acknowledge(header.acknowledged)
            .map_err(Loss::Peer)?;
        while let Some(put) = self.short_puts.front().copied()
            && put.end <= header.acknowledged
        {
            self.short_puts.pop_front();
            let outcome = match put.is_bad {
                true => Outcome::BadKey,
                false => Outcome::Done,
            };
            shared.complete(self.rank, put.token, outcome, put.bytes, 0);
        }
        for (class, &matched) in header.matched.iter().enumerate() {
            let news = matched.wrapping_sub(self.matched_seen[class]);
            // Counts in frames that are sent once more may be old.
            if news <= self.backlog(class) {
                self.matched_seen[class] = matched;
            }
        }
        Ok(())
    }

    fn handle_frame(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
        shared: &mut Shared,
    ) -> Result<(), Loss> {
        match header.frame {
            Frame::Eager { tag, header, .. } => self.handle_eager(tag, header, payload, shared),
            Frame::Announce {
                tag,
                header,
                total,
                transfer,
                is_eager,
            } => self.handle_announce((tag, header), (transfer, total), is_eager, shared),
            // What was taken back is not sent, and has ended.
            Frame::Pull { transfer } | Frame::Skip { transfer } if self.is_withdrawn(transfer) => {
                Ok(())
            }
            Frame::Pull { transfer } => {
                self.check_unasked(transfer)?;
                self.waiting.push_back(transfer);
                Ok(())
            }
            Frame::Skip { transfer } => {
                self.check_unasked(transfer)?;
                self.end_outgoing(transfer, shared);
                Ok(())
            }
            Frame::Put { key, offset, bytes } => {
                match shared.range(key, offset, u64::from(bytes)) {
                    Some(view) => kernel::write(view, 0, payload),
                    None => {
                        let position = header.position;
                        self.push_control(shared, Frame::BadPut { position });
                    }
                }
                Ok(())
            }
            Frame::BadPut { position } => {
                let mut puts = self.short_puts.iter_mut();
                if let Some(put) = puts.find(|put| put.position == position) {
                    put.is_bad = true;
                }
                Ok(())
            }
            Frame::BadTransfer { transfer } => {
                if let Some(outgoing) = self.outgoing.get_mut(&transfer) {
                    outgoing.is_bad = true;
                }
                Ok(())
            }
            Frame::Get {
                id,
                key,
                offset,
                total,
            } => self.handle_get(id, (key, offset, total), shared),
            Frame::Change {
                id,
                key,
                offset,
                compare,
                operand,
            } => {
                let what = Atomic::of_operands(compare, operand);
                self.handle_change(id, (key, offset), what, shared);
                Ok(())
            }
            Frame::Got { id, is_good, .. } => self.handle_got(id, is_good, payload, shared),
            Frame::Ack {
                rail,
                chunks,
                matched_bytes,
            } => {
                if matched_bytes > self.eager_sent {
                    let text = format!("it has matched {matched_bytes} bytes, more than were sent");
                    return Err(Loss::Peer(text));
                }
                self.eager_seen = self.eager_seen.max(matched_bytes);
                self.handle_ack(rail, chunks, shared)
            }
            Frame::RailDead { rail } => {
                self.asked.push(rail);
                Ok(())
            }
            Frame::RailClosed { rail, chunks } => self.handle_rail_closed(rail, chunks, shared),
            Frame::Nothing => Ok(()),
            Frame::Goodbye { word } => {
                self.left = Some(word);
                Ok(())
            }
            Frame::Chunk { .. } | Frame::PutChunk { .. } | Frame::GetChunk { .. } => {
                unreachable!("chunks are not ordered")
            }
        }
    }

    /// Whether a transfer waits to be asked for: its memory may end once it is over, so nobody else
    /// decides that.
    fn check_unasked(&self, transfer: u64) -> Result<(), Loss> {
        let is_unasked = |o: &Outgoing| matches!(o.kind, OutgoingKind::Message) && o.next == 0;
        let is_known = self.outgoing.get(&transfer).is_some_and(is_unasked);
        if is_known && !self.waiting.contains(&transfer) {
            return Ok(());
        }
        let text = format!("it asks for transfer {transfer}, which does not wait for that");
        Err(Loss::Peer(text))
    }

    fn handle_got(
        &mut self,
        id: u64,
        is_good: bool,
        payload: &[u8],
        shared: &mut Shared,
    ) -> Result<(), Loss> {
        let Some((view, token, _)) = self.gets.remove(&id) else {
            return Err(Loss::Peer(format!(
                "it answers get {id}, which nobody asked"
            )));
        };
        let bytes = view.len_bytes();
        if is_good && payload.len() != bytes {
            // Kept, so that it ends with the peer.
            self.gets.insert(id, (view, token, 0));
            let text = format!("it answers a get of {bytes} bytes with {}", payload.len());
            return Err(Loss::Peer(text));
        }
        let outcome = if is_good {
            kernel::write(view, 0, payload);
            Outcome::Done
        } else {
            Outcome::BadKey
        };
        shared.complete(self.rank, token, outcome, bytes as u64, 0);
        Ok(())
    }

    /// The header of a chunk has come, and perhaps some of its bytes with it.
    fn begin_body(
        &mut self,
        at: usize,
        header: FrameHeader,
        shared: &mut Shared,
    ) -> Result<(), Loss> {
        let bytes = header.frame.payload_bytes() as usize;
        let mut staged = None;
        match header.frame {
            Frame::Chunk {
                transfer, total, ..
            } => {
                let incoming = self.incoming_of(transfer, total)?;
                if matches!(incoming.fate, Fate::Unmatched) {
                    self.staged_bytes += bytes as u64;
                    if self.staged_bytes > shared.eager_bytes + STAGED_SLACK_BYTES {
                        return Err(Loss::Peer(format!(
                            "it sent {} bytes without a receive, {} at most",
                            self.staged_bytes, shared.eager_bytes
                        )));
                    }
                    shared.counts.chunks_staged += 1;
                    staged = Some(shared.staging.lend(bytes));
                }
            }
            Frame::GetChunk { id, total, .. } => {
                let asked = self.gets.get(&id).map(|get| get.0.len_bytes() as u64);
                if asked != Some(total) {
                    let text = format!("it answers get {id} with {total} bytes, not {asked:?}");
                    return Err(Loss::Peer(text));
                }
            }
            Frame::PutChunk {
                transfer,
                key,
                base,
                total,
                ..
            } if shared.range(key, base, total).is_none() => {
                self.push_control(shared, Frame::BadTransfer { transfer });
            }
            _ => {}
        }
        self.rails[at].body = Some(Body {
            header,
            done: 0,
            staged,
        });
        self.take_from_buffer(at, shared)
    }

    /// What of the body is in the buffer already.
    fn take_from_buffer(&mut self, at: usize, shared: &mut Shared) -> Result<(), Loss> {
        let place = self.place_of_body(at, shared);
        let rail = &mut self.rails[at];
        let Rail {
            rx,
            rx_start,
            rx_end,
            body: Some(body),
            ..
        } = rail
        else {
            return Ok(());
        };
        let bytes = body.header.frame.payload_bytes() as usize;
        let here = (*rx_end - *rx_start).min(bytes);
        let source = &rx[*rx_start..*rx_start + here];
        match (place, &mut body.staged) {
            (Place::Here(view), _) => kernel::write(view, 0, source),
            (Place::Staged, Some(staged)) => staged[..here].copy_from_slice(source),
            _ => {}
        }
        body.done = here;
        *rx_start += here;
        match here == bytes {
            true => self.end_body(at, shared),
            false => Ok(()),
        }
    }

    /// A chunk has come whole.
    fn end_body(&mut self, at: usize, shared: &mut Shared) -> Result<(), Loss> {
        let rail = &mut self.rails[at];
        let body = rail.body.take().expect("a body ends");
        rail.chunks_received += 1;
        rail.is_owed |= body.header.is_urgent;
        shared.counts.chunks_received += 1;
        let memory = self.memory_of(&body.header.frame, shared);
        if body.header.crc.is_some() {
            let crc = body.header.crc_of_header();
            match (&body.staged, memory) {
                (Some(staged), _) => {
                    check_crc(&body.header, crc32c::crc32c_append(crc, staged), self.rank)?;
                }
                (None, Some(view)) => {
                    check_crc(&body.header, kernel::crc32c(crc, view), self.rank)?
                }
                (None, None) => {}
            }
        }
        let bytes = u64::from(body.header.frame.payload_bytes());
        match body.header.frame {
            Frame::Chunk {
                transfer,
                offset,
                total,
                ..
            } => {
                self.note_chunk((transfer, total), (offset, bytes), body.staged, shared)?;
                self.end_if_whole(transfer, shared);
            }
            Frame::GetChunk { id, .. } => self.note_got(id, bytes, shared),
            _ => {}
        }
        Ok(())
    }

    /// A chunk of a message has come whole; `staged` are its bytes, if they are not in their place.
    fn note_chunk(
        &mut self,
        (transfer, total): (u64, u64),
        (offset, bytes): (u64, u64),
        staged: Option<Vec<u8>>,
        shared: &mut Shared,
    ) -> Result<(), Loss> {
        let Some(incoming) = self.incoming.get_mut(&transfer) else {
            if let Some(staged) = staged {
                self.staged_bytes -= bytes;
                shared.staging.give(staged);
            }
            return Ok(());
        };
        incoming.check_total(transfer, total)?;
        incoming.arrived += bytes;
        if incoming.arrived > incoming.total {
            let text = format!("it sent parts of transfer {transfer} twice");
            return Err(Loss::Peer(text));
        }
        match (staged, incoming.fate) {
            (None, _) => {}
            (Some(staged), Fate::Unmatched) => incoming.staged.push((offset, staged)),
            (Some(staged), fate) => {
                if let Fate::Into(view, ..) = fate {
                    kernel::write(view, offset as usize, &staged);
                }
                shared.staging.give(staged);
                self.staged_bytes -= bytes;
            }
        }
        Ok(())
    }

    fn note_got(&mut self, id: u64, bytes: u64, shared: &mut Shared) {
        let Some((view, token, arrived)) = self.gets.get_mut(&id) else {
            return;
        };
        *arrived += bytes;
        let total = view.len_bytes() as u64;
        if *arrived == total {
            shared.complete(self.rank, *token, Outcome::Done, total, 0);
            self.gets.remove(&id);
        }
    }
}

fn check_crc(header: &FrameHeader, crc: u32, origin: u32) -> Result<(), Loss> {
    let sent = header.crc.unwrap_or(crc);
    if sent == crc {
        return Ok(());
    }
    Err(Loss::Peer(format!(
        "what rank {origin} sent was changed on its way: {:?} has CRC32C {crc:#010x}, and was sent with {sent:#010x}",
        header.frame
    )))
}
