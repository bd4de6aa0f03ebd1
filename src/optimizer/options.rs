//! [`Optimizer`]: which rule, and its numbers.

use crate::error::{Error, Result};

/// How weights follow gradients.
///
/// `g` is a gradient, `w` its weight, `t` the number of the step from 1 on. The rules are those of
/// PyTorch 2, with its defaults where this has no field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// Stochastic gradient descent, as `torch.optim.SGD` without dampening and without Nesterov's
    /// variant: `d = g + weight_decay * w`, `b = momentum * b + d` (in the first step `b = d`), and
    /// `w -= rate * b`.
    Sgd {
        /// How much of the last step's direction remains, at least 0; no unit. 0: a weight has no
        /// state.
        momentum: f32,
        /// How much of the weight is added to its gradient, at least 0; no unit.
        weight_decay: f32,
    },
    /// Adam (Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, arXiv
    /// 1412.6980), as `torch.optim.Adam`: `d = g + weight_decay * w`,
    /// `m = betas.0 * m + (1 - betas.0) * d`, `v = betas.1 * v + (1 - betas.1) * d * d`, and
    /// `w -= rate / (1 - betas.0^t) * m / (sqrt(v) / sqrt(1 - betas.1^t) + epsilon)`.
    Adam {
        /// How much of the mean of the gradients, and of that of their squares, remains in a step:
        /// from 0 to below 1; no unit.
        betas: (f32, f32),
        /// What is added to the divisor, at least 0, in units of a gradient.
        epsilon: f32,
        /// How much of the weight is added to its gradient, at least 0; no unit.
        weight_decay: f32,
    },
    /// Adam with decoupled weight decay (Loshchilov and Hutter, "Decoupled Weight Decay
    /// Regularization", ICLR 2019, arXiv 1711.05101), as `torch.optim.AdamW`: `w` is first
    /// multiplied by `1 - rate * weight_decay`, and then moves as in Adam with `d = g`.
    AdamW {
        /// As in [`Optimizer::Adam`].
        betas: (f32, f32),
        /// As in [`Optimizer::Adam`].
        epsilon: f32,
        /// How much of the weight goes per unit of the rate, at least 0; no unit.
        weight_decay: f32,
    },
}

impl Optimizer {
    /// SGD without momentum and weight decay.
    pub fn sgd() -> Optimizer {
        Optimizer::momentum(0.0)
    }

    /// SGD with momentum and without weight decay.
    pub fn momentum(momentum: f32) -> Optimizer {
        Optimizer::Sgd {
            momentum,
            weight_decay: 0.0,
        }
    }

    /// Adam with PyTorch's defaults: betas of 0.9 and 0.999, an epsilon of 1e-8, no weight decay.
    pub fn adam() -> Optimizer {
        Optimizer::Adam {
            betas: (0.9, 0.999),
            epsilon: 1e-8,
            weight_decay: 0.0,
        }
    }

    /// AdamW with PyTorch's defaults: as [`Optimizer::adam`], and a weight decay of 0.01.
    pub fn adamw() -> Optimizer {
        Optimizer::AdamW {
            betas: (0.9, 0.999),
            epsilon: 1e-8,
            weight_decay: 0.01,
        }
    }

    /// Looks whether the numbers are in their ranges.
    ///
    /// # Errors
    /// One is not; the text has its name, its value and the range.
    pub fn check(&self) -> Result<()> {
        match *self {
            Optimizer::Sgd {
                momentum,
                weight_decay,
            } => {
                check_least("SGD", "momentum", momentum)?;
                check_least("SGD", "weight_decay", weight_decay)
            }
            Optimizer::Adam {
                betas,
                epsilon,
                weight_decay,
            } => check_adam("Adam", betas, epsilon, weight_decay),
            Optimizer::AdamW {
                betas,
                epsilon,
                weight_decay,
            } => check_adam("AdamW", betas, epsilon, weight_decay),
        }
    }

    /// How many f32 of state a weight has: 0, 1 or 2.
    pub fn states(&self) -> usize {
        match *self {
            Optimizer::Sgd { momentum: 0.0, .. } => 0,
            Optimizer::Sgd { .. } => 1,
            Optimizer::Adam { .. } | Optimizer::AdamW { .. } => 2,
        }
    }
}

fn check_adam(rule: &str, betas: (f32, f32), epsilon: f32, weight_decay: f32) -> Result<()> {
    for (name, beta) in [("betas.0", betas.0), ("betas.1", betas.1)] {
        if !(0.0..1.0).contains(&beta) {
            return Err(Error::invalid(format!(
                "{rule}: {name} is {beta}: it must be at least 0 and below 1"
            )));
        }
    }
    check_least(rule, "epsilon", epsilon)?;
    check_least(rule, "weight_decay", weight_decay)
}

/// Refuses what is below 0 or not finite.
fn check_least(rule: &str, name: &str, value: f32) -> Result<()> {
    match value.is_finite() && value >= 0.0 {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "{rule}: {name} is {value}: it must be finite and at least 0"
        ))),
    }
}
