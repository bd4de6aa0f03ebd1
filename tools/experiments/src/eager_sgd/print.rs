//! What `linerate experiment eager-sgd` prints: a table, JSON, plots.

use super::plan::{Scheme, Trial};
use super::rank::Outcome;
use super::scale::{self, ScaleRow};
use super::train::Run;
use super::{EagerSgdArgs, Workload};
use crate::load::Load;
use crate::plot::{Chart, Line};
use clap::ValueEnum;
use linerate::Policy;
use linerate_job::output;
use serde_json::{Value, json};

/// The workload `quorum` counts the steps until the classifier has this loss.
const TARGET_LOSS: f64 = 0.5;

/// Prints everything that was asked for.
/// `job`: ranks and transport, if anything was trained.
pub fn print(
    args: &EagerSgdArgs,
    job: Option<(u32, &str)>,
    outcomes: &[Outcome],
) -> Result<(), String> {
    let rows: Vec<Row> = outcomes.iter().map(|of| Row::of(of, outcomes)).collect();
    let scale = match args.workload.contains(&Workload::Resnet50) {
        true => scale::run_all(args.steps, args.staleness, args.seed)?,
        false => Vec::new(),
    };
    if !args.job.is_json_only() {
        if let Some(job) = job {
            output::print_text(&table(args, job, &rows))?;
        }
        output::print_text(&scale_table(args, &scale))?;
    }
    args.job.write_json(&json!({
            "experiment": "eager-sgd",
            "version": env!("CARGO_PKG_VERSION"),
            "ranks": job.map(|job| job.0),
            "transport": job.map(|job| job.1),
            "steps": args.steps,
            "scale": args.scale,
            "runs": args.runs,
            "results": rows.iter().map(Row::json).collect::<Vec<_>>(),
            "virtual_time": scale.iter().map(scale_json).collect::<Vec<_>>(),
    }))?;
    plot(args, &rows)?;
    match rows.iter().find(|row| !row.is_equal()) {
        None => Ok(()),
        Some(row) => Err(format!(
            "{} {}: ranks ended with different parameters",
            name_of(row.trial.workload),
            row.trial.scheme.name()
        )),
    }
}

/// One kind of run, with its median and spread.
struct Row<'a> {
    trial: &'a Trial,
    runs: &'a [Run],
    /// The run with the median time.
    median: &'a Run,
    /// Speed-up over synchronous, if that was run.
    speedup: Option<f64>,
}

impl Row<'_> {
    fn of<'a>(of: &'a Outcome, all: &[Outcome]) -> Row<'a> {
        let median = median_run(&of.runs);
        let is_base = |other: &&Outcome| {
            other.trial.workload == of.trial.workload
                && other.trial.load == of.trial.load
                && other.trial.scheme == Scheme::Synchronous
        };
        let base = all.iter().find(is_base);
        Row {
            trial: &of.trial,
            runs: &of.runs,
            median,
            speedup: base.map(|base| median_run(&base.runs).seconds / median.seconds),
        }
    }

    fn is_equal(&self) -> bool {
        self.runs.iter().all(|run| run.is_equal)
    }

    fn steps(&self) -> f64 {
        self.median
            .points
            .last()
            .map_or(0.0, |point| f64::from(point.step))
    }

    fn steps_per_second(&self) -> f64 {
        self.steps() / self.median.seconds
    }

    fn samples_per_second(&self) -> f64 {
        (self.median.included * self.median.batch as u64) as f64 / self.median.seconds
    }

    /// Half the time between the fastest and the slowest run, as a share of the median.
    fn spread(&self) -> f64 {
        let seconds = || self.runs.iter().map(|run| run.seconds);
        let (low, high) = (
            seconds().fold(f64::MAX, f64::min),
            seconds().fold(0.0, f64::max),
        );
        (high - low) / 2.0 / self.median.seconds
    }

    fn final_loss(&self) -> f64 {
        median(
            self.runs
                .iter()
                .filter_map(|run| Some(run.points.last()?.verdict.loss)),
        )
    }

    fn final_accuracy(&self) -> f64 {
        median(
            self.runs
                .iter()
                .filter_map(|run| Some(run.points.last()?.verdict.accuracy)),
        )
    }

    /// The first step at which the loss was at most the target, interpolated between two points.
    fn steps_to_target(&self) -> Option<f64> {
        let points = &self.median.points;
        let after = points.iter().position(|p| p.verdict.loss <= TARGET_LOSS)?;
        let Some(before) = after.checked_sub(1).map(|before| &points[before]) else {
            return Some(0.0);
        };
        let after = &points[after];
        let share =
            (before.verdict.loss - TARGET_LOSS) / (before.verdict.loss - after.verdict.loss);
        Some(f64::from(before.step) + share * f64::from(after.step - before.step))
    }

    fn json(&self) -> Value {
        let run = |run: &Run| {
            let points = run.points.iter().map(|point| {
                json!({"step": point.step, "seconds": point.seconds, "loss": point.verdict.loss,
                       "accuracy": point.verdict.accuracy})
            });
            json!({"seconds": run.seconds, "included": run.included, "replicas_equal": run.is_equal,
                   "points": points.collect::<Vec<_>>()})
        };
        json!({
            "workload": name_of(self.trial.workload),
            "setting": self.trial.setting(),
            "policy": self.trial.scheme.name(),
            "staleness_max": self.trial.staleness,
            "steps_per_second": self.steps_per_second(),
            "samples_per_second": self.samples_per_second(),
            "spread": self.spread(),
            "speedup": self.speedup,
            "speedup_ideal": self.trial.ideal,
            "speedup_paper": self.trial.paper,
            "loss": self.final_loss(),
            "accuracy": self.final_accuracy(),
            "steps_to_target": self.steps_to_target(),
            "runs": self.runs.iter().map(run).collect::<Vec<_>>(),
        })
    }
}

