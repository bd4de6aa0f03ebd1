//! `linerate experiment skew`: the micro-benchmark of eager-SGD. Rank i arrives (i+1) times the
//! skew after a barrier, 64 rounds, for each policy and size; the time of a rank is from its
//! arrival to its result.
//!
//! Every element of every result is checked. Rank r contributes r + 1 for each generation, and
//! which generations are in a round follows from the ranks that were active in it and in the
//! previous one.

mod simulate;

use super::arithmetic::{Measured, expected_ms, summarise};
use clap::Args;
use linerate::options::Divisor;
use linerate::reports::RankSet;
use linerate::{Buffer, Communicator, Config, DataType, PartialAllreduce, PartialOptions, Policy};
use linerate_job::binding::Bind;
use linerate_job::ending::{self, FAILED};
use linerate_job::flags::JobArgs;
use linerate_job::progress::Progress;
use linerate_job::settings::{self, parse_size};
use linerate_job::{output, spawn};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Seed of the random initiator: that of the published benchmark, with our generator.
const SEED: u64 = 6_545_343;

/// The quorum that is measured if none is named.
const QUORUM: &str = "8";

/// The paper's factors for 32 ranks.
const PAPER_SOLO: f64 = 53.32;
const PAPER_MAJORITY: f64 = 2.46;

/// Rounds before the measured ones: they map memory and make schedules.
const WARM_UP_ROUNDS: u64 = 4;

/// Arguments of `linerate experiment skew`.
#[derive(Args, Clone, Debug)]
pub struct SkewArgs {
    /// Local ranks to spawn; default 32. Under a launcher it must equal WORLD_SIZE
    #[arg(long, value_name = "N")]
    ranks: Option<u32>,
    /// In virtual time, exactly: signals take no time, and rounds take --sim-t-ms and the vector
    /// twice over 100 Gbit/s
    #[arg(long)]
    sim: bool,
    /// How long a round of no bytes takes with --sim, milliseconds; default: what the paper's
    /// factor for solo says
    #[arg(long, default_value_t = 0.296, requires = "sim")]
    sim_t_ms: f64,
    /// Measured rounds of each policy and size
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,
    /// Time between the arrivals of two ranks, milliseconds
    #[arg(long, default_value_t = 1.0)]
    skew_ms: f64,
    /// Bytes of the vectors, with K, M or G (binary)
    #[arg(long, value_delimiter = ',', default_value = "64,4K", value_parser = parse_size)]
    sizes: Vec<u64>,
    /// full, solo, majority, random, or the number of ranks of a quorum [default:
    /// full,solo,8,majority,random, without a quorum that the ranks do not fill]
    #[arg(long, value_delimiter = ',')]
    policies: Option<Vec<String>>,
    #[command(flatten)]
    job: JobArgs,
    /// cores: each rank gets its own share of the cores; none: the kernel places them
    #[arg(long, value_enum, default_value_t = Bind::Cores)]
    bind: Bind,
}

impl SkewArgs {
    fn policies(&self, ranks: u32) -> Vec<String> {
        let usual = || {
            let all = ["full", "solo", QUORUM, "majority", "random"];
            let quorum = QUORUM.parse::<u32>().expect("a number");
            let is_possible = |name: &&str| *name != QUORUM || quorum <= ranks;
            all.into_iter()
                .filter(is_possible)
                .map(String::from)
                .collect()
        };
        self.policies.clone().unwrap_or_else(usual)
    }
}

/// One policy and size.
struct Row {
    name: String,
    policy: Policy,
    bytes: u64,
    /// The first measured round.
    first_round: u64,
    measured: Measured,
    wrong: u64,
}

