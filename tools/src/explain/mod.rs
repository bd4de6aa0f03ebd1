//! `linerate explain COLLECTIVE`: which algorithm each size takes, by which path, why, and the predicted time beside the
//! measured one. `linerate explain --calibrate` measures the prices that predictions are made of, and stores them for this
//! host.
//!
//! Like `bench`, the command checks its arguments and then starts itself once per rank. Flags are those of `bench`, whose plan,
//! buffers and layouts it uses; buffers are not rotated.
//!
//! Read first: `rank.rs`; for calibration, `calibrate.rs`.

mod calibrate;
mod print;
mod rank;
mod timing;

use crate::bench::args::{BenchArgs, Memory, Operators, Placements, Types};
use crate::bench::layout::has_in_place;
use crate::bench::plan::{Facts, Plan, build_plan};
use crate::binding::Bind;
use crate::settings::{self, FAILED, USAGE, parse_size};
use crate::{launch, output, system};
use clap::{Args, ValueEnum};
use linerate::config::PriceList;
use linerate::{Collective, Config, Error, cost};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

/// Arguments of `linerate explain`. Short ones mean what they mean in `bench`.
#[derive(Args, Clone, Debug)]
#[command(allow_negative_numbers = true)]
pub struct ExplainArgs {
    /// allreduce, reduce-scatter, all-gather, all-gatherv, broadcast, reduce, gather, scatter, all-to-all, all-to-allv or
    /// barrier
    #[arg(value_name = "COLLECTIVE", value_parser = Collective::from_str, required_unless_present = "calibrate")]
    pub collective: Option<Collective>,

    /// Measure this host and store the prices in LINERATE_MODEL, else in linerate/model in XDG_CACHE_HOME or ~/.cache. Takes a
    /// minute and wants the machine for itself
    #[arg(long, conflicts_with_all = ["collective", "all", "no_measure", "json", "algo"])]
    pub calibrate: bool,

    /// Smallest size, bytes, with K, M or G (binary). The size is that of the larger side (input or output) of a rank
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", default_value = "8", value_parser = parse_size)]
    pub min_bytes: u64,

    /// Largest size, bytes, with K, M or G (binary)
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    pub max_bytes: u64,

    /// Each size is the one before times this
    #[arg(
        short = 'f',
        long = "stepfactor",
        value_name = "FACTOR",
        default_value_t = 8
    )]
    pub step_factor: u64,

    /// Timed iterations of each algorithm and size, at most; fewer where they would take long
    #[arg(
        short = 'n',
        long = "iters",
        value_name = "COUNT",
        default_value_t = 48
    )]
    pub iterations: u32,

    /// Element type: f64 f32 f16 bf16 i8 u8 i32 u32 i64 u64, nccl-tests' names, or all
    #[arg(
        short = 'd',
        long = "datatype",
        value_name = "TYPE",
        default_value = "f32"
    )]
    pub datatype: Types,

    /// Operator: sum prod min max avg premulsum[:FACTOR] bitand, or all that the type has
    #[arg(short = 'o', long = "op", value_name = "OP", default_value = "sum")]
    pub op: Operators,

    /// Root of broadcast, reduce, gather and scatter
    #[arg(short = 'r', long = "root", value_name = "RANK", default_value_t = 0)]
    pub root: u32,

    /// Local ranks to spawn; default 2. Under a launcher it must equal WORLD_SIZE. With --calibrate the only number of ranks
    /// that is measured
    #[arg(long, value_name = "N")]
    pub ranks: Option<u32>,

    /// cores: each rank gets its own share of the cores; where ranks are more, each core gets equally many. none: the kernel places
    /// them
    #[arg(long, value_enum, default_value_t = Bind::Cores)]
    pub bind: Bind,

    /// auto or shm; tcp, verbs[:device] and ofi[:provider] are not part of this build. Default LINERATE_TRANSPORT, else auto
    #[arg(long, value_name = "NAME")]
    pub transport: Option<String>,

    /// Algorithm by name; default LINERATE_ALGO, else what the library chooses
    #[arg(long, value_name = "NAME")]
    pub algo: Option<String>,

    /// Whose memory the buffers are: registered by the library, or the caller's own, which is staged
    #[arg(long, value_enum, default_value_t = Memory::Registered)]
    pub memory: Memory,

    /// How input and output lie; default in-place where the collective has that form
    #[arg(long, value_enum)]
    pub placement: Option<Placement>,

    /// Predict only
    #[arg(long)]
    pub no_measure: bool,

    /// Measure every algorithm that can run, and not only the one that is chosen
    #[arg(long, conflicts_with = "no_measure")]
    pub all: bool,

    /// Write the results as one JSON document; with `-` to stdout, and the text to stderr
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,

    /// How long an operation may stand still before it fails; default LINERATE_TIMEOUT, else 60
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<String>,
}

