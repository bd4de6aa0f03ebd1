//! What leaves: ordered frames, and the pieces of long transfers, which every rail with room takes
//! in turn.

use super::peer::{Loss, Outgoing, OutgoingKind, Peer, ShortPut};
use super::rail::{OutChunk, Piece, acknowledge};
use super::shared::Shared;
use crate::kernel;
use crate::limits::MESSAGES_PER_PEER;
use crate::memory::{RegionKey, View, abort_on_unwind, view_of_slice_mut};
use crate::transport::{Atomic, Outcome, PostError, RemoteRange, URGENT_CLASS, tag_class};
use crate::wire::{Frame, FrameHeader, HEADER_BYTES};
use rustix::io::Errno;

/// Posts wait while this much of the stream is not acknowledged.
const STREAM_BYTES: usize = 256 * 1024;
/// Control frames go on top of that; each answers something of the peer, so that more means that it
/// takes nothing back.
const STREAM_BYTES_MAX: usize = 8 << 20;
/// Long transfers, short puts and gets under way to one peer.
const TRANSFERS_MAX: usize = 1024;
/// The least piece into which a transfer is cut to occupy several rails.
const PIECE_BYTES_MIN: u64 = 64 * 1024;
/// System calls per rail and look, so that one look takes a bounded time.
const SENDS_MAX: usize = 8;
/// A rank tells what has come at the latest after this many bytes of the stream, chunks of a rail,
/// messages.
const TELL_STREAM_BYTES: u64 = 32 * 1024;
const TELL_CHUNKS: u64 = 4;
const TELL_MATCHES: u16 = MESSAGES_PER_PEER as u16 / 4;
/// Puts as long as a signal are acknowledged in passing: nobody waits for their completion.
const SIGNAL_BYTES: usize = 64;

const _: () = assert!(STREAM_BYTES >= 4 * TELL_STREAM_BYTES as usize);

impl Peer {
    /// Appends a frame to the stream.
    pub fn push(&mut self, shared: &Shared, frame: Frame, payload: View, is_urgent: bool) {
        let header = FrameHeader {
            position: self.stream.end(),
            acknowledged: self.expected,
            matched: self.matched,
            is_urgent,
            crc: shared.limits.has_crc.then_some(0),
            frame,
        };
        self.expected_told = self.expected;
        self.matched_told = self.matched;
        let bytes = self.stream.push(&header.emit(), payload);
        if shared.limits.has_crc {
            let crc = crc32c::crc32c(bytes);
            bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        }
    }

    /// A frame without payload.
    pub fn push_control(&mut self, shared: &Shared, frame: Frame) {
        self.push(shared, frame, View::empty(), false);
    }

    fn has_room(&self) -> Result<(), PostError> {
        match self.stream.len_bytes() >= STREAM_BYTES {
            true => Err(PostError::WouldBlock),
            false => Ok(()),
        }
    }

    pub fn send(
        &mut self,
        (tag, header): (u64, u64),
        source: View,
        token: u64,
        shared: &mut Shared,
    ) -> Result<(), PostError> {
        let class = tag_class(tag);
        if self.backlog(class) >= MESSAGES_PER_PEER as u16 {
            return Err(PostError::WouldBlock);
        }
        // Its places are few and its messages short: there is room whatever else waits.
        if class != URGENT_CLASS {
            self.has_room()?;
        }
        let total = source.len_bytes() as u64;
        if total <= u64::from(shared.limits.small_bytes_max) {
            let bytes = total as u32;
            self.push(shared, Frame::Eager { tag, header, bytes }, source, false);
            shared.complete(self.rank, token, Outcome::Done, total, 0);
        } else {
            self.check_transfers()?;
            let is_eager = self.eager_sent - self.eager_seen + total <= shared.eager_bytes;
            let transfer = self.add_outgoing(OutgoingKind::Message, source, Some(token));
            let announce = Frame::Announce {
                tag,
                header,
                total,
                transfer,
                is_eager,
            };
            self.push_control(shared, announce);
            if is_eager {
                self.eager_sent += total;
                self.waiting.push_back(transfer);
            }
        }
        self.sent[class] = self.sent[class].wrapping_add(1);
        Ok(())
    }