/// Checks the arguments, then spawns the ranks or is one.
pub fn run(args: &SkewArgs) -> ExitCode {
    let (ranks, config) = match check(args) {
        Ok(checked) => checked,
        Err(text) => return ending::refuse(&text),
    };
    if args.sim {
        return finish(simulate::simulate_all(args, ranks), args, ranks);
    }
    if let Some(reason) = settings::unavailable_reason(&config.transport) {
        return ending::fail(FAILED, &reason);
    }
    if settings::launched_rank().is_none() && ranks > 1 {
        return ExitCode::from(spawn::spawn_self(ranks, args.bind));
    }
    finish(measure_all(args, config), args, ranks)
}

/// Prints what was found.
fn finish(rows: linerate::Result<Vec<Row>>, args: &SkewArgs, ranks: u32) -> ExitCode {
    match rows
        .map_err(|error| error.to_string())
        .and_then(|rows| report(args, &rows, ranks))
    {
        Ok(code) => ExitCode::from(code),
        Err(text) => {
            let rank = settings::launched_rank().unwrap_or_else(|| "0".into());
            output::print_error(&format!("rank {rank}: error: {text}"));
            ExitCode::from(FAILED)
        }
    }
}

fn check(args: &SkewArgs) -> Result<(u32, Config), String> {
    let launched = settings::launched_ranks()?;
    let asked = args.ranks.or(launched.is_none().then_some(32));
    let ranks = settings::check_ranks(asked, launched)?;
    if !(0.0..=1000.0).contains(&args.skew_ms) {
        return Err(format!("--skew-ms is {}: from 0 to 1000", args.skew_ms));
    }
    if !(0.0..=1000.0).contains(&args.sim_t_ms) {
        return Err(format!("--sim-t-ms is {}: from 0 to 1000", args.sim_t_ms));
    }
    if let Some(size) = args
        .sizes
        .iter()
        .find(|&&size| size < 4 || size % 4 != 0 || size > 1 << 30)
    {
        return Err(format!("--sizes has {size}: multiples of 4 from 4 to 1G"));
    }
    for name in &args.policies(ranks) {
        let policy = policy_of(name)?;
        let options = PartialOptions {
            policy,
            ..PartialOptions::default()
        };
        options
            .check(ranks)
            .map_err(|error| format!("--policies {name}: {error}"))?;
    }
    let config = args.job.config()?;
    if config.transport == "sim" {
        return Err(
            "the skew is of real time: --transport shm or tcp; in virtual time: --sim".into(),
        );
    }
    args.job.check_json()?;
    // A rank has eight vectors: two snapshots, three results, the neutral element, a gradient, an
    // update.
    let most = args.sizes.iter().max().copied().unwrap_or(0);
    let bytes = 8 * most * u64::from(settings::local_world_size().unwrap_or(ranks));
    let available = linerate::unstable::memory::available_memory_bytes();
    settings::check_memory(
        "all ranks",
        bytes,
        available,
        "smaller --sizes, or fewer --ranks",
    )?;
    Ok((ranks, config))
}

fn policy_of(name: &str) -> Result<Policy, String> {
    Ok(match name {
        "full" => Policy::Full,
        "solo" => Policy::Solo,
        "majority" => Policy::Majority,
        "random" => Policy::RandomInitiator { seed: SEED },
        number => Policy::Quorum(number.parse().map_err(|_| {
            format!("--policies has '{number}': full, solo, majority, random, or a number of ranks")
        })?),
    })
}

/// All rows, on every rank.
fn measure_all(args: &SkewArgs, config: Config) -> linerate::Result<Vec<Row>> {
    let comm = settings::join(config)?;
    let policies = args.policies(comm.ranks());
    let count = args.sizes.len() * policies.len();
    let mut progress = Progress::new("policies", count, comm.rank() == 0);
    let mut rows = Vec::new();
    for &bytes in &args.sizes {
        for name in &policies {
            let policy = policy_of(name).expect("it was checked");
            let (measured, wrong) = measure(args, &comm, policy, bytes)?;
            rows.push(Row {
                name: name.clone(),
                policy,
                bytes,
                first_round: WARM_UP_ROUNDS,
                measured,
                wrong,
            });
            progress.advance(format!("after {name}, {bytes} B"));
        }
    }
    progress.finish();
    Ok(if comm.rank() == 0 { rows } else { Vec::new() })
}

