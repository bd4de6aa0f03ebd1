//! [`Spans`]: how much of a stretch of time a set of spans covers.

/// Spans that may overlap; times are microseconds.
pub struct Spans {
    /// Disjoint and in order.
    merged: Vec<(f64, f64)>,
    /// For each, how much those before it cover.
    before: Vec<f64>,
}

impl Spans {
    pub fn new(mut all: Vec<(f64, f64)>) -> Spans {
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut merged: Vec<(f64, f64)> = Vec::new();
        for (start, end) in all {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        let mut sum = 0.0;
        let mut before = Vec::with_capacity(merged.len());
        for (start, end) in &merged {
            before.push(sum);
            sum += end - start;
        }
        Spans { merged, before }
    }

    /// What is covered between two times.
    pub fn covered(&self, from: f64, to: f64) -> f64 {
        (self.covered_until(to) - self.covered_until(from)).max(0.0)
    }

    fn covered_until(&self, time: f64) -> f64 {
        let next = self.merged.partition_point(|span| span.0 < time);
        let Some(last) = next.checked_sub(1) else {
            return 0.0;
        };
        let (start, end) = self.merged[last];
        self.before[last] + end.min(time) - start
    }

    /// What is covered in all.
    pub fn total(&self) -> f64 {
        self.covered_until(f64::INFINITY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_spans_count_once_and_only_between_the_times() {
        let spans = Spans::new(vec![(10.0, 20.0), (15.0, 25.0), (40.0, 41.0), (12.0, 13.0)]);
        assert_eq!(spans.total(), 16.0);
        assert_eq!(spans.covered(0.0, 12.0), 2.0);
        assert_eq!(spans.covered(24.0, 40.5), 1.5);
        assert_eq!(spans.covered(30.0, 30.0), 0.0);
        assert_eq!(spans.covered(f64::NEG_INFINITY, 11.0), 1.0);
        assert_eq!(Spans::new(Vec::new()).total(), 0.0);
    }
}
