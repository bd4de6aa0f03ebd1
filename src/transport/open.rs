//! The one list of providers, by the names that flags and `LINERATE_TRANSPORT` use.

use super::Transport;
use super::shm::ShmTransport;
use super::tcp::TcpTransport;
use crate::config::TcpSettings;
use crate::error::{Error, Result};
use crate::types::Rank;

/// Transports that this version knows by name and does not contain.
pub const UNBUILT: [&str; 2] = ["verbs", "ofi"];

/// Opens a provider with its default settings. `auto` is `shm`. `nonce` differs between all ranks and jobs alive on the
/// host.
pub fn open(name: &str, rank: Rank, ranks: u32, nonce: u64) -> Result<Box<dyn Transport>> {
    open_with(name, rank, ranks, nonce, &TcpSettings::default())
}

/// The same; `tcp` with these settings.
pub fn open_with(
    name: &str,
    rank: Rank,
    ranks: u32,
    nonce: u64,
    tcp: &TcpSettings,
) -> Result<Box<dyn Transport>> {
    let unavailable = |reason: &str| Error::Unavailable {
        transport: name.into(),
        reason: reason.into(),
    };
    match name.split(':').next().unwrap_or_default() {
        "auto" | "shm" => Ok(Box::new(ShmTransport::new(rank, ranks, nonce)?)),
        "tcp" => Ok(Box::new(TcpTransport::new(rank, ranks, tcp)?)),
        "sim" => Err(unavailable(
            "it joins ranks of one process only: use linerate::Simulation",
        )),
        known if UNBUILT.contains(&known) => Err(unavailable(
            "it is not part of this version; use shm or tcp",
        )),
        _ => Err(Error::invalid(format!(
            "unknown transport '{name}': auto, shm, sim (in one process), tcp, verbs, ofi"
        ))),
    }
}
