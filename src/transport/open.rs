//! The one list of providers, by the names that flags and `LINERATE_TRANSPORT` use.

use super::Transport;
use super::router::Router;
use super::shm::ShmTransport;
use super::tcp::TcpTransport;
use super::{ofi, verbs};
use crate::config::{TcpSettings, VerbsSettings};
use crate::error::{Error, Result};
use crate::types::Rank;
use std::net::{IpAddr, Ipv4Addr};

/// Where a rank listens that was told no address.
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// All names, for people.
const NAMES: &str =
    "auto shm tcp verbs[:device] router[:tcp|:verbs..|:ofi..] ofi[:provider[,domain..]] sim";
/// What a router can use between hosts.
const FAR: [&str; 3] = ["tcp", "verbs", "ofi"];

/// An error unless a transport has this name, whether it can be used here or not.
pub fn check_name(name: &str) -> std::result::Result<(), String> {
    let (kind, detail) = match name.split_once(':') {
        Some((kind, detail)) => (kind, Some(detail)),
        None => (name, None),
    };
    let is_known = match (kind, detail) {
        ("auto" | "router" | "shm" | "tcp" | "sim" | "verbs" | "ofi", None) => true,
        ("verbs" | "ofi", Some(detail)) => !detail.is_empty(),
        ("router", Some(far)) if is_far(far) => return check_name(far),
        _ => false,
    };
    match is_known {
        true => Ok(()),
        false => Err(unknown(name)),
    }
}

fn unknown(name: &str) -> String {
    format!("unknown transport '{name}': one of {NAMES}")
}

/// Whether a router can use this provider between hosts.
fn is_far(name: &str) -> bool {
    name.split(':')
        .next()
        .is_some_and(|kind| FAR.contains(&kind))
}

/// What some providers are told besides.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Messages of memory that is not registered may be read where they lie
    /// ([`Mapping::fetches`](super::Mapping::fetches)), if the provider and the host allow it.
    pub fetches: bool,
    /// Of the `tcp` provider.
    pub tcp: TcpSettings,
    /// Of the `verbs` provider.
    pub verbs: VerbsSettings,
    /// This rank's host, for the `router`.
    pub host: u64,
}

impl Options {
    /// A setting that devices cannot keep to, and what it asks for.
    pub(super) fn unkept_promise(&self) -> Option<(&'static str, &'static str)> {
        match (self.tcp.has_tls, self.tcp.has_crc) {
            (true, _) => Some(("LINERATE_TLS=on (--tls)", "encrypt")),
            (_, true) => Some(("LINERATE_INTEGRITY=crc (--integrity crc)", "checksum")),
            _ => None,
        }
    }

    /// An error for a transport of devices where such a setting is on.
    fn check_promises(&self, name: &str) -> Result<()> {
        let Some((flag, what)) = self.unkept_promise() else {
            return Ok(());
        };
        Err(Error::Unavailable {
            transport: name.into(),
            reason: format!(
                "{flag} was asked for, and devices that write into memory by themselves do not {what} what they write: use tcp, or leave it off"
            ),
        })
    }
}

/// Opens a provider. `auto` means `shm` (for ranks on several hosts the communicator asks for
/// `router:tcp` or `router:verbs`, see `agree`), and `router` alone means `router:tcp`. `nonce`
/// differs between all ranks and jobs alive on the host.
pub fn open(
    name: &str,
    rank: Rank,
    ranks: u32,
    nonce: u64,
    options: &Options,
) -> Result<Box<dyn Transport>> {
    let unavailable = |reason: &str| Error::Unavailable {
        transport: name.into(),
        reason: reason.into(),
    };
    match name.split(':').next().unwrap_or_default() {
        "auto" | "shm" => Ok(Box::new(ShmTransport::new(
            rank,
            ranks,
            nonce,
            options.fetches,
        )?)),
        "router" => {
            let far = name.split_once(':').map_or("tcp", |(_, far)| far);
            if !is_far(far) {
                return Err(Error::invalid(format!(
                    "'{name}': the router uses tcp, verbs[:device] or ofi[:provider] between hosts, such as router:verbs"
                )));
            }
            let far = open(far, rank, ranks, nonce, options)?;
            let of_shm = (nonce, options.fetches);
            let of_rank = (rank, ranks);
            Ok(Box::new(Router::new(of_rank, options.host, of_shm, far)?))
        }
        "tcp" => Ok(Box::new(TcpTransport::new(rank, ranks, &options.tcp)?)),
        "verbs" => {
            let devices = name.split_once(':').map_or("", |(_, devices)| devices);
            options.check_promises(name)?;
            let control = Box::new(TcpTransport::new(rank, ranks, &options.tcp)?);
            let (of_rank, debug) = ((rank, ranks), options.tcp.is_debugging);
            let opened = verbs::open(of_rank, devices, control, &options.verbs, debug)?;
            Ok(Box::new(opened))
        }
        "ofi" => {
            let domains = name.split_once(':').map_or("", |(_, domains)| domains);
            options.check_promises(name)?;
            let control = Box::new(TcpTransport::new(rank, ranks, &options.tcp)?);
            let ip = options.tcp.addresses.first().copied();
            let control = (control as Box<dyn Transport>, ip.unwrap_or(LOOPBACK));
            let (of_rank, debug) = ((rank, ranks), options.tcp.is_debugging);
            let opened = ofi::open(of_rank, domains, control, &options.verbs, debug)?;
            Ok(Box::new(opened))
        }
        "sim" => Err(unavailable(
            "it joins ranks of one process only: use linerate::Simulation",
        )),
        _ => Err(Error::invalid(unknown(name))),
    }
}
