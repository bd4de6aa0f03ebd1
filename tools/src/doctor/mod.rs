//! `linerate doctor`: what keeps ranks from running, or from being fast, and the command that mends
//! each.
//!
//! What is read is judged by pure functions (`host.rs`, `network.rs`). Nothing is changed. The
//! paths to the hosts of `--peers` are tried. A peer that runs `linerate doctor --serve` also tells
//! its clock and a free port to reach. Any other one only shows whether packets come back.
//!
//! Read first: `finding.rs`, then `host.rs`.

mod fabric;
mod finding;
mod host;
mod network;
mod peers;
mod rdma;
mod serve;

use clap::Args;
use finding::{Finding, Level};
use linerate_job::ending::{self, FAILED, USAGE};
use linerate_job::{output, settings};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Where `--serve` listens.
const PORT_DEFAULT: u16 = 18516;

/// Arguments of `linerate doctor`.
#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// Local ranks that are to run
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=i64::from(linerate::unstable::limits::RANKS_MAX)))]
    pub ranks: u32,

    /// Hosts to reach, each with a port unless it is that of --port; IPv6 addresses with a port in
    /// brackets
    #[arg(long, value_name = "HOST[:PORT],...", value_delimiter = ',')]
    pub peers: Vec<String>,

    /// Answer the doctors of other hosts until interrupted: tell version and time, to anybody
    #[arg(long, conflicts_with = "peers")]
    pub serve: bool,

    /// Where --serve listens, and peers without a port are asked
    #[arg(short = 'p', long = "port", value_name = "PORT", default_value_t = PORT_DEFAULT)]
    pub port: u16,

    /// How long a peer may take to answer
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = parse_timeout)]
    pub timeout: Duration,

    /// Write the findings as one JSON document; with `-` to stdout, and what is for people to
    /// stderr
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
}

#[derive(Serialize)]
struct Document<'a> {
    version: &'static str,
    faults: usize,
    findings: &'a [Finding],
}

/// Looks at everything; fails (1) if there is a fault.
pub fn run(args: &DoctorArgs) -> ExitCode {
    if args.serve {
        return ending::end(serve::run(args.port));
    }
    if let Some(target) = &args.json
        && let Err(text) = output::check_target("--json", target)
    {
        return ending::fail(USAGE, &text);
    }
    let mut findings = vec![settings()];
    findings.extend(host::examine(args.ranks));
    findings.extend(rdma::examine());
    findings.extend(fabric::examine());
    findings.extend(network::examine());
    findings.extend(peers::examine(&args.peers, args.port, args.timeout));
    // The worst come last, where the reader looks when the command has ended.
    findings.sort_by_key(|finding| finding.level);
    match tell(args, &findings) {
        Ok(()) if findings.iter().any(|f| f.level == Level::Fault) => ExitCode::from(FAILED),
        told => ending::end(told),
    }
}

/// Whether the `LINERATE_*` variables mean something.
fn settings() -> Finding {
    match settings::from_environment() {
        Ok(_) => Finding::good(
            "settings",
            "every LINERATE_* variable has a value that is allowed",
        ),
        Err(text) => {
            let name = text
                .split([' ', ':', '(', ')'])
                .find(|word| word.starts_with("LINERATE_"));
            let mend = name.map_or("env | grep LINERATE_".into(), |name| {
                format!("unset {name}")
            });
            Finding::fault("settings", text, mend)
        }
    }
}

fn tell(args: &DoctorArgs, findings: &[Finding]) -> Result<(), String> {
    let text = finding::describe(findings);
    match args.json.as_deref().is_some_and(output::is_stdout) {
        true => output::print_error(text.trim_end()),
        false => output::print_text(&text)?,
    }
    let Some(target) = &args.json else {
        return Ok(());
    };
    let document = Document {
        version: env!("CARGO_PKG_VERSION"),
        faults: findings.iter().filter(|f| f.level == Level::Fault).count(),
        findings,
    };
    output::write_json(target, &document)
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    linerate::unstable::config::parse_timeout("--timeout", text).map_err(|error| error.to_string())
}
