//! [`Job`]: ranks that train in this process with the library's selection and machines, so that
//! every accumulator can be looked at: thresholds, counts, fill-in and Assumption 1.

use super::learner::Learner;
use linerate::SparseOptions;
use linerate::options::{Algorithm, Amount};
use linerate::transport::Region;
use linerate::unstable::kernel::select::{Source, gaussian_magnitude, magnitude, moments};
use linerate::unstable::sparse::{
    Entries, Finished, LocalSelection, Machine, OkTopkState, Step, Stream,
};
use linerate_job::access;
use linerate_job::fabric::run;

/// Learning rate of gradient descent on the mean gradient.
const RATE: f32 = 0.2;

/// One rank: what it trains, and its state between steps.
struct Worker {
    learner: Learner,
    residual: Region,
    gradient: Region,
    selection: LocalSelection,
    state: OkTopkState,
    /// The exact threshold of the last evaluation, as the published code would hold it.
    held: u32,
}

/// All ranks.
pub struct Job {
    workers: Vec<Worker>,
    parameters: Vec<f32>,
    pub k: u64,
    algorithm: Algorithm,
    options: SparseOptions,
    steps: u32,
}

/// Thresholds of a rank's accumulator, and how many values each selects.
#[derive(Clone, Copy, Debug, Default)]
pub struct Thresholds {
    pub exact: f32,
    /// The library's, which follows the accumulator.
    pub followed: f32,
    pub followed_count: u64,
    /// The exact one of the last evaluation.
    pub held: f32,
    pub held_count: u64,
    /// The estimate of a normal distribution.
    pub gaussian: f32,
    pub gaussian_count: u64,
    /// Whether the library's was found anew in this step.
    pub is_evaluated: bool,
}

/// What was seen of a step.
#[derive(Clone, Debug)]
pub struct Seen {
    /// By rank.
    pub thresholds: Vec<Thresholds>,
    /// Entries of the result.
    pub selected: u64,
    /// Non-zeros of the sum of all picks.
    pub reduced: u64,
    /// The constant of Assumption 1.
    pub xi: f64,
}

impl Job {
    pub fn new(ranks: u32, density: f64, options: SparseOptions, seed: u64) -> Result<Job, String> {
        let say = |error: linerate::Error| error.to_string();
        let mut workers = Vec::new();
        let mut parameters = Vec::new();
        for rank in 0..ranks {
            let learner = Learner::new((rank, ranks), seed);
            parameters = learner.start(seed);
            workers.push(Worker {
                learner,
                residual: Region::private(4 * parameters.len()).map_err(say)?,
                gradient: Region::private(4 * parameters.len()).map_err(say)?,
                selection: LocalSelection::default(),
                state: OkTopkState::default(),
                held: 0,
            });
        }
        Ok(Job {
            k: Amount::Density(density).of(parameters.len() as u64),
            workers,
            parameters,
            algorithm: options.algorithm,
            options,
            steps: 0,
        })
    }

    pub fn count(&self) -> u64 {
        self.parameters.len() as u64
    }

    /// One step of all ranks.
    pub fn step(&mut self) -> Result<Seen, String> {
        let (count, ranks) = (self.count(), self.workers.len() as u32);
        let (mut thresholds, mut picks, mut machines) = (Vec::new(), Vec::new(), Vec::new());
        let (mut mean, mut slope) = (vec![0f64; count as usize], vec![0f64; count as usize]);
        let mut gradient = vec![0f32; count as usize];
        for (rank, worker) in (0..).zip(&mut self.workers) {
            worker
                .learner
                .compute(&self.parameters, self.steps, &mut gradient);
            let (residual, place) = (worker.residual.view(), worker.gradient.view());
            for (at, new) in gradient.iter().enumerate() {
                access::store(place, at, *new);
                let kept = access::load::<f32>(residual, at);
                mean[at] += f64::from(kept + new) / f64::from(ranks);
                slope[at] += f64::from(*new) / f64::from(ranks);
            }
            let (seen, selected) = worker.select(self.k, self.algorithm, &self.options);
            thresholds.push(seen);
            let step = Step {
                picks: selected.clone(),
                not_finite: 0,
                count,
                k: self.k,
            };
            let state = worker.state.clone();
            machines.push(Machine::new(
                self.algorithm,
                &self.options,
                (rank, ranks),
                step,
                state,
            ));
            picks.push(selected);
        }
        let finished = run(machines, None)?.finished;
        for ((worker, picks), finished) in self.workers.iter_mut().zip(&picks).zip(&finished) {
            worker.commit(picks, finished);
        }
        let result = &finished[0].result;
        for (index, value) in result.indices.iter().zip(&result.values) {
            self.parameters[*index as usize] -= RATE * value / ranks as f32;
        }
        self.steps += 1;
        Ok(Seen {
            thresholds,
            selected: result.len(),
            reduced: finished[0].reduced.unwrap_or(result.len()),
            xi: xi(&mean, &slope, (result, ranks), self.k as usize),
        })
    }
}

