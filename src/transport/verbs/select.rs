//! Which devices and ports are used.

use super::device::{Rail, Sizes, refused, unavailable};
use super::record::RAILS_MAX;
use crate::config::VerbsSettings;
use crate::error::Result;
use linerate_verbs_sys::raw::ibv_port_state;
use linerate_verbs_sys::{Devices, Library};

/// Opens the rails that `names` asks for: `device[:port]`, several with commas between them; empty for a choice by the
/// provider.
pub fn open(names: &str, sizes: Sizes, settings: &VerbsSettings) -> Result<Vec<Rail>> {
    let library = Library::open().map_err(refused)?;
    library.fork_init().map_err(refused)?;
    let devices = Devices::list(&library).map_err(refused)?;
    if let Some(reason) = devices.reason() {
        return Err(unavailable(reason));
    }
    let known: Vec<String> = devices.iter().map(|device| device.name()).collect();
    let mut wanted: Vec<(String, u8)> = Vec::new();
    for name in names.split(',').filter(|name| !name.is_empty()) {
        let (device, port) = name.split_once(':').unwrap_or((name, "1"));
        let port = port.parse().ok().filter(|&port| port > 0).ok_or_else(|| {
            unavailable(format!(
                "'{name}': a port is a number from 1, as in mlx5_0:1"
            ))
        })?;
        if !known.iter().any(|other| other == device) {
            return Err(unavailable(format!(
                "there is no device {device}; this host has {}",
                known.join(", ")
            )));
        }
        wanted.push((device.to_string(), port));
    }
    let each = settings.queue_pairs.max(1) as usize;
    if wanted.len().max(1) * each > RAILS_MAX {
        return Err(unavailable(format!(
            "{} devices with {each} queue pairs each (LINERATE_VERBS_QUEUE_PAIRS), {RAILS_MAX} at most",
            wanted.len()
        )));
    }
    let is_chosen = wanted.is_empty();
    if is_chosen {
        wanted.extend(known.iter().map(|name| (name.clone(), 1)));
    }
    let mut rails = Vec::new();
    for (name, port) in wanted {
        let device = devices.find(&name).expect("looked up above");
        let context = device.open().map_err(refused)?;
        if is_chosen {
            let state = context.port(port).map_err(refused)?.state;
            if state != ibv_port_state::IBV_PORT_ACTIVE {
                continue;
            }
        }
        rails.push(Rail::open(
            context,
            port,
            sizes,
            rails.len() as u64,
            settings,
        )?);
        // Another queue pair is another rail, with queues of its own.
        for _ in 1..each {
            let context = device.open().map_err(refused)?;
            rails.push(Rail::open(
                context,
                port,
                sizes,
                rails.len() as u64,
                settings,
            )?);
        }
        if is_chosen {
            break;
        }
    }
    if rails.is_empty() {
        return Err(unavailable(format!(
            "no port is active of {} (ibv_devinfo shows why): connect it, or set its interface up",
            known.join(", ")
        )));
    }
    Ok(rails)
}
