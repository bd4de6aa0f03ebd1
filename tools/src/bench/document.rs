//! The JSON document of a bench.

use super::link::Link;
use super::measure::{Cell, Measured};
use super::plan::Plan;
use super::statistics::Summary;
use crate::profile::{self, ProfileEntry};
use linerate::ReduceOp;
use serde::Serialize;
use std::collections::BTreeMap;

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub struct Document {
    version: &'static str,
    transport: String,
    ranks: u32,
    seed: u64,
    rotate: bool,
    /// The network that was modelled, times being virtual; `null` where they are real.
    link: Option<Link>,
    avg_busbw: f64,
    wrong: u64,
    /// What rank 0's transport has counted, from the first connection on.
    counts: BTreeMap<&'static str, u64>,
    results: Vec<Entry>,
}

#[derive(Debug, Serialize)]
struct Entry {
    collective: &'static str,
    bytes: u64,
    count: u64,
    dtype: &'static str,
    /// `null` where nothing is reduced.
    op: Option<String>,
    /// `null` where there is none.
    root: Option<u32>,
    algorithm: String,
    memory: &'static str,
    in_place: bool,
    iterations: u32,
    time_us: Summary,
    algbw: f64,
    busbw: f64,
    /// `null`: not checked.
    wrong: Option<u64>,
    /// Where the time of an operation goes, by rank; `null` without `--profile`.
    profile: Option<Vec<ProfileEntry>>,
}

impl Document {
    /// A document without results yet.
    pub fn new(plan: &Plan, transport: &str) -> Document {
        Document {
            version: env!("CARGO_PKG_VERSION"),
            transport: transport.into(),
            ranks: plan.ranks,
            seed: plan.seed,
            rotate: plan.rotate,
            link: plan.link,
            avg_busbw: 0.0,
            wrong: 0,
            counts: BTreeMap::new(),
            results: Vec::new(),
        }
    }

    /// Adds a row: an entry for each placement.
    pub fn add(&mut self, plan: &Plan, measured: &Measured) {
        for (in_place, cell) in [(false, &measured.out_of_place), (true, &measured.in_place)] {
            if let Some(cell) = cell {
                self.results.push(entry(plan, measured, in_place, cell));
            }
        }
    }

    /// Sets what the transport has counted.
    pub fn note_counts(&mut self, counts: Vec<(&'static str, u64)>) {
        self.counts = counts.into_iter().collect();
    }

    /// Sets what concerns all results.
    pub fn finish(&mut self, average_busbw: f64, wrong: u64) {
        self.avg_busbw = average_busbw;
        self.wrong = wrong;
    }
}

fn entry(plan: &Plan, measured: &Measured, in_place: bool, cell: &Cell) -> Entry {
    let op = |op: ReduceOp| op.to_string();
    Entry {
        collective: plan.collective.name(),
        bytes: measured.bytes,
        count: measured.count,
        dtype: measured.dtype.name(),
        op: plan.collective.is_reducing().then(|| op(measured.op)),
        root: plan.collective.is_rooted().then_some(plan.root),
        algorithm: cell.algorithm.clone(),
        memory: plan.memory.name(),
        in_place,
        iterations: cell.iterations,
        time_us: cell.time_us,
        algbw: cell.algbw,
        busbw: cell.busbw,
        wrong: cell.wrong,
        profile: plan.profile.then(|| profile::entries(&cell.profile)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> Document {
        Document {
            version: "0.1.0",
            transport: "shm".into(),
            ranks: 2,
            seed: 1,
            rotate: true,
            link: None,
            avg_busbw: 1.5,
            wrong: 0,
            counts: BTreeMap::new(),
            results: vec![Entry {
                collective: "allreduce",
                bytes: 8,
                count: 2,
                dtype: "f32",
                op: Some("sum".into()),
                root: None,
                algorithm: "ring".into(),
                memory: "registered",
                in_place: true,
                iterations: 10,
                time_us: Summary::of(&[1.0, 2.0]),
                algbw: 0.5,
                busbw: 0.5,
                wrong: Some(0),
                profile: None,
            }],
        }
    }

    #[test]
    fn a_result_has_the_documented_names() {
        let value = serde_json::to_value(document()).unwrap();
        for name in ["version", "transport", "ranks", "results"] {
            assert!(value.get(name).is_some(), "{name}");
        }
        let result = &value["results"][0];
        for name in [
            "collective",
            "bytes",
            "count",
            "dtype",
            "op",
            "algorithm",
            "memory",
            "in_place",
            "algbw",
            "busbw",
            "wrong",
        ] {
            assert!(!result[name].is_null(), "{name}");
        }
        for name in ["min", "p50", "p90", "p99", "max", "mean", "stddev"] {
            assert!(result["time_us"][name].is_number(), "{name}");
        }
    }
}
