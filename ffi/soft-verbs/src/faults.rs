//! [`Plan`]: what goes wrong in a process, and at which of its work requests; by the words of
//! `SOFT_VERBS` or drawn from a seed.
//!
//! Work requests are those for send queues, counted over all devices of the process from 1 on. A
//! fault of a device happens to the one that is given the request.

use crate::network::now;
use crate::settings::{number_of, time_of};
use linerate_verbs_sys::raw::ibv_wc_status as status;
use std::sync::atomic::{AtomicU64, Ordering};

/// The words, as [`crate::settings`] names them to people.
pub const WORDS: &str = "faults=SEED, break=N, lose=N, down=N+TIME, move=N, vanish=N, late=TIME, land=TIME, \
                         purge=destroy|none";

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The queue pair fails, for this reason: the request is not carried out.
    Break(status),
    /// The request and those behind it are carried out, and no acknowledgement comes: the queue
    /// pair fails when its timeouts have passed.
    Lose,
    /// The port carries nothing for this time, in nanoseconds.
    Down(u64),
    /// The port's address gets another place in its table.
    Move,
    /// The device is gone.
    Vanish,
}

/// What goes wrong in a process.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Each with the number of its work request.
    events: Vec<(u64, Fault)>,
    /// Completions come later than they would, by this much at most; in nanoseconds.
    pub late_ns: u64,
    /// Requests are carried out later than they were posted, by this much at most.
    pub land_ns: u64,
    /// Completions of a queue pair that is destroyed stay in their queue.
    pub keeps_completions: bool,
}

/// The statuses with which a fault may end a request. A remote access error is not among them: it
/// says that a key has ended, which must be true.
const REASONS: [status; 5] = [
    status::IBV_WC_RETRY_EXC_ERR,
    status::IBV_WC_RNR_RETRY_EXC_ERR,
    status::IBV_WC_LOC_QP_OP_ERR,
    status::IBV_WC_REM_OP_ERR,
    status::IBV_WC_GENERAL_ERR,
];

impl Plan {
    /// Takes a word of the settings; `None`: it is no fault, or its value is wrong.
    pub fn take(&mut self, name: &str, value: &str) -> Option<()> {
        let at = |fault| Some((number_of(value)?, fault));
        let event = match name {
            "faults" => {
                let drawn = Plan::draw(value.parse().ok()?);
                self.events.extend(drawn.events);
                self.late_ns = self.late_ns.max(drawn.late_ns);
                self.land_ns = self.land_ns.max(drawn.land_ns);
                self.keeps_completions |= drawn.keeps_completions;
                return Some(());
            }
            "late" => {
                self.late_ns = time_of(value)?;
                return Some(());
            }
            "land" => {
                self.land_ns = time_of(value)?;
                return Some(());
            }
            "purge" => {
                self.keeps_completions = match value {
                    "destroy" => false,
                    "none" => true,
                    _ => return None,
                };
                return Some(());
            }
            "break" => at(Fault::Break(status::IBV_WC_RETRY_EXC_ERR)),
            "lose" => at(Fault::Lose),
            "down" => {
                let (number, time) = value.split_once('+')?;
                Some((number_of(number)?, Fault::Down(time_of(time)?)))
            }
            "move" => at(Fault::Move),
            "vanish" => at(Fault::Vanish),
            _ => None,
        };
        self.events.push(event?);
        Some(())
    }

    pub fn is_landing_late(&self) -> bool {
        self.land_ns > 0
    }

    /// Draws a few faults that a program can recover from.
    fn draw(seed: u64) -> Plan {
        let mut random = Random(seed);
        let mut plan = Plan {
            events: Vec::new(),
            late_ns: [0, 0, 20_000, 200_000][random.below(4) as usize],
            land_ns: [0, 0, 5_000, 50_000][random.below(4) as usize],
            keeps_completions: random.below(2) == 1,
        };
        let gap_max = [8, 30, 120, 500][random.below(4) as usize];
        let mut number = 0;
        for _ in 0..1 + random.below(8) {
            number += 1 + random.below(gap_max);
            let fault = match random.below(8) {
                0..=2 => Fault::Break(REASONS[random.below(REASONS.len() as u64) as usize]),
                3..=4 => Fault::Lose,
                5..=6 => Fault::Down(1_000_000 + random.below(20_000_000)),
                _ => Fault::Move,
            };
            plan.events.push((number, fault));
        }
        plan
    }
}

/// A plan, and how far it has come.
pub struct Faults {
    pub plan: Plan,
    requests: AtomicU64,
    landings: AtomicU64,
}

impl Faults {
    pub fn new(plan: Plan) -> Faults {
        Faults {
            plan,
            requests: AtomicU64::new(0),
            landings: AtomicU64::new(0),
        }
    }

    /// A random time at which a request that is posted now is carried out; 0: at once.
    pub fn landing_time(&self) -> u64 {
        if !self.plan.is_landing_late() {
            return 0;
        }
        let seed = self.landings.fetch_add(1, Ordering::Relaxed);
        now() + Random(seed).below(self.plan.land_ns)
    }

    /// Counts a work request, and gives what goes wrong with it.
    pub fn count(&self) -> impl Iterator<Item = Fault> {
        let events = &self.plan.events;
        let number = match events.is_empty() {
            true => 0,
            false => self.requests.fetch_add(1, Ordering::Relaxed) + 1,
        };
        let of_it = events.iter().filter(move |event| event.0 == number);
        of_it.map(|event| event.1)
    }
}

/// Random numbers by Vigna's SplitMix64.
pub struct Random(pub u64);

impl Random {
    /// The next number below this one.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_come_at_the_requests_that_are_named() {
        let mut plan = Plan::default();
        for (name, value) in [("break", "2"), ("down", "4+3ms"), ("move", "4")] {
            plan.take(name, value).unwrap();
        }
        let faults = Faults::new(plan);
        let found: Vec<Vec<Fault>> = (0..5).map(|_| faults.count().collect()).collect();
        let lost = Fault::Break(status::IBV_WC_RETRY_EXC_ERR);
        let both = vec![Fault::Down(3_000_000), Fault::Move];
        assert_eq!(found, [vec![], vec![lost], vec![], both, vec![]]);
    }

    #[test]
    fn a_seed_draws_the_same_faults_always_and_seeds_differ() {
        let events = |seed| Plan::draw(seed).events;
        assert_eq!(events(7), events(7));
        assert!((0..100).all(|seed| events(seed) != events(seed + 1)));
        let all: Vec<(u64, Fault)> = (0..100).flat_map(events).collect();
        let has = |is_it: fn(&Fault) -> bool| all.iter().any(|event| is_it(&event.1));
        assert!(has(|fault| matches!(fault, Fault::Down(_))) && has(|fault| *fault == Fault::Lose));
        assert!(!has(|fault| *fault == Fault::Vanish));
    }
}
