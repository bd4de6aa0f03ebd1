//! Figure 7: regions of equal picks against equal regions, and spreading what was selected against
//! gathering it as it lies.

use super::OkTopkArgs;
use super::shape::BERT;
use crate::plot::{Chart, Line};
use crate::section::Section;
use linerate::options::{Algorithm, Regions};
use linerate::reports::Phase;
use linerate::unstable::prng::{Prng, mix};
use linerate::unstable::sparse::{Machine, OkTopkState, Step, Stream, build_plan};
use linerate::{Collective, DataType, SparseOptions};
use linerate_job::fabric::{Fabric, Network, run as run_machines, transfers};
use serde_json::{Value, json};

/// Where real entries are moved, n, k and the bandwidth are divided by this, which gives equal
/// times in less memory.
const PART: u64 = 100;
/// The paper cuts regions anew once in this many steps.
const REPARTITION_STEPS: f64 = 64.0;
/// How unevenly picks lie: their density falls with this power of the coordinate, the same on all
/// ranks. With the first, equal regions differ by about the paper's gain: P^0.1 is 1.32 for 16
/// ranks and 1.74 for 256.
const POWERS: [f64; 2] = [0.1, 0.5];
/// The library's default. A rank forwards a longer block chunk by chunk.
const CHUNK_BYTES: usize = 256 << 10;
/// An index and a value.
const ENTRY_BYTES: u64 = 8;

pub fn run(args: &OkTopkArgs) -> Result<Section, String> {
    let mut section = Section::new("balance");
    let ranks: &[u32] = match args.quick {
        true => &[8, 16],
        false => &[16, 32, 64, 128, 256],
    };
    let reduce = reduce(&mut section, ranks, args.seed)?;
    let gather = gather(&mut section, ranks)?;
    section.document = json!({ "reduce": reduce, "gather": gather });
    Ok(section)
}

/// Figure 7a.
fn reduce(section: &mut Section, ranks: &[u32], seed: u64) -> Result<Value, String> {
    let (count, k) = (BERT.count / PART, BERT.k / PART);
    let fabric = Fabric {
        bytes_per_second: Fabric::PAPER.bytes_per_second / PART,
        ..Fabric::PAPER
    };
    section.line(format!(
        "Figure 7a: split and reduce, regions of equal picks (with 1/{REPARTITION_STEPS} of a repartition) against equal regions; real entries, \
         n, k and bandwidth {PART} times smaller; paper: 1.13 to 1.75, growing with P"
    ));
    section.line(format!(
        "{:>6} {:>6} {:>9} {:>9} {:>9} {:>8} {:>12} {:>12}",
        "power", "ranks", "naive ms", "bal. ms", "cut ms", "speedup", "naive recv/k", "bal. recv/k"
    ));
    let mut rows = Vec::new();
    let mut lines = Vec::new();
    for power in POWERS {
        let mut points = Vec::new();
        for &ranks in ranks {
            let mut network = Network::new(fabric, ranks)?;
            let mut step = |regions| {
                let options = SparseOptions {
                    regions,
                    ..SparseOptions::default()
                };
                let machine = |rank| {
                    let step = Step {
                        picks: skewed((count, k), power, mix(seed ^ mix(rank + 1))),
                        not_finite: 0,
                        count,
                        k,
                    };
                    let place = (rank as u32, ranks);
                    Machine::new(
                        Algorithm::OkTopk,
                        &options,
                        place,
                        step,
                        OkTopkState::default(),
                    )
                };
                run_machines(
                    (0..u64::from(ranks)).map(machine).collect(),
                    Some(&mut network),
                )
            };
            let (naive, balanced) = (step(Regions::Equal)?, step(Regions::Balanced)?);
            let received = |finished: &[linerate::unstable::sparse::Finished<Stream>]| {
                let words = finished
                    .iter()
                    .map(|f| f.counters.of(Phase::Reduce).data_words_received);
                words.max().unwrap_or(0)
            };
            let (before, after) = (received(&naive.finished), received(&balanced.finished));
            let cut = balanced.span(Phase::Partition);
            let seconds = (naive.span(Phase::Reduce), balanced.span(Phase::Reduce));
            let speedup = seconds.0 / (seconds.1 + cut / REPARTITION_STEPS);
            section.line(format!(
                "{power:>6} {ranks:>6} {:>9.3} {:>9.3} {:>9.3} {speedup:>8.2} {:>12.2} {:>12.2}",
                1e3 * seconds.0,
                1e3 * seconds.1,
                1e3 * cut,
                before as f64 / k as f64,
                after as f64 / k as f64
            ));
            if after > 2 * (k + u64::from(ranks)) {
                section.violation(format!(
                    "{after} words received after a repartition, at most 2(k + P)"
                ));
            }
            points.push((f64::from(ranks), speedup));
            rows.push(json!({
                "power": power, "ranks": ranks, "seconds_naive": seconds.0, "seconds_balanced": seconds.1,
                "seconds_cut": cut, "speedup": speedup, "k": k, "words_naive": before, "words_balanced": after,
            }));
        }
        lines.push(Line {
            name: format!("density falls with power {power}"),
            points,
        });
    }
    let chart = Chart {
        title: "Regions of equal picks against equal regions".into(),
        x: "ranks".into(),
        y: "times as fast".into(),
        lines,
    };
    section.charts.push(("balance".into(), chart));
    Ok(Value::Array(rows))
}

