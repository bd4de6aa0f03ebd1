//! [`Results`]: what has been reduced and not been taken, in a bounded number of places.

use super::header::{Header, RoundReport};
use super::options::{Delivery, PartialOptions};
use crate::types::Rank;
use std::collections::VecDeque;

/// What to do with a result that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It stays in its place.
    Kept,
    /// It stays in its place for other ranks, and this rank's sums are gathered in a copy of it.
    Copy {
        /// Where that is.
        to: usize,
    },
    /// It is to be added to what lies in this place, and its own place is free again.
    Add {
        /// The older sum.
        to: usize,
    },
}

/// Results that may be taken and not given back, where results are kept: more would leave no place.
const TAKEN_MAX: usize = 2;

/// What a rank may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// A result, in this place. It is there until
    /// [`Machine::give_back`](super::Machine::give_back).
    Taken(RoundReport, usize),
    /// None yet: one is due.
    Wait,
    /// None, and none is due before the next submit.
    Nothing,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Results {
    delivery: Delivery,
    free: Vec<usize>,
    ready: VecDeque<(RoundReport, usize)>,
    /// Rounds whose results have been taken: all below this.
    taken: u64,
    /// Places that were taken and not given back.
    out: Vec<usize>,
    /// The newest rounds, `kept_max` at most, with what each rank said and where the result is: for
    /// ranks that have not completed them when another dies.
    kept: VecDeque<(u64, Said, usize)>,
    kept_max: usize,
}

/// Who took part in a round, ascending, and what each of them said.
pub(super) type Said = (Vec<Rank>, Vec<Header>);

impl Results {
    pub fn new(options: &PartialOptions) -> Results {
        let places = options.results_max();
        Results {
            delivery: options.delivery,
            free: (0..places).rev().collect(),
            ready: VecDeque::with_capacity(places),
            taken: 0,
            out: Vec::new(),
            kept: VecDeque::new(),
            kept_max: options.results_kept(),
        }
    }

    /// Rounds whose results have been taken.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// A place for the result of a round that begins.
    pub fn reserve(&mut self) -> Option<usize> {
        self.free.pop()
    }

    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// A round has ended, with its result in this place. What was said of it is given where results
    /// are kept.
    pub fn settle(&mut self, mut report: RoundReport, place: usize, said: Option<Said>) -> Settled {
        let is_kept = said.is_some();
        if let Some(said) = said {
            self.kept.push_back((report.round, said, place));
        }
        let older = match self.delivery {
            Delivery::Ordered => None,
            Delivery::Merged | Delivery::Latest => self.ready.back_mut(),
        };
        let settled = match older {
            // The next round is added to the sum, but the round's own result must not change.
            None if is_kept && self.delivery == Delivery::Merged => {
                self.forget_old();
                let to = self.free.pop();
                let to = to.expect("places for what is in flight, kept, taken and collected");
                self.ready.push_back((report, to));
                return Settled::Copy { to };
            }
            None => {
                self.ready.push_back((report, place));
                Settled::Kept
            }
            Some((before, at)) => {
                report.rounds += before.rounds;
                *before = report;
                match self.delivery {
                    Delivery::Merged => {
                        let to = *at;
                        self.free_unless_used(place);
                        Settled::Add { to }
                    }
                    _ => {
                        let older = std::mem::replace(at, place);
                        self.free_unless_used(older);
                        Settled::Kept
                    }
                }
            }
        };
        self.forget_old();
        settled
    }

    /// A round that is kept.
    pub fn kept(&self, round: u64) -> Option<&(u64, Said, usize)> {
        self.kept.iter().find(|kept| kept.0 == round)
    }

    /// Lets go of results that all ranks have. A round that ended here was entered by all ranks,
    /// and a rank enters a round only when it has completed the one `kept_max` rounds before it.
    fn forget_old(&mut self) {
        while self.kept.len() > self.kept_max {
            let (.., place) = self.kept.pop_front().expect("it is longer than that");
            self.free_unless_used(place);
        }
    }

    fn free_unless_used(&mut self, place: usize) {
        let is_used = self.ready.iter().any(|(_, at)| *at == place)
            || self.kept.iter().any(|(.., at)| *at == place)
            || self.out.contains(&place);
        if !is_used {
            debug_assert!(!self.free.contains(&place));
            self.free.push(place);
        }
    }

    /// Takes the next result, for a rank that has submitted this many steps.
    pub fn take(&mut self, submitted: u64) -> Next {
        let is_ordered = self.delivery == Delivery::Ordered;
        if self.kept_max > 0 && !is_ordered && self.out.len() >= TAKEN_MAX {
            return Next::Wait;
        }
        match self.ready.pop_front() {
            Some((report, place)) => {
                self.taken = report.round + 1;
                self.out.push(place);
                Next::Taken(report, place)
            }
            None if self.taken < submitted => Next::Wait,
            None => Next::Nothing,
        }
    }

    /// Whether there is one that has not been taken.
    pub fn are_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// What was taken has been copied.
    pub fn give_back(&mut self, place: usize) {
        let at = self.out.iter().position(|&out| out == place);
        self.out.swap_remove(at.expect("it was taken"));
        self.free_unless_used(place);
    }
}