/// Counts what is wrong in the results of a rank.
struct Checked {
    ranks: u32,
    before: Option<RankSet>,
    wrong: u64,
}

impl Checked {
    /// A rank that missed the previous round has submitted that gradient before this round begins,
    /// so it is in this one, beside the new gradient if the rank is active.
    fn check(
        &mut self,
        active: &RankSet,
        included: &RankSet,
        update: &Buffer<i32>,
    ) -> linerate::Result<()> {
        let mut wanted = 0;
        for rank in 0..self.ranks {
            let is_late = self
                .before
                .as_ref()
                .is_some_and(|before| !before.contains(rank));
            let generations = i32::from(active.contains(rank)) + i32::from(is_late);
            wanted += generations * (rank as i32 + 1);
            self.wrong += u64::from((generations > 0) != included.contains(rank));
        }
        self.wrong += update
            .as_slice()?
            .iter()
            .filter(|&&sum| sum != wanted)
            .count() as u64;
        self.before = Some(active.clone());
        Ok(())
    }
}

fn measure(
    args: &SkewArgs,
    comm: &Communicator,
    policy: Policy,
    bytes: u64,
) -> linerate::Result<(Measured, u64)> {
    let options = PartialOptions {
        policy,
        // Every rank submits in every round, so no gradient is later than the next one.
        staleness_max: Some(2),
        divisor: Divisor::One,
        ..PartialOptions::default()
    };
    let count = bytes / 4;
    let partial = PartialAllreduce::new(comm, DataType::I32, count, options)?;
    let (gradient, update) = (comm.alloc(count as usize)?, comm.alloc(count as usize)?);
    gradient.as_mut_slice()?.fill(comm.rank() as i32 + 1);
    let skew = Duration::from_secs_f64(args.skew_ms / 1e3);
    let mut checked = Checked {
        ranks: comm.ranks(),
        before: None,
        wrong: 0,
    };
    let (mut latencies_ms, mut naps) = (Vec::new(), Vec::new());
    for round in 0..WARM_UP_ROUNDS + u64::from(args.rounds) {
        comm.barrier()?;
        std::thread::sleep(skew * (comm.rank() + 1));
        let started = Instant::now();
        let report = partial
            .exchange(&gradient, &update)?
            .expect("every step has a result");
        let latency_ms = started.elapsed().as_secs_f64() * 1e3;
        checked.check(&report.active, &report.included, &update)?;
        if round >= WARM_UP_ROUNDS {
            latencies_ms.push(latency_ms);
            naps.push(report.active_count());
        }
    }
    // Late gradients are delivered before any rank leaves.
    comm.barrier()?;
    let mut checks = Ok(());
    partial.finish(&update, |report| {
        let check = checked.check(&report.active, &report.included, &update);
        checks = std::mem::replace(&mut checks, Ok(())).and(check);
    })?;
    checks?;
    let mut wrong = [checked.wrong];
    comm.all_reduce(&mut wrong, linerate::ReduceOp::Sum)?;
    let all = gather(comm, &latencies_ms)?;
    Ok((summarise(policy, WARM_UP_ROUNDS, &all, &naps), wrong[0]))
}

/// The numbers of all ranks, by rank.
fn gather(comm: &Communicator, own: &[f64]) -> linerate::Result<Vec<Vec<f64>>> {
    let mut all = vec![0.0; own.len() * comm.ranks() as usize];
    comm.all_gather(own, &mut all)?;
    Ok(all.chunks(own.len()).map(<[f64]>::to_vec).collect())
}

