//! The choice of RDMA devices and ports: by name, or the nearest of the fastest.
//!
//! Without names one port is chosen:
//! 1. Only ports of channel adapters that carry packets, and on Ethernet only those with a GID.
//! 2. Ports of one link layer, that of the fastest one: every rank must be able to reach every
//!    other, wherever it runs.
//! 3. The fastest, as far as the PCIe link lets them: crossing a socket costs less than a port of
//!    half the speed.
//! 4. The nearest to what the data lies in: the GPU if there is one, else the cores of this
//!    process.
//! 5. Ranks of one host take turns among equals, so that each port has its share. Of software
//!    devices all take the first: two of them on one host do not reach each other. The kernel looks
//!    on the wire for an address that is its own, and gives up after seconds.
//!
//! Names (`verbs:mlx5_0`, `verbs:mlx5_0:1`, `verbs:mlx5_0,mlx5_1`) are taken as they are; several
//! are rails that large messages are spread over. A named port that cannot work is an error and
//! never replaced.
//!
//! Distances have the names that `nvidia-smi topo -m` has: PIX, PXB, PHB, NODE, SYS.

use super::gid::{self, ChosenGid};
use super::sysfs::{Device, LinkLayer, Place, Port, natural};
use crate::error::{Error, Result};
use std::fmt;

/// How the kernel's type of devices begins that speak InfiniBand or RoCE.
const CHANNEL_ADAPTER: &str = "1:";

/// What is asked for, and where the asker is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wish<'a> {
    /// `device[:port]`, several with commas between them; empty: choose. A leading `verbs:` does
    /// not matter.
    pub names: &'a str,
    /// The NUMA node of this process's cores, if it is one.
    pub node: Option<u32>,
    /// The GPU that the data lies in.
    pub gpu: Option<&'a Place>,
    /// The rank's number among those of its host.
    pub local_rank: u32,
    /// The GID to use, on every port.
    pub gid_index: Option<u32>,
}

/// A port that is used.
#[derive(Clone, Debug, PartialEq)]
pub struct Rail {
    /// Its device.
    pub device: String,
    /// Counted from 1.
    pub port: u8,
    /// On Ethernet.
    pub gid: Option<ChosenGid>,
    /// Why it was chosen.
    pub reason: String,
}

/// What is used, and what is not.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// At least one.
    pub rails: Vec<Rail>,
    /// Ports that are not used, as `device:port`, and why.
    pub passed_over: Vec<(String, String)>,
}

/// How far a device is from something else. Smaller is nearer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// Below a common PCIe switch, over this many bridges and ports of switches (PIX, PXB).
    Switch(usize),
    /// Below a common host bridge (PHB).
    HostBridge,
    /// On one NUMA node (NODE).
    Node,
    /// Nobody says where one of them is.
    Unknown,
    /// On another NUMA node (SYS).
    OtherNode,
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distance::Switch(bridges) => {
                write!(f, "behind one PCIe switch, {bridges} bridges away")
            }
            Distance::HostBridge => f.write_str("on the same PCIe host bridge"),
            Distance::Node => f.write_str("on the same NUMA node"),
            Distance::Unknown => f.write_str("at an unknown distance"),
            Distance::OtherNode => f.write_str("on another NUMA node"),
        }
    }
}

/// How far two PCIe devices are from each other.
pub fn distance(a: &Place, b: &Place) -> Distance {
    let common = a
        .path
        .iter()
        .zip(&b.path)
        .take_while(|(a, b)| a == b)
        .count();
    match common {
        0 => node_distance(a.node, b.node),
        1 => Distance::HostBridge,
        // The devices themselves are no bridges.
        _ => Distance::Switch((a.path.len() - common).max(1) + (b.path.len() - common).max(1) - 2),
    }
}

fn node_distance(a: Option<u32>, b: Option<u32>) -> Distance {
    match (a, b) {
        (Some(a), Some(b)) if a == b => Distance::Node,
        (Some(_), Some(_)) => Distance::OtherNode,
        _ => Distance::Unknown,
    }
}

impl fmt::Display for Choice {
    /// A line for each port.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rail in &self.rails {
            write!(f, "uses {}:{}: {}", rail.device, rail.port, rail.reason)?;
            if let Some(chosen) = &rail.gid {
                write!(f, "; GID {}: {}", chosen.gid, chosen.reason)?;
            }
            f.write_str("\n")?;
        }
        for (name, reason) in &self.passed_over {
            writeln!(f, "not {name}: {reason}")?;
        }
        Ok(())
    }
}

