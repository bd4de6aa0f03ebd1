//! The skew benchmark in virtual time: the library's own decisions, with signals that take no time
//! and rounds that take a given one, so that what follows from the skew holds exactly.

use super::{Row, SkewArgs, policy_of};
use crate::arithmetic::summarise;
use crate::virtual_time::{Fabric, Job, run};
use linerate::PartialOptions;
use linerate::reports::RoundReport;
use std::time::Duration;

/// Bytes per second of a 100 Gbit/s link.
const BYTES_PER_SECOND: f64 = 12.5e9;

/// How long a round takes once it has begun: `t_ms` and twice the vector over a link of 100 Gbit/s.
fn round_time(t_ms: f64, ranks: u32, bytes: u64) -> Duration {
    let share = f64::from(ranks - 1) / f64::from(ranks);
    Duration::from_secs_f64(t_ms / 1e3 + 2.0 * share * bytes as f64 / BYTES_PER_SECOND)
}

/// All rows.
pub fn simulate_all(args: &SkewArgs, ranks: u32) -> linerate::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for &bytes in &args.sizes {
        for name in &args.policies(ranks) {
            rows.push(simulate(args, ranks, name, bytes)?);
        }
    }
    Ok(rows)
}

fn simulate(args: &SkewArgs, ranks: u32, name: &str, bytes: u64) -> linerate::Result<Row> {
    let policy = policy_of(name).expect("it was checked");
    let job = Job {
        ranks,
        steps: u64::from(args.rounds),
        options: PartialOptions {
            policy,
            staleness_max: Some(2),
            ..PartialOptions::default()
        },
        fabric: Fabric {
            signal: Duration::ZERO,
            reduction: round_time(args.sim_t_ms, ranks, bytes),
        },
        has_barrier: true,
    };
    let skew = Duration::from_secs_f64(args.skew_ms / 1e3);
    let history = run(&job, |rank, _| skew * (rank + 1))?;
    let in_ms = |waits: &Vec<Duration>| waits.iter().map(|w| w.as_secs_f64() * 1e3).collect();
    let latencies: Vec<Vec<f64>> = history.waits.iter().map(in_ms).collect();
    let naps: Vec<u32> = (history.rounds.iter())
        .map(RoundReport::active_count)
        .collect();
    // Every generation is submitted in its round, so it is in that or in the next one. Only those
    // that are late in the last round may be missing.
    let included: u64 = history.rounds.iter().map(RoundReport::generations).sum();
    let late_last = u64::from(ranks - naps.last().copied().unwrap_or(0));
    let wanted = u64::from(ranks) * u64::from(args.rounds) - late_last;
    Ok(Row {
        name: name.to_string(),
        policy,
        bytes,
        first_round: 0,
        measured: summarise(policy, 0, &latencies, &naps),
        wrong: wanted.abs_diff(included),
    })
}
