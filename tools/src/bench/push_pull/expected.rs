//! What weights must be. Gradients are whole numbers that depend on the push and the element, and
//! equal on all workers. With SGD a weight is then a sum that tells lost, repeated and misplaced
//! pushes. With another optimizer it is what the rule makes of the pushes in their order.
//!
//! Push number `step` adds 1 to each weight, and 1 more to every third one, another third with each
//! push. So a slot that holds an older push is seen, and three weights beside each other have
//! together 4 for each push.

use super::{RATE, reference};
use crate::bench::values::Value;
use linerate::options::Optimizer;

/// Different gradients, which a worker pushes in turn.
pub const ROTATION: usize = 3;

/// What a push adds to three weights beside each other.
const ADDED_TO_ALL: u64 = ROTATION as u64 + 1;

/// What push number `step` of a worker adds to a weight.
pub fn added(step: u64, index: u64) -> i64 {
    1 + i64::from((step + index).is_multiple_of(ROTATION as u64))
}

/// What the first `steps` pushes of a worker add to a weight.
fn sum(steps: u64, index: u64) -> u64 {
    let rotation = ROTATION as u64;
    // The first push that adds 1 more.
    let first = (rotation - index % rotation) % rotation;
    steps + (steps + rotation - 1 - first) / rotation
}

/// The greatest weight after this number of pushes of one worker.
pub fn sum_max(steps: u64) -> u64 {
    sum(steps, 0)
}

/// Which weights are right at index 0, 1 and 2, and at every third index after each.
pub enum Expected {
    /// Sums within bounds.
    Sums {
        least: [u64; ROTATION],
        most: [u64; ROTATION],
    },
    /// The weights of a version.
    Weights {
        values: [f32; ROTATION],
        version: u64,
    },
}

impl Expected {
    /// After `own` pushes of this worker, and none to `all` pushes of each of the other authors.
    pub fn between(own: u64, all: u64, authors: u32) -> Expected {
        let others = u64::from(authors) - 1;
        Expected::Sums {
            least: std::array::from_fn(|index| sum(own, index as u64)),
            most: std::array::from_fn(|index| {
                sum(own, index as u64) + others * sum(all, index as u64)
            }),
        }
    }

    /// After `all` pushes of each author.
    pub fn exactly(all: u64, authors: u32) -> Expected {
        let sums = std::array::from_fn(|index| u64::from(authors) * sum(all, index as u64));
        Expected::Sums {
            least: sums,
            most: sums,
        }
    }

    /// After this number of pushes of the only author, from weights of 0 on, by this optimizer.
    pub fn trained(optimizer: Optimizer, steps: u64) -> Expected {
        let value = |index: usize| {
            let gradients = (0..steps).map(|step| -added(step, index as u64) as f32);
            reference::weight_after(optimizer, RATE, 0.0, gradients)
        };
        Expected::Weights {
            values: std::array::from_fn(value),
            version: steps,
        }
    }

    /// Wrong weights. Those of one shard must have the same pushes, as many as its version says.
    /// Shards are equally long, and have at least three elements.
    pub fn count_wrong<W: Value>(&self, weights: &[W], versions: &[u64]) -> u64 {
        let len = weights.len() / versions.len();
        let shards = weights.chunks_exact(len).zip(versions);
        let wrong = shards.enumerate().map(|(shard, (weights, &version))| {
            let start = shard * len;
            let mut sums = [0.0; ROTATION];
            for (index, weight) in (start..).zip(&weights[..ROTATION]) {
                sums[index % ROTATION] = weight.to_real();
            }
            if !self.is_right::<W>(sums, version) {
                return len as u64;
            }
            let all = (start..).zip(weights);
            all.filter(|(index, weight)| weight.to_real() != sums[index % ROTATION])
                .count() as u64
        });
        wrong.sum()
    }

