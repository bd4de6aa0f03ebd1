//! The command line of `perf`, and what of it both sides have to agree on ([`Options`]). Letters are perftest's.

use crate::flags::PairArgs;
use crate::settings::parse_size;
use clap::{Args, ValueEnum};
use linerate::Config;
use serde::{Deserialize, Serialize};

/// Where perftest's servers listen, too.
const PORT_DEFAULT: u16 = 18515;
/// perftest's defaults.
const BANDWIDTH_BYTES: u64 = 64 << 10;
const LATENCY_BYTES: u64 = 2;
const DEPTH_DEFAULT: u32 = 128;
/// Largest message: as in perftest.
const SIZE_MAX: u64 = 1 << 30;
/// More are more state than any queue of a provider holds.
const DEPTH_MAX: u32 = 4096;
const STREAMS_MAX: u32 = 64;
/// Their samples take 512 MiB.
pub const ITERATIONS_MAX: u64 = 1 << 26;
/// A day.
const DURATION_MAX: u64 = 86_400;
/// `-a`: 2 to 2^23, as in perftest.
const SWEEP: std::ops::RangeInclusive<u32> = 1..=23;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Test {
    /// Bandwidth of puts into the server's memory
    WriteBw,
    /// Half the time of a put each way
    WriteLat,
    /// Bandwidth of gets from the server's memory
    ReadBw,
    /// The time of a get
    ReadLat,
    /// Bandwidth of messages
    SendBw,
    /// Half the time of a message each way
    SendLat,
}

/// Which post moves the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `post_put`.
    Write,
    /// `post_get`.
    Read,
    /// `post_send` and `post_recv`.
    Send,
}

impl Test {
    /// As perftest spells it.
    pub fn name(self) -> &'static str {
        match self {
            Test::WriteBw => "write_bw",
            Test::WriteLat => "write_lat",
            Test::ReadBw => "read_bw",
            Test::ReadLat => "read_lat",
            Test::SendBw => "send_bw",
            Test::SendLat => "send_lat",
        }
    }

    /// What moves the data.
    pub fn verb(self) -> Verb {
        match self {
            Test::WriteBw | Test::WriteLat => Verb::Write,
            Test::ReadBw | Test::ReadLat => Verb::Read,
            Test::SendBw | Test::SendLat => Verb::Send,
        }
    }

    /// Whether times of single messages are measured.
    pub fn is_latency(self) -> bool {
        matches!(self, Test::WriteLat | Test::ReadLat | Test::SendLat)
    }
}

/// Arguments of `linerate perf`. Short ones mean what they mean in perftest.
#[derive(Args, Clone, Debug)]
#[command(mut_arg("transport", |arg| arg.help(
    "auto, shm or tcp; auto is shm where both sides are on one host and --tls is not said. Default LINERATE_TRANSPORT, else auto"
)))]
#[command(mut_arg("bind", |arg| arg.help(
    "With --local: cores gives each side its own share of the cores, none leaves them to the kernel"
)))]
#[command(mut_arg("min_bw", |arg| arg.help("Fail if the best average bandwidth of all sizes is below this")))]
pub struct PerfArgs {
    /// What is measured
    #[arg(value_enum, value_name = "TEST")]
    pub test: Test,

    /// Where the server is; without it this is the server, which waits for one client
    #[arg(value_name = "HOST", conflicts_with = "local")]
    pub host: Option<String>,

    /// Start both sides here
    #[arg(long)]
    pub local: bool,

    /// Bytes of a message, with K, M or G (binary); default 64K for bandwidth, 2 for latency
    #[arg(short = 's', long = "size", value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,

    /// All sizes from 2 to 2^23, each twice the one before
    #[arg(short = 'a', long = "all", conflicts_with = "size")]
    pub all: bool,

    /// Messages per stream and size; default 5000 for bandwidth, 1000 for latency, and fewer of large ones (but 100) so that
    /// a stream moves 4 GiB at most
    #[arg(short = 'n', long = "iters", value_name = "COUNT")]
    pub iterations: Option<u64>,

