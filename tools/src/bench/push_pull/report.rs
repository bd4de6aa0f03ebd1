//! Row after row, of real ranks ([`super::rank`]) or of simulated ones ([`super::simulate`]): what
//! is printed, and the entries of the document.

use super::document::{Document, Entry};
use super::{Plan, table};
use crate::bench::statistics::Summary;
use crate::bench::sweep;
use crate::bench::values::Value;
use half::{bf16, f16};
use linerate::reports::ServerReport;
use linerate::{DataType, Result};

/// What measures a row.
pub trait Measure {
    /// Trains with gradients of `G` and pulls weights of `W`.
    fn measure<G: Value, W: Value>(&self, count: u64) -> Result<Entry>;
}

/// What is printed and written.
pub struct Report<'a> {
    plan: &'a Plan,
    document: Document,
}

impl<'a> Report<'a> {
    /// Prints the header.
    pub fn new(plan: &'a Plan, transport: &str) -> Report<'a> {
        let report = Report {
            plan,
            document: Document::new(plan, transport),
        };
        report.print(&table::header(plan, transport));
        report
    }

    fn add(&mut self, entry: Entry) {
        self.print(&table::row(self.plan, &entry));
        self.document.wrong += entry.wrong;
        self.document.results.push(entry);
    }

    /// Prints the footer and writes the document. An error says what is wrong.
    pub fn finish(self) -> std::result::Result<(), Vec<String>> {
        let wrong = self.document.wrong;
        self.print(&table::footer(self.plan.counts.len(), wrong));
        let written = self.plan.args.job.write_json(&self.document);
        match wrong {
            0 => written.map_err(|text| vec![text]),
            _ => Err(vec![format!(
                "{wrong} elements are wrong: see the column #wrong"
            )]),
        }
    }

    /// Prints to stdout, or to stderr where the document goes to stdout.
    fn print(&self, text: &str) {
        // Nobody can be told that the output is closed.
        let _ = self.plan.args.job.print(text);
    }
}

/// Measures all rows; gives the report back if there is one.
pub fn measure_all<'a>(
    plan: &Plan,
    mut report: Option<Report<'a>>,
    job: &impl Measure,
) -> Result<Option<Report<'a>>> {
    for &count in &plan.counts {
        let entry = match plan.args.dtype {
            DataType::F16 => measure_gradients::<f16>(plan, job, count),
            DataType::Bf16 => measure_gradients::<bf16>(plan, job, count),
            _ => measure_gradients::<f32>(plan, job, count),
        };
        let entry = entry?;
        if let Some(report) = &mut report {
            report.add(entry);
        }
    }
    Ok(report)
}

fn measure_gradients<G: Value>(plan: &Plan, job: &impl Measure, count: u64) -> Result<Entry> {
    match plan.args.pull {
        DataType::F16 => job.measure::<G, f16>(count),
        DataType::Bf16 => job.measure::<G, bf16>(count),
        _ => job.measure::<G, f32>(count),
    }
}

/// Times of steps, and of pulls after them, us; zeros on a rank that only serves.
pub struct Times {
    /// When the slowest worker ends its step, from the start of the first one.
    pub ends: Vec<f64>,
    pub push: Vec<f64>,
    pub pull: Vec<f64>,
    pub pull_alone: Vec<f64>,
}

impl Times {
    pub fn new(steps: usize) -> Times {
        Times {
            ends: vec![0.0; steps],
            push: vec![0.0; steps],
            pull: vec![0.0; steps],
            pull_alone: vec![0.0; steps],
        }
    }

    /// Takes a step of a worker that ends at this time, if it is the slowest one so far.
    pub fn note(&mut self, at: usize, end: f64, (push, pull): (f64, f64)) {
        let all = [&mut self.ends, &mut self.push, &mut self.pull];
        for (times, time) in all.into_iter().zip([end, push, pull]) {
            times[at] = times[at].max(time);
        }
    }

    /// From when all workers have done a step until all have done the next one.
    fn whole(&self) -> Vec<f64> {
        let before = std::iter::once(&0.0).chain(&self.ends);
        let steps = self.ends.iter().zip(before);
        steps.map(|(end, before)| end - before).collect()
    }

    /// The entry of a row whose first shard has reported this.
    pub fn entry(&self, plan: &Plan, count: u64, wrong: u64, report: &ServerReport) -> Entry {
        let pushes: u64 = report.staleness.iter().sum();
        let staleness = (0..).zip(&report.staleness);
        let staleness: u64 = staleness.map(|(versions, pushes)| versions * pushes).sum();
        let bytes = count * plan.args.dtype.size_bytes() as u64;
        let time_us = Summary::of(&self.whole());
        Entry {
            collective: "push-pull",
            bytes,
            count,
            dtype: plan.args.dtype.name(),
            pull: plan.args.pull.name(),
            memory: plan.args.gradients.name(),
            iterations: plan.args.iterations,
            time_us,
            push_us: Summary::of(&self.push),
            pull_us: Summary::of(&self.pull),
            pull_alone_us: Summary::of(&self.pull_alone),
            algbw: sweep::algorithm_bandwidth(bytes, time_us.p50),
            wrong,
            updates: report.version,
            drift_max: report.drift_max,
            waits: report.decisions.waits,
            staleness_mean: staleness as f64 / pushes.max(1) as f64,
        }
    }
}
