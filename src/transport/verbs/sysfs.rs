//! What the kernel says of RDMA devices: ports, GIDs, the way to them over PCIe, and which cores
//! are near.
//!
//! Everything is read below a root, which is /sys, or a recorded tree in a test. A file that is
//! missing is a value that is unknown: trees differ by driver and kernel, and those of software
//! devices have no PCIe at all.
//!
//! Sources: the kernel's Documentation/ABI/stable/sysfs-class-infiniband and testing/sysfs-bus-pci;
//! for what a link carries, PCI Express base specification 3.1, chapters 2.2 (TLP headers), 3.6
//! (LCRC) and 4.2 (encoding), and Neugebauer et al., "Understanding PCIe performance for end host
//! networking", SIGCOMM 2018, section 3.

use super::gid::Gid;
use crate::transport::Fabric;
use std::fmt;
use std::path::{Component, Path, PathBuf};

/// Places for GIDs that are looked at per port: tables have up to 256, and those in use come first.
const GIDS_MAX: u32 = 256;
/// The look ends after this many empty places in a row: addresses that were removed leave holes.
const HOLES_MAX: u32 = 32;
const PORTS_MAX: u8 = 16;
/// Largest payload of a PCIe packet on most hosts. The exact one is in the device's configuration,
/// which only root may read.
const PCIE_PAYLOAD_BYTES: f64 = 256.0;
/// Framing and sequence (4), LCRC (4) and a header of four words, for 64-bit addresses (16).
const PCIE_HEADER_BYTES: f64 = 24.0;

/// A tree of /sys.
#[derive(Clone, Debug)]
pub struct Tree {
    root: PathBuf,
}

/// An RDMA device.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// As verbs call it, such as mlx5_0.
    pub name: String,
    /// A driver makes it (Soft-RoCE, siw); it has no hardware of its own.
    pub is_software: bool,
    /// What it is to RDMA, as the kernel writes it: `1: CA` (InfiniBand and RoCE), `4: RNIC`
    /// (iWARP), `7: unspecified` (EFA).
    pub node_type: Option<String>,
    /// Firmware, where the driver says.
    pub firmware: Option<String>,
    /// Where it is plugged in; `None` for a software device over an interface that is not.
    pub place: Option<Place>,
    /// The link to it, as it was trained.
    pub link: Option<PcieLink>,
    /// The best link that the device can have.
    pub link_max: Option<PcieLink>,
    /// Its ports, counted from 1.
    pub ports: Vec<Port>,
}

/// Where a PCIe device is plugged in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The host bridge, the ports of bridges and switches on the way, the device; such as
    /// pci0000:00, 0000:00:01.0, 0000:01:00.0.
    pub path: Vec<String>,
    /// The NUMA node of its host bridge.
    pub node: Option<u32>,
}

/// A PCIe link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PcieLink {
    /// 10^9 transfers per second and lane.
    pub gigatransfers: f64,
    /// Lanes.
    pub width: u32,
}

impl PcieLink {
    /// Gbit/s of payload that a device writes over it at best: what arrives. What leaves has
    /// shorter headers. Acknowledgements and flow control of PCIe, some percent, are left out.
    pub fn gigabits(&self) -> f64 {
        let share = PCIE_PAYLOAD_BYTES / (PCIE_PAYLOAD_BYTES + PCIE_HEADER_BYTES);
        self.gigatransfers * self.coding() * f64::from(self.width) * share
    }

    /// Bits of data per bit of the link.
    fn coding(&self) -> f64 {
        match self.gigatransfers {
            // Generations 1 and 2: 8 bits in 10.
            speed if speed <= 5.0 => 8.0 / 10.0,
            // 3 to 5: 128 in 130.
            speed if speed <= 32.0 => 128.0 / 130.0,
            // From 6 on: units of 256 bytes, 236 of them for packets.
            _ => 236.0 / 256.0,
        }
    }

    /// 1 to 6; 0 if it is none of them.
    fn generation(&self) -> u32 {
        let speeds = [2.5, 5.0, 8.0, 16.0, 32.0, 64.0];
        let found = speeds.iter().position(|&speed| speed == self.gigatransfers);
        found.map_or(0, |index| index as u32 + 1)
    }
}

impl fmt::Display for PcieLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PCIe {}.0 x{}", self.generation(), self.width)
    }
}

