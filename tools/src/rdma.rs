//! The RDMA devices of this host for `info` and `doctor`, read from /sys: no device is opened.

use linerate::unstable::verbs::choose::{Choice, Wish, choose};
use linerate::unstable::verbs::sysfs::{self, Tree};
use serde::Serialize;

/// What is here, and what `--transport verbs` would use.
#[derive(Debug, Serialize)]
pub struct Rdma {
    /// By name.
    pub devices: Vec<Device>,
    /// A line for each port, or why none can be used.
    pub choice: Vec<String>,
}

/// A device.
#[derive(Debug, PartialEq, Serialize)]
pub struct Device {
    name: String,
    firmware: Option<String>,
    /// Where it is plugged in, such as 0000:3b:00.0.
    pci_address: Option<String>,
    numa_node: Option<u32>,
    /// As PCIe 4.0 x16.
    pcie_link: Option<String>,
    ports: Vec<Port>,
}

/// A port of it.
#[derive(Debug, PartialEq, Serialize)]
pub struct Port {
    number: u8,
    link_layer: String,
    state: String,
    physical_state: String,
    rate: String,
    gids: Vec<String>,
}

/// Reads the devices and chooses among them.
pub fn collect() -> Rdma {
    let tree = Tree::default();
    let devices = tree.devices();
    Rdma {
        choice: match devices.is_empty() {
            true => Vec::new(),
            false => choice_lines(&own_choice(&tree, &devices)),
        },
        devices: devices.iter().map(shown).collect(),
    }
}

/// What a process here, with its cores, would use.
pub fn own_choice(tree: &Tree, devices: &[sysfs::Device]) -> Result<Choice, linerate::Error> {
    let wish = Wish {
        node: tree.own_node(),
        ..Wish::default()
    };
    choose(devices, &wish)
}

fn choice_lines(choice: &Result<Choice, linerate::Error>) -> Vec<String> {
    match choice {
        Ok(choice) => choice.to_string().lines().map(String::from).collect(),
        Err(error) => vec![error.to_string()],
    }
}

fn shown(device: &sysfs::Device) -> Device {
    let place = device.place.as_ref();
    let port = |port: &sysfs::Port| Port {
        number: port.number,
        link_layer: format!("{:?}", port.link_layer),
        state: port.state.clone(),
        physical_state: port.physical_state.clone(),
        rate: port.rate.clone(),
        gids: port.gids.iter().map(ToString::to_string).collect(),
    };
    Device {
        name: device.name.clone(),
        firmware: device.firmware.clone(),
        pci_address: place.and_then(|place| place.path.last().cloned()),
        numa_node: place.and_then(|place| place.node),
        pcie_link: device.link.map(|link| link.to_string()),
        ports: device.ports.iter().map(port).collect(),
    }
}

/// Names and values, a line each.
pub fn describe(rdma: &Rdma) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    if rdma.devices.is_empty() {
        lines.push(("rdma device".into(), "none (/sys/class/infiniband)".into()));
    }
    for device in &rdma.devices {
        let known = [
            device
                .firmware
                .as_ref()
                .map(|text| format!("firmware {text}")),
            device.pci_address.clone(),
            device.numa_node.map(|node| format!("NUMA node {node}")),
            device.pcie_link.clone(),
        ];
        let known: Vec<String> = known.into_iter().flatten().collect();
        let text = match known.is_empty() {
            true => "software, without PCIe".into(),
            false => known.join(", "),
        };
        lines.push((format!("rdma {}", device.name), text));
        for port in &device.ports {
            let state = format!(
                "{}, {} ({}), {}",
                port.link_layer, port.state, port.physical_state, port.rate
            );
            lines.push((format!("  port {}", port.number), state));
            let gids = port.gids.iter();
            lines.extend(gids.map(|gid| ("    GID".into(), gid.clone())));
        }
    }
    lines.extend(
        rdma.choice
            .iter()
            .map(|line| ("verbs".into(), line.clone())),
    );
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_told_with_its_ports_and_gids() {
        let port = Port {
            number: 1,
            link_layer: "Ethernet".into(),
            state: "ACTIVE".into(),
            physical_state: "LinkUp".into(),
            rate: "100 Gb/sec (4X EDR)".into(),
            gids: vec!["3 (RoCEv2, 10.0.0.1 of eth0)".into()],
        };
        let device = Device {
            name: "mlx5_0".into(),
            firmware: Some("16.35".into()),
            pci_address: Some("0000:3b:00.0".into()),
            numa_node: None,
            pcie_link: Some("PCIe 3.0 x16".into()),
            ports: vec![port],
        };
        let rdma = Rdma {
            devices: vec![device],
            choice: vec!["uses mlx5_0:1: it is the only one".into()],
        };
        let lines: Vec<String> = describe(&rdma)
            .iter()
            .map(|(n, v)| format!("{n}: {v}"))
            .collect();
        assert_eq!(
            lines,
            [
                "rdma mlx5_0: firmware 16.35, 0000:3b:00.0, PCIe 3.0 x16",
                "  port 1: Ethernet, ACTIVE (LinkUp), 100 Gb/sec (4X EDR)",
                "    GID: 3 (RoCEv2, 10.0.0.1 of eth0)",
                "verbs: uses mlx5_0:1: it is the only one",
            ]
        );
    }

    #[test]
    fn a_host_without_devices_says_so_where_they_would_be() {
        let rdma = Rdma {
            devices: Vec::new(),
            choice: Vec::new(),
        };
        assert_eq!(describe(&rdma)[0].1, "none (/sys/class/infiniband)");
    }
}