/// How input and output lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Placement {
    /// Input and output share memory as NCCL lays them out.
    InPlace,
    /// Input and output are apart.
    OutOfPlace,
}

/// Checks the arguments, then spawns the ranks or is one.
pub fn run(args: &ExplainArgs) -> ExitCode {
    let checked = facts().and_then(|facts| match args.calibrate {
        true => calibrate::check(args, &facts.config).map(|()| None),
        false => check(args, facts).map(Some),
    });
    let plan = match checked {
        Ok(plan) => plan,
        Err(text) => {
            eprintln!("error: {text}\n\nFor more information, try '--help'.");
            return ExitCode::from(USAGE);
        }
    };
    let is_rank = settings::world_size().is_some();
    let Some(plan) = plan else {
        return calibrate::run(args, is_rank);
    };
    if let Some(reason) = settings::unavailable_reason(&plan.config.transport) {
        eprintln!("error: {reason}");
        return ExitCode::from(FAILED);
    }
    if is_rank {
        return conclude(rank::run(args, &plan));
    }
    ExitCode::from(launch::spawn_self(plan.ranks, args.bind))
}

fn facts() -> Result<Facts, String> {
    Ok(Facts {
        config: settings::from_environment()?,
        launched_ranks: settings::launched_ranks()?,
        local_ranks: settings::local_world_size(),
        memory_bytes: linerate::memory::available_memory_bytes(),
        cache_bytes: system::last_level_cache_bytes(),
    })
}

fn check(args: &ExplainArgs, facts: Facts) -> Result<Plan, String> {
    let collective = args.collective.expect("clap requires it");
    if collective == Collective::SendRecv {
        return Err("sendrecv has one algorithm, and nothing to explain".into());
    }
    let plan = build_plan(&as_bench(args, collective, args.memory), facts)?;
    if plan.link.is_some() {
        return Err(
            "explain predicts and measures this host: --transport auto or shm (`bench --transport sim` has a modelled network)"
                .into(),
        );
    }
    if let Some(target) = &plan.json {
        output::check_target("--json", target)?;
    }
    Ok(plan)
}

/// The bench of one placement, without checks and rotation.
fn as_bench(args: &ExplainArgs, collective: Collective, memory: Memory) -> BenchArgs {
    let placement = match args.placement {
        Some(Placement::InPlace) => Placements::InPlace,
        None if has_in_place(collective) => Placements::InPlace,
        _ => Placements::OutOfPlace,
    };
    BenchArgs {
        collective,
        min_bytes: args.min_bytes,
        max_bytes: args.max_bytes,
        step_factor: args.step_factor,
        step_bytes: None,
        iterations: Some(args.iterations),
        warmup: None,
        check: 0,
        datatype: args.datatype.clone(),
        op: args.op.clone(),
        root: args.root,
        ranks: args.ranks,
        bind: args.bind,
        transport: args.transport.clone(),
        link_gbit: None,
        link_us: None,
        algo: args.algo.clone(),
        memory,
        placement,
        json: args.json.clone(),
        timeout: args.timeout.clone(),
        seed: 1,
        stats: false,
        no_rotate: true,
        min_bw: None,
        max_p99: None,
    }
}

/// Whose prices predictions are made of: a file, or the library's own.
fn describe_prices(config: &Config) -> String {
    let (PriceList::Cached(path) | PriceList::Named(path)) = &config.prices else {
        return "built in".into();
    };
    let text = std::fs::read_to_string(path).unwrap_or_default();
    match cost::parse(&text, &linerate::comm::price_host()) {
        Ok(Some(_)) => path.display().to_string(),
        _ => format!("built in ({} has none for this host)", path.display()),
    }
}

fn conclude(outcome: linerate::Result<Result<(), String>>) -> ExitCode {
    let rank = std::env::var("RANK").unwrap_or_else(|_| "?".into());
    match outcome {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(failure)) => {
            eprintln!("error: {failure}");
            ExitCode::from(FAILED)
        }
        Err(error) => {
            eprintln!("rank {rank}: error: {error}");
            ExitCode::from(match error.first_cause() {
                Error::InvalidArgument(_) => USAGE,
                _ => FAILED,
            })
        }
    }
}