    fn is_right<W: Value>(&self, found: [f64; ROTATION], version: u64) -> bool {
        match self {
            Expected::Sums { least, most } => {
                let bounds = least.iter().zip(most);
                let is_within = |(sum, (least, most)): (&f64, (&u64, &u64))| {
                    sum.fract() == 0.0 && (*least as f64..=*most as f64).contains(sum)
                };
                found.iter().zip(bounds).all(is_within)
                    && found.iter().sum::<f64>() == (ADDED_TO_ALL * version) as f64
            }
            Expected::Weights {
                values,
                version: expected,
            } => {
                let pulled = values.map(|value| W::from_real(f64::from(value)).to_real());
                found == pulled && version == *expected
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Weights after pushes with these numbers.
    fn weights(pushes: &[u64], count: usize) -> Vec<f32> {
        let of = |index: usize| pushes.iter().map(move |&push| added(push, index as u64));
        (0..count)
            .map(|index| of(index).sum::<i64>() as f32)
            .collect()
    }

    #[test]
    fn sums_are_those_of_the_pushes() {
        for steps in 0..10 {
            let pushes: Vec<u64> = (0..steps).collect();
            for (index, weight) in weights(&pushes, 7).into_iter().enumerate() {
                assert_eq!(sum(steps, index as u64) as f32, weight, "{steps} {index}");
            }
            assert_eq!(
                (0..3).map(|index| sum(steps, index)).sum::<u64>(),
                4 * steps
            );
        }
    }

    #[test]
    fn what_workers_can_have_made_is_right() {
        let exact = Expected::exactly(4, 1);
        assert_eq!(exact.count_wrong(&weights(&[0, 1, 2, 3], 64), &[4, 4]), 0);
        // Of two workers: all own pushes, and none, some or all of the other one.
        let expected = Expected::between(3, 4, 2);
        let none = weights(&[0, 1, 2], 32);
        assert_eq!(expected.count_wrong(&none, &[3]), 0);
        let some = weights(&[0, 1, 2, 0], 64);
        let both = [&none[..], &some[32..]].concat();
        assert_eq!(expected.count_wrong(&both, &[3, 4]), 0);
        let all = weights(&[0, 1, 2, 0, 1, 2, 3], 32);
        assert_eq!(expected.count_wrong(&all, &[7]), 0);
    }

    #[test]
    fn what_they_cannot_have_made_is_counted() {
        let exact = Expected::exactly(3, 1);
        // Lost, repeated in place of another one, and with a version that is another one's.
        for (pushes, version) in [(&[0, 1][..], 2), (&[0, 1, 1], 3), (&[0, 1, 2], 4)] {
            assert_eq!(exact.count_wrong(&weights(pushes, 32), &[version]), 32);
        }
        // Torn between two versions.
        let expected = Expected::between(3, 4, 2);
        let mut torn = weights(&[0, 1, 2, 0], 32);
        torn[30..].copy_from_slice(&weights(&[0, 1, 2], 32)[30..]);
        assert_eq!(expected.count_wrong(&torn, &[4]), 2);
        // Beside where it should be, not written, and outside of the bounds.
        let mut moved = weights(&[0, 1], 32);
        moved.rotate_left(1);
        assert_eq!(Expected::exactly(2, 1).count_wrong(&moved, &[2]), 32);
        assert_eq!(exact.count_wrong(&[f32::NAN; 32], &[3]), 32);
        let fewer = weights(&[0, 1], 32);
        assert_eq!(expected.count_wrong(&fewer, &[2]), 32);
    }

    #[test]
    fn weights_of_an_optimizer_with_a_state_tell_lost_and_moved_pushes() {
        // The first two steps: b = -2, w = 2; b = 0.5 * -2 - 1 = -2, w = 4; and -1, 1, then
        // -0.5 - 1 = -1.5 and 2.5, and -0.5 - 2 = -2.5 and 3.5.
        let momentum = Optimizer::momentum(0.5);
        let weights: Vec<f32> = [4.0, 2.5, 3.5].into_iter().cycle().take(32).collect();
        let expected = Expected::trained(momentum, 2);
        assert_eq!(expected.count_wrong(&weights, &[2]), 0);
        assert_eq!(expected.count_wrong(&weights, &[1]), 32);
        assert_eq!(
            Expected::trained(momentum, 3).count_wrong(&weights, &[3]),
            32
        );
        let mut torn = weights.clone();
        torn[31] = 1.0;
        assert_eq!(expected.count_wrong(&torn, &[2]), 1);
        torn.rotate_left(1);
        assert_eq!(expected.count_wrong(&torn, &[2]), 32);
    }
}
