//! [`Ready`]: a queue of the steps to look at. Each step is in it once at most, so it is never
//! full.

use crate::schedule::StepId;

/// A ring with a place for every step.
#[derive(Debug, Default)]
pub struct Ready {
    /// Their number is a power of two.
    places: Vec<StepId>,
    first: u32,
    end: u32,
}

impl Ready {
    /// Makes room for all steps of a schedule, and empties it.
    pub fn reserve(&mut self, steps: usize) {
        let places = steps.next_power_of_two().max(self.places.len());
        self.places.resize(places, 0);
        (self.first, self.end) = (0, 0);
    }

    /// Makes these steps its content.
    pub fn begin(&mut self, steps: &[StepId]) {
        self.places[..steps.len()].copy_from_slice(steps);
        (self.first, self.end) = (0, steps.len() as u32);
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.first == self.end
    }

    #[inline]
    pub fn push(&mut self, step: StepId) {
        let mask = self.places.len() - 1;
        self.places[self.end as usize & mask] = step;
        self.end = self.end.wrapping_add(1);
    }

    #[inline]
    pub fn pop(&mut self) -> Option<StepId> {
        if self.is_empty() {
            return None;
        }
        let mask = self.places.len() - 1;
        let step = self.places[self.first as usize & mask];
        self.first = self.first.wrapping_add(1);
        Some(step)
    }
}
