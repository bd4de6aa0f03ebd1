//! `linerate experiment saturate`: how long a message must be, and in which chunks, so that an
//! allreduce reaches a share of the line.
//!
//! The line rate is reached if each rank sends and receives `2 (N - 1) / N` times the message in
//! the time that its NIC takes for that many bytes. Lengths are sought among powers of two by the
//! prices of messages, and what was found is run on the fabric in virtual time where that takes
//! seconds. Read first: [`run`].

use clap::Args;
use linerate::Collective;
use linerate::sim::{Fabric, FabricCall};
use linerate_job::ending::{self, USAGE};
use linerate_job::output;
use linerate_job::plot::PlotPoint;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// The shares that are sought.
const SHARES: [f64; 3] = [0.5, 0.9, 0.95];
/// Lengths and chunks that are tried: powers of two.
const BYTES: (u32, u32) = (12, 36);
const CHUNKS: [u64; 5] = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
/// Messages of a run in virtual time, at most: seconds of work.
const MESSAGES_MAX: u64 = 2_000_000;
/// Combinations, at most.
const CELLS_MAX: usize = 10_000;

/// Say which messages fill the line.
#[derive(Args, Clone, Debug)]
pub struct SaturateArgs {
    /// Numbers of ranks, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "2,8,64,512,4096",
        value_name = "N,..."
    )]
    ranks: Vec<u32>,
    /// Gbit/s of the NIC that each rank has, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "25,100,200,400",
        value_name = "GBIT,..."
    )]
    gbit: Vec<f64>,
    /// Microseconds from rank to rank
    #[arg(long, default_value_t = 2.0, value_name = "US")]
    latency_us: f64,
    /// Predict only
    #[arg(long)]
    no_sim: bool,
    /// Write one JSON document here, - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Everything.
#[derive(Debug, Serialize)]
struct Document {
    experiment: &'static str,
    version: &'static str,
    latency_us: f64,
    results: Vec<Row>,
    points: Vec<PlotPoint>,
}

/// What reaches a share of the line; without `bytes` nothing up to 64 GiB does.
#[derive(Debug, Serialize)]
struct Row {
    ranks: u32,
    gbit: f64,
    share: f64,
    bytes: Option<u64>,
    chunk_bytes: u64,
    algorithm: &'static str,
    /// The share of the line that prices predict, and that the run in virtual time reached.
    predicted: f64,
    simulated: Option<f64>,
    /// What takes the most of the time that the line does not need, and its share of all.
    limited_by: &'static str,
    limit_share: f64,
}

/// A length, cut into chunks, and by the algorithm that is chosen for it.
#[derive(Clone, Copy, Debug)]
struct Found {
    bytes: u64,
    chunk_bytes: u64,
    algorithm: &'static str,
    ns: f64,
}

/// Checks the arguments, seeks and prints.
pub fn run(args: &SaturateArgs) -> ExitCode {
    let document = match seek(args) {
        Ok(document) => document,
        Err(reason) => return ending::fail(USAGE, &reason),
    };
    let text = text(&document);
    ending::end(output::end(&text, args.json.as_deref(), &document))
}

fn seek(args: &SaturateArgs) -> Result<Document, String> {
    if let Some(target) = &args.json {
        output::check_target("--json", target)?;
    }
    if args.ranks.len() * args.gbit.len() > CELLS_MAX {
        return Err(format!(
            "{} combinations of --ranks and --gbit: at most {CELLS_MAX}",
            args.ranks.len() * args.gbit.len()
        ));
    }
    let mut document = Document {
        experiment: "saturate",
        version: env!("CARGO_PKG_VERSION"),
        latency_us: args.latency_us,
        results: Vec::new(),
        points: Vec::new(),
    };
    for &ranks in &args.ranks {
        if ranks < 2 {
            return Err(format!("--ranks has {ranks}: a line needs 2 ranks"));
        }
        for &gbit in &args.gbit {
            let fabric = fabric(args, gbit)?;
            let curve = curve(&fabric, ranks)?;
            let share = |found: &Found| share_of(found, ranks, gbit);
            for found in &curve {
                document.points.push(PlotPoint {
                    figure: format!("An allreduce at {gbit} Gbit/s"),
                    series: format!("{ranks} ranks"),
                    is_measured: false,
                    x_label: "bytes".into(),
                    is_x_log: true,
                    x: found.bytes as f64,
                    y_label: "share of the line rate".into(),
                    y: share(found),
                });
            }
            for wanted in SHARES {
                let found = curve.iter().find(|found| share(found) >= wanted);
                // Nothing reaches it: the longest says why.
                let at = *found.unwrap_or(&curve[curve.len() - 1]);
                let (limited_by, limit_share) = limit(&fabric, ranks, gbit, &at)?;
                document.results.push(Row {
                    ranks,
                    gbit,
                    share: wanted,
                    bytes: found.map(|found| found.bytes),
                    chunk_bytes: at.chunk_bytes,
                    algorithm: at.algorithm,
                    predicted: share(&at),
                    simulated: simulated(args, &fabric, ranks, &at)?.map(|ns| {
                        let ns = ns as f64;
                        share(&Found { ns, ..at })
                    }),
                    limited_by,
                    limit_share,
                });
            }
        }
    }
    Ok(document)
}

