//! [`Rails`]: the connections to one peer, and those that were lost and not settled yet.

use super::rail::{LostRail, Piece, Rail, acknowledge};
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

/// Lost rails that are not settled with a peer, at most. Each was a connection that had to be made
/// first.
const LOST_MAX: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub struct Rails {
    open: Vec<Rail>,
    /// The rail that the stream goes over.
    lead: Option<u64>,
    /// Rails that are used no more and that the peer has not asked about, with the chunks received.
    retired: Vec<(u64, u64)>,
    /// Rails that are used no more and that this rank asks about.
    lost: Vec<LostRail>,
    /// Rails for which the peer has asked what had come, since the last look.
    asked: Vec<u64>,
}

impl Deref for Rails {
    type Target = [Rail];

    #[inline]
    fn deref(&self) -> &[Rail] {
        &self.open
    }
}

impl DerefMut for Rails {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Rail] {
        &mut self.open
    }
}

impl Rails {
    /// Adds a rail, which leads if none does.
    pub fn add(&mut self, rail: Rail) {
        self.lead.get_or_insert(rail.id);
        self.open.push(rail);
    }

    /// Whether the stream goes over the rail at this place.
    #[inline]
    pub fn is_lead(&self, at: usize) -> bool {
        self.lead == Some(self.open[at].id)
    }

    /// The place of the rail with this number.
    pub fn position(&self, id: u64) -> Option<usize> {
        self.open.iter().position(|rail| rail.id == id)
    }

    /// Takes all out.
    pub fn take_all(&mut self) -> Vec<Rail> {
        self.lead = None;
        std::mem::take(&mut self.open)
    }

    /// Takes one out; true where it led, so that the stream goes on over another one.
    pub fn take(&mut self, at: usize) -> (Rail, bool) {
        let rail = self.open.remove(at);
        let was_lead = self.lead == Some(rail.id);
        if was_lead {
            self.lead = self.open.first().map(|rail| rail.id);
        }
        (rail, was_lead)
    }

    /// Keeps what has to be settled with the peer about a rail that was taken out.
    pub fn settle_later(&mut self, rail: Rail) {
        self.retired.push((rail.id, rail.chunks_received));
        self.lost.push(LostRail {
            id: rail.id,
            unacked: rail.unacked,
            chunks_acked: rail.chunks_acked,
        });
    }

    /// Whether rails were lost of which the peer has not asked or answered.
    pub fn is_unsettled(&self) -> bool {
        !self.lost.is_empty() || !self.retired.is_empty()
    }

    /// The peer asks what had come on a rail.
    pub fn note_asked(&mut self, rail: u64) {
        self.asked.push(rail);
    }

    /// Whether it has asked since the last look.
    #[inline]
    pub fn has_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// The next rail of which it has asked.
    #[inline]
    pub fn pop_asked(&mut self) -> Option<u64> {
        self.asked.pop()
    }

    /// How many chunks had come on a rail that is used no more.
    pub fn answer(&mut self, rail: u64) -> Result<u64, String> {
        if self.retired.len() > LOST_MAX || self.lost.len() > LOST_MAX {
            return Err(format!(
                "{LOST_MAX} rails were lost, and it says nothing of them"
            ));
        }
        // A rail that never came to life here has brought nothing.
        let known = self.retired.iter().position(|&(id, _)| id == rail);
        Ok(known.map_or(0, |at| self.retired.swap_remove(at).1))
    }

    /// The peer says how many chunks of a rail have come. Returns the pieces that are new.
    pub fn acknowledge(&mut self, rail: u64, chunks: u64) -> Result<Vec<Piece>, String> {
        if let Some(rail) = self.open.iter_mut().find(|r| r.id == rail) {
            let sending = usize::from(rail.chunk.is_some());
            acknowledge(&mut rail.unacked, sending, &mut rail.chunks_acked, chunks)
        } else if let Some(lost) = self.lost.iter_mut().find(|l| l.id == rail) {
            acknowledge(&mut lost.unacked, 0, &mut lost.chunks_acked, chunks)
        } else {
            Ok(Vec::new())
        }
    }

    /// The peer says what had come on a rail that this rank has lost. Returns the pieces of that
    /// which are new, and those that have not come.
    pub fn settle(
        &mut self,
        rail: u64,
        chunks: u64,
    ) -> Result<(Vec<Piece>, VecDeque<Piece>), String> {
        let Some(at) = self.lost.iter().position(|lost| lost.id == rail) else {
            return Err(format!("it answers for rail {rail}, of which nobody asked"));
        };
        let mut lost = self.lost.swap_remove(at);
        let arrived = acknowledge(&mut lost.unacked, 0, &mut lost.chunks_acked, chunks)?;
        Ok((arrived, lost.unacked))
    }

    /// The peer is gone: nothing is to be settled.
    pub fn forget_lost(&mut self) {
        self.lost.clear();
        self.asked.clear();
        self.retired.clear();
    }
}
