//! [`Results`]: what has been reduced and not been taken, in a bounded number of places.

use super::header::RoundReport;
use super::options::{Delivery, PartialOptions};
use std::collections::VecDeque;

/// What to do with a result that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It stays in its place.
    Kept,
    /// It is to be added to what lies in this place, and its own is free again.
    Add {
        /// The older sum.
        to: usize,
    },
}

/// What a rank may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// A result, in this place. It is there until [`Machine::give_back`](super::Machine::give_back).
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
}

impl Results {
    pub fn new(options: &PartialOptions) -> Results {
        let places = options.results_max();
        Results {
            delivery: options.delivery,
            free: (0..places).rev().collect(),
            ready: VecDeque::with_capacity(places),
            taken: 0,
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

    /// A round has ended, with its result in this place.
    pub fn settle(&mut self, mut report: RoundReport, place: usize) -> Settled {
        let older = match self.delivery {
            Delivery::Ordered => None,
            Delivery::Merged | Delivery::Latest => self.ready.back_mut(),
        };
        let Some((before, at)) = older else {
            self.ready.push_back((report, place));
            return Settled::Kept;
        };
        report.rounds += before.rounds;
        *before = report;
        match self.delivery {
            Delivery::Merged => {
                self.free.push(place);
                Settled::Add { to: *at }
            }
            _ => {
                self.free.push(std::mem::replace(at, place));
                Settled::Kept
            }
        }
    }

    /// The next one, for a rank that has submitted so often.
    pub fn take(&mut self, submitted: u64) -> Next {
        match self.ready.pop_front() {
            Some((report, place)) => {
                self.taken = report.round + 1;
                Next::Taken(report, place)
            }
            None if self.taken < submitted => Next::Wait,
            None => Next::Nothing,
        }
    }

    /// What was taken has been copied.
    pub fn give_back(&mut self, place: usize) {
        debug_assert!(!self.free.contains(&place));
        self.free.push(place);
    }
}
