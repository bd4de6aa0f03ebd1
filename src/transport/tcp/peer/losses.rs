//! Rails that are lost while their peer lives.
//!
//! The side that loses a rail reads it no more, and says so ([`Frame::RailDead`]) over another one.
//! The peer then gives it up too and answers how many chunks had come whole on it
//! ([`Frame::RailClosed`]): exactly the others are sent again, once. Since neither side reads a
//! rail after it has said or heard this, nothing can come twice. Frames of the stream are sent
//! again from the last acknowledgement on, and those that had come are known by their position.

use super::{Loss, Peer};
use crate::transport::tcp::rail::Rail;
use crate::transport::tcp::shared::Shared;
use crate::wire::Frame;

impl Peer {
    /// Rails were found to be lost, for these reasons.
    pub(super) fn lose_rails(&mut self, lost: Vec<(u64, String)>, shared: &mut Shared) {
        for (id, reason) in lost {
            let Some(at) = self.rails.position(id) else {
                continue;
            };
            if !shared.is_leaving {
                self.lose_rail(at, &reason, shared);
                continue;
            }
            self.take_rail(at);
            // The other side leaves too, and has heard of this one.
            if self.rails.is_empty() {
                self.left.get_or_insert(0);
            }
        }
    }

    /// Takes out the rail at this place. If it led, the stream goes on over another one.
    fn take_rail(&mut self, at: usize) -> Rail {
        let (rail, was_lead) = self.rails.take(at);
        if was_lead {
            self.stream.rewind();
        }
        rail
    }

    /// Gives up the rail at this place.
    pub(super) fn lose_rail(&mut self, at: usize, reason: &str, shared: &mut Shared) {
        let mut rail = self.take_rail(at);
        shared.counts.rails_lost += 1;
        if let Some(staged) = rail.body.take().and_then(|body| body.staged) {
            self.incoming.drop_staged(staged, &mut shared.staging);
        }
        shared.say(&format!(
            "rail {} to rank {} ({}) was lost, {reason}; {} left, and {} chunks may have to be sent again",
            rail.id & u64::from(u32::MAX),
            self.rank,
            rail.name,
            self.rails.len(),
            rail.unacked.len()
        ));
        if rail.is_outgoing || self.rails.is_empty() {
            self.reach.end_pause();
        }
        let id = rail.id;
        self.rails.settle_later(rail);
        self.push_control(shared, Frame::RailDead { rail: id });
    }

    /// The peer uses rails no more, and asks what had come on each. Called between two reads, when
    /// no place of a rail is in use.
    pub(super) fn answer_dead_rails(&mut self, shared: &mut Shared) -> Result<(), String> {
        while let Some(rail) = self.rails.pop_asked() {
            if let Some(at) = self.rails.position(rail) {
                self.lose_rail(at, "the other side gave it up", shared);
            }
            let chunks = self.rails.answer(rail)?;
            self.push_control(shared, Frame::RailClosed { rail, chunks });
        }
        Ok(())
    }

    /// The peer says what had come on a rail that this rank has lost: the rest is sent again.
    pub(super) fn handle_rail_closed(
        &mut self,
        rail: u64,
        chunks: u64,
        shared: &mut Shared,
    ) -> Result<(), Loss> {
        let (arrived, lost) = self.rails.settle(rail, chunks)?;
        for piece in arrived {
            self.note_arrived(piece, shared);
        }
        let again = self.transfers.send_again(lost);
        // They are cut once more, perhaps in other lengths.
        shared.counts.chunks_sent -= again;
        shared.counts.chunks_again += again;
        Ok(())
    }
}