    /// As many messages as fit in so many seconds, instead of a number
    #[arg(
        short = 'D',
        long = "duration",
        value_name = "SECONDS",
        conflicts_with = "iterations"
    )]
    pub duration: Option<u64>,

    /// Messages of a stream under way at once; default 128. For bandwidth only
    #[arg(short = 't', long = "tx-depth", value_name = "COUNT")]
    pub depth: Option<u32>,

    /// Streams, each with its own order and depth; over tcp also connections. Default 1; for bandwidth only
    #[arg(short = 'q', long = "qp", value_name = "COUNT")]
    pub streams: Option<u32>,

    /// Both sides send at once; bandwidth is that of both directions together
    #[arg(short = 'b', long = "bidirectional")]
    pub bidirectional: bool,

    /// Where the server listens for the client's first connection; 0 there is any free port, which is told
    #[arg(short = 'p', long = "port", value_name = "PORT", default_value_t = PORT_DEFAULT)]
    pub port: u16,

    /// The table in Gbit/s (1e9 bits) instead of MiB/s
    #[arg(long = "report_gbits", visible_alias = "report-gbits")]
    pub report_gbits: bool,

    /// 1: check every byte of some messages of each size before it is timed; 0: do not
    #[arg(long, value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    pub check: u8,

    /// Keep one buffer instead of rotating over more than the caches hold
    #[arg(long)]
    pub no_rotate: bool,

    /// Seed of the checked data; default 1
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    #[command(flatten)]
    pub pair: PairArgs,
}

/// What both sides do. The client's, checked by the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// What is measured.
    pub test: Test,
    /// `None`: all of `-a`.
    pub size: Option<u64>,
    /// Messages per stream; `None`: as many as are usual for the size.
    pub iterations: Option<u64>,
    /// Seconds, instead of a number of messages.
    pub duration: Option<u64>,
    /// Messages of a stream under way.
    pub depth: u32,
    /// Streams.
    pub streams: u32,
    /// Both sides send.
    pub bidirectional: bool,
    /// Bytes are compared.
    pub check: bool,
    /// Over several buffers.
    pub rotate: bool,
    /// Of the compared bytes.
    pub seed: u64,
    /// By name.
    pub transport: String,
    /// Connections are encrypted.
    pub tls: bool,
    /// Frames are checked.
    pub crc: bool,
}

impl Options {
    /// What the arguments say, and defaults where they say nothing.
    pub fn new(args: &PerfArgs, config: &Config) -> Result<Options, String> {
        let is_latency = args.test.is_latency();
        if let (true, Some((name, _))) = (is_latency, bandwidth_only(args).first()) {
            return Err(format!(
                "{name} is for bandwidth: {} has one message under way",
                args.test.name()
            ));
        }
        if !is_latency && args.pair.max_p99.is_some() {
            return Err("--max-p99 is for latency: write_lat, read_lat and send_lat".into());
        }
        let usual = if is_latency {
            LATENCY_BYTES
        } else {
            BANDWIDTH_BYTES
        };
        let options = Options {
            test: args.test,
            size: (!args.all).then(|| args.size.unwrap_or(usual)),
            iterations: args.iterations,
            duration: args.duration,
            depth: args
                .depth
                .unwrap_or(if is_latency { 1 } else { DEPTH_DEFAULT }),
            streams: args.streams.unwrap_or(1),
            bidirectional: args.bidirectional,
            check: args.check == 1,
            rotate: !args.no_rotate,
            seed: args.seed.unwrap_or(1),
            transport: config.transport.clone(),
            tls: config.tcp.has_tls,
            crc: config.tcp.has_crc,
        };
        options.check()?;
        Ok(options)
    }

    /// Whether every number is one that can be had: the server gets them from whoever connects.
    pub fn check(&self) -> Result<(), String> {
        let bounds = [
            ("--size", self.size.unwrap_or(1), SIZE_MAX),
            ("--iters", self.iterations.unwrap_or(1), ITERATIONS_MAX),
            ("--duration", self.duration.unwrap_or(1), DURATION_MAX),
            ("--tx-depth", u64::from(self.depth), u64::from(DEPTH_MAX)),
            ("--qp", u64::from(self.streams), u64::from(STREAMS_MAX)),
        ];
        match bounds.iter().find(|b| !(1..=b.2).contains(&b.1)) {
            Some((name, value, most)) => Err(format!("{name} is {value}: from 1 to {most}")),
            None => Ok(()),
        }
    }

    /// The sizes, smallest first.
    pub fn sizes(&self) -> Vec<u64> {
        match self.size {
            Some(size) => vec![size],
            None => SWEEP.map(|power| 1 << power).collect(),
        }
    }