    pub fn put(
        &mut self,
        source: View,
        to: RemoteRange,
        token: u64,
        shared: &mut Shared,
    ) -> Result<(), PostError> {
        self.has_room()?;
        self.check_transfers()?;
        let (key, bytes) = (to.key.0, source.len_bytes());
        if bytes <= shared.limits.small_bytes_max as usize {
            let frame = Frame::Put {
                key,
                offset: to.offset,
                bytes: bytes as u32,
            };
            let position = self.stream.end();
            self.push(shared, frame, source, bytes > SIGNAL_BYTES);
            self.short_puts.push_back(ShortPut {
                position,
                end: self.stream.end(),
                token,
                bytes: bytes as u64,
                is_bad: false,
            });
        } else {
            let base = to.offset;
            let transfer = self.add_outgoing(OutgoingKind::Put { key, base }, source, Some(token));
            self.waiting.push_back(transfer);
        }
        Ok(())
    }

    pub fn get(
        &mut self,
        from: RemoteRange,
        destination: View,
        token: u64,
        shared: &mut Shared,
    ) -> Result<(), PostError> {
        self.has_room()?;
        if self.gets.len() >= TRANSFERS_MAX {
            return Err(PostError::WouldBlock);
        }
        let id = self.next_get;
        self.next_get += 1;
        self.gets.insert(id, (destination, token, 0));
        let frame = Frame::Get {
            id,
            key: from.key.0,
            offset: from.offset,
            total: destination.len_bytes() as u64,
        };
        self.push_control(shared, frame);
        Ok(())
    }

    /// Asks the peer to change a word; its answer is that of a get. The stream brings both exactly
    /// once.
    pub fn change(
        &mut self,
        what: Atomic,
        word: RemoteRange,
        result: View,
        token: u64,
        shared: &mut Shared,
    ) -> Result<(), PostError> {
        self.has_room()?;
        if self.gets.len() >= TRANSFERS_MAX {
            return Err(PostError::WouldBlock);
        }
        let id = self.next_get;
        self.next_get += 1;
        self.gets.insert(id, (result, token, 0));
        let (compare, operand) = what.operands();
        let frame = Frame::Change {
            id,
            key: word.key.0,
            offset: word.offset,
            compare,
            operand,
        };
        self.push_control(shared, frame);
        Ok(())
    }

    fn check_transfers(&self) -> Result<(), PostError> {
        match self.outgoing.len().max(self.short_puts.len()) >= TRANSFERS_MAX {
            true => Err(PostError::WouldBlock),
            false => Ok(()),
        }
    }

    fn add_outgoing(&mut self, kind: OutgoingKind, view: View, token: Option<u64>) -> u64 {
        let transfer = self.next_transfer;
        self.next_transfer += 1;
        let outgoing = Outgoing {
            kind,
            view,
            token,
            next: 0,
            acked: 0,
            is_bad: false,
            region: None,
        };
        self.outgoing.insert(transfer, outgoing);
        transfer
    }

    /// Answers a get.
    pub fn handle_get(
        &mut self,
        id: u64,
        (key, offset, total): (u32, u64, u64),
        shared: &mut Shared,
    ) -> Result<(), Loss> {
        let found = shared.range(key, offset, total);
        let is_short = total <= u64::from(shared.limits.small_bytes_max);
        match found {
            Some(view) if !is_short => {
                // The requester has this many gets at most, so more of their answers are no
                // answers.
                if self.outgoing.len() >= 3 * TRANSFERS_MAX {
                    let text = format!("it has more than {TRANSFERS_MAX} gets under way");
                    return Err(Loss::Peer(text));
                }
                let transfer = self.add_outgoing(OutgoingKind::GetReply { id }, view, None);
                if let Some(outgoing) = self.outgoing.get_mut(&transfer) {
                    outgoing.region = shared.regions.get(&RegionKey(key)).cloned();
                }
                self.waiting.push_back(transfer);
            }
            found => {
                let view = found.unwrap_or(View::empty());
                let frame = Frame::Got {
                    id,
                    is_good: found.is_some(),
                    bytes: view.len_bytes() as u32,
                };
                self.push(shared, frame, view, false);
            }
        }
        Ok(())
    }

    /// Does what a peer asks for to a word of this rank.
    pub fn handle_change(
        &mut self,
        id: u64,
        (key, offset): (u32, u64),
        what: Atomic,
        shared: &mut Shared,
    ) {
        let word = shared.range(key, offset, 8);
        let word = word.filter(|_| offset.is_multiple_of(8));
        let mut before = [0; 8];
        if let Some(word) = word {
            before = what.apply(kernel::word(&word, 0)).to_ne_bytes();
        }
        let frame = Frame::Got {
            id,
            is_good: word.is_some(),
            bytes: if word.is_some() { 8 } else { 0 },
        };
        let bytes = frame.payload_bytes() as usize;
        let view = view_of_slice_mut(&mut before[..bytes]);
        abort_on_unwind(|| self.push(shared, frame, view, false));
    }

