//! [`Options`]: what both sides of `perf` have to agree on. The client's count. A server that was
//! given others refuses them by name.

use super::args::{AtomicType, PerfArgs, Test, Verb};
use super::device::transport_kind;
use linerate::Config;
use serde::{Deserialize, Serialize};

/// perftest's defaults.
const BANDWIDTH_BYTES: u64 = 64 << 10;
const LATENCY_BYTES: u64 = 2;
const DEPTH_DEFAULT: u32 = 128;
/// Bytes of an atomic operation.
pub const ATOMIC_BYTES: u64 = 8;
/// Largest message: as in perftest.
const SIZE_MAX: u64 = 1 << 30;
/// No provider has queues for more.
const DEPTH_MAX: u32 = 4096;
const STREAMS_MAX: u32 = 64;
/// The samples of this many messages take 512 MiB.
pub const ITERATIONS_MAX: u64 = 1 << 26;
/// A day.
const DURATION_MAX: u64 = 86_400;
/// `-a`: 2 to 2^23, as in perftest.
const SWEEP: std::ops::RangeInclusive<u32> = 1..=23;
/// Payload of a packet: powers of two between these.
const MTU_BYTES: std::ops::RangeInclusive<u32> = 256..=4096;
/// What queue pairs can hold at most, on any device known.
const INLINE_BYTES_MAX: u32 = 1024;
const MODERATION_MAX: u32 = 1024;
/// To one peer over `verbs`, all devices together.
const QUEUE_PAIRS_MAX: u32 = 8;
/// With fewer posts under way, each may be a word that gets no completion until a later one is
/// posted.
const PLAIN_DEPTH_MIN: u32 = 64;

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
    /// Messages posted at once; `None`: as many as have room.
    pub post_list: Option<u32>,
    /// What atomic tests do.
    pub atomic_type: AtomicType,
    /// Whether both sides send.
    pub bidirectional: bool,
    /// Whether a peak is looked for.
    pub has_peak: bool,
    /// Whether bytes are compared.
    pub check: bool,
    /// Whether messages rotate over several buffers.
    pub rotate: bool,
    /// Seed of the compared bytes.
    pub seed: u64,
    /// The transport by name, without devices, which each side names itself.
    pub transport: String,
    /// Payload of a packet; `None`: what the ports have.
    pub mtu: Option<u32>,
    /// Longest message posted inline; `None`: the provider's choice.
    pub inline: Option<u32>,
    /// Posts per completion; `None`: the provider's choice.
    pub moderation: Option<u32>,
    /// Whether connections are encrypted.
    pub tls: bool,
    /// Whether frames are checked.
    pub crc: bool,
    /// Whether a profile is taken.
    pub profile: bool,
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
            return Err(
                "--max-p99 is for latency: write_lat, read_lat, send_lat and atomic_lat".into(),
            );
        }
        if args.atomic_type.is_some() && args.test.verb() != Verb::Atomic {
            return Err("--atomic_type is for atomic_bw and atomic_lat".into());
        }
        let usual = match (args.test.verb(), is_latency) {
            (Verb::Atomic, _) => ATOMIC_BYTES,
            (_, true) => LATENCY_BYTES,
            (_, false) => BANDWIDTH_BYTES,
        };
        let options = Options {
            test: args.test,
            size: (!args.all).then(|| args.size.unwrap_or(usual)),
            iterations: args.iterations,
            duration: args.duration,
            depth: args
                .stream
                .depth
                .unwrap_or(if is_latency { 1 } else { DEPTH_DEFAULT }),
            streams: args.stream.streams.unwrap_or(1),
            post_list: args.stream.post_list,
            atomic_type: args.atomic_type.unwrap_or(AtomicType::FetchAndAdd),
            bidirectional: args.stream.bidirectional,
            has_peak: !args.no_peak,
            check: args.check == 1,
            rotate: !args.no_rotate,
            seed: args.seed.unwrap_or(1),
            transport: transport_kind(&config.transport).into(),
            mtu: args.device.mtu,
            inline: args.device.inline,
            moderation: args.device.moderation,
            tls: config.tcp.has_tls,
            crc: config.tcp.has_crc,
            profile: args.profile,
        };
        options.check()?;
        Ok(options)
    }

    /// Whether puts of a word are writes without immediate data, as perftest's are.
    pub fn has_plain_words(&self) -> bool {
        match self.test {
            Test::WriteLat => true,
            Test::WriteBw => self.depth >= PLAIN_DEPTH_MIN,
            _ => false,
        }
    }

    /// Whether every number is within its bounds: a server gets them from any client.
    pub fn check(&self) -> Result<(), String> {
        let bounds = [
            ("--size", self.size.unwrap_or(1), SIZE_MAX),
            ("--iters", self.iterations.unwrap_or(1), ITERATIONS_MAX),
            ("--duration", self.duration.unwrap_or(1), DURATION_MAX),
            ("--tx-depth", u64::from(self.depth), u64::from(DEPTH_MAX)),
            ("--qp", u64::from(self.streams), u64::from(STREAMS_MAX)),
        ];
        if let Some((name, value, most)) = bounds.iter().find(|b| !(1..=b.2).contains(&b.1)) {
            return Err(format!("{name} is {value}: from 1 to {most}"));
        }
        let list = self.post_list.unwrap_or(1);
        if !(1..=self.depth).contains(&list) {
            return Err(format!(
                "--post_list is {list}: from 1 to --tx-depth, which is {}",
                self.depth
            ));
        }
        self.check_atomic()?;
        self.check_devices()
    }

    fn check_atomic(&self) -> Result<(), String> {
        let is_atomic = self.test.verb() == Verb::Atomic;
        if is_atomic && self.size != Some(ATOMIC_BYTES) {
            return Err(format!(
                "--size: an atomic operation is on a word of {ATOMIC_BYTES} bytes: leave --size and --all away"
            ));
        }
        Ok(())
    }

    fn check_devices(&self) -> Result<(), String> {
        if let Some(mtu) = self.mtu
            && !(mtu.is_power_of_two() && MTU_BYTES.contains(&mtu))
        {
            return Err(format!("--mtu is {mtu}: 256, 512, 1024, 2048 or 4096"));
        }
        if self.transport == "verbs" && self.streams > QUEUE_PAIRS_MAX {
            return Err(format!(
                "--qp is {}: over verbs from 1 to {QUEUE_PAIRS_MAX} queue pairs, all devices together",
                self.streams
            ));
        }
        let bounds = [
            ("--inline_size", self.inline, 0, INLINE_BYTES_MAX),
            ("--cq-mod", self.moderation, 1, MODERATION_MAX),
        ];
        for (name, value, least, most) in bounds {
            if let Some(value) = value.filter(|value| !(least..=most).contains(value)) {
                return Err(format!("{name} is {value}: from {least} to {most}"));
            }
        }
        Ok(())
    }

    /// The sizes, smallest first.
    pub fn sizes(&self) -> Vec<u64> {
        match self.size {
            Some(size) => vec![size],
            None => SWEEP.map(|power| 1 << power).collect(),
        }
    }

    /// Each option by the name of its flag.
    fn named(&self) -> [(&'static str, String); 20] {
        let or = |value: Option<u64>, none: &str| value.map_or(none.into(), |v| v.to_string());
        let of = |value: Option<u32>, none: &str| or(value.map(u64::from), none);
        [
            ("the test", self.test.name().into()),
            ("--size", or(self.size, "all of --all")),
            ("--iters", or(self.iterations, "as many as usual")),
            ("--duration", or(self.duration, "none")),
            ("--tx-depth", self.depth.to_string()),
            ("--qp", self.streams.to_string()),
            ("--post_list", of(self.post_list, "as many as have room")),
            ("--atomic_type", self.atomic_type.name().into()),
            ("--bidirectional", self.bidirectional.to_string()),
            ("--noPeak", (!self.has_peak).to_string()),
            ("--check", u8::from(self.check).to_string()),
            ("--no-rotate", (!self.rotate).to_string()),
            ("--profile", self.profile.to_string()),
            ("--seed", self.seed.to_string()),
            ("--transport", self.transport.clone()),
            ("--mtu", of(self.mtu, "what the ports have")),
            ("--inline_size", of(self.inline, "the provider's choice")),
            ("--cq-mod", of(self.moderation, "the provider's choice")),
            ("--integrity", integrity(self.crc).into()),
            (TLS, on(self.tls).into()),
        ]
    }

    /// The first of the server's arguments that contradicts the client's options, by name. The
    /// server takes from the client what it was not told, but for TLS, which is on both sides or on
    /// none. `config` is the server's, from flags and environment.
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
            number(server.stream.depth.map(u64::from)),
            number(server.stream.streams.map(u64::from)),
            number(server.stream.post_list.map(u64::from)),
            server.atomic_type.map(|kind| kind.name().into()),
            flag(server.stream.bidirectional),
            flag(server.no_peak),
            // The default is 1, so only 0 was surely given.
            (server.check == 0).then(|| "0".into()),
            flag(server.no_rotate),
            flag(server.profile),
            number(server.seed),
            Some(transport_kind(&config.transport).to_string()).filter(|name| name != "auto"),
            number(server.device.mtu.map(u64::from)),
            number(server.device.inline.map(u64::from)),
            number(server.device.moderation.map(u64::from)),
            (server.pair.job.connections.integrity.is_some() || config.tcp.has_crc)
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

/// The flag, and the variable that sets it.
const TLS: &str = "--tls (LINERATE_TLS)";

fn on(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

fn integrity(has_crc: bool) -> &'static str {
    if has_crc { "crc" } else { "off" }
}

/// Given arguments that have no meaning for latency.
fn bandwidth_only(args: &PerfArgs) -> Vec<(&'static str, bool)> {
    let others = [
        ("--noPeak", args.no_peak),
        ("--min-bw", args.pair.min_bw.is_some()),
        ("--report_gbits", args.report_gbits),
        // Each message is the last of its doorbell, and has a completion anyway.
        ("--cq-mod", args.device.moderation.is_some()),
    ];
    let all = args.stream.given().into_iter().chain(others);
    all.filter(|(_, is_given)| *is_given).collect()
}

#[cfg(test)]
pub mod tests {
    use super::super::args::tests::parse;
    use super::*;

    pub fn options(line: &str) -> Result<Options, String> {
        let args = parse(line)?;
        Options::new(&args, &config_of(&args))
    }

    /// The settings of the flags alone, without an environment.
    fn config_of(args: &PerfArgs) -> Config {
        let mut config = Config::default();
        args.pair.job.connections.apply(&mut config);
        config.transport = args.pair.job.transport.clone().unwrap_or(config.transport);
        args.device.apply(&mut config).unwrap();
        config
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
            ("write_lat -Q 4", "--cq-mod is for bandwidth"),
            ("send_lat -p 4000 --local", "cannot be used with"),
            ("send_lat --bind none", "--local"),
            ("send_lat host --bind cores", "cannot be used with"),
            ("send_bw --max-p99 1", "--max-p99 is for latency"),
            ("send_bw -s 0", "--size is 0: from 1"),
            ("send_bw -s 2G", "--size is 2147483648"),
            ("send_bw -q 65", "--qp is 65: from 1 to 64"),
            ("send_bw -t 0", "--tx-depth is 0"),
            ("send_bw -a -s 8", "cannot be used with"),
            ("send_bw -n 5 -D 5", "cannot be used with"),
            ("send_bw host --local", "cannot be used with"),
            ("atomic_lat -s 16", "word of 8 bytes"),
            ("atomic_bw -a", "word of 8 bytes"),
            ("write_bw -A CMP_AND_SWAP", "--atomic_type is for atomic_bw"),
            ("move_bw", "write_lat"),
            ("send_lat -l 2", "--post_list is for bandwidth"),
            ("send_bw -l 129", "--post_list is 129: from 1 to --tx-depth"),
            ("send_bw -m 1000", "--mtu is 1000: 256"),
            ("send_bw -m 8192", "--mtu is 8192: 256"),
            ("send_bw -I 2000", "--inline_size is 2000: from 0"),
            ("send_bw -Q 0", "--cq-mod is 0: from 1"),
            ("send_bw -d rxe0 -q 9", "--qp is 9: over verbs from 1 to 8"),
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
            ("write_bw -l 4", "--post_list"),
            ("write_bw -m 1024", "--mtu"),
            ("write_bw --check 0", "--check"),
            ("write_bw --no-rotate", "--no-rotate"),
            ("write_bw --profile", "--profile"),
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
        let verbs = options("write_bw -d mlx5_0 -m 1024 -I 64 -Q 16").unwrap();
        assert_eq!(verbs.transport, "verbs");
        assert_eq!(refusal(&verbs, "write_bw -d mlx5_7 -x 5 -m 1024"), None);
        for (line, name) in [
            ("write_bw -m 4096", "--mtu"),
            ("write_bw -I 0", "--inline_size"),
            ("write_bw -Q 8", "--cq-mod"),
        ] {
            let text = refusal(&verbs, line).unwrap();
            assert!(text.starts_with(name), "{line}: {text}");
        }
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
