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
pub use select::{Candidate, check, check_device, has_efa, list};

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
    let local = (settings.local_rank.unwrap_or(rank), settings.local_ranks);
    let mut devices = Vec::new();
    for found in &select::choose(names, ranks, local, ip)? {
        devices.push(OfiDevice::open(found, sizes, settings.chunk_bytes)?);
    }
    if let (true, 0, Some(device)) = (names.is_empty(), rank, devices.first())
        && device.is_software()
    {
        let name = super::rdma::Device::name(device);
        let text = "software, and tcp and shm are faster";
        super::say(
            rank,
            &format!("ofi: libfabric has no NIC here: {name} is {text}"),
        );
    }
    if devices.iter().any(OfiDevice::is_write_emulated) {
        super::say(
            rank,
            "ofi: this EFA has no writes of its own, and processors do them: slower, and memory of peers that do not answer is kept until the end",
        );
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

/// Whether this rank can use EFA in a job of this many ranks; none: the kernel has no such device.
/// The devices are opened for that, and closed.
pub fn probe_efa(rank: Rank, ranks: u32, settings: &VerbsSettings) -> Option<Result<()>> {
    has_efa().then(|| {
        let sizes = Sizes::of(settings.slots, ranks.saturating_sub(1));
        let local = (settings.local_rank.unwrap_or(rank), settings.local_ranks);
        let ip = IpAddr::from([127, 0, 0, 1]);
        for found in &select::choose("efa", ranks, local, ip)? {
            let device = OfiDevice::open(found, sizes, settings.chunk_bytes)?;
            if device.is_write_emulated() {
                return Err(errors::unavailable(format!(
                    "{device:?}: it has no writes of its own; --transport ofi:efa uses it all the same"
                )));
            }
        }
        Ok(())
    })
}
