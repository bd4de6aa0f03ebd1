//! How the ranks of a host find out, before the first operation, whether all of them map each
//! other's memory.

use super::Links;
use crate::engine::control::Line;
use crate::engine::signature::Signature;
use crate::error::Result;
use crate::kernel;
use crate::limits::{CACHE_LINE_BYTES, OPERATION_SLOTS};
use crate::schedule::{Lane, ROLL_CALL};
use crate::types::Rank;

/// The number and the lane of what ranks of a host tell each other before the first operation. Its
/// lines are those of a roll call, which needs that all ranks are on one host.
const AGREEMENT: (u64, Lane) = ((1 << 40) + OPERATION_SLOTS - 1, ROLL_CALL);

impl Links {
    /// Finds out whether all ranks of this host map each other's memory. Two of them may not (other
    /// users, a sandbox), which the others do not see: so each tells the others whether it maps
    /// them all. False: some have not told yet.
    pub(super) fn agree_on_host(&mut self) -> Result<bool> {
        if self.transport.capabilities().mapped || self.mappable.is_empty() {
            return Ok(true);
        }
        let mappable = std::mem::take(&mut self.mappable);
        let maps_all = mappable.iter().all(|&peer| self.transport.maps(peer));
        let (sequence, lane) = AGREEMENT;
        let line = Line {
            stamp: Line::stamp_of(sequence, 0),
            signature: Signature(0),
            payload: std::array::from_fn(|_| u64::from(maps_all)),
        };
        let mut told = self.told;
        let sent = self.signal(&mappable[told as usize..], AGREEMENT, &line, &mut told);
        (self.mappable, self.told) = (mappable, told);
        let has_told = |peer: Rank| self.arrived(peer, sequence, lane).is_some();
        let is_known = |&peer: &Rank| has_told(peer) || self.gone(peer).is_some();
        if !sent? || !self.mappable.iter().all(is_known) {
            return Ok(false);
        }
        let says_yes = |peer: Rank| kernel::load::<u64>(self.mail(peer, sequence, lane), 0) == 1;
        let answers = self.mappable.iter();
        let is_yes = |&peer: &Rank| has_told(peer) && says_yes(peer);
        self.maps_host = maps_all && answers.clone().all(is_yes);
        // What is left of the lines would be taken for the latest operation of the peers.
        answers.for_each(|&peer| {
            let offset = self.layout.line(sequence, lane, peer);
            kernel::store(self.control.part(offset, CACHE_LINE_BYTES), 0, 0u64);
        });
        Ok(true)
    }
}
