//! `linerate replay`: the gradients of a real model, ready at their real times, through fusion and allreduce.
//!
//! What is replayed is the backward pass: each gradient is announced at its time in the trace, and the step ends when all are
//! reduced. The forward pass would only add a constant; it enters the step time and the scaling factor as
//! `batch - backward`. Read first: [`run`], then `rank.rs`.

mod output;
mod plan;
mod rank;
mod summary;
mod trace;

use clap::{Args, ValueEnum};
use linerate::FusionOptions;
use linerate::config::{parse_size, parse_timeout};
use std::path::PathBuf;
use std::time::Duration;
use trace::Trace;

/// Everything is good.
const EXIT_GOOD: i32 = 0;
/// The run failed, or values were wrong.
const EXIT_FAILED: i32 = 1;
/// Bad usage: a flag's value or the trace.
const EXIT_USAGE: i32 = 2;

/// Who decides what is flushed when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Our fusion buffer: a real deadline, agreement between the ranks.
    Linerate,
    /// The published simulation: limits looked at only when a gradient arrives; the plan is fixed beforehand.
    Paper,
}

/// What stands for the computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Compute {
    /// Sleep: as on a GPU, the processor is free for communication.
    Sleep,
    /// Keep one core busy.
    Spin,
}

/// Which memory the gradients lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Memory {
    /// Registered by the library.
    Registered,
    /// The caller's own.
    Caller,
}

/// Replay the gradients of a real model through fusion and allreduce.
#[derive(Args, Clone, Debug)]
pub struct ReplayArgs {
    /// resnet50, resnet101, vgg16 (built in), or a .bk.log or .layers.csv file
    #[arg(long, default_value = "resnet50", value_name = "NAME|FILE")]
    pub trace: String,
    /// Local ranks to spawn, unless started by a launcher
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub ranks: u32,
    /// Who decides what is flushed when
    #[arg(long, value_enum, default_value = "linerate")]
    pub mode: Mode,
    /// Bytes of one flush (K, M, G)
    #[arg(long, default_value = "64M", value_parser = size)]
    pub fusion_bytes: u64,
    /// How long a ready gradient waits for company, in milliseconds
    #[arg(long, default_value = "5", value_parser = milliseconds)]
    pub fusion_age_ms: f64,
    /// Gradients of one flush, at most
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    pub fusion_tensors: usize,
    /// Flushes under way at once
    #[arg(long, default_value_t = 3)]
    pub fusion_buffers: usize,
    /// Measured steps, after one that is not
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub steps: u32,
    /// What stands for the computation
    #[arg(long, value_enum, default_value = "sleep")]
    pub compute: Compute,
    /// Factor on all times of the trace; 0 makes every gradient ready at once
    #[arg(long, default_value = "1", value_parser = factor)]
    pub scale: f64,
    /// Time of a batch on one GPU, in milliseconds; default: as measured, or 1.5 times the backward pass
    #[arg(long, value_parser = milliseconds)]
    pub batch_ms: Option<f64>,
    /// Print the flush plan and run nothing
    #[arg(long)]
    pub plan_only: bool,
    /// Which memory the gradients lie in
    #[arg(long, value_enum, default_value = "registered")]
    pub memory: Memory,
    /// auto, shm, tcp, verbs[:dev], ofi[:provider] or sim; default: LINERATE_TRANSPORT, else auto
    #[arg(long)]
    pub transport: Option<String>,
    /// One JSON document; with - nothing else goes to standard output
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
    /// A Chrome trace (chrome://tracing, ui.perfetto.dev) of all ranks and steps
    #[arg(long, value_name = "FILE")]
    pub trace_out: Option<PathBuf>,
    /// Seconds without progress after which an operation fails; default: LINERATE_TIMEOUT, else 60
    #[arg(long, value_parser = timeout)]
    pub timeout: Option<Duration>,
    /// Seed of the gradients' values
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl ReplayArgs {
    /// Whether the only JSON document goes to standard output, so that nothing else may.
    fn is_json_only(&self) -> bool {
        self.json
            .as_ref()
            .is_some_and(|path| path.as_os_str() == "-")
    }

    fn fusion_options(&self) -> linerate::Result<FusionOptions> {
        let options = FusionOptions {
            bytes_max: self.fusion_bytes,
            age_max: Duration::from_secs_f64(self.fusion_age_ms / 1e3),
            tensors_max: self.fusion_tensors,
            buffers_count: self.fusion_buffers,
            ..FusionOptions::default()
        };
        options.check()?;
        Ok(options)
    }
}

/// Runs the command and gives the exit code. Without a launcher (`WORLD_SIZE` not set) and with more than one rank,
/// `spawn(ranks)` runs this command line once per rank and gives the worst exit code.
pub fn run(args: &ReplayArgs, spawn: impl FnOnce(u32) -> i32) -> i32 {
    let prepared = Trace::load(&args.trace)
        .map(|trace| trace.scaled(args.scale))
        .and_then(|trace| {
            let options = args.fusion_options().map_err(|error| error.to_string())?;
            Ok((trace, options))
        });
    let (trace, options) = match prepared {
        Ok(prepared) => prepared,
        Err(reason) => {
            eprintln!("linerate replay: {reason}");
            return EXIT_USAGE;
        }
    };
    let is_parent = std::env::var_os("WORLD_SIZE").is_none();
    let result = if args.plan_only {
        print_plan(args, &trace, &options)
    } else if is_parent && args.ranks > 1 {
        return spawn(args.ranks);
    } else {
        rank::run_rank(args, &trace, &options)
    };
    match result {
        Ok(code) => code,
        Err(reason) => {
            eprintln!("linerate replay: {reason}");
            EXIT_FAILED
        }
    }
}

fn print_plan(args: &ReplayArgs, trace: &Trace, options: &FusionOptions) -> Result<i32, String> {
    let plan = match args.mode {
        Mode::Paper => plan::build_paper(trace, options),
        Mode::Linerate => plan::build_linerate(trace, options).map_err(|e| e.to_string())?,
    };
    output::print_plan(args, trace, &plan)?;
    Ok(EXIT_GOOD)
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

fn timeout(text: &str) -> Result<Duration, String> {
    parse_timeout("--timeout", text).map_err(|error| error.to_string())
}

fn milliseconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ms) if (0.0..=3.6e6).contains(&ms) => Ok(ms),
        _ => Err("milliseconds from 0 to 3.6e6 (one hour), such as 5 or 0.5".into()),
    }
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if (0.0..=1000.0).contains(&factor) => Ok(factor),
        _ => Err("a factor from 0 to 1000, such as 0.5".into()),
    }
}
