//! [`Transfers`]: long messages, puts and answers to gets that leave to one peer, in pieces that
//! every rail with room takes in turn.

use super::rail::Piece;
use super::shared::Counts;
use crate::memory::{Region, View};
use crate::transport::pieces::{Pieces, piece_bytes};
use crate::transport::requests::REQUESTS_MAX;
use crate::transport::transfers::{self, TRANSFERS_MAX};
use crate::transport::{Outcome, PostError};
use crate::wire::Frame;
use std::collections::VecDeque;
use std::sync::Arc;

/// What a long transfer is, for the header of its chunks.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Message,
    Put { key: u32, base: u64 },
    GetReply { id: u64 },
}

/// A long transfer that leaves.
#[derive(Debug)]
struct Transfer {
    kind: Kind,
    view: View,
    /// `None`: nobody waits for its end.
    token: Option<u64>,
    /// What is to be sent, for the first time or once more.
    pieces: Pieces,
    acked: u64,
    is_bad: bool,
    /// Kept for the answer to a get, whose memory may be deregistered meanwhile.
    _region: Option<Arc<Region>>,
}

impl Transfer {
    fn bytes(&self) -> u64 {
        self.view.len_bytes() as u64
    }

    fn ended(self) -> Ended {
        Ended {
            token: self.token,
            outcome: match self.is_bad {
                true => Outcome::BadKey,
                false => Outcome::Done,
            },
            bytes: self.bytes(),
        }
    }

    fn frame(&self, piece: &Piece) -> Frame {
        let (total, transfer) = (self.bytes(), piece.transfer);
        let (offset, bytes) = (piece.offset, piece.bytes);
        match self.kind {
            Kind::Message => Frame::Chunk {
                transfer,
                offset,
                total,
                bytes,
            },
            Kind::Put { key, base } => Frame::PutChunk {
                transfer,
                key,
                base,
                total,
                offset,
                bytes,
            },
            Kind::GetReply { id } => Frame::GetChunk {
                id,
                offset,
                total,
                bytes,
            },
        }
    }
}

/// A transfer that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// `None`: nobody waits for its end.
    pub token: Option<u64>,
    pub outcome: Outcome,
    pub bytes: u64,
}

/// A piece that is to be sent, and how.
#[derive(Debug)]
pub struct Cut {
    pub piece: Piece,
    pub frame: Frame,
    pub view: View,
    /// It is among the last pieces of its transfer, whose end waits for their acknowledgement.
    pub is_urgent: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Transfers {
    under_way: transfers::Transfers<Transfer>,
    /// Transfers below this number that are not under way were taken back, or had ended.
    withdrawn_below: u64,
}

impl Transfers {
    pub fn new() -> Transfers {
        Transfers {
            under_way: transfers::Transfers::new(u64::MAX),
            withdrawn_below: 0,
        }
    }

    /// Whether another one may begin.
    pub fn check(&self) -> Result<(), PostError> {
        self.under_way.check()
    }

    /// Whether all have ended.
    pub fn is_empty(&self) -> bool {
        self.under_way.count() == 0
    }

    /// Whether pieces wait for a rail.
    #[inline]
    pub fn has_output(&self) -> bool {
        self.under_way.queued_count() > 0
    }

    /// Notes a transfer, which [`Transfers::start`] lets begin; its number.
    pub fn add(&mut self, kind: Kind, view: View, token: Option<u64>) -> u64 {
        self.insert(kind, view, token, None)
    }

    /// The answer to a get, from a region that is kept until it has left, begins.
    pub fn answer(
        &mut self,
        id: u64,
        view: View,
        region: Option<Arc<Region>>,
    ) -> Result<(), String> {
        // A peer has a bounded number of gets under way, so with more it breaks the rules.
        if self.under_way.count() >= 2 * TRANSFERS_MAX + REQUESTS_MAX as usize {
            return Err(format!("it has more than {REQUESTS_MAX} gets under way"));
        }
        let transfer = self.insert(Kind::GetReply { id }, view, None, region);
        self.start(transfer);
        Ok(())
    }

    fn insert(
        &mut self,
        kind: Kind,
        view: View,
        token: Option<u64>,
        region: Option<Arc<Region>>,
    ) -> u64 {
        self.under_way.insert(Transfer {
            kind,
            view,
            token,
            pieces: Pieces::all(view.len_bytes() as u64),
            acked: 0,
            is_bad: false,
            _region: region,
        })
    }

    /// Its pieces wait for rails from now on.
    pub fn start(&mut self, transfer: u64) {
        self.under_way.enqueue(transfer);
    }

    /// Starts a message that its receiver asks for. A request that is wrong is refused: a message
    /// that has ended may have lost its memory.
    pub fn start_asked(&mut self, transfer: u64) -> Result<(), String> {
        self.check_unasked(transfer)?;
        self.start(transfer);
        Ok(())
    }

    /// Ends a message that its receiver does not want.
    pub fn skip(&mut self, transfer: u64) -> Result<Option<Ended>, String> {
        self.check_unasked(transfer)?;
        Ok(self.end(transfer))
    }

    /// Whether a message waits to be asked for.
    fn check_unasked(&self, transfer: u64) -> Result<(), String> {
        let is_whole =
            |t: &Transfer| matches!(t.kind, Kind::Message) && t.pieces.len_bytes() == t.bytes();
        let is_known = self.under_way.get(transfer).is_some_and(is_whole);
        match is_known && !self.under_way.is_queued(transfer) {
            true => Ok(()),
            false => Err(format!(
                "it asks for transfer {transfer}, which does not wait for that"
            )),
        }
    }

