//! The latency that a partial allreduce should have when rank i arrives i times the skew after rank
//! 0, and summaries of measured latencies.
//!
//! Let t be the time of a round once it has begun, and below the skew. A rank that arrives before
//! the round begins waits for that and for t. One that arrives later finds the result there.

use linerate::unstable::partial::initiator;
use linerate::{PartialOptions, Policy};

/// Means over ranks and rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    pub mean_ms: f64,
    /// Median over the rounds of the time of the rank whose arrival begins them.
    pub initiator_p50_ms: f64,
    /// Mean and median time of the calls that find their result there; 0 without such calls. The
    /// mean enters the expected mean.
    pub ready_mean_ms: f64,
    pub ready_p50_ms: f64,
    pub nap_mean: f64,
}

/// The rank whose arrival begins a round, if ranks arrive in their order.
pub fn beginner(policy: Policy, round: u64, ranks: u32) -> u32 {
    match policy {
        Policy::RandomInitiator { seed } => initiator(seed, round, 0, ranks),
        _ => {
            let options = PartialOptions {
                policy,
                ..PartialOptions::default()
            };
            options.quorum(ranks) - 1
        }
    }
}

/// The mean latency that follows from the skew, t, and the cost of a call that finds its result. In
/// each round the ranks i up to the beginner r wait (r - i) * skew + t, and the others pay for the
/// call. The beginners are those that these rounds had, not expected ones.
pub fn expected_ms(
    policy: Policy,
    rounds: std::ops::Range<u64>,
    ranks: u32,
    skew_ms: f64,
    (t_ms, ready_ms): (f64, f64),
) -> f64 {
    let count = rounds.end - rounds.start;
    let of_round = |round| {
        let place = f64::from(beginner(policy, round, ranks));
        let others = f64::from(ranks) - place - 1.0;
        place * (place + 1.0) / 2.0 * skew_ms + (place + 1.0) * t_ms + others * ready_ms
    };
    rounds.map(of_round).sum::<f64>() / count as f64 / f64::from(ranks)
}

/// Summarises latencies by rank and round, and active ranks by round.
pub fn summarise(
    policy: Policy,
    first_round: u64,
    latencies_ms: &[Vec<f64>],
    naps: &[u32],
) -> Measured {
    let (ranks, rounds) = (latencies_ms.len() as u32, naps.len());
    let all: f64 = latencies_ms.iter().flatten().sum();
    let (mut own, mut ready) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let place = beginner(policy, first_round + round as u64, ranks) as usize;
        own.push(latencies_ms[place][round]);
        ready.extend(latencies_ms[place + 1..].iter().map(|rank| rank[round]));
    }
    Measured {
        mean_ms: all / (rounds as f64 * f64::from(ranks)),
        initiator_p50_ms: median(own).unwrap_or(0.0),
        ready_mean_ms: ready.iter().fold(0.0, |sum, x| sum + x) / ready.len().max(1) as f64,
        ready_p50_ms: median(ready).unwrap_or(0.0),
        nap_mean: naps.iter().map(|&nap| f64::from(nap)).sum::<f64>() / rounds as f64,
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_latencies_are_those_of_the_formulas() {
        let (p, t) = (32.0, 0.25);
        let of = |policy| expected_ms(policy, 0..64, 32, 1.0, (t, 0.0));
        assert!((of(Policy::Full) - (15.5 + t)).abs() < 1e-9);
        assert!((of(Policy::Solo) - t / p).abs() < 1e-9);
        let call = expected_ms(Policy::Solo, 0..64, 32, 1.0, (t, 0.1));
        assert!((call - (t + 3.1) / p).abs() < 1e-9);
        assert!((of(Policy::Majority) - (3.75 + t / 2.0)).abs() < 1e-9);
        assert!((of(Policy::Quorum(8)) - (8.0 * 7.0 / 64.0 + t / 4.0)).abs() < 1e-9);
        let random = expected_ms(
            Policy::RandomInitiator { seed: 1 },
            0..100_000,
            32,
            1.0,
            (0.0, 0.0),
        );
        assert!(
            (random - (p * p - 1.0) / (6.0 * p)).abs() < 0.05,
            "{random}"
        );
    }

    #[test]
    fn a_summary_takes_the_time_of_the_rank_that_begins() {
        let latencies = vec![vec![3.0, 5.0, 4.0], vec![1.0, 1.0, 10.0]];
        let solo = summarise(Policy::Solo, 0, &latencies, &[1, 1, 2]);
        assert_eq!((solo.mean_ms, solo.initiator_p50_ms), (4.0, 4.0));
        assert_eq!((solo.ready_p50_ms, solo.ready_mean_ms), (1.0, 4.0));
        assert!((solo.nap_mean - 4.0 / 3.0).abs() < 1e-12);
        let full = summarise(Policy::Full, 0, &latencies, &[2; 3]);
        assert_eq!((full.initiator_p50_ms, full.ready_mean_ms), (1.0, 0.0));
    }
}
