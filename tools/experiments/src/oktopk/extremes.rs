//! The worst placements of picks, with real entries on a fabric without latency. A step may take no
//! longer than its 6k words.

use crate::section::Section;
use linerate::options::{Algorithm, Balance};
use linerate::reports::Phase;
use linerate::unstable::prng::{Prng, mix};
use linerate::unstable::sparse::{Entries, Machine, OkTopkState, Step, Stream};
use linerate::{Rank, SparseOptions};
use linerate_job::fabric::{Fabric, Network, run};
use serde_json::{Value, json};

/// A step may take this many times the time of 6k words.
const SLACK: f64 = 1.05;

/// Where a job's picks lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extreme {
    Independent,
    Identical,
    /// Those of rank r lie in the part of rank r + 1.
    Foreign,
    /// Those of rank r lie in the part of another rank, by a permutation.
    Permuted,
    /// All lie in the part of rank 0.
    OnePart,
    /// Rank 0 alone has picks.
    OneRank,
    /// They lie anywhere, and the large ones in the part of rank 0.
    LargeInOnePart,
    /// They lie anywhere. The large ones are those of rank 0, in its own part.
    LargeOnOneRank,
    /// The part of rank 0 has just too few large ones to be spread.
    JustBelow,
}

const ALL: [Extreme; 9] = [
    Extreme::Independent,
    Extreme::Identical,
    Extreme::Foreign,
    Extreme::Permuted,
    Extreme::OnePart,
    Extreme::OneRank,
    Extreme::LargeInOnePart,
    Extreme::LargeOnOneRank,
    Extreme::JustBelow,
];

impl Extreme {
    fn name(self) -> &'static str {
        match self {
            Extreme::Independent => "independent",
            Extreme::Identical => "identical",
            Extreme::Foreign => "all foreign, next rank",
            Extreme::Permuted => "all foreign, any rank",
            Extreme::OnePart => "all in one region",
            Extreme::OneRank => "all on one rank",
            Extreme::LargeInOnePart => "large in one region",
            Extreme::LargeOnOneRank => "large on one rank",
            Extreme::JustBelow => "4 times the mean",
        }
    }

    fn picks(self, (count, k, ranks): (u64, u64, u32), rank: Rank, seed: u64) -> Stream {
        let of_rank = Prng::new(mix(seed ^ mix(u64::from(rank) + 1)));
        let part = |owner: u32| {
            let bound = |r: u32| u64::from(r) * count / u64::from(ranks);
            (bound(owner), bound(owner + 1))
        };
        let all = (0, count);
        let large = |picks: &mut Stream, is_large: &dyn Fn(u64) -> bool| {
            for (index, value) in picks.indices.iter().zip(&mut picks.values) {
                if is_large(*index) {
                    *value *= 1024.0;
                }
            }
        };
        match self {
            Extreme::Independent => draw(all, k, of_rank),
            Extreme::Identical => draw(all, k, Prng::new(seed)),
            Extreme::Foreign => draw(part((rank + 1) % ranks), k, of_rank),
            // For a power of two of ranks, as here, this is a permutation, and no rank draws its
            // own part.
            Extreme::Permuted => draw(part((5 * rank + 3) % ranks), k, of_rank),
            Extreme::OnePart => draw(part(0), k, of_rank),
            Extreme::OneRank => draw(all, if rank == 0 { k } else { 0 }, of_rank),
            Extreme::LargeInOnePart => {
                let mut picks = draw(all, k, of_rank);
                large(&mut picks, &|index| index < part(0).1);
                picks
            }
            Extreme::LargeOnOneRank => {
                let mut picks = draw(if rank == 0 { part(0) } else { all }, k, of_rank);
                large(&mut picks, &|_| rank == 0);
                picks
            }
            Extreme::JustBelow => {
                let mut picks = draw(all, k, of_rank);
                // k picks are large. The part of rank 0 has 3.9 times its share of them.
                let share = 3.9 / f64::from(ranks);
                let others = (1.0 - share) / (1.0 - 1.0 / f64::from(ranks));
                let end = (part(0).1 as f64 * share) as u64;
                let beyond = part(0).1;
                let step = count / 1000;
                large(&mut picks, &|index| match index < beyond {
                    true => index < end,
                    false => ((index % step) as f64) < step as f64 * others / f64::from(ranks),
                });
                picks
            }
        }
    }
}