/// The protocol of a port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE, or iWARP.
    Ethernet,
    /// Something else, such as Omni-Path's.
    Other,
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// Counted from 1.
    pub number: u8,
    /// What it speaks.
    pub link_layer: LinkLayer,
    /// `ACTIVE` if it carries packets; `DOWN`, `INIT`, `ARMED`.
    pub state: String,
    /// Such as `LinkUp`, `Polling`, `Disabled`.
    pub physical_state: String,
    /// As the kernel writes it: `100 Gb/sec (4X EDR)`.
    pub rate: String,
    /// GIDs that are set.
    pub gids: Vec<Gid>,
}

impl Port {
    /// Whether it carries packets.
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }

    /// Its rate in Gbit/s, as the kernel says it; 0 if it does not.
    pub fn gigabits(&self) -> f64 {
        let first = self.rate.split_whitespace().next();
        first.and_then(|text| text.parse().ok()).unwrap_or(0.0)
    }
}

impl Default for Tree {
    fn default() -> Tree {
        Tree::new("/sys")
    }
}

impl Tree {
    /// The tree below `root`, instead of /sys.
    pub fn new(root: impl Into<PathBuf>) -> Tree {
        Tree { root: root.into() }
    }

    /// All RDMA devices, by name. Empty where the kernel has no RDMA.
    pub fn devices(&self) -> Vec<Device> {
        let class = self.root.join("class/infiniband");
        let mut names = entries(&class);
        names.sort_by_key(|name| natural(name));
        names.iter().map(|name| self.device(name)).collect()
    }

    fn device(&self, name: &str) -> Device {
        let folder = self.root.join("class/infiniband").join(name);
        let ports: Vec<Port> = (1..=PORTS_MAX)
            .map_while(|number| port(&folder, number))
            .collect();
        // A software device has no hardware of its own; its interface may.
        let interfaces = ports
            .iter()
            .flat_map(|port| &port.gids)
            .filter_map(|gid| gid.interface.as_ref());
        let below = interfaces.map(|name| self.root.join("class/net").join(name).join("device"));
        let hardware = std::iter::once(folder.join("device")).chain(below);
        let hardware = hardware.into_iter().find(|path| path.exists());
        Device {
            name: name.into(),
            node_type: read(&folder.join("node_type")),
            is_software: !folder.join("device").exists(),
            firmware: read(&folder.join("fw_ver")),
            place: hardware.as_deref().and_then(place),
            link: hardware.as_deref().and_then(|path| link(path, "current")),
            link_max: hardware.as_deref().and_then(|path| link(path, "max")),
            ports,
        }
    }

    /// The GIDs of a device's port that are set now.
    pub fn gids(&self, device: &str, port: u8) -> Vec<Gid> {
        gids(&self.port_folder(device, port))
    }

    /// Whether the kernel has a device of this name.
    pub fn has(&self, device: &str) -> bool {
        self.root.join("class/infiniband").join(device).exists()
    }

    fn port_folder(&self, device: &str, port: u8) -> PathBuf {
        let device = self.root.join("class/infiniband").join(device);
        device.join("ports").join(port.to_string())
    }

    /// Where the PCIe device with this address is, such as a GPU's 0000:17:00.0.
    pub fn pci(&self, address: &str) -> Option<Place> {
        place(
            &self
                .root
                .join("bus/pci/devices")
                .join(address.to_lowercase()),
        )
    }

    /// The NUMA node that all of these cores belong to; `None` if they belong to several, or if
    /// that is unknown.
    pub fn node_of(&self, cores: &[usize]) -> Option<u32> {
        let folder = self.root.join("devices/system/node");
        let nodes = entries(&folder).into_iter().filter_map(|name| {
            let number: u32 = name.strip_prefix("node")?.parse().ok()?;
            Some((number, ranges(&read(&folder.join(&name).join("cpulist"))?)))
        });
        let mut found = nodes.filter(|(_, own)| cores.iter().any(|core| is_in(own, *core)));
        let (node, own) = found.next()?;
        let is_whole = cores.iter().all(|core| is_in(&own, *core));
        (is_whole && found.next().is_none()).then_some(node)
    }

