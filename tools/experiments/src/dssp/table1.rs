//! Table I of the paper on this host: two workers, one 2.7 times as fast as the other.
//!
//! The paper's ratio of its two GPUs is not printed there: 2.7 follows from its times, if SSP has
//! the rate of the slower worker twice and ASP that of both.

use super::training::{End, Plan, Trained, heading, median, text_of, train_all};
use super::{DsspArgs, Mode};
use crate::plot::{Chart, Line};
use crate::section::Section;
use linerate::Communicator;
use serde_json::Value;

/// The server, and the two workers.
pub const RANKS: u32 = 3;
/// Times of a step.
const SPEEDS: [f64; 2] = [1.0, 2.7];
const HIDDEN: usize = 32;

/// The paper's seconds to 0.67 and 0.68, by mode. `None`: not reached.
const PAPER: [(&str, [Option<f64>; 2]); 6] = [
    ("BSP", [Some(6159.2), None]),
    ("ASP", [Some(2993.1), Some(3017.2)]),
    ("SSP 3", [Some(5678.2), None]),
    ("SSP 6", [Some(5703.8), Some(6908.2)]),
    ("SSP 15", [Some(5564.9), Some(7255.6)]),
    ("DSSP(3,12) paper", [Some(3016.4), Some(3046.3)]),
];

/// Trains with every mode but literal; the section is rank 0's.
pub fn run(args: &DsspArgs, modes: &[Mode], comm: &Communicator) -> Result<Section, String> {
    let plan = Plan {
        speeds: &SPEEDS,
        step_ms: args.scale,
        hidden: HIDDEN,
        end: End::Seconds(args.seconds),
        runs: args.runs.unwrap_or(5),
    };
    let modes: Vec<Mode> = modes
        .iter()
        .filter(|mode| !mode.is_literal())
        .cloned()
        .collect();
    let mut section = Section::new("table1");
    section.line(format!(
        "two workers whose steps take {SPEEDS:?} times {} ms, digits, {} runs of {} s each: medians, and least and most",
        args.scale, plan.runs, args.seconds
    ));
    section.line(format!("{}   paper: s to 0.67, 0.68", heading()));
    let (mut rows, mut lines, mut per_push) = (Vec::new(), Vec::new(), Vec::new());
    for (mode, runs) in modes.iter().zip(train_all(args, &plan, &modes, comm)?) {
        section.line(format!("{}   {}", text_of(mode, &runs), paper_text(mode)));
        per_push.push((mode.name.clone(), median(&runs, Trained::seconds_per_push)));
        let seeds = args.seed..;
        rows.extend(
            seeds
                .zip(&runs)
                .map(|(seed, run)| run.row(&plan, mode, seed)),
        );
        lines.push(Line {
            name: mode.name.clone(),
            points: runs.first().map_or(Vec::new(), |run| run.curve.clone()),
        });
    }
    let of = |name: &str| {
        per_push
            .iter()
            .find(|one| one.0.ends_with(name))
            .map(|one| one.1)
    };
    let ratios = [
        ("SSP 15", "paper", 1.6, 2.0),
        ("paper", "ASP", 0.97, 1.05),
        ("strict", "SSP 15", 0.95, 1.05),
    ];
    for (above, below, least, most) in ratios {
        if let (Some(a), Some(b)) = (of(above), of(below)) {
            section.line(format!(
                "seconds per push, {above} / {below}: {:.3} (expected {least} to {most})",
                a / b
            ));
        }
    }
    section.charts.push((
        "table1".into(),
        Chart {
            title: "dssp, steps of 1.0 and 2.7: accuracy".into(),
            x: "seconds".into(),
            y: "accuracy".into(),
            lines,
        },
    ));
    section.document = Value::Array(rows);
    Ok(section)
}

fn paper_text(mode: &Mode) -> String {
    let paper = PAPER.iter().find(|(name, _)| *name == mode.name);
    let seconds = |seconds: Option<f64>| seconds.map_or("-".into(), |one| format!("{one:.1}"));
    paper.map_or("not in the paper".into(), |(_, both)| {
        format!("{}, {}", seconds(both[0]), seconds(both[1]))
    })
}
