//! Rails that are lost while the peer lives on.
//!
//! Anyone who loses a rail reads it no more, and says so ([`Frame::RailDead`]) over another one.
//! The peer then gives it up too and answers how many chunks had come whole on it
//! ([`Frame::RailClosed`]): exactly the others are sent again, once. Since neither side reads a
//! rail after it has said or heard this, nothing can come twice. Frames of the stream are sent
//! again from the last acknowledgement on, and those that had come are known by their position.

use super::peer::{Loss, Peer};
use super::rail::{LostRail, acknowledge};
use super::shared::Shared;
use crate::wire::Frame;

/// Rails lost of which a peer has not asked or answered yet. Each takes a connection to be made
/// first.
const LOST_MAX: usize = 4096;

impl Peer {
    /// Gives up the rail at this place.
    pub fn lose_rail(&mut self, at: usize, reason: &str, shared: &mut Shared) {
        let rail = self.rails.remove(at);
        shared.counts.rails_lost += 1;
        if let Some(staged) = rail.body.and_then(|body| body.staged) {
            self.staged_bytes -= staged.len() as u64;
            shared.staging.give(staged);
        }
        shared.say(&format!(
            "rail {} to rank {} ({}) was lost, {reason}; {} left, and {} chunks may have to be sent again",
            rail.id,
            self.rank,
            rail.name,
            self.rails.len(),
            rail.unacked.len()
        ));
        if self.lead == Some(rail.id) {
            self.stream.rewind();
            self.lead = self.rails.first().map(|rail| rail.id);
        }
        self.retired.push((rail.id, rail.chunks_received));
        self.lost.push(LostRail {
            id: rail.id,
            unacked: rail.unacked,
            chunks_acked: rail.chunks_acked,
        });
        if rail.is_outgoing || self.rails.is_empty() {
            self.reach.end_pause();
        }
        self.push_control(shared, Frame::RailDead { rail: rail.id });
    }

    /// The peer uses rails no more, and asks what had come on each. Called between two reads, when
    /// no place of a rail is in use.
    pub fn answer_dead_rails(&mut self, shared: &mut Shared) -> Result<(), Loss> {
        while let Some(rail) = self.asked.pop() {
            self.answer_dead_rail(rail, shared)?;
        }
        Ok(())
    }

    fn answer_dead_rail(&mut self, rail: u64, shared: &mut Shared) -> Result<(), Loss> {
        if let Some(at) = self.rails.iter().position(|r| r.id == rail) {
            self.lose_rail(at, "the other side gave it up", shared);
        }
        if self.retired.len() > LOST_MAX || self.lost.len() > LOST_MAX {
            let text = format!("{LOST_MAX} rails were lost, and it says nothing of them");
            return Err(Loss::Peer(text));
        }
        // A rail that never came to life here has brought nothing.
        let known = self.retired.iter().position(|&(id, _)| id == rail);
        let chunks = known.map_or(0, |at| self.retired.swap_remove(at).1);
        self.push_control(shared, Frame::RailClosed { rail, chunks });
        Ok(())
    }

    /// The peer says what had come on a rail that this rank has lost: the rest is sent again.
    pub fn handle_rail_closed(
        &mut self,
        rail: u64,
        chunks: u64,
        shared: &mut Shared,
    ) -> Result<(), Loss> {
        let Some(at) = self.lost.iter().position(|lost| lost.id == rail) else {
            let text = format!("it answers for rail {rail}, of which nobody asked");
            return Err(Loss::Peer(text));
        };
        let mut lost = self.lost.swap_remove(at);
        let arrived = acknowledge(&mut lost.unacked, 0, &mut lost.chunks_acked, chunks);
        for piece in arrived.map_err(Loss::Peer)? {
            self.note_arrived(piece, shared);
        }
        // What was taken back is not sent again.
        let outgoing = &self.outgoing;
        (lost.unacked).retain(|piece| outgoing.contains_key(&piece.transfer));
        shared.counts.chunks_again += lost.unacked.len() as u64;
        self.again.extend(lost.unacked);
        Ok(())
    }
}
