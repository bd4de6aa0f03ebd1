//! [`Slowed`]: when a computation is done that communication slows.

/// A computation that is slower while communication runs.
pub struct Slowed {
    slowing: f64,
    /// How long all of it takes alone.
    alone_ms: f64,
    /// Starts and ends of communication, in their order.
    runs: Vec<(f64, f64)>,
}

impl Slowed {
    pub fn new(slowing: f64, alone_ms: f64) -> Slowed {
        Slowed {
            slowing,
            alone_ms,
            runs: Vec::new(),
        }
    }

    /// Communication runs from then to then, after all that were added.
    pub fn add(&mut self, start_ms: f64, end_ms: f64) {
        if self.slowing > 0.0 && start_ms < self.alone_ms * (1.0 + self.slowing) {
            self.runs.push((start_ms, end_ms));
        }
    }

    /// When that is done which ends at `alone_ms` if nothing slows it.
    pub fn end_ms(&self, alone_ms: f64) -> f64 {
        let mut end_ms = alone_ms;
        for &(start_ms, run_end_ms) in &self.runs {
            if end_ms <= start_ms {
                break;
            }
            // While communication runs, a part of 1 / (1 + slowing) gets done.
            let rest_ms = (end_ms - start_ms) * (1.0 + self.slowing);
            let run_ms = run_end_ms - start_ms;
            end_ms = match rest_ms <= run_ms {
                true => start_ms + rest_ms,
                false => end_ms + run_ms * self.slowing / (1.0 + self.slowing),
            };
        }
        end_ms
    }
}
