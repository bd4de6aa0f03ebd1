//! A rank's own selection: about k entries of its accumulator, in as few passes as possible.
//!
//! Exact mode: one pass begins a little below the threshold that earlier steps foretell. It usually
//! fetches a few more than k, of which exactly k are kept; if the gradient may be added at once,
//! the same pass adds it. Threshold mode: the threshold selects, if that gives k/2 to 2k; of much
//! more than k the k largest are kept. Else exactly k are selected in the same step. Between exact
//! selections the threshold follows the counts.

use super::foresight::Foresight;
use super::options::{Algorithm, Mode, NonFinite, SparseOptions};
use super::stream::Stream;
use super::threshold::{Steepness, Tracker, is_within};
use crate::kernel::select::{
    Picks, Scan, Source, accumulate, collect, count_of, gaussian_magnitude, keep_top, moments,
    room_for, select_top,
};

/// Rounds in which the published code of Gaussiank corrects its estimate.
const GAUSSIAN_ROUNDS: u32 = 3;

/// Rounds, each a pass, after which Gaussiank takes the k largest. If the bracket is half a
/// threshold wide, ten rounds narrow it to a 2000th of the threshold.
const GAUSSIAN_ROUNDS_MAX: u32 = 16;

/// A threshold may select more than k by k divided by this; of more, only the k largest stay. With
/// gradients of small batches the count changes by more than that from one step to the next, even
/// if the threshold was right in the last.
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
    /// Where the k-th largest should lie, if the last step found it exactly.
    pub foresight: Option<Foresight>,
}

impl LocalSelection {
    /// Selects for a step. `sources` are residuals with gradients; with [`NonFinite::Count`] the
    /// gradients are added to the residuals in the same pass, else nothing is changed.
    pub fn select(
        &mut self,
        sources: &[(Source, Source)],
        k: u64,
        algorithm: Algorithm,
        options: &SparseOptions,
    ) -> Selected {
        self.select_into(Stream::default(), sources, k, algorithm, options)
    }

    /// Selects into the memory of an earlier step's picks.
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
        let (indices, values) = (memory.indices, memory.values);
        let mut picks = Picks { indices, values };
        clear(&mut picks);
        let guess = self.guess(algorithm, options);
        let (scan, is_good) = match is_added {
            // A gradient cannot be added twice: whatever the guess gives, this pass goes to the
            // end. Adding and selecting in one pass makes a step a quarter to a third shorter.
            true => {
                let (floor, limit) = guess.terms(k as usize);
                let scan = accumulate(&sums, floor, limit, &mut picks);
                (Some(scan), guess.is_good(scan, picks.len(), k as usize))
            }
            false => match guess {
                Guess::Reused(threshold) => {
                    let scan = collect(&sums, threshold, 2 * k as usize, &mut picks);
                    (Some(scan), guess.is_good(scan, picks.len(), k as usize))
                }
                // `select_top` begins with the hint.
                _ => (None, false),
            },
        };
        let foresight = self.foresight.take();
        let added = scan.filter(|_| is_added).map(|scan| scan.not_finite);
        let sources = if is_added { &residuals } else { &sums };
        let k = k as usize;
        let not_finite = match (guess, is_good) {
            (Guess::Reused(_), true) => {
                self.tracker = self
                    .tracker
                    .map(|t| t.followed(picks.len() as u64, k as u64, Steepness::Local));
                if picks.len() > k + k / CUT_SHARE {
                    keep_top(&mut picks, k);
                }
                scan.map_or(0, |scan| scan.not_finite)
            }
            (Guess::Hint(_), true) => {
                let least = keep_top(&mut picks, k);
                self.found(foresight, least);
                0
            }
            (Guess::Normal, _) => match options.mode {
                Mode::Paper => select_as_published(sources, k, &mut picks),
                _ => select_gaussian(sources, k, &mut picks),
            },
            _ => {
                // A hint that the pass above has tried is of no more use.
                let hint = match guess {
                    Guess::Hint(floor) if !is_added => Some(floor),
                    Guess::Reused(threshold) => Some(lowered(threshold)),
                    _ => None,
                };
                let (least, scan) = select_top(sources, k, hint, &mut picks);
                self.found(foresight, least);
                scan.not_finite
            }
        };
        self.steps += 1;
        Selected {
            picks: Stream {
                indices: picks.indices,
                values: picks.values,
            },
            not_finite: added.unwrap_or(not_finite),
            is_evaluated: !matches!(
                (guess, is_good),
                (Guess::Reused(_), true) | (Guess::Normal, _)
            ),
        }
    }

    /// The k largest were found; `foresight` is what was foreseen for them.
    fn found(&mut self, foresight: Option<Foresight>, least: u32) {
        let least = least.max(1);
        self.tracker = Some(Tracker::found(self.tracker, least));
        self.foresight = Some(Foresight::found(foresight, least));
    }

    /// What is known of the threshold before the pass.
    fn guess(&self, algorithm: Algorithm, options: &SparseOptions) -> Guess {
        let is_due = options.mode == Mode::Exact
            || self.steps.is_multiple_of(options.reuse_steps)
            || algorithm == Algorithm::GTopk;
        match self.tracker {
            _ if algorithm == Algorithm::Gaussiank => Guess::Normal,
            None => Guess::Nothing,
            Some(tracker) if is_due => Guess::Hint(match self.foresight {
                Some(foresight) => foresight.floor(),
                None => lowered(tracker.threshold),
            }),
            Some(tracker) => Guess::Reused(tracker.threshold),
        }
    }
}