/// Chooses among `devices`.
pub fn choose(devices: &[Device], wish: &Wish<'_>) -> Result<Choice> {
    if devices.is_empty() {
        return Err(unavailable(
            "this host has no RDMA device (/sys/class/infiniband is empty): load the NIC's driver, or use tcp",
        ));
    }
    let names = wish.names.strip_prefix("verbs").unwrap_or(wish.names);
    let names = names.strip_prefix(':').unwrap_or(names);
    match names.is_empty() {
        true => nearest(devices, wish),
        false => named(devices, names, wish),
    }
}

/// A port that may be used, and what speaks for it.
struct Candidate<'a> {
    device: &'a Device,
    port: &'a Port,
    gid: Option<ChosenGid>,
    gigabits: f64,
    distance: Distance,
}

impl Candidate<'_> {
    fn name(&self) -> String {
        format!("{}:{}", self.device.name, self.port.number)
    }
}

fn nearest(devices: &[Device], wish: &Wish<'_>) -> Result<Choice> {
    let mut passed_over = Vec::new();
    let mut candidates = Vec::new();
    for device in devices {
        for port in &device.ports {
            match candidate(device, port, wish) {
                Ok(candidate) => candidates.push(candidate),
                Err(reason) => {
                    passed_over.push((format!("{}:{}", device.name, port.number), reason))
                }
            }
        }
    }
    // The fastest first, InfiniBand before Ethernet, hardware before software, the nearest, then by
    // name.
    candidates.sort_by(|a, b| {
        let layer = |c: &Candidate<'_>| c.port.link_layer != LinkLayer::InfiniBand;
        let by_speed = b.gigabits.total_cmp(&a.gigabits);
        by_speed
            .then(layer(a).cmp(&layer(b)))
            .then(a.device.is_software.cmp(&b.device.is_software))
            .then(a.distance.cmp(&b.distance))
            .then_with(|| natural(&a.device.name).cmp(&natural(&b.device.name)))
            .then(a.port.number.cmp(&b.port.number))
    });
    let Some(best) = candidates.first() else {
        let reasons = passed_over
            .iter()
            .map(|(name, reason)| format!("{name}: {reason}"));
        let reasons: Vec<String> = reasons.collect();
        return Err(unavailable(&format!(
            "no port can be used: {}",
            reasons.join("; ")
        )));
    };
    let key = |c: &Candidate<'_>| {
        (
            c.gigabits,
            c.port.link_layer,
            c.device.is_software,
            c.distance,
        )
    };
    let is_equal = |c: &&Candidate<'_>| key(c) == key(best);
    let equals: Vec<&Candidate<'_>> = candidates.iter().take_while(is_equal).collect();
    let chosen = match best.device.is_software {
        true => best,
        false => equals[wish.local_rank as usize % equals.len()],
    };
    let mut reason = format!("{}, {}", speed(chosen), relation(chosen.distance, wish));
    if equals.len() > 1 {
        let why = match best.device.is_software {
            true => "the first, because software devices of one host do not reach each other",
            false => "by the rank's place on its host",
        };
        reason += &format!("; one of {} alike, {why}", equals.len());
    }
    let others = candidates
        .iter()
        .filter(|other| other.name() != chosen.name());
    passed_over.extend(others.map(|other| (other.name(), against(other, chosen, wish))));
    Ok(Choice {
        rails: vec![Rail {
            device: chosen.device.name.clone(),
            port: chosen.port.number,
            gid: chosen.gid.clone(),
            reason,
        }],
        passed_over,
    })
}

/// Why `other` was not taken.
fn against(other: &Candidate<'_>, chosen: &Candidate<'_>, wish: &Wish<'_>) -> String {
    if other.port.link_layer != chosen.port.link_layer {
        return format!(
            "{:?}, and all ranks use {:?}, which {} is",
            other.port.link_layer,
            chosen.port.link_layer,
            chosen.name()
        );
    }
    if other.gigabits < chosen.gigabits {
        return format!("slower: {}", speed(other));
    }
    match other.distance > chosen.distance {
        true => format!("as fast and farther: {}", relation(other.distance, wish)),
        false if other.device.is_software => "as good, and not the first".into(),
        false => "as good; other ranks of this host take it".into(),
    }
}

/// What a port can carry, and what limits it.
fn speed(candidate: &Candidate<'_>) -> String {
    let rate = &candidate.port.rate;
    match candidate.device.link {
        Some(link) if candidate.gigabits < candidate.port.gigabits() => format!(
            "{rate}, of which its PCIe link ({link}) carries {:.0} Gbit/s",
            candidate.gigabits
        ),
        _ => rate.clone(),
    }
}

