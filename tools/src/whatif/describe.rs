//! `linerate trace FILE`: what was understood of a trace.

use clap::Args;
use linerate::whatif::Trace;
use linerate_job::ending::{self, FAILED, USAGE};
use linerate_job::output;
use std::process::ExitCode;

/// Say what is understood of a trace: gradients, their times and sizes, and what was guessed
#[derive(Args, Clone, Debug)]
pub struct TraceArgs {
    /// resnet50, resnet101, vgg16 (built in), or a file: .bk.log, .layers.csv, or what
    /// torch.profiler exports
    #[arg(value_name = "NAME|FILE")]
    pub trace: String,
}

/// Reads the trace and prints it.
pub fn run(args: &TraceArgs) -> ExitCode {
    let trace = match Trace::load(&args.trace) {
        Ok(trace) => trace,
        Err(error) => return ending::fail(USAGE, &error.to_string()),
    };
    match output::print_text(&text(&trace)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => ending::fail(FAILED, &reason),
    }
}

fn text(trace: &Trace) -> String {
    let batch = match trace.batch_ms {
        Some(ms) => format!("{ms:.3} ms, without communication"),
        None => "not in the trace".into(),
    };
    let mut lines = vec![
        format!("# trace          {}", trace.name),
        format!("# gradients      {}", trace.gradients.len()),
        format!("# bytes          {}", trace.bytes()),
        format!("# mean of steps  {}", trace.steps),
        format!("# step           {batch}"),
        format!("# backward pass  {:.3} ms", trace.backward_us() / 1e3),
    ];
    lines.extend(
        trace
            .notes
            .iter()
            .map(|note| format!("# note           {note}")),
    );
    lines.push(format!(
        "{:>5} {:>12} {:>12}  {:<8} {}",
        "order", "ready_ms", "bytes", "type", "name"
    ));
    let mut ready_us = 0.0;
    for (at, gradient) in trace.gradients.iter().enumerate() {
        ready_us += gradient.wait_us;
        lines.push(format!(
            "{at:>5} {:>12.3} {:>12}  {:<8} {}",
            ready_us / 1e3,
            gradient.bytes,
            gradient.dtype.name(),
            gradient.name
        ));
    }
    lines.join("\n") + "\n"
}