    /// The rank sleeps on nothing: wakes the peer, unless something on its way does.
    pub fn notify(&mut self, shared: &Shared) {
        if self.stream.end() == self.notified && self.has_room().is_ok() {
            self.push_control(shared, Frame::Nothing);
        }
        self.notified = self.stream.end();
    }

    /// Tells the peer what has come, if it is time.
    pub fn settle(&mut self, shared: &Shared, is_slow: bool) {
        for at in 0..self.rails.len() {
            let rail = &mut self.rails[at];
            let untold = rail.chunks_received - rail.chunks_told;
            if untold >= TELL_CHUNKS || (untold > 0 && (rail.is_owed || is_slow)) {
                (rail.is_owed, rail.chunks_told) = (false, rail.chunks_received);
                let (rail, chunks) = (rail.id, rail.chunks_received);
                self.push_ack(shared, rail, chunks);
            }
        }
        let is_due = |matched: u16, told: u16| match matched.wrapping_sub(told) {
            0 => false,
            untold => is_slow || untold >= TELL_MATCHES,
        };
        let mut classes = self.matched.iter().zip(self.matched_told);
        let eager_untold = self.eager_matched - self.eager_told;
        if self.owes_soon
            || self.expected - self.expected_told >= TELL_STREAM_BYTES
            || (is_slow && self.owes_later && self.expected > self.expected_told)
            || (eager_untold > 0 && (is_slow || eager_untold >= shared.eager_bytes / 4))
            || classes.any(|(&matched, told)| is_due(matched, told))
        {
            self.push_ack(shared, 0, 0);
        }
    }

    fn push_ack(&mut self, shared: &Shared, rail: u64, chunks: u64) {
        let matched_bytes = self.eager_matched;
        self.eager_told = matched_bytes;
        (self.owes_soon, self.owes_later) = (false, false);
        let ack = Frame::Ack {
            rail,
            chunks,
            matched_bytes,
        };
        self.push_control(shared, ack);
    }

    /// Hands to the kernel what it takes.
    pub fn pump(&mut self, shared: &mut Shared) -> Result<(), String> {
        if self.stream.len_bytes() > STREAM_BYTES_MAX {
            let text = format!("it has not acknowledged {} bytes", self.stream.len_bytes());
            return Err(text);
        }
        for at in 0..self.rails.len() {
            self.pump_rail(at, shared);
        }
        Ok(())
    }

