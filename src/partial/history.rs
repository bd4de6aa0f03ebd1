//! What random histories of machines have in common: what may happen next, and what is asserted of
//! every round that begins.

use super::{Header, Machine, Notice, PartialOptions, Policy};
use crate::prng::Prng;
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

/// Checks that what a rank says of its snapshot is what lies in it: these generations, without a
/// gap.
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
pub fn machines(ranks: u32, options: &PartialOptions) -> Vec<Machine> {
    let machine = |rank| Machine::new(rank, ranks, options.clone());
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
