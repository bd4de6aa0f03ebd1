//! What random histories of machines have in common: what may happen next, and what is asserted of
//! every round that begins.

use super::{Header, Machine, Notice, PartialOptions, Policy};
use crate::prng::Prng;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Something that may happen.
pub enum Event {
    App(u32),
    Message { from: u32, to: u32, notice: Notice },
    Ended { rank: u32, round: u64 },
}

/// An error says what was found broken.
pub type Checked<T> = std::result::Result<T, String>;

pub fn ensure(holds: bool, text: impl FnOnce() -> String) -> Checked<()> {
    if holds { Ok(()) } else { Err(text()) }
}

/// What a rank says of its snapshot is what lies in it: these generations, without a gap.
pub fn check_snapshot(rank: u32, header: &Header, held: &[u64]) -> Checked<()> {
    let numbered = held.iter().zip(header.first_generation..);
    let holds = held.len() as u64 == header.generations
        && numbered.into_iter().all(|(held, said)| *held == said)
        && held.contains(&header.round) == header.is_active;
    ensure(holds, || {
        format!("rank {rank} begins {header:?} with {held:?}")
    })
}

/// For the case that nothing can move: how far each has come.
pub fn describe<'a>(machines: impl Iterator<Item = &'a Machine>) -> String {
    let at = |m: &Machine| (m.submitted(), m.begun(), m.completed());
    let all: Vec<_> = machines.map(at).collect();
    format!("nothing can move: (submitted, begun, completed) {all:?}")
}

/// The machines of a job, by rank.
pub fn machines(ranks: u32, options: &PartialOptions, has_hub: bool) -> Vec<Machine> {
    let machine = |rank| {
        let machine = Machine::new(rank, ranks, options.clone());
        if has_hub { machine.by_hub() } else { machine }
    };
    (0..ranks).map(machine).collect()
}

pub fn random_policy(ranks: u32, prng: &mut Prng) -> Policy {
    let quorum = 1 + prng.below(u64::from(ranks)) as u32;
    let time = Duration::from_nanos(prng.below(200));
    match prng.below(6) {
        0 => Policy::Solo,
        1 => Policy::Majority,
        2 => Policy::Quorum(quorum),
        3 => Policy::Full,
        4 => Policy::RandomInitiator {
            seed: prng.next_u64(),
        },
        _ => Policy::Deadline { quorum, time },
    }
}

/// What ranks have lent to the hub, and which of that it has accepted.
#[derive(Default)]
pub struct Loans {
    lent: BTreeMap<u32, (Header, bool)>,
    accepted: BTreeSet<(u32, u64)>,
}

impl Loans {
    /// A rank lends what it can.
    pub fn lend(&mut self, rank: u32, machine: &mut Machine) {
        if let Some(header) = machine.part_to_lend() {
            machine.handle_lent();
            self.lent.insert(rank, (header, false));
        }
    }

    /// The hub begins a round with what is lent for it, by these ranks, which it need not wake.
    pub fn accept(&mut self, round: u64, unwoken: &mut Vec<(u32, Notice)>) -> Vec<(u32, Header)> {
        let lent = self.lent.iter_mut();
        let of_round = lent.filter(|(_, (header, _))| header.round == round);
        let accepted = of_round.map(|(&rank, (header, is_accepted))| {
            *is_accepted = true;
            (rank, *header)
        });
        let accepted: Vec<(u32, Header)> = accepted.collect();
        let notice = Notice::Activate(round);
        unwoken.retain(|told| accepted.iter().all(|&(rank, _)| *told != (rank, notice)));
        self.accepted
            .extend(accepted.iter().map(|&(rank, _)| (rank, round)));
        accepted
    }

    /// A rank ends its loan, if it has one.
    pub fn end(&mut self, rank: u32, machine: &mut Machine) {
        match self.lent.remove(&rank) {
            Some((_, true)) => machine.handle_accepted(),
            Some((_, false)) => machine.handle_returned(),
            None => {}
        }
    }

    /// The same for a rank that does not look whether the hub has accepted it.
    pub fn end_blindly(&mut self, rank: u32, machine: &mut Machine) {
        if self.lent.remove(&rank).is_some() {
            machine.handle_returned();
        }
    }

    /// Whether what a rank has lent has been accepted.
    pub fn is_accepted(&self, rank: u32) -> bool {
        self.lent.get(&rank).is_some_and(|(_, accepted)| *accepted)
    }

    /// Whether a rank begins a round that has begun already, with what it had lent.
    pub fn has_begun(&mut self, rank: u32, round: u64) -> bool {
        self.accepted.remove(&(rank, round))
    }
}
