//! `linerate whatif --validate`: predictions beside replays of the trace on this host.
//!
//! Every point is measured twice, by this command in processes of its own. `bench` measures an
//! allreduce at two sizes, which gives the speed of the link and the time of an operation, and the
//! long one once more without a limit of the link, which gives the speed of the processors that
//! drive it. A prediction knows these numbers, how fast a rank copies, and the trace. `replay` then
//! runs the steps. Read first: [`run`].

use super::WhatIfArgs;
use super::errors::{self, Found, Known, SLOW_GBIT_MAX};
use super::place::{Hosts, Place};
use super::speeds::{SLOW_GBIT, Speeds};
use crate::bench::statistics;
use linerate::whatif::{Additions, FlushRule, LimitedBy, Trace, WhatIf};
use linerate_job::child::number;
use linerate_job::output;
use serde::Serialize;

/// Steps of a replay over a slow network, at most.
const SLOW_STEPS_MAX: u32 = 3;
/// Ranks and Gbit/s of the link that the kernel limits beside the one that linerate limits itself:
/// both should give equal times.
const LIMITED: (u32, f64) = (2, 1.0);

/// All points, and the medians of their errors without sign.
#[derive(Debug, Serialize)]
pub struct Validation {
    pub points: Vec<Point>,
    /// In percent, of the points that the link limits; `null`: there are none.
    pub median_error_link_percent: Option<f64>,
    /// In percent, of all others; `null`: there are none.
    pub median_error_other_percent: Option<f64>,
    /// Points whose measured median is inside of the predicted interval.
    pub inside: usize,
    /// The end of an interval divided by its start.
    pub median_width: f64,
    /// The file that later predictions take their intervals from.
    pub stored: Option<String>,
}

/// One prediction and one replay.
#[derive(Debug, Serialize)]
pub struct Point {
    pub transport: &'static str,
    pub ranks: u32,
    /// What a rank may send at most; `null`: no limit.
    pub bandwidth_gbps: Option<f64>,
    /// What `bench` measured: Gbit/s of each rank's link, and microseconds of an operation.
    pub link_gbps: f64,
    pub operation_us: f64,
    /// Gbit/s of the link where only processors limit it.
    pub unlimited_gbps: f64,
    /// Gbit/s at which each rank copies, and so packs gradients.
    pub packing_gbps: f64,
    pub predicted_ms: f64,
    pub low_ms: f64,
    pub high_ms: f64,
    pub steps: usize,
    /// Times of the replayed steps.
    pub measured_p10_ms: f64,
    pub measured_ms: f64,
    pub measured_p90_ms: f64,
    /// Predicted minus measured, in percent of the measured.
    pub error_percent: f64,
    pub is_limited_by_link: bool,
}

/// Measures and predicts all points: `tcp` at each bandwidth, and `shm` if one of them is infinite.
pub fn run(args: &WhatIfArgs, trace: &Trace, known: &Known) -> Result<Validation, String> {
    let mut wanted = Vec::new();
    let here = |transport, ranks, gbit| Place {
        transport,
        ranks,
        gbit,
        hosts: None,
    };
    for &ranks in &args.workers {
        for &gbit in &args.bandwidth {
            wanted.push(here("tcp", ranks, gbit));
            if (ranks, gbit) == LIMITED {
                wanted.extend(limited());
            }
        }
        if args.bandwidth.contains(&f64::INFINITY) {
            wanted.push(here("shm", ranks, f64::INFINITY));
        }
    }
    let mut points = Vec::with_capacity(wanted.len());
    for (at, place) in wanted.iter().enumerate() {
        output::print_error(&format!(
            "linerate whatif: {} of {}: {}, {} ranks, {} Gbit/s",
            at + 1,
            wanted.len(),
            place.transport,
            place.ranks,
            place.gbit
        ));
        points.push(measure(args, trace, known, place)?);
    }
    let stored = errors::store(&trace.name, points.iter().map(Point::found).collect())?;
    let median_of = |is_link: bool| {
        let points = points.iter().filter(|p| p.is_limited_by_link == is_link);
        let mut errors: Vec<f64> = points.map(|p| p.error_percent.abs()).collect();
        errors.sort_by(f64::total_cmp);
        (!errors.is_empty()).then(|| statistics::percentile(&errors, 500))
    };
    let is_inside = |p: &&Point| (p.low_ms..=p.high_ms).contains(&p.measured_ms);
    let mut widths: Vec<f64> = points.iter().map(|p| p.high_ms / p.low_ms).collect();
    widths.sort_by(f64::total_cmp);
    Ok(Validation {
        inside: points.iter().filter(is_inside).count(),
        median_width: statistics::percentile(&widths, 500),
        stored: stored.map(|place| place.display().to_string()),
        median_error_link_percent: median_of(true),
        median_error_other_percent: median_of(false),
        points,
    })
}

