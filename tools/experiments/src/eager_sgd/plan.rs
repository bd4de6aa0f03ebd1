//! [`Trial`]: one kind of run, and the paper's figures of it.

use super::Workload;
use crate::load::{CLOUD, Load, Measured, UCF101, WMT16};
use linerate::Policy;

/// How ranks bring their gradients together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scheme {
    /// An ordinary allreduce: each rank waits for all.
    Synchronous,
    /// A partial allreduce.
    Partial(Policy),
}

impl Scheme {
    pub fn name(&self) -> String {
        match self {
            Scheme::Synchronous => "synchronous".into(),
            Scheme::Partial(Policy::Solo) => "solo".into(),
            Scheme::Partial(Policy::Majority) => "majority".into(),
            Scheme::Partial(Policy::RandomInitiator { .. }) => "random".into(),
            Scheme::Partial(Policy::Quorum(quorum)) => format!("quorum {quorum}"),
            Scheme::Partial(other) => format!("{other:?}").to_lowercase(),
        }
    }
}

/// What is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    Hyperplane,
    Digits,
}

/// One kind of run.
#[derive(Clone, Debug)]
pub struct Trial {
    pub workload: Workload,
    pub task: Task,
    /// Times of the paper.
    pub load: Load,
    pub scheme: Scheme,
    /// Most rounds that a gradient may come late.
    pub staleness: u32,
    /// The paper's speed-up over synchronous steps.
    pub paper: Option<f64>,
    /// The speed-up if communication took no time and each rank were delayed by its own delays
    /// only.
    pub ideal: Option<f64>,
}

impl Trial {
    /// What is varied besides the scheme, for a table.
    pub fn setting(&self) -> String {
        match self.load {
            Load::SomeDelayed { delay, .. } => format!("{delay:.0} ms"),
            _ if self.workload == Workload::Quorum => format!("tau {}", self.staleness),
            _ => String::new(),
        }
    }
}

/// Computation of a step of the hyperplane, for which the paper gives delays and speed-ups only.
/// With this one, a rank that pays for its own delays only is 1.28, 1.41 and 1.53 times as fast.
const HYPERPLANE_MS: f64 = 610.0;
/// The paper's delays in milliseconds, and the speed-ups of solo.
const HYPERPLANE_DELAYS: [(f64, f64); 3] = [(200.0, 1.50), (300.0, 1.75), (400.0, 2.01)];
/// Computation beside a skew of 50 to 400 ms: with it an ideal majority has the paper's speed-up.
const SEVERE_MS: f64 = 378.0;
const SEVERE_LEAST_MS: f64 = 50.0;
const SEVERE_GREATEST_MS: f64 = 400.0;
/// Samples of the hyperplane on a rank: 32,768 on the paper's 8.
pub const HYPERPLANE_SAMPLES: usize = 4096;
pub const HYPERPLANE_DIMENSIONS: usize = 8192;
/// A rank's part of a batch of 2048 on 8 ranks.
pub const HYPERPLANE_BATCH: usize = 256;

const RANDOM: Policy = Policy::RandomInitiator { seed: 6_545_343 };
pub const SCHEMES: [Scheme; 4] = [
    Scheme::Synchronous,
    Scheme::Partial(Policy::Solo),
    Scheme::Partial(Policy::Majority),
    Scheme::Partial(RANDOM),
];

/// What a rank has in memory.
pub fn memory_bytes(workloads: &[Workload], ranks: u32) -> u64 {
    let samples = match workloads.contains(&Workload::Hyperplane) {
        true => HYPERPLANE_SAMPLES * HYPERPLANE_DIMENSIONS,
        false => 0,
    };
    // Programs, buffers and the digits beside them.
    (samples + (32 << 20) + ranks as usize * 4096) as u64
}

