//! `linerate trace FILE`: what was understood of a trace; and the flags of commands that read one.

use clap::Args;
use linerate::FusionOptions;
use linerate::whatif::Trace;
use linerate_job::ending::{self, FAILED, USAGE};
use linerate_job::{output, settings};
use std::process::ExitCode;
use std::time::Duration;

/// Which traces are read.
const TRACE: &str = "resnet50, resnet101, vgg16 (built in), or a file: .bk.log, .layers.csv, what torch.profiler exports, \
     a timeline of Horovod, or what replay --trace-out writes; each also as .gz";

/// Say what is understood of a trace: gradients, their times and sizes, and what was guessed
#[derive(Args, Clone, Debug)]
pub struct TraceArgs {
    #[arg(value_name = "NAME|FILE", help = TRACE)]
    pub trace: String,
}

/// Flags of commands that read a trace and fuse its gradients.
#[derive(Args, Clone, Debug)]
pub struct TraceFlags {
    #[arg(long, default_value = "resnet50", value_name = "NAME|FILE", help = TRACE)]
    pub trace: String,
    /// Time of a step on one GPU, in milliseconds; default: as measured, or 1.5 times the backward
    /// pass
    #[arg(long, value_parser = milliseconds)]
    pub batch_ms: Option<f64>,
    /// Bytes of one flush (K, M, G)
    #[arg(long, default_value = "64M", value_parser = settings::parse_size)]
    pub fusion_bytes: u64,
    /// How long a ready gradient waits for company, in milliseconds
    #[arg(long, default_value = "5", value_parser = milliseconds)]
    pub fusion_age_ms: f64,
}

impl TraceFlags {
    /// The trace with its times multiplied, but for a time of a step that was given.
    pub fn load(&self, factor: f64) -> Result<Trace, String> {
        let trace = Trace::load(&self.trace).map_err(|error| error.to_string())?;
        let mut trace = trace.scaled(factor);
        trace.batch_ms = self.batch_ms.or(trace.batch_ms);
        Ok(trace)
    }

    /// The size and age of flushes; all else as by default.
    pub fn fusion(&self) -> FusionOptions {
        FusionOptions {
            bytes_max: self.fusion_bytes,
            age_max: Duration::from_secs_f64(self.fusion_age_ms / 1e3),
            ..FusionOptions::default()
        }
    }
}

fn milliseconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ms) if (0.0..=3.6e6).contains(&ms) => Ok(ms),
        _ => Err("milliseconds from 0 to 3.6e6 (one hour), such as 5 or 0.5".into()),
    }
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
        Some(ms) => format!("{ms:.3} ms"),
        None => "not in the trace".into(),
    };
    let forward = match trace.forward_ms {
        Some(ms) => format!("{ms:.3} ms"),
        None => format!("not in the trace; taken as {:.3} ms", trace.forward_ms()),
    };
    let spread = match trace.steps {
        0 | 1 => "of one step unknown".into(),
        _ => format!(
            "{:.2} % (standard deviation of a step)",
            100.0 * trace.spread
        ),
    };
    let machine = match trace.machine.is_empty() {
        true => "not in the trace",
        false => &trace.machine,
    };
    let mut lines = vec![
        format!("# trace          {}", trace.name),
        format!("# written by     {}", trace.source),
        format!("# machine        {machine}"),
        format!("# gradients      {}", trace.gradients.len()),
        format!("# bytes          {}", trace.bytes()),
        format!("# mean of steps  {}", trace.steps),
        format!("# step           {batch}"),
        format!("# forward pass   {forward}"),
        format!("# backward pass  {:.3} ms", trace.backward_us() / 1e3),
        format!("# spread         {spread}"),
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
