//! `linerate perf TEST [HOST]`: bandwidth and latency between two ranks, straight on a transport,
//! without the engine.
//!
//! As in perftest, the command without a host is the server and with one the client; `--local`
//! starts both here. The client's options count. A server that was given other options refuses the
//! client and names them. Letters and columns are perftest's (github.com/linux-rdma/perftest); how
//! times are taken is said in `traffic.rs` and `trips.rs`.
//!
//! What it does not measure: collectives, staging of memory that is not registered, more than two
//! ranks (`bench`, `mesh`).
//!
//! Read first: `options.rs` (what both sides agree on), then `traffic.rs`.

mod achievable;
mod arena;
pub mod args;
mod control;
mod device;
mod document;
mod line_rate;
mod link;
mod options;
mod plan;
mod proof;
mod run;
mod statistics;
mod table;
mod traffic;
mod trips;

pub use args::PerfArgs;

use crate::info;
use control::{Control, Line};
use device::transport_kind;
use document::Document;
use line_rate::LineRate;
use linerate::Config;
use linerate::unstable::transport::{Far, check_required, own_offer};
use linerate::unstable::verbs::sysfs::Tree;
use linerate_job::ending::{self, FAILED};
use linerate_job::{output, settings, spawn};
use options::Options;
use plan::Plan;
use run::Row;
use std::process::ExitCode;
use std::time::Duration;

/// How long a client that was started with its server waits for it to listen.
const LOCAL_PATIENCE: Duration = Duration::from_secs(20);

/// Why a side ends early.
enum Failure {
    /// The arguments make no sense.
    Usage(String),
    /// Something failed, or was not good enough.
    Failed(Vec<String>),
}

impl From<String> for Failure {
    fn from(text: String) -> Failure {
        Failure::Failed(vec![text])
    }
}

/// Which side this is.
enum Role {
    Server { port: u16, is_quiet: bool },
    Client { host: String, port: u16 },
}

/// Is one side, or starts both.
pub fn run(args: &PerfArgs) -> ExitCode {
    let outcome = check(args).and_then(|plan| match role(args)? {
        None => Ok(spawn::spawn_self(2, args.pair.bind)),
        Some(Role::Server { port, is_quiet }) => serve(args, &plan, port, is_quiet).map(|()| 0),
        Some(Role::Client { host, port }) => ask(args, &plan, &host, port).map(|()| 0),
    });
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(Failure::Usage(text)) => ending::refuse(&printable(&text)),
        Err(Failure::Failed(texts)) => {
            for text in texts {
                output::print_error(&format!("error: {}", printable(&text)));
            }
            ExitCode::from(FAILED)
        }
    }
}

/// Finds what is wrong before one side waits for the other.
fn check(args: &PerfArgs) -> Result<Plan, Failure> {
    let mut plan = Plan::new(args).map_err(Failure::Usage)?;
    Options::new(args, &plan.config).map_err(Failure::Usage)?;
    args.pair.job.check_json().map_err(Failure::Usage)?;
    if plan.config.job.needs_rdma {
        plan.config.transport = with_devices(&plan.config)?;
    }
    match settings::unavailable_reason(&plan.config.transport) {
        Some(reason) => Err(reason.into()),
        None => Ok(plan),
    }
}

/// The transport where RDMA devices are asked for.
fn with_devices(config: &Config) -> Result<String, String> {
    let options = linerate::transport::Options {
        tcp: config.tcp.clone(),
        verbs: config.verbs.clone(),
        ..Default::default()
    };
    check_required(&config.transport, (0, 2), &options, None).map_err(|e| e.to_string())?;
    Ok(match config.transport.as_str() {
        "auto" => {
            let offer = own_offer(0, 2, &options).map_err(|lack| lack.why)?;
            Far::from(offer).name().into()
        }
        name => name.into(),
    })
}

/// Which side this is; `None`: the process that starts both.
fn role(args: &PerfArgs) -> Result<Option<Role>, Failure> {
    if let Some(host) = args.host.clone() {
        let port = args.port;
        return Ok(Some(Role::Client { host, port }));
    }
    if !args.local {
        return Ok(Some(Role::Server {
            port: args.port,
            is_quiet: false,
        }));
    }
    let Some(ranks) = settings::launched_ranks().map_err(Failure::Usage)? else {
        return Ok(None);
    };
    let of_launcher = |name| std::env::var(name).ok();
    let port = of_launcher("MASTER_PORT").and_then(|text| text.parse().ok());
    let (2, Some(port), Some(rank)) = (ranks, port, of_launcher("RANK")) else {
        return Err(Failure::Usage(format!(
            "perf --local under a launcher: WORLD_SIZE is {ranks}, and has to be 2, with RANK and MASTER_PORT"
        )));
    };
    Ok(Some(match rank.as_str() {
        "0" => Role::Server {
            port,
            is_quiet: true,
        },
        _ => Role::Client {
            host: of_launcher("MASTER_ADDR").unwrap_or_else(|| "127.0.0.1".into()),
            port,
        },
    }))
}