/// The link that the kernel limits, where it can.
fn limited() -> Option<Place> {
    let (ranks, gbit) = LIMITED;
    match Hosts::new(gbit) {
        Ok(hosts) => Some(Place {
            transport: "tcp tbf",
            ranks,
            gbit,
            hosts: Some(hosts),
        }),
        Err(cause) => {
            output::print_error(&format!(
                "linerate whatif: no link that the kernel limits (it takes root, ip and tc): {cause}"
            ));
            None
        }
    }
}

/// One point.
fn measure(
    args: &WhatIfArgs,
    trace: &Trace,
    known: &Known,
    place: &Place,
) -> Result<Point, String> {
    let (transport, ranks, gbit) = (place.transport, place.ranks, place.gbit);
    let is_slow = gbit < SLOW_GBIT;
    let plan = trace.plan(FlushRule::Linerate, &args.trace.fusion());
    let plan = plan.map_err(|error| error.to_string())?;
    let speeds = Speeds::measure(place, &plan)?;
    let whatif = WhatIf {
        gpus: ranks,
        bits_per_second: speeds.link,
        packing_bytes_per_second: speeds.packing,
        operation_us: speeds.operation_us,
        // What was measured has them.
        additions: Additions::free(),
        errors: known.at(gbit),
        rule: FlushRule::Linerate,
        fusion: args.trace.fusion(),
        ..WhatIf::default()
    };
    // Two limits, of which the longer step counts: a link that sends while ranks pack, and
    // processors that drive the link and pack in turns.
    let by_link = whatif.predict(trace).map_err(|error| error.to_string())?;
    let by_processors_ms = speeds.processors_overhead_ms(ranks, trace, &plan);
    let (least, most) = whatif.errors;
    let extra_ms = (by_processors_ms - by_link.overhead_ms).max(0.0);
    let predicted_ms = by_link.batch_ms + by_link.overhead_ms + extra_ms;
    let steps = match is_slow {
        true => args.steps.min(SLOW_STEPS_MAX),
        false => args.steps,
    };
    let flags = &args.trace;
    let mut line = vec![
        "replay".to_string(),
        format!("--trace={}", flags.trace),
        format!("--steps={steps}"),
        format!("--fusion-bytes={}", flags.fusion_bytes),
        format!("--fusion-age-ms={}", flags.fusion_age_ms),
    ];
    line.extend(flags.batch_ms.map(|ms| format!("--batch-ms={ms}")));
    let document = place.start(&line)?;
    let all = document["steps"].as_array().cloned().unwrap_or_default();
    let times: Result<Vec<f64>, String> = all.iter().map(|s| number(&s["step_ms"])).collect();
    let mut times = times?;
    times.sort_by(f64::total_cmp);
    if times.is_empty() {
        return Err("the replay has no steps".into());
    }
    let measured_ms = statistics::percentile(&times, 500);
    Ok(Point {
        transport,
        ranks,
        bandwidth_gbps: gbit.is_finite().then_some(gbit),
        link_gbps: speeds.link / 1e9,
        unlimited_gbps: speeds.unlimited / 1e9,
        operation_us: speeds.operation_us,
        packing_gbps: speeds.packing * 8e-9,
        predicted_ms,
        // The replay has the times of the trace each time, so that their spread does not count.
        low_ms: (predicted_ms * least).max(by_link.batch_ms),
        high_ms: predicted_ms * most,
        steps: times.len(),
        measured_p10_ms: statistics::percentile(&times, 100),
        measured_ms,
        measured_p90_ms: statistics::percentile(&times, 900),
        error_percent: 100.0 * (predicted_ms / measured_ms - 1.0),
        is_limited_by_link: gbit <= SLOW_GBIT_MAX
            && extra_ms == 0.0
            && by_link.limited_by == LimitedBy::Wire,
    })
}

impl Point {
    fn found(&self) -> Found {
        Found {
            bandwidth_gbps: self.bandwidth_gbps,
            measured_to_predicted: self.measured_ms / self.predicted_ms,
        }
    }
}