fn median_run(runs: &[Run]) -> &Run {
    let mut order: Vec<&Run> = runs.iter().collect();
    order.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    order[order.len() / 2]
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn name_of(workload: Workload) -> String {
    let value = workload.to_possible_value();
    value.map_or(String::new(), |value| value.get_name().to_owned())
}

fn table(args: &EagerSgdArgs, (ranks, transport): (u32, &str), rows: &[Row<'_>]) -> String {
    let mut lines = vec![format!(
        "# eager-sgd: {ranks} ranks, transport {transport}, {} steps, times x {}, median of {} runs (+- half the spread)",
        args.steps, args.scale, args.runs
    )];
    let fits = rows.iter().filter_map(|row| match &row.trial.load {
        Load::Drawn(measured) => Some(format!("# {}: {}", measured.name, measured.fit())),
        _ => None,
    });
    let mut fits: Vec<String> = fits.collect();
    fits.dedup();
    lines.append(&mut fits);
    if rows
        .iter()
        .any(|row| row.trial.workload == Workload::Quorum)
    {
        lines.push(format!(
            "# quorum: steps until the loss is {TARGET_LOSS}; the theorem: they grow with tau (P-Q)/P"
        ));
    }
    lines.push(format!(
        "{:>10} {:>7} {:>12} {:>8} {:>6} {:>10} {:>8} {:>6} {:>6} {:>8} {:>8} {:>9}",
        "workload",
        "",
        "policy",
        "steps/s",
        "+-%",
        "samples/s",
        "speedup",
        "ideal",
        "paper",
        "loss",
        "accuracy",
        "to target"
    ));
    let show = |value: Option<f64>, digits: usize| {
        value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
    };
    for row in rows {
        let accuracy = (row.final_accuracy() > 0.0).then(|| 100.0 * row.final_accuracy());
        let has_target = row.trial.workload == Workload::Quorum;
        lines.push(format!(
            "{:>10} {:>7} {:>12} {:>8.2} {:>6.1} {:>10.0} {:>8} {:>6} {:>6} {:>8.4} {:>8} {:>9}",
            name_of(row.trial.workload),
            row.trial.setting(),
            row.trial.scheme.name(),
            row.steps_per_second(),
            100.0 * row.spread(),
            row.samples_per_second(),
            show(row.speedup, 2),
            show(row.trial.ideal, 2),
            show(row.trial.paper, 2),
            row.final_loss(),
            show(accuracy, 1),
            show(row.steps_to_target().filter(|_| has_target), 0),
        ));
    }
    lines.join("\n") + "\n"
}

/// The table of the workload that is not trained; empty without rows.
fn scale_table(args: &EagerSgdArgs, rows: &[ScaleRow]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut lines = vec![
        format!(
            "# ResNet-50 on 64 ranks of which 4 are delayed, virtual time, {} steps; paper: solo beside two synchronous libraries",
            args.steps
        ),
        format!(
            "{:>8} {:>12} {:>8} {:>8} {:>6} {:>11} {:>6} {:>8}",
            "delay", "policy", "steps/s", "speedup", "ideal", "paper", "NAP", "wait ms"
        ),
    ];
    lines.extend(rows.iter().map(|row| {
        let is_solo = row.scheme == Scheme::Partial(Policy::Solo);
        format!(
            "{:>5.0} ms {:>12} {:>8.3} {:>8.2} {:>6.2} {:>11} {:>6.1} {:>8.1}",
            row.delay_ms,
            row.scheme.name(),
            row.steps_per_second,
            row.speedup,
            row.ideal,
            if is_solo { row.paper } else { "-" },
            row.mean_active,
            row.mean_wait_ms,
        )
    }));
    lines.join("\n") + "\n"
}

fn scale_json(row: &ScaleRow) -> Value {
    json!({
        "workload": "resnet50",
        "ranks": 64,
        "delay_ms": row.delay_ms,
        "policy": row.scheme.name(),
        "steps_per_second": row.steps_per_second,
        "speedup": row.speedup,
        "speedup_ideal": row.ideal,
        "nap_mean": row.mean_active,
        "mean_wait_ms": row.mean_wait_ms,
    })
}

/// Loss against steps and against time, a picture for each setting of a workload.
fn plot(args: &EagerSgdArgs, rows: &[Row<'_>]) -> Result<(), String> {
    let Some(folder) = &args.plots else {
        return Ok(());
    };
    let is_same = |a: &Row<'_>, b: &Row<'_>| {
        a.trial.workload == b.trial.workload && a.trial.setting() == b.trial.setting()
    };
    for group in rows.chunk_by(is_same) {
        let workload = group[0].trial.workload;
        let title = format!("{} {}", name_of(workload), group[0].trial.setting());
        let file = title.trim().replace(' ', "-");
        for (axis, unit) in [("steps", "steps"), ("time", "seconds")] {
            let line = |row: &Row<'_>| Line {
                name: row.trial.scheme.name(),
                points: (row.median.points.iter())
                    .map(|point| match axis {
                        "steps" => (f64::from(point.step), point.verdict.loss),
                        _ => (point.seconds, point.verdict.loss),
                    })
                    .collect(),
            };
            let chart = Chart {
                title: format!("eager-sgd, {}", title.trim()),
                x: unit.into(),
                y: "loss".into(),
                lines: group.iter().map(line).collect(),
            };
            chart.write(&folder.join(format!("eager-sgd-{file}-{axis}.svg")))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eager_sgd::plan;
    use crate::eager_sgd::train::Point;
    use crate::model::Verdict;

    /// A run of `seconds`, with these losses every ten steps.
    fn run(seconds: f64, losses: &[f64]) -> Run {
        let points = losses.iter().zip(0..).map(|(&loss, at)| Point {
            step: 10 * at,
            seconds: f64::from(at),
            verdict: Verdict {
                loss,
                accuracy: 0.5,
            },
        });
        Run {
            seconds,
            included: 100,
            batch: 16,
            points: points.collect(),
            is_equal: true,
        }
    }

    #[test]
    fn a_row_compares_its_median_with_the_synchronous_one_of_its_setting() {
        let outcomes = plan::trials(Workload::Hyperplane, 8, 8)
            .into_iter()
            .map(|trial| {
                let seconds = match trial.scheme {
                    Scheme::Synchronous => 3.0,
                    _ => 2.0,
                };
                Outcome {
                    trial,
                    runs: vec![
                        run(9.0, &[2.0, 1.0]),
                        run(seconds, &[2.0, 1.0]),
                        run(1.0, &[2.0, 1.0]),
                    ],
                }
            });
        let outcomes = Vec::from_iter(outcomes);
        let rows: Vec<Row> = outcomes.iter().map(|of| Row::of(of, &outcomes)).collect();
        assert_eq!(rows[0].speedup, Some(1.0));
        assert_eq!(rows[1].speedup, Some(1.5));
        assert_eq!(rows[1].spread(), 2.0);
        assert_eq!(rows[1].steps_per_second(), 5.0);
        assert_eq!(rows[1].samples_per_second(), 800.0);
        assert_eq!(rows[1].json()["speedup_paper"], 1.5);
    }

    #[test]
    fn the_step_at_which_a_loss_is_reached_lies_between_two_points() {
        let of = |losses: &[f64]| {
            let outcome = Outcome {
                trial: plan::trials(Workload::Quorum, 8, 8).remove(0),
                runs: vec![run(1.0, losses)],
            };
            Row::of(&outcome, &[]).steps_to_target()
        };
        assert_eq!(of(&[2.0, 1.0, 0.0]), Some(15.0));
        assert_eq!(of(&[2.0, 1.0]), None);
        assert_eq!(of(&[0.1]), Some(0.0));
    }
}
