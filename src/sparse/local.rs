//! A rank's own selection: about k entries of its accumulator, in as few passes as possible.
//!
//! Exact: the last step's threshold, a little lowered, usually fetches a few more than k in one pass, of which exactly k are
//! kept. Threshold mode: what the threshold selects, if that is within [min(k/2, non-zeros), 2k], and of much more than k the k
//! largest; else exactly k in the same step. The threshold follows the counts in between.

use super::global::{Steepness, Tracker, is_within};
use super::options::{Algorithm, Mode, NonFinite, SparseOptions};
use super::stream::Stream;
use crate::kernel::select::{
    Picks, Source, accumulate, collect, count_of, gaussian_magnitude, keep_top, moments, select_top,
};

/// Rounds in which Gaussiank corrects its estimate, as in the published code.
const GAUSSIAN_ROUNDS: u32 = 3;

/// Of what a threshold selects beyond k, this part may stay; where it is more, only the k largest do. Gradients of small batches
/// change the right count by more than that from one step to the next, even of the threshold that was right in the last.
const CUT_SHARE: usize = 8;

/// What a rank selected.
#[derive(Clone, Debug, Default)]
pub struct Selected {
    /// The picks.
    pub picks: Stream,
    /// Elements that are not finite.
    pub not_finite: u64,
    /// The threshold had to be found anew.
    pub is_evaluated: bool,
}

/// The state of a rank's selection. Differs between ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalSelection {
    /// Steps so far.
    pub steps: u64,
    /// From where on elements are selected, once there is one.
    pub tracker: Option<Tracker>,
}

impl LocalSelection {
    /// Selects for a step. `sources` are residuals with gradients; with [`NonFinite::Count`] the gradients are added to the residuals in the
    /// same pass, else nothing is changed.
    pub fn select(
        &mut self,
        sources: &[(Source, Source)],
        k: u64,
        algorithm: Algorithm,
        options: &SparseOptions,
    ) -> Selected {
        self.select_into(Stream::default(), sources, k, algorithm, options)
    }

    /// The same into the memory of picks of a step before.
    pub fn select_into(
        &mut self,
        memory: Stream,
        sources: &[(Source, Source)],
        k: u64,
        algorithm: Algorithm,
        options: &SparseOptions,
    ) -> Selected {
        let sums: Vec<Source> = sources.iter().map(|s| s.0).collect();
        let residuals: Vec<Source> = sources.iter().map(|s| s.1).collect();
        let is_added = options.non_finite == NonFinite::Count;
        let k = k as usize;
        let (indices, values) = (memory.indices, memory.values);
        let mut picks = Picks { indices, values };
        clear(&mut picks);
        let mut not_finite = 0;
        let is_gaussian = algorithm == Algorithm::Gaussiank;
        let is_due = options.mode == Mode::Exact
            || self.steps.is_multiple_of(options.reuse_steps)
            || algorithm == Algorithm::GTopk;
        let reused = self.tracker.filter(|_| !is_due && !is_gaussian);
        let mut is_good = false;
        if is_added || reused.is_some() {
            // One pass adds and, if the threshold is good, selects.
            let floor = reused.map_or(f32::MAX.to_bits(), |tracker| tracker.threshold);
            let scan = match is_added {
                true => accumulate(&sums, floor, 2 * k, &mut picks),
                false => collect(&sums, floor, 2 * k, &mut picks),
            };
            not_finite = scan.not_finite;
            is_good = reused.is_some()
                && !scan.is_over
                && is_within(picks.len() as u64, k as u64, u64::MAX);
        }
        let sources = if is_added { &residuals } else { &sums };
        if is_gaussian {
            let seen = select_gaussian(sources, k, &mut picks);
            not_finite += if is_added { 0 } else { seen };
        } else if let (true, Some(tracker)) = (is_good, reused) {
            self.tracker = Some(tracker.followed(picks.len() as u64, k as u64, Steepness::Local));
            if picks.len() > k + k / CUT_SHARE {
                keep_top(&mut picks, k);
            }
        } else {
            let hint = self.tracker.map(|tracker| lowered(tracker.threshold));
            let (least, scan) = select_top(sources, k, hint, &mut picks);
            not_finite = if is_added {
                not_finite
            } else {
                scan.not_finite
            };
            self.tracker = Some(Tracker::found(self.tracker, least.max(1)));
        }
        self.steps += 1;
        Selected {
            picks: Stream {
                indices: picks.indices,
                values: picks.values,
            },
            not_finite,
            is_evaluated: !is_good && !is_gaussian,
        }
    }
}

fn clear(picks: &mut Picks) {
    picks.indices.clear();
    picks.values.clear();
}

/// A twentieth less: about half as many again are fetched where tails are normal.
fn lowered(threshold: u32) -> u32 {
    (f32::from_bits(threshold) * 0.95).to_bits().max(1)
}

/// By the estimate of a normal distribution, halved or raised by half while the count is far from k, and selected anew after
/// the last change too. How many are not finite.
fn select_gaussian(sources: &[Source], k: usize, picks: &mut Picks) -> u64 {
    let seen = moments(sources);
    let not_finite = count_of(sources) - seen.count;
    let density = k as f64 / count_of(sources).max(1) as f64;
    let mut floor = gaussian_magnitude(seen, density.min(1.0));
    for round in 0..=GAUSSIAN_ROUNDS {
        clear(picks);
        let scan = collect(sources, floor, 4 * k, picks);
        let count = if scan.is_over {
            usize::MAX
        } else {
            picks.len()
        };
        let factor = match () {
            () if round == GAUSSIAN_ROUNDS && (scan.is_over || count == 0) => {
                // A constant vector: every threshold selects all or nothing.
                select_top(sources, k, None, picks);
                break;
            }
            () if 3 * count.min(1 << 60) < 2 * k => 0.5,
            () if count > 4 * k / 3 => 1.5,
            () => break,
        };
        if round < GAUSSIAN_ROUNDS {
            let next = f32::from_bits(floor) * factor;
            floor = next.to_bits().clamp(1, f32::MAX.to_bits());
        }
    }
    not_finite
}
