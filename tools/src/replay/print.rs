//! What `linerate replay` prints: tables, JSON, and the Chrome trace.

use super::summary::{self, Step, Summary};
use super::{Compute, Mode, ReplayArgs};
use linerate::reports::{FlushReport, StepReport};
use linerate::transport::Time;
use linerate::whatif::{PlannedFlush, Trace};
use linerate_job::output::{self, print_text};
use serde_json::{Value, json};

/// Share of the time without a processor above which the numbers say more of the machine's load
/// than of the network.
const WAITED_SHARE_MAX: f64 = 0.05;

/// Everything that was measured, for rank 0 to print.
pub struct Results<'a> {
    pub args: &'a ReplayArgs,
    pub trace: &'a Trace,
    pub ranks: u32,
    pub transport: &'a str,
    pub wrong: u64,
    pub steps: &'a [Step],
}

impl Results<'_> {
    fn backward_ms(&self) -> f64 {
        self.trace.backward_us() / 1e3
    }

    fn forward_ms(&self) -> f64 {
        (self.trace.step_ms() - self.backward_ms()).max(0.0)
    }

    fn summarise(&self, step: &StepReport) -> Summary {
        summary::summarise(step, self.ranks, self.trace.step_ms(), self.forward_ms())
    }
}

/// Prints a flush plan as a table, and as JSON where asked for.
pub fn print_plan(args: &ReplayArgs, trace: &Trace, plan: &[PlannedFlush]) -> Result<(), String> {
    if !args.job.is_json_only() {
        let mut lines = Vec::new();
        lines.push(format!(
            "# replay plan: {}, mode {}",
            described(trace),
            mode_name(args.mode)
        ));
        lines.push(format!(
            "{:>5} {:>12} {:>12} {:>8}",
            "flush", "time_ms", "bytes", "tensors"
        ));
        for (index, flush) in plan.iter().enumerate() {
            lines.push(format!(
                "{index:>5} {:>12.6} {:>12} {:>8}",
                flush.time_ms,
                flush.bytes,
                flush.tensors.len()
            ));
        }
        print_text(&(lines.join("\n") + "\n"))?;
    }
    let flush = |flush: &PlannedFlush| json!({"time_ms": flush.time_ms, "bytes": flush.bytes, "tensors": flush.tensors});
    let document = json!({
        "model": trace.name,
        "mode": mode_name(args.mode),
        "bytes": trace.bytes(),
        "version": env!("CARGO_PKG_VERSION"),
        "flushes": plan.iter().map(flush).collect::<Vec<_>>(),
    });
    args.job.write_json(&document)
}

/// Prints the table of the median step and the numbers; writes JSON and the Chrome trace where
/// asked for.
pub fn print_results(results: &Results) -> Result<(), String> {
    let median = summary::median_step(results.steps);
    if !results.args.job.is_json_only() {
        print_text(&build_table(results, median))?;
    }
    results.args.job.write_json(&to_json(results, median))?;
    match &results.args.trace_out {
        Some(target) => {
            let trace = format!("{:#}", chrome_trace(results.trace, results.steps));
            output::write_document("--trace-out", target, &trace)
        }
        None => Ok(()),
    }
}

