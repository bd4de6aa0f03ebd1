//! The figures that the paper measured on its machines, by replays on this host: 2 (computation), 4
//! (links) and 5 (processors).

use super::{BottleneckArgs, Figure};
use linerate::whatif::{Additions, FlushRule, Trace, WhatIf};
use linerate_job::child::{self, number};
use linerate_job::output;
use linerate_job::plot::PlotPoint;

/// Below this a step takes seconds, and few are replayed.
const SLOW_GBIT: f64 = 5.0;
const SLOW_STEPS_MAX: u32 = 3;

/// The median step of a replay.
struct Replayed {
    step_ms: f64,
    backward_ms: f64,
    /// That computation while nobody communicates; of a computation that sleeps that of the
    /// trace.
    backward_alone_ms: f64,
    /// Processor time of all ranks, divided by the time of the step and by the cores.
    processors: f64,
}

fn replay(
    args: &BottleneckArgs,
    trace: &Trace,
    (ranks, gbit): (u32, f64),
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
    let document = child::run(&words, "tcp", ranks, gbit)?;
    let median = number(&document["median_step"])? as usize;
    let step = &document["steps"][median];
    let step_ms = number(&step["step_ms"])?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    Ok(Replayed {
        step_ms,
        backward_ms: number(&step["backward_ms"])?,
        backward_alone_ms: step["backward_alone_ms"]
            .as_f64()
            .unwrap_or(trace.backward_us() / 1e3),
        processors: number(&step["processor_ms"])? / step_ms / cores,
    })
}

/// Figure 2: does communication slow computation? Ranks do work of the processor where a GPU would
/// compute: all by themselves, and while they communicate.
pub fn of_computation(
    args: &BottleneckArgs,
    models: &[(usize, Trace)],
    rows: &mut Vec<PlotPoint>,
) -> Result<(), String> {
    for (_, trace) in models {
        let mut figure = Figure {
            rows: &mut *rows,
            title: format!(
                "Figure 2: backward pass of {}, work of processors",
                trace.name
            ),
            x: ("ranks", true),
            y: "ms",
        };
        for &ranks in &args.ranks {
            let replayed = replay(args, trace, (ranks, f64::INFINITY), "work")?;
            let x = f64::from(ranks);
            figure.add("replay, alone", true, x, replayed.backward_alone_ms);
            figure.add("replay, communicating", true, x, replayed.backward_ms);
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
                let replayed = replay(args, trace, (ranks, gbit), "sleep")?;
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
