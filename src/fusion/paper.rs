//! [`build_paper_plan`]: the fusion rule of the published simulation, exactly.
//!
//! Source: Zhang et al., "Is Network the Bottleneck of Distributed Training?", NetAI 2020, and its
//! code (github.com/netx-repo/training-bottleneck, `simulation/`). Both limits are looked at only
//! when a gradient arrives, and the size only after adding it: so a buffered gradient waits through
//! a gap, and a flush may exceed the size. The timer counts from the previous flush, not from the
//! first buffered gradient. What production does instead is in `plan.rs`.

use std::ops::Range;

/// One gradient of a backward pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrival {
    /// Microseconds since the previous gradient was ready; the first counts from the start of the
    /// backward pass.
    pub wait_us: f64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// One flush of the published rule.
#[derive(Clone, Debug, PartialEq)]
pub struct PaperFlush {
    /// Microseconds from the start of the backward pass to the flush.
    pub time_us: f64,
    /// Sum of its gradients' bytes.
    pub bytes: u64,
    /// Its gradients, by position in the backward pass.
    pub tensors: Range<usize>,
}

/// The flushes of one backward pass. `age_max_us` in microseconds (published: 5000), `bytes_max` in
/// bytes (published: 64 MiB). Gradients after the last flush that have no bytes are in none.
pub fn build_paper_plan(arrivals: &[Arrival], age_max_us: f64, bytes_max: u64) -> Vec<PaperFlush> {
    let (mut time_us, mut waited_us, mut bytes, mut first) = (0.0, 0.0, 0, 0);
    let mut plan = Vec::new();
    for (index, arrival) in arrivals.iter().enumerate() {
        time_us += arrival.wait_us;
        waited_us += arrival.wait_us;
        bytes += arrival.bytes;
        if waited_us >= age_max_us || bytes >= bytes_max {
            plan.push(PaperFlush {
                time_us,
                bytes,
                tensors: first..index + 1,
            });
            (waited_us, bytes, first) = (0.0, 0, index + 1);
        }
    }
    if bytes > 0 {
        plan.push(PaperFlush {
            time_us,
            bytes,
            tensors: first..arrivals.len(),
        });
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn plan(arrivals: &[(f64, u64)]) -> Vec<(f64, u64)> {
        let arrivals: Vec<_> = (arrivals.iter())
            .map(|&(wait_us, bytes)| Arrival { wait_us, bytes })
            .collect();
        let plan = build_paper_plan(&arrivals, 5000.0, 64 * MIB);
        plan.iter().map(|f| (f.time_us, f.bytes)).collect()
    }

    #[test]
    fn after_a_gradient_at_0_silence_for_100_ms_delays_its_flush_to_100_ms() {
        assert_eq!(plan(&[(0.0, 4), (100_000.0, 8)]), [(100_000.0, 12)]);
    }

    #[test]
    fn the_size_is_tested_after_adding_and_includes_equality() {
        assert_eq!(
            plan(&[(1.0, 65 * MIB), (1.0, 4)]),
            [(1.0, 65 * MIB), (2.0, 4)]
        );
        assert_eq!(
            plan(&[(1.0, 64 * MIB), (1.0, 4)]),
            [(1.0, 64 * MIB), (2.0, 4)]
        );
        assert_eq!(
            plan(&[(1.0, 64 * MIB - 4), (1.0, 60 * MIB)]),
            [(2.0, 124 * MIB - 4)]
        );
    }

    #[test]
    fn the_timer_counts_from_the_previous_flush() {
        // The second gradient is buffered for 1 ms only, but 5 ms have passed since the first
        // flush.
        assert_eq!(
            plan(&[(5000.0, 4), (4000.0, 4), (1000.0, 4), (0.0, 4)]),
            [(5000.0, 4), (10_000.0, 8), (10_000.0, 4)]
        );
    }

    #[test]
    fn nothing_and_empty_gradients_make_no_flush() {
        assert!(plan(&[]).is_empty());
        assert!(plan(&[(1.0, 0), (1.0, 0)]).is_empty());
    }
}