/// The table of one step and the numbers under it.
fn build_table(results: &Results, median: usize) -> String {
    let mut lines = Vec::new();
    let step = &results.steps[median].slowest;
    lines.push(format!(
        "# replay: {}, {} ranks, transport {}, mode {}, compute {}, memory {}",
        described(results.trace),
        results.ranks,
        results.transport,
        mode_name(results.args.mode),
        compute_name(results.args.compute),
        results.args.memory.name(),
    ));
    lines.push(format!(
        "# step {} of {} (median exposed time); times in ms from the start of the backward pass, of the slowest rank",
        median + 1,
        results.steps.len()
    ));
    lines.push(format!(
        "{:>5} {:>12} {:>8} {:>10} {:>10} {:>10} {:>8}",
        "flush", "bytes", "tensors", "ready", "start", "end", "busbw"
    ));
    for (index, flush) in step.flushes.iter().enumerate() {
        lines.push(format!(
            "{index:>5} {:>12} {:>8} {:>10.3} {:>10.3} {:>10.3} {:>8.2}",
            flush.bytes,
            flush.tensors.len(),
            ms(flush.ready),
            ms(flush.start),
            ms(flush.end),
            flush_busbw(flush, results.ranks),
        ));
    }
    let numbers = results.summarise(step);
    lines.push(format!(
        "# step time      {:.3} ms (forward {:.3}, backward {:.3}, exposed {:.3})",
        numbers.step_ms,
        results.forward_ms(),
        ms(step.backward_end),
        numbers.exposed_ms
    ));
    lines.push(format!("# overlap        {:.1} %", numbers.overlap * 100.0));
    lines.push(format!("# exposed        {:.3} ms", numbers.exposed_ms));
    let alone = summary::median_alone(results.steps);
    if let Some(ratio) = summary::exposed_to_alone(numbers.exposed_ms, alone) {
        lines.push(format!(
            "# last flush     {:.3} ms alone, as a blocking call (median of all steps): exposed is {ratio:.2} times that",
            alone.as_secs_f64() * 1e3
        ));
    }
    lines.push(format!("# bus bandwidth  {:.2} GB/s", numbers.busbw));
    let waited = summary::waited_share(results.steps);
    if waited > WAITED_SHARE_MAX {
        lines.push(format!(
            "# processors     a rank's threads waited for one for {:.0} % of the time, because other programs or ranks ran: \
             on free processors times are shorter and bandwidths higher",
            waited * 100.0
        ));
    }
    lines.push(format!(
        "# scaling factor {:.4} (batch {:.3} ms)",
        numbers.scaling_factor,
        results.trace.step_ms()
    ));
    lines.push(format!("# wrong values   {}", results.wrong));
    lines.join("\n") + "\n"
}

fn to_json(results: &Results, median: usize) -> Value {
    let step = &results.steps[median].slowest;
    let numbers = results.summarise(step);
    let alone = summary::median_alone(results.steps);
    let flush = |flush: &FlushReport| {
        json!({
            "bytes": flush.bytes,
            "tensors": flush.tensors,
            "ready_ms": ms(flush.ready),
            "start_ms": ms(flush.start),
            "end_ms": ms(flush.end),
            "busbw": flush_busbw(flush, results.ranks),
        })
    };
    let each_step = |step: &Step| {
        let numbers = results.summarise(&step.slowest);
        json!({
            "step_ms": numbers.step_ms,
            "exposed_ms": numbers.exposed_ms,
            "last_flush_alone_ms": step.alone.as_secs_f64() * 1e3,
            "backward_ms": ms(step.slowest.backward_end),
            "backward_alone_ms": backward_alone_ms(step),
            "processor_ms": step.processor.as_secs_f64() * 1e3,
            "overlap": numbers.overlap,
            "busbw": numbers.busbw,
            "scaling_factor": numbers.scaling_factor,
            "flushes": step.slowest.flushes.len(),
            "rounds": step.slowest.rounds_count,
        })
    };
    json!({
        "model": results.trace.name,
        "ranks": results.ranks,
        "transport": results.transport,
        "version": env!("CARGO_PKG_VERSION"),
        "mode": mode_name(results.args.mode),
        "compute": compute_name(results.args.compute),
        "memory": results.args.memory.name(),
        "seed": results.args.seed,
        "scale": results.args.scale,
        "bytes": results.trace.bytes(),
        "batch_ms": results.trace.step_ms(),
        "forward_ms": results.forward_ms(),
        "backward_ms": ms(step.backward_end),
        "median_step": median,
        "flushes": step.flushes.iter().map(flush).collect::<Vec<_>>(),
        "step_ms": numbers.step_ms,
        "overlap": numbers.overlap,
        "exposed_ms": numbers.exposed_ms,
        "last_flush_alone_ms": alone.as_secs_f64() * 1e3,
        "exposed_to_alone": summary::exposed_to_alone(numbers.exposed_ms, alone),
        "busbw": numbers.busbw,
        "waited_for_processors": summary::waited_share(results.steps),
        "scaling_factor": numbers.scaling_factor,
        "steps": results.steps.iter().map(each_step).collect::<Vec<_>>(),
        "wrong": results.wrong,
    })
}