    /// Cuts the next piece for one of this many rails.
    pub fn next_piece(
        &mut self,
        rails: usize,
        chunk_bytes_max: u64,
        counts: &mut Counts,
    ) -> Option<Cut> {
        let number = self.under_way.first()?;
        let transfer = self.under_way.get_mut(number)?;
        let bytes_max = piece_bytes(transfer.bytes(), rails, chunk_bytes_max);
        let (offset, bytes, is_last) = transfer.pieces.peek(bytes_max)?;
        transfer.pieces.take(bytes);
        counts.chunks_sent += 1;
        let piece = Piece {
            transfer: number,
            offset,
            bytes: bytes as u32,
        };
        let cut = Cut {
            piece,
            frame: transfer.frame(&piece),
            view: (transfer.view).part(offset as usize, bytes as usize),
            is_urgent: transfer.pieces.len_bytes() < rails.max(1) as u64 * bytes,
        };
        if is_last {
            self.under_way.pop_first();
        }
        Some(cut)
    }

    /// A piece has come to the peer; what has ended with it.
    pub fn note_arrived(&mut self, piece: Piece) -> Option<Ended> {
        let transfer = self.under_way.get_mut(piece.transfer)?;
        transfer.acked += u64::from(piece.bytes);
        match transfer.acked == transfer.bytes() {
            true => self.end(piece.transfer),
            false => None,
        }
    }

    fn end(&mut self, transfer: u64) -> Option<Ended> {
        self.under_way.remove(transfer).map(Transfer::ended)
    }

    /// The peer has no such region, or the range is not inside.
    pub fn note_bad(&mut self, transfer: u64) {
        if let Some(transfer) = self.under_way.get_mut(transfer) {
            transfer.is_bad = true;
        }
    }

    /// Pieces that were lost with their rail are sent once more, before others; how many. What was
    /// taken back is not.
    pub fn send_again(&mut self, lost: VecDeque<Piece>) -> u64 {
        let mut count = 0;
        for piece in lost.into_iter().rev() {
            if let Some(transfer) = self.under_way.get_mut(piece.transfer) {
                (transfer.pieces).give_back(piece.offset, u64::from(piece.bytes));
                self.under_way.enqueue_first(piece.transfer);
                count += 1;
            }
        }
        count
    }

    /// Whether the transfer of this piece has not ended.
    pub fn is_under_way(&self, piece: &Piece) -> bool {
        self.under_way.get(piece.transfer).is_some()
    }

    /// Takes back every message and put; their tokens. Answers to gets are the peer's.
    pub fn withdraw(&mut self) -> Vec<u64> {
        self.withdrawn_below = self.under_way.next();
        let own = self.under_way.ids(|transfer| transfer.token.is_some());
        let ended = own.into_iter().filter_map(|id| self.under_way.remove(id));
        ended.filter_map(|transfer| transfer.token).collect()
    }

    /// Whether a transfer is over, and may have been taken back.
    pub fn is_withdrawn(&self, transfer: u64) -> bool {
        transfer < self.withdrawn_below && self.under_way.get(transfer).is_none()
    }

    /// The peer is gone: the tokens of all.
    pub fn flush(&mut self) -> impl Iterator<Item = u64> + use<> {
        self.under_way.flush().filter_map(|transfer| transfer.token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u64 = 100_000;

    fn next(transfers: &mut Transfers, rails: usize) -> Option<(u64, u64, u32, bool)> {
        let cut = transfers.next_piece(rails, CHUNK, &mut Counts::default())?;
        let Piece {
            transfer,
            offset,
            bytes,
        } = cut.piece;
        Some((transfer, offset, bytes, cut.is_urgent))
    }

    #[test]
    fn a_transfer_is_cut_for_its_rails_and_ends_when_all_pieces_have_come() {
        let region = Region::private(150_000).unwrap();
        let view = region.view().part(0, 150_000);
        let mut transfers = Transfers::new();
        let put = transfers.add(Kind::Put { key: 1, base: 0 }, view, Some(7));
        transfers.start(put);
        assert_eq!(next(&mut transfers, 2), Some((1, 0, 75_000, true)));
        assert_eq!(next(&mut transfers, 1), Some((1, 75_000, 75_000, true)));
        assert_eq!(
            (next(&mut transfers, 1), transfers.has_output()),
            (None, false)
        );
        let piece = |offset| Piece {
            transfer: put,
            offset,
            bytes: 75_000,
        };
        assert_eq!(transfers.note_arrived(piece(0)), None);
        assert_eq!(transfers.send_again(VecDeque::from([piece(75_000)])), 1);
        assert_eq!(next(&mut transfers, 1), Some((1, 75_000, 75_000, true)));
        let ended = Ended {
            token: Some(7),
            outcome: Outcome::Done,
            bytes: 150_000,
        };
        assert_eq!(transfers.note_arrived(piece(75_000)), Some(ended));
        assert_eq!(transfers.send_again(VecDeque::from([piece(0)])), 0);
    }

    #[test]
    fn a_message_is_asked_for_once_and_what_was_taken_back_is_known() {
        let region = Region::private(64).unwrap();
        let mut transfers = Transfers::new();
        let first = transfers.add(Kind::Message, region.view(), Some(1));
        transfers.start_asked(first).unwrap();
        let text = transfers.start_asked(first).unwrap_err();
        assert!(text.contains("does not wait"), "{text}");
        assert!(transfers.skip(first).is_err() && transfers.skip(9).is_err());
        transfers.answer(5, region.view(), None).unwrap();
        assert_eq!(transfers.withdraw(), [1]);
        assert_eq!(
            [1, 2, 3].map(|t| transfers.is_withdrawn(t)),
            [true, false, false]
        );
        assert!(transfers.has_output() && transfers.flush().count() == 0);
        assert!(transfers.is_empty() && !transfers.has_output());
    }
}
