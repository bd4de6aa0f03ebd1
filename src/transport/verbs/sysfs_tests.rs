//! Devices of recorded trees, and the choice among them.
//!
//! A tree is a text: `path = content` or `path -> target` per line. One of a machine is made with
//!
//! ```text
//! cd /sys
//! links="$(find class/infiniband bus/pci/devices class/net -type l; find devices -type l -name device)"
//! for p in $links; do echo "$p -> $(readlink $p)"; done
//! ```
//!
//! and, for the files that `sysfs.rs` reads, `echo "$p = $(cat $p)"`.

use super::choose::{Choice, Distance, Wish, choose, distance};
use super::sysfs::{Device, LinkLayer, PcieLink, Tree};
use std::path::{Path, PathBuf};

/// A tree, laid out in a folder of its own.
struct Recorded {
    root: PathBuf,
    tree: Tree,
}

impl Recorded {
    fn new(name: &str, test: &str) -> Recorded {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/sysfs");
        let text = std::fs::read_to_string(data.join(format!("{name}.tree"))).unwrap();
        let folder = format!("linerate-sysfs-{}-{name}-{test}", std::process::id());
        let root = std::env::temp_dir().join(folder);
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        for line in lines {
            let (is_link, separator) = (line.contains(" -> "), [" = ", " -> "]);
            let (path, value) = line.split_once(separator[usize::from(is_link)]).unwrap();
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            match is_link {
                true => std::os::unix::fs::symlink(value, path).unwrap(),
                false => std::fs::write(path, format!("{value}\n")).unwrap(),
            }
        }
        let tree = Tree::new(&root);
        Recorded { root, tree }
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

fn names(devices: &[Device]) -> Vec<&str> {
    devices.iter().map(|device| device.name.as_str()).collect()
}

fn used(choice: &Choice) -> Vec<String> {
    let rails = choice.rails.iter();
    rails
        .map(|rail| format!("{}:{}", rail.device, rail.port))
        .collect()
}

fn refusal(devices: &[Device], names: &str) -> String {
    let wish = Wish {
        names,
        ..Wish::default()
    };
    choose(devices, &wish).unwrap_err().to_string()
}

#[test]
fn a_machine_of_two_sockets_is_read_whole() {
    let recorded = Recorded::new("two_nodes", "read");
    let devices = recorded.tree.devices();
    assert_eq!(
        names(&devices),
        ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5"]
    );
    let [first, .., last] = &devices[..] else {
        panic!()
    };
    assert_eq!(first.firmware.as_deref(), Some("28.39.1002"));
    assert_eq!(
        first.link,
        Some(PcieLink {
            gigatransfers: 32.0,
            width: 16
        })
    );
    let port = &first.ports[0];
    assert_eq!(
        (port.link_layer, port.gigabits()),
        (LinkLayer::InfiniBand, 400.0)
    );
    assert!(port.is_active() && port.gids.len() == 1, "{port:?}");
    assert_eq!(first.place.as_ref().unwrap().path.len(), 5);
    assert_eq!(last.place.as_ref().unwrap().node, Some(1));
    assert_eq!(
        (
            last.ports[0].state.as_str(),
            last.ports[0].physical_state.as_str()
        ),
        ("INIT", "LinkUp")
    );
    let ethernet = &devices[2].ports[0];
    assert_eq!(ethernet.gids.len(), 4, "empty places are left out");
    assert_eq!(
        ethernet.gids[3].to_string(),
        "3 (RoCEv2, 10.1.0.7 of ens1f0np0)"
    );
}

#[test]
fn cores_of_one_node_have_it_and_others_none() {
    let recorded = Recorded::new("two_nodes", "cores");
    let node = |cores: &[usize]| recorded.tree.node_of(cores);
    assert_eq!(node(&[0, 47, 96]), Some(0));
    assert_eq!(node(&[191]), Some(1));
    assert_eq!(node(&[47, 48]), None, "of both");
    assert_eq!(node(&[500]), None, "of neither");
    assert_eq!(node(&[]), None);
}

#[test]
fn distances_are_those_of_the_pcie_tree() {
    let recorded = Recorded::new("two_nodes", "distances");
    let at = |address| recorded.tree.pci(address).unwrap();
    let gpu = at("0000:18:00.0");
    assert_eq!(distance(&gpu, &at("0000:19:00.0")), Distance::Switch(2));
    assert_eq!(
        distance(&at("0000:27:00.0"), &at("0000:27:00.1")),
        Distance::Switch(0)
    );
    assert_eq!(distance(&gpu, &at("0000:3b:00.0")), Distance::Node);
    assert_eq!(distance(&gpu, &at("0000:9B:00.0")), Distance::OtherNode);
    assert!(recorded.tree.pci("0000:ff:00.0").is_none());
    assert!(Distance::Switch(9) < Distance::HostBridge && Distance::Unknown < Distance::OtherNode);
}

#[test]
fn the_nearest_of_the_fastest_ports_is_used() {
    let recorded = Recorded::new("two_nodes", "nearest");
    let devices = recorded.tree.devices();
    let gpu = recorded.tree.pci("0000:3a:00.0").unwrap();
    let by_gpu = choose(
        &devices,
        &Wish {
            gpu: Some(&gpu),
            ..Wish::default()
        },
    )
    .unwrap();
    assert_eq!(used(&by_gpu), ["mlx5_1:1"]);
    let text = by_gpu.to_string();
    for expected in [
        "uses mlx5_1:1: 400 Gb/sec (4X NDR), behind one PCIe switch, 2 bridges away, seen from GPU 0000:3a:00.0\n",
        "not mlx5_0:1: as fast and farther: on the same NUMA node",
        "not mlx5_2:1: Ethernet, and all ranks use InfiniBand",
        "not mlx5_3:1: DOWN (Disabled)",
        "not mlx5_4:1: as fast and farther: on another NUMA node",
        "not mlx5_5:1: INIT (LinkUp): is the cable plugged in, its interface up, and opensm running",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    let by_node = choose(
        &devices,
        &Wish {
            node: Some(1),
            ..Wish::default()
        },
    )
    .unwrap();
    assert_eq!(used(&by_node), ["mlx5_4:1"], "its neighbour is not ready");
}

#[test]
fn ranks_of_a_host_take_turns_among_equals() {
    let recorded = Recorded::new("two_nodes", "turns");
    let devices = recorded.tree.devices();
    let by_local_rank = |node, local_rank| {
        let choice = choose(
            &devices,
            &Wish {
                node,
                local_rank,
                ..Wish::default()
            },
        )
        .unwrap();
        used(&choice).remove(0)
    };
    let of_node = [0, 1, 2].map(|local_rank| by_local_rank(Some(0), local_rank));
    assert_eq!(of_node, ["mlx5_0:1", "mlx5_1:1", "mlx5_0:1"]);
    // Without a place all three are alike.
    let of_none = [0, 1, 2, 3].map(|local_rank| by_local_rank(None, local_rank));
    assert_eq!(of_none, ["mlx5_0:1", "mlx5_1:1", "mlx5_4:1", "mlx5_0:1"]);
}

#[test]
fn a_port_behind_half_a_link_is_slower_than_a_whole_one_on_the_other_socket() {
    let recorded = Recorded::new("degraded_link", "choice");
    let devices = recorded.tree.devices();
    let choice = choose(
        &devices,
        &Wish {
            node: Some(1),
            ..Wish::default()
        },
    )
    .unwrap();
    assert_eq!(used(&choice), ["mlx5_0:1"]);
    let text = choice.to_string();
    for expected in [
        "on another NUMA node, seen from this process's cores (node 1)",
        "GID 3 (RoCEv2, 10.7.0.21 of enp59s0np0): RoCEv2 with an IPv4 address",
        "not mlx5_1:1: slower: 100 Gb/sec (4X EDR), of which its PCIe link (PCIe 3.0 x8) carries 58 Gbit/s",
        "not bnxt_re0:1: slower: 25 Gb/sec",
        "not bnxt_re1:1: the port has no GID",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
}

#[test]
fn names_are_taken_as_they_are() {
    let recorded = Recorded::new("two_nodes", "names");
    let devices = recorded.tree.devices();
    let by_name = |names| {
        used(
            &choose(
                &devices,
                &Wish {
                    names,
                    ..Wish::default()
                },
            )
            .unwrap(),
        )
    };
    assert_eq!(by_name("verbs:mlx5_2"), ["mlx5_2:1"]);
    assert_eq!(by_name("mlx5_4:1"), ["mlx5_4:1"]);
    assert_eq!(by_name("verbs:mlx5_1, mlx5_0:1"), ["mlx5_1:1", "mlx5_0:1"]);
    for (names, expected) in [
        ("mlx5_9", "no device 'mlx5_9'; this host has mlx5_0, mlx5_1"),
        ("mlx5_0:2", "ports 1 to 1"),
        ("mlx5_0:x", "ports 1 to 1"),
        ("mlx5_3", "mlx5_3:1 cannot be used: DOWN (Disabled)"),
        ("mlx5_0,mlx5_5:1", "mlx5_5:1 cannot be used: INIT"),
        ("mlx5_0,mlx5_0:1", "names mlx5_0:1 twice"),
        ("mlx5_0,", "no device ''"),
    ] {
        let text = refusal(&devices, names);
        assert!(text.contains(expected), "{names}: {text}");
    }
}

#[test]
fn a_device_without_a_port_number_is_used_by_its_first_active_port() {
    let recorded = Recorded::new("two_ports", "port");
    let devices = recorded.tree.devices();
    let by_name = |names| {
        choose(
            &devices,
            &Wish {
                names,
                ..Wish::default()
            },
        )
    };
    let choice = by_name("mlx4_0").unwrap();
    assert_eq!(used(&choice), ["mlx4_0:2"]);
    let gid = &choice.rails[0].gid.as_ref().unwrap().gid;
    assert_eq!(gid.ipv4().unwrap().to_string(), "192.168.4.2");
    assert_eq!(used(&by_name("").unwrap()), ["mlx4_0:2"]);
    assert!(refusal(&devices, "mlx4_0:1").contains("DOWN (Polling)"));
    let asked = Wish {
        gid_index: Some(0),
        ..Wish::default()
    };
    assert_eq!(
        choose(&devices, &asked).unwrap().rails[0]
            .gid
            .as_ref()
            .unwrap()
            .gid
            .index,
        0
    );
    assert_eq!(devices[0].place.as_ref().unwrap().node, None);
}

#[test]
fn soft_roce_has_no_pcie_but_its_interface_may() {
    let recorded = Recorded::new("soft_roce", "soft");
    let devices = recorded.tree.devices();
    assert_eq!((&devices[0].place, devices[0].link), (&None, None));
    assert_eq!(
        devices[1].place.as_ref().unwrap().path,
        ["pci0000:00", "0000:00:04.0"]
    );
    assert_eq!(devices[1].link, None);
    let choice = choose(&devices, &Wish::default()).unwrap();
    assert_eq!(used(&choice), ["rxe0:1"]);
    assert!(
        choice
            .to_string()
            .contains("GID 1 (RoCEv2, 10.77.0.1 of va)"),
        "{choice}"
    );
}

#[test]
fn ranks_of_a_host_do_not_take_turns_among_software_devices() {
    let recorded = Recorded::new("soft_roce", "turns");
    let first = recorded.tree.devices().remove(0);
    let mut second = first.clone();
    second.name = "rxe1".into();
    assert!(first.is_software);
    let mut hardware = first.clone();
    (hardware.name, hardware.is_software) = ("mlx5_0".into(), false);
    let by_local_rank = |devices: &[Device], local_rank| {
        let wish = Wish {
            local_rank,
            ..Wish::default()
        };
        choose(devices, &wish).unwrap()
    };
    let both = [second, first];
    for local_rank in 0..3 {
        let choice = by_local_rank(&both, local_rank);
        assert_eq!(used(&choice), ["rxe0:1"], "local_rank {local_rank}");
        let text = choice.to_string();
        assert!(text.contains("do not reach each other"), "{text}");
        // A device with hardware is better, and no turn is given to the others.
        let three = [&both[..], &[hardware.clone()]].concat();
        assert_eq!(
            used(&by_local_rank(&three, local_rank)),
            ["mlx5_0:1"],
            "local_rank {local_rank}"
        );
    }
}

/// iWARP shows Ethernet ports with GIDs too, and nobody could join its queue pairs.
#[test]
fn devices_that_are_no_channel_adapters_are_passed_over_with_the_reason() {
    let recorded = Recorded::new("soft_roce", "types");
    let adapter = recorded.tree.devices().remove(0);
    let mut other = adapter.clone();
    (other.name, other.node_type) = ("siw0".into(), Some("4: RNIC".into()));
    let both = [other.clone(), adapter];
    let choice = choose(&both, &Wish::default()).unwrap();
    assert_eq!(used(&choice), ["rxe0:1"]);
    let (name, reason) = &choice.passed_over[0];
    assert_eq!(name, "siw0:1");
    assert!(reason.contains("'4: RNIC'") && reason.contains("use tcp"));
    for names in ["", "siw0"] {
        assert!(refusal(&[other.clone()], names).contains("'4: RNIC'"));
    }
}

#[test]
fn the_table_of_gids_is_read_whole() {
    let recorded = Recorded::new("soft_roce", "gids");
    let gids = recorded.tree.gids("rxe0", 1);
    assert!(gids.len() >= 2, "{gids:?}");
    assert!(gids.is_sorted_by_key(|gid| gid.index), "{gids:?}");
    assert!(recorded.tree.has("rxe0") && !recorded.tree.has("rxe7"));
    assert_eq!(recorded.tree.gids("rxe7", 1), []);
}

#[test]
fn no_device_and_no_port_are_said_with_what_to_do() {
    assert!(refusal(&[], "").contains("no RDMA device"));
    let recorded = Recorded::new("two_nodes", "down");
    let devices = recorded.tree.devices();
    let down = &devices[3..4];
    let text = refusal(down, "");
    assert!(
        text.contains("no port can be used: mlx5_3:1: DOWN"),
        "{text}"
    );
    let nowhere = Tree::new(recorded.root.join("nowhere"));
    assert!(nowhere.devices().is_empty() && nowhere.node_of(&[0]).is_none());
}

#[test]
fn what_a_chosen_port_can_carry_follows_from_the_tree() {
    let recorded = Recorded::new("degraded_link", "bound");
    let devices = recorded.tree.devices();
    let bound = |device: &Device| {
        let bus = device.link.unwrap().gigabits();
        bus.min(device.ports[0].gigabits())
    };
    let [.., whole, half] = &devices[..] else {
        panic!()
    };
    assert_eq!(bound(whole), 100.0, "the wire");
    assert!(
        (bound(half) - 57.61).abs() < 0.01,
        "eight lanes: {}",
        bound(half)
    );
}

#[test]
fn pcie_carries_what_coding_and_headers_leave() {
    let link = |gigatransfers, width| PcieLink {
        gigatransfers,
        width,
    };
    let near = |found: f64, expected: f64| {
        assert!((found - expected).abs() < 0.05, "{found}, not {expected}")
    };
    near(link(8.0, 16).gigabits(), 115.2);
    near(link(16.0, 16).gigabits(), 230.5);
    near(link(5.0, 8).gigabits(), 29.3);
    let names = [link(2.5, 1), link(32.0, 16), link(64.0, 4), link(7.0, 2)].map(|l| l.to_string());
    assert_eq!(
        names,
        ["PCIe 1.0 x1", "PCIe 5.0 x16", "PCIe 6.0 x4", "PCIe 0.0 x2"]
    );
}