/// All kinds of runs of a workload.
pub fn trials(workload: Workload, ranks: u32, staleness: u32) -> Vec<Trial> {
    let trial = |load, scheme, paper, ideal| Trial {
        workload,
        task: match workload {
            Workload::Hyperplane => Task::Hyperplane,
            _ => Task::Digits,
        },
        load,
        scheme,
        staleness,
        paper,
        ideal,
    };
    let drawn = |measured: Measured, solo: Option<f64>, majority: Option<f64>| {
        let of_scheme = |scheme| {
            let paper = match scheme {
                Scheme::Partial(Policy::Solo) => solo,
                Scheme::Partial(RANDOM) => majority,
                _ => None,
            };
            trial(Load::Drawn(measured), scheme, paper, None)
        };
        SCHEMES.map(of_scheme).to_vec()
    };
    match workload {
        Workload::Hyperplane => {
            let of_delay = |(delay, solo): (f64, f64)| {
                let load = Load::SomeDelayed {
                    compute: HYPERPLANE_MS,
                    delay,
                    count: 1,
                };
                SCHEMES.map(|scheme| {
                    let slowest = HYPERPLANE_MS + delay;
                    let ideal = slowest / (HYPERPLANE_MS + delay / f64::from(ranks));
                    let paper = (scheme == Scheme::Partial(Policy::Solo)).then_some(solo);
                    let is_partial = scheme != Scheme::Synchronous;
                    trial(load, scheme, paper, is_partial.then_some(ideal))
                })
            };
            HYPERPLANE_DELAYS.into_iter().flat_map(of_delay).collect()
        }
        Workload::Severe => {
            let of_scheme = |scheme| {
                // The paper's majority is the random initiator.
                let paper = (scheme == Scheme::Partial(RANDOM)).then_some(1.29);
                trial(severe(true), scheme, paper, None)
            };
            SCHEMES.map(of_scheme).to_vec()
        }
        Workload::Cloud => drawn(CLOUD, None, None),
        Workload::Wmt16 => drawn(WMT16, None, None),
        Workload::Ucf101 => drawn(UCF101, Some(1.64), Some(1.27)),
        Workload::Quorum => {
            let quorums = [1, ranks.div_ceil(4), ranks.div_ceil(2), ranks - 1, ranks];
            let of_bound = |staleness| {
                quorums.map(|quorum| Trial {
                    staleness,
                    ..trial(
                        severe(false),
                        Scheme::Partial(Policy::Quorum(quorum)),
                        None,
                        None,
                    )
                })
            };
            [1, 2, 4, 8].into_iter().flat_map(of_bound).collect()
        }
        // Not trained (`scale.rs`).
        Workload::Resnet50 => Vec::new(),
    }
}

/// With `rotates`, another rank is the slowest in each step. Else it is always one rank, which
/// falls behind as far as it may.
fn severe(rotates: bool) -> Load {
    Load::Skewed {
        compute: SEVERE_MS,
        least: SEVERE_LEAST_MS,
        greatest: SEVERE_GREATEST_MS,
        rotates,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ideal_of_the_hyperplane_is_that_of_a_rank_with_its_own_delays() {
        let ideals: Vec<f64> = trials(Workload::Hyperplane, 8, 8)
            .iter()
            .filter(|trial| trial.scheme == Scheme::Partial(Policy::Solo))
            .map(|trial| (trial.ideal.unwrap() * 100.0).round() / 100.0)
            .collect();
        assert_eq!(ideals, [1.28, 1.41, 1.53]);
    }

    #[test]
    fn every_workload_begins_with_what_the_others_are_compared_with() {
        for workload in [
            Workload::Hyperplane,
            Workload::Severe,
            Workload::Cloud,
            Workload::Wmt16,
            Workload::Ucf101,
        ] {
            let all = trials(workload, 8, 8);
            assert!(all.chunks(SCHEMES.len()).all(|group| {
                let settings: Vec<String> = group.iter().map(Trial::setting).collect();
                group[0].scheme == Scheme::Synchronous && settings.iter().all(|s| *s == settings[0])
            }));
        }
        assert_eq!(trials(Workload::Quorum, 8, 8).len(), 20);
    }
}
