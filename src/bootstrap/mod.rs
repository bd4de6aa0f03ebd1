//! How ranks find each other before the first operation.
//!
//! [`place_from_env`] reads what launchers set, purely. [`Meeting`] brings the ranks of a job
//! together and carries one blob of every rank to every rank: over a Unix socket where all are on
//! this host (`local.rs`), else over TCP (`network.rs`; read that first). [`Reunion`] is where the
//! survivors of a failed communicator meet.

mod contact;
mod contacts;
mod cores;
mod descriptors;
mod dial;
mod env;
mod gate;
mod handing;
mod identity;
mod interfaces;
mod link;
mod local;
mod netlink;
mod network;
mod nodelist;
mod pmi;
mod publish;
mod reunion;
mod server;
mod store;
mod survivors;
mod tree;

pub use contact::{emit_contact, parse_contact};
pub use cores::Cores;
pub use descriptors::check_descriptors;
pub use env::{Launched, Launcher, Place, Rendezvous, launched_from_env, place_from_env};
pub use gate::read_secret;
pub use identity::HostIdentity;
pub use netlink::{NetworkLink, network_links};
pub use reunion::{MeetingPlace, Reunion, emit_place, parse_place};
pub use survivors::{Conversation, Lost, Message};

use crate::config::{Config, Secret, differing_settings};
use crate::engine::Clock;
use crate::error::{Error, Result};
use crate::types::Rank;
use local::Introduction;
use network::Network;
use std::io::Write;
use std::net::IpAddr;
use std::time::Duration;

/// Largest blob of a rank: an address, some keys, its cores and prices.
const BLOB_BYTES_MAX: usize = 4096;
/// Rank 0 gives up at the deadline and says who is missing; that is waited for a little longer.
const LATE_ANSWER_TIME: Duration = Duration::from_secs(2);

/// A rank of a job whose ranks are all on their way to each other.
pub struct Meeting {
    rank: Rank,
    ranks: u32,
    way: Way,
}

enum Way {
    Host {
        job: String,
        fingerprint: u64,
        timeout: Duration,
    },
    Network(Box<Network>),
}

impl Meeting {
    /// Goes where the ranks of the job meet. Over TCP, waits until all have come, at most for the
    /// timeout of the settings; on one host they come with their blobs.
    pub fn go_to(place: &Place, config: &Config, clock: &Clock) -> Result<Meeting> {
        let way = match place.rendezvous {
            _ if place.ranks == 1 => None,
            Rendezvous::Host => None,
            _ => Some(Network::meet(place, config, clock)?),
        };
        let way = way.map_or_else(
            || Way::Host {
                job: place.job.clone(),
                fingerprint: config.shared_fingerprint(),
                timeout: config.timeout,
            },
            |network| Way::Network(Box::new(network)),
        );
        let meeting = Meeting {
            rank: place.rank,
            ranks: place.ranks,
            way,
        };
        if config.debug {
            let (address, why) = meeting.address();
            let all = interfaces::list().unwrap_or_default();
            let interface = interfaces::name_for(&all, address);
            note(&format!(
                "rank {} of {} (by {}): address {address} ({interface}), because {why}",
                place.rank,
                place.ranks,
                place.launcher.name()
            ));
        }
        Ok(meeting)
    }

    /// The address of this host at which other ranks can reach this one, and why this one.
    pub fn address(&self) -> (IpAddr, &str) {
        match &self.way {
            Way::Host { .. } => (
                std::net::Ipv4Addr::LOCALHOST.into(),
                "all ranks are on this host",
            ),
            Way::Network(network) => (network.address, &network.why),
        }
    }

    /// The settings with what the ranks know of each other now: which transport `auto` is, and
    /// where connections listen.
    pub fn settle(&self, mut config: Config) -> Result<Config> {
        let is_open = matches!(config.transport.as_str(), "auto" | "router");
        let far = match &self.way {
            Way::Network(network) if !network.is_one_host => Some(&network.agreed),
            _ => None,
        };
        if let (true, Some(agreed)) = (is_open, far) {
            let far = if agreed.is_verbs { "verbs" } else { "tcp" };
            config.transport = format!("router:{far}");
            if config.debug || (self.rank == 0 && agreed.is_pity) {
                let (rank, ranks, reason) = (self.rank, self.ranks, &agreed.reason);
                note(&format!(
                    "rank {rank} of {ranks}: {far} between hosts, because {reason}"
                ));
            }
        } else if config.transport == "auto" {
            config.transport = "shm".into();
        }
        if config.tcp.addresses.is_empty() {
            config.tcp.addresses = vec![self.address().0];
        }
        config.verbs.local_rank.get_or_insert(match &self.way {
            Way::Host { .. } => self.rank,
            Way::Network(network) => network.local_rank,
        });
        if let Way::Network(network) = &self.way
            && let Some(secret) = &network.secret
        {
            config.job.secret = Secret::Text(secret.clone());
        }
        config.tcp.secret = read_secret(&config.job.secret)?;
        config.tcp.is_insecure = config.job.is_insecure;
        config.tcp.is_debugging = config.debug;
        Ok(config)
    }

    /// This rank cannot take part: tells the others, as far as they can be reached soon, and gives
    /// the error back.
    pub fn decline(self, error: Error, clock: &Clock) -> Error {
        match self.way {
            Way::Host { job, .. } => local::decline(self.rank, self.ranks, &job, error, clock),
            Way::Network(network) => network.decline(error, clock),
        }
    }

    /// Carries every rank's blob to every rank of the job; returns them by rank.
    pub fn exchange(self, blob: Vec<u8>, clock: &Clock) -> Result<Vec<Vec<u8>>> {
        match self.way {
            Way::Network(network) => network.exchange(&blob, clock),
            Way::Host {
                job,
                fingerprint,
                timeout,
            } => {
                let own = Introduction {
                    rank: self.rank,
                    ranks: self.ranks,
                    fingerprint,
                    blob,
                };
                local::exchange(&own, &job, timeout, clock)
            }
        }
    }
}

/// A secret for a job, for anyone who starts one: 256 random bits, in hexadecimal.
pub fn fresh_secret() -> Result<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|e| {
        Error::os(
            "random bytes for a secret",
            std::io::Error::other(e.to_string()),
        )
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn other_settings(rank: Rank, theirs: u64, heads: u64) -> Error {
    Error::Bootstrap(differing_settings(rank, theirs, heads))
}

/// A rank that encrypts beside one that does not, found before either has said anything else.
fn other_tls(rank: Rank, has_tls: bool) -> Error {
    let print = |has_tls| {
        let mut config = Config::default();
        config.tcp.has_tls = has_tls;
        config.shared_fingerprint()
    };
    other_settings(rank, print(!has_tls), print(has_tls))
}

/// Something that anyone who runs the job should know.
fn note(text: &str) {
    // Nobody can be told that standard error is closed.
    let _ = std::io::stderr().write_all(format!("linerate: {text}\n").as_bytes());
}

/// A number that differs between all processes and calls on this host, for names of sockets.
pub fn nonce() -> Result<u64> {
    let path = "/proc/sys/kernel/random/uuid";
    let text =
        std::fs::read_to_string(path).map_err(|e| Error::os(format!("reading {path}"), e))?;
    let digits: String = text
        .chars()
        .filter(char::is_ascii_hexdigit)
        .take(16)
        .collect();
    u64::from_str_radix(&digits, 16)
        .map_err(|e| Error::Malformed(format!("{path} says '{}': {e}", text.trim())))
}