fn relation(distance: Distance, wish: &Wish<'_>) -> String {
    let from = match (wish.gpu, wish.node) {
        (Some(gpu), _) => format!("from GPU {}", gpu.path.last().map_or("", String::as_str)),
        (None, Some(node)) => format!("from this process's cores (node {node})"),
        (None, None) => {
            "from this process's cores (of several nodes, or of none that is known)".into()
        }
    };
    format!("{distance}, seen {from}")
}

/// Whether a port can be used.
fn candidate<'a>(
    device: &'a Device,
    port: &'a Port,
    wish: &Wish<'_>,
) -> std::result::Result<Candidate<'a>, String> {
    if let Some(kind) = device
        .node_type
        .as_ref()
        .filter(|kind| !kind.starts_with(CHANNEL_ADAPTER))
    {
        return Err(format!(
            "it is no channel adapter but '{kind}': it has no reliable queue pairs that are joined as those of InfiniBand and RoCE are (iWARP, EFA): use tcp"
        ));
    }
    if !port.is_active() {
        return Err(format!(
            "{} ({}): is the cable plugged in, its interface up, and opensm running (InfiniBand)?",
            port.state, port.physical_state
        ));
    }
    let gid = match port.link_layer {
        LinkLayer::Ethernet => {
            Some(gid::choose(&port.gids, wish.gid_index).map_err(|e| e.to_string())?)
        }
        _ => None,
    };
    let distance = match (&device.place, wish.gpu) {
        (Some(place), Some(gpu)) => distance(place, gpu),
        (Some(place), None) => node_distance(place.node, wish.node),
        (None, _) => Distance::Unknown,
    };
    let wire = port.gigabits();
    let bus = device.link.map(|link| link.gigabits());
    Ok(Candidate {
        device,
        port,
        gid,
        gigabits: bus.map_or(wire, |bus| wire.min(bus)),
        distance,
    })
}

fn named(devices: &[Device], names: &str, wish: &Wish<'_>) -> Result<Choice> {
    let mut rails: Vec<Rail> = Vec::new();
    for name in names.split(',').map(str::trim) {
        let candidate = by_name(devices, name, wish)?;
        let is_twice = |rail: &Rail| {
            (&rail.device, rail.port) == (&candidate.device.name, candidate.port.number)
        };
        if rails.iter().any(is_twice) {
            return Err(unavailable(&format!(
                "'{names}' names {} twice",
                candidate.name()
            )));
        }
        rails.push(Rail {
            device: candidate.device.name.clone(),
            port: candidate.port.number,
            reason: format!(
                "named; {}, {}",
                speed(&candidate),
                relation(candidate.distance, wish)
            ),
            gid: candidate.gid,
        });
    }
    Ok(Choice {
        rails,
        passed_over: Vec::new(),
    })
}

fn by_name<'a>(devices: &'a [Device], name: &str, wish: &Wish<'_>) -> Result<Candidate<'a>> {
    let (device_name, number) = match name.split_once(':') {
        Some((device, number)) => (device, Some(number)),
        None => (name, None),
    };
    let device = devices.iter().find(|device| device.name == device_name).ok_or_else(|| {
        let all: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        unavailable(&format!(
            "there is no device '{device_name}'; this host has {}; verbs:DEVICE, verbs:DEVICE:PORT, several with commas",
            all.join(", ")
        ))
    })?;
    let refuse = |port: &Port, reason: &str| {
        unavailable(&format!(
            "{device_name}:{} cannot be used: {reason}",
            port.number
        ))
    };
    if let Some(number) = number {
        let wanted = number.parse::<u8>().ok();
        let port = device
            .ports
            .iter()
            .find(|port| Some(port.number) == wanted)
            .ok_or_else(|| {
                let count = device.ports.len();
                unavailable(&format!("'{name}': {device_name} has ports 1 to {count}"))
            })?;
        return candidate(device, port, wish).map_err(|reason| refuse(port, &reason));
    }
    let mut first = None;
    for port in &device.ports {
        match candidate(device, port, wish) {
            Ok(candidate) => return Ok(candidate),
            Err(reason) => first = first.or(Some(refuse(port, &reason))),
        }
    }
    Err(first.unwrap_or_else(|| unavailable(&format!("{device_name} has no port"))))
}

fn unavailable(reason: &str) -> Error {
    Error::Unavailable {
        transport: "verbs".into(),
        reason: reason.into(),
    }
}
