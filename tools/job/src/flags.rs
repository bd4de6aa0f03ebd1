//! Flags that several commands take: those of connections ([`ConnectionArgs`]), those of every
//! command that runs ranks and prints what it measured ([`JobArgs`]), and those of the commands
//! that measure pairs of ranks ([`PairArgs`]).

use crate::binding::Bind;
use crate::output;
use crate::settings::{self, parse_positive};
use clap::{Args, ValueEnum};
use linerate::Config;
use serde::Serialize;
use std::ffi::OsStr;
use std::path::PathBuf;

/// How ranks of several hosts are connected, and over `--transport tcp` all. Each flag comes before
/// its variable.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionArgs {
    /// Encrypt every connection between ranks (TLS 1.3, with keys made from the job's secret); the
    /// same on all ranks. Default LINERATE_TLS, else off
    #[arg(long)]
    pub tls: bool,

    /// crc checks every frame of a connection; the same on all ranks. Default LINERATE_INTEGRITY,
    /// else off
    #[arg(long, value_enum, value_name = "crc|off", hide_possible_values = true)]
    pub integrity: Option<Integrity>,

    /// Serve other hosts without a secret: any process that reaches a port may speak. Default
    /// LINERATE_INSECURE, else off
    #[arg(long)]
    pub insecure: bool,

    /// rdma: refuse to start unless every rank has an RDMA device, EFA included, that all can use
    /// between hosts. Default LINERATE_REQUIRE, else nothing
    #[arg(long, value_enum, value_name = "rdma", hide_possible_values = true)]
    pub require: Option<Requirement>,
}

/// What a job may not do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Requirement {
    /// RDMA devices.
    Rdma,
}

/// How frames are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Integrity {
    /// A CRC32C of each.
    Crc,
    /// As TCP does.
    Off,
}

impl ConnectionArgs {
    /// Sets what the flags name.
    pub fn apply(&self, config: &mut Config) {
        config.tcp.has_tls |= self.tls;
        if let Some(integrity) = self.integrity {
            config.tcp.has_crc = integrity == Integrity::Crc;
        }
        config.job.is_insecure |= self.insecure;
        config.job.needs_rdma |= self.require.is_some();
    }

    /// The flags as variables, for a program that is started.
    pub fn variables(&self) -> Vec<(&'static str, &'static OsStr)> {
        let integrity = self.integrity.map(|integrity| match integrity {
            Integrity::Crc => "crc",
            Integrity::Off => "off",
        });
        let all = [
            ("LINERATE_TLS", self.tls.then_some("on")),
            ("LINERATE_INTEGRITY", integrity),
            ("LINERATE_INSECURE", self.insecure.then_some("1")),
            ("LINERATE_REQUIRE", self.require.map(|_| "rdma")),
        ];
        all.into_iter()
            .filter_map(|(name, value)| Some((name, OsStr::new(value?))))
            .collect()
    }
}

/// How the ranks of a command are connected, how long they wait, and where its document goes.
#[derive(Args, Clone, Debug)]
pub struct JobArgs {
    /// auto, shm, tcp, or verbs[:device[:port][,device...]], which takes RDMA devices, over which
    /// long messages are spread, or ofi[:provider[,domain...]], which goes through libfabric. In
    /// `bench` also sim: a modelled network in virtual time, in one process. Default
    /// LINERATE_TRANSPORT, else auto
    #[arg(long, value_name = "NAME")]
    pub transport: Option<String>,

    /// How connections are made.
    #[command(flatten)]
    pub connections: ConnectionArgs,

    /// How long an operation may stand still before it fails; default LINERATE_TIMEOUT, else 60
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<String>,

    /// Write the results as one JSON document; with `-` to stdout, and what is for people to stderr
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
}

impl JobArgs {
    /// The environment's settings as the flags change them. An error is one of usage.
    pub fn config(&self) -> Result<Config, String> {
        self.change(settings::from_environment()?)
    }

    /// Settings as the flags change them. An error is one of usage.
    pub fn change(&self, mut config: Config) -> Result<Config, String> {
        if let Some(name) = &self.transport {
            settings::check_transport("--transport", name)?;
            config.transport = name.clone();
        }
        if let Some(text) = &self.timeout {
            config.timeout = linerate::unstable::config::parse_timeout("--timeout", text)
                .map_err(|error| error.to_string())?;
        }
        self.connections.apply(&mut config);
        Ok(config)
    }

    /// Whether the document can be written where it is wanted.
    pub fn check_json(&self) -> Result<(), String> {
        match &self.json {
            Some(target) => output::check_target("--json", target),
            None => Ok(()),
        }
    }

    /// Whether the document goes to standard output, so that nothing else may.
    pub fn is_json_only(&self) -> bool {
        self.json.as_deref().is_some_and(output::is_stdout)
    }

    /// Writes the document if one is wanted.
    pub fn write_json(&self, document: &impl Serialize) -> Result<(), String> {
        match &self.json {
            Some(target) => output::write_json(target, document),
            None => Ok(()),
        }
    }

    /// Prints a text for people where no document goes.
    pub fn print(&self, text: &str) -> Result<(), String> {
        if self.is_json_only() {
            output::print_error(text.trim_end());
            return Ok(());
        }
        output::print_text(text)
    }
}

/// What `perf` and `mesh` both take.
#[derive(Args, Clone, Debug)]
pub struct PairArgs {
    /// What all commands with ranks take.
    #[command(flatten)]
    pub job: JobArgs,

    /// cores: each rank gets its own share of the cores; none: the kernel places them
    #[arg(long, value_enum, default_value_t = Bind::Cores)]
    pub bind: Bind,

    /// Fail if the bandwidth of any pair is below this
    #[arg(long, value_name = "GB/s", value_parser = parse_positive)]
    pub min_bw: Option<f64>,

    /// Fail if the 99th percentile of any latency is above this
    #[arg(long, value_name = "US", value_parser = parse_positive)]
    pub max_p99: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_come_before_what_the_environment_says_and_become_variables() {
        let flags = ConnectionArgs {
            tls: true,
            integrity: Some(Integrity::Off),
            insecure: false,
            require: Some(Requirement::Rdma),
        };
        let mut config = Config::default();
        config.tcp.has_crc = true;
        config.job.is_insecure = true;
        flags.apply(&mut config);
        assert!(config.tcp.has_tls && !config.tcp.has_crc && config.job.is_insecure);
        let lookup = |name: &str| {
            let variables = flags.variables();
            let found = variables.iter().find(|pair| pair.0 == name)?;
            Some(found.1.to_str()?.to_string())
        };
        let told = Config::from_lookup(lookup).unwrap();
        assert!(told.tcp.has_tls && !told.tcp.has_crc && !told.job.is_insecure);
        assert!(config.job.needs_rdma && told.job.needs_rdma);
        let none = ConnectionArgs::default();
        assert!(none.variables().is_empty());
        none.apply(&mut config);
        assert!(config.tcp.has_tls);
    }

    #[test]
    fn a_flag_that_cannot_be_is_refused_by_name() {
        let with = |transport: Option<&str>, timeout: Option<&str>| {
            let flags = JobArgs {
                transport: transport.map(String::from),
                connections: ConnectionArgs::default(),
                timeout: timeout.map(String::from),
                json: None,
            };
            flags.change(Config::default())
        };
        let text = with(Some("udp"), None).unwrap_err();
        assert!(text.contains("--transport"), "{text}");
        let text = with(None, Some("soon")).unwrap_err();
        assert!(text.contains("--timeout"), "{text}");
        assert_eq!(with(Some("tcp"), None).unwrap().transport, "tcp");
    }
}
