//! [`StepReport`]: what a [`Fusion`](super::Fusion) did in one step, and when.

use crate::time::Time;
use crate::types::DataType;
use std::fmt;
use std::time::Duration;

/// One flush. Times are this rank's, on the clock of [`Fusion::now`](super::Fusion::now). Its text
/// ([`fmt::Display`]) is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlushReport {
    /// Type of its elements.
    pub dtype: DataType,
    /// Bytes of all its tensors together.
    pub bytes: u64,
    /// Its tensors, in the order in which they were packed.
    pub tensors: Vec<u32>,
    /// When the last of them was announced.
    pub ready: Time,
    /// When its allreduce was started, after packing.
    pub start: Time,
    /// When this rank saw that its allreduce had ended, before unpacking.
    pub end: Time,
}

/// One step, from [`begin`](StepReport::begin) to [`done`](StepReport::done). Times are on the
/// clock of [`Fusion::now`](super::Fusion::now). Its text is one line without the flushes:
///
/// ```
/// use linerate::DataType;
/// use linerate::reports::{FlushReport, StepReport};
/// use linerate::transport::Time;
/// let flush = FlushReport {
///     dtype: DataType::F32,
///     bytes: 4096,
///     tensors: vec![2, 0],
///     ready: Time(1_000),
///     start: Time(3_000),
///     end: Time(7_000),
/// };
/// assert_eq!(flush.to_string(), "4096 B of f32 (tensors: 2), ready 1µs, start 3µs, end 7µs");
/// let step = StepReport {
///     step_index: 5,
///     flushes: vec![flush],
///     rounds_count: 1,
///     backward_end: Time(6_000),
///     done: Time(8_000),
///     ..StepReport::default()
/// };
/// assert_eq!(
///     step.to_string(),
///     "step 5: 4096 B (flushes: 1, rounds: 1), exposed 2µs, communication 4µs, 75 % of it hidden"
/// );
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepReport {
    /// Index of the step; the first is 0.
    pub step_index: u64,
    /// The flushes in the order of their start. They are the same on all ranks, except for times.
    pub flushes: Vec<FlushReport>,
    /// Number of rounds in which the ranks agreed; 0 with a fixed plan.
    pub rounds_count: u64,
    /// When the first tensor was announced.
    pub begin: Time,
    /// When the backward pass ended.
    pub backward_end: Time,
    /// When all tensors were reduced and unpacked.
    pub done: Time,
}

impl fmt::Display for FlushReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |time: Time| time.since(Time(0));
        write!(
            f,
            "{} B of {} (tensors: {}), ready {:?}, start {:?}, end {:?}",
            self.bytes,
            self.dtype,
            self.tensors.len(),
            at(self.ready),
            at(self.start),
            at(self.end)
        )
    }
}

impl fmt::Display for StepReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: u64 = self.flushes.iter().map(|flush| flush.bytes).sum();
        write!(
            f,
            "step {}: {bytes} B (flushes: {}, rounds: {}), exposed {:?}, communication {:?}, {:.0} % of it hidden",
            self.step_index,
            self.flushes.len(),
            self.rounds_count,
            self.exposed(),
            self.communication(),
            100.0 * self.overlap()
        )
    }
}

impl StepReport {
    /// Time from the end of the backward pass until all is done. Communication adds this time to
    /// the step.
    pub fn exposed(&self) -> Duration {
        self.done.since(self.backward_end)
    }

    /// Time in which at least one allreduce was under way.
    pub fn communication(&self) -> Duration {
        self.union_until(Time::MAX)
    }

    /// Share of [`StepReport::communication`] that was hidden under the backward pass, 0 to 1. It
    /// is 1 if there was no communication.
    pub fn overlap(&self) -> f64 {
        let all = self.communication().as_secs_f64();
        if all == 0.0 {
            return 1.0;
        }
        self.union_until(self.backward_end).as_secs_f64() / all
    }

    /// Length of the union of all `start..end`, cut off at `limit`. The flushes are in the order of
    /// their start.
    fn union_until(&self, limit: Time) -> Duration {
        let (mut sum, mut covered) = (Duration::ZERO, Time(0));
        for flush in &self.flushes {
            let (start, end) = (flush.start.max(covered), flush.end.min(limit));
            sum += end.since(start);
            covered = covered.max(end);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(spans: &[(u64, u64)], backward_end: u64, done: u64) -> StepReport {
        let flush = |&(start, end): &(u64, u64)| FlushReport {
            dtype: DataType::F32,
            bytes: 4,
            tensors: vec![0],
            ready: Time(start),
            start: Time(start),
            end: Time(end),
        };
        StepReport {
            flushes: spans.iter().map(flush).collect(),
            backward_end: Time(backward_end),
            done: Time(done),
            ..StepReport::default()
        }
    }

    #[test]
    fn overlapping_flushes_count_once_and_only_what_lies_before_the_end_is_hidden() {
        let step = report(&[(10, 30), (20, 40), (60, 100)], 80, 110);
        assert_eq!(step.communication(), Duration::from_nanos(70));
        assert!(
            (step.overlap() - 50.0 / 70.0).abs() < 1e-12,
            "{}",
            step.overlap()
        );
        assert_eq!(step.exposed(), Duration::from_nanos(30));
    }

    #[test]
    fn a_flush_inside_another_adds_nothing() {
        let step = report(&[(10, 100), (20, 40), (50, 110)], 60, 110);
        assert_eq!(step.communication(), Duration::from_nanos(100));
        assert_eq!(step.overlap(), 0.5);
    }

    #[test]
    fn a_step_without_communication_is_hidden_completely() {
        let step = report(&[], 80, 80);
        assert_eq!((step.overlap(), step.exposed()), (1.0, Duration::ZERO));
    }
}
