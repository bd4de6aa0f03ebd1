//! What leaves: ordered frames, and the pieces of long transfers, which every rail with room takes
//! in turn.

use super::{Loss, Peer};
use crate::kernel;
use crate::memory::{View, abort_on_unwind, view_of_slice};
use crate::transport::tcp::rail::{OutChunk, Piece};
use crate::transport::tcp::shared::Shared;
use crate::transport::tcp::stream::TELL_STREAM_BYTES;
use crate::transport::tcp::transfers::{Ended, Kind};
use crate::transport::{
    Atomic, Outcome, PostError, RemoteRange, TAG_CLASSES, UNAWAITED, URGENT_CLASS, tag_class,
};
use crate::wire::{Frame, FrameHeader, HEADER_BYTES};
use rustix::io::Errno;

/// Posts wait while this much of the stream is not acknowledged.
const STREAM_BYTES: usize = 256 * 1024;
/// Control frames go on top of that. Each answers something of the peer, so with more than this it
/// sends and reads nothing.
const STREAM_BYTES_MAX: usize = 8 << 20;
/// System calls per rail and look, so that one look takes a bounded time.
const SENDS_MAX: usize = 8;
/// A rank tells what has come at the latest after this many chunks of a rail.
const TELL_CHUNKS: u64 = 4;

const _: () = assert!(STREAM_BYTES >= 4 * TELL_STREAM_BYTES as usize);

impl Peer {
    /// Appends a frame to the stream.
    fn push(&mut self, shared: &Shared, frame: Frame, payload: View, is_urgent: bool) {
        let header = FrameHeader {
            position: self.stream.end(),
            acknowledged: self.received.tell(),
            matched: self.credits.tell(),
            is_urgent,
            crc: shared.limits.has_crc.then_some(0),
            frame,
        };
        let bytes = self.stream.push(&header.emit(), payload);
        if shared.limits.has_crc {
            let crc = crc32c::crc32c(bytes);
            bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        }
    }

    /// Appends a frame without payload.
    pub(super) fn push_control(&mut self, shared: &Shared, frame: Frame) {
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
        self.credits.check(class)?;
        // Urgent messages are few and short: there is room whatever else waits.
        if class != URGENT_CLASS {
            self.has_room()?;
            if self.rails.is_empty() && self.reach.lacks_first() {
                // A short message would end now, and wait for a connection that only polls make.
                return Err(PostError::WouldBlock);
            }
        }
        let total = source.len_bytes() as u64;
        if total <= u64::from(shared.limits.small_bytes_max) {
            let bytes = total as u32;
            self.push(shared, Frame::Eager { tag, header, bytes }, source, false);
            shared
                .ends
                .complete(self.rank, token, Outcome::Done, total, 0);
        } else {
            self.check_transfers()?;
            let is_eager = self.eager.backlog() + total <= shared.eager_bytes;
            let transfer = self.transfers.add(Kind::Message, source, Some(token));
            let announce = Frame::Announce {
                tag,
                header,
                total,
                transfer,
                is_eager,
            };
            self.push_control(shared, announce);
            if is_eager {
                self.eager.note_sent(total);
                self.transfers.start(transfer);
            }
        }
        self.credits.note_sent(class);
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
            self.push(shared, frame, source, token != UNAWAITED);
            let place = (position, self.stream.end());
            self.short_puts.push(place, token, bytes as u64);
        } else {
            let base = to.offset;
            let transfer = (self.transfers).add(Kind::Put { key, base }, source, Some(token));
            self.transfers.start(transfer);
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
        let id = self.gets.begin(destination, token)?;
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
        let id = self.gets.begin(result, token)?;
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
        self.transfers.check()?;
        self.short_puts.check()
    }

    /// Answers a get.
    pub(super) fn handle_get(
        &mut self,
        id: u64,
        from: RemoteRange,
        total: u64,
        shared: &mut Shared,
    ) -> Result<(), Loss> {
        let found = shared.regions.range(from, total);
        if total <= u64::from(shared.limits.small_bytes_max) {
            self.push_answer(id, found, shared);
        } else if let (Some(view), region) = (found, shared.regions.get(from.key).cloned()) {
            self.transfers.answer(id, view, region)?;
        } else {
            self.push_answer(id, None, shared);
        }
        Ok(())
    }

    /// The answer to a get in one frame; `None`: there is no such range.
    fn push_answer(&mut self, id: u64, found: Option<View>, shared: &Shared) {
        let view = found.unwrap_or(View::empty());
        let frame = Frame::Got {
            id,
            is_good: found.is_some(),
            bytes: view.len_bytes() as u32,
        };
        self.push(shared, frame, view, false);
    }

    /// Changes a word of this rank as the peer asks, and answers with what was there.
    pub(super) fn handle_change(
        &mut self,
        id: u64,
        word: RemoteRange,
        what: Atomic,
        shared: &mut Shared,
    ) {
        match shared.regions.change(word, what) {
            Some(before) => {
                let before = before.to_ne_bytes();
                let view = view_of_slice(&before);
                abort_on_unwind(|| self.push_answer(id, Some(view), shared));
            }
            None => self.push_answer(id, None, shared),
        }
    }

