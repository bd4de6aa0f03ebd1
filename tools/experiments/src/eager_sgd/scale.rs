//! ResNet-50 on 64 ranks of which 4 are delayed: the times of steps, in virtual time.

use super::plan::{SCHEMES, Scheme};
use crate::load::Load;
use crate::virtual_time::{Fabric, History, Job, run};
use linerate::{PartialOptions, Policy};
use std::time::Duration;

const RANKS: u32 = 64;
const DELAYED: u32 = 4;
/// Delays of the paper in milliseconds, and how many times as fast solo was as two synchronous
/// libraries.
const DELAYS: [(f64, &str); 2] = [(300.0, "1.25, 1.14"), (460.0, "1.23, 1.22")];
/// Computation of a step: with it, synchronous steps with 460 ms of delay are as slow as the
/// paper's, 1.15 / 1.23 a second.
const COMPUTE_MS: f64 = 610.0;
/// A signal of a current fabric. The allreduce is a ring of 25,559,081 f32 at 10 GB/s, in which
/// each message takes as long as a signal besides.
const SIGNAL: Duration = Duration::from_nanos(1500);
const PARAMETERS: f64 = 25_559_081.0;
const BYTES_PER_SECOND: f64 = 10e9;

/// One kind of run.
#[derive(Clone, Debug)]
pub struct ScaleRow {
    pub delay_ms: f64,
    pub scheme: Scheme,
    pub steps_per_second: f64,
    pub speedup: f64,
    /// The speed-up if communication took no time and each rank were delayed by its own delays
    /// only.
    pub ideal: f64,
    pub paper: &'static str,
    pub mean_active: f64,
    /// The mean wait of a rank for a result.
    pub mean_wait_ms: f64,
}

/// Every delay with every scheme.
pub fn run_all(steps: u32, staleness: u32, seed: u64) -> Result<Vec<ScaleRow>, String> {
    let mut rows: Vec<ScaleRow> = Vec::new();
    for (delay, paper) in DELAYS {
        let mut synchronous = None;
        for scheme in SCHEMES {
            let history = run_one(scheme, delay, (steps, staleness), seed)?;
            let seconds = history.end.0 as f64 * 1e-9;
            let base = *synchronous.get_or_insert(seconds);
            rows.push(ScaleRow {
                delay_ms: delay,
                scheme,
                steps_per_second: f64::from(steps) / seconds,
                speedup: base / seconds,
                ideal: (COMPUTE_MS + delay)
                    / (COMPUTE_MS + delay * f64::from(DELAYED) / f64::from(RANKS)),
                paper,
                mean_active: history.mean_active(),
                mean_wait_ms: history.mean_wait_ms(),
            });
        }
    }
    Ok(rows)
}

fn run_one(
    scheme: Scheme,
    delay: f64,
    (steps, staleness): (u32, u32),
    seed: u64,
) -> Result<History, String> {
    let load = Load::SomeDelayed {
        compute: COMPUTE_MS,
        delay,
        count: DELAYED,
    };
    let policy = match scheme {
        Scheme::Synchronous => Policy::Full,
        Scheme::Partial(policy) => policy,
    };
    let rounds = 2.0 * f64::from(RANKS - 1);
    let bytes = 4.0 * PARAMETERS / f64::from(RANKS);
    let job = Job {
        ranks: RANKS,
        steps: u64::from(steps),
        options: PartialOptions {
            policy,
            staleness_max: Some(staleness),
            ..PartialOptions::default()
        },
        fabric: Fabric {
            signal: SIGNAL,
            reduction: SIGNAL.mul_f64(rounds)
                + Duration::from_secs_f64(rounds * bytes / BYTES_PER_SECOND),
        },
        has_barrier: false,
    };
    let compute = |rank, step| {
        let ms = load.time((rank, RANKS), step, seed);
        Duration::from_secs_f64(ms / 1e3)
    };
    run(&job, compute).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_collectives_hide_delays_and_larger_ones_more() {
        let rows = run_all(64, 8, 1).unwrap();
        assert_eq!(rows.len(), 8);
        let of = |delay, name: &str| {
            let found = rows
                .iter()
                .find(|row| row.delay_ms == delay && row.scheme.name() == name);
            found.unwrap()
        };
        assert_eq!(of(460.0, "synchronous").mean_active, 64.0);
        let seconds = 64.0 / of(460.0, "synchronous").steps_per_second / 64.0;
        assert!((seconds - 1.07 - 0.0203).abs() < 1e-3, "{seconds}");
        for delay in [300.0, 460.0] {
            let (solo, majority) = (of(delay, "solo"), of(delay, "majority"));
            assert!(
                solo.speedup > 0.85 * solo.ideal && solo.speedup <= solo.ideal,
                "{solo:?}"
            );
            assert!(
                majority.speedup > 1.2 && majority.mean_active >= 32.0,
                "{majority:?}"
            );
        }
        assert!(of(460.0, "solo").speedup > of(300.0, "solo").speedup);
    }
}
