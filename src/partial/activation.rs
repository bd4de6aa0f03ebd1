//! [`Activation`]: runs the activation schedule of one rank ([`build_activation`]).
//!
//! The engine ends a schedule when all its steps have ended. Here most steps of a rank may never
//! run, because no signal takes their path. So the schedule is followed step by step as signals
//! come, and what has run is forgotten with its round, so that the next round begins anew.

use crate::collective::build_activation;
use crate::schedule::{Action, Join, Schedule, StepId, Trigger};
use crate::types::Rank;

/// Steps of a round's activation that have run. Enough bits for 2 + 2 log2 of the most ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fired(u64);

const _: () = assert!(2 + 2 * crate::limits::RANKS_MAX.next_power_of_two().ilog2() <= u64::BITS);

impl Fired {
    /// Whether the round may begin.
    pub fn is_go(self, activation: &Activation) -> bool {
        self.has(activation.go())
    }

    /// The state of a round that all ranks know to have begun somewhere: it may begin, and wakes no
    /// rank.
    pub fn all_know(activation: &Activation) -> Fired {
        Fired(1 << activation.go())
    }

    fn has(self, step: StepId) -> bool {
        self.0 >> step & 1 == 1
    }
}

/// The activation schedule of one rank.
#[derive(Clone, Debug)]
pub struct Activation {
    schedule: Schedule,
}

impl Activation {
    /// The schedule of this rank of this many.
    pub fn new(rank: Rank, ranks: u32) -> Activation {
        let schedule = build_activation(rank, ranks);
        let is_followed = |join: Join, needs: usize| join == Join::Any || needs == 0;
        let mut steps = schedule.steps.iter();
        assert!(
            steps.all(|step| is_followed(step.join, step.dependencies.len())),
            "every step waits for nothing or for the first of several"
        );
        Activation { schedule }
    }

    /// This rank initiates: `tell` is called for every rank that it has to wake.
    pub fn handle_arrival(&self, fired: &mut Fired, tell: impl FnMut(Rank)) {
        let is_caller =
            |step: &StepId| self.schedule.steps[*step as usize].trigger == Trigger::Caller;
        self.fire(fired, self.steps().find(is_caller), tell);
    }

    /// A peer has woken this rank. Returns false if that peer may not wake it.
    pub fn handle_signal(&self, fired: &mut Fired, from: Rank, tell: impl FnMut(Rank)) -> bool {
        let is_from = |step: &StepId| match &self.schedule.steps[*step as usize].action {
            Action::WaitCount { peers, .. } => peers.contains(&from),
            _ => false,
        };
        let step = self.steps().find(is_from);
        self.fire(fired, step, tell);
        step.is_some()
    }

    fn steps(&self) -> impl Iterator<Item = StepId> + use<> {
        0..self.schedule.steps.len() as StepId
    }

    fn go(&self) -> StepId {
        self.schedule.steps.len() as StepId - 1
    }

    /// Runs a step, unless it has run, and all steps that wait for any of the steps that have run.
    fn fire(&self, fired: &mut Fired, step: Option<StepId>, mut tell: impl FnMut(Rank)) {
        let Some(first) = step.filter(|&step| !fired.has(step)) else {
            return;
        };
        fired.0 |= 1 << first;
        // Steps come after what they depend on, so one pass is enough.
        for (step, id) in self.schedule.steps[first as usize..].iter().zip(first..) {
            let mut needs = step.dependencies.iter();
            if fired.has(id) || !needs.any(|need| fired.has(need.step)) {
                continue;
            }
            fired.0 |= 1 << id;
            if let Action::Signal { peers, .. } = &step.action {
                peers.iter().for_each(|&peer| tell(peer));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;

    /// Delivers in random order the signals that these initiators set off. Returns how many were
    /// sent.
    fn run(ranks: u32, initiators: &[Rank], prng: &mut Prng) -> u32 {
        let all: Vec<Activation> = (0..ranks).map(|r| Activation::new(r, ranks)).collect();
        let mut fired = vec![Fired::default(); ranks as usize];
        let mut waiting: Vec<Rank> = initiators.to_vec();
        let (mut under_way, mut sent) = (Vec::new(), 0);
        while !(waiting.is_empty() && under_way.is_empty()) {
            let choice = prng.below((waiting.len() + under_way.len()) as u64) as usize;
            let (rank, from) = match choice.checked_sub(waiting.len()) {
                None => (waiting.swap_remove(choice), None),
                Some(index) => {
                    let (from, to): (Rank, Rank) = under_way.swap_remove(index);
                    (to, Some(from))
                }
            };
            let tell = |to| {
                sent += 1;
                under_way.push((rank, to));
            };
            let state = &mut fired[rank as usize];
            match from {
                None => all[rank as usize].handle_arrival(state, tell),
                Some(from) => assert!(all[rank as usize].handle_signal(state, from, tell)),
            }
        }
        for (rank, fired) in fired.iter().enumerate() {
            let activation = &all[rank];
            assert!(
                fired.is_go(activation),
                "{ranks} ranks, {initiators:?}: rank {rank} sleeps"
            );
        }
        sent
    }

    #[test]
    fn every_initiator_of_every_number_of_ranks_wakes_all_with_few_signals() {
        let mut prng = Prng::new(1);
        for ranks in (1..=40u32).chain([64, 100]) {
            let most = ranks * ranks.next_power_of_two().ilog2();
            for initiator in 0..ranks {
                let sent = run(ranks, &[initiator], &mut prng);
                assert!((ranks - 1..=most).contains(&sent), "{sent} of {ranks}");
                assert!(sent < ranks.next_power_of_two(), "{sent} of {ranks}");
            }
            let all: Vec<Rank> = (0..ranks).collect();
            assert_eq!(run(ranks, &all, &mut prng), most, "all at once");
            for _ in 0..50 {
                let several: Vec<Rank> = all.iter().copied().filter(|_| prng.chance(0.2)).collect();
                if !several.is_empty() {
                    let sent = run(ranks, &several, &mut prng);
                    assert!((ranks - 1..=most).contains(&sent), "{sent} of {ranks}");
                }
            }
        }
    }

    #[test]
    fn a_signal_is_passed_on_once_and_the_path_matters() {
        let activation = Activation::new(0, 8);
        let mut fired = Fired::default();
        let mut told = Vec::new();
        assert!(activation.handle_signal(&mut fired, 6, |r| told.push(r)));
        assert_eq!(told, [4], "from 2 before: only the rank 4 after it is left");
        assert!(fired.is_go(&activation));
        assert!(activation.handle_signal(&mut fired, 7, |r| told.push(r)));
        assert_eq!(told, [4, 2]);
        activation.handle_arrival(&mut fired, |r| told.push(r));
        assert_eq!(told, [4, 2, 1]);
        activation.handle_arrival(&mut fired, |r| told.push(r));
        assert_eq!(told.len(), 3);
        assert!(!activation.handle_signal(&mut fired, 5, |_| ()));
    }
}
