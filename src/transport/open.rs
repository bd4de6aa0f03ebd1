//! The one list of providers, by the names that flags and `LINERATE_TRANSPORT` use.

use super::Transport;
use super::shm::ShmTransport;
use crate::error::{Error, Result};
use crate::types::Rank;

/// Transports that this version knows by name and does not contain.
pub const UNBUILT: [&str; 3] = ["tcp", "verbs", "ofi"];

/// Opens a provider. `auto` is `shm`, the only one so far that joins processes. `nonce` differs between all ranks
/// and jobs alive on the host. `fetches`: messages of memory that is not registered may be read where they lie
/// ([`Transport::fetches`]), if the provider and the host allow it.
pub fn open(
    name: &str,
    rank: Rank,
    ranks: u32,
    nonce: u64,
    fetches: bool,
) -> Result<Box<dyn Transport>> {
    let unavailable = |reason: &str| Error::Unavailable {
        transport: name.into(),
        reason: reason.into(),
    };
    match name.split(':').next().unwrap_or_default() {
        "auto" | "shm" => Ok(Box::new(ShmTransport::new(rank, ranks, nonce, fetches)?)),
        "sim" => Err(unavailable(
            "it joins ranks of one process only: use linerate::Simulation",
        )),
        known if UNBUILT.contains(&known) => {
            Err(unavailable("it is not part of this version; use shm"))
        }
        _ => Err(Error::invalid(format!(
            "unknown transport '{name}': auto, shm, sim (in one process), tcp, verbs, ofi"
        ))),
    }
}
