//! The `verbs` provider: the protocol of [`rdma`](super::rdma) over reliable queue pairs, whose
//! writes and reads are done in order. A rail is a port of a device.
//!
//! Read first: `device.rs`. `choose.rs` says which ports a rank uses, by what `sysfs.rs` tells of
//! the machine.
#![allow(unsafe_code)]

mod asked;
pub mod choose;
mod device;
mod events;
pub mod gid;
mod half;
mod port;
mod queue;
mod select;
pub mod sysfs;
#[cfg(test)]
mod sysfs_tests;
#[cfg(test)]
mod tests;

pub use device::VerbsDevice;
pub use select::{check, probe};

use super::Transport;
use super::rdma::{Parts, RdmaTransport, Sizes};
use crate::config::VerbsSettings;
use crate::error::Result;
use crate::types::Rank;

/// The transport of `rank` on the devices that `devices` names (`select.rs`), with peers found
/// through `control`.
pub fn open(
    (rank, ranks): (Rank, u32),
    devices: &str,
    control: Box<dyn Transport>,
    settings: &VerbsSettings,
    is_debugging: bool,
) -> Result<RdmaTransport<VerbsDevice>> {
    settings.check()?;
    let sizes = Sizes::of(settings.slots, ranks.saturating_sub(1));
    let (devices, choice) = select::open(devices, rank, sizes, settings)?;
    if is_debugging {
        for line in choice.to_string().lines() {
            super::say(rank, &format!("verbs: {line}"));
        }
    }
    let of_rank = (rank, ranks);
    let parts = Parts {
        devices,
        sizes,
        control,
    };
    RdmaTransport::new(of_rank, parts, settings, is_debugging)
}
