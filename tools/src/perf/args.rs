//! The command line of `perf`. Letters are perftest's; those of devices are in `device.rs`, what
//! both sides agree on in `options.rs`.

use super::device::DeviceArgs;
use clap::{Args, ValueEnum};
use linerate_job::flags::PairArgs;
use linerate_job::settings::parse_size;
use serde::{Deserialize, Serialize};

/// Where perftest's servers listen, too.
const PORT_DEFAULT: u16 = 18515;

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
    /// Rate of atomic operations on a word of the server's memory
    AtomicBw,
    /// The time of an atomic operation
    AtomicLat,
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
    /// `post_atomic`.
    Atomic,
}

/// What an atomic test does to the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AtomicType {
    /// Writes a word where the expected one is.
    #[value(name = "CMP_AND_SWAP", alias = "cmp_and_swap")]
    CmpAndSwap,
    /// Adds.
    #[value(name = "FETCH_AND_ADD", alias = "fetch_and_add")]
    FetchAndAdd,
}

impl AtomicType {
    /// As perftest spells it.
    pub fn name(self) -> &'static str {
        match self {
            AtomicType::CmpAndSwap => "CMP_AND_SWAP",
            AtomicType::FetchAndAdd => "FETCH_AND_ADD",
        }
    }
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
            Test::AtomicBw => "atomic_bw",
            Test::AtomicLat => "atomic_lat",
        }
    }

    /// What moves the data.
    pub fn verb(self) -> Verb {
        match self {
            Test::WriteBw | Test::WriteLat => Verb::Write,
            Test::ReadBw | Test::ReadLat => Verb::Read,
            Test::SendBw | Test::SendLat => Verb::Send,
            Test::AtomicBw | Test::AtomicLat => Verb::Atomic,
        }
    }

    /// Whether times of single messages are measured.
    pub fn is_latency(self) -> bool {
        matches!(
            self,
            Test::WriteLat | Test::ReadLat | Test::SendLat | Test::AtomicLat
        )
    }

    /// Whether the peer's processor has no part in it: a time is that of the whole operation.
    pub fn is_one_sided(self) -> bool {
        matches!(self.verb(), Verb::Read | Verb::Atomic)
    }
}

/// Arguments of `linerate perf`. Short ones mean what they mean in perftest.
#[derive(Args, Clone, Debug)]
#[command(mut_arg("transport", |arg| arg.help(
    "auto, shm, tcp, verbs[:device[:port]] or ofi[:provider[,domain...]]; auto is verbs where a flag of RDMA devices is given or LINERATE_IBVERBS_LIB is set, else shm where both sides are on one host and --tls is not said. Default LINERATE_TRANSPORT, else auto"
)))]
#[command(mut_arg("bind", |arg| arg.requires("local").conflicts_with("host").help(
    "With --local only: cores gives each side its own share of the cores, none leaves them to the kernel"
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

    /// Messages per stream and size; default 5000 for bandwidth, 1000 for latency, and fewer of
    /// large ones (but 100) so that a stream moves 4 GiB at most
    #[arg(short = 'n', long = "iters", value_name = "COUNT")]
    pub iterations: Option<u64>,

    /// As many messages as fit in this many seconds, instead of a number
    #[arg(
        short = 'D',
        long = "duration",
        value_name = "SECONDS",
        conflicts_with = "iterations"
    )]
    pub duration: Option<u64>,

    #[command(flatten)]
    pub stream: StreamArgs,

    /// What atomic tests do; default FETCH_AND_ADD
    #[arg(short = 'A', long = "atomic_type", value_enum, value_name = "TYPE")]
    pub atomic_type: Option<AtomicType>,

    /// No peak: the search for it is left out
    #[arg(short = 'N', long = "noPeak")]
    pub no_peak: bool,

    /// Taken for those who are used to it: no warning about the processor's frequency is ever shown
    #[arg(short = 'F', long = "CPU-freq")]
    pub cpu_freq: bool,

    /// Where the server listens for the client's first connection; 0 there is any free port, which
    /// is told. --local finds one
    #[arg(short = 'p', long = "port", value_name = "PORT", default_value_t = PORT_DEFAULT, conflicts_with = "local")]
    pub port: u16,

    /// The table in Gbit/s (1e9 bits) instead of MiB/s
    #[arg(long = "report_gbits", visible_alias = "report-gbits")]
    pub report_gbits: bool,

    /// Print after the rows where the time of a message goes, on each side, and run each size once
    /// more for that
    #[arg(long)]
    pub profile: bool,

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
    pub device: DeviceArgs,

    #[command(flatten)]
    pub pair: PairArgs,
}

/// How many messages are under way, and how they are posted. For bandwidth only.
#[derive(Args, Clone, Debug)]
pub struct StreamArgs {
    /// Messages of a stream under way at once; default 128. For bandwidth only
    #[arg(short = 't', long = "tx-depth", value_name = "COUNT")]
    pub depth: Option<u32>,

    /// Streams, each with its own order and depth; over tcp also connections, over verbs queue
    /// pairs. Default 1; for bandwidth only
    #[arg(short = 'q', long = "qp", value_name = "COUNT")]
    pub streams: Option<u32>,

    /// Messages that are posted at once, over verbs linked and with one doorbell; a stream waits
    /// until this many have room. Default: as many as have room. For bandwidth only
    #[arg(short = 'l', long = "post_list", value_name = "COUNT")]
    pub post_list: Option<u32>,

    /// Both sides send at once; bandwidth is that of both directions together
    #[arg(short = 'b', long = "bidirectional")]
    pub bidirectional: bool,
}

impl StreamArgs {
    /// Each flag by name, and whether it was given.
    pub fn given(&self) -> [(&'static str, bool); 4] {
        [
            ("--bidirectional", self.bidirectional),
            ("--tx-depth", self.depth.is_some()),
            ("--qp", self.streams.is_some()),
            ("--post_list", self.post_list.is_some()),
        ]
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use clap::Parser;
    use linerate_job::binding::Bind;

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

    #[test]
    fn the_letters_are_those_of_perftest() {
        let args = parse("write_bw host -s 1K -n 10 -t 16 -q 2 -l 4 -b -p 4000 -F -N").unwrap();
        assert_eq!(
            (args.test, args.host.as_deref()),
            (Test::WriteBw, Some("host"))
        );
        assert_eq!((args.size, args.iterations), (Some(1024), Some(10)));
        assert_eq!(
            (
                args.stream.depth,
                args.stream.streams,
                args.stream.post_list
            ),
            (Some(16), Some(2), Some(4))
        );
        assert!(args.stream.bidirectional && args.port == 4000 && args.no_peak);
        assert_eq!(parse("read_lat -D 3").unwrap().duration, Some(3));
        assert_eq!(parse("read_lat").unwrap().port, 18515);
        assert_eq!(parse("read_lat --local").unwrap().pair.bind, Bind::Cores);
        let args = parse("atomic_lat -A CMP_AND_SWAP").unwrap();
        assert_eq!(args.atomic_type, Some(AtomicType::CmpAndSwap));
    }
}