impl Row {
    fn expected_ms(&self, args: &SkewArgs, ranks: u32) -> f64 {
        let rounds = self.first_round..self.first_round + u64::from(args.rounds);
        expected_ms(
            self.policy,
            rounds,
            ranks,
            args.skew_ms,
            (self.measured.initiator_p50_ms, self.measured.ready_mean_ms),
        )
    }

    /// How far the mean is off the expected one, as a share of that. It is expected from the skew,
    /// t and a ready call, and only while t is below the skew.
    fn deviation(&self, args: &SkewArgs, ranks: u32) -> f64 {
        self.measured.mean_ms / self.expected_ms(args, ranks) - 1.0
    }
}

/// The mean latency of full over that of a row of the same size; `None` if full was not measured.
fn reduction(rows: &[Row], row: &Row) -> Option<f64> {
    let full = rows
        .iter()
        .find(|other| other.policy == Policy::Full && other.bytes == row.bytes);
    full.map(|full| full.measured.mean_ms / row.measured.mean_ms)
}

/// Rank 0 prints. Returns the exit code.
fn report(args: &SkewArgs, rows: &[Row], ranks: u32) -> Result<u8, String> {
    if rows.is_empty() {
        return Ok(0);
    }
    args.job.print(&table(args, rows, ranks))?;
    let entries = rows.iter().map(|row| entry(args, rows, row, ranks));
    args.job.write_json(&json!({
        "experiment": "skew",
        "ranks": ranks,
        "rounds": args.rounds,
        "skew_ms": args.skew_ms,
        "virtual_time": args.sim,
        "version": env!("CARGO_PKG_VERSION"),
        "results": entries.collect::<Vec<Value>>(),
    }))?;
    Ok(if rows.iter().all(|row| row.wrong == 0) {
        0
    } else {
        FAILED
    })
}

fn entry(args: &SkewArgs, rows: &[Row], row: &Row, ranks: u32) -> Value {
    json!({
        "policy": row.name,
        "ranks": ranks,
        "bytes": row.bytes,
        "mean_latency_ms": row.measured.mean_ms,
        "expected_latency_ms": row.expected_ms(args, ranks),
        "identity_deviation": row.deviation(args, ranks),
        "initiator_p50_ms": row.measured.initiator_p50_ms,
        "ready_mean_ms": row.measured.ready_mean_ms,
        "ready_p50_ms": row.measured.ready_p50_ms,
        "nap_mean": row.measured.nap_mean,
        "reduction_vs_full": reduction(rows, row),
        "wrong": row.wrong,
    })
}

fn table(args: &SkewArgs, rows: &[Row], ranks: u32) -> String {
    let mut text = format!(
        "# {ranks} ranks, {} rounds, rank i arrives (i+1) * {} ms after a barrier; expected: from the skew, t and a call that finds its result\n\
         # paper, 32 ranks: solo {PAPER_SOLO}x with NAP 1, majority (by a random initiator) {PAPER_MAJORITY}x with NAP 16\n\
         {:>10} {:>10} {:>10} {:>10} {:>8} {:>10} {:>9} {:>8} {:>10} {:>7}\n",
        args.rounds,
        args.skew_ms,
        "policy",
        "bytes",
        "mean ms",
        "expected",
        "off",
        "t ms",
        "ready ms",
        "NAP",
        "vs full",
        "#wrong"
    );
    for row in rows {
        let vs_full = reduction(rows, row).map_or("-".into(), |factor| format!("{factor:.2}x"));
        text += &format!(
            "{:>10} {:>10} {:>10.3} {:>10.3} {:>7.1}% {:>10.3} {:>9.3} {:>8.2} {:>10} {:>7}\n",
            row.name,
            row.bytes,
            row.measured.mean_ms,
            row.expected_ms(args, ranks),
            100.0 * row.deviation(args, ranks),
            row.measured.initiator_p50_ms,
            row.measured.ready_mean_ms,
            row.measured.nap_mean,
            vs_full,
            row.wrong
        );
    }
    text
}
