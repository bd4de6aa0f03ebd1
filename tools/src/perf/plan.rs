//! What one side of `perf` needs to know besides what both agree on.

use super::args::PerfArgs;
use super::device::{self, transport_kind};
use super::options::Options;
use super::proof;
use crate::system;
use linerate::Config;
use linerate::unstable::wire::JobKey;
use std::time::Duration;

/// Settings of this side.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What the environment and the flags say.
    pub config: Config,
    /// How long the test may stand still before it fails.
    pub timeout: Duration,
    /// Memory that this side may use.
    pub memory_bytes: u64,
    cache_bytes: u64,
}

impl Plan {
    /// From the arguments and the environment. An error is one of usage.
    pub fn new(args: &PerfArgs) -> Result<Plan, String> {
        let mut config = device::config(args)?;
        config.tcp.secret = linerate::unstable::bootstrap::read_secret(&config.job.secret)
            .map_err(|error| error.to_string())?;
        config.tcp.is_insecure = config.job.is_insecure;
        config.tcp.is_debugging = config.debug;
        if args.pair.job.connections.tls && config.transport == "shm" {
            return Err(
                "--tls encrypts connections, and --transport shm has none: leave one of them away"
                    .into(),
            );
        }
        if transport_kind(&config.transport) == "verbs" && config.tcp.has_tls {
            return Err("--tls (LINERATE_TLS) encrypts connections, and RDMA devices write into memory by themselves, in the clear: leave it away, or take --transport tcp".into());
        }
        if config.transport == "sim" {
            return Err("perf measures this machine; --transport sim has no clock of its own: bench takes it".into());
        }
        Ok(Plan {
            timeout: config.timeout,
            config,
            memory_bytes: linerate::unstable::memory::available_memory_bytes(),
            cache_bytes: system::last_level_cache_bytes(),
        })
    }

    /// Whether other hosts are served: either they prove themselves, or they need not.
    pub fn is_open(&self) -> bool {
        self.config.tcp.secret.is_some() || self.config.tcp.is_insecure
    }

    /// The agreed transport with the devices of this side.
    pub fn transport(&self, agreed: &str) -> String {
        match transport_kind(&self.config.transport) == agreed {
            true => self.config.transport.clone(),
            false => agreed.into(),
        }
    }

    /// What both sides prove that they know.
    pub fn key(&self) -> JobKey {
        proof::key(self.config.tcp.secret.as_deref())
    }

    /// Bytes that messages rotate over, 0 if they do not. A source or a target is as long as the
    /// cache, or a 16th of the memory: two sides of one host then take a quarter.
    pub fn rotation_bytes(&self, options: &Options) -> u64 {
        match options.rotate {
            true => self.cache_bytes.min(self.memory_bytes / 16).max(1),
            false => 0,
        }
    }
}
