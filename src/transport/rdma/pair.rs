//! [`Pair`]: the queues with one peer, by rail, where they stand between two generations, and what
//! has gone wrong with them.

use super::device::Device;
use super::generation::{Generation, Phase};
use super::greeting::Proposal;
use super::link::Link;

/// Something that has gone wrong with a queue.
#[derive(Debug)]
pub struct Fault {
    /// The rail that is to blame, if one is.
    pub rail: Option<usize>,
    pub cause: String,
    /// It follows from something that was not seen yet, or from what this rank did.
    pub is_consequence: bool,
}

impl Fault {
    pub fn of_rail(rail: usize, cause: &str) -> Fault {
        Fault {
            rail: Some(rail),
            cause: cause.into(),
            is_consequence: false,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Pair<D: Device> {
    generation: Generation,
    /// By rail.
    links: Vec<Option<Link<D>>>,
    /// The rail that the ring uses.
    lead: usize,
    /// The peer's last word about its queues, until they are joined.
    proposal: Option<Proposal>,
    /// Rails that can be used again and have no link; looked at when the pair is up.
    returned: Vec<usize>,
    /// What has gone wrong since the last look.
    fault: Option<Fault>,
    /// The peer breaks the rules.
    offence: Option<String>,
}

impl<D: Device> Pair<D> {
    pub fn new() -> Pair<D> {
        Pair {
            generation: Generation::new(),
            links: Vec::new(),
            lead: 0,
            proposal: None,
            returned: Vec::new(),
            fault: None,
            offence: None,
        }
    }

    /// Whether posts go out.
    #[inline]
    pub fn is_up(&self) -> bool {
        self.generation.phase == Phase::Up
    }

    /// Whether there have been no queues and none are being made.
    #[inline]
    pub fn is_unused(&self) -> bool {
        self.generation.phase == Phase::Idle
    }

    /// Where it stands between two generations.
    pub fn generation(&self) -> &Generation {
        &self.generation
    }

    /// Where it stands between two generations.
    #[inline]
    pub fn generation_mut(&mut self) -> &mut Generation {
        &mut self.generation
    }

    /// The rail of the ring.
    #[inline]
    pub fn lead(&self) -> usize {
        self.lead
    }

    /// The queue of the ring.
    #[inline]
    pub fn lead_link(&mut self) -> Option<&mut Link<D>> {
        self.links.get_mut(self.lead)?.as_mut()
    }

    /// The queue of the ring, if it has room for another post.
    #[inline]
    pub fn lead_with_room(&mut self) -> Option<&mut Link<D>> {
        self.lead_link().filter(|link| link.has_room())
    }

    /// The queue on a rail.
    #[inline]
    pub fn link(&mut self, rail: usize) -> Option<&mut Link<D>> {
        self.links.get_mut(rail)?.as_mut()
    }

    /// The queue on a rail, as it is.
    pub fn link_on(&self, rail: usize) -> Option<&Link<D>> {
        self.links.get(rail)?.as_ref()
    }

    /// Whether there is a queue on a rail.
    pub fn has_link(&self, rail: usize) -> bool {
        self.links.get(rail).is_some_and(Option::is_some)
    }

    /// Whether the pair does without a rail, which it could have.
    pub fn lacks_link(&self, rail: usize) -> bool {
        self.links.get(rail).is_some_and(Option::is_none)
    }

    /// All queues.
    #[inline]
    pub fn links(&self) -> impl Iterator<Item = &Link<D>> {
        self.links.iter().flatten()
    }

    /// All queues.
    pub fn links_mut(&mut self) -> impl Iterator<Item = &mut Link<D>> {
        self.links.iter_mut().flatten()
    }

    /// Rails, with and without queues.
    #[inline]
    pub fn rails_count(&self) -> usize {
        self.links.len()
    }

    /// New queues, by rail.
    pub fn set_links(&mut self, links: Vec<Option<Link<D>>>) {
        self.links = links;
    }

    /// Takes all queues out.
    pub fn take_links(&mut self) -> impl Iterator<Item = Link<D>> + use<D> {
        std::mem::take(&mut self.links).into_iter().flatten()
    }

    /// Takes the queue on a rail out.
    pub fn take_link(&mut self, rail: usize) -> Option<Link<D>> {
        self.links.get_mut(rail)?.take()
    }

    /// Lets the ring use the first rail with a queue; false: there is none.
    pub fn choose_lead(&mut self) -> bool {
        let first = self.links.iter().position(Option::is_some);
        self.lead = first.unwrap_or(self.lead);
        first.is_some()
    }

    /// Keeps what the peer proposes.
    pub fn set_proposal(&mut self, proposal: Proposal) {
        self.proposal = Some(proposal);
    }

    /// Whether the peer proposes a queue on this rail.
    pub fn is_proposed(&self, rail: usize) -> bool {
        let proposal = self.proposal.as_ref();
        proposal.is_some_and(|proposal| proposal.rails.get(rail).is_some_and(Option::is_some))
    }

    pub fn take_proposal(&mut self) -> Option<Proposal> {
        self.proposal.take()
    }

    /// A rail can be used again.
    pub fn note_back(&mut self, rail: usize) {
        if !self.has_link(rail) && !self.returned.contains(&rail) {
            self.returned.push(rail);
        }
    }

    /// Rails that could be used again since the last look.
    pub fn take_returned(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.returned)
    }

    /// The first cause counts, and any counts more than a consequence.
    pub fn note_fault(&mut self, fault: Fault) {
        let known = self.fault.as_ref();
        if known.is_none_or(|known| known.is_consequence && !fault.is_consequence) {
            self.fault = Some(fault);
        }
    }

    #[cfg(test)]
    pub fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    pub fn take_fault(&mut self) -> Option<Fault> {
        self.fault.take()
    }

    /// The peer breaks the rules; the first time counts.
    pub fn note_offence(&mut self, text: String) {
        self.offence.get_or_insert(text);
    }

    pub fn take_offence(&mut self) -> Option<String> {
        self.offence.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::rdma::simulated::SimDevice;

    #[test]
    fn the_first_cause_is_kept_and_what_was_flushed_is_none() {
        let mut pair = Pair::new();
        let flushed = |cause: &str| Fault {
            rail: None,
            cause: cause.into(),
            is_consequence: true,
        };
        let cause =
            |pair: &Pair<SimDevice<true>>| pair.fault.as_ref().map(|fault| fault.cause.clone());
        pair.note_fault(flushed("flushed"));
        assert_eq!(cause(&pair).as_deref(), Some("flushed"));
        pair.note_fault(Fault::of_rail(0, "retries exceeded"));
        pair.note_fault(Fault::of_rail(1, "port down"));
        pair.note_fault(flushed("flushed, too"));
        assert_eq!(cause(&pair).as_deref(), Some("retries exceeded"));
    }
}
