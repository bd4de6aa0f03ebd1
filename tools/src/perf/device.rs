//! [`DeviceArgs`]: perftest's letters that concern RDMA devices. Each works over `verbs`. Over
//! another transport it is refused by name, and so is a letter that `perf` lacks.

use super::args::PerfArgs;
use clap::Args;
use linerate::Config;

/// The transport that is meant if a letter of devices is given and no transport.
const VERBS: &str = "verbs";

/// Letters of devices and queue pairs.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "RDMA devices (--transport verbs, which these imply)")]
pub struct DeviceArgs {
    /// Device, as `linerate info` and ibv_devices name it; several with commas between them share
    /// the traffic. Each side has its own. Default: the nearest of the fastest
    #[arg(short = 'd', long = "ib-dev", value_name = "DEVICE")]
    pub device: Option<String>,

    /// Port of the device; default 1
    #[arg(short = 'i', long = "ib-port", value_name = "PORT", requires = "device", value_parser = clap::value_parser!(u8).range(1..))]
    pub ib_port: Option<u8>,

    /// Index in the port's table of GIDs, which each side has its own of. Default
    /// LINERATE_VERBS_GID_INDEX, else RoCEv2 with an IPv4 address
    #[arg(short = 'x', long = "gid-index", value_name = "INDEX")]
    pub gid_index: Option<u8>,

    /// Payload of a packet: 256, 512, 1024, 2048 or 4096. Default: what both ports have
    #[arg(short = 'm', long = "mtu", value_name = "BYTES")]
    pub mtu: Option<u32>,

    /// Longest message that is posted inline: the device need not fetch it. Default: the provider's
    /// choice
    #[arg(short = 'I', long = "inline_size", value_name = "BYTES")]
    pub inline: Option<u32>,

    /// One post in this many makes a completion. Default: the provider's choice
    #[arg(short = 'Q', long = "cq-mod", value_name = "COUNT")]
    pub moderation: Option<u32>,

    /// Service level; priority on Ethernet. Default LINERATE_VERBS_SERVICE_LEVEL, else 0
    #[arg(short = 'S', long = "sl", value_name = "LEVEL", value_parser = clap::value_parser!(u8).range(0..=15))]
    pub service_level: Option<u8>,

    /// How long the device waits for an acknowledgement: 4.096 us * 2^value. Default
    /// LINERATE_VERBS_ACK_TIMEOUT, else 14
    #[arg(short = 'u', long = "qp-timeout", value_name = "VALUE", value_parser = clap::value_parser!(u8).range(8..=22))]
    pub qp_timeout: Option<u8>,

    /// Traffic class of the IP header. Default LINERATE_VERBS_TRAFFIC_CLASS, else 0
    #[arg(long = "tclass", value_name = "CLASS")]
    pub traffic_class: Option<u8>,

    /// RC, which is the only connection type here
    #[arg(short = 'c', long = "connection", value_name = "TYPE")]
    pub connection: Option<String>,

    #[arg(short = 'R', long = "rdma_cm", hide = true)]
    pub rdma_cm: bool,

    #[arg(short = 'z', long = "com_rdma_cm", hide = true)]
    pub com_rdma_cm: bool,

    #[arg(short = 'O', long = "dualport", hide = true)]
    pub dual_port: bool,

    #[arg(short = 'e', long = "events", hide = true)]
    pub events: bool,

    #[arg(short = 'o', long = "outs", value_name = "COUNT", hide = true)]
    pub outstanding: Option<u32>,

    #[arg(short = 'r', long = "rx-depth", value_name = "COUNT", hide = true)]
    pub receive_depth: Option<u32>,
}

impl DeviceArgs {
    /// Sets what the flags name. An error is one of usage.
    pub fn apply(&self, config: &mut Config) -> Result<(), String> {
        self.refuse_absent()?;
        let given = self.given();
        let Some(first) = given.first() else {
            return Ok(());
        };
        let kind = transport_kind(&config.transport);
        if !matches!(kind, "auto" | VERBS) {
            let why = match kind.starts_with("ofi") {
                true => "names its domains itself (ofi:PROVIDER,DOMAIN,..) and has no such setting",
                false => "has none",
            };
            return Err(format!(
                "{first} is of RDMA devices, and {kind} {why}: leave it away, or take --transport verbs"
            ));
        }
        config.transport = self.transport(&config.transport)?;
        let verbs = &mut config.verbs;
        verbs.gid_index = self.gid_index.map(u32::from).or(verbs.gid_index);
        verbs.service_level = self.service_level.unwrap_or(verbs.service_level);
        verbs.ack_timeout = self.qp_timeout.unwrap_or(verbs.ack_timeout);
        verbs.traffic_class = self.traffic_class.unwrap_or(verbs.traffic_class);
        Ok(())
    }

    /// The name of the transport with the devices.
    fn transport(&self, before: &str) -> Result<String, String> {
        let Some(devices) = &self.device else {
            return Ok(match before {
                "auto" => VERBS.into(),
                name => name.into(),
            });
        };
        if let Some((_, named)) = before.split_once(':') {
            return Err(format!(
                "--ib-dev {devices}: the transport already names {named}: leave one of them away"
            ));
        }
        let names = devices.split(',').map(|device| match self.ib_port {
            Some(port) => format!("{device}:{port}"),
            None => device.into(),
        });
        let names: Vec<String> = names.collect();
        Ok(format!("{VERBS}:{}", names.join(",")))
    }

