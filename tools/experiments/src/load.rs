//! [`Load`]: how long a step of a rank takes where ranks are not alike. Times in milliseconds.
//!
//! The three measured distributions are known by their least, greatest and mean time and their
//! deviation (Li et al., "Taming Unbalanced Training Workloads in Deep Learning with Partial
//! Collective Operations", PPoPP 2020). A beta distribution between the two ends has exactly these
//! four figures, and nothing more is known: its two shapes follow from mean and deviation.

use super::digits::shuffle;
use linerate::unstable::prng::{Prng, mix};
use rand_core::TryRng;
use rand_distr::{Beta, Distribution};
use std::convert::Infallible;

/// What a distribution is known by, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    pub name: &'static str,
    pub least: f64,
    pub greatest: f64,
    pub mean: f64,
    pub deviation: f64,
}

/// A batch of ResNet-50 on a cloud instance.
pub const CLOUD: Measured = Measured {
    name: "cloud",
    least: 399.0,
    greatest: 1892.0,
    mean: 454.0,
    deviation: 116.0,
};
/// A batch of sentences of WMT16 through a Transformer.
pub const WMT16: Measured = Measured {
    name: "wmt16",
    least: 179.0,
    greatest: 3482.0,
    mean: 475.0,
    deviation: 144.0,
};
/// A batch of videos of UCF101 through an LSTM.
pub const UCF101: Measured = Measured {
    name: "ucf101",
    least: 201.0,
    greatest: 3410.0,
    mean: 1235.0,
    deviation: 706.0,
};

impl Measured {
    /// The shapes of the beta distribution between the two ends with this mean and deviation.
    pub fn shapes(&self) -> (f64, f64) {
        let width = self.greatest - self.least;
        let mean = (self.mean - self.least) / width;
        let variance = (self.deviation / width).powi(2);
        let sum = mean * (1.0 - mean) / variance - 1.0;
        (mean * sum, (1.0 - mean) * sum)
    }

    /// The fit in words.
    pub fn fit(&self) -> String {
        let (first, second) = self.shapes();
        format!(
            "{} to {} ms, mean {}, deviation {}: beta({first:.3}, {second:.3}) between the ends, which has these four figures",
            self.least, self.greatest, self.mean, self.deviation
        )
    }

    fn draw(&self, bits: &mut Bits) -> f64 {
        let (first, second) = self.shapes();
        let beta = Beta::new(first, second).expect("shapes above 0");
        self.least + (self.greatest - self.least) * beta.sample(bits)
    }
}

/// How long a step takes on each rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// `count` ranks, drawn anew in each step, take `delay` longer.
    SomeDelayed {
        compute: f64,
        delay: f64,
        count: u32,
    },
    /// Rank i of P takes from `least` to `greatest` longer, evenly spread. With `rotates`, i moves
    /// on by one rank in each step.
    Skewed {
        compute: f64,
        least: f64,
        greatest: f64,
        rotates: bool,
    },
    /// Drawn for each rank and step.
    Drawn(Measured),
}

impl Load {
    /// Milliseconds that a step takes on a rank, whichever rank asks.
    pub fn time(&self, (rank, ranks): (u32, u32), step: u64, seed: u64) -> f64 {
        let of_step = || Prng::new(mix(seed ^ mix(step)));
        match *self {
            Load::SomeDelayed {
                compute,
                delay,
                count,
            } => {
                let mut order: Vec<u32> = (0..ranks).collect();
                shuffle(&mut order, &mut of_step());
                let is_delayed = order.iter().take(count as usize).any(|&one| one == rank);
                compute + if is_delayed { delay } else { 0.0 }
            }
            Load::Skewed {
                compute,
                least,
                greatest,
                rotates,
            } => {
                let turn = if rotates { step } else { 0 };
                let place = (u64::from(rank) + turn) % u64::from(ranks);
                let share = place as f64 / f64::from(ranks - 1).max(1.0);
                compute + least + (greatest - least) * share
            }
            Load::Drawn(measured) => {
                let mut bits = Bits(Prng::new(mix(seed ^ mix(step) ^ mix(u64::from(rank) + 1))));
                measured.draw(&mut bits)
            }
        }
    }
}

/// The project's generator, with the trait that distributions need.
struct Bits(Prng);

impl TryRng for Bits {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok((self.0.next_u64() >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.0.next_u64())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.0.next_u64().to_le_bytes()[..chunk.len()]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_has_the_measured_figures() {
        for measured in [CLOUD, WMT16, UCF101] {
            let count = 200_000;
            let load = Load::Drawn(measured);
            let times = (0..count).map(|step| load.time((3, 8), step, 1));
            let times: Vec<f64> = times.collect();
            let mean = times.iter().sum::<f64>() / count as f64;
            let squares: f64 = times.iter().map(|t| (t - mean).powi(2)).sum();
            let deviation = (squares / count as f64).sqrt();
            let (least, most) = times.iter().fold((f64::MAX, 0.0f64), |(low, high), &time| {
                (low.min(time), high.max(time))
            });
            assert!((mean / measured.mean - 1.0).abs() < 0.01, "{mean}");
            assert!(
                (deviation / measured.deviation - 1.0).abs() < 0.03,
                "{deviation}"
            );
            assert!(least >= measured.least && most <= measured.greatest);
        }
    }

    #[test]
    fn as_many_ranks_as_asked_are_delayed_in_each_step_and_each_of_them_in_its_share() {
        let load = Load::SomeDelayed {
            compute: 610.0,
            delay: 300.0,
            count: 2,
        };
        let mut delayed = [0; 8];
        for step in 0..4000 {
            let of_step = (0..8).filter(|&rank| load.time((rank, 8), step, 9) > 610.0);
            let of_step = Vec::from_iter(of_step);
            assert_eq!(of_step.len(), 2);
            of_step.iter().for_each(|&rank| delayed[rank as usize] += 1);
        }
        assert!(
            delayed.iter().all(|&count| (900..1100).contains(&count)),
            "{delayed:?}"
        );
    }

    #[test]
    fn a_skew_reaches_every_rank_in_turn() {
        let load = Load::Skewed {
            compute: 0.0,
            least: 50.0,
            greatest: 400.0,
            rotates: true,
        };
        let times = (0..8).map(|rank| load.time((rank, 8), 0, 1));
        let times: Vec<f64> = times.collect();
        assert_eq!(
            times,
            [50.0, 100.0, 150.0, 200.0, 250.0, 300.0, 350.0, 400.0]
        );
        let of_rank: f64 = (0..8).map(|step| load.time((2, 8), step, 1)).sum();
        assert_eq!(of_rank, times.iter().sum::<f64>());
        assert_eq!(load.time((0, 1), 0, 1), 50.0);
    }
}
