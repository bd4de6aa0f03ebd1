//! The `ofi` provider: the protocol of [`rdma`](super::rdma) over libfabric's reliable datagrams,
//! in whatever order they are done: EFA, Slingshot, Omni-Path, and libfabric's own software
//! providers. A rail is a domain of a provider.
//!
//! * Each rail has one endpoint, which writes to all peers and is written to by all. A queue is a
//!   number and a peer's address (`device.rs`).
//! * Posts that the provider has no room for wait in the device, and go on when it is polled.
//! * A provider whose writes with 32 bits take receives gets receives without memory.
//! * Which provider and which domains, `select.rs` says.
//!
//! What it does not have: device memory, copies in posts, atomic operations by devices.
#![allow(unsafe_code)]

mod device;
mod errors;
mod names;
mod offer;
mod queue;
mod select;

pub use device::OfiDevice;
pub use select::{check, list};

use super::Transport;
use super::rdma::{Parts, RdmaTransport, Sizes};
use crate::config::VerbsSettings;
use crate::error::Result;
use crate::types::Rank;
use std::net::IpAddr;

/// The transport of `rank` on the domains that `names` asks for (`select.rs`), with peers found
/// through `control`. `ip` is the address of this rank's host on the network of the job.
pub fn open(
    (rank, ranks): (Rank, u32),
    names: &str,
    (control, ip): (Box<dyn Transport>, IpAddr),
    settings: &VerbsSettings,
    is_debugging: bool,
) -> Result<RdmaTransport<OfiDevice>> {
    settings.check()?;
    let settings = VerbsSettings {
        // No domain is asked for atomic operations.
        has_device_atomics: false,
        has_plain_words: false,
        ..settings.clone()
    };
    let sizes = Sizes::of(settings.slots, ranks.saturating_sub(1));
    let local_rank = settings.local_rank.unwrap_or(rank);
    let infos = select::choose(names, ranks, local_rank, ip)?;
    let mut devices = Vec::new();
    for info in &infos {
        devices.push(OfiDevice::open(info, sizes, settings.chunk_bytes)?);
    }
    if is_debugging {
        for device in &devices {
            super::say(rank, &format!("ofi: {device:?}"));
        }
    }
    let of_rank = (rank, ranks);
    let parts = Parts {
        devices,
        sizes,
        control,
    };
    RdmaTransport::new(of_rank, parts, &settings, is_debugging)
}
