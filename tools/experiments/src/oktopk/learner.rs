//! [`Learner`]: what each rank trains: a classifier of digits, on its own share of them.
//!
//! Gradients are rounded to whole steps of [`GRID`], so that all sums of them are exact. What is
//! applied and kept can then be compared with what was computed to the last bit.

use crate::digits::Share;
use crate::model::{Classifier, Verdict};

/// This gives 19,210 parameters, and 1 % of them are 192.
const HIDDEN: usize = 256;
/// Images of a rank in a batch.
const BATCH: usize = 16;
/// Sums of f32 are exact below 2^24 steps, which are 64.
pub const GRID: f32 = 1.0 / 262_144.0;

pub struct Learner {
    model: Classifier,
    images: Share,
}

impl Learner {
    pub fn new(place: (u32, u32), seed: u64) -> Learner {
        Learner {
            model: Classifier::new(HIDDEN),
            images: Share::new(place, seed),
        }
    }

    /// Parameters to begin with, the same on all ranks.
    pub fn start(&self, seed: u64) -> Vec<f32> {
        self.model.start(seed)
    }

    /// The mean gradient of this rank's batch, in whole steps of the grid.
    pub fn compute(&mut self, parameters: &[f32], step: u32, gradient: &mut [f32]) {
        gradient.fill(0.0);
        let images = self.images.batch(step, BATCH);
        self.model.add_gradient(parameters, &images, gradient);
        for slope in gradient {
            *slope = (*slope / GRID).round() * GRID;
        }
    }

    /// Loss and accuracy on the digits of the test.
    pub fn judge(&mut self, parameters: &[f32]) -> Verdict {
        self.model.judge(parameters, self.images.test())
    }
}
