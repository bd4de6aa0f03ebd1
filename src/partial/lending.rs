//! Rounds that begin with the part of a rank that sleeps: where waking a rank costs more than all
//! that it does for a round, each lends its part beforehand to one rank, the *hub*, which begins a
//! round with the parts that it has and wakes the others only.
//!
//! A part is the snapshot of the next round as it is: empty, a late gradient, or the round's own.
//! Its rank takes it back before it changes anything, and the hub accepts it when the round begins
//! there; an atomic swap decides who was first. So a snapshot is taken when its part is accepted,
//! nothing else is different, and a rank finds out when it next does something.

use super::activation::Activation;
use super::header::Header;
use super::machine::Machine;
use crate::types::Rank;

impl Machine {
    /// The same where rounds are activated by way of the lowest rank that lives: that one, the hub,
    /// need not wake ranks that have lent it their part of the round ([`Machine::part_to_lend`]).
    pub fn by_hub(mut self) -> Machine {
        self.is_by_hub = true;
        self.activation = self.activation_among(self.rank, self.ranks);
        self
    }

    pub(super) fn activation_among(&self, own: Rank, ranks: u32) -> Activation {
        match self.is_by_hub {
            true => Activation::by_hub(own, ranks),
            false => Activation::new(own, ranks),
        }
    }

    /// Whether this rank is the one by whose way rounds are activated.
    pub fn is_hub(&self) -> bool {
        self.is_by_hub && self.live[0] == self.rank
    }

    /// What this rank can lend the hub for the next round, no matter who begins that: its snapshot
    /// as it is, if the round could begin here with it. In a round that waits for all every rank is
    /// there anyway.
    pub fn part_to_lend(&self) -> Option<Header> {
        let round = self.begun;
        let can_lend = self.is_by_hub
            && !self.is_hub()
            && !self.is_lent
            && self.entered == round
            && self.has_place()
            && !self.is_full(round)
            && (self.submitted > round || self.may_miss(round));
        can_lend.then(|| self.next_header())
    }

    /// Whether a part is lent.
    pub fn is_lent(&self) -> bool {
        self.is_lent
    }

    /// That part is lent.
    pub fn handle_lent(&mut self) {
        self.is_lent = true;
    }

    /// What was lent is this rank's again.
    pub fn handle_returned(&mut self) {
        self.is_lent = false;
    }

    /// What was lent has been accepted: the round has begun here with it.
    pub fn handle_accepted(&mut self) {
        assert!(self.is_lent, "accepted is what was lent");
        self.is_lent = false;
        let begin = self.begin();
        self.told.push_back(begin);
    }
}
