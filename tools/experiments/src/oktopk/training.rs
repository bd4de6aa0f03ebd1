//! What the training of real ranks says: losses against steps, bytes and time.

use super::rank::{DENSITY, Optimiser, Point, Run, Training};
use crate::plot::{Chart, Line};
use crate::section::Section;
use serde_json::{Value, json};

/// What a loss is drawn against: its name, its axis, and how it is read.
type Axis = (&'static str, &'static str, fn(&Point) -> f64);
const AXES: [Axis; 3] = [
    ("steps", "steps", |point| f64::from(point.step)),
    ("bytes", "megabytes sent by a rank", |point| {
        point.bytes / 1e6
    }),
    ("time", "seconds", |point| point.seconds),
];

pub fn section(training: &Training) -> Section {
    let mut section = Section::new("training");
    section.line(format!(
        "digits, {} ranks, transport {}, n = {}, density {} %, {} steps; Ok-Topk with followed thresholds, the others exact; test loss of the start {:.3}",
        training.ranks,
        training.transport,
        training.count,
        1e2 * DENSITY,
        training.steps,
        training.runs[0].points[0].verdict.loss
    ));
    section.line(format!(
        "{:>9} {:>10} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "optimiser",
        "scheme",
        "loss",
        "accuracy",
        "MB sent",
        "steps/s",
        "entries",
        "replicas",
        "conserved"
    ));
    for run in &training.runs {
        let Some(last) = run.points.last() else {
            continue;
        };
        section.line(format!(
            "{:>9} {:>10} {:>8.4} {:>7.1} % {:>9.2} {:>9.1} {:>9.0} {:>9} {:>9}",
            run.optimiser.name(),
            run.scheme.name(),
            last.verdict.loss,
            1e2 * last.verdict.accuracy,
            last.bytes / 1e6,
            f64::from(last.step) / last.seconds,
            run.selected,
            if run.is_equal { "equal" } else { "DIFFER" },
            if run.lost == 0 { "exactly" } else { "NOT" },
        ));
    }
    for run in &training.runs {
        let what = format!("{} with {}", run.scheme.name(), run.optimiser.name());
        if !run.is_equal {
            section.violation(format!("{what}: ranks ended with different parameters"));
        }
        if run.lost > 0 {
            section.violation(format!(
                "{what}: in {} coordinates results and residuals are not what the gradients were",
                run.lost
            ));
        }
    }
    section.document = json!({
        "ranks": training.ranks, "transport": training.transport, "count": training.count,
        "density": DENSITY, "steps": training.steps,
        "runs": training.runs.iter().map(document).collect::<Vec<_>>(),
    });
    section.charts = Optimiser::ALL
        .into_iter()
        .flat_map(|o| charts(training, o))
        .collect();
    section
}

fn document(run: &Run) -> Value {
    let points = run.points.iter().map(|point| {
        json!({
            "step": point.step, "seconds": point.seconds, "bytes_sent": point.bytes,
            "loss": point.verdict.loss, "accuracy": point.verdict.accuracy,
        })
    });
    json!({
        "scheme": run.scheme.name(), "optimiser": run.optimiser.name(), "replicas_equal": run.is_equal,
        "coordinates_lost": run.lost, "selected_mean": run.selected, "points": points.collect::<Vec<_>>(),
    })
}

fn charts(training: &Training, optimiser: Optimiser) -> Vec<(String, Chart)> {
    let runs = || {
        training
            .runs
            .iter()
            .filter(|run| run.optimiser == optimiser)
    };
    let chart = |(name, axis, read): Axis| {
        let line = |run: &Run| Line {
            name: run.scheme.name().into(),
            points: run
                .points
                .iter()
                .map(|point| (read(point), point.verdict.loss))
                .collect(),
        };
        let chart = Chart {
            title: format!("digits, {} ranks, {}", training.ranks, optimiser.name()),
            x: axis.into(),
            y: "test loss".into(),
            lines: runs().map(line).collect(),
        };
        (format!("training-{}-{name}", optimiser.name()), chart)
    };
    AXES.into_iter().map(chart).collect()
}
