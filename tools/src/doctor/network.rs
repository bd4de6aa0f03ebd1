//! Interfaces of this host and the routes over them. Pure where it judges.

use super::finding::Finding;
use crate::system;
use linerate::unstable::bootstrap::{NetworkLink, network_links};
use std::net::Ipv4Addr;
use std::path::Path;

/// The least that IPv6 needs (RFC 8200, section 5).
const MTU_MIN: u32 = 1280;
const MTU_USUAL: u32 = 1500;
const MTU_JUMBO: u32 = 9000;
/// From this rate on, packets of 1500 bytes cost a core more time than the wire.
const JUMBO_MBIT: i64 = 10_000;
/// IFF_UP and IFF_LOOPBACK of netdevice(7).
const FLAG_UP: u32 = 1;
const FLAG_LOOPBACK: u32 = 8;

/// An interface, as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Such as eth0.
    pub name: String,
    /// Largest packet, bytes.
    pub mtu: u32,
    flags: u32,
    /// Mbit/s; -1 or `None` if the kernel does not say.
    speed: Option<i64>,
}

/// All interfaces of this network namespace.
pub fn interfaces() -> Result<Vec<Interface>, String> {
    let links = network_links().map_err(|e| e.to_string())?.into_iter();
    Ok(links.map(interface).collect())
}

fn interface(link: NetworkLink) -> Interface {
    let folder = Path::new("/sys/class/net").join(&link.name);
    let number = |name| system::read(folder.join(name))?.parse::<i64>().ok();
    // The folder may be that of an interface in another namespace.
    let is_same = number("ifindex") == Some(i64::from(link.index));
    Interface {
        name: link.name,
        mtu: link.mtu,
        flags: link.flags,
        speed: number("speed").filter(|_| is_same),
    }
}

/// The interfaces that are up, and loopback.
pub fn examine() -> Vec<Finding> {
    let all = match interfaces() {
        Ok(all) => all,
        Err(text) => return vec![Finding::fault("interface", text, "ip link")],
    };
    let is_up = |i: &&Interface| i.flags & FLAG_UP != 0 && i.flags & FLAG_LOOPBACK == 0;
    let mut findings: Vec<Finding> = all.iter().filter(is_up).map(judge_interface).collect();
    findings.push(judge_loopback(&all));
    findings
}

fn judge_loopback(all: &[Interface]) -> Finding {
    let loopback = all.iter().find(|i| i.flags & FLAG_LOOPBACK != 0);
    match loopback {
        Some(i) if i.flags & FLAG_UP != 0 => {
            Finding::good("interface", format!("{} is up", i.name))
        }
        found => {
            let name = found.map_or("lo", |i| &i.name);
            Finding::fault(
                "interface",
                format!("{name} is down: ranks of this host find each other at 127.0.0.1"),
                format!("ip link set {name} up"),
            )
        }
    }
}

fn judge_interface(interface: &Interface) -> Finding {
    let Interface {
        name, mtu, speed, ..
    } = interface;
    let text = format!("{name}: packets of {mtu} bytes");
    let mend = |mtu| {
        format!(
            "ip link set dev {name} mtu {mtu} (and the same on every host and switch of the path)"
        )
    };
    if *mtu < MTU_MIN {
        let text = format!(
            "{text}: fewer than {MTU_MIN}, so IPv6 is off and headers are most of what is sent"
        );
        return Finding::fault("interface", text, mend(MTU_USUAL));
    }
    if *mtu < MTU_USUAL {
        let text = format!("{text}: below the usual {MTU_USUAL} (tunnels have less)");
        return Finding::warning("interface", text, mend(MTU_USUAL));
    }
    match speed.filter(|&mbit| mbit >= JUMBO_MBIT && *mtu < MTU_JUMBO) {
        Some(mbit) => Finding::warning(
            "interface",
            format!(
                "{text} at {} Gbit/s: larger ones take less of a core",
                mbit / 1000
            ),
            mend(MTU_JUMBO),
        ),
        None => Finding::good("interface", text),
    }
}

/// The interface that packets to an address leave through, by the text of /proc/net/route.
pub fn route(table: &str, to: Ipv4Addr) -> Option<String> {
    let mut best: Option<(u32, &str)> = None;
    for line in table.lines().skip(1) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| u32::from_str_radix(fields.get(at)?, 16).ok();
        let (Some(name), Some(destination), Some(mask)) = (fields.first(), number(1), number(7))
        else {
            continue;
        };
        // The kernel prints addresses as they lie in memory.
        let (destination, mask) = (u32::from_le(destination), u32::from_le(mask));
        let to = u32::from_le(u32::from_ne_bytes(to.octets()));
        let is_better = best.is_none_or(|(length, _)| mask.count_ones() > length);
        if to & mask == destination && is_better {
            best = Some((mask.count_ones(), name));
        }
    }
    best.map(|(_, name)| name.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    fn card(mtu: u32, speed: i64) -> Interface {
        Interface {
            name: "eth0".into(),
            mtu,
            flags: FLAG_UP,
            speed: Some(speed),
        }
    }

    #[test]
    fn small_packets_are_a_fault_and_middling_ones_a_warning() {
        assert_eq!(judge_interface(&card(576, 1000)).level, Level::Fault);
        assert_eq!(judge_interface(&card(1279, -1)).level, Level::Fault);
        assert_eq!(judge_interface(&card(1450, -1)).level, Level::Warning);
        assert_eq!(judge_interface(&card(1500, 1000)).level, Level::Good);
        let fast = judge_interface(&card(1500, 100_000));
        assert_eq!(fast.level, Level::Warning);
        assert!(
            fast.mend
                .unwrap()
                .starts_with("ip link set dev eth0 mtu 9000")
        );
        assert_eq!(judge_interface(&card(9000, 100_000)).level, Level::Good);
    }

    #[test]
    fn loopback_has_to_be_up() {
        let mut loopback = card(65536, -1);
        loopback.flags = FLAG_LOOPBACK;
        assert_eq!(judge_loopback(&[loopback.clone()]).level, Level::Fault);
        loopback.flags |= FLAG_UP;
        assert_eq!(judge_loopback(&[loopback]).level, Level::Good);
        assert_eq!(judge_loopback(&[]).level, Level::Fault);
    }

    #[test]
    fn the_most_specific_route_wins() {
        let table = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
            eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
            eth1\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\nnonsense\n";
        let to = |text: &str| route(table, text.parse().unwrap());
        assert_eq!(to("192.0.2.7").as_deref(), Some("eth1"));
        assert_eq!(to("8.8.8.8").as_deref(), Some("eth0"));
        assert_eq!(route("Iface\n", Ipv4Addr::LOCALHOST), None);
    }

    #[test]
    fn this_host_has_interfaces() {
        assert!(interfaces().unwrap().iter().any(|i| i.mtu > 0));
    }
}
