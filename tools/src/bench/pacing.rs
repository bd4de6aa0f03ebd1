//! How often a row is run, from the time one iteration takes. Pure; all ranks compute the same from
//! the same time.

/// Time of the timed iterations of one row and placement, us: the default sweep of 52 then takes
/// about a minute.
const TIMED_US: f64 = 500_000.0;
/// Time for touching the copies of a rotation once, us.
const TOUCHING_US: f64 = 200_000.0;
/// Fewer samples have no median worth the name.
const ITERATIONS_MIN: u32 = 10;
/// With more the 99th percentile does not get better.
const ITERATIONS_MAX: u32 = 1000;
/// nccl-tests' default.
pub const WARMUP_DEFAULT: u32 = 5;
/// Bounds the memory of prepared calls to a few MiB.
const COPIES_MAX: u64 = 16 * 1024;

/// Numbers of one row and placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Copies of the buffers that iterations rotate over.
    pub copies: u32,
    /// Iterations that are not timed: one on each copy, so that no page is touched for the first
    /// time in a timed one, then the warm-up.
    pub untimed: u32,
    /// Timed iterations.
    pub iterations: u32,
}

/// The pace when one iteration takes `time_us` and there is room for `room` copies.
pub fn pace(iterations: Option<u32>, warmup: Option<u32>, time_us: f64, room: u64) -> Pace {
    let fits = |budget_us: f64| (budget_us / time_us.max(0.01)) as u32;
    let iterations =
        iterations.unwrap_or_else(|| fits(TIMED_US).clamp(ITERATIONS_MIN, ITERATIONS_MAX));
    let warmup = warmup.unwrap_or(WARMUP_DEFAULT);
    let copies = (room.clamp(1, COPIES_MAX) as u32)
        .min(fits(TOUCHING_US).max(1))
        .min(warmup.saturating_add(iterations).max(1));
    Pace {
        copies,
        untimed: copies.saturating_add(warmup),
        iterations,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_rows_run_often_and_slow_ones_seldom() {
        assert_eq!(pace(None, None, 2.0, 1).iterations, 1000);
        assert_eq!(pace(None, None, 5_000.0, 1).iterations, 100);
        assert_eq!(pace(None, None, 1e6, 1).iterations, 10);
        assert_eq!(pace(None, None, 0.0, 1).iterations, 1000);
    }

    #[test]
    fn every_copy_is_touched_before_the_timed_iterations() {
        let fast = pace(None, None, 100.0, 64);
        assert_eq!((fast.copies, fast.untimed), (64, 69));
        let slow = pace(None, None, 50_000.0, 64);
        assert_eq!((slow.copies, slow.untimed), (4, 9));
        assert_eq!(pace(None, None, 1e9, 0).copies, 1);
    }

    #[test]
    fn what_was_asked_for_is_done() {
        let asked = pace(Some(20), Some(2), 1.0, 100);
        assert_eq!(
            (asked.iterations, asked.copies, asked.untimed),
            (20, 22, 24)
        );
        assert_eq!(pace(Some(1), Some(0), 1.0, 100).untimed, 1);
    }

    #[test]
    fn copies_are_bounded() {
        let many = pace(Some(u32::MAX), Some(0), 0.01, u64::MAX);
        assert!(many.copies <= 16 * 1024);
    }
}
