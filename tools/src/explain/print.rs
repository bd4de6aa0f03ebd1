//! The text and the document of `explain`. Pure.

use crate::bench::layout::Placement;
use crate::bench::plan::Plan;
use linerate::reports::Explanation;
use linerate::{DataType, ReduceOp};
use serde::Serialize;
use std::collections::BTreeMap;

/// Everything that was explained.
#[derive(Debug, Serialize)]
pub struct Document {
    version: &'static str,
    collective: &'static str,
    transport: String,
    ranks: u32,
    memory: &'static str,
    in_place: bool,
    /// What the choice is made by.
    prices: String,
    /// By size.
    pub results: Vec<Entry>,
}

/// One size.
#[derive(Debug, Serialize)]
pub struct Entry {
    /// Bytes of the larger side.
    pub bytes: u64,
    count: u64,
    dtype: &'static str,
    /// `null` where nothing is reduced.
    op: Option<String>,
    algorithm: &'static str,
    /// What all ranks plan before they know whose memory is registered.
    planned: &'static str,
    why: &'static str,
    path: String,
    chunk_bytes: u64,
    /// 0 where no windows are used.
    window_bytes: u64,
    segments: u64,
    threads: u32,
    predicted_us: f64,
    /// `null`: not measured.
    measured_us: Option<f64>,
    /// Measured over predicted.
    ratio: Option<f64>,
    /// What most of the predicted time goes to: wire, reduction, memory, or messages (their number
    /// times latency).
    bound: &'static str,
    /// The predicted time by what it goes to, us.
    parts_us: BTreeMap<&'static str, f64>,
    /// All that could run, cheapest by prediction first.
    candidates: Vec<Rival>,
}

/// An algorithm that could run.
#[derive(Debug, Serialize)]
pub struct Rival {
    /// Its name.
    pub algorithm: &'static str,
    /// By the cost model.
    pub predicted_us: f64,
    /// `null`: not measured.
    pub measured_us: Option<f64>,
}

impl Document {
    /// A document without results yet.
    pub fn new(plan: &Plan, transport: &str, prices: String) -> Document {
        Document {
            version: env!("CARGO_PKG_VERSION"),
            collective: plan.collective.name(),
            transport: transport.into(),
            ranks: plan.ranks,
            memory: plan.memory.name(),
            in_place: plan.placements[0] == Placement::InPlace,
            prices,
            results: Vec::new(),
        }
    }
}

impl Entry {
    /// What was found out about one size.
    pub fn new(
        (plan, bytes, count, dtype, op): (&Plan, u64, u64, DataType, ReduceOp),
        explanation: &Explanation,
        measured_us: Option<f64>,
        candidates: Vec<Rival>,
    ) -> Entry {
        let predicted_us = explanation.predicted_ns / 1e3;
        let ratio = measured_us.filter(|_| predicted_us > 0.0);
        Entry {
            bytes,
            count,
            dtype: dtype.name(),
            op: plan.collective.is_reducing().then(|| op.to_string()),
            algorithm: explanation.algorithm,
            planned: explanation.planned,
            why: explanation.why,
            path: explanation.path.to_string(),
            chunk_bytes: explanation.chunk_bytes,
            window_bytes: explanation.window_bytes,
            segments: explanation.segments,
            threads: explanation.threads,
            predicted_us,
            measured_us,
            ratio: ratio.map(|us| us / predicted_us),
            bound: explanation.parts_ns[0].0.name(),
            parts_us: (explanation.parts_ns.iter())
                .map(|(bound, ns)| (bound.name(), ns / 1e3))
                .collect(),
            candidates,
        }
    }
}

/// Comment lines and column titles.
pub fn header(document: &Document) -> String {
    let placement = match document.in_place {
        true => "in place",
        false => "out of place",
    };
    format!(
        "# linerate {} explain {} ranks: {} transport: {} memory: {} {placement}\n\
         # prices: {}\n\
         # times in us: predicted by the cost model; measured is a median of the slowest rank's times, on one buffer; ratio is measured over predicted\n\
         # bound by: what most of the predicted time goes to, and its share: wire, reduction, memory, or messages (their number times latency)\n\
         #{:>11} {:>5} {:>9} {:<19}{:<15}{:>8} {:>8} {:>8} {:>7} {:>10} {:>10} {:>6}  {:<15} why; the others\n",
        document.version,
        document.collective,
        document.ranks,
        document.transport,
        document.memory,
        document.prices,
        "bytes",
        "type",
        "op",
        "algorithm",
        "path",
        "chunk",
        "window",
        "segments",
        "threads",
        "predicted",
        "measured",
        "ratio",
        "bound by",
    )
}

/// The line of one size.
pub fn lines(entry: &Entry) -> String {
    let size = |bytes: u64| match bytes {
        0 => "-".into(),
        _ => format!("{}K", bytes.div_ceil(1024)),
    };
    let time = |us: Option<f64>| us.map_or("-".into(), |us| format!("{us:.2}"));
    let is_other = |rival: &&Rival| rival.algorithm != entry.algorithm;
    let others = entry.candidates.iter().filter(is_other).map(|rival| {
        let measured = rival.measured_us.map(|us| format!(" ({us:.2})"));
        let (name, predicted) = (rival.algorithm, rival.predicted_us);
        format!("{name} {predicted:.2}{}", measured.unwrap_or_default())
    });
    let others: Vec<String> = others.collect();
    let planned = match entry.planned == entry.algorithm {
        true => String::new(),
        false => format!(" (redirected from {})", entry.planned),
    };
    format!(
        " {:>11} {:>5} {:>9} {:<19}{:<15}{:>8} {:>8} {:>8} {:>7} {:>10} {:>10} {:>6}  {:<15} {}{planned}; {}\n",
        entry.bytes,
        entry.dtype,
        entry.op.as_deref().unwrap_or("none"),
        entry.algorithm,
        entry.path,
        size(entry.chunk_bytes),
        size(entry.window_bytes),
        entry.segments,
        entry.threads,
        time(Some(entry.predicted_us)),
        time(entry.measured_us),
        time(entry.ratio),
        bound(entry),
        entry.why,
        others.join(", "),
    )
}

/// What bounds the call, and its share of the predicted time.
fn bound(entry: &Entry) -> String {
    let share = 100.0 * entry.parts_us[entry.bound] / entry.predicted_us;
    match entry.predicted_us > 0.0 {
        true => format!("{} {share:.0}%", entry.bound),
        false => "-".into(),
    }
}
