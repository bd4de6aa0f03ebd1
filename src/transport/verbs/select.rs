//! Opens the devices that are used; which ones, `choose.rs` says.

use super::asked;
use super::choose::{Choice, Wish, choose};
use super::device::{VerbsDevice, refused, unavailable};
use super::sysfs::Tree;
use crate::config::VerbsSettings;
use crate::error::Result;
use crate::memory::Region;
use crate::transport::Fabric;
use crate::transport::rdma::{RAILS_MAX, Rail, Registered, SLOT_BYTES, Sizes};
use crate::types::Rank;
use linerate_verbs_sys::{Devices, Library};
use std::sync::Arc;

/// Opens the rails that `names` asks for ([`Wish::names`]), and says why these.
pub fn open(
    names: &str,
    rank: Rank,
    sizes: Sizes,
    settings: &VerbsSettings,
) -> Result<(Vec<VerbsDevice>, Choice)> {
    let devices = look()?;
    let tree = Tree::default();
    let wish = Wish {
        names,
        node: tree.own_node(),
        // Ranks that have not met mostly have consecutive numbers on a host.
        local_rank: settings.local_rank.unwrap_or(rank),
        gid_index: settings.gid_index,
        ..Wish::default()
    };
    let known = asked::devices(&devices, &tree).map_err(refused)?;
    let choice = choose(&known, &wish)?;
    let each = settings.queue_pairs.max(1) as usize;
    if choice.rails.len() * each > RAILS_MAX {
        return Err(unavailable(format!(
            "{} ports with {each} queue pairs each (LINERATE_VERBS_QUEUE_PAIRS), {RAILS_MAX} at most",
            choice.rails.len()
        )));
    }
    let mut opened = Vec::new();
    // Each further queue pair is a rail with queues of its own.
    let chosen = (choice.rails.iter()).flat_map(|rail| std::iter::repeat_n(rail, each));
    for (token, chosen) in (0..).zip(chosen) {
        let device = devices.find(&chosen.device).ok_or_else(|| {
            unavailable(format!(
                "the kernel has {} and libibverbs does not know it: is its provider installed (ibverbs-providers)?",
                chosen.device
            ))
        })?;
        let context = device.open().map_err(refused)?;
        opened.push(VerbsDevice::open(context, chosen, sizes, token, settings)?);
    }
    Ok((opened, choice))
}

/// The fabric of the devices that a rank would use in a job of this many ranks. The devices are
/// opened for that, and closed.
pub fn probe(rank: Rank, ranks: u32, settings: &VerbsSettings) -> Result<Fabric> {
    let sizes = Sizes::of(settings.slots, ranks.saturating_sub(1));
    let (devices, choice) = open("", rank, sizes, settings)?;
    let rails: Vec<_> = devices.into_iter().map(Rail::new).collect();
    // Locked memory is what is missing most often: this tries as much as the rings of all peers
    // take.
    let bytes = 2 * SLOT_BYTES * sizes.ring as usize * ranks as usize;
    Registered::region(Arc::new(Region::private(bytes)?), &rails, false)?;
    let gid = choice.rails[0].gid.as_ref();
    Ok(gid.map_or(Fabric::InfiniBand, |chosen| chosen.gid.kind))
}

/// Which ports a rank would use, or why there is none. No device of the kernel is opened.
pub fn check(names: &str) -> Result<Choice> {
    let devices = look()?;
    let tree = Tree::default();
    let wish = Wish {
        names,
        node: tree.own_node(),
        ..Wish::default()
    };
    let known = asked::devices(&devices, &tree).map_err(refused)?;
    choose(&known, &wish)
}

/// What libibverbs knows.
fn look() -> Result<Devices> {
    let library = Library::open().map_err(refused)?;
    library.fork_init().map_err(refused)?;
    let devices = Devices::list(&library).map_err(refused)?;
    match devices.reason() {
        None => Ok(devices),
        Some(reason) => Err(unavailable(format!(
            "{reason}; without such a device use shm within a host and tcp between hosts"
        ))),
    }
}