/// k picks whose density falls with a power of the coordinate: one in each of k ranges of equal
/// weight.
fn skewed((count, k): (u64, u64), power: f64, seed: u64) -> Stream {
    let mut prng = Prng::new(seed);
    let mut picks = Stream::default();
    let mut next = 0;
    for i in 0..k {
        let share = (i as f64 + prng.unit()) / k as f64;
        let at = (share.powf(1.0 / (1.0 - power)) * count as f64) as u64;
        // Picks that would fall on one coordinate take consecutive ones.
        let index = at.max(next).min(count - (k - i));
        picks.indices.push(index);
        picks.values.push(1.0 + prng.unit() as f32);
        next = index + 1;
    }
    picks
}

/// Figure 7b.
fn gather(section: &mut Section, ranks: &[u32]) -> Result<Value, String> {
    let fabric = Fabric {
        chunk_bytes: CHUNK_BYTES,
        ..Fabric::PAPER
    };
    section.line(format!(
        "Figure 7b: spreading, then gathering k = {} entries, against gathering them as they lie (a ring that forwards chunks of {} KiB); \
         paper: 1.12 to 1.43, growing with P",
        BERT.k,
        CHUNK_BYTES >> 10
    ));
    section.line(format!(
        "{:>16} {:>6} {:>10} {:>10} {:>10} {:>8} {:>18}",
        "largest region",
        "ranks",
        "direct ms",
        "spread ms",
        "gather ms",
        "speedup",
        "doubling: log P / 2"
    ));
    let mut rows = Vec::new();
    for (name, times) in [("5 x mean", Some(5)), ("all entries", None)] {
        for &ranks in ranks {
            let p = u64::from(ranks);
            let mean = BERT.k / p;
            let largest = times.map_or(BERT.k, |times| (times * mean).min(BERT.k));
            let rest = (BERT.k - largest) / (p - 1);
            let sizes: Vec<u64> = (0..p)
                .map(|r| if r == 0 { largest } else { rest })
                .collect();
            let total: u64 = sizes.iter().sum();
            let blocks: Vec<u64> = (0..p)
                .map(|r| total / p + u64::from(r < total % p))
                .collect();
            let mut network = Network::new(fabric, ranks)?;
            let direct = gathered(&mut network, &sizes)?;
            let plan = build_plan(&sizes);
            let spread = network.time(|comm, sent, received| {
                let rank = comm.rank();
                let moved = plan.iter().filter(|m| m.0 != m.1);
                let out = moved.clone().filter(|m| m.0 == rank);
                let back = moved.clone().filter(|m| m.1 == rank);
                if moved.clone().all(|m| m.0 != rank && m.1 != rank) {
                    return comm.start_barrier();
                }
                let out = out.map(|m| (m.1, ENTRY_BYTES * m.2));
                let back = back.map(|m| (m.0, ENTRY_BYTES * m.2));
                let group = transfers(comm.group(), sent, true, out);
                transfers(group, received, false, back).start()
            })?;
            let even = gathered(&mut network, &blocks)?;
            let speedup = direct / (spread.0 + even);
            let doubling = f64::from(ranks).log2() / 2.0;
            section.line(format!(
                "{name:>16} {ranks:>6} {:>10.3} {:>10.3} {:>10.3} {speedup:>8.2} {:>18}",
                1e3 * direct,
                1e3 * spread.0,
                1e3 * even,
                times.map_or(format!("{doubling:.1}"), |_| "-".into())
            ));
            rows.push(json!({
                "largest": name, "ranks": ranks, "seconds_direct": direct, "seconds_spread": spread.0,
                "seconds_gather": even, "speedup": speedup,
            }));
        }
    }
    Ok(Value::Array(rows))
}

fn gathered(network: &mut Network, entries: &[u64]) -> Result<f64, String> {
    let bytes: Vec<u64> = entries.iter().map(|count| ENTRY_BYTES * count).collect();
    let timed = network.time(|comm, sent, received| {
        let own = bytes[comm.rank() as usize];
        comm.collective(Collective::AllGatherV, DataType::U8, own)
            .receive_counts(&bytes)
            .input(sent)
            .output(received)
            .start()
    })?;
    Ok(timed.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picks_are_as_many_and_increase_wherever_they_lie() {
        for power in POWERS {
            let picks = skewed((100_000, 1000), power, 3);
            assert_eq!(picks.indices.len(), 1000);
            assert!(picks.indices.windows(2).all(|pair| pair[0] < pair[1]));
            let last = picks.indices.last().unwrap();
            assert!(*last < 100_000);
            let first_tenth = picks.indices.partition_point(|i| *i < 10_000) as f64 / 1000.0;
            assert!(
                (first_tenth / 0.1f64.powf(1.0 - power) - 1.0).abs() < 0.02,
                "{first_tenth}"
            );
        }
    }
}