    /// The given flags that only devices have.
    fn given(&self) -> Vec<&'static str> {
        let all = [
            ("--ib-dev (-d)", self.device.is_some()),
            ("--ib-port (-i)", self.ib_port.is_some()),
            ("--gid-index (-x)", self.gid_index.is_some()),
            ("--mtu (-m)", self.mtu.is_some()),
            ("--inline_size (-I)", self.inline.is_some()),
            ("--cq-mod (-Q)", self.moderation.is_some()),
            ("--sl (-S)", self.service_level.is_some()),
            ("--qp-timeout (-u)", self.qp_timeout.is_some()),
            ("--tclass", self.traffic_class.is_some()),
            ("--connection (-c)", self.connection.is_some()),
        ];
        let given = all.into_iter().filter(|(_, is_given)| *is_given);
        given.map(|(name, _)| name).collect()
    }

    /// Refuses what perftest has and `perf` lacks.
    fn refuse_absent(&self) -> Result<(), String> {
        const CM: &str = "queue pairs are joined over the connection to --port, which proves the secret (LINERATE_SECRET) first, and not by rdma_cm: leave it away";
        let other = (self.connection.as_deref()).filter(|kind| !kind.eq_ignore_ascii_case("RC"));
        let all = [
            ("--rdma_cm (-R)", self.rdma_cm, CM),
            ("--com_rdma_cm (-z)", self.com_rdma_cm, CM),
            (
                "--dualport (-O)",
                self.dual_port,
                "name the devices instead, with their ports: --transport verbs:mlx5_0:1,mlx5_0:2",
            ),
            (
                "--events (-e)",
                self.events,
                "perf polls, as perftest does without it; what sleeping costs shows in bench",
            ),
            (
                "--outs (-o)",
                self.outstanding.is_some(),
                "as many reads are under way as the device can have; --tx-depth bounds them from above",
            ),
            (
                "--rx-depth (-r)",
                self.receive_depth.is_some(),
                "as many receives are posted as the other side may have messages under way: --tx-depth",
            ),
        ];
        if let Some(kind) = other {
            return Err(format!(
                "--connection {kind}: the verbs transport has reliable connections, RC, and no others"
            ));
        }
        match all.iter().find(|(_, is_given, _)| *is_given) {
            Some((name, _, reason)) => Err(format!("{name} is not here: {reason}")),
            None => Ok(()),
        }
    }
}

/// A transport's name without devices; that of libfabric has its provider.
pub fn transport_kind(name: &str) -> &str {
    let separator = if name.starts_with("ofi:") { ',' } else { ':' };
    name.split(separator).next().unwrap_or(name)
}

/// The environment's settings as all flags change them. An error is one of usage.
pub fn config(args: &PerfArgs) -> Result<Config, String> {
    let mut config = args.pair.job.config()?;
    args.device.apply(&mut config)?;
    // A user who names a library of verbs measures the devices that it serves.
    let names_library = std::env::var_os("LINERATE_IBVERBS_LIB").is_some();
    if names_library && config.transport == "auto" && !config.tcp.has_tls {
        config.transport = VERBS.into();
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::super::args::tests::parse;
    use super::*;

    fn applied(line: &str, transport: &str) -> Result<Config, String> {
        let args = parse(line)?;
        let mut config = Config {
            transport: transport.into(),
            ..Config::default()
        };
        args.device.apply(&mut config).map(|()| config)
    }

    #[test]
    fn a_letter_of_devices_means_verbs() {
        for (line, name) in [
            ("write_bw", "auto"),
            ("write_bw -x 3", "verbs"),
            ("write_bw -d mlx5_0", "verbs:mlx5_0"),
            ("write_bw -d mlx5_0 -i 2", "verbs:mlx5_0:2"),
            ("write_bw -d mlx5_0,mlx5_1", "verbs:mlx5_0,mlx5_1"),
            ("write_bw -c RC", "verbs"),
        ] {
            assert_eq!(applied(line, "auto").unwrap().transport, name, "{line}");
        }
        let of_ofi = applied("write_bw -x 3", "ofi:efa,rdmap0").unwrap_err();
        assert!(
            of_ofi.contains("ofi:efa names its domains itself"),
            "{of_ofi}"
        );
        let named = applied("write_bw -x 3", "verbs:mlx5_1").unwrap();
        assert_eq!(
            (named.transport.as_str(), named.verbs.gid_index),
            ("verbs:mlx5_1", Some(3))
        );
        let set = applied("write_bw -S 3 -u 18 --tclass 106", "auto").unwrap();
        assert_eq!(set.verbs.service_level, 3);
        assert_eq!((set.verbs.ack_timeout, set.verbs.traffic_class), (18, 106));
    }

    #[test]
    fn what_a_transport_has_not_is_refused_by_name_with_the_reason() {
        for (line, transport, expected) in [
            (
                "write_bw -x 3",
                "tcp",
                "--gid-index (-x) is of RDMA devices, and tcp has none",
            ),
            ("write_bw -d mlx5_0", "shm", "--ib-dev (-d)"),
            ("write_bw -m 1024", "shm", "--mtu (-m)"),
            ("write_bw -I 0", "tcp", "--inline_size (-I)"),
            ("write_bw -Q 1", "tcp", "--cq-mod (-Q)"),
            ("write_bw -d a", "verbs:b", "already names b"),
            (
                "write_bw -R",
                "auto",
                "--rdma_cm (-R) is not here: queue pairs",
            ),
            ("write_bw -c UD", "auto", "--connection UD"),
            ("write_bw -i 2", "auto", "--ib-dev"),
            ("write_bw -O", "auto", "mlx5_0:2"),
            ("read_bw -o 4", "auto", "--outs (-o)"),
            ("send_lat -e", "auto", "--events (-e)"),
            ("send_bw -r 4", "auto", "--tx-depth"),
        ] {
            let text = applied(line, transport).unwrap_err();
            assert!(text.contains(expected), "{line}: {text}");
        }
    }
}
