//! What one rank of a bench does: joins, measures row after row, and reports if it is rank 0.

use super::document::Document;
use super::measure::{Bench, Cell, Measured};
use super::plan::Plan;
use super::slots::Arenas;
use super::table;
use linerate::{DataType, ReduceOp};
use linerate_job::ending::Outcome;
use linerate_job::progress::Progress;
use linerate_job::settings;

/// Joins the other ranks and measures everything.
pub fn run(plan: &Plan) -> Outcome {
    let communicator = settings::join(plan.config.clone())?;
    let bench = Bench {
        plan,
        communicator: &communicator,
        arenas: Arenas::new(&communicator, plan)?,
    };
    let report = (communicator.rank() == 0).then(|| Report::new(plan, communicator.transport()));
    let mut report = measure_all(plan, report, |row| bench.measure(row))?;
    communicator.barrier()?;
    if let Some(report) = &mut report {
        report.document.note_counts(communicator.transport_counts());
    }
    Ok(report.map_or(Ok(()), Report::finish))
}

/// All rows, in the order of the table.
pub fn measure_all<'a>(
    plan: &Plan,
    mut report: Option<Report<'a>>,
    mut measure: impl FnMut((u64, DataType, ReduceOp)) -> linerate::Result<Measured>,
) -> linerate::Result<Option<Report<'a>>> {
    for &(dtype, op) in &plan.variants {
        for &size in &plan.sizes {
            let measured = measure((size, dtype, op))?;
            if let Some(report) = &mut report {
                report.add(measured);
            }
        }
    }
    Ok(report)
}

/// What rank 0 prints and writes.
pub struct Report<'a> {
    plan: &'a Plan,
    document: Document,
    progress: Progress,
    verdict: Verdict,
    /// Where the time goes: lines for after the table.
    profile: String,
    /// The first failure to print.
    unprinted: Option<String>,
}

impl<'a> Report<'a> {
    /// Prints the header.
    pub fn new(plan: &'a Plan, transport: &str) -> Report<'a> {
        let mut report = Report {
            plan,
            document: Document::new(plan, transport),
            progress: Progress::new("rows", plan.variants.len() * plan.sizes.len(), true),
            verdict: Verdict::default(),
            profile: table::profile_header(plan),
            unprinted: None,
        };
        report.print(&table::header(plan, transport));
        report
    }

    fn add(&mut self, measured: Measured) {
        self.print(&table::row(self.plan, &measured));
        self.document.add(self.plan, &measured);
        self.profile += &table::profile_rows(self.plan, &measured);
        for cell in [&measured.out_of_place, &measured.in_place]
            .into_iter()
            .flatten()
        {
            self.verdict.add(cell, &measured);
        }
        let done = format!("{} {}", measured.dtype, measured.bytes);
        self.progress.advance(format!("after {done} B"));
    }

    /// Prints the footer and writes the document; the error is all that was not good enough.
    pub fn finish(mut self) -> Result<(), Vec<String>> {
        self.progress.finish();
        let average = self.verdict.average_busbw();
        self.print(&table::footer(self.verdict.wrong, average));
        let profile = std::mem::take(&mut self.profile);
        self.print(&profile);
        let mut failures = self.verdict.failures(self.plan);
        self.document.finish(average, self.verdict.wrong);
        failures.extend(self.unprinted.take());
        failures.extend(self.plan.job.write_json(&self.document).err());
        if failures.is_empty() {
            Ok(())
        } else {
            Err(failures)
        }
    }

    fn print(&mut self, text: &str) {
        let result = self.progress.suspended(|| self.plan.job.print(text));
        self.unprinted = self.unprinted.take().or(result.err());
    }
}

/// What decides the exit code.
#[derive(Debug, Default)]
struct Verdict {
    cells: u64,
    busbw_sum: f64,
    wrong: u64,
    /// Greatest 99th percentile, us, and the size it was seen at.
    slowest: Option<(f64, u64)>,
}

impl Verdict {
    fn add(&mut self, cell: &Cell, measured: &Measured) {
        self.cells += 1;
        self.busbw_sum += cell.busbw;
        self.wrong += cell.wrong.unwrap_or(0);
        if self.slowest.is_none_or(|(p99, _)| cell.time_us.p99 > p99) {
            self.slowest = Some((cell.time_us.p99, measured.bytes));
        }
    }

    fn average_busbw(&self) -> f64 {
        self.busbw_sum / self.cells.max(1) as f64
    }

    fn failures(&self, plan: &Plan) -> Vec<String> {
        let mut failures = Vec::new();
        if self.wrong > 0 {
            failures.push(format!(
                "{} elements are wrong: see the column #wrong",
                self.wrong
            ));
        }
        let average = self.average_busbw();
        if let Some(least) = plan.bounds.min_bw.filter(|&least| average < least) {
            failures.push(format!(
                "the average bus bandwidth is {average:.3} GB/s, below --min-bw {least}"
            ));
        }
        if let (Some((p99, bytes)), Some(most)) = (self.slowest, plan.bounds.max_p99)
            && p99 > most
        {
            failures.push(format!(
                "the 99th percentile at {bytes} B is {p99:.2} us, above --max-p99 {most}"
            ));
        }
        failures
    }
}

#[cfg(test)]
mod tests {
    use super::super::args::tests::parse;
    use super::super::plan::build_plan;
    use super::super::plan::tests::facts;
    use super::super::statistics::Summary;
    use super::*;

    fn failures(line: &str, wrong: u64, busbw: f64, p99: f64) -> Vec<String> {
        let plan = build_plan(&parse(line).unwrap(), facts()).unwrap();
        let cell = Cell {
            algorithm: "ring".into(),
            iterations: 1,
            time_us: Summary::of(&[p99]),
            algbw: busbw,
            busbw,
            wrong: Some(wrong),
            profile: Vec::new(),
        };
        let measured = Measured {
            bytes: 4096,
            count: 1024,
            dtype: DataType::F32,
            op: ReduceOp::Sum,
            out_of_place: None,
            in_place: None,
        };
        let mut verdict = Verdict::default();
        verdict.add(&cell, &measured);
        verdict.failures(&plan)
    }

    #[test]
    fn a_good_run_has_no_failures() {
        let line = "allreduce --min-bw 5 --max-p99 100";
        assert!(failures(line, 0, 5.0, 100.0).is_empty());
    }

    #[test]
    fn each_failure_names_the_number_and_the_bound() {
        let texts = failures("allreduce --min-bw 5 --max-p99 100", 3, 4.0, 101.5);
        assert_eq!(texts.len(), 3);
        assert!(texts[0].contains("3 elements"));
        assert!(texts[1].contains("4.000") && texts[1].contains("--min-bw 5"));
        assert!(texts[2].contains("4096 B") && texts[2].contains("--max-p99 100"));
    }

    #[test]
    fn without_rows_the_average_is_zero() {
        assert_eq!(Verdict::default().average_busbw(), 0.0);
    }
}
