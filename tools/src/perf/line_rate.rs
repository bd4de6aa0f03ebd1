//! [`LineRate`]: what the ports in use can carry, so that a bandwidth can be given as a share of
//! it.
//!
//! The bound is that of the wire with its headers (`achievable.rs`) and of PCIe, both ways at once
//! where both sides send. Each port has a wire, and each card one slot, which its ports share. A
//! software device has no wire, whatever rate it says.

use super::achievable::{Carrier, Wire, wire_gigabits};
use super::args::Verb;
use super::options::Options;
use linerate::transport::PortInUse;
use linerate::unstable::verbs::Fabric;
use linerate::unstable::verbs::sysfs::{Device, LinkLayer, PcieLink, Tree};
use std::collections::BTreeMap;

/// The rates of all ports that one side uses.
#[derive(Clone, Debug, PartialEq)]
pub struct LineRate {
    ports: Vec<PortRate>,
    /// Why it is not known, if so.
    reason: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
struct PortRate {
    wire_gigabits: f64,
    /// What it is plugged into: the same for all ports of a card.
    card: String,
    link: Option<PcieLink>,
    wire: Wire,
    mtu_bytes: u32,
}

impl LineRate {
    /// Not known, for this reason.
    pub fn unknown(reason: &str) -> LineRate {
        LineRate {
            ports: Vec::new(),
            reason: Some(reason.into()),
        }
    }

    /// The rates of a transport's ports, by what the kernel says of them.
    pub fn of(transport: &str, ports: &[PortInUse], tree: &Tree) -> LineRate {
        if ports.is_empty() {
            return LineRate::unknown(match transport {
                "shm" => "memory has no line rate; tools/speed measures what it allows",
                "ofi" => "what libfabric's domains can do is not looked at",
                _ => "the way of connections over this host's interfaces is not looked at",
            });
        }
        let devices = tree.devices();
        let rates: Result<Vec<PortRate>, String> =
            ports.iter().map(|port| of_port(port, &devices)).collect();
        match rates {
            Ok(ports) => LineRate {
                ports,
                reason: None,
            },
            Err(reason) => LineRate::unknown(&reason),
        }
    }

    /// Whether it is known.
    pub fn is_known(&self) -> bool {
        self.reason.is_none()
    }

    /// Gbit/s of payload in messages of this many bytes, of both directions together if there are
    /// two.
    pub fn gigabits(&self, options: &Options, bytes: u64) -> Option<f64> {
        let carrier = match options.test.verb() {
            Verb::Write => Carrier::Write,
            Verb::Read => Carrier::ReadAnswer,
            Verb::Send => Carrier::Send,
            // The rate of a device's atomic operations bounds them, and no device tells it.
            Verb::Atomic => return None,
        };
        if options.test.is_latency() || !self.is_known() {
            return None;
        }
        let directions = if options.bidirectional { 2.0 } else { 1.0 };
        // Of each card: what its wires carry together, and its slot.
        let mut cards: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        for port in &self.ports {
            let share = port.wire.payload_share(carrier, bytes, port.mtu_bytes);
            let card = cards.entry(&port.card).or_insert((0.0, f64::INFINITY));
            card.0 += port.wire_gigabits * share;
            // What leaves is read from memory at one end, what arrives is written at the other;
            // equal hosts are assumed, and writing is the dearer of both.
            let slot = port.link.map_or(f64::INFINITY, |link| link.gigabits());
            card.1 = card.1.min(slot);
        }
        let of_card = |&(wires, slot): &(f64, f64)| wires.min(slot);
        Some(directions * cards.values().map(of_card).sum::<f64>())
    }

    /// For the header: the rate for the largest message, or why it is not known.
    pub fn text(&self, options: &Options) -> String {
        let bytes = options.sizes().last().copied().unwrap_or(0);
        match (&self.reason, self.gigabits(options, bytes)) {
            (Some(reason), _) => format!("unknown: {reason}"),
            (None, None) => "unknown: how fast a device does atomic operations is not said".into(),
            (None, Some(gigabits)) => format!(
                "{gigabits:.1} Gbit/s of payload at {bytes} bytes, after the headers of packets and of PCIe{}",
                if options.bidirectional {
                    ", both directions together"
                } else {
                    ""
                }
            ),
        }
    }
}

fn of_port(used: &PortInUse, devices: &[Device]) -> Result<PortRate, String> {
    let name = &used.device;
    let device = devices.iter().find(|device| &device.name == name);
    let device = device.ok_or_else(|| format!("/sys/class/infiniband has no {name}"))?;
    if device.is_software {
        return Err(format!("{name} is software, and has the rate of no wire"));
    }
    let port = device.ports.iter().find(|port| port.number == used.number);
    let port = port.ok_or_else(|| format!("/sys has no port {} of {name}", used.number))?;
    let rate = wire_gigabits(port)
        .ok_or_else(|| format!("{name} does not say its rate ('{}')", port.rate))?;
    let gid = port.gids.iter().find(|gid| gid.index == used.gid_index);
    let is_ipv6 = gid.is_some_and(|gid| gid.ipv4().is_none());
    let wire = match (port.link_layer, gid.map(|gid| gid.kind)) {
        (LinkLayer::InfiniBand, _) => Wire::InfiniBand,
        (_, Some(Fabric::RoceV1)) => Wire::RoceV1,
        _ => Wire::RoceV2 { is_ipv6 },
    };
    Ok(PortRate {
        wire_gigabits: rate,
        card: card(device),
        link: device.link,
        wire,
        mtu_bytes: used.packet_bytes(),
    })
}

/// The PCIe address without the function: ports of a card are often functions of one device.
fn card(device: &Device) -> String {
    let address = device.place.as_ref().and_then(|place| place.path.last());
    let card = address.and_then(|address| address.rsplit_once('.'));
    card.map_or(device.name.clone(), |(card, _)| card.into())
}

#[cfg(test)]
mod tests {
    use super::super::options::tests::options;
    use super::*;
    use std::path::PathBuf;

