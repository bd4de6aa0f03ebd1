//! How ranks find each other before the first operation.
//!
//! [`place_from_env`] reads what launchers set, purely. [`Meeting`] brings the ranks of a job
//! together and carries one blob of every rank to every rank: over a Unix socket where all are on
//! this host (`local.rs`), else over TCP (`network.rs`; read that first). Rank 0 has one
//! [`Server`](server::Server) for both. If the caller already has a way between its processes, rank
//! 0 uses it to say where it listens (`exchange.rs`). The survivors of a failed communicator meet
//! at a [`Reunion`].

mod busy;
mod coming;
mod connector;
mod contact;
mod contacts;
mod cores;
mod credentials;
mod descriptors;
mod entrance;
mod env;
mod exchange;
mod identity;
mod interfaces;
mod link;
mod listener;
mod local;
mod netlink;
mod network;
mod nodelist;
mod note;
mod pmi;
mod ports;
mod posted;
mod publish;
mod random;
mod reunion;
mod secret_socket;
mod server;
mod survivors;
mod tree;
mod unix;

pub use busy::BusyClock;
pub use contact::RankContact;
pub use cores::Cores;
pub use credentials::read_secret;
pub use descriptors::{check_descriptors, raise_descriptors};
pub use env::{Launched, Launcher, Place, Rendezvous, launched_from_env, place_from_env};
pub use exchange::{Exchange, GroupKeys};
pub use identity::HostIdentity;
pub use netlink::{NetworkLink, network_links};
pub use note::note;
pub use ports::free_port;
pub use random::{fresh_secret, nonce};
pub use reunion::{MeetingPlace, Reunion};
pub use survivors::{Conversation, Message};

use crate::config::{Config, Secret};
use crate::error::{Error, Result};
use crate::transport::{Options, check_required};
use crate::types::Rank;
use local::Introduction;
use network::Network;
use std::net::IpAddr;
use std::time::Duration;

/// The settings of connections follow from those of the job.
fn with_secret(mut config: Config) -> Result<Config> {
    config.tcp.secret = read_secret(&config.job.secret)?;
    config.tcp.is_insecure = config.job.is_insecure;
    config.tcp.is_debugging = config.debug;
    Ok(config)
}

/// The settings of a process that comes to ranks which have met. `place`: the address of one of
/// them; `None`: all are on this host.
pub fn settle_towards(mut config: Config, place: Option<IpAddr>) -> Result<Config> {
    if config.tcp.addresses.is_empty() {
        let named = network::named_interfaces(&config)?;
        let named = named.and_then(|named| Some(named.first()?.ip));
        let own = named.or_else(|| place.and_then(interfaces::source_for));
        let own = own.unwrap_or(std::net::Ipv4Addr::LOCALHOST.into());
        config.tcp.addresses = vec![own];
    }
    with_secret(config)
}

/// One rank's part in bringing the ranks of its job together.
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
    /// Goes where the ranks of the job meet. Over TCP it waits until all have come, at most for the
    /// timeout of the settings. On one host they meet only in [`Meeting::exchange`].
    pub fn go_to(place: &Place, config: &Config, clock: BusyClock<'_>) -> Result<Meeting> {
        raise_descriptors(place.ranks);
        let network = match place.rendezvous {
            _ if place.ranks == 1 => None,
            Rendezvous::Host => None,
            _ => Some(Network::meet(place, config, clock)?),
        };
        Ok(Meeting::by(network, place, config))
    }

    /// As [`Meeting::go_to`], by the caller's exchange.
    pub fn by_exchange(
        keys: &GroupKeys<'_>,
        config: &Config,
        clock: BusyClock<'_>,
    ) -> Result<Meeting> {
        let place = keys.place();
        raise_descriptors(place.ranks);
        let network = match place.ranks {
            1 => None,
            _ => Some(Network::meet_by(keys, config, clock)?),
        };
        Ok(Meeting::by(network, place, config))
    }

    fn by(network: Option<Network>, place: &Place, config: &Config) -> Meeting {
        let way = network.map_or_else(
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
        meeting
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
        if config.job.needs_rdma {
            let agreed = match &self.way {
                Way::Network(network) => Some(&network.agreed),
                Way::Host { .. } => None,
            };
            let options = Options {
                tcp: config.tcp.clone(),
                verbs: config.verbs.clone(),
                ..Options::default()
            };
            let of_rank = (self.rank, self.ranks);
            check_required(&config.transport, of_rank, &options, agreed)?;
        }
        let is_open = matches!(config.transport.as_str(), "auto" | "router");
        let far = match &self.way {
            Way::Network(network) if !network.is_one_host => Some(&network.agreed),
            _ => None,
        };
        if let (true, Some(agreed)) = (is_open, far) {
            let far = agreed.far.name();
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
        let (local_rank, local_ranks) = match &self.way {
            Way::Host { .. } => (self.rank, self.ranks),
            Way::Network(network) => network.local,
        };
        config.verbs.local_rank.get_or_insert(local_rank);
        config.verbs.local_ranks.get_or_insert(local_ranks);
        if let Way::Network(network) = &self.way
            && let Some(secret) = &network.secret
        {
            config.job.secret = Secret::Text(secret.clone());
        }
        with_secret(config)
    }

    /// This rank cannot take part: tells the others, as far as they can be reached soon, and gives
    /// the error back.
    pub fn decline(self, error: Error, clock: BusyClock<'_>) -> Error {
        match self.way {
            Way::Host { job, .. } => local::decline(self.rank, self.ranks, &job, error, clock),
            Way::Network(network) => network.decline(error, clock),
        }
    }

    /// Carries every rank's blob to every rank of the job; returns them by rank.
    pub fn exchange(self, blob: Vec<u8>, clock: BusyClock<'_>) -> Result<Vec<Vec<u8>>> {
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