impl Worker {
    fn select(
        &mut self,
        k: u64,
        algorithm: Algorithm,
        options: &SparseOptions,
    ) -> (Thresholds, Stream) {
        let (residual, gradient) = (self.residual.view(), self.gradient.view());
        let sum = Source::sum(residual, gradient);
        let values: Vec<f32> = (0..sum.count()).map(|at| sum.load(at)).collect();
        let exact = kth(&values, k as usize);
        let followed = self.selection.tracker.map(|tracker| tracker.threshold);
        let sources = [(sum, Source::of(residual))];
        let selected = self.selection.select(&sources, k, algorithm, options);
        if selected.is_evaluated {
            self.held = exact;
        }
        let followed = match (selected.is_evaluated, followed) {
            (false, Some(followed)) => followed,
            _ => exact,
        };
        let seen = moments(&[sum]);
        let gaussian = gaussian_magnitude(seen, k as f64 / values.len() as f64);
        let above = |floor: u32| values.iter().filter(|v| magnitude(**v) >= floor).count() as u64;
        let thresholds = Thresholds {
            exact: f32::from_bits(exact),
            followed: f32::from_bits(followed),
            followed_count: selected.picks.len(),
            held: f32::from_bits(self.held),
            held_count: above(self.held),
            gaussian: f32::from_bits(gaussian),
            gaussian_count: above(gaussian),
            is_evaluated: selected.is_evaluated,
        };
        (thresholds, selected.picks)
    }

    /// Stores the residual after a step: the accumulator, zero at the picks, plus the entries that
    /// came back.
    fn commit(&mut self, picks: &Stream, finished: &Finished<Stream>) {
        if let Some(state) = &finished.state {
            self.state = state.clone();
        }
        let (residual, gradient) = (self.residual.view(), self.gradient.view());
        for at in 0..residual.len_bytes() / 4 {
            let sum = access::load::<f32>(residual, at) + access::load::<f32>(gradient, at);
            access::store(residual, at, sum);
        }
        for index in &picks.indices {
            access::store(residual, *index as usize, 0f32);
        }
        for list in &finished.all_returned() {
            for (index, value) in list.indices.iter().zip(&list.values) {
                let at = *index as usize;
                access::store(residual, at, access::load::<f32>(residual, at) + value);
            }
        }
    }
}

/// The magnitude of the k-th largest value.
fn kth(values: &[f32], k: usize) -> u32 {
    let mut all: Vec<u32> = values.iter().map(|v| magnitude(*v)).collect();
    let (_, least, _) = all.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
    // A zero is never selected.
    (*least).max(1)
}

/// The distance between the k largest of the mean accumulator and what was applied, divided by the
/// length of the mean gradient. Entries of the result are sums, so they are divided by the ranks.
fn xi(mean: &[f64], slope: &[f64], (result, ranks): (&Stream, u32), k: usize) -> f64 {
    let mut order: Vec<usize> = (0..mean.len()).collect();
    let by_size = |a: &usize, b: &usize| mean[*b].abs().total_cmp(&mean[*a].abs()).then(a.cmp(b));
    order.select_nth_unstable_by(k - 1, by_size);
    let mut difference = vec![0f64; mean.len()];
    for at in &order[..k] {
        difference[*at] = mean[*at];
    }
    for (index, value) in result.indices.iter().zip(&result.values) {
        difference[*index as usize] -= f64::from(*value) / f64::from(ranks);
    }
    length(&difference) / length(slope)
}

fn length(values: &[f64]) -> f64 {
    values.iter().map(|v| v * v).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_applied_is_all_that_counts_where_nothing_else_is_large() {
        let result = Stream {
            indices: vec![1],
            values: vec![8.0],
        };
        let (mean, slope) = (vec![0.0, 4.0, 1.0], vec![3.0, 4.0, 0.0]);
        assert_eq!(xi(&mean, &slope, (&result, 2), 1), 0.0);
        let nothing = Stream::default();
        assert_eq!(xi(&mean, &slope, (&nothing, 2), 1), 0.8);
    }

    #[test]
    fn training_in_one_process_learns_and_selects_about_k() {
        let mut job = Job::new(4, 0.02, SparseOptions::default(), 1).unwrap();
        let before = job.workers[0].learner.judge(&job.parameters.clone());
        for _ in 0..40 {
            let seen = job.step().unwrap();
            assert_eq!(seen.selected, job.k.min(seen.reduced));
            assert!(seen.xi.is_finite());
        }
        let after = job.workers[0].learner.judge(&job.parameters.clone());
        assert!(after.loss < 0.9 * before.loss, "{before:?} {after:?}");
    }
}