    /// By the names of the flags.
    fn named(&self) -> [(&'static str, String); 13] {
        let or = |value: Option<u64>, none: &str| value.map_or(none.into(), |v| v.to_string());
        [
            ("the test", self.test.name().into()),
            ("--size", or(self.size, "all of --all")),
            ("--iters", or(self.iterations, "as many as usual")),
            ("--duration", or(self.duration, "none")),
            ("--tx-depth", self.depth.to_string()),
            ("--qp", self.streams.to_string()),
            ("--bidirectional", self.bidirectional.to_string()),
            ("--check", u8::from(self.check).to_string()),
            ("--no-rotate", (!self.rotate).to_string()),
            ("--seed", self.seed.to_string()),
            ("--transport", self.transport.clone()),
            ("--integrity", integrity(self.crc).into()),
            (TLS, on(self.tls).into()),
        ]
    }

    /// What of the server's arguments contradicts the client's options, by name. What the server was not told it takes
    /// from the client, but for TLS, which is on both sides or on none. `config`: of the server, flags and environment.
    pub fn mismatch(&self, server: &PerfArgs, config: &Config) -> Option<String> {
        let flag = |is_given: bool| is_given.then(|| "true".to_string());
        let number = |value: Option<u64>| value.map(|v| v.to_string());
        let size = match server.all {
            true => Some("all of --all".into()),
            false => number(server.size),
        };
        let given = [
            Some(server.test.name().to_string()),
            size,
            number(server.iterations),
            number(server.duration),
            number(server.depth.map(u64::from)),
            number(server.streams.map(u64::from)),
            flag(server.bidirectional),
            // Its default is to check: only the opposite is a word of the user's.
            (server.check == 0).then(|| "0".into()),
            flag(server.no_rotate),
            number(server.seed),
            Some(config.transport.clone()).filter(|name| name != "auto"),
            (server.pair.connections.integrity.is_some() || config.tcp.has_crc)
                .then(|| integrity(config.tcp.has_crc).into()),
            Some(on(config.tcp.has_tls).into()),
        ];
        let pairs = given.into_iter().zip(self.named());
        let mut differing = pairs.filter_map(|(given, (name, clients))| {
            let given = given.filter(|g| *g != clients)?;
            let is_open = name == "--transport" && clients == "auto";
            let advice = match name {
                TLS => "give it to both, or to none",
                _ => "give both the same, or leave it away on the server",
            };
            (!is_open).then(|| {
                format!(
                    "{name}: the server was started with {given}, the client with {clients}; {advice}"
                )
            })
        });
        differing.next()
    }
}

/// Flag and variable.
const TLS: &str = "--tls (LINERATE_TLS)";

fn on(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

fn integrity(has_crc: bool) -> &'static str {
    if has_crc { "crc" } else { "off" }
}

/// Given arguments that have no meaning for latency.
fn bandwidth_only(args: &PerfArgs) -> Vec<(&'static str, bool)> {
    let all = [
        ("--bidirectional", args.bidirectional),
        ("--tx-depth", args.depth.is_some()),
        ("--qp", args.streams.is_some()),
        ("--min-bw", args.pair.min_bw.is_some()),
        ("--report_gbits", args.report_gbits),
    ];
    all.into_iter().filter(|(_, is_given)| *is_given).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        args: PerfArgs,
    }

    /// The arguments after `linerate perf`.
    pub fn parse(line: &str) -> Result<PerfArgs, String> {
        Alone::try_parse_from(std::iter::once("perf").chain(line.split_whitespace()))
            .map(|alone| alone.args)
            .map_err(|e| e.to_string())
    }

    pub fn options(line: &str) -> Result<Options, String> {
        let args = parse(line)?;
        Options::new(&args, &config_of(&args))
    }

    /// What the flags make of no environment at all.
    fn config_of(args: &PerfArgs) -> Config {
        let mut config = Config::default();
        args.pair.connections.apply(&mut config);
        config.transport = args.pair.transport.clone().unwrap_or(config.transport);
        config
    }

    #[test]
    fn the_letters_are_those_of_perftest() {
        let args = parse("write_bw host -s 1K -n 10 -t 16 -q 2 -b -p 4000").unwrap();
        assert_eq!(
            (args.test, args.host.as_deref()),
            (Test::WriteBw, Some("host"))
        );
        assert_eq!((args.size, args.iterations), (Some(1024), Some(10)));
        assert_eq!((args.depth, args.streams), (Some(16), Some(2)));
        assert!(args.bidirectional && args.port == 4000);
        assert_eq!(parse("read_lat -D 3").unwrap().duration, Some(3));
        assert_eq!(parse("read_lat").unwrap().port, 18515);
    }