/// `count` picks, one from each of `count` equal pieces of a range.
fn draw((from, to): (u64, u64), count: u64, mut prng: Prng) -> Stream {
    let mut picks = Stream::default();
    for i in 0..count {
        let (low, high) = ((to - from) * i / count, (to - from) * (i + 1) / count);
        picks.indices.push(from + low + prng.below(high - low));
        picks.values.push(1.0 + prng.unit() as f32);
    }
    picks
}

/// Runs every extreme with and without balancing; appends to the section.
pub fn append(section: &mut Section, is_quick: bool, seed: u64) -> Result<Value, String> {
    let (ranks, k) = if is_quick {
        (8, 200_000)
    } else {
        (16, 1_335_473)
    };
    let count = 100 * k;
    let fabric = Fabric {
        alpha_ns: 0,
        chunk_bytes: 64 << 10,
        ..Fabric::PAPER
    };
    section.line(format!(
        "alpha = 0, real entries, {ranks} ranks, n = {count}, k = {k}: time of a step in 6k beta, which may be {SLACK} with balancing"
    ));
    section.line(format!(
        "{:>24} {:>9} {:>9} {:>11} {:>11} {:>11}",
        "picks", "balanced", "without", "sent / k", "spread", "entries"
    ));
    let mut network = Network::new(fabric, ranks)?;
    let mut rows = Vec::new();
    for extreme in ALL {
        let mut step = |balance| {
            let options = SparseOptions {
                balance,
                ..SparseOptions::default()
            };
            let machine = |rank| {
                let step = Step {
                    picks: extreme.picks((count, k, ranks), rank, seed),
                    not_finite: 0,
                    count,
                    k,
                };
                let state = OkTopkState::default();
                Machine::new(Algorithm::OkTopk, &options, (rank, ranks), step, state)
            };
            run((0..ranks).map(machine).collect(), Some(&mut network))
        };
        let limit = 6.0 * k as f64 * fabric.beta();
        let (balanced, without) = (step(Balance::Auto)?, step(Balance::Never)?);
        let shares = (balanced.seconds / limit, without.seconds / limit);
        let words = balanced.words();
        let moved = |f: &linerate::unstable::sparse::Finished<Stream>| {
            f.counters.of(Phase::Balance).data_words_sent
        };
        let is_spread = balanced.finished.iter().any(|f| moved(f) > 0);
        let entries = balanced.finished[0].result.len();
        section.line(format!(
            "{:>24} {:>9.3} {:>9.3} {:>11.3} {:>11} {:>11}",
            extreme.name(),
            shares.0,
            shares.1,
            words.sent as f64 / k as f64,
            if is_spread { "yes" } else { "no" },
            entries
        ));
        rows.push(json!({
            "picks": extreme.name(), "ranks": ranks, "k": k, "time_in_6k_beta": shares.0,
            "time_in_6k_beta_without_balancing": shares.1, "words_sent_max": words.sent,
            "words_received_max": words.received, "is_spread": is_spread, "entries": entries,
        }));
        if shares.0 > SLACK {
            section.violation(format!(
                "picks {}: a step takes {:.3} of 6k beta without latency, at most {SLACK} with balancing",
                extreme.name(),
                shares.0
            ));
        }
        let most = 6 * k + 2 * u64::from(ranks);
        if words.sent > most || words.received_mean > most as f64 {
            section.violation(format!(
                "picks {}: {words:?}, at most {most}",
                extreme.name()
            ));
        }
    }
    Ok(Value::Array(rows))
}
