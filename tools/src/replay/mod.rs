//! `linerate replay`: the gradients of a real model, ready at their real times, through fusion and
//! allreduce.
//!
//! What is replayed is the backward pass: each gradient is announced at its time in the trace, and
//! the step ends when all are reduced. The forward pass would only add a constant; it enters the
//! step time and the scaling factor as `batch - backward`. Read first: [`run`], then `rank.rs`.

mod alone;
mod print;
mod rank;
mod summary;

use crate::bench::Memory;
use crate::trace::TraceFlags;
use clap::{Args, ValueEnum};
use linerate::whatif::{FlushRule, Trace};
use linerate::{Config, DataType, FusionOptions};
use linerate_job::binding::Bind;
use linerate_job::ending::{self, FAILED, USAGE};
use linerate_job::flags::JobArgs;
use linerate_job::{output, settings, spawn};
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit code when everything is good.
const GOOD: u8 = 0;

/// Which rule decides what is flushed, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Our fusion buffer: a real deadline, agreement between the ranks.
    Linerate,
    /// The published simulation: limits looked at only when a gradient arrives; the plan is fixed
    /// beforehand.
    Paper,
}

impl From<Mode> for FlushRule {
    fn from(mode: Mode) -> FlushRule {
        match mode {
            Mode::Linerate => FlushRule::Linerate,
            Mode::Paper => FlushRule::Paper,
        }
    }
}

/// What stands for the computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Compute {
    /// Sleep: as on a GPU, the processor is free for communication.
    Sleep,
    /// Keep one core busy.
    Spin,
    /// Keep one core busy for as much processor time as the trace says: what else takes the core
    /// makes the computation longer, and gradients ready later.
    Work,
}

/// Replay the gradients of a real model through fusion and allreduce.
#[derive(Args, Clone, Debug)]
#[command(allow_negative_numbers = true)]
pub struct ReplayArgs {
    #[command(flatten)]
    pub trace: TraceFlags,
    /// Local ranks to spawn; default 2. Under a launcher it must equal WORLD_SIZE
    #[arg(long, value_name = "N")]
    pub ranks: Option<u32>,
    /// cores: each rank gets its own share of the cores; where ranks are more, each core gets
    /// equally many. none: the kernel places them
    #[arg(long, value_enum, default_value_t = Bind::Cores)]
    pub bind: Bind,
    /// Who decides what is flushed when
    #[arg(long, value_enum, default_value = "linerate")]
    pub mode: Mode,
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
    /// Print the flush plan and run nothing
    #[arg(long)]
    pub plan_only: bool,
    /// Which memory the gradients lie in
    #[arg(long, value_enum, default_value = "registered")]
    pub memory: Memory,
    #[command(flatten)]
    pub job: JobArgs,
    /// A Chrome trace (chrome://tracing, ui.perfetto.dev) of all ranks and steps
    #[arg(long, value_name = "FILE")]
    pub trace_out: Option<PathBuf>,
    /// Seed of the gradients' values
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl ReplayArgs {
    fn fusion_options(&self) -> linerate::Result<FusionOptions> {
        let options = FusionOptions {
            tensors_max: self.fusion_tensors,
            buffers_count: self.fusion_buffers,
            ..self.trace.fusion()
        };
        options.check()?;
        Ok(options)
    }
}

/// What a replay needs. Every mistake in it is found before ranks start.
struct Prepared {
    trace: Trace,
    options: FusionOptions,
    config: Config,
    ranks: u32,
}

/// Checks the arguments, then prints the plan, spawns the ranks or is one.
pub fn run(args: &ReplayArgs) -> ExitCode {
    let prepared = match prepare(args) {
        Ok(prepared) => prepared,
        Err(reason) => return ending::fail(USAGE, &reason),
    };
    let result = if args.plan_only {
        print_plan(args, &prepared.trace, &prepared.options)
    } else if let Some(reason) = unavailable_reason(&prepared.config.transport) {
        Err(reason)
    } else if settings::launched().is_none() && prepared.ranks > 1 {
        return ExitCode::from(spawn::spawn_self(prepared.ranks, args.bind));
    } else {
        rank::run_rank(args, &prepared)
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(reason) => ending::end(Err(reason)),
    }
}

fn prepare(args: &ReplayArgs) -> Result<Prepared, String> {
    let ranks = settings::check_ranks(args.ranks, settings::launched_ranks()?)?;
    let mut trace = args.trace.load(args.scale)?;
    // The values that are sent and checked are f32, of as many bytes.
    for gradient in &mut trace.gradients {
        gradient.dtype = DataType::F32;
        gradient.bytes = gradient.bytes.next_multiple_of(4);
    }
    let options = args.fusion_options().map_err(|error| error.to_string())?;
    let config = args.job.config()?;
    if args.plan_only && args.trace_out.is_some() {
        return Err("--trace-out needs times that were measured, and --plan-only measures nothing: leave one away".into());
    }
    let outputs = [("--json", &args.job.json), ("--trace-out", &args.trace_out)];
    for (flag, target) in outputs {
        if let Some(target) = target {
            output::check_target(flag, target)?;
        }
    }
    if !args.plan_only {
        check_memory(
            &trace,
            &options,
            settings::local_world_size().unwrap_or(ranks),
        )?;
    }
    Ok(Prepared {
        trace,
        options,
        config,
        ranks,
    })
}

/// Every rank has all gradients, and buffers in which those of a flush lie side by side.
fn check_memory(trace: &Trace, options: &FusionOptions, ranks: u32) -> Result<(), String> {
    let total = trace.bytes();
    let buffers = options.bytes_max.min(total) * options.buffers_count as u64;
    settings::check_memory(
        &format!("a replay of {} on {ranks} ranks", trace.name),
        (total + buffers.min(total)).saturating_mul(u64::from(ranks)),
        linerate::unstable::memory::available_memory_bytes(),
        "lower --ranks, or --fusion-bytes, or take a smaller model",
    )
}

/// Why a transport that exists by name cannot replay, if so.
fn unavailable_reason(name: &str) -> Option<String> {
    let virtual_time = "transport sim has virtual time and a replay real times: --transport shm";
    let is_virtual = (name == "sim").then(|| virtual_time.into());
    is_virtual.or_else(|| settings::unavailable_reason(name))
}

fn print_plan(args: &ReplayArgs, trace: &Trace, options: &FusionOptions) -> Result<u8, String> {
    let plan = trace.plan(args.mode.into(), options);
    let plan = plan.map_err(|error| error.to_string())?;
    print::print_plan(args, trace, &plan)?;
    Ok(GOOD)
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if (0.0..=1000.0).contains(&factor) => Ok(factor),
        _ => Err("a factor from 0 to 1000, such as 0.5".into()),
    }
}
