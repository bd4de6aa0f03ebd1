//! The figures that the paper measured on its machines, by replays on this host: 2 (computation), 4
//! (links) and 5 (processors).

use super::{BottleneckArgs, Figure};
use linerate::whatif::{Additions, FlushRule, Trace, WhatIf};
use linerate_job::child::{self, number};
use linerate_job::output;
use linerate_job::plot::PlotPoint;
use std::time::Instant;

/// Below this a step takes seconds, and few are replayed.
const SLOW_GBIT: f64 = 5.0;
const SLOW_STEPS_MAX: u32 = 3;

/// A replay.
struct Replayed {
    /// The backward pass, and a step, as measured.
    backward_ms: f64,
    step_ms: f64,
    /// Processor time of all ranks, divided by the time that the command took and by the cores.
    processors: f64,
}

fn replay(
    args: &BottleneckArgs,
    trace: &Trace,
    ranks: u32,
    gbit: f64,
    compute: &str,
) -> Result<Replayed, String> {
    output::print_error(&format!(
        "linerate experiment whatif: replay of {}, {ranks} ranks over tcp, {gbit} Gbit/s",
        trace.name
    ));
    let steps = match gbit < SLOW_GBIT {
        true => args.steps.min(SLOW_STEPS_MAX),
        false => args.steps,
    };
    let words = [
        "replay".to_string(),
        format!("--trace={}", trace.name),
        format!("--steps={steps}"),
        format!("--compute={compute}"),
    ];
    let (began, used) = (Instant::now(), children_seconds()?);
    let document = child::run(&words, "tcp", ranks, gbit)?;
    let seconds = began.elapsed().as_secs_f64();
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    Ok(Replayed {
        backward_ms: number(&document["backward_ms"])?,
        step_ms: number(&document["step_ms"])?,
        processors: (children_seconds()? - used) / seconds / cores,
    })
}

/// Processor time of all processes that this one has waited for, and of theirs, in seconds.
fn children_seconds() -> Result<f64, String> {
    let text = std::fs::read_to_string("/proc/self/stat").map_err(|cause| cause.to_string())?;
    // The name may have blanks: fields are counted after its parenthesis, from the state on, which
    // is the third. Times of children are the 16th and 17th, in hundredths of a second.
    let fields = text.rsplit(')').next().unwrap_or_default();
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |number: usize| {
        fields
            .get(number - 3)
            .and_then(|field| field.parse::<f64>().ok())
    };
    let both = ticks(16).zip(ticks(17));
    let (user, system) = both.ok_or("/proc/self/stat has no times of children")?;
    Ok((user + system) / 100.0)
}

/// Figure 2: does communication slow computation? Ranks keep a core busy while a GPU would compute.
pub fn of_computation(
    args: &BottleneckArgs,
    models: &[(usize, Trace)],
    rows: &mut Vec<PlotPoint>,
) -> Result<(), String> {
    for (_, trace) in models {
        let mut figure = Figure {
            rows: &mut *rows,
            title: format!("Figure 2: backward pass of {}, on busy cores", trace.name),
            x: ("ranks", true),
            y: "ms",
        };
        for &ranks in [1].iter().chain(&args.ranks) {
            let replayed = replay(args, trace, ranks, f64::INFINITY, "spin")?;
            figure.add("replay", true, f64::from(ranks), replayed.backward_ms);
            figure.add("trace", false, f64::from(ranks), trace.backward_us() / 1e3);
        }
    }
    Ok(())
}

/// Figures 4 and 5: how much of links and processors is used.
pub fn of_links(
    args: &BottleneckArgs,
    models: &[(usize, Trace)],
    rows: &mut Vec<PlotPoint>,
) -> Result<(), String> {
    let limited: Vec<f64> = args
        .gbit
        .iter()
        .copied()
        .filter(|g| g.is_finite())
        .collect();
    let mut processors = Vec::new();
    for (_, trace) in models {
        let mut figure = Figure {
            rows: &mut *rows,
            title: format!("Figure 4: share of the link that {} uses", trace.name),
            x: ("Gbit/s", true),
            y: "share of a step",
        };
        for &ranks in &args.ranks {
            for &gbit in &args.gbit {
                let replayed = replay(args, trace, ranks, gbit, "sleep")?;
                processors.push((trace.name.clone(), ranks, gbit, replayed.processors));
                if limited.contains(&gbit) {
                    let n = f64::from(ranks);
                    let bits = 16.0 * trace.bytes() as f64 * (n - 1.0) / n;
                    let used = bits / (gbit * 1e9) / (replayed.step_ms / 1e3);
                    figure.add(&format!("replay, {ranks} ranks"), true, gbit, used);
                }
            }
            for &gbit in &limited {
                let whatif = WhatIf {
                    gpus: ranks,
                    bits_per_second: gbit * 1e9,
                    additions: Additions::free(),
                    rule: FlushRule::Linerate,
                    ..WhatIf::default()
                };
                let predicted = whatif.predict(trace).map_err(|error| error.to_string())?;
                let name = format!("model, {ranks} ranks");
                figure.add(&name, false, gbit, predicted.link_utilisation);
            }
        }
    }
    for (name, ranks, gbit, share) in processors {
        let mut figure = Figure {
            rows: &mut *rows,
            title: format!("Figure 5: share of all cores that {name} uses"),
            x: ("Gbit/s", true),
            y: "share of all cores",
        };
        figure.add(&format!("replay, {ranks} ranks"), true, gbit, share);
    }
    Ok(())
}