/// The server: one client, then the end.
fn serve(args: &PerfArgs, plan: &Plan, port: u16, is_quiet: bool) -> Result<(), Failure> {
    let listener = control::listen(port, plan.is_open() && !is_quiet)?;
    let complain =
        |text: String| output::print_error(&format!("linerate perf: {}", printable(&text)));
    let mut report = Report::new(args, is_quiet);
    if !is_quiet {
        let reach = match plan.is_open() {
            true => "anywhere",
            false => "this host only (others with LINERATE_SECRET or --insecure)",
        };
        let place = listener.local_addr().map_err(|e| e.to_string())?;
        report.print(&format!(
            "# waiting for a client on port {}, from {reach}\n",
            place.port()
        ))?;
    }
    let times = (control::GREETING, plan.timeout);
    let (mut control, hello) = Control::accept(&listener, &plan.key(), times, complain)?;
    drop(listener);
    let Line::Hello {
        version,
        host,
        options,
    } = hello
    else {
        return Err("a client has not begun with a greeting".to_string().into());
    };
    let wish = options_of(args, plan, &version, options);
    let agreed = wish.and_then(|options| {
        let transport = transport_for(plan, &options, &host)?;
        Ok((options, transport))
    });
    let (options, transport) = match agreed {
        Ok(agreed) => agreed,
        Err(reason) => {
            control.write(&Line::Refused(reason.clone()))?;
            return Err(Failure::Usage(reason));
        }
    };
    control.write(&Line::Accepted {
        transport: transport.clone(),
    })?;
    work(plan, &options, &transport, (0, &mut control), report)
}

/// What a client wants, or why it is refused.
fn options_of(
    args: &PerfArgs,
    plan: &Plan,
    version: &str,
    options: serde_json::Value,
) -> Result<Options, String> {
    let own = env!("CARGO_PKG_VERSION");
    if version != own {
        return Err(format!(
            "version: the server is linerate {own}, the client {version}; both have to be the same"
        ));
    }
    let options: Options = serde_json::from_value(options)
        .map_err(|cause| format!("the client's options: {cause}"))?;
    options.check()?;
    let mismatch = options.mismatch(args, &plan.config);
    mismatch.map_or(Ok(options), Err)
}

/// The transport that joins both hosts, if the client's wish and the server's can both be met.
fn transport_for(plan: &Plan, options: &Options, host: &str) -> Result<String, String> {
    let own_host = info::host_id(plan.config.host_id.clone());
    let wanted = match options.transport.as_str() {
        "auto" => transport_kind(&plan.config.transport),
        name => name,
    };
    let name = match wanted {
        "auto" if own_host == host && !options.tls => "shm",
        "auto" => "tcp",
        name => name,
    };
    if name == "shm" && own_host != host {
        return Err(
            "--transport: shm joins the ranks of one host, and the client is on another one (LINERATE_HOSTID says otherwise, if that is wrong)".into(),
        );
    }
    settings::check_transport("--transport", name)?;
    settings::unavailable_reason(name).map_or(Ok(name.to_string()), Err)
}

/// The client.
fn ask(args: &PerfArgs, plan: &Plan, host: &str, port: u16) -> Result<(), Failure> {
    let options = Options::new(args, &plan.config).map_err(Failure::Usage)?;
    let patience = match args.local {
        true => LOCAL_PATIENCE,
        false => Duration::ZERO,
    };
    let mut control = Control::connect((host, port), &plan.key(), patience, plan.timeout)?;
    let answer = control.exchange(&Line::Hello {
        version: env!("CARGO_PKG_VERSION").into(),
        host: info::host_id(plan.config.host_id.clone()),
        options: serde_json::to_value(&options).map_err(|cause| cause.to_string())?,
    })?;
    match answer {
        Line::Accepted { transport } => {
            settings::check_transport("the server's transport", &transport)?;
            let report = Report::new(args, false);
            work(plan, &options, &transport, (1, &mut control), report)
        }
        Line::Refused(reason) => Err(Failure::Usage(format!("the server refuses: {reason}"))),
        line => Err(line.unexpected().into()),
    }
}

