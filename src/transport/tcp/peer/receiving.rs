//! What comes: bytes of a rail become frames, and the bytes of chunks go where they belong as they
//! are read.

use super::{Loss, Peer};
use crate::kernel;
use crate::memory::View;
use crate::transport::tcp::rail::{Body, RX_BYTES, Rail};
use crate::transport::tcp::secure;
use crate::transport::tcp::shared::Shared;
use crate::transport::tcp::socket::Target;
use crate::transport::{Atomic, Outcome, RemoteRange};
use crate::wire::{Frame, FrameHeader, HEADER_BYTES};
use rustix::io::Errno;
use std::os::fd::AsFd;

/// System calls per rail and look.
const READS_MAX: usize = 8;
/// Bytes read behind a chunk: the next header and a few short frames. More would mostly be the
/// beginning of the next chunk, which is copied twice then.
const AFTER_BODY_BYTES: usize = 1024;

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
    /// Reads every rail, and answers; whether rails were lost. The error: why the peer has failed.
    #[inline]
    pub fn read_rails(&mut self, shared: &mut Shared) -> Result<bool, String> {
        let mut lost: Vec<(u64, String)> = Vec::new();
        for at in 0..self.rails.len() {
            if self.left.is_some() {
                return Ok(false);
            }
            self.rails[at].look_at_copies(shared);
            match self.receive(at, shared) {
                Ok(()) => {}
                // Another rail may bring the reason: all are read first.
                Err(Loss::Rail(reason)) => lost.push((self.rails[at].id, reason)),
                Err(Loss::Peer(reason)) => return Err(reason),
            }
        }
        let has_lost = !lost.is_empty() || self.rails.has_asked();
        if has_lost {
            self.lose_rails(lost, shared);
            self.answer_dead_rails(shared)?;
        }
        self.settle(shared, false);
        Ok(has_lost)
    }

    /// Reads what a rail has.
    fn receive(&mut self, at: usize, shared: &mut Shared) -> Result<(), Loss> {
        if let Some(poll) = self.rails[at].parked {
            if poll == shared.polls {
                return Ok(());
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
            self.handle_received(at, received, shared)?;
            if received < wanted && self.rails[at].is_drained() {
                break;
            }
        }
        Ok(())
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
        // The next header comes behind a whole body only, and may be followed by a body again.
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
            } => (self.incoming.place(transfer, total)?, offset, bytes),
            Frame::PutChunk {
                key,
                base,
                total,
                offset,
                bytes,
                ..
            } => {
                let range = RemoteRange::of(key, base);
                (shared.regions.range(range, total)?, offset, bytes)
            }
            Frame::GetChunk {
                id, offset, bytes, ..
            } => (self.gets.place(id)?, offset, bytes),
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
        // No frame moves this rail: the caller handles losses.
        self.rails[at].rx = rx;
        self.rails[at].rx_start = start + payload;
        handled.map(|()| true)
    }

    /// Whether a chunk without a place stays in the kernel until the next poll: this poll has news,
    /// upon which the caller may post the receive. The second half of an allreduce in place comes
    /// right behind the acknowledgement that makes room for it. Copying 1 MiB twice takes twice as
    /// long.
    fn is_to_park(&self, at: usize, frame: &Frame, shared: &Shared) -> bool {
        let Frame::Chunk { transfer, .. } = *frame else {
            return false;
        };
        self.rails[at].parked.is_none()
            && !shared.ends.is_empty()
            && self.incoming.is_unmatched(transfer)
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
        let expected = self.received.position();
        if header.position != expected {
            // A lead rail that was lost may have brought it already.
            if header.position < expected {
                shared.counts.frames_twice += 1;
                return Ok(());
            }
            return Err(Loss::Peer(format!(
                "it sent a frame at {} of its stream, of which {expected} bytes have come",
                header.position
            )));
        }
        self.handle_frame(header, payload, shared)?;
        let is_acknowledgement = matches!(header.frame, Frame::Ack { .. });
        let bytes = HEADER_BYTES + payload.len();
        self.received
            .note(bytes, header.is_urgent, is_acknowledgement);
        self.handle_credits(header, shared)
    }

    /// What every header says of this rank's own stream and messages.
    fn handle_credits(&mut self, header: &FrameHeader, shared: &mut Shared) -> Result<(), Loss> {
        self.stream.acknowledge(header.acknowledged)?;
        while let Some((token, outcome, bytes)) = self.short_puts.pop_ended(header.acknowledged) {
            shared.ends.complete(self.rank, token, outcome, bytes, 0);
        }
        self.credits.handle_all_told(header.matched);
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
            Frame::Pull { transfer } | Frame::Skip { transfer }
                if self.transfers.is_withdrawn(transfer) =>
            {
                Ok(())
            }
            Frame::Pull { transfer } => Ok(self.transfers.start_asked(transfer)?),
            Frame::Skip { transfer } => {
                let ended = self.transfers.skip(transfer)?;
                self.complete_transfer(ended, shared);
                Ok(())
            }
            Frame::Put { key, offset, bytes } => {
                match (shared.regions).range(RemoteRange::of(key, offset), u64::from(bytes)) {
                    Some(view) => kernel::write(view, 0, payload),
                    None => {
                        let position = header.position;
                        self.push_control(shared, Frame::BadPut { position });
                    }
                }
                Ok(())
            }
            Frame::BadPut { position } => {
                self.short_puts.note_bad(position);
                Ok(())
            }
            Frame::BadTransfer { transfer } => {
                self.transfers.note_bad(transfer);
                Ok(())
            }
            Frame::Get {
                id,
                key,
                offset,
                total,
            } => self.handle_get(id, RemoteRange::of(key, offset), total, shared),
            Frame::Change {
                id,
                key,
                offset,
                compare,
                operand,
            } => {
                let what = Atomic::of_operands(compare, operand);
                self.handle_change(id, RemoteRange::of(key, offset), what, shared);
                Ok(())
            }
            Frame::Got { id, is_good, .. } => self.handle_got(id, is_good, payload, shared),
            Frame::Ack {
                rail,
                chunks,
                matched_bytes,
            } => {
                self.eager.handle_told(matched_bytes)?;
                self.handle_ack(rail, chunks, shared)
            }
            Frame::RailDead { rail } => {
                self.rails.note_asked(rail);
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

    fn handle_got(
        &mut self,
        id: u64,
        is_good: bool,
        payload: &[u8],
        shared: &mut Shared,
    ) -> Result<(), Loss> {
        let asked = self.gets.place(id).map(|place| place.len_bytes());
        let asked = asked.ok_or_else(|| format!("it answers get {id}, which nobody asked"))?;
        let bytes = payload.len();
        if is_good && bytes != asked {
            // The get is kept, so that it is flushed with the peer.
            return Err(format!("it answers a get of {asked} bytes with {bytes}").into());
        }
        let (view, token) = self.gets.end(id).expect("looked at just now");
        let outcome = match is_good {
            true => {
                kernel::write(view, 0, payload);
                Outcome::Done
            }
            false => Outcome::BadKey,
        };
        shared
            .ends
            .complete(self.rank, token, outcome, view.len_bytes() as u64, 0);
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
                let (message, most) = ((transfer, total), shared.eager_bytes);
                if self.incoming.begin_chunk(message, bytes as u64, most)? {
                    shared.counts.chunks_staged += 1;
                    staged = Some(shared.staging.take(bytes));
                }
            }
            Frame::GetChunk { id, total, .. } => {
                let asked = self.gets.place(id).map(|place| place.len_bytes() as u64);
                if asked != Some(total) {
                    let text = format!("it answers get {id} with {total} bytes, not {asked:?}");
                    return Err(text.into());
                }
            }
            Frame::PutChunk {
                transfer,
                key,
                base,
                total,
                ..
            } if (shared.regions.range(RemoteRange::of(key, base), total)).is_none() => {
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

    /// Takes what the buffer already has of the body.
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
                let (message, chunk) = ((transfer, total), (offset, bytes));
                let staging = &mut shared.staging;
                (self.incoming).note_chunk(message, chunk, body.staged, staging)?;
                self.end_if_whole(transfer, shared);
            }
            Frame::GetChunk { id, .. } => {
                if let Some((token, total)) = self.gets.note_part(id, bytes) {
                    shared
                        .ends
                        .complete(self.rank, token, Outcome::Done, total, 0);
                }
            }
            _ => {}
        }
        Ok(())
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