fn fabric(args: &SaturateArgs, gbit: f64) -> Result<Fabric, String> {
    if !(0.0..=1e6).contains(&args.latency_us) {
        return Err(format!(
            "--latency-us is {}: 0 to 1e6 (a second)",
            args.latency_us
        ));
    }
    Ok(Fabric {
        name: format!("{gbit}g"),
        nic_gbit: gbit,
        latency_ns: (args.latency_us * 1e3) as u64,
        ..Fabric::default()
    })
}

/// The best chunks of each length.
fn curve(fabric: &Fabric, ranks: u32) -> Result<Vec<Found>, String> {
    let mut curve = Vec::new();
    for bytes in (BYTES.0..=BYTES.1).map(|power| 1u64 << power) {
        let mut best: Option<Found> = None;
        for chunk_bytes in CHUNKS {
            let (algorithm, ns) = cheapest(fabric, ranks, bytes, chunk_bytes)?;
            if best.is_none_or(|best| ns < best.ns) {
                best = Some(Found {
                    bytes,
                    chunk_bytes,
                    algorithm,
                    ns,
                });
            }
        }
        curve.extend(best);
    }
    Ok(curve)
}

/// What linerate would choose.
fn cheapest(
    fabric: &Fabric,
    ranks: u32,
    bytes: u64,
    chunk_bytes: u64,
) -> Result<(&'static str, f64), String> {
    let all = fabric.candidates(Collective::AllReduce, ranks, bytes, chunk_bytes);
    Ok(all.map_err(|error| error.to_string())?[0])
}

fn line_ns(bytes: u64, ranks: u32, gbit: f64) -> f64 {
    let n = f64::from(ranks);
    2.0 * (n - 1.0) / n * bytes as f64 * 8.0 / gbit
}

fn share_of(found: &Found, ranks: u32, gbit: f64) -> f64 {
    line_ns(found.bytes, ranks, gbit) / found.ns
}

/// What takes the time that the line does not need: what would be shorter without latency, without
/// the time of each message, and with the fewest bytes.
fn limit(
    fabric: &Fabric,
    ranks: u32,
    gbit: f64,
    at: &Found,
) -> Result<(&'static str, f64), String> {
    let time = |fabric: &Fabric| {
        let call = (Collective::AllReduce, ranks, at.bytes, at.chunk_bytes);
        let all = fabric.candidates(call.0, call.1, call.2, call.3);
        let all = all.map_err(|error| error.to_string())?;
        let own = all.iter().find(|(name, _)| *name == at.algorithm);
        Ok::<f64, String>(own.map_or(at.ns, |(_, ns)| *ns))
    };
    let without_latency = time(&Fabric {
        latency_ns: 0,
        ..fabric.clone()
    })?;
    let without_either = time(&Fabric {
        latency_ns: 0,
        nic_message_ns: 0,
        ..fabric.clone()
    })?;
    let parts = [
        ("latency", at.ns - without_latency),
        ("time per message", without_latency - without_either),
        (
            "bytes of the algorithm",
            without_either - line_ns(at.bytes, ranks, gbit),
        ),
    ];
    let largest = parts
        .into_iter()
        .reduce(|most, part| match part.1 > most.1 {
            true => part,
            false => most,
        });
    let (name, ns) = largest.expect("three parts");
    Ok((name, (ns / at.ns).max(0.0)))
}

/// Nanoseconds in virtual time, where a run has few messages.
fn simulated(
    args: &SaturateArgs,
    fabric: &Fabric,
    ranks: u32,
    at: &Found,
) -> Result<Option<u64>, String> {
    let n = u64::from(ranks);
    let chunks = (at.bytes / n).div_ceil(at.chunk_bytes).max(1);
    if args.no_sim || 2 * n * n * chunks > MESSAGES_MAX {
        return Ok(None);
    }
    let call = FabricCall {
        algorithm: Some(at.algorithm.into()),
        chunk_bytes: at.chunk_bytes,
        ..FabricCall::new(Collective::AllReduce, ranks, at.bytes)
    };
    let times = fabric.run(&call).map_err(|error| error.to_string())?;
    Ok(Some(times.ns))
}

fn text(document: &Document) -> String {
    let mut lines = vec![
        format!(
            "# linerate experiment saturate: the shortest allreduce that reaches a share of the line, {} us from rank to rank",
            document.latency_us
        ),
        "# predicted by the prices of messages; simulated: the schedule in virtual time (-: too many messages)".into(),
        format!(
            "{:>6} {:>7} {:>6} {:>12} {:>10} {:<19} {:>9} {:>9}  limited by",
            "ranks", "Gbit/s", "share", "bytes", "chunk", "algorithm", "predicted", "simulated"
        ),
    ];
    lines.extend(document.results.iter().map(|row| {
        let bytes = row.bytes.map_or("none".into(), |bytes| bytes.to_string());
        let simulated = row
            .simulated
            .map_or("-".into(), |share| format!("{share:.3}"));
        format!(
            "{:>6} {:>7} {:>6} {bytes:>12} {:>10} {:<19} {:>9.3} {simulated:>9}  {} ({:.0} %)",
            row.ranks,
            row.gbit,
            row.share,
            row.chunk_bytes,
            row.algorithm,
            row.predicted,
            row.limited_by,
            100.0 * row.limit_share
        )
    }));
    lines.join("\n") + "\n"
}
