//! Exactly the k largest, by a sample, one pass and a selection among few.

use super::histogram::{Level, histogram, place_from_top};
use super::{MAGNITUDE_INFINITE, Picks, Scan, Source, collect, count_of, magnitude};
use crate::prng::Prng;

/// Elements of a sample. At a density of 1 % the k that it estimates is off by a twentieth (one
/// standard deviation). Each element costs a cache miss; all take 1 % of a pass over 133 million
/// elements.
const SAMPLE: usize = 32 * 1024;

/// Room for picks beyond k that does not depend on k.
const SLACK: usize = 64 * 1024;

/// Samples that may miss before the histograms decide.
const ATTEMPTS: usize = 3;

/// Replaces `picks` by the `k` largest elements, fewer where fewer are not zero, and gives the
/// magnitude of the least of them (1 if all that are not zero were taken). A `hint` is a magnitude
/// that should lie a little below that of the k-th; with it no sample is taken, unless the hint
/// misleads.
pub fn select_top(
    sources: &[Source],
    k: usize,
    hint: Option<u32>,
    picks: &mut Picks,
) -> (u32, Scan) {
    if k == 0 {
        picks.clear();
        return (MAGNITUDE_INFINITE, Scan::default());
    }
    let limit = room_for(k);
    let mut margin = 3.0;
    let mut floor = hint.filter(|bits| (1..MAGNITUDE_INFINITE).contains(bits));
    let mut sample = Vec::new();
    for _ in 0..ATTEMPTS {
        let from = floor.take().unwrap_or_else(|| {
            if sample.is_empty() {
                sample = sample_of(sources);
            }
            floor_of(&mut sample, count_of(sources), k, margin)
        });
        picks.clear();
        let scan = collect(sources, from, limit, picks);
        if !scan.is_over && (picks.len() >= k || from == 1) {
            return (keep_top(picks, k), scan);
        }
        margin = match scan.is_over {
            true => 1.0,
            false => 4.0 * margin,
        };
    }
    by_histograms(sources, k, picks)
}

/// How many elements a pass may collect when the `k` largest of them are kept.
pub fn room_for(k: usize) -> usize {
    k.saturating_mul(3).saturating_add(SLACK)
}

/// Magnitudes of elements at places that only the number of elements decides.
fn sample_of(sources: &[Source]) -> Vec<u32> {
    let count = count_of(sources);
    let mut prng = Prng::new(count);
    let mut starts: Vec<u64> = Vec::with_capacity(sources.len());
    let mut sum = 0;
    for source in sources {
        starts.push(sum);
        sum += source.count() as u64;
    }
    let size = SAMPLE.min(count as usize);
    let draw = |_| {
        let index = prng.below(count);
        // Empty sources begin where the next one does: the last that begins at or before it holds
        // it.
        let of = starts.partition_point(|start| *start <= index) - 1;
        let bits = magnitude(sources[of].load((index - starts[of]) as usize));
        // What is not finite is never selected.
        if bits < MAGNITUDE_INFINITE { bits } else { 0 }
    };
    (0..size).map(draw).collect()
}

/// A magnitude that at least `k` of `count` elements should reach, lowered by `margin` standard
/// deviations.
fn floor_of(sample: &mut [u32], count: u64, k: usize, margin: f64) -> u32 {
    if sample.is_empty() {
        return 1;
    }
    let expected = k as f64 * sample.len() as f64 / count as f64;
    let place = (expected + margin * expected.sqrt() + margin).ceil() as usize;
    if place >= sample.len() {
        return 1;
    }
    let (_, bits, _) = sample.select_nth_unstable_by(place, |a, b| b.cmp(a));
    (*bits).max(1)
}

/// Keeps the first `k` in the total order, in order of their indices. Gives the least magnitude
/// kept (1 if all were kept).
pub fn keep_top(picks: &mut Picks, k: usize) -> u32 {
    if picks.len() <= k {
        return 1;
    }
    let mut all: Vec<u32> = picks.values.iter().map(|v| magnitude(*v)).collect();
    let (above, least, _) = all.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
    let least = *least;
    let mut ties = k - above.iter().filter(|bits| **bits > least).count();
    let mut kept = 0;
    for index in 0..picks.len() {
        let bits = magnitude(picks.values[index]);
        let is_tie = (bits == least) & (ties > 0);
        ties -= usize::from(is_tie);
        // Written without a branch, and overwritten by the next if it is not kept: a third of the
        // branches would be mispredicted.
        picks.indices[kept] = picks.indices[index];
        picks.values[kept] = picks.values[index];
        kept += usize::from((bits > least) | is_tie);
    }
    picks.indices.truncate(kept);
    picks.values.truncate(kept);
    least
}

/// [`select_top`] in three passes that only count and one that collects, for any distribution.
fn by_histograms(sources: &[Source], k: usize, picks: &mut Picks) -> (u32, Scan) {
    picks.clear();
    let (mut level, mut wanted) = (Level::TOP, k as u64);
    loop {
        let counts = histogram(sources, level);
        let Some((bin, before)) = place_from_top(&counts, wanted) else {
            // Fewer than k are not zero, and there is room for all of them.
            let scan = collect(sources, 1, usize::MAX, picks);
            return (1, scan);
        };
        wanted -= before;
        match level.below(bin) {
            Some(next) => level = next,
            None => return take_ties(sources, level.magnitude(bin), wanted, picks),
        }
    }
}

/// Everything above a magnitude, and the first `ties` of exactly that.
fn take_ties(sources: &[Source], least: u32, ties: u64, picks: &mut Picks) -> (u32, Scan) {
    let mut above = Picks::default();
    let scan = collect(sources, least + 1, usize::MAX, &mut above);
    let (mut base, mut left, mut next) = (0u64, ties, 0);
    for source in sources {
        let mut offset = 0;
        while offset < source.count() && left > 0 {
            let value = source.load(offset);
            if magnitude(value) == least {
                let index = base + offset as u64;
                let end = next + above.indices[next..].partition_point(|i| *i < index);
                picks.indices.extend_from_slice(&above.indices[next..end]);
                picks.values.extend_from_slice(&above.values[next..end]);
                next = end;
                picks.indices.push(index);
                picks.values.push(value);
                left -= 1;
            }
            offset += 1;
        }
        base += source.count() as u64;
    }
    picks.indices.extend_from_slice(&above.indices[next..]);
    picks.values.extend_from_slice(&above.values[next..]);
    (least, scan)
}
