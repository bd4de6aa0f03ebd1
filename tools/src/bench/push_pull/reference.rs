//! What an optimizer makes of one weight: the rules that `linerate::options::Optimizer` states, in
//! plain f32 and apart from the library's code, and with the same bits.

use linerate::options::Optimizer;

/// A weight after these gradients, one a step.
pub fn weight_after(
    optimizer: Optimizer,
    rate: f32,
    weight: f32,
    gradients: impl Iterator<Item = f32>,
) -> f32 {
    let (mut weight, mut first, mut second) = (weight, 0f32, 0f32);
    for (number, gradient) in (1u64..).zip(gradients) {
        match optimizer {
            Optimizer::Sgd {
                momentum,
                weight_decay,
            } => {
                let direction = decayed(gradient, weight_decay, weight);
                first = match number {
                    1 => direction,
                    _ => momentum * first + direction,
                };
                weight -= rate * first;
            }
            Optimizer::Adam {
                betas,
                epsilon,
                weight_decay,
            } => {
                let direction = decayed(gradient, weight_decay, weight);
                let moved = moments((betas, epsilon), (rate, number), direction, [first, second]);
                weight -= moved.0;
                [first, second] = moved.1;
            }
            Optimizer::AdamW {
                betas,
                epsilon,
                weight_decay,
            } => {
                let moved = moments((betas, epsilon), (rate, number), gradient, [first, second]);
                let kept = 1.0 - f64::from(rate) * f64::from(weight_decay);
                weight = weight * kept as f32 - moved.0;
                [first, second] = moved.1;
            }
        }
    }
    weight
}

fn decayed(gradient: f32, weight_decay: f32, weight: f32) -> f32 {
    match weight_decay == 0.0 {
        true => gradient,
        false => gradient + weight_decay * weight,
    }
}

/// How far Adam moves a weight in a step, and the new mean of gradients and of their squares.
fn moments(
    (betas, epsilon): ((f32, f32), f32),
    (rate, number): (f32, u64),
    gradient: f32,
    [mean, square]: [f32; 2],
) -> (f32, [f32; 2]) {
    // Constants are computed in f64 and rounded once.
    let betas = [betas.0, betas.1].map(f64::from);
    let new = betas.map(|beta| (1.0 - beta) as f32);
    let [missing_mean, missing_square] = betas.map(|beta| 1.0 - power(beta, number));
    let size = (f64::from(rate) / missing_mean) as f32;
    let root = missing_square.sqrt() as f32;
    let mean = betas[0] as f32 * mean + new[0] * gradient;
    let square = betas[1] as f32 * square + new[1] * gradient * gradient;
    let moved = size * mean / (square.sqrt() / root + epsilon);
    (moved, [mean, square])
}

/// By squares, as the library multiplies: another order could round to another f32.
fn power(base: f64, exponent: u64) -> f64 {
    match exponent {
        0 => 1.0,
        _ => {
            let bits = u64::BITS - exponent.leading_zeros();
            let squares = std::iter::successors(Some(base), |square| Some(square * square));
            let used = (0..bits).zip(squares);
            let used = used.filter(|(bit, _)| exponent >> bit & 1 == 1);
            used.map(|(_, square)| square).product()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_those_that_were_computed_by_hand() {
        let after = |optimizer, rate, weight, gradients: &[f32]| {
            weight_after(optimizer, rate, weight, gradients.iter().copied())
        };
        // d = 1 + 0.25 * 2 = 1.5, w = 2 - 0.5 * 1.5 = 1.25; d = -1 + 0.25 * 1.25 = -0.6875,
        // b = 0.5 * 1.5 + d = 0.0625, w = 1.25 - 0.5 * 0.0625.
        let sgd = Optimizer::Sgd {
            momentum: 0.5,
            weight_decay: 0.25,
        };
        assert_eq!(after(sgd, 0.5, 2.0, &[1.0, -1.0]), 1.21875);
        // m = 1, v = 1; corrected 2 and 4; w = 1 - 0.25 * 2 / 2.5 = 0.8. m = -0.5, v = 1.75;
        // corrected -2 / 3 and 4; w = 0.8 + 1 / 15.
        let (betas, epsilon) = ((0.5, 0.75), 0.5);
        let adam = Optimizer::Adam {
            betas,
            epsilon,
            weight_decay: 0.0,
        };
        let found = after(adam, 0.25, 1.0, &[2.0, -2.0]);
        assert!((found - 13.0 / 15.0).abs() < 3e-7, "{found}");
        // The decay takes 0.25 * 0.5 of the weight before each step.
        let adamw = Optimizer::AdamW {
            betas,
            epsilon,
            weight_decay: 0.5,
        };
        let found = after(adamw, 0.25, 1.0, &[2.0, -2.0]);
        let expected = 0.875 * 0.675 + 1.0 / 15.0;
        assert!((found - expected).abs() < 3e-7, "{found} {expected}");
        assert_eq!(after(Optimizer::adam(), 1.0, 7.0, &[]), 7.0);
    }

    #[test]
    fn powers_are_products() {
        for exponent in 0..70 {
            assert_eq!(power(2.0, exponent), 2f64.powi(exponent as i32));
        }
    }
}
