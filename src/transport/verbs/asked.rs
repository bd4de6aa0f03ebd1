//! What libibverbs says of devices that /sys does not list: a library may bring devices of its own.
//! Those of the kernel are read from /sys, which opens none of them.

use super::gid::Gid;
use super::sysfs::{Device, LinkLayer, Port, Tree};
use crate::transport::Fabric;
use linerate_verbs_sys::raw::{ibv_gid_type, ibv_node_type, ibv_port_attr, ibv_port_state};
use linerate_verbs_sys::{Context, Devices, LINK_LAYER_ETHERNET, LINK_LAYER_INFINIBAND, Result};

/// All devices that are there: those of the kernel, and then those that only the library knows.
/// An error if none can be used, because it cannot be opened.
pub fn devices(library: &Devices, tree: &Tree) -> Result<Vec<Device>> {
    let (mut all, mut refusal) = (tree.devices(), None);
    for device in library.iter() {
        let name = device.name();
        let is_listed = all.iter().any(|known| known.name == name);
        match (!is_listed).then(|| device.open()) {
            Some(Ok(context)) => all.push(asked(&context, device.node_type())),
            Some(Err(error)) => refusal = Some(error),
            None => {}
        }
    }
    match refusal.filter(|_| all.is_empty()) {
        Some(error) => Err(error),
        None => Ok(all),
    }
}

/// The GIDs of a device's port that are set now.
pub fn gids(context: &Context, port: u8) -> Vec<Gid> {
    let tree = Tree::default();
    match tree.has(context.name()) {
        true => tree.gids(context.name(), port),
        false => asked_gids(context, port),
    }
}

fn asked(context: &Context, node_type: ibv_node_type) -> Device {
    let attributes = context.attributes().ok();
    let count = attributes.map_or(0, |all| all.orig_attr.phys_port_cnt);
    let ports = (1..=count).filter_map(|number| {
        let state = context.port(number).ok()?;
        Some(Port {
            number,
            link_layer: match state.link_layer {
                LINK_LAYER_INFINIBAND => LinkLayer::InfiniBand,
                LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
                _ => LinkLayer::Other,
            },
            state: match state.state {
                ibv_port_state::IBV_PORT_ACTIVE => "ACTIVE".into(),
                other => context.library().port_state_text(other).to_uppercase(),
            },
            physical_state: match state.phys_state {
                PHYSICAL_LINK_UP => "LinkUp".into(),
                other => other.to_string(),
            },
            rate: format!("{} Gb/sec", gigabits(&state)),
            gids: asked_gids(context, number),
        })
    });
    Device {
        name: context.name().into(),
        is_software: true,
        node_type: Some(match node_type {
            ibv_node_type::IBV_NODE_CA => "1: CA".into(),
            other => format!("{}: no CA", other.0),
        }),
        firmware: None,
        place: None,
        link: None,
        link_max: None,
        ports: ports.collect(),
    }
}

/// `phys_state` of a port whose link is up.
const PHYSICAL_LINK_UP: u8 = 5;

fn asked_gids(context: &Context, port: u8) -> Vec<Gid> {
    let all = context.gids(port).unwrap_or_default().into_iter();
    let of_port = all.filter(|gid| gid.port == u32::from(port) && gid.bytes != [0; 16]);
    let gids = of_port.map(|gid| Gid {
        index: gid.index,
        bytes: gid.bytes,
        kind: match gid.kind {
            ibv_gid_type::IBV_GID_TYPE_ROCE_V2 => Fabric::RoceV2,
            ibv_gid_type::IBV_GID_TYPE_ROCE_V1 => Fabric::RoceV1,
            _ => Fabric::InfiniBand,
        },
        interface: None,
    });
    gids.collect()
}

/// What a port carries, by its width and the speed of a lane (InfiniBand specification 1.5,
/// PortInfo).
pub(super) fn gigabits(state: &ibv_port_attr) -> f64 {
    let lanes = match state.active_width {
        1 => 1.0,
        2 => 4.0,
        4 => 8.0,
        8 => 12.0,
        16 => 2.0,
        _ => 0.0,
    };
    let lane = match state.active_speed {
        1 => 2.5,
        2 => 5.0,
        4 | 8 => 10.0,
        16 => 14.0,
        32 => 25.0,
        64 => 50.0,
        128 => 100.0,
        _ => 0.0,
    };
    lanes * lane
}