    /// Wakes the peer, unless something on its way does.
    pub fn notify(&mut self, shared: &Shared) {
        if self.stream.end() == self.notified && self.has_room().is_ok() {
            self.push_control(shared, Frame::Nothing);
        }
        self.notified = self.stream.end();
    }

    /// Tells the peer what has come and that nothing follows, with this word.
    pub fn say_goodbye(&mut self, word: u64, shared: &Shared) {
        self.settle(shared, true);
        self.push_control(shared, Frame::Goodbye { word });
    }

    /// Whether the peer does not know yet of something that has come.
    pub fn owes(&self) -> bool {
        let mut rails = self.rails.iter();
        rails.any(|rail| rail.chunks_received > rail.chunks_told)
            || (0..TAG_CLASSES).any(|class| self.credits.has_untold(class))
            || self.eager.untold() > 0
            || self.received.is_due(true)
    }

    /// Tells the peer what has come, if that is enough or it waits for it; `is_time`: in any case.
    pub fn settle(&mut self, shared: &Shared, is_time: bool) {
        for at in 0..self.rails.len() {
            let rail = &mut self.rails[at];
            let untold = rail.chunks_received - rail.chunks_told;
            if untold >= TELL_CHUNKS || (untold > 0 && (rail.is_owed || is_time)) {
                (rail.is_owed, rail.chunks_told) = (false, rail.chunks_received);
                let (rail, chunks) = (rail.id, rail.chunks_received);
                self.push_ack(shared, rail, chunks);
            }
        }
        let is_match_due =
            |class| self.credits.is_due(class) || (is_time && self.credits.has_untold(class));
        // A quarter of what may come eagerly is told at once, less when it is time.
        let untold = self.eager.untold();
        let are_bytes_due = untold > 0 && (is_time || untold >= shared.eager_bytes / 4);
        if self.received.is_due(is_time) || are_bytes_due || (0..TAG_CLASSES).any(is_match_due) {
            self.push_ack(shared, 0, 0);
        }
    }

    fn push_ack(&mut self, shared: &Shared, rail: u64, chunks: u64) {
        self.received.note_acknowledged();
        let ack = Frame::Ack {
            rail,
            chunks,
            matched_bytes: self.eager.tell(),
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
        if let Some(pace) = &mut shared.pace
            && (self.rails.is_empty() || !self.has_output())
        {
            pace.forget(self.rank);
        }
        Ok(())
    }

    /// Hands to the kernel what one rail takes. Errors are left to reading, which first takes what
    /// the rail has brought, and then finds its end.
    fn pump_rail(&mut self, at: usize, shared: &mut Shared) {
        let mut most = usize::MAX;
        for _ in 0..SENDS_MAX {
            let is_lead = self.rails.is_lead(at);
            if self.rails[at].chunk.is_none() && self.transfers.has_output() {
                self.rails[at].chunk = self.take_chunk(at, shared);
            }
            let rail = &self.rails[at];
            let ordered = match is_lead && !rail.is_inside_chunk() {
                true => self.stream.unsent(),
                false => &[],
            };
            if ordered.is_empty() && rail.chunk.is_none() && !rail.holds_sealed() {
                self.rails[at].is_blocked = false;
                return;
            }
            if let Some(pace) = &mut shared.pace {
                match pace.allowance(shared.now, self.rank) {
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

    /// The next piece for this rail.
    fn take_chunk(&mut self, at: usize, shared: &mut Shared) -> Option<OutChunk> {
        let chunk_bytes_max = u64::from(shared.limits.chunk_bytes_max);
        let (rails, counts) = (self.rails.len(), &mut shared.counts);
        let cut = (self.transfers).next_piece(rails, chunk_bytes_max, counts)?;
        let mut header = FrameHeader {
            position: 0,
            acknowledged: 0,
            matched: [0; 4],
            is_urgent: cut.is_urgent,
            crc: shared.limits.has_crc.then_some(0),
            frame: cut.frame,
        };
        if shared.limits.has_crc {
            header.crc = Some(kernel::crc32c(header.crc_of_header(), cut.view));
        }
        self.rails[at].unacked.push_back(cut.piece);
        Some(OutChunk {
            header: header.emit(),
            view: cut.view,
            sent: 0,
            copy: None,
        })
    }

    /// The peer has told how many chunks of a rail have come.
    pub(super) fn handle_ack(
        &mut self,
        rail: u64,
        chunks: u64,
        shared: &mut Shared,
    ) -> Result<(), Loss> {
        for piece in self.rails.acknowledge(rail, chunks)? {
            self.note_arrived(piece, shared);
        }
        Ok(())
    }

    /// A piece has come to the peer.
    pub(super) fn note_arrived(&mut self, piece: Piece, shared: &mut Shared) {
        let ended = self.transfers.note_arrived(piece);
        self.complete_transfer(ended, shared);
    }

    /// A transfer is over, if one is.
    pub(super) fn complete_transfer(&mut self, ended: Option<Ended>, shared: &mut Shared) {
        if let Some(ended) = ended
            && let Some(token) = ended.token
        {
            shared
                .ends
                .complete(self.rank, token, ended.outcome, ended.bytes, 0);
        }
    }
}