    fn used(device: &str, mtu_bytes: u32) -> PortInUse {
        PortInUse {
            device: device.into(),
            number: 1,
            mtu_bytes,
            peers_mtu_bytes: None,
            gid_index: 3,
            is_ethernet: true,
            inline_bytes: 0,
            queue_pairs: 1,
        }
    }

    /// A folder for a tree, gone at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Folder {
            let name = format!("linerate-rate-{test}-{}", std::process::id());
            Folder(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// Adds a device with a port of 100 Gbit/s, plugged in at an address, or software.
    fn add(folder: &Folder, name: &str, address: Option<&str>) -> Tree {
        let class = folder.0.join("class/infiniband").join(name);
        let port = class.join("ports/1");
        std::fs::create_dir_all(port.join("gids")).unwrap();
        std::fs::create_dir_all(port.join("gid_attrs/types")).unwrap();
        for (name, text) in [
            ("state", "4: ACTIVE\n"),
            ("phys_state", "5: LinkUp\n"),
            ("link_layer", "Ethernet\n"),
            ("rate", "100 Gb/sec (4X EDR)\n"),
            ("gids/3", "0000:0000:0000:0000:0000:ffff:0a00:0001\n"),
            ("gid_attrs/types/3", "RoCE v2\n"),
        ] {
            std::fs::write(port.join(name), text).unwrap();
        }
        if let Some(address) = address {
            let device = folder
                .0
                .join("devices/pci0000:00/0000:00:01.0")
                .join(address);
            std::fs::create_dir_all(&device).unwrap();
            // 3.0 x16: 15.75 GB/s, less than two ports of 100 Gbit/s.
            std::fs::write(device.join("current_link_speed"), "8.0 GT/s PCIe\n").unwrap();
            std::fs::write(device.join("current_link_width"), "16\n").unwrap();
            std::os::unix::fs::symlink(device, class.join("device")).unwrap();
        }
        Tree::new(&folder.0)
    }

    #[test]
    fn a_port_carries_its_rate_less_the_headers_of_its_packets() {
        let folder = Folder::new("one");
        let tree = add(&folder, "mlx5_0", Some("0000:01:00.0"));
        let rate = |mtu| LineRate::of("verbs", &[used("mlx5_0", mtu)], &tree);
        let known = rate(4096);
        let one = known.gigabits(&options("write_bw").unwrap(), 1 << 20);
        assert!((one.unwrap() - 98.035).abs() < 0.01, "{one:?}");
        let both = known.gigabits(&options("write_bw -b").unwrap(), 1 << 20);
        assert_eq!(both.unwrap(), 2.0 * one.unwrap());
        let less = rate(1024).gigabits(&options("write_bw").unwrap(), 1 << 20);
        assert!(less < one);
        assert!(known.gigabits(&options("write_lat").unwrap(), 8).is_none());
        assert!(known.gigabits(&options("atomic_bw").unwrap(), 8).is_none());
        let text = known.text(&options("write_bw").unwrap());
        assert!(
            text.contains("98.0 Gbit/s") && text.contains("65536"),
            "{text}"
        );
    }

    #[test]
    fn ports_of_a_card_share_its_slot_and_those_of_two_cards_do_not() {
        let folder = Folder::new("cards");
        add(&folder, "mlx5_0", Some("0000:01:00.0"));
        add(&folder, "mlx5_1", Some("0000:01:00.1"));
        let tree = add(&folder, "mlx5_2", Some("0000:02:00.0"));
        let gigabits = |names: &[&str]| {
            let ports: Vec<PortInUse> = names.iter().map(|name| used(name, 4096)).collect();
            let rate = LineRate::of("verbs", &ports, &tree);
            rate.gigabits(&options("write_bw").unwrap(), 1 << 20)
                .unwrap()
        };
        let one = gigabits(&["mlx5_0"]);
        assert!((gigabits(&["mlx5_0", "mlx5_2"]) - 2.0 * one).abs() < 1e-9);
        // 8 GT/s * 16 * 128/130, of which 256 of 280 bytes are payload.
        let shared = gigabits(&["mlx5_0", "mlx5_1"]);
        assert!((shared - 115.23).abs() < 0.01, "{shared}");
        assert!((gigabits(&["mlx5_0", "mlx5_1", "mlx5_2"]) - shared - one).abs() < 1e-9);
    }

    #[test]
    fn what_is_not_known_is_said_with_the_reason() {
        let folder = Folder::new("unknown");
        // A software device may have any name.
        let tree = add(&folder, "fast0", None);
        let text = |transport: &str, ports: &[PortInUse]| {
            let rate = LineRate::of(transport, ports, &tree);
            assert!(!rate.is_known());
            rate.text(&options("write_bw").unwrap())
        };
        assert!(text("shm", &[]).contains("memory has no line rate"));
        assert!(text("tcp", &[]).contains("not looked at"));
        assert!(text("verbs", &[used("fast0", 4096)]).contains("fast0 is software"));
        assert!(text("verbs", &[used("mlx5_9", 4096)]).contains("no mlx5_9"));
    }
}
