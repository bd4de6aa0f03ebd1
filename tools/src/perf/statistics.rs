//! What a table says of one size, computed from times in floating point. No sample is left out.
//! Pure.

use crate::bench::statistics::{Summary, percentile};
use serde::{Deserialize, Serialize};

/// perftest, too, looks for a peak among at most this many messages: the search is quadratic.
const MARKS_MAX: usize = 20_000;

/// Times of single messages, us.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// How many.
    pub samples: u64,
    /// What `bench` tells too.
    #[serde(flatten)]
    pub summary: Summary,
    /// 99.9th percentile.
    pub p999: f64,
}

impl Latency {
    /// The numbers of at least one sample, us.
    pub fn of(samples: &mut [f64]) -> Latency {
        samples.sort_by(f64::total_cmp);
        Latency {
            samples: samples.len() as u64,
            summary: Summary::of_sorted(samples),
            p999: percentile(samples, 999),
        }
    }
}

/// One direction of a bandwidth test.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// Messages of all streams.
    pub messages: u64,
    /// From the first post until the other side has everything.
    pub seconds: f64,
    /// Greatest rate of consecutive messages, per second; 0 if there were too many to look.
    pub peak: f64,
}

impl Flow {
    /// Messages per second.
    pub fn rate(&self) -> f64 {
        self.messages as f64 / self.seconds.max(1e-9)
    }
}

/// When messages were posted and had ended, in bursts.
#[derive(Debug, Default)]
pub struct Marks {
    /// Number of the first message of a burst of posts, and the time before it, ns.
    posted: Vec<(u64, u64)>,
    /// Messages that had ended by a time, ns.
    ended: Vec<(u64, u64)>,
    is_full: bool,
}

impl Marks {
    /// Empty, with memory for all marks, so that none is allocated while times are taken. Without
    /// `is_wanted` it notes nothing and knows no peak.
    pub fn new(is_wanted: bool) -> Marks {
        Marks {
            is_full: !is_wanted,
            posted: Vec::with_capacity(MARKS_MAX),
            ended: Vec::with_capacity(MARKS_MAX),
        }
    }

    /// Before the post of message `first`.
    pub fn note_post(&mut self, first: u64, time_ns: u64) {
        self.is_full = self.is_full || !push(&mut self.posted, (first, time_ns));
    }

    /// `count` messages have ended.
    pub fn note_end(&mut self, count: u64, time_ns: u64) {
        self.is_full = self.is_full || !push(&mut self.ended, (count, time_ns));
    }

    /// The greatest rate of any run of consecutive messages, from the post of its first to the end
    /// of its last, messages per second: perftest's peak. Posts count from the beginning of their
    /// burst, so it is never too great.
    pub fn peak(&self) -> f64 {
        if self.is_full {
            return 0.0;
        }
        let mut peak = 0.0f64;
        for &(first, from_ns) in &self.posted {
            for &(count, until_ns) in &self.ended {
                if count > first && until_ns > from_ns {
                    let seconds = (until_ns - from_ns) as f64 * 1e-9;
                    peak = peak.max((count - first) as f64 / seconds);
                }
            }
        }
        peak
    }
}

/// Whether there was room.
fn push(marks: &mut Vec<(u64, u64)>, mark: (u64, u64)) -> bool {
    let has_room = marks.len() < MARKS_MAX;
    if has_room {
        marks.push(mark);
    }
    has_room
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_counts() {
        let mut samples: Vec<f64> = (1..=1000).rev().map(f64::from).collect();
        let latency = Latency::of(&mut samples);
        let s = latency.summary;
        assert_eq!((s.min, s.max, s.p50), (1.0, 1000.0, 500.0));
        assert_eq!((s.p99, latency.p999), (990.0, 999.0));
        assert_eq!(s.mean, 500.5);
        let mut one = [7.5];
        assert_eq!(Latency::of(&mut one).p999, 7.5);
    }

    #[test]
    fn an_outlier_shows_in_the_greatest_and_the_deviation() {
        let mut samples = vec![1.0; 999];
        samples.push(1001.0);
        let latency = Latency::of(&mut samples);
        assert_eq!((latency.p999, latency.summary.max), (1.0, 1001.0));
        assert_eq!(latency.summary.mean, 2.0);
        assert!((latency.summary.stddev - 31.607).abs() < 1e-3);
    }

    #[test]
    fn a_peak_is_of_consecutive_messages() {
        let mut marks = Marks::new(true);
        // Ten messages in 10 us, then ten in 5 us, then a long pause.
        marks.note_post(0, 0);
        marks.note_end(10, 10_000);
        marks.note_post(10, 10_000);
        marks.note_end(20, 15_000);
        marks.note_post(20, 15_000);
        marks.note_end(21, 1_000_000);
        assert!((marks.peak() - 10.0 / 5e-6).abs() < 1.0);
    }

    #[test]
    fn ends_that_are_seen_together_are_no_peak() {
        let mut marks = Marks::new(true);
        marks.note_post(0, 0);
        // Five messages were seen to end within 1 ns, 10 us after they were posted.
        marks.note_end(1, 10_000);
        marks.note_end(6, 10_001);
        assert!(marks.peak() < 1e6);
    }

    #[test]
    fn too_many_marks_have_no_peak() {
        let mut marks = Marks::new(true);
        for i in 0..=MARKS_MAX as u64 {
            marks.note_post(i, i);
            marks.note_end(i + 1, i + 1);
        }
        assert_eq!(marks.peak(), 0.0);
        assert_eq!(Marks::new(false).peak(), 0.0);
    }
}
