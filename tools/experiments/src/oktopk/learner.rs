//! [`Learner`]: what each rank trains: a classifier of digits, on its own share of them.
//!
//! Gradients are rounded to whole steps of [`GRID`], so that all sums of them are exact and what is
//! applied and what is kept can be compared with what was computed to the last bit.

use crate::digits::{Digits, Image, shuffle};
use crate::model::{Classifier, Verdict};
use linerate::unstable::prng::{Prng, mix};

/// 19,210 parameters: 192 of them are 1 %.
const HIDDEN: usize = 256;
/// Images of a rank in a batch.
const BATCH: usize = 16;
/// Sums of f32 are exact below 2^24 steps: 64.
pub const GRID: f32 = 1.0 / 262_144.0;

pub struct Learner {
    model: Classifier,
    digits: Digits,
    /// This rank's images, in the order of an epoch.
    own: Vec<usize>,
}

impl Learner {
    pub fn new((rank, ranks): (u32, u32), seed: u64) -> Learner {
        let digits = Digits::load();
        let mine = (0..digits.training.len()).filter(|i| *i as u32 % ranks == rank);
        let mut own: Vec<usize> = mine.collect();
        shuffle(
            &mut own,
            &mut Prng::new(mix(seed ^ mix(u64::from(rank) + 1))),
        );
        Learner {
            model: Classifier::new(HIDDEN),
            digits,
            own,
        }
    }

    /// Parameters to begin with, the same on all ranks.
    pub fn start(&self, seed: u64) -> Vec<f32> {
        self.model.start(seed)
    }

    /// The mean gradient of this rank's batch, in whole steps of the grid.
    pub fn compute(&mut self, parameters: &[f32], step: u32, gradient: &mut [f32]) {
        gradient.fill(0.0);
        let place = |i| self.own[(step as usize * BATCH + i) % self.own.len()];
        let images: Vec<&Image> = (0..BATCH)
            .map(|i| &self.digits.training[place(i)])
            .collect();
        self.model.add_gradient(parameters, &images, gradient);
        for slope in gradient {
            *slope = (*slope / GRID).round() * GRID;
        }
    }

    /// Loss and accuracy on the digits of the test.
    pub fn judge(&mut self, parameters: &[f32]) -> Verdict {
        self.model.judge(parameters, &self.digits.test)
    }
}