    /// The NUMA node that this process's cores belong to, see [`node_of`](Tree::node_of).
    pub fn own_node(&self) -> Option<u32> {
        let own = rustix::thread::sched_getaffinity(None).ok()?;
        let cores = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| own.is_set(core));
        self.node_of(&cores.collect::<Vec<usize>>())
    }
}

fn port(device: &Path, number: u8) -> Option<Port> {
    let folder = device.join("ports").join(number.to_string());
    // "4: ACTIVE"
    let state = |name| {
        let text = read(&folder.join(name))?;
        Some(
            text.split_once(": ")
                .map_or(text.clone(), |(_, word)| word.into()),
        )
    };
    Some(Port {
        number,
        link_layer: match read(&folder.join("link_layer")).as_deref() {
            Some("InfiniBand") => LinkLayer::InfiniBand,
            Some("Ethernet") => LinkLayer::Ethernet,
            _ => LinkLayer::Other,
        },
        state: state("state")?,
        physical_state: state("phys_state").unwrap_or_default(),
        rate: read(&folder.join("rate")).unwrap_or_default(),
        gids: gids(&folder),
    })
}

fn gids(port: &Path) -> Vec<Gid> {
    let (mut found, mut holes) = (Vec::new(), 0);
    for index in 0..GIDS_MAX {
        match gid(port, index) {
            Some(gid) => {
                found.push(gid);
                holes = 0;
            }
            None if holes == HOLES_MAX => break,
            None => holes += 1,
        }
    }
    found
}

/// `None` for an empty place: its GID is all zeros, and its type cannot be read.
fn gid(port: &Path, index: u32) -> Option<Gid> {
    let text = read(&port.join("gids").join(index.to_string()))?;
    let bytes = text.parse::<std::net::Ipv6Addr>().ok()?.octets();
    if bytes == [0; 16] {
        return None;
    }
    let attribute = |name| read(&port.join("gid_attrs").join(name).join(index.to_string()));
    Some(Gid {
        index,
        bytes,
        kind: match attribute("types").as_deref() {
            Some("RoCE v2") => Fabric::RoceV2,
            _ if read(&port.join("link_layer")).as_deref() == Some("Ethernet") => Fabric::RoceV1,
            _ => Fabric::InfiniBand,
        },
        interface: attribute("ndevs"),
    })
}

/// Follows the link to the folder of a PCIe device and splits its path.
fn place(device: &Path) -> Option<Place> {
    let real = device.canonicalize().ok()?;
    let parts = real.components().filter_map(|part| match part {
        Component::Normal(name) => name.to_str(),
        _ => None,
    });
    let path: Vec<String> = parts
        .skip_while(|name| !name.starts_with("pci"))
        .take_while(|name| name.contains(':'))
        .map(String::from)
        .collect();
    // What hangs off a PCIe device, such as virtio's, has its node.
    let nodes = real
        .ancestors()
        .find_map(|folder| read(&folder.join("numa_node")));
    let node = nodes.and_then(|text| text.parse().ok());
    (!path.is_empty()).then_some(Place { path, node })
}

/// `which`: the link as it is (`current`), or the best that the device can have (`max`).
fn link(device: &Path, which: &str) -> Option<PcieLink> {
    let speed = read(&device.join(format!("{which}_link_speed")))?;
    let width = read(&device.join(format!("{which}_link_width")))?;
    Some(PcieLink {
        // "16.0 GT/s PCIe"; older kernels "8 GT/s".
        gigatransfers: speed.split_whitespace().next()?.parse().ok()?,
        // 0 and 255 mean that it is not known.
        width: width
            .parse()
            .ok()
            .filter(|width| (1..=32).contains(width))?,
    })
}

/// The trimmed text of a file, unless it is missing or empty.
fn read(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.into())
}

fn entries(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// So that mlx5_10 comes after mlx5_9.
pub(super) fn natural(name: &str) -> (String, u64) {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (stem.into(), name[stem.len()..].parse().unwrap_or(0))
}

/// "0-15,32-47" as ranges, both ends inside.
fn ranges(list: &str) -> Vec<(usize, usize)> {
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
    };
    list.split(',').filter_map(range).collect()
}

fn is_in(ranges: &[(usize, usize)], core: usize) -> bool {
    ranges
        .iter()
        .any(|&(first, last)| (first..=last).contains(&core))
}
