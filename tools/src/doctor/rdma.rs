//! RDMA devices: ports that are down, links that are slower than they could be, addresses that
//! cannot be routed, files that may not be opened. Nothing is opened here, and a host without
//! devices has no findings.

use super::finding::Finding;
use crate::rdma;
use linerate::Error;
use linerate::unstable::verbs::choose::Choice;
use linerate::unstable::verbs::sysfs::{Device, Tree};
use rustix::fs::{Access, access};
use std::path::PathBuf;

const CHECK: &str = "rdma";

/// Everything about RDMA devices.
pub fn examine() -> Vec<Finding> {
    let tree = Tree::default();
    let devices = tree.devices();
    if devices.is_empty() {
        return Vec::new();
    }
    let mut findings: Vec<Finding> = devices.iter().flat_map(judge_device).collect();
    findings.push(judge_files(&files()));
    findings.push(judge_choice(
        &rdma::own_choice(&tree, &devices),
        linerate::unstable::ofi::has_efa(),
    ));
    findings
}

fn judge_device(device: &Device) -> Vec<Finding> {
    let name = &device.name;
    let mut findings = Vec::new();
    if !device.ports.iter().any(|port| port.is_active()) {
        let port = |port: &linerate::unstable::verbs::sysfs::Port| {
            format!(
                "port {}: {} ({})",
                port.number, port.state, port.physical_state
            )
        };
        let ports: Vec<String> = device.ports.iter().map(port).collect();
        findings.push(Finding::warning(
            CHECK,
            format!("{name} has no active port: {}", ports.join(", ")),
            "ip link set IFACE up (rdma link shows which); InfiniBand: systemctl start opensm on one host of the fabric",
        ));
    }
    if let (Some(link), Some(best)) = (device.link, device.link_max)
        && (link.width < best.width || link.gigatransfers < best.gigatransfers)
    {
        let address = device.place.as_ref().and_then(|place| place.path.last());
        let address = address.map_or("", String::as_str);
        findings.push(Finding::warning(
            CHECK,
            format!(
                "{name} is connected by {link} and could be by {best}: at most {:.0} instead of {:.0} Gbit/s",
                link.gigabits(),
                best.gigabits()
            ),
            format!("lspci -vv -s {address} | grep Lnk; put the card into another slot, or reseat it"),
        ));
    }
    findings
}

/// The files that verbs open, and whether this user may.
fn files() -> Vec<(PathBuf, bool)> {
    let entries = std::fs::read_dir("/dev/infiniband")
        .into_iter()
        .flatten()
        .flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("uverbs")
    });
    paths.sort();
    let may = |path: &PathBuf| access(path, Access::READ_OK | Access::WRITE_OK).is_ok();
    paths
        .into_iter()
        .map(|path| (path.clone(), may(&path)))
        .collect()
}

fn judge_files(files: &[(PathBuf, bool)]) -> Finding {
    if files.is_empty() {
        return Finding::fault(
            CHECK,
            "there are RDMA devices, and no /dev/infiniband/uverbs* to open them by",
            "modprobe ib_uverbs (containers: docker run --device /dev/infiniband)",
        );
    }
    let refused: Vec<String> = files
        .iter()
        .filter(|(_, may)| !may)
        .map(|(path, _)| path.display().to_string())
        .collect();
    match refused.is_empty() {
        true => Finding::good(CHECK, "this user may open the devices (/dev/infiniband)"),
        false => Finding::fault(
            CHECK,
            format!("this user may not open {}", refused.join(", ")),
            "chmod 666 /dev/infiniband/uverbs*, or the user's group (rdma) in a udev rule",
        ),
    }
}

fn judge_choice(choice: &Result<Choice, Error>, has_efa: bool) -> Finding {
    match choice {
        Ok(choice) => {
            let text = choice.to_string();
            let used: Vec<&str> = text
                .lines()
                .filter(|line| line.starts_with("uses"))
                .collect();
            Finding::good(CHECK, format!("verbs {}", used.join("; ")))
        }
        // EFA is for libfabric.
        Err(error) if has_efa => Finding::note(CHECK, error.to_string(), "linerate info"),
        Err(error) => Finding::warning(
            CHECK,
            error.to_string(),
            "rdma link; ibv_devinfo: bring one port up",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;
    use linerate::unstable::verbs::sysfs::{LinkLayer, PcieLink, Port};

    fn device(state: &str, width: u32) -> Device {
        let link = |width| {
            Some(PcieLink {
                gigatransfers: 8.0,
                width,
            })
        };
        Device {
            name: "mlx5_0".into(),
            is_software: false,
            node_type: None,
            firmware: None,
            place: None,
            link: link(width),
            link_max: link(16),
            ports: vec![Port {
                number: 1,
                link_layer: LinkLayer::Ethernet,
                state: state.into(),
                physical_state: "LinkUp".into(),
                rate: "100 Gb/sec (4X EDR)".into(),
                gids: Vec::new(),
            }],
        }
    }

    #[test]
    fn ports_that_are_down_and_links_that_are_narrow_are_warned_of() {
        assert_eq!(judge_device(&device("ACTIVE", 16)), []);
        let [finding] = &judge_device(&device("DOWN", 16))[..] else {
            panic!()
        };
        assert!(
            finding.text.contains("port 1: DOWN (LinkUp)"),
            "{finding:?}"
        );
        let [finding] = &judge_device(&device("ACTIVE", 8))[..] else {
            panic!()
        };
        assert_eq!(finding.level, Level::Warning);
        let expected = "PCIe 3.0 x8 and could be by PCIe 3.0 x16: at most 58 instead of 115 Gbit/s";
        assert!(finding.text.contains(expected), "{finding:?}");
    }

    #[test]
    fn files_that_may_not_be_opened_are_a_fault() {
        let file = |may| (PathBuf::from("/dev/infiniband/uverbs0"), may);
        assert_eq!(judge_files(&[file(true)]).level, Level::Good);
        let refused = judge_files(&[file(true), file(false)]);
        assert_eq!(refused.level, Level::Fault);
        assert!(refused.text.contains("uverbs0") && refused.mend.unwrap().contains("chmod"));
        assert!(judge_files(&[]).mend.unwrap().contains("ib_uverbs"));
    }

    #[test]
    fn what_would_be_used_is_said_or_why_nothing() {
        let error = judge_choice(
            &linerate::unstable::verbs::choose::choose(&[], &Default::default()),
            false,
        );
        assert_eq!(error.level, Level::Warning);
        assert!(error.text.contains("no RDMA device"), "{error:?}");
        let devices = [Device {
            place: None,
            ..device("ACTIVE", 16)
        }];
        let none = judge_choice(
            &linerate::unstable::verbs::choose::choose(&devices, &Default::default()),
            false,
        );
        assert!(none.text.contains("the port has no GID"), "{none:?}");
    }
}