    #[test]
    fn defaults_are_those_of_perftest() {
        assert_eq!(options("send_bw").unwrap().size, Some(65536));
        assert_eq!(options("send_bw").unwrap().depth, 128);
        assert_eq!(options("send_lat").unwrap().size, Some(2));
        let sizes = options("send_bw -a").unwrap().sizes();
        assert_eq!((sizes[0], sizes[22], sizes.len()), (2, 8 << 20, 23));
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for (line, expected) in [
            ("send_lat -b", "--bidirectional is for bandwidth"),
            ("send_lat --min-bw 1", "--min-bw is for bandwidth"),
            ("send_bw --max-p99 1", "--max-p99 is for latency"),
            ("send_bw -s 0", "--size is 0: from 1"),
            ("send_bw -s 2G", "--size is 2147483648"),
            ("send_bw -q 65", "--qp is 65: from 1 to 64"),
            ("send_bw -t 0", "--tx-depth is 0"),
            ("send_bw -a -s 8", "cannot be used with"),
            ("send_bw -n 5 -D 5", "cannot be used with"),
            ("send_bw host --local", "cannot be used with"),
            ("atomic_lat", "write_lat"),
            ("send_bw --min-bw 0", "above 0"),
        ] {
            let text = options(line).unwrap_err();
            assert!(text.contains(expected), "{line}: {text}");
        }
    }

    #[test]
    fn a_server_takes_what_it_was_not_told_and_refuses_the_rest_by_name() {
        let client = options("write_bw -s 1K -n 100 -q 2 -b").unwrap();
        let refusal = |client: &Options, line: &str| {
            let args = parse(line).unwrap();
            client.mismatch(&args, &config_of(&args))
        };
        let mismatch = |line: &str| refusal(&client, line);
        assert_eq!(mismatch("write_bw"), None);
        assert_eq!(mismatch("write_bw -s 1024 -n 100 -q 2 -b"), None);
        for (line, name) in [
            ("read_bw", "the test"),
            ("write_bw -s 1", "--size"),
            ("write_bw -a", "--size"),
            ("write_bw -n 1", "--iters"),
            ("write_bw -D 1", "--duration"),
            ("write_bw -t 1", "--tx-depth"),
            ("write_bw -q 1", "--qp"),
            ("write_bw --check 0", "--check"),
            ("write_bw --no-rotate", "--no-rotate"),
            ("write_bw --seed 2", "--seed"),
            ("write_bw --integrity crc", "--integrity"),
            ("write_bw --tls", "--tls"),
        ] {
            let text = mismatch(line).unwrap();
            assert!(text.starts_with(name), "{line}: {text}");
        }
        let text = options("write_bw").unwrap();
        let text = refusal(&text, "write_bw -b").unwrap();
        assert!(
            text.contains("--bidirectional: the server was started with true"),
            "{text}"
        );
        let shm = Options {
            transport: "shm".into(),
            ..client
        };
        let text = refusal(&shm, "write_bw --transport tcp").unwrap();
        assert!(text.contains("with tcp, the client with shm"), "{text}");
        // Checks are taken from the client, and encryption is not.
        let strict = options("write_bw --integrity crc --tls").unwrap();
        assert_eq!(refusal(&strict, "write_bw --tls"), None);
        let text = refusal(&strict, "write_bw --tls --integrity off").unwrap();
        assert!(text.contains("with off, the client with crc"), "{text}");
        let text = refusal(&strict, "write_bw").unwrap();
        let named = ["--tls (LINERATE_TLS)", "with off", "client with on", "none"];
        assert!(named.iter().all(|name| text.contains(name)), "{text}");
    }

    #[test]
    fn options_survive_the_wire_and_others_are_refused() {
        let options = options("read_bw -a -D 2").unwrap();
        let text = serde_json::to_string(&options).unwrap();
        assert_eq!(serde_json::from_str::<Options>(&text).unwrap(), options);
        let more = text.replacen('{', "{\"novel\":1,", 1);
        assert!(serde_json::from_str::<Options>(&more).is_err());
    }
}