    /// A connection that is broken takes nothing; what it still has to say is read first, and then
    /// its end is found there.
    fn pump_rail(&mut self, at: usize, shared: &mut Shared) {
        let mut most = usize::MAX;
        for _ in 0..SENDS_MAX {
            let is_lead = self.lead == Some(self.rails[at].id);
            if self.rails[at].chunk.is_none() && !(self.waiting.is_empty() && self.again.is_empty())
            {
                self.rails[at].chunk = self.take_chunk(at, shared);
            }
            let rail = &self.rails[at];
            let ordered = match is_lead && !rail.is_inside_chunk() {
                true => self.stream.unsent(),
                false => &[],
            };
            if ordered.is_empty() && rail.chunk.is_none() && !rail.holds_sealed() {
                self.rails[at].is_blocked = false;
                if let Some(pace) = &mut shared.pace {
                    pace.forget(&mut self.is_paced);
                }
                return;
            }
            if let Some(pace) = &mut shared.pace {
                match pace.allowance(shared.now, &mut self.is_paced) {
                    Some(bytes) => most = bytes,
                    None => {
                        // The pace's time wakes this rank, not room in the kernel.
                        self.rails[at].is_blocked = false;
                        return;
                    }
                }
            }
            let ordered_bytes = ordered.len();
            match self.rails[at].send(ordered, most) {
                Ok((sent, is_full)) => {
                    if let Some(pace) = &mut shared.pace {
                        pace.note_sent(shared.now, sent);
                    }
                    let of_stream = sent.min(ordered_bytes);
                    if of_stream > 0 {
                        self.stream.note_sent(of_stream);
                    }
                    let rail = &mut self.rails[at];
                    rail.note_chunk_sent(sent - of_stream);
                    rail.is_blocked = is_full;
                    if is_full {
                        return;
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.rails[at].is_blocked = true;
                    return;
                }
            }
        }
    }

    /// The next piece for this rail: first what a lost one has not delivered.
    fn take_chunk(&mut self, at: usize, shared: &mut Shared) -> Option<OutChunk> {
        let (piece, is_urgent) = match self.again.pop_front() {
            Some(piece) => (piece, true),
            None => self.next_piece(shared)?,
        };
        let outgoing = self.outgoing.get(&piece.transfer)?;
        let (transfer, offset, bytes) = (piece.transfer, piece.offset, piece.bytes);
        let total = outgoing.view.len_bytes() as u64;
        let frame = match outgoing.kind {
            OutgoingKind::Message => Frame::Chunk {
                transfer,
                offset,
                total,
                bytes,
            },
            OutgoingKind::Put { key, base } => Frame::PutChunk {
                transfer,
                key,
                base,
                total,
                offset,
                bytes,
            },
            OutgoingKind::GetReply { id } => Frame::GetChunk {
                id,
                offset,
                total,
                bytes,
            },
        };
        let view = outgoing.view.part(offset as usize, bytes as usize);
        let mut header = FrameHeader {
            position: 0,
            acknowledged: 0,
            matched: [0; 4],
            is_urgent,
            crc: shared.limits.has_crc.then_some(0),
            frame,
        };
        if shared.limits.has_crc {
            header.crc = Some(kernel::crc32c(header.crc_of_header(), view));
        }
        self.rails[at].unacked.push_back(piece);
        Some(OutChunk {
            header: header.emit(),
            view,
            sent: 0,
            copy: None,
        })
    }

    /// Cuts the next piece, and says whether it is among the last of its transfer.
    fn next_piece(&mut self, shared: &mut Shared) -> Option<(Piece, bool)> {
        // A transfer may have ended while it waited.
        let is_left = |o: &Outgoing| o.next < o.view.len_bytes() as u64;
        let transfer = loop {
            let transfer = *self.waiting.front()?;
            match self.outgoing.get(&transfer) {
                Some(outgoing) if is_left(outgoing) => break transfer,
                _ => self.waiting.pop_front(),
            };
        };
        let rails = self.rails.len().max(1) as u64;
        let chunk_bytes = u64::from(shared.limits.chunk_bytes_max);
        let outgoing = self.outgoing.get_mut(&transfer)?;
        let total = outgoing.view.len_bytes() as u64;
        let share = total.div_ceil(rails).max(PIECE_BYTES_MIN);
        let bytes = (total - outgoing.next).min(share.min(chunk_bytes));
        let piece = Piece {
            transfer,
            offset: outgoing.next,
            bytes: bytes as u32,
        };
        outgoing.next += bytes;
        shared.counts.chunks_sent += 1;
        let left = total - outgoing.next;
        if left == 0 {
            self.waiting.pop_front();
        }
        Some((piece, left < rails * bytes))
    }

    /// The peer has told how many chunks of a rail have come.
    pub fn handle_ack(&mut self, rail: u64, chunks: u64, shared: &mut Shared) -> Result<(), Loss> {
        let pieces = if let Some(rail) = self.rails.iter_mut().find(|r| r.id == rail) {
            let sending = usize::from(rail.chunk.is_some());
            acknowledge(&mut rail.unacked, sending, &mut rail.chunks_acked, chunks)
        } else if let Some(lost) = self.lost.iter_mut().find(|l| l.id == rail) {
            acknowledge(&mut lost.unacked, 0, &mut lost.chunks_acked, chunks)
        } else {
            return Ok(());
        };
        for piece in pieces.map_err(Loss::Peer)? {
            self.note_arrived(piece, shared);
        }
        Ok(())
    }

    /// A piece has come to the peer.
    pub fn note_arrived(&mut self, piece: Piece, shared: &mut Shared) {
        let Some(outgoing) = self.outgoing.get_mut(&piece.transfer) else {
            return;
        };
        outgoing.acked += u64::from(piece.bytes);
        if outgoing.acked == outgoing.view.len_bytes() as u64 {
            self.end_outgoing(piece.transfer, shared);
        }
    }

    /// A transfer is over.
    pub fn end_outgoing(&mut self, transfer: u64, shared: &mut Shared) {
        if let Some(outgoing) = self.outgoing.remove(&transfer)
            && let Some(token) = outgoing.token
        {
            let outcome = match outgoing.is_bad {
                true => Outcome::BadKey,
                false => Outcome::Done,
            };
            let bytes = outgoing.view.len_bytes() as u64;
            shared.complete(self.rank, token, outcome, bytes, 0);
        }
    }
}