/// What is known of the threshold before a pass.
#[derive(Clone, Copy, Debug)]
enum Guess {
    /// Nothing yet.
    Nothing,
    /// Entries of this magnitude and more are taken.
    Reused(u32),
    /// The k largest lie from here on, and not many more.
    Hint(u32),
    /// It is estimated from all elements.
    Normal,
}

impl Guess {
    /// From which magnitude on a pass that adds collects, and how many entries at most.
    fn terms(self, k: usize) -> (u32, usize) {
        match self {
            Guess::Reused(threshold) => (threshold, 2 * k),
            Guess::Hint(floor) => (floor, room_for(k)),
            Guess::Nothing | Guess::Normal => (f32::MAX.to_bits(), 2 * k),
        }
    }

    /// Whether what the pass collected may stand, or has the k largest.
    fn is_good(self, scan: Scan, count: usize, k: usize) -> bool {
        match self {
            Guess::Reused(_) => !scan.is_over && is_within(count as u64, k as u64, u64::MAX),
            Guess::Hint(_) => !scan.is_over && count >= k,
            Guess::Nothing | Guess::Normal => false,
        }
    }
}

fn clear(picks: &mut Picks) {
    picks.indices.clear();
    picks.values.clear();
}

/// A twentieth less: with normal tails about half as many entries again are fetched.
fn lowered(threshold: u32) -> u32 {
    (f32::from_bits(threshold) * 0.95).to_bits().max(1)
}

/// Selects by the threshold that a normal distribution gives. Real tails are not normal, so it may
/// select next to nothing or a multiple of k. It is halved or raised by half until it has been too
/// high once and too low once, and then bisected, until it selects between 2/3 and 4/3 of k. If it
/// never does, the k largest are selected. Returns how many elements are not finite.
fn select_gaussian(sources: &[Source], k: usize, picks: &mut Picks) -> u64 {
    let (mut floor, not_finite) = gaussian_floor(sources, k);
    // The highest that selected too many, and the lowest that selected too few.
    let (mut low, mut high) = (None::<f32>, None::<f32>);
    for _ in 0..GAUSSIAN_ROUNDS_MAX {
        let at = f32::from_bits(floor);
        match step_of(collect_from(sources, floor, k, picks), k) {
            None => return not_finite,
            Some(Off::Few) => high = Some(at),
            Some(Off::Many) => low = Some(at),
        }
        let next = match (low, high) {
            (Some(low), Some(high)) => low + (high - low) / 2.0,
            (None, _) => at * Off::Few.factor(),
            (_, None) => at * Off::Many.factor(),
        };
        floor = magnitude_of(next);
    }
    // A constant vector: every threshold selects all or nothing.
    select_top(sources, k, None, picks);
    not_finite
}

/// As the published code does it: three rounds of halving and raising, whatever the last one
/// selects. In a vector with short tails these corrections jump over k.
fn select_as_published(sources: &[Source], k: usize, picks: &mut Picks) -> u64 {
    let (mut floor, not_finite) = gaussian_floor(sources, k);
    for round in 0..=GAUSSIAN_ROUNDS {
        let count = collect_from(sources, floor, k, picks);
        let Some(off) = step_of(count, k) else { break };
        if round < GAUSSIAN_ROUNDS {
            floor = magnitude_of(f32::from_bits(floor) * off.factor());
        } else if count.is_none_or(|count| count == 0) {
            select_top(sources, k, None, picks);
        }
    }
    not_finite
}

/// The threshold by a normal distribution with these moments, and how many elements are not finite.
fn gaussian_floor(sources: &[Source], k: usize) -> (u32, u64) {
    let seen = moments(sources);
    let density = k as f64 / count_of(sources).max(1) as f64;
    let not_finite = count_of(sources) - seen.count;
    (gaussian_magnitude(seen, density.min(1.0)), not_finite)
}

/// Collects anew. Returns how many, or `None` if there are more than 4k.
fn collect_from(sources: &[Source], floor: u32, k: usize, picks: &mut Picks) -> Option<usize> {
    clear(picks);
    let scan = collect(sources, floor, 4 * k, picks);
    (!scan.is_over).then_some(picks.len())
}

/// How a threshold missed.
#[derive(Clone, Copy)]
enum Off {
    Few,
    Many,
}

impl Off {
    fn factor(self) -> f32 {
        match self {
            Off::Few => 0.5,
            Off::Many => 1.5,
        }
    }
}

/// How a count missed k; `None` if it is between 2/3 and 4/3 of k. No count means more than 4k.
fn step_of(count: Option<usize>, k: usize) -> Option<Off> {
    match count {
        Some(count) if 3 * count < 2 * k => Some(Off::Few),
        Some(count) if 3 * count <= 4 * k => None,
        _ => Some(Off::Many),
    }
}

fn magnitude_of(threshold: f32) -> u32 {
    threshold.to_bits().clamp(1, f32::MAX.to_bits())
}
