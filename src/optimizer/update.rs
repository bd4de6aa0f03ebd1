//! [`Step`] and [`update`]: the numbers of one update, and the pass over a range of weights.

use super::options::Optimizer;
use crate::kernel::update as kernel;
use crate::kernel::update::{AnyRule, Descent, Intake, Moments, Momentum};

pub use crate::kernel::update::{Weights, has_nonfinite};

/// What is equal for all weights of one update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The rule; [`Optimizer::check`] accepts it.
    pub optimizer: Optimizer,
    /// The learning rate, in units of weight per unit of gradient (of Adam: in units of weight).
    pub rate: f32,
    /// Which update of the weights this is, from 1 on. The first one does not read the states.
    pub number: u64,
    /// Every gradient is multiplied by it before anything else; 1 leaves it as it is. No unit.
    pub scale: f32,
}

impl Step {
    /// The constants of the kernel. They are computed in f64 and rounded once.
    ///
    /// # Panics
    /// If the number is 0.
    fn rule(&self) -> AnyRule {
        assert!(self.number > 0, "steps are numbered from 1 on");
        let rate = f64::from(self.rate);
        match self.optimizer {
            Optimizer::Sgd {
                momentum,
                weight_decay,
            } => {
                let (intake, rate) = (self.intake(weight_decay), self.rate);
                match self.optimizer.states() {
                    0 => AnyRule::Descent(Descent { intake, rate }),
                    _ => AnyRule::Momentum(Momentum {
                        intake,
                        rate,
                        momentum,
                        is_first: self.number == 1,
                    }),
                }
            }
            Optimizer::Adam {
                betas,
                epsilon,
                weight_decay,
            } => self.moments(betas, epsilon, weight_decay, 1.0),
            Optimizer::AdamW {
                betas,
                epsilon,
                weight_decay,
            } => self.moments(betas, epsilon, 0.0, 1.0 - rate * f64::from(weight_decay)),
        }
    }

    fn intake(&self, decay: f32) -> Intake {
        Intake {
            scale: self.scale,
            decay,
        }
    }

    fn moments(&self, betas: (f32, f32), epsilon: f32, decay: f32, keep: f64) -> AnyRule {
        let betas = [betas.0, betas.1].map(f64::from);
        let [mean, square] = betas.map(|beta| 1.0 - power(beta, self.number));
        AnyRule::Moments(Moments {
            intake: self.intake(decay),
            rate: (f64::from(self.rate) / mean) as f32,
            keep: keep as f32,
            old: betas.map(|beta| beta as f32),
            new: betas.map(|beta| (1.0 - beta) as f32),
            root: square.sqrt() as f32,
            epsilon,
            is_first: self.number == 1,
        })
    }
}

/// `base` to the power `exponent` by multiplications alone, so that it has the same bits on every
/// machine, which the C library does not promise. The error is below `exponent` units in the last
/// place.
fn power(base: f64, exponent: u64) -> f64 {
    let (mut product, mut square, mut left) = (1.0, base, exponent);
    while left > 0 {
        if left % 2 == 1 {
            product *= square;
        }
        square *= square;
        left /= 2;
    }
    product
}

/// One pass over a range of weights: reads gradients, weights and states, and writes the new
/// weights and states.
///
/// Apart from what [`Weights`] allows, nothing overlaps. Calls on parts of the weights give the
/// bits of one call on all, in any order and at once. A size-only view makes the call do nothing.
///
/// # Panics
/// If the number of the step is 0, views differ in their number of elements, or a type is another
/// one.
pub fn update(step: &Step, weights: &Weights) {
    kernel::update(&step.rule(), weights);
}

/// [`update`], but SGD's new weights are written by streaming stores where they do not replace the
/// old ones: for weights that no cache holds, as the kernel's `is_for_streaming` decides it.
///
/// # Panics
/// As [`update`].
pub fn update_streaming(step: &Step, weights: &Weights) {
    kernel::update_streaming(&step.rule(), weights);
}