/// Escapes the control characters of a text, of which the other side may have written parts.
fn printable(text: &str) -> String {
    let shown = |c: char| match c.is_control() && c != '\n' {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(shown).collect()
}

/// Both sides: connect, measure, report.
fn work(
    plan: &Plan,
    options: &Options,
    transport: &str,
    (rank, control): (u32, &mut Control),
    mut report: Report,
) -> Result<(), Failure> {
    let mut side = run::join(plan, options, transport, (rank, control))?;
    let rate = LineRate::of(side.link.name(), &side.link.ports(), &Tree::default());
    let sides = table::Sides {
        ports: side.link.ports(),
        rate: &rate,
        transport: side.link.name(),
        text: ["server", "client"][rank as usize].into(),
    };
    let is_gbits = report.args.report_gbits;
    report.print(&table::header(options, &sides, is_gbits))?;
    let rotation_bytes = plan.rotation_bytes(options);
    let mut printed = Ok(());
    let rows = run::measure(&mut side, control, (rotation_bytes, &rate), |row| {
        let line = report.print(&table::row(row, is_gbits));
        printed = std::mem::replace(&mut printed, Ok(())).and(line);
    })?;
    printed?;
    report.print(&table::footer())?;
    report.print(&table::profile(options, &rows))?;
    let document = Document::new(options, &side.link, &rows);
    report.finish(&document, &rows)
}

/// Where this side's results go.
struct Report<'a> {
    args: &'a PerfArgs,
    is_quiet: bool,
}

impl Report<'_> {
    fn new(args: &PerfArgs, is_quiet: bool) -> Report<'_> {
        Report { args, is_quiet }
    }

    /// Prints to stdout, or to stderr if the document has stdout for itself.
    fn print(&mut self, text: &str) -> Result<(), String> {
        match self.is_quiet {
            true => Ok(()),
            false => self.args.pair.job.print(text),
        }
    }

    /// Writes the document; the error is all that was not good enough. Of two sides that were
    /// started together, only one reports.
    fn finish(&self, document: &Document, rows: &[Row]) -> Result<(), Failure> {
        if self.is_quiet {
            return Ok(());
        }
        let mut failures = shortcomings(self.args, rows);
        failures.extend(self.args.pair.job.write_json(document).err());
        match failures.is_empty() {
            true => Ok(()),
            false => Err(Failure::Failed(failures)),
        }
    }
}

/// What was wrong or not fast enough.
fn shortcomings(args: &PerfArgs, rows: &[Row]) -> Vec<String> {
    let mut texts = Vec::new();
    for row in rows {
        if let Some(wrong) = row.wrong.filter(|&wrong| wrong > 0) {
            let bytes = row.bytes;
            texts.push(format!(
                "{wrong} bytes of the checked messages of {bytes} bytes are wrong"
            ));
        }
        let p99 = row.latency.map(|latency| latency.summary.p99);
        if let (Some(p99), Some(most)) = (p99, args.pair.max_p99)
            && p99 > most
        {
            texts.push(format!(
                "the 99th percentile at {} B is {p99:.2} us, above --max-p99 {most}",
                row.bytes
            ));
        }
    }
    let best = rows
        .iter()
        .map(Row::gigabytes_per_second)
        .fold(0.0, f64::max);
    if let Some(least) = args.pair.min_bw.filter(|&least| best < least) {
        texts.push(format!(
            "the best average bandwidth is {best:.3} GB/s, below --min-bw {least}"
        ));
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::args::tests::parse;
    use super::statistics::Latency;
    use super::*;

    fn row(rate: f64, wrong: u64, latency: Option<Latency>) -> Row {
        Row {
            bytes: 1000,
            messages: 10,
            peak: 0.0,
            rate,
            latency,
            wrong: Some(wrong),
            achievable: None,
            profile: Vec::new(),
        }
    }

    #[test]
    fn a_client_of_another_version_is_told_so_whatever_its_options_are() {
        let args = parse("write_bw").unwrap();
        let plan = Plan::new(&args).unwrap();
        let novel = serde_json::json!({"novel": 1});
        let text = options_of(&args, &plan, "999.0", novel.clone()).unwrap_err();
        assert!(text.contains("the client 999.0"), "{text}");
        let text = options_of(&args, &plan, env!("CARGO_PKG_VERSION"), novel).unwrap_err();
        assert!(text.contains("novel"), "{text}");
    }

    #[test]
    fn what_the_other_side_says_commands_no_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\nc\r"), "a\\u{1b}[2Jb\nc\\r");
    }

    #[test]
    fn each_failure_names_the_number_and_the_bound() {
        let args = parse("write_bw --min-bw 5").unwrap();
        assert!(shortcomings(&args, &[row(1e6, 0, None), row(5e6, 0, None)]).is_empty());
        let texts = shortcomings(&args, &[row(4e6, 2, None)]);
        assert!(
            texts[0].contains("2 bytes") && texts[0].contains("1000 bytes"),
            "{texts:?}"
        );
        assert!(
            texts[1].contains("4.000") && texts[1].contains("--min-bw 5"),
            "{texts:?}"
        );
        let args = parse("write_lat --max-p99 2").unwrap();
        let latency = |us: f64| Some(Latency::of(&mut [us]));
        assert!(shortcomings(&args, &[row(0.0, 0, latency(2.0))]).is_empty());
        let texts = shortcomings(&args, &[row(0.0, 0, latency(2.5))]);
        assert!(
            texts[0].contains("2.50") && texts[0].contains("--max-p99 2"),
            "{texts:?}"
        );
    }
}