/// All ranks and steps in the Trace Event Format: a process per rank; its backward pass, a mark
/// when a gradient is ready, and per flush the time that it waited and that of its allreduce.
/// Flushes overlap, so they take turns on lanes. [`Trace::load`] reads passes and marks back.
fn chrome_trace(trace: &Trace, steps: &[Step]) -> Value {
    let mut events = Vec::new();
    // Only what was measured, since a reader guesses the rest by itself.
    let batch = match trace.batch_ms {
        Some(ms) => json!({"batch_ms": ms}),
        None => json!({}),
    };
    let us = |time: Time| time.0 as f64 / 1e3;
    let ranks = steps.first().map_or(0, |step| step.ranks.len());
    for rank in 0..ranks {
        events.push(json!({
            "ph": "M", "name": "process_name", "pid": rank, "args": {"name": format!("rank {rank}")},
        }));
    }
    for (index, step) in steps.iter().enumerate() {
        for (rank, report) in step.ranks.iter().enumerate() {
            let span = |name: String, lane: usize, from: Time, to: Time, args: Value| {
                json!({
                    "ph": "X", "name": name, "cat": "replay", "pid": rank, "tid": lane,
                    "ts": us(step.begin) + us(from), "dur": us(to) - us(from), "args": args,
                })
            };
            let name = format!("backward {index}");
            events.push(span(name, 0, Time(0), report.backward_end, batch.clone()));
            for (gradient, ready) in trace.gradients.iter().zip(&step.gradients[rank]) {
                events.push(json!({
                    "ph": "i", "s": "t", "name": gradient.name, "cat": "gradient", "pid": rank, "tid": 0,
                    "ts": us(step.begin) + us(*ready),
                    "args": {"bytes": gradient.bytes, "dtype": gradient.dtype.name()},
                }));
            }
            for (number, flush) in report.flushes.iter().enumerate() {
                let lane = 1 + number % linerate::unstable::fusion::BUFFERS_COUNT_MAX;
                let args = json!({"bytes": flush.bytes, "tensors": flush.tensors.len()});
                let (waits, runs) = (format!("wait {number}"), format!("allreduce {number}"));
                events.push(span(waits, lane, flush.ready, flush.start, json!({})));
                events.push(span(runs, lane, flush.start, flush.end, args));
            }
        }
    }
    json!({"traceEvents": events, "displayTimeUnit": "ms"})
}

fn described(trace: &Trace) -> String {
    format!(
        "{} ({} gradients, {} bytes, backward {:.3} ms)",
        trace.name,
        trace.gradients.len(),
        trace.bytes(),
        trace.backward_us() / 1e3
    )
}

fn flush_busbw(flush: &FlushReport, ranks: u32) -> f64 {
    summary::busbw(
        flush.bytes,
        ranks,
        flush.end.since(flush.start).as_secs_f64(),
    )
}

/// Of the computation without communication, where that can differ.
fn backward_alone_ms(step: &Step) -> Option<f64> {
    let alone = step.computed_alone;
    (!alone.is_zero()).then_some(alone.as_secs_f64() * 1e3)
}

fn ms(time: Time) -> f64 {
    time.0 as f64 / 1e6
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Linerate => "linerate",
        Mode::Paper => "paper",
    }
}

fn compute_name(compute: Compute) -> &'static str {
    match compute {
        Compute::Sleep => "sleep",
        Compute::Spin => "spin",
        Compute::Work => "work",
    }
}
